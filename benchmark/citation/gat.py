"""GAT (Velickovic et al., 2018) on a citation graph."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import COUNT, PROBABILITY
from benchmark.citation.results import CitationResult
from benchmark.citation.settings import citation_parser
from benchmark.citation.train_eval import run_script


class Net(torch.nn.Module):
    """Two GAT layers; dropout on what enters each and on the attention."""

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden: int,
        dropout: float,
        heads: int,
        output_heads: int,
    ) -> None:
        super().__init__()
        self.conv1 = GATConv(num_features, hidden, heads=heads, dropout=dropout)
        self.conv2 = GATConv(
            hidden * heads, num_classes, heads=output_heads, concat=False, dropout=dropout
        )
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.conv1.reset_parameters()
        self.conv2.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return log-probabilities [N, C] of `x` [N, F] on `edge_index` [2, E]."""
        x = F.dropout(x, self.dropout, self.training)
        x = F.elu(self.conv1(x, edge_index))
        x = F.dropout(x, self.dropout, self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)


def main(argv: Sequence[str] | None = None) -> CitationResult:
    """Run the script with the given arguments, by default those of the process."""
    parser = citation_parser(
        __doc__, runs=2, epochs=1000, lr=0.005, weight_decay=5e-4, early_stopping=100
    )
    parser.add_argument("--hidden", type=COUNT, default=8)
    parser.add_argument("--dropout", type=PROBABILITY, default=0.6)
    parser.add_argument("--heads", type=COUNT, default=8)
    parser.add_argument("--output_heads", type=COUNT, default=1)
    return run_script("GAT", Net, parser, argv)


if __name__ == "__main__":
    main()
