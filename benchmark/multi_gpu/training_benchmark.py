"""Times data-parallel training (DDP) of sampled mini-batches, over one process per device.

Without a launcher the script starts the processes itself, on this machine: one per GPU, or two on
a CPU. Under torchrun or mpirun it is one of those that they started.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import COUNT
from benchmark.cpus import usable_cpus
from benchmark.drivers.affinity import cores_for
from benchmark.drivers.cases import Case, cases_of
from benchmark.drivers.flags import driver_parser
from benchmark.drivers.graphs import Graph
from benchmark.drivers.journal import Record
from benchmark.drivers.loop import exit_status, run_cases
from benchmark.drivers.script import (
    Graphs,
    describe,
    open_journal,
    record_of,
    run_or_exit,
    write_tables,
)
from benchmark.drivers.settings import Settings, settings_from
from benchmark.multi_gpu.ranks import (
    BACKENDS,
    Rank,
    device_type_of,
    launched_rank,
    meeting_place,
    process_count,
    process_group,
)
from benchmark.multi_gpu.training import measure_rank
from gnnprof._files import write_text

DEFAULTS = {
    "datasets": ("products-like", "mag-like"),
    "models": ("sage", "rgcn"),
    "batch_sizes": (256,),
    "num_layers": (3,),
    "hidden_channels": (128,),
    "num_neighbors": (10,),
    "num_steps": 4,
    "num_epochs": 6,
    "warmup": 1,
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the script's flags."""
    made = driver_parser(__doc__, DEFAULTS, devices=", ".join(BACKENDS))
    made.add_argument(
        "--n-gpus",
        "--n_gpus",
        "--processes",
        type=COUNT,
        dest="processes",
        metavar="N",
        help="processes to start here (default: one per GPU; two on a CPU)",
    )
    return made


def main(argv: Sequence[str] | None = None) -> list[Record]:
    """Run the script with the given arguments, by default those of the process.

    Returns:
        The records of all cases; none in the processes of a launcher but the first.
    """
    flags = parser()
    args = flags.parse_args(argv)
    return run_or_exit(flags, lambda: run(settings_from("multi_gpu", args)))


def run(settings: Settings) -> list[Record]:
    """Measure all cases; return their records.

    Raises:
        OSError: If the folder of the records or of the data cannot be used.
        ValueError: If the settings cannot be met here.
        FolderTakenError: If the folder holds records of another run.
    """
    if settings.full_batch:
        raise ValueError("--full-batch has nothing to share out among processes; leave it out.")
    if settings.loader_cores:
        raise ValueError("--loader-cores names the CPUs of one process; leave it out here.")
    device_type = device_type_of(settings.device)
    rank = launched_rank(device_type)
    if rank is not None:
        return _run_launched(settings, rank)
    return _run_here(settings, device_type)


# --- the script starts the processes --------------------------------------------------------------


