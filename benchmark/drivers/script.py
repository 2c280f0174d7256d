"""What the training and the inference script do between the command line and the records."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from benchmark.drivers.affinity import cores_for
from benchmark.drivers.batches import sampler_of
from benchmark.drivers.cases import Case, cases_of
from benchmark.drivers.graphs import Graph, load_graph, scale_for
from benchmark.drivers.journal import FolderTakenError, Journal, Record, new_folder
from benchmark.drivers.loop import run_cases
from benchmark.drivers.profiling import refuse_without_itt
from benchmark.drivers.settings import CommonSettings, Settings
from benchmark.drivers.tables import write_bench, write_prof
from benchmark.drivers.timing import Measured
from benchmark.reporting import cpu_threads, pick_device
from gnnprof import _device

MeasureCase = Callable[[Case, Settings, Graph, torch.device, Path, Callable[[], object]], Measured]

DOOR_ERRORS = (OSError, ValueError, ModuleNotFoundError, FolderTakenError)
"""What ends a script before the work begins, with a sentence instead of a traceback."""


class Graphs:
    """Loads data sets by name and keeps the last one: cases of one set follow each other.

    Args:
        settings: Where real data are, size and seed of stand-ins.
        scales: The script's own default scales, by name.
        tell: Whether to print what has been loaded.
    """

    def __init__(
        self,
        settings: CommonSettings,
        scales: Mapping[str, float] | None = None,
        *,
        tell: bool = True,
    ) -> None:
        self._settings = settings
        self._scales = scales
        self._tells = tell
        self._last: Graph | None = None
        self._name = ""

    def __getitem__(self, name: str) -> Graph:
        if self._last is None or self._name != name:
            self._last = None  # two large graphs need not fit into memory together
            self._last = load_graph(
                name,
                self._settings.root,
                self._scale(name),
                self._settings.seed,
                cache=self._settings.cache,
                download=self._settings.download,
            )
            self._name = name
            if self._tells:
                self._tell(self._last)
        return self._last

    def _scale(self, name: str) -> float | None:
        settings = self._settings
        return scale_for(name, settings.scale, smoke=settings.smoke, defaults=self._scales)

    def _tell(self, graph: Graph) -> None:
        kind = "a generated stand-in" if graph.record["is_stand_in"] else "real data"
        print(f"{graph.name} ({kind}): {graph.summary}", flush=True)
        if self._settings.measure_load_time:
            print(f"Loading took {graph.load_seconds:.3f} s.")


def run_driver(
    settings: Settings, measure: MeasureCase, scales: Mapping[str, float] | None = None
) -> list[Record]:
    """Run all cases of a driver; return their records.

    Args:
        settings: What to measure and how.
        measure: Measures one case.
        scales: The script's own default scales of stand-ins, by name.

    Raises:
        OSError: If the folder of the records or of the data cannot be used.
        ValueError: If the settings cannot be met here.
        FolderTakenError: If the folder holds records of another run.
    """
    cases, left_out = cases_of(settings)
    device = pick_device(settings.device)
    cores_for(settings)
    if settings.vtune_profile:
        refuse_without_itt()
    graphs = Graphs(settings, scales)
    graphs[cases[0].dataset]  # data that is not there is an error before any work
    for sentence in left_out:
        print(f"Left out: {sentence}")
    with cpu_threads(settings.threads), open_journal(settings, device) as journal:
        return run_cases(
            cases,
            partial(_measured, settings, graphs, device, journal.folder, measure),
            journal,
            describe=describe,
            progress_bar=settings.progress_bar,
            after_each=partial(write_tables, settings, journal),
        )


def open_journal(settings: CommonSettings, device: torch.device) -> Journal:
    """Return the journal of a run, in the folder given or in a new one."""
    environment = {**_device.environment(device), "sampler": sampler_of(settings)}
    if settings.threads is not None:
        environment["threads"] = str(settings.threads)
    header = {
        "driver": settings.driver,
        "settings": settings.measurement(),
        "environment": environment,
    }
    return Journal(settings.out or new_folder(settings.driver), header)


def run_or_exit(parser: argparse.ArgumentParser, run: Callable[[], list[Record]]) -> list[Record]:
    """Run a driver; what keeps it from starting is one line and exit status 2."""
    try:
        return run()
    except DOOR_ERRORS as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def _measured(
    settings: Settings,
    graphs: Graphs,
    device: torch.device,
    out: Path,
    measure: MeasureCase,
    case: Case,
    tick: Callable[[], object],
) -> dict[str, object]:
    graph = graphs[case.dataset]
    measured = measure(case, settings, graph, device, out, tick)
    return record_of(settings, graph, measured)


def record_of(settings: Settings, graph: Graph, measured: Measured) -> dict[str, object]:
    """Return what a record holds beside the case."""
    return {
        "dataset": graph.record,
        "load_seconds": graph.load_seconds,
        "sparse": settings.use_sparse_tensor,
        **measured.to_dict(),
    }


def write_tables(settings: Settings, journal: Journal) -> None:
    """Bring the tables of `--write-csv` up to date."""
    if settings.write_csv is not None:
        write_bench(journal, settings.driver)
    if settings.write_csv == "prof":
        write_prof(journal, settings.driver)


def describe(record: Record) -> str:
    """Say in a few lines what a case took."""
    if record["status"] != "ok":
        return f"Failed: {record['error']}"
    seconds, unit = record["seconds"], record["unit"]
    lines = [
        f"Time: {seconds['median']:.4f} s per {unit} ({_interval(seconds)}median of "
        f"{len(seconds['samples'])}), {record['batches']} batches",
        f"Throughput: {record['throughput']:.3f} nodes/s",
        f"Latency: {record['latency'] * 1000:.6f} ms/node",
    ]
    parts = ", ".join(
        f"{part} {timing['median'] * 1000:.3f} ms" for part, timing in record["parts"].items()
    )
    lines.append(f"Per batch (median; {record['parts_taken']}): {parts}")
    if record["warm_up_seconds"] is not None:
        compiling = record["compile_seconds"]
        of_it = "" if compiling is None else f", of it compiling {compiling:.3f} s"
        lines.append(f"Warm-up: {record['warm_up_seconds']:.3f} s{of_it} (in no other figure)")
    if record["recompiled"]:
        lines.append(f"Warning: {record['recompiled']} graphs were compiled inside the timings.")
    if record["sampler"] is not None:
        lines.append(f"Sampler: {record['sampler']}")
    for name, value in (record["quality"] or {}).items():
        lines.append(f"{name.replace('_', ' ').capitalize()}: {value:.4f}")
    return "\n".join(lines)


def _interval(seconds: Mapping[str, float | None]) -> str:
    low, high = seconds["median_low"], seconds["median_high"]
    return "" if low is None or high is None else f"95 % {low:.4f} to {high:.4f}, "
