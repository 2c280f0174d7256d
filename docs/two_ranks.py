"""Profile the training step of a GCN on every process; one phase is slow on rank 1.

$ torchrun --nproc-per-node=2 docs/two_ranks.py profiles
$ gnnprof report profiles
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GCN, GCNConv

from gnnprof import Profiler

STEPS = 5
DELAY = 0.05
"""Seconds that every message phase of the first layer loses on rank 1."""


class DelayedConv(GCNConv):
    """A GCNConv on a machine that may be slow."""

    delay = 0.0

    def message(self, x_j: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        """Compute the messages, late."""
        time.sleep(self.delay)
        return super().message(x_j, edge_weight)


def main(folder: str) -> None:
    """Train for a few steps and write `prof-rankN.json` into the folder."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    inner = GCN(32, 16, num_layers=2, out_channels=4)
    inner.convs[0] = DelayedConv(32, 16)
    inner.convs[0].delay = DELAY * torch.distributed.get_rank()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(1000, 32), torch.randint(4, (1000,))
    edge_index = torch.randint(1000, (2, 8000))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, edge_index), y).backward()
        optimizer.step()

    step()  # warm up
    with Profiler(model) as prof:
        for _ in range(STEPS):
            step()
    Path(folder).mkdir(parents=True, exist_ok=True)
    prof.to_json(Path(folder) / "prof.json")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
