"""SplineCNN (Fey et al., 2018) on point clouds: kernels that are continuous in space."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.points.layers import RadiusGraph, RadiusNet
from benchmark.points.results import PointsResult
from benchmark.points.settings import points_parser
from benchmark.points.spline import SplineConv
from benchmark.points.train_eval import run_script


class SpatialSplineConv(nn.Module):
    """One spline convolution among the points that are nearer to each other than a radius."""

    def __init__(self, r: float, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.graph = RadiusGraph(r)
        self.conv = SplineConv(in_channels, out_channels, dim=3, kernel_size=5)

    def forward(self, x: Tensor, pos: Tensor, batch: Tensor) -> Tensor:
        """Return features [N, out] of `x` [N, in] at `pos` [N, 3]."""
        edge_index = self.graph(pos, batch)
        source, target = edge_index
        offset = (pos[target] - pos[source]) / (2 * self.graph.r) + 0.5
        return F.elu(self.conv(x, edge_index, offset.clamp(0, 1)))


class Net(RadiusNet):
    """`RadiusNet` of this script's convolution."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(SpatialSplineConv, F.elu, num_classes)


def main(argv: Sequence[str] | None = None) -> PointsResult:
    """Run the script with the given arguments, by default those of the process."""
    return run_script(
        "SplineCNN", Net, points_parser(__doc__, epochs=12, batch_size=8, scale=0.05), argv
    )


if __name__ == "__main__":
    main()
