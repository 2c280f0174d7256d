"""EdgeCNN, or DGCNN (Wang et al., 2019), on point clouds: edge convolutions on moving graphs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import global_max_pool

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.points.layers import DynamicEdgeConv
from benchmark.points.results import PointsResult
from benchmark.points.settings import points_parser
from benchmark.points.train_eval import run_script

NEIGHBOURS = 20


def mlp(*sizes: int) -> nn.Sequential:
    """Return linear layers, each with ReLU behind it."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class Net(nn.Module):
    """Two edge convolutions, the maximum over the cloud, and three layers."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = DynamicEdgeConv(mlp(2 * 3, 64, 64, 64), NEIGHBOURS)
        self.conv2 = DynamicEdgeConv(mlp(2 * 64, 128, 128, 256), NEIGHBOURS)
        self.lin0 = nn.Linear(256, 512)
        self.lin1 = nn.Linear(512, 256)
        self.lin2 = nn.Linear(256, 256)
        self.lin3 = nn.Linear(256, num_classes)

    def forward(self, pos: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C] of `pos` [N, 3] in `size` = B clouds."""
        x = self.conv1(pos, batch)
        x = self.conv2(x, batch)
        x = F.relu(self.lin0(x))
        x = global_max_pool(x, batch, size)
        x = F.relu(self.lin1(x))
        x = F.relu(self.lin2(x))
        x = F.dropout(x, 0.5, self.training)
        return F.log_softmax(self.lin3(x), dim=1)


def main(argv: Sequence[str] | None = None) -> PointsResult:
    """Run the script with the given arguments, by default those of the process."""
    # A message of each edge is dear: fewer points, and more steps, than the other scripts take.
    parser = points_parser(__doc__, epochs=12, batch_size=4, scale=0.05, num_points=64)
    return run_script("EdgeCNN", Net, parser, argv)


if __name__ == "__main__":
    main()
