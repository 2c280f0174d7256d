"""Times one loader: runs through the data, and the parts of every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmark.drivers.affinity import bound_workers, cores_for
from benchmark.drivers.batches import (
    Batch,
    Feeder,
    csr_warnings_ignored,
    limited,
    make_loader,
    sampler_of,
)
from benchmark.drivers.graphs import Graph, in_order
from benchmark.drivers.journal import Column, Record
from benchmark.drivers.profiling import trace_path
from benchmark.loader.settings import LoaderCase, LoaderSettings
from benchmark.reporting import private_random_state
from benchmark.sampling import take_times
from gnnprof import Timing, _device, torch_profile

WHERE_LOADED = ("sampling", "gather", "collate")
"""Parts of making a batch; `beside_wait` says which of them workers do.

sampling: drawing the neighbours. gather: collecting the features and classes of the nodes.
collate: putting the batch together.
"""

WHERE_USED = ("wait", "layout", "transfer")
"""Parts of a batch where it is used.

wait: until the loader gives the batch; it holds those of the three above that no worker does.
layout: making a sparse matrix of the edges, with --use-sparse-tensor only. transfer: moving the
batch to the device.
"""


def beside_wait(settings: LoaderSettings) -> tuple[str, ...]:
    """Return the parts that workers do beside the wait; all others are within it.

    Workers sample only, and the process that waits gathers and joins what they have sampled, unless
    it was asked that they filter.
    """
    if settings.num_workers == 0:
        return ()
    return WHERE_LOADED if settings.filter_per_worker else ("sampling",)


Tick = Callable[[], object]


@dataclass(frozen=True)
class BatchCounts:
    """What a run went through: seed nodes, batches, nodes and edges sampled."""

    seeds: int
    batches: int
    nodes: int
    edges: int


def measure_loader(
    case: LoaderCase,
    settings: LoaderSettings,
    graph: Graph,
    device: torch.device,
    out: Path,
    tick: Tick,
) -> dict[str, object]:
    """Return the record's part of one case.

    Args:
        case: The loader to measure.
        settings: How.
        graph: The case's data set.
        device: Where the batches are moved to.
        out: Folder for a trace.
        tick: Called after every batch.
    """
    with private_random_state(device), csr_warnings_ignored():
        torch.manual_seed(settings.seed)
        return LoaderRun(case, settings, graph, device, tick).measure(out)


class LoaderRun:
    """One loader, iterated again and again.

    Args:
        case: The loader to measure.
        settings: How.
        graph: The case's data set.
        device: Where the batches are moved to.
        tick: Called after every batch.
    """

    def __init__(
        self,
        case: LoaderCase,
        settings: LoaderSettings,
        graph: Graph,
        device: torch.device,
        tick: Tick,
    ) -> None:
        self.case = case
        self.settings = settings
        self.graph = graph
        self.device = device
        self.tick = tick
        self.feeder = Feeder(graph, device, sparse=settings.use_sparse_tensor)
        training = case.split == "train"
        self.loader = make_loader(
            graph,
            settings,
            graph.split("train") if training else in_order(graph),
            batch_size=case.batch_size,
            num_neighbors=case.num_neighbors,
            shuffle=training,
            record_times=True,
        )

    def measure(self, out: Path) -> dict[str, object]:
        """Return the figures of this loader, as JSON takes them."""
        settings = self.settings
        parts: dict[str, list[float]] = {}
        samples = []
        cores = cores_for(settings)
        with bound_workers(self.loader, cores) if cores else nullcontext() as affinity:
            start = _device.clock()
            for _ in range(settings.warmup):
                self.run({})
            warm_up_seconds = _device.clock() - start if settings.warmup else None
            for _ in range(settings.runs):
                start = _device.clock()
                counts = self.run(parts)
                samples.append(_device.clock() - start)
            trace = self._profile(out) if settings.profile else None
        seconds = Timing(tuple(samples))
        return {
            "sampler": sampler_of(settings),
            "seeds": counts.seeds,
            "batches": counts.batches,
            "nodes_per_batch": counts.nodes / counts.batches,
            "edges_per_batch": counts.edges / counts.batches,
            "seconds": seconds.to_dict(),
            "throughput": counts.seeds / seconds.median,
            "edge_throughput": counts.edges / seconds.median,
            "parts": {name: Timing(tuple(values)).to_dict() for name, values in parts.items()},
            "beside_wait": list(beside_wait(settings)),
            "warm_up_seconds": warm_up_seconds,
            "affinity": affinity,
            "sparse": settings.use_sparse_tensor,
            "trace": trace,
        }

    def run(self, parts: dict[str, list[float]], num_steps: int | None = None) -> BatchCounts:
        """Go through the loader once, or take so many batches.

        Args:
            parts: Seconds by part, to which every batch adds.
            num_steps: Batches; None is what the settings say.
        """
        totals = [0, 0, 0, 0]
        wanted = num_steps or self.settings.num_steps
        for raw, waited in _waited_for(limited(self.loader, wanted)):
            batch = self._use(raw, waited, parts)
            for place, count in enumerate((batch.num_seeds, 1, batch.num_nodes, batch.num_edges)):
                totals[place] += count
            self.tick()
        return BatchCounts(*totals)

    def _use(self, raw: Any, waited: float, parts: dict[str, list[float]]) -> Batch:
        times = take_times(raw)
        seconds = {name: getattr(times, name) for name in WHERE_LOADED}
        seconds["wait"] = waited
        start = _device.clock()
        raw = self.feeder.prepare(raw)
        if self.settings.use_sparse_tensor:
            seconds["layout"] = _device.clock() - start
        start = _device.clock()
        batch = self.feeder.transfer(raw)
        _device.synchronize(self.device)
        seconds["transfer"] = _device.clock() - start
        for name, value in seconds.items():
            parts.setdefault(name, []).append(value)
        return batch

    def _profile(self, out: Path) -> str | None:
        """Profile some batches; what workers do is in other processes, and so not in it."""
        settings = self.settings
        path = trace_path(out, self.case.file_parts()) if settings.export_chrome_trace else None
        with torch_profile(export_chrome_trace=False if path is None else path):
            self.run({}, settings.profile_steps)
        if path is None:
            return None
        print(f"Trace, for chrome://tracing or https://ui.perfetto.dev: {path}")
        return path.name


def _waited_for(batches: Iterator[Any]) -> Iterator[tuple[Any, float]]:
    """Give each batch with the seconds until it came."""
    while True:
        start = _device.clock()
        batch = next(batches, None)
        if batch is None:
            return
        yield batch, _device.clock() - start


# --- what is printed and tabulated ---------------------------------------------------------------


def describe(record: Record) -> str:
    """Say in a few lines what a case took."""
    if record["status"] != "ok":
        return f"Failed: {record['error']}"
    seconds = record["seconds"]
    low, high = seconds["median_low"], seconds["median_high"]
    interval = "" if low is None else f"95 % {low:.4f} to {high:.4f}, "
    runtimes = ", ".join(f"{sample:.3f}" for sample in seconds["samples"])
    lines = [
        f"Time: {seconds['median']:.4f} s per run ({interval}median of "
        f"{len(seconds['samples'])}: {runtimes}), {record['batches']} batches of "
        f"{record['nodes_per_batch']:,.0f} nodes and {record['edges_per_batch']:,.0f} edges",
        f"Throughput: {record['throughput']:,.0f} seeds/s, "
        f"{record['edge_throughput']:,.0f} edges/s",
        f"Per batch (median): {_parts(record, WHERE_USED)}",
        *_making(record),
        f"Sampler: {record['sampler']}",
    ]
    return "\n".join(lines)


def _making(record: Record) -> Iterator[str]:
    """Give a line for what workers do beside the wait, and one for what the wait holds."""
    beside = tuple(name for name in WHERE_LOADED if name in record["beside_wait"])
    within = tuple(name for name in WHERE_LOADED if name not in beside)
    if beside:
        yield f"In the workers, beside the wait: {_parts(record, beside)}"
    if within:
        yield f"In this process, within the wait: {_parts(record, within)}"


def _parts(record: Record, names: tuple[str, ...]) -> str:
    found = {name: record["parts"].get(name) for name in names}
    return ", ".join(
        f"{name} {timing['median'] * 1000:.3f} ms" for name, timing in found.items() if timing
    )


def _of_part(name: str) -> Any:
    def read(record: Record) -> object:
        timing = record["parts"].get(name)
        return None if timing is None else timing["median"]

    return read


TABLE: tuple[Column, ...] = (
    ("DATASET", lambda record: record["case"]["dataset"]),
    ("NODES", lambda record: record["case"]["split"]),
    ("BATCH SIZE", lambda record: record["case"]["batch_size"]),
    ("NEIGHBORS", lambda record: record["case"]["num_neighbors"]),
    ("SAMPLER", lambda record: record["sampler"]),
    ("ITERATIONS", lambda record: record["batches"]),
    ("MEDIAN (s)", lambda record: record["seconds"]["median"]),
    ("MEDIAN LOW (s)", lambda record: record["seconds"]["median_low"]),
    ("MEDIAN HIGH (s)", lambda record: record["seconds"]["median_high"]),
    ("MEAN (s)", lambda record: record["seconds"]["mean"]),
    ("THROUGHPUT (seeds/s)", lambda record: record["throughput"]),
    ("THROUGHPUT (edges/s)", lambda record: record["edge_throughput"]),
    *((f"{name.upper()} (s/batch)", _of_part(name)) for name in (*WHERE_LOADED, *WHERE_USED)),
    ("BESIDE THE WAIT", lambda record: " ".join(record.get("beside_wait", ()))),
)
"""The CSV table: one row per case; an empty cell was not measured."""
