"""Measures the throughput of neighbour sampling, and where the time of a batch goes.

Training nodes are sampled with the given fan-outs, then all nodes with all neighbours of one hop,
as evaluation does it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.drivers.affinity import cores_for
from benchmark.drivers.journal import Journal, Record
from benchmark.drivers.loop import exit_status, run_cases
from benchmark.drivers.script import Graphs, open_journal, run_or_exit
from benchmark.loader.measure import TABLE, Tick, describe, measure_loader
from benchmark.loader.settings import (
    LoaderCase,
    LoaderSettings,
    cases_of,
    loader_parser,
    settings_from,
)
from benchmark.reporting import cpu_threads, pick_device

CSV_FILE = "loader_benchmark.csv"


def main(argv: Sequence[str] | None = None) -> list[Record]:
    """Run the script with the given arguments, by default those of the process."""
    parser = loader_parser(__doc__)
    args = parser.parse_args(argv)
    return run_or_exit(parser, lambda: run(settings_from(args)))


def run(settings: LoaderSettings) -> list[Record]:
    """Measure all cases; return their records.

    Raises:
        OSError: If the folder of the records or of the data cannot be used.
        ValueError: If the settings cannot be met here.
        FolderTakenError: If the folder holds records of another run.
    """
    cases = cases_of(settings)
    device = pick_device(settings.device)
    cores_for(settings)
    graphs = Graphs(settings)
    graphs[cases[0].dataset]  # data that is not there is an error before any work
    with cpu_threads(settings.threads), open_journal(settings, device) as journal:
        return run_cases(
            cases,
            partial(_measured, settings, graphs, device, journal),
            journal,
            describe=describe,
            progress_bar=settings.progress_bar,
            after_each=partial(_write_table, journal),
        )


def _measured(
    settings: LoaderSettings,
    graphs: Graphs,
    device: torch.device,
    journal: Journal,
    case: LoaderCase,
    tick: Tick,
) -> dict[str, object]:
    graph = graphs[case.dataset]
    return {
        "dataset": graph.record,
        "load_seconds": graph.load_seconds,
        **measure_loader(case, settings, graph, device, journal.folder, tick),
    }


def _write_table(journal: Journal) -> None:
    columns = [heading for heading, _ in TABLE]
    rows = [[read(record) for _, read in TABLE] for record in journal.finished.values()]
    journal.write_table(CSV_FILE, columns, rows)


if __name__ == "__main__":
    raise SystemExit(exit_status(main()))
