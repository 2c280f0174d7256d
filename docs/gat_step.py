"""Profile training steps of a GAT of three layers, for the page "Reading a real profile".

    python docs/gat_step.py gat.html

The graph is random and has the size of PubMed.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch_geometric.nn import GAT

from gnnprof import Profiler, ProfileRow

STEPS = 3


def main(page: str) -> None:
    """Print where the steps spend their time, and write the page.

    Args:
        page: Where the HTML page shall be.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.rand(19717, 500)
    edge_index = torch.randint(19717, (2, 88648))
    y = torch.randint(3, (19717,))
    model = GAT(500, 64, num_layers=3, out_channels=3, heads=8)
    optimizer = torch.optim.Adam(model.parameters())

    def train_step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, edge_index), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    train_step()  # warm up
    with Profiler(model, counts=True) as prof:
        for _ in range(STEPS):
            train_step()

    sys.stdout.write(prof.table(ops=False, sort="total", min_percent=2) + "\n\n")
    sys.stdout.write("The costliest ops:\n")
    ops = [row for row in prof.rows if row.op is not None and row.path is not None]
    for row in sorted(ops, key=own_time, reverse=True)[:6]:
        where = f"{row.path} [{row.phase}]" if row.phase else row.path
        sys.stdout.write(f"  {own_time(row) / prof.total_time:5.1%}  {where:<25} {row.op}\n")
    prof.to_html(page, overwrite=True)


def own_time(row: ProfileRow) -> float:
    """Seconds of a row alone, forward and backward."""
    return row.self_cpu_time + (row.self_backward_cpu_time or 0.0)


if __name__ == "__main__":
    main(sys.argv[1])
