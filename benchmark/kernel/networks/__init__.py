"""The networks by name.

Each is made of a `GraphShape`, a number of layers and a width, and maps `x` [N, F], `edge_index`
[2, E], the sorted graph of each node `batch` [N] and the number B of graphs to log-probabilities
[B, C].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from benchmark.kernel.networks.dense import DiffPool
from benchmark.kernel.networks.flat import (
    GCN,
    GIN,
    GIN0,
    GCNWithJK,
    GIN0WithJK,
    GINWithJK,
    GraphSAGE,
    GraphSAGEWithJK,
)
from benchmark.kernel.networks.pooling import (
    ASAP,
    EdgePool,
    Graclus,
    SAGPool,
    TopK,
    missing_graclus,
)
from benchmark.kernel.networks.readout import GlobalAttentionNet, Set2SetNet, SortPool
from benchmark.kernel.networks.shape import GraphShape

NetClass = Callable[[GraphShape, int, int], torch.nn.Module]

NETWORKS: Mapping[str, NetClass] = {
    "GCNWithJK": GCNWithJK,
    "GraphSAGEWithJK": GraphSAGEWithJK,
    "GIN0WithJK": GIN0WithJK,
    "GINWithJK": GINWithJK,
    "Graclus": Graclus,
    "TopK": TopK,
    "SAGPool": SAGPool,
    "DiffPool": DiffPool,
    "EdgePool": EdgePool,
    "GCN": GCN,
    "GraphSAGE": GraphSAGE,
    "GIN0": GIN0,
    "GIN": GIN,
    "GlobalAttentionNet": GlobalAttentionNet,
    "Set2SetNet": Set2SetNet,
    "SortPool": SortPool,
    "ASAP": ASAP,
}

PERFORMANCE_NETWORKS = ("GCN", "GraphSAGE", "GIN")
"""Those whose time and memory `main_performance.py` measures."""


def unsupported(name: str) -> str | None:
    """Say why a network cannot run here; None where it can."""
    return missing_graclus() if name == "Graclus" else None


__all__ = ["NETWORKS", "PERFORMANCE_NETWORKS", "GraphShape", "NetClass", "unsupported"]
