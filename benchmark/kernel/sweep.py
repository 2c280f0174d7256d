"""Runs cases one after the other: a record and a line for each, and a table in the end.

A case that fails is a record with the reason, and the others go on. An interruption ends the sweep
with the table of what has finished.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from tqdm import tqdm

from benchmark.classification.case_log import CaseLog
from benchmark.graph_sets import GraphSet, load_graph_set
from benchmark.kernel.networks import unsupported
from benchmark.kernel.settings import Case, Settings
from benchmark.reporting import (
    check_trace_folder,
    cpu_threads,
    pick_device,
    private_random_state,
)
from gnnprof import _device

Record = Mapping[str, Any]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class Context(NamedTuple):
    """What all cases of a data set share.

    Attributes:
        settings: What was asked for.
        dataset: The graphs.
        device: Where to compute.
        tick: To be called once per epoch, for the progress bar.
    """

    settings: Settings
    dataset: GraphSet
    device: torch.device
    tick: Callable[[], object]


class Measure(Protocol):
    """What a script does with one case, and how it shows it."""

    benchmark: str

    def epochs(self, settings: Settings) -> int:
        """Return how many epochs a case has, for the progress bar."""

    def run(self, case: Case, context: Context) -> dict[str, object]:
        """Measure a case, and return what its record holds beside the case."""

    def line(self, record: Record) -> str:
        """Return what is printed of a case that ended well."""

    def table(self, records: Sequence[Record]) -> str:
        """Return what is printed in the end."""


def run_sweep(
    measure: Measure, parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> list[Record]:
    """Run all cases that the command line names, and return their records.

    Ends the process with code 1 if a case failed, and with 130 after an interruption.
    """
    args = parser.parse_args(argv)
    try:
        settings = Settings.from_args(args)
        log = CaseLog(settings.json, resume=settings.resume)
        check_trace_folder(settings.profile)
        device = pick_device(settings.device)
        datasets = {name: _load(name, settings) for name in settings.datasets}
    except (OSError, ValueError, ModuleNotFoundError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    for dataset in datasets.values():
        print(_heading(dataset))
    with cpu_threads(settings.threads), private_random_state(device):
        sweep = Sweep(measure, settings, datasets, device, log)
        interrupted = sweep.run()
    print(measure.table(sweep.records))
    if interrupted:
        print("Interrupted: the table holds the cases that had finished.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if any(record["outcome"] == "error" for record in sweep.records):
        sys.exit(1)
    return sweep.records


class Sweep:
    """The cases of one call of a script."""

    def __init__(
        self,
        measure: Measure,
        settings: Settings,
        datasets: Mapping[str, GraphSet],
        device: torch.device,
        log: CaseLog,
    ) -> None:
        self.measure, self.settings, self.datasets = measure, settings, datasets
        self.device, self.log = device, log
        self.records: list[Record] = []

    def run(self) -> bool:
        """Run all cases; says whether it was interrupted."""
        cases = list(self.settings.cases())
        per_case = self.measure.epochs(self.settings)
        total = per_case * len(cases)
        with tqdm(total=total, unit="epoch", disable=None, leave=False) as bar:
            for number, case in enumerate(cases, start=1):
                bar.set_description(str(case))
                try:
                    record, news = self._record(case, bar)
                except KeyboardInterrupt:
                    return True
                bar.update(number * per_case - bar.n)  # the epochs that an early end has saved
                self.records.append(record)
                if news:
                    bar.write(self._line(case, record))
                    sys.stdout.flush()  # a log file shows it at once, too
        return False

    def _record(self, case: Case, bar: tqdm[Any]) -> tuple[Record, bool]:
        """Return the record of a case, and whether it is a new one."""
        identity = self._identity(case)
        earlier = self.log.finished(identity, with_trace=self.settings.profile)
        if earlier is not None:
            return earlier, False
        majority = majority_of(self.datasets[case.dataset])
        record = {**identity, "majority": majority, **self._outcome(case, bar)}
        self.log.append(record)
        return record, True

    def _identity(self, case: Case) -> dict[str, object]:
        return {
            "benchmark": self.measure.benchmark,
            "case": self.settings.describe(case),
            "dataset": self.datasets[case.dataset].to_dict(),
            "environment": _device.environment(self.device),
        }

    def _outcome(self, case: Case, bar: tqdm[Any]) -> dict[str, object]:
        reason = unsupported(case.model)
        if reason is not None:
            return {"outcome": "unsupported", "reason": reason}
        context = Context(self.settings, self.datasets[case.dataset], self.device, bar.update)
        try:
            result = self.measure.run(case, context)
            json.dumps(result, default=str, allow_nan=False)  # a nan is a failure, too
            return {"outcome": "ok", "reason": None, **result}
        except Exception as error:  # noqa: BLE001 (a case is a boundary: its failure is its record)
            return {"outcome": "error", "reason": f"{type(error).__name__}: {error}"}

    def _line(self, case: Case, record: Record) -> str:
        if record["outcome"] == "ok":
            return f"{case}: {self.measure.line(record)}"
        return f"{case}: {record['outcome']}: {record['reason']}"


def majority_of(dataset: GraphSet) -> float:
    """Return the share of the graphs in their largest class: the accuracy that guessing has."""
    counts = Counter(int(graph.y) for graph in dataset.graphs)
    return max(counts.values()) / len(dataset.graphs)


def failures(records: Iterable[Record]) -> list[str]:
    """Return a line for each case that did not end well."""
    return [
        f"{record['case']['dataset']} - {record['case']['model']}: {record['reason']}"
        for record in records
        if record["outcome"] != "ok"
    ]


def _load(name: str, settings: Settings) -> GraphSet:
    return load_graph_set(name, settings.root, settings.scale_of(name), download=settings.download)


def _heading(dataset: GraphSet) -> str:
    kind = "a generated stand-in" if dataset.is_stand_in else "real data"
    return (
        f"{dataset.name} ({kind}, {majority_of(dataset):.3f} of it in the largest class): "
        f"{dataset.fingerprint}"
    )
