"""MPNN (Gilmer et al., 2017) on point clouds: a network makes each edge's matrix."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import NNConv, global_mean_pool

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.points.layers import FarthestPoints, RadiusGraph
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


class Net(nn.Module):
    """Three convolutions on fewer and fewer points, a mean over the cloud, three layers."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = EdgeConv(0.2, 1, 64)
        self.sample1 = FarthestPoints(0.5)
        self.conv2 = EdgeConv(0.4, 64, 64)
        self.sample2 = FarthestPoints(0.25)
        self.conv3 = EdgeConv(1.0, 64, 128)
        self.lin1 = nn.Linear(128, 256)
        self.lin2 = nn.Linear(256, 256)
        self.lin3 = nn.Linear(256, num_classes)

    def forward(self, pos: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C] of `pos` [N, 3] in `size` = B clouds."""
        x = self.conv1(pos.new_ones(len(pos), 1), pos, batch)
        kept = self.sample1(pos, batch)
        x, pos, batch = x[kept], pos[kept], batch[kept]
        x = self.conv2(x, pos, batch)
        kept = self.sample2(pos, batch)
        x, pos, batch = x[kept], pos[kept], batch[kept]
        x = global_mean_pool(self.conv3(x, pos, batch), batch, size)
        x = F.relu(self.lin1(x))
        x = F.relu(self.lin2(x))
        x = F.dropout(x, 0.5, self.training)
        return F.log_softmax(self.lin3(x), dim=1)


def main(argv: Sequence[str] | None = None) -> PointsResult:
    """Run the script with the given arguments, by default those of the process."""
    # A matrix for each edge is dear: fewer points, and larger steps, than the other scripts take.
    parser = points_parser(__doc__, epochs=15, batch_size=8, scale=0.05, num_points=128, lr=0.0015)
    return run_script("MPNN", Net, parser, argv)


if __name__ == "__main__":
    main()
