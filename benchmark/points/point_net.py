"""PointNet++ (Qi et al., 2017) on point clouds: sampled centres take in the points around them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import PointNetConv, global_max_pool

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.points.layers import BallQuery, FarthestPoints
from benchmark.points.results import PointsResult
from benchmark.points.settings import points_parser
from benchmark.points.train_eval import run_script


def mlp(*sizes: int) -> nn.Sequential:
    """Return linear layers, each with ReLU and batch normalisation behind it."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.BatchNorm1d(after)]
    return nn.Sequential(*layers)


class SetAbstraction(nn.Module):
    """Keeps some centres, each with the maximum over the points around it."""

    def __init__(self, ratio: float, r: float, local_nn: nn.Module) -> None:
        super().__init__()
        self.sample = FarthestPoints(ratio)
        self.query = BallQuery(r)
        # The query finds the centre itself, too: no loops to add.
        self.conv = PointNetConv(local_nn, add_self_loops=False)

    def forward(
        self, x: Tensor | None, pos: Tensor, batch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, positions and clouds of the centres."""
        centres = self.sample(pos, batch)
        edge_index = self.query(pos, batch, centres)
        x = self.conv((x, None), (pos, pos[centres]), edge_index)
        return x, pos[centres], batch[centres]


class Net(nn.Module):
    """Two set abstractions and a global one, then three layers."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.abstraction1 = SetAbstraction(0.5, 0.2, mlp(3, 64, 64, 128))
        self.abstraction2 = SetAbstraction(0.25, 0.4, mlp(128 + 3, 128, 128, 256))
        self.whole = mlp(256 + 3, 256, 512, 1024)
        self.lin1 = nn.Linear(1024, 512)
        self.lin2 = nn.Linear(512, 256)
        self.lin3 = nn.Linear(256, num_classes)

    def forward(self, pos: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C] of `pos` [N, 3] in `size` = B clouds."""
        x, pos, batch = self.abstraction1(None, pos, batch)
        x, pos, batch = self.abstraction2(x, pos, batch)
        x = global_max_pool(self.whole(torch.cat([x, pos], dim=1)), batch, size)
        x = F.dropout(F.relu(self.lin1(x)), 0.5, self.training)
        x = F.dropout(F.relu(self.lin2(x)), 0.5, self.training)
        return F.log_softmax(self.lin3(x), dim=1)


def main(argv: Sequence[str] | None = None) -> PointsResult:
    """Run the script with the given arguments, by default those of the process."""
    return run_script(
        "PointNet++", Net, points_parser(__doc__, epochs=15, batch_size=16, scale=0.05), argv
    )


if __name__ == "__main__":
    main()
