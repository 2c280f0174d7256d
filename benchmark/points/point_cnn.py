"""PointCNN (Li et al., 2018) on point clouds: convolutions on X-transformed points."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import global_mean_pool

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.points.layers import FarthestPoints, XConv
from benchmark.points.results import PointsResult
from benchmark.points.settings import points_parser
from benchmark.points.train_eval import run_script

LEAST_POINTS = 246
"""Of them the samplings keep 93 and 32, and the last convolutions look at 32."""


class Net(torch.nn.Module):
    """Four X-convolutions on fewer and fewer points, a mean over the cloud, three layers."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = XConv(0, 48, dim=3, kernel_size=8, hidden_channels=32)
        self.sample1 = FarthestPoints(0.375)
        self.conv2 = XConv(48, 96, dim=3, kernel_size=12, hidden_channels=64, dilation=2)
        self.sample2 = FarthestPoints(0.334)
        self.conv3 = XConv(96, 192, dim=3, kernel_size=16, hidden_channels=128, dilation=2)
        self.conv4 = XConv(192, 384, dim=3, kernel_size=16, hidden_channels=256, dilation=2)
        self.lin1 = torch.nn.Linear(384, 256)
        self.lin2 = torch.nn.Linear(256, 128)
        self.lin3 = torch.nn.Linear(128, num_classes)

    def forward(self, pos: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C] of `pos` [N, 3] in `size` = B clouds."""
        x = F.relu(self.conv1(None, pos, batch))
        kept = self.sample1(pos, batch)
        x, pos, batch = x[kept], pos[kept], batch[kept]
        x = F.relu(self.conv2(x, pos, batch))
        kept = self.sample2(pos, batch)
        x, pos, batch = x[kept], pos[kept], batch[kept]
        x = F.relu(self.conv3(x, pos, batch))
        x = F.relu(self.conv4(x, pos, batch))
        x = global_mean_pool(x, batch, size)
        x = F.relu(self.lin1(x))
        x = F.relu(self.lin2(x))
        x = F.dropout(x, 0.5, self.training)
        return F.log_softmax(self.lin3(x), dim=1)


def main(argv: Sequence[str] | None = None) -> PointsResult:
    """Run the script with the given arguments, by default those of the process."""
    parser = points_parser(__doc__, epochs=12, batch_size=8, scale=0.03, least_points=LEAST_POINTS)
    return run_script("PointCNN", Net, parser, argv)


if __name__ == "__main__":
    main()
