"""What a network has to know of its data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class GraphShape:
    """The sizes of a set of graphs.

    Attributes:
        num_features: Features per node.
        num_classes: Classes of the graphs.
        node_counts: Nodes of each graph.
    """

    num_features: int
    num_classes: int
    node_counts: Sequence[int]


class Head(nn.Module):
    """Two layers with dropout between them, from a graph's features to its log-probabilities."""

    def __init__(self, in_channels: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.lin1 = nn.Linear(in_channels, hidden)
        self.lin2 = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities [B, C] of `x` [B, in]."""
        x = torch.relu(self.lin1(x))
        x = nn.functional.dropout(x, 0.5, self.training)
        return nn.functional.log_softmax(self.lin2(x), dim=-1)
