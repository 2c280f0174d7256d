"""SGC (Wu et al., 2019) on a citation graph."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SGConv

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import COUNT
from benchmark.citation.results import CitationResult
from benchmark.citation.settings import citation_parser
from benchmark.citation.train_eval import run_script


class Net(torch.nn.Module):
    """One linear layer on features that were propagated K times, once and for all."""

    def __init__(self, num_features: int, num_classes: int, K: int) -> None:
        super().__init__()
        self.conv1 = SGConv(num_features, num_classes, K=K, cached=True)

    def reset_parameters(self) -> None:
        """Draw all parameters anew and forget the propagated features."""
        self.conv1.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return log-probabilities [N, C] of `x` [N, F] on `edge_index` [2, E]."""
        return F.log_softmax(self.conv1(x, edge_index), dim=1)


def main(argv: Sequence[str] | None = None) -> CitationResult:
    """Run the script with the given arguments, by default those of the process."""
    parser = citation_parser(
        __doc__, runs=10, epochs=200, lr=0.1, weight_decay=5e-4, early_stopping=10
    )
    parser.add_argument("--K", type=COUNT, default=2)
    return run_script("SGC", Net, parser, argv)


if __name__ == "__main__":
    main()
