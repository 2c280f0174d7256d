"""Time and memory of graph classification: data sets x networks x layers x widths.

Each case trains one network and times its epochs, or, with --inference, times passes over the test
graphs. Putting the batches together is part of both, and is also told apart.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import NON_NEGATIVE_INT, add_switch, number
from benchmark.classification.classifier import Batch, Classifier
from benchmark.classification.training import (
    Epoch,
    Loaders,
    compiled_graphs,
    fit,
    peak_memory,
    show_profile,
    time_inference,
    warm_up,
)
from benchmark.kernel.datasets import classes_of, loaders_of, shape_of, three_parts
from benchmark.kernel.networks import NETWORKS, PERFORMANCE_NETWORKS
from benchmark.kernel.settings import Case, Defaults, Settings, kernel_parser
from benchmark.kernel.sweep import Context, Record, failures, run_sweep
from benchmark.peaks import peak_meaning, peak_mib
from gnnprof._statistics import median, median_interval

DEFAULTS = Defaults(
    datasets=("mutag-like", "proteins-like"),
    models=PERFORMANCE_NETWORKS,
    layers=(1, 2, 3),
    hiddens=(16, 32),
    epochs=12,
)

SHARE = number(float, least=0, open_end=True, below=1 + 1e-9)


class Performance:
    """Trains one network per case, or only runs it."""

    benchmark = "kernel-performance"

    def epochs(self, settings: Settings) -> int:
        """Return how many epochs a case has."""
        return settings.epochs

    def run(self, case: Case, context: Context) -> dict[str, object]:
        """Measure a case, and return what its record holds beside the case."""
        settings, plan = context.settings, context.settings.plan()
        split = three_parts(classes_of(context.dataset), settings.seed)
        loaders = loaders_of(
            context.dataset, split, settings.batch_size, train=not settings.inference
        )
        torch.manual_seed(settings.seed)
        net = NETWORKS[case.model](shape_of(context.dataset), case.layers, case.hidden)
        classifier = Classifier(
            net, call_on_graphs, context.device, bf16=settings.bf16, compile=settings.compile
        )
        if settings.compile:
            torch._dynamo.reset()  # the limits on recompilations are counted per case
        warm_seconds = warm_up(classifier, loaders, plan, whole=settings.compile)
        graphs = compiled_graphs() if settings.compile else 0
        torch.manual_seed(settings.seed)
        measured = self._time(classifier, loaders, context)
        return {
            **measured,
            "compile_seconds": warm_seconds if settings.compile else None,
            "recompiled": compiled_graphs() - graphs if settings.compile else None,
            "memory": dataclasses.asdict(peak_memory(classifier, loaders, plan)),
            "trace": self._profile(case, classifier, loaders, settings),
        }

    def _time(
        self, classifier: Classifier, loaders: Loaders, context: Context
    ) -> dict[str, object]:
        settings = context.settings
        if settings.inference:
            seconds = time_inference(classifier, loaders.test, settings.epochs, context.tick)
            return {"pass_seconds": spread(seconds), "pass_seconds_samples": list(seconds)}
        epochs = fit(classifier, loaders, settings.plan(), lambda *_: context.tick())
        timed = epochs[settings.warmup_profile :]
        return {
            "test_accuracy": epochs[-1].test.accuracy,
            "epochs_to_goal": epochs_to_goal(epochs, settings.goal_accuracy),
            "epochs": [dataclasses.asdict(epoch) for epoch in epochs],
            "train_seconds": spread([epoch.train_seconds for epoch in timed]),
            "loading_seconds": spread([epoch.loading_seconds for epoch in timed]),
            "evaluation_seconds": spread([epoch.evaluation_seconds for epoch in timed]),
        }

    def _profile(
        self, case: Case, classifier: Classifier, loaders: Loaders, settings: Settings
    ) -> str | None:
        if not settings.profile:
            return None
        task = "inference" if settings.inference else "training"
        parts = (case.model, case.dataset, case.layers, case.hidden, task)
        return show_profile(classifier, loaders, settings.plan(), parts)

    def line(self, record: Record) -> str:
        """Return what is printed of a case that ended well."""
        parts = [f"Memory: {_shown(peak_mib(record['memory']), '.1f')} MiB"]
        if record["recompiled"]:
            parts.append(f"Warning: {record['recompiled']} graphs compiled inside the durations")
        if record["compile_seconds"] is not None:
            parts.append(f"Compile: {record['compile_seconds']:.2f}s")
        if "pass_seconds" in record:
            return ", ".join([f"Time: {_time(record, 'pass_seconds')} per pass", *parts])
        if record["case"]["goal_accuracy"] is not None:
            parts.append(f"Epochs to the goal: {_shown(record['epochs_to_goal'], 'd')}")
        return ", ".join(
            [
                f"Test Accuracy: {record['test_accuracy']:.3f}",
                f"Time: {_time(record, 'train_seconds')} per epoch",
                *parts,
            ]
        )

    def table(self, records: Sequence[Record]) -> str:
        """Return the table of all cases that ended well, and the failures."""
        done = [record for record in records if record["outcome"] == "ok"]
        rows = [[column(record) for _, column in COLUMNS] for record in done]
        empty = [all(row[i] is None for row in rows) for i in range(len(COLUMNS))]
        kept = [i for i in range(len(COLUMNS)) if not empty[i]]
        text = tabulate(
            [[row[i] for i in kept] for row in rows],
            [COLUMNS[i][0] for i in kept],
            floatfmt=".3f",
            missingval="n/a",
        )
        meanings = sorted({peak_meaning(record["memory"]) for record in done})
        notes = [NOTE, *map(PEAK_NOTE.format, meanings)]
        return "\n".join([text, *notes, *failures(records)])


def call_on_graphs(model: torch.nn.Module, batch: Batch) -> Tensor:
    """Return the log-probabilities [B, C] of a batch of graphs."""
    out: Tensor = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
    return out


def spread(samples: Sequence[float]) -> dict[str, object] | None:
    """Return the median of some seconds and its 95 % interval; None without any."""
    if not samples:
        return None
    return {"median": median(samples), "interval_95": median_interval(samples)}


def epochs_to_goal(epochs: Sequence[Epoch], goal: float | None) -> int | None:
    """Return the first epoch that reached the goal on the test graphs; None without or before."""
    reached = [i for i, epoch in enumerate(epochs, 1) if goal and epoch.test.accuracy >= goal]
    return reached[0] if reached else None


def _milliseconds(key: str) -> Callable[[Record], float | None]:
    def read(record: Record) -> float | None:
        return None if record.get(key) is None else float(record[key]["median"]) * 1e3

    return read


def _time(record: Record, key: str) -> str:
    milliseconds = _milliseconds(key)(record)
    return "n/a" if milliseconds is None else f"{milliseconds / 1e3:.6f}s"


def _shown(value: float | None, form: str) -> str:
    return "n/a" if value is None else format(value, form)


COLUMNS: tuple[tuple[str, Callable[[Record], object]], ...] = (
    ("Data set", lambda record: record["case"]["dataset"]),
    ("Network", lambda record: record["case"]["model"]),
    ("Layers", lambda record: record["case"]["layers"]),
    ("Hidden", lambda record: record["case"]["hidden"]),
    ("Training [ms]", _milliseconds("train_seconds")),
    ("Loading [ms]", _milliseconds("loading_seconds")),
    ("Evaluation [ms]", _milliseconds("evaluation_seconds")),
    ("Pass [ms]", _milliseconds("pass_seconds")),
    ("Compile [s]", lambda record: record["compile_seconds"]),
    ("Peak [MiB]", lambda record: peak_mib(record["memory"])),
    ("Test accuracy", lambda record: record.get("test_accuracy")),
)

NOTE = "Medians per epoch (or pass); Training holds Loading, the wait for the batches."
PEAK_NOTE = "Peak: memory {}, in one step with the largest batch."


def main(argv: Sequence[str] | None = None) -> list[Record]:
    """Run the script with the given arguments, by default those of the process."""
    parser = kernel_parser(__doc__, DEFAULTS)
    parser.add_argument(
        "--warmup_profile",
        type=NON_NEGATIVE_INT,
        default=1,
        help="epochs at the start of a training that are in no duration",
    )
    parser.add_argument(
        "--goal_accuracy",
        type=SHARE,
        help="end a training with the first epoch that reaches this accuracy on the test graphs, "
        "above 0 and up to 1; without it all epochs run",
    )
    add_switch(parser, "--inference", "time passes of the untrained networks only")
    add_switch(parser, "--profile", "then profile one step of each case: trace and layer table")
    add_switch(parser, "--bf16", "autocast to bfloat16")
    add_switch(parser, "--compile", "torch.compile the networks")
    return run_sweep(Performance(), parser, argv)


if __name__ == "__main__":
    main()
