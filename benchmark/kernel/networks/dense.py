"""DiffPool (Ying et al., 2018): dense graphs whose nodes are assigned to fewer and fewer clusters.

Batches come with sparse edges, as for the other networks, and are made dense here: each graph as
large as the largest of the batch. No graph is left out for its size. Of the method's losses only
that of the classification is used, as in torch_geometric's benchmark.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch_geometric.nn import DenseSAGEConv, JumpingKnowledge, dense_diff_pool
from torch_geometric.utils import to_dense_adj, to_dense_batch

from benchmark.kernel.networks.shape import GraphShape, Head

RATIO = 0.25
"""Clusters per node: the first time of one and a half mean graphs, then of the clusters before."""


class Block(nn.Module):
    """Two dense convolutions, both outputs side by side, and a linear layer."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = DenseSAGEConv(in_channels, hidden)
        self.conv2 = DenseSAGEConv(hidden, out_channels)
        self.jump = JumpingKnowledge("cat")
        self.lin = nn.Linear(hidden + out_channels, out_channels)

    def forward(self, x: Tensor, adj: Tensor, mask: Tensor | None) -> Tensor:
        """Return features [B, N, out] of `x` [B, N, in] with `adj` [B, N, N], `mask` [B, N]."""
        first = torch.relu(self.conv1(x, adj, mask))
        second = torch.relu(self.conv2(first, adj, mask))
        out: Tensor = self.lin(self.jump([first, second]))
        return out


class Pooling(nn.Module):
    """A block that makes features, and one that assigns nodes to clusters."""

    def __init__(self, in_channels: int, hidden: int, clusters: int) -> None:
        super().__init__()
        self.assign = Block(in_channels, hidden, clusters)
        self.embed = Block(in_channels, hidden, hidden)

    def forward(self, x: Tensor, adj: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return features and edges of the clusters, and the mean of the nodes [B, hidden]."""
        assignment = self.assign(x, adj, mask)
        x = torch.relu(self.embed(x, adj, mask))
        mean = masked_mean(x, mask)
        x, adj, _, _ = dense_diff_pool(x, adj, assignment, mask)
        return x, adj, mean


class DiffPool(nn.Module):
    """Poolings after each second layer, a last block, and the means of all sizes side by side."""

    def __init__(self, shape: GraphShape, num_layers: int, hidden: int) -> None:
        super().__init__()
        nodes = 1.5 * sum(shape.node_counts) / len(shape.node_counts)
        width = shape.num_features
        poolings = []
        for _ in range(max((num_layers + 1) // 2, 1)):
            nodes = math.ceil(RATIO * nodes)
            poolings.append(Pooling(width, hidden, int(nodes)))
            width = hidden
        self.poolings = nn.ModuleList(poolings)
        self.last = Block(hidden, hidden, hidden)
        self.jump = JumpingKnowledge("cat")
        self.head = Head((len(poolings) + 1) * hidden, hidden, shape.num_classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C]."""
        dense, mask = to_dense_batch(x, batch, batch_size=size)
        adj = to_dense_adj(edge_index, batch, max_num_nodes=dense.size(1), batch_size=size)
        nodes: Tensor | None = mask
        means = []
        for pooling in self.poolings:
            dense, adj, mean = pooling(dense, adj, nodes)
            means.append(mean)
            nodes = None  # all clusters exist
        means.append(torch.relu(self.last(dense, adj, None)).mean(dim=1))
        out: Tensor = self.head(self.jump(means))
        return out


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean [B, F] of `x` [B, N, F] over the nodes that are there by `mask` [B, N]."""
    if mask is None:
        return x.mean(dim=1)
    there = mask.unsqueeze(-1).to(x.dtype)
    return (x * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)
