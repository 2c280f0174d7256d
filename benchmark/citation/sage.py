"""GraphSAGE with mean aggregation (Hamilton et al., 2017) on a citation graph."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SAGEConv

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import COUNT, PROBABILITY
from benchmark.citation.results import CitationResult
from benchmark.citation.settings import citation_parser
from benchmark.citation.train_eval import run_script


class Net(torch.nn.Module):
    """Two GraphSAGE layers with dropout between them."""

    def __init__(self, num_features: int, num_classes: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = SAGEConv(num_features, hidden, aggr="mean")
        self.conv2 = SAGEConv(hidden, num_classes, aggr="mean")
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.conv1.reset_parameters()
        self.conv2.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return log-probabilities [N, C] of `x` [N, F] on `edge_index` [2, E]."""
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, self.dropout, self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)


def main(argv: Sequence[str] | None = None) -> CitationResult:
    """Run the script with the given arguments, by default those of the process."""
    parser = citation_parser(
        __doc__, runs=5, epochs=200, lr=0.01, weight_decay=5e-4, early_stopping=10
    )
    parser.add_argument("--hidden", type=COUNT, default=16)
    parser.add_argument("--dropout", type=PROBABILITY, default=0.5)
    return run_script("GraphSAGE", Net, parser, argv)


if __name__ == "__main__":
    main()
