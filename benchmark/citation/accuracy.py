"""Accuracy on real citation graphs beside the published figures, in one table.

Every model is trained on the public split with the settings of PyG's `benchmark/citation/run.sh`.
Each finished model is kept as a record in the output folder, and is not trained again there.

    python benchmark/citation/accuracy.py --root DATA --runs 10
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import COUNT, add_switch

DATASETS = ("CiteSeer", "PubMed")

PUBLISHED = {
    ("GCN", "CiteSeer"): "71.1 ± 0.7",
    ("GCN", "PubMed"): "79.0 ± 0.6",
    ("GAT", "CiteSeer"): "70.8 ± 0.5",
    ("GAT", "PubMed"): "78.5 ± 0.3",
    ("Cheby", "CiteSeer"): "70.2 ± 1.0",
    ("Cheby", "PubMed"): "78.4 ± 0.4",
    ("SGC", "CiteSeer"): "71.3 ± 0.2",
    ("SGC", "PubMed"): "78.9 ± 0.1",
    ("ARMA", "CiteSeer"): "72.3 ± 1.1",
    ("ARMA", "PubMed"): "78.8 ± 0.3",
    ("APPNP", "CiteSeer"): "71.8 ± 0.5",
    ("APPNP", "PubMed"): "80.1 ± 0.2",
}
"""Percent on the public split, of 100 runs: Fey and Lenssen, "Fast Graph Representation Learning
with PyTorch Geometric" (2019), whose scripts these settings are."""

SETTINGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("GAT", "PubMed"): ("--lr=0.01", "--weight_decay=0.001", "--output_heads=8"),
    ("Cheby", "CiteSeer"): ("--num_hops=2",),
    ("Cheby", "PubMed"): ("--num_hops=2",),
    ("SGC", "CiteSeer"): ("--K=2", "--weight_decay=0.005", "--no_normalize_features"),
    ("SGC", "PubMed"): ("--K=2", "--weight_decay=0.0005", "--no_normalize_features"),
    ("ARMA", "CiteSeer"): ("--num_stacks=3", "--num_layers=1", "--shared_weights"),
    ("ARMA", "PubMed"): ("--num_stacks=2", "--num_layers=1", "--skip_dropout=0"),
    ("APPNP", "CiteSeer"): ("--alpha=0.1",),
    ("APPNP", "PubMed"): ("--alpha=0.1",),
}
"""What differs from the defaults of a script; sweep.sh has the same for all graphs and splits."""

SCRIPTS = {
    "GCN": "gcn",
    "GAT": "gat",
    "Cheby": "cheb",
    "SGC": "sgc",
    "ARMA": "arma",
    "APPNP": "appnp",
}


@dataclass(frozen=True)
class Accuracy:
    """What one model reached on one graph.

    Attributes:
        model: Name of the model.
        dataset: Name of the graph, '-like' at its end if it is a stand-in.
        runs: Trainings, with seeds 0, 1, ...
        mean: Mean test accuracy at the lowest validation loss, percent.
        std: Sample standard deviation over the runs, percentage points; None for one run.
        published: The published figure, percent.
    """

    model: str
    dataset: str
    runs: int
    mean: float
    std: float | None
    published: str | None


def main(argv: Sequence[str] | None = None) -> list[Accuracy]:
    """Train what has no record yet and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--models", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS), help="(default: all)"
    )
    parser.add_argument(
        "--datasets",
        "--dataset",
        nargs="+",
        choices=DATASETS,
        default=list(DATASETS),
        help="(default: both)",
    )
    parser.add_argument("--root", type=Path, help="folder that holds CiteSeer/raw and PubMed/raw")
    parser.add_argument(
        "--runs", type=COUNT, default=10, help="trainings of each model (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/accuracy"),
        help="folder of the records (default: %(default)s)",
    )
    add_switch(parser, "--smoke", "small stand-ins and a few steps, to see that it runs")
    args = parser.parse_args(argv)
    if args.root is None and not args.smoke:
        parser.error("--root FOLDER is needed: accuracies are compared on real data only")
    args.out.mkdir(parents=True, exist_ok=True)
    pairs = [(model, dataset) for dataset in args.datasets for model in args.models]
    results = [
        accuracy(model, dataset, args) for model, dataset in tqdm(pairs, unit="model", disable=None)
    ]
    print(table(results))
    return results


def accuracy(model: str, dataset: str, args: argparse.Namespace) -> Accuracy:
    """Read the record of a model on a graph; train first if there is none."""
    name = f"{dataset.lower()}-like" if args.smoke else dataset
    runs = 1 if args.smoke else args.runs
    file = args.out / f"{model}-{name}-{runs}.json"
    if not file.exists():
        script = importlib.import_module(f"benchmark.citation.{SCRIPTS[model]}")
        flags = [f"--dataset={name}", f"--runs={runs}", "--threads=1", f"--json={file}"]
        where = ["--smoke"] if args.smoke else [f"--root={args.root}"]
        script.main([*flags, *where, *SETTINGS.get((model, dataset), ())])
    return from_record(model, dataset, json.loads(file.read_text(encoding="utf-8")))


def from_record(model: str, dataset: str, record: Mapping[str, object]) -> Accuracy:
    """Take the accuracy out of the record that a citation script wrote."""
    data, reached, runs = record["dataset"], record["test_accuracy"], record["runs"]
    if not (isinstance(data, Mapping) and isinstance(reached, Mapping) and isinstance(runs, list)):
        raise ValueError(f"the record of {model} on {dataset} is no record of a training")
    std = reached["sample_std"]
    return Accuracy(
        model,
        data["name"],
        len(runs),
        100 * reached["mean"],
        None if std is None else 100 * std,
        None if data["is_stand_in"] else PUBLISHED[model, dataset],
    )


def table(results: Sequence[Accuracy]) -> str:
    """Return the accuracies as a table in Markdown."""
    lines = [
        {
            "Model": one.model,
            "Data": one.dataset,
            "Runs": one.runs,
            "Here, %": f"{one.mean:.1f} ± {'n/a' if one.std is None else format(one.std, '.1f')}",
            "Published, %": one.published or "n/a",
        }
        for one in results
    ]
    text: str = tabulate(lines, headers="keys", tablefmt="github", disable_numparse=True)
    return text


if __name__ == "__main__":
    main()
