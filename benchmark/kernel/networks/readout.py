"""Networks of GraphSAGE convolutions that differ in how the nodes of a graph are read out.

Sources: Li et al. 2016 (soft attention over the nodes), Vinyals et al. 2016 (Set2Set), Zhang et al.
2018 (SortPool, of DGCNN).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch_geometric.nn import AttentionalAggregation, SAGEConv, Set2Set, SortAggregation

from benchmark.kernel.networks.shape import GraphShape, Head

SORTED_SHARE = 0.6  # of the graphs are filled up to the length that SortPool cuts to
LEAST_SORTED = 10
SORT_KERNEL = 5


class SageStack(nn.Module):
    """GraphSAGE convolutions with ReLU after each."""

    def __init__(self, in_channels: int, num_layers: int, hidden: int) -> None:
        super().__init__()
        widths = [in_channels] + [hidden] * (num_layers - 1)
        self.convs = nn.ModuleList(SAGEConv(width, hidden) for width in widths)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return features [N, hidden]."""
        for conv in self.convs:
            x = torch.relu(conv(x, edge_index))
        return x


class GlobalAttentionNet(nn.Module):
    """A weighted sum of the nodes; a linear layer and a softmax over the graph make the weights."""

    def __init__(self, shape: GraphShape, num_layers: int, hidden: int) -> None:
        super().__init__()
        self.stack = SageStack(shape.num_features, num_layers, hidden)
        self.readout = AttentionalAggregation(nn.Linear(hidden, 1))
        self.head = Head(hidden, hidden, shape.num_classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C]."""
        x = self.readout(self.stack(x, edge_index), batch, dim_size=size)
        out: Tensor = self.head(x)
        return out


class Set2SetNet(nn.Module):
    """An LSTM that attends to the nodes several times."""

    steps = 4

    def __init__(self, shape: GraphShape, num_layers: int, hidden: int) -> None:
        super().__init__()
        self.stack = SageStack(shape.num_features, num_layers, hidden)
        self.readout = Set2Set(hidden, self.steps)
        self.head = Head(2 * hidden, hidden, shape.num_classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C]."""
        x = self.readout(self.stack(x, edge_index), batch, dim_size=size)
        out: Tensor = self.head(x)
        return out


class SortPool(nn.Module):
    """The nodes in the order of their last feature, cut to one length, and a convolution on it."""

    def __init__(self, shape: GraphShape, num_layers: int, hidden: int) -> None:
        super().__init__()
        length = sorted_length(shape)
        self.stack = SageStack(shape.num_features, num_layers, hidden)
        self.readout = SortAggregation(length)
        self.conv = nn.Conv1d(hidden, 32, SORT_KERNEL)
        self.head = Head(32 * (length - SORT_KERNEL + 1), hidden, shape.num_classes)
        self.hidden, self.length = hidden, length

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C]."""
        x = self.readout(self.stack(x, edge_index), batch, dim_size=size)
        x = x.view(size, self.length, self.hidden).transpose(1, 2)
        x = torch.relu(self.conv(x))
        out: Tensor = self.head(x.flatten(1))
        return out


def sorted_length(shape: GraphShape) -> int:
    """Return how many nodes SortPool keeps: as many as 60 % of the graphs do not exceed, or 10."""
    counts = sorted(shape.node_counts)
    place = math.ceil(SORTED_SHARE * len(counts)) - 1
    return max(LEAST_SORTED, counts[place])
