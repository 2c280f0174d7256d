"""Networks that keep all nodes to the end: GCN, GraphSAGE and GIN, with jumping knowledge or not.

Sources: Kipf and Welling 2017 (GCN), Hamilton et al. 2017 (GraphSAGE), Xu et al. 2019 (GIN; GIN0
has epsilon fixed at 0), Xu et al. 2018 (jumping knowledge: the outputs of all layers side by side).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GCNConv,
    GINConv,
    JumpingKnowledge,
    SAGEConv,
    global_mean_pool,
)

from benchmark.kernel.networks.shape import GraphShape, Head


class FlatNet(nn.Module):
    """A stack of convolutions, the mean over the nodes, and a head.

    Subclasses say which convolution.
    """

    jumping = False
    act_after_conv = True

    def __init__(self, shape: GraphShape, num_layers: int, hidden: int) -> None:
        super().__init__()
        widths = [shape.num_features] + [hidden] * (num_layers - 1)
        self.convs = nn.ModuleList(self.conv(width, hidden) for width in widths)
        self.jump = JumpingKnowledge("cat") if self.jumping else None
        self.head = Head(hidden * (num_layers if self.jumping else 1), hidden, shape.num_classes)

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return one convolution."""
        raise NotImplementedError

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C]."""
        outputs = []
        for conv in self.convs:
            x = conv(x, edge_index)
            if self.act_after_conv:
                x = torch.relu(x)
            outputs.append(x)
        if self.jump is not None:
            x = self.jump(outputs)
        out: Tensor = self.head(global_mean_pool(x, batch, size))
        return out


class GCN(FlatNet):
    """Graph convolutions."""

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return one convolution."""
        return GCNConv(in_channels, out_channels)  # type: ignore[no-any-return]


class GCNWithJK(GCN):
    """GCN with jumping knowledge."""

    jumping = True


class GraphSAGE(FlatNet):
    """Convolutions with the mean of the neighbours."""

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return one convolution."""
        return SAGEConv(in_channels, out_channels)  # type: ignore[no-any-return]


class GraphSAGEWithJK(GraphSAGE):
    """GraphSAGE with jumping knowledge."""

    jumping = True


class GIN(FlatNet):
    """Isomorphism convolutions with a learnt epsilon.

    The mean over the nodes is what PyG's benchmark takes; Xu et al. 2019 take the sum.
    """

    act_after_conv = False  # its network ends in one, and in a normalisation
    train_eps = True

    def conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return one convolution."""
        network = nn.Sequential(
            *(nn.Linear(in_channels, out_channels), nn.ReLU()),
            *(nn.Linear(out_channels, out_channels), nn.ReLU()),
            nn.BatchNorm1d(out_channels),
        )
        return GINConv(network, train_eps=self.train_eps)  # type: ignore[no-any-return]


class GINWithJK(GIN):
    """GIN with jumping knowledge."""

    jumping = True


class GIN0(GIN):
    """GIN with epsilon 0."""

    train_eps = False


class GIN0WithJK(GIN0):
    """GIN0 with jumping knowledge."""

    jumping = True
