"""Networks that drop or merge nodes after every second convolution, and read each size out.

Sources: Gao and Ji 2019, Cangea et al. 2018 (TopK), Lee et al. 2019 (SAGPool), Diehl 2019
(EdgePool), Ranjan et al. 2020 (ASAP), Dhillon et al. 2007 (Graclus).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
import torch_geometric.typing
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import (
    ASAPooling,
    EdgePooling,
    GraphConv,
    JumpingKnowledge,
    SAGEConv,
    SAGPooling,
    TopKPooling,
    global_mean_pool,
    graclus,
    max_pool,
)

from benchmark.kernel.networks.shape import GraphShape, Head

KEPT = 0.8
"""Share of the nodes that TopK, SAGPool and ASAP keep each time."""


class PoolingNet(nn.Module):
    """Convolutions, pooling after each second one, and the means of all layers side by side.

    Subclasses say which convolution and which pooling.
    """

    def __init__(self, shape: GraphShape, num_layers: int, hidden: int) -> None:
        super().__init__()
        widths = [shape.num_features] + [hidden] * (num_layers - 1)
        self.convs = nn.ModuleList(self.conv(width, hidden) for width in widths)
        # After the layers 2, 4, ... there is a pooling if another layer follows.
        self.pools = nn.ModuleList(self.pool(hidden) for _ in range((num_layers - 1) // 2))
        self.jump = JumpingKnowledge("cat")
        self.head = Head(num_layers * hidden, hidden, shape.num_classes)

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return one convolution."""
        return GraphConv(in_channels, out_channels, aggr="mean")  # type: ignore[no-any-return]

    def pool(self, hidden: int) -> nn.Module:
        """Return one pooling: a module that maps `x`, `edge_index` and `batch` to the same."""
        raise NotImplementedError

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C]."""
        outputs = []
        for layer, conv in enumerate(self.convs):
            x = torch.relu(conv(x, edge_index))
            outputs.append(global_mean_pool(x, batch, size))
            if layer % 2 == 1 and layer < len(self.convs) - 1:
                x, edge_index, batch = self.pools[layer // 2](x, edge_index, batch)
        out: Tensor = self.head(self.jump(outputs))
        return out


class TopK(PoolingNet):
    """Keeps the nodes that score highest on a learnt direction."""

    def pool(self, hidden: int) -> nn.Module:
        """Return one pooling."""
        return _Selection(TopKPooling(hidden, KEPT))


class SAGPool(PoolingNet):
    """Keeps the nodes that a convolution scores highest."""

    def pool(self, hidden: int) -> nn.Module:
        """Return one pooling."""
        return _Selection(SAGPooling(hidden, KEPT))


class ASAP(PoolingNet):
    """Merges neighbourhoods by attention and keeps the best of them; edges have weights then."""

    def pool(self, hidden: int) -> nn.Module:
        """Return one pooling."""
        return ASAPooling(hidden, KEPT)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C]."""
        weight: Tensor | None = None
        outputs = []
        for layer, conv in enumerate(self.convs):
            x = torch.relu(conv(x, edge_index, weight))
            outputs.append(global_mean_pool(x, batch, size))
            if layer % 2 == 1 and layer < len(self.convs) - 1:
                with _without_sparse_warnings():
                    x, edge_index, weight, batch, _ = self.pools[layer // 2](
                        x, edge_index, weight, batch
                    )
        out: Tensor = self.head(self.jump(outputs))
        return out


class EdgePool(PoolingNet):
    """Contracts the edges that score highest, each node at most once."""

    def pool(self, hidden: int) -> nn.Module:
        """Return one pooling."""
        return _Contraction(EdgePooling(hidden))


class Graclus(PoolingNet):
    """Merges nodes by pairs, greedily and without learning, and takes their maximum."""

    def pool(self, hidden: int) -> nn.Module:  # noqa: ARG002 (nothing to learn, of any width)
        """Return one pooling."""
        return _Matching()

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return one convolution."""
        return SAGEConv(in_channels, out_channels)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _without_sparse_warnings() -> Iterator[None]:
    """Keep quiet what torch says of the sparse matrices that ASAPooling multiplies."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
        yield


def missing_graclus() -> str | None:
    """Say what Graclus lacks on this machine; None where it can run."""
    typing = torch_geometric.typing
    if getattr(typing, "WITH_GRACLUS", False) or getattr(typing, "WITH_TORCH_CLUSTER", False):
        return None
    return "Graclus needs the clustering of pyg_lib (or torch_cluster), which is not installed"


class _Selection(nn.Module):
    """Keeps some nodes of each graph and the edges between them."""

    def __init__(self, selection: nn.Module) -> None:
        super().__init__()
        self.selection = selection

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, edge_index, _, batch, *_ = self.selection(x, edge_index, batch=batch)
        return x, edge_index, batch


class _Contraction(nn.Module):
    """Merges nodes along edges."""

    def __init__(self, contraction: nn.Module) -> None:
        super().__init__()
        self.contraction = contraction

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, edge_index, batch, _ = self.contraction(x, edge_index, batch=batch)
        return x, edge_index, batch


class _Matching(nn.Module):
    """Merges the nodes that Graclus pairs."""

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        cluster = graclus(edge_index, num_nodes=len(x))
        pooled = max_pool(cluster, Batch(x=x, edge_index=edge_index, batch=batch))
        return pooled.x, pooled.edge_index, pooled.batch
