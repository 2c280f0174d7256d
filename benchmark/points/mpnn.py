"""MPNN (Gilmer et al., 2017) on point clouds: a network makes each edge's matrix."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import NNConv

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.points.layers import RadiusGraph, RadiusNet
from benchmark.points.results import PointsResult
from benchmark.points.settings import points_parser
from benchmark.points.train_eval import run_script


class EdgeConv(nn.Module):
    """One convolution of `NNConv` among the points that are near each other."""

    def __init__(self, r: float, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.graph = RadiusGraph(r)
        matrix = nn.Sequential(
            nn.Linear(3, 25), nn.ReLU(), nn.Linear(25, in_channels * out_channels)
        )
        self.conv = NNConv(in_channels, out_channels, matrix, aggr="mean")

    def forward(self, x: Tensor, pos: Tensor, batch: Tensor) -> Tensor:
        """Return features [N, out] of `x` [N, in] at `pos` [N, 3]."""
        edge_index = self.graph(pos, batch)
        source, target = edge_index
        return F.relu(self.conv(x, edge_index, pos[target] - pos[source]))


class Net(RadiusNet):
    """`RadiusNet` of this script's convolution."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(EdgeConv, F.relu, num_classes)


def main(argv: Sequence[str] | None = None) -> PointsResult:
    """Run the script with the given arguments, by default those of the process."""
    # A matrix for each edge is dear: fewer points, and larger steps, than the other scripts take.
    parser = points_parser(__doc__, epochs=15, batch_size=8, scale=0.05, num_points=128, lr=0.0015)
    return run_script("MPNN", Net, parser, argv)


if __name__ == "__main__":
    main()
