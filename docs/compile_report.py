"""Ask whether torch.compile pays for a GCN of three layers, for the page "Does torch.compile pay?".

    python docs/compile_report.py

The graph is random and has the size of PubMed. The second model has the same weights and edges; its
self-loops and its normalisation are computed once, before it runs.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import torch
import torch_geometric  # noqa: F401  # before gnnprof: the environment then names its version
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnprof import compile_benchmark


class GCN(nn.Module):
    """Three layers of 64; `normalize` as in `GCNConv`."""

    def __init__(self, normalize: bool) -> None:
        super().__init__()
        sizes = [500, 64, 64, 3]
        self.convs = nn.ModuleList(
            GCNConv(size, following, normalize=normalize) for size, following in pairwise(sizes)
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Run all layers, with a ReLU between them."""
        for conv in self.convs:
            x = conv(x, edge_index, edge_weight).relu()
        return x


def main() -> None:
    """Print a report of each model."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.rand(19717, 500)
    edge_index = torch.randint(19717, (2, 88648))

    inside = compile_benchmark(GCN(normalize=True), (x, edge_index), modes=["default"])
    sys.stdout.write(f"Normalised in every forward\n{inside}\n\n")

    once = gcn_norm(edge_index, num_nodes=len(x))
    modes = ["default", "reduce-overhead"]
    before = compile_benchmark(GCN(normalize=False), (x, *once), modes=modes)
    sys.stdout.write(f"Normalised once\n{before}\n")


if __name__ == "__main__":
    main()
