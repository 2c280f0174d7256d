"""Accuracy of graph classification by cross-validation, with the best size of each network.

Each case is a data set, a network and a size; its folds are trained one after the other, each from
fresh parameters. Of the sizes the one with the lowest validation loss is reported.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tabulate import tabulate

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import COUNT, POSITIVE, number
from benchmark.classification.classifier import Classifier
from benchmark.classification.training import fit
from benchmark.kernel.datasets import classes_of, folds, loaders_of, shape_of
from benchmark.kernel.main_performance import call_on_graphs
from benchmark.kernel.networks import NETWORKS
from benchmark.kernel.settings import Case, Defaults, Settings, kernel_parser
from benchmark.kernel.statistics import best_sizes, fold_of, summary_of
from benchmark.kernel.sweep import Context, Record, failures, run_sweep

DEFAULTS = Defaults(
    datasets=("mutag-like",), models=tuple(NETWORKS), layers=(3,), hiddens=(32,), epochs=25
)


class CrossValidation:
    """Trains one network per fold and case."""

    benchmark = "kernel"

    def epochs(self, settings: Settings) -> int:
        """Return how many epochs a case has."""
        return settings.epochs * (settings.folds or 1)

    def run(self, case: Case, context: Context) -> dict[str, object]:
        """Measure a case, and return what its record holds beside the case."""
        settings = context.settings
        splits = folds(classes_of(context.dataset), settings.folds or 0, settings.seed)
        shape = shape_of(context.dataset)
        found = []
        for number_of_fold, split in enumerate(splits):
            loaders = loaders_of(context.dataset, split, settings.batch_size, train=True)
            torch.manual_seed(settings.seed + number_of_fold)
            net = NETWORKS[case.model](shape, case.layers, case.hidden)
            classifier = Classifier(net, call_on_graphs, context.device)
            epochs = fit(classifier, loaders, settings.plan(), lambda *_: context.tick())
            found.append(fold_of(epochs))
        return {
            "summary": summary_of(found),
            "folds": [dataclasses.asdict(fold) for fold in found],
            "parameters": sum(parameter.numel() for parameter in net.parameters()),
        }

    def line(self, record: Record) -> str:
        """Return what is printed of a case that ended well."""
        summary = record["summary"]
        return (
            f"Val Loss: {summary['validation_loss']:.4f}, Test Accuracy: {_accuracy(record)}, "
            f"Duration: {summary['epoch_seconds']:.3f}s per epoch"
        )

    def table(self, records: Sequence[Record]) -> str:
        """Return the best size of each network on each data set, and the failures."""
        rows = [
            [
                *(record["case"][key] for key in ("dataset", "model", "layers", "hidden")),
                _accuracy(record),
            ]
            for record in best_sizes(records)
        ]
        columns = ["Data set", "Network", "Layers", "Hidden", "Test accuracy"]
        note = "Size with the lowest validation loss; mean and standard deviation over the folds."
        return "\n".join([tabulate(rows, columns, disable_numparse=True), note, *failures(records)])


def _accuracy(record: Record) -> str:
    summary = record["summary"]
    return f"{summary['test_accuracy']:.3f} ± {summary['test_accuracy_std']:.3f}"


def main(argv: Sequence[str] | None = None) -> list[Record]:
    """Run the script with the given arguments, by default those of the process."""
    parser = kernel_parser(__doc__, DEFAULTS)
    parser.add_argument(
        "--lr_decay_factor", type=POSITIVE, default=0.5, help="factor on the step size now and then"
    )
    parser.add_argument(
        "--lr_decay_step_size",
        type=COUNT,
        default=50,
        help="epochs after each of which the step size is multiplied by --lr_decay_factor",
    )
    parser.add_argument(
        "--folds", type=number(int, least=3), default=3, help="folds of the cross-validation"
    )
    return run_sweep(CrossValidation(), parser, argv)


if __name__ == "__main__":
    main()