def _run_here(settings: Settings, device_type: str) -> list[Record]:
    count = process_count(settings.processes, device_type)
    threads = settings.threads or max(1, len(usable_cpus()) // count)
    settings = replace(settings, processes=count, threads=threads)
    cores_for(settings, count - 1)
    cases, left_out = cases_of(settings)
    graphs = Graphs(settings)
    graphs[cases[0].dataset]  # data that is not there is an error before any work
    for sentence in left_out:
        print(f"Left out: {sentence}")
    with open_journal(settings, _first_device(device_type)) as journal:
        start = partial(_start, settings, graphs, journal.folder, device_type, count)
        return run_cases(
            cases,
            start,
            journal,
            describe=_describe,
            progress_bar=settings.progress_bar,
            after_each=partial(write_tables, settings, journal),
        )


def _start(
    settings: Settings,
    graphs: Graphs,
    out: Path,
    device_type: str,
    count: int,
    case: Case,
    tick: Callable[[], object],
) -> dict[str, object]:
    """Run one case in processes of its own: one that crashes takes no other case with it."""
    graph = graphs[case.dataset]
    with tempfile.TemporaryDirectory() as folder:
        arguments = (settings, case, graph, device_type, count, Path(folder), out.absolute())
        method = start_method(device_type)
        start_processes(_process, arguments, nprocs=count, start_method=method)  # type: ignore[no-untyped-call]
        tick()
        record: dict[str, object] = json.loads((Path(folder) / "record.json").read_text())
        return record


def start_method(device_type: str) -> str:
    """Return how processes are started.

    On a CPU from a server that has imported everything once, where the system has such; a process
    with an accelerator starts from nothing, because what a driver has set up cannot be forked.
    """
    if device_type != "cpu" or "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    # Only what is installed: the server does not know where the script's own modules are.
    multiprocessing.set_forkserver_preload(["torch_geometric.loader", "torch_geometric.nn"])
    return "forkserver"


def _process(
    number: int,
    settings: Settings,
    case: Case,
    graph: Graph,
    device_type: str,
    count: int,
    folder: Path,
    out: Path,
) -> None:
    """Be one of the processes of a case; the first one leaves the record in `folder`."""
    rank = Rank(number, count, number, device_type, meeting_place(folder))
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    with process_group(rank):
        record = record_of(settings, graph, measure_rank(case, settings, graph, rank, out))
    if number == 0:
        write_text(folder / "record.json", json.dumps(record, default=str, allow_nan=False))


# --- a launcher has started the processes ---------------------------------------------------------


def _run_launched(settings: Settings, rank: Rank) -> list[Record]:
    if settings.processes not in (None, rank.world_size):
        raise ValueError(
            f"--n-gpus={settings.processes}: the launcher has started {rank.world_size} "
            "processes; leave it out."
        )
    settings = replace(settings, processes=rank.world_size)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    cases, left_out = cases_of(settings)
    leads = rank.rank == 0
    graphs = Graphs(settings, tell=leads)
    with process_group(rank):
        if leads:
            for sentence in left_out:
                print(f"Left out: {sentence}")
            return _lead(settings, rank, cases, graphs)
        _follow(settings, rank, cases, graphs)
        return []


def _lead(settings: Settings, rank: Rank, cases: Sequence[Case], graphs: Graphs) -> list[Record]:
    """Be the first process: the one that keeps the records."""
    with open_journal(settings, rank.device) as journal:
        missing = [case.key for case in cases if case.key not in journal.finished]
        dist.broadcast_object_list([missing, str(journal.folder.absolute())], src=0)

        def measure(case: Case, tick: Callable[[], object]) -> Mapping[str, object]:
            graph = graphs[case.dataset]
            dist.barrier()  # the data are processed, and the others may read them
            measured = measure_rank(case, settings, graph, rank, journal.folder, tick)
            return record_of(settings, graph, measured)

        return run_cases(
            cases,
            measure,
            journal,
            describe=_describe,
            progress_bar=settings.progress_bar,
            after_each=partial(write_tables, settings, journal),
            go_on=False,  # the other processes are in the middle of the case
        )


def _follow(settings: Settings, rank: Rank, cases: Sequence[Case], graphs: Graphs) -> None:
    message: list[Any] = [None, None]
    dist.broadcast_object_list(message, src=0)
    missing, out = message
    for case in cases:
        if case.key in missing:
            dist.barrier()  # PyG processes data into one folder: the first process alone does it
            measure_rank(case, settings, graphs[case.dataset], rank, Path(out))


def _first_device(device_type: str) -> torch.device:
    return torch.device("cpu") if device_type == "cpu" else torch.device(device_type, 0)


def _describe(record: Record) -> str:
    text = describe(record)
    if record["status"] != "ok":
        return text
    shares = ", ".join(f"{max(rank['seconds']):.4f} s" for rank in record["ranks"])
    left_out = record["seeds_left_out"]
    return (
        f"{text}\nProcesses: {record['processes']}; the longest epoch of each took {shares}; "
        f"{left_out} training nodes were left out to give each as many"
    )


if __name__ == "__main__":
    raise SystemExit(exit_status(main()))
