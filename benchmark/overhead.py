"""What profiling costs: a block plain, under torch.profiler, gnnprof and PyG's Profiler.

All contestants run in turn in one process, round after round, each between two plain blocks, so
that drift of the machine hits them alike; a figure is the median over the rounds of the ratio to
the mean of its two plain neighbours. The contestant "plain" is one more plain block: how far it is
from 1 is the noise. "all" is the whole `with` block with the start and stop of the profiler and its
table; "inside" is the block's body alone; "added" is what gnnprof adds to the whole plain block, in
percent of what PyG's Profiler adds.

    python benchmark/overhead.py
    python benchmark/overhead.py --graphs tiny cora large --blocks forward training
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # two lines on stderr per session otherwise
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from tabulate import tabulate
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from tqdm import trange

from benchmark.arguments import COUNT, number
from benchmark.reporting import check_record_path, cpu_threads, write_record
from gnnprof import Profiler, _device
from gnnprof._statistics import median

MODELS = ("GCN", "GraphSAGE", "GAT", "GIN")

GRAPHS = {"tiny": (300, 1200, 16), "cora": (2708, 10556, 1433), "large": (10_000, 200_000, 64)}
"""Nodes, directed edges and features of the random graphs."""

BLOCKS = ("forward", "training")

ROUNDS = number(int, least=2)
"""Of the rounds, of which the first is not counted."""

CLASSES = 7

REFERENCE = "torch_geometric.profile"
"""The contestant that "added" compares with."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        models: PyG's basic models.
        graphs: Names out of `GRAPHS`.
        blocks: 'forward': forwards without gradients; 'training': whole steps.
        hidden: Width of the hidden layers.
        layers: Layers of each model.
        steps: Forwards or training steps in one block.
        rounds: How often every contestant has its turn; the first turn is not counted.
    """

    models: tuple[str, ...] = MODELS
    graphs: tuple[str, ...] = ("cora",)
    blocks: tuple[str, ...] = ("forward",)
    hidden: int = 64
    layers: int = 2
    steps: int = 20
    rounds: int = 7


@dataclass(frozen=True)
class Overhead:
    """Cost of one profiler on one block.

    Attributes:
        graph: Name of the graph.
        block: 'forward' or 'training'.
        model: Class name of the PyG model.
        profiler: Which contestant.
        all_ratio: Median ratio of the whole block, table included, to its plain neighbours.
        inside_ratio: Median ratio of the body alone.
        all_seconds: Samples of the whole block.
        inside_seconds: Samples of the body.
        plain_seconds: Means of the plain blocks right before and right after each sample.
    """

    graph: str
    block: str
    model: str
    profiler: str
    all_ratio: float
    inside_ratio: float
    all_seconds: tuple[float, ...]
    inside_seconds: tuple[float, ...]
    plain_seconds: tuple[float, ...]


class Sample(NamedTuple):
    """Seconds of one block under a contestant.

    Attributes:
        inside: The body.
        whole: The block with the table.
        plain: Mean of the plain bodies right before and right after.
    """

    inside: float
    whole: float
    plain: float


def main(argv: list[str] | None = None) -> list[Overhead]:
    """Measure and print; returns the records."""
    settings, file = parse(argv)
    keep_freed_memory()
    results = []
    with cpu_threads(1):  # two busy threads on a shared machine measure each other
        for block in settings.blocks:
            for graph in settings.graphs:
                results += [
                    o for model in settings.models for o in measure(model, graph, block, settings)
                ]
                report([o for o in results if (o.block, o.graph) == (block, graph)], settings)
    if file:
        write_record(file, {"schema": "gnnprof.overhead/1", "rows": [asdict(o) for o in results]})
    return results


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed, as far as it can be told (glibc).

    The messages of a layer take tens of megabytes. Given back and fetched anew from the system
    with every forward, they cost page faults that vary more from block to block than a profiler
    costs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def parse(argv: list[str] | None) -> tuple[Settings, Path | None]:
    """Read the command line."""
    default = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(default.models))
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(default.graphs))
    parser.add_argument("--blocks", nargs="+", choices=BLOCKS, default=list(default.blocks))
    for name in ("hidden", "layers", "steps", "rounds"):
        kind = ROUNDS if name == "rounds" else COUNT
        parser.add_argument(f"--{name}", type=kind, default=getattr(default, name))
    parser.add_argument("--smoke", action="store_true", help="the tiny graph and two short rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the records here")
    options = vars(parser.parse_args(argv))
    smoke, file = options.pop("smoke"), options.pop("json")
    try:
        check_record_path(file)
    except OSError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    if smoke:
        options |= {"graphs": ["tiny"], "steps": 2, "rounds": 2}
    for name in ("models", "graphs", "blocks"):
        options[name] = tuple(options[name])
    return Settings(**options), file


def measure(name: str, graph: str, block: str, settings: Settings) -> Iterator[Overhead]:
    """Run every contestant in turn on one model."""
    run, model = body(name, graph, block, settings)
    profilers = contestants(model)
    samples: dict[str, list[Sample]] = {profiler: [] for profiler in profilers}
    names = list(profilers)
    before, _ = timed(nullcontext, run)
    title = f"{name}, {graph}, {block}"
    for turn in trange(settings.rounds, desc=title, unit="round", disable=None, leave=False):
        first = turn % len(names)  # another one begins each round: none always follows the same
        for profiler in names[first:] + names[:first]:
            inside, whole = timed(profilers[profiler], run)
            after, _ = timed(nullcontext, run)
            if turn > 0:
                samples[profiler].append(Sample(inside, whole, (before + after) / 2))
            before = after
    for profiler, taken in samples.items():
        inside_seconds, all_seconds, plain = zip(*taken, strict=True)
        yield Overhead(
            graph,
            block,
            name,
            profiler,
            paired_ratio(all_seconds, plain),
            paired_ratio(inside_seconds, plain),
            all_seconds,
            inside_seconds,
            plain,
        )


def body(
    name: str, graph: str, block: str, settings: Settings
) -> tuple[Callable[[], None], nn.Module]:
    """What is profiled: some forwards or training steps of a model on a random graph."""
    from torch_geometric import nn as pyg_nn

    nodes, edges, features = GRAPHS[graph]
    torch.manual_seed(0)
    model: nn.Module = getattr(pyg_nn, name)(features, settings.hidden, settings.layers, CLASSES)
    x, y = torch.randn(nodes, features), torch.randint(CLASSES, (nodes,))
    edge_index = torch.randint(nodes, (2, edges))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def forward() -> None:
        with torch.no_grad():
            for _ in range(settings.steps):
                model(x, edge_index)

    def training() -> None:
        for _ in range(settings.steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x, edge_index), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return {"forward": forward, "training": training}[block], model


def contestants(model: nn.Module) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """How each profiler is started."""
    from torch_geometric.profile.profiler import Profiler as ReferenceProfiler

    return {
        "plain": nullcontext,
        "torch.profiler": lambda: profile(activities=[ProfilerActivity.CPU]),
        "gnnprof": lambda: Profiler(model),
        "gnnprof, memory": lambda: Profiler(model, profile_memory=True),
        REFERENCE: lambda: ReferenceProfiler(model),
    }


def timed(
    start: Callable[[], AbstractContextManager[Any]], run: Callable[[], None]
) -> tuple[float, float]:
    """Seconds of the body, and of the whole block with its table."""
    gc.collect()  # the contestant before must not leave its garbage to this one
    began = _device.clock()
    with start() as profiler:
        entered = _device.clock()
        run()
        inside = _device.clock() - entered
    if isinstance(profiler, profile):
        profiler.key_averages().table()
    elif profiler is not None:
        str(profiler)
    return inside, _device.clock() - began


def paired_ratio(samples: tuple[float, ...], plain: tuple[float, ...]) -> float:
    """Median over the rounds of the ratio within a round."""
    return median([sample / base for sample, base in zip(samples, plain, strict=True)])


def report(results: list[Overhead], settings: Settings) -> None:
    """Print one line per model: every contestant's time relative to the plain block."""
    nodes, edges, features = GRAPHS[results[0].graph]
    print(
        f"\n{settings.steps} x {results[0].block} per block, {settings.layers} layers, hidden "
        f"{settings.hidden}, {nodes} nodes, {edges} edges, {features} features, 1 thread, median "
        f"of {settings.rounds - 1} rounds; torch {torch.__version__}"
    )
    lines: dict[str, dict[str, str]] = {}
    for record in results:
        line = lines.setdefault(record.model, {"all / inside, plain = 1": record.model})
        line[record.profiler] = f"{record.all_ratio:.2f} / {record.inside_ratio:.2f}"
    for model, line in lines.items():
        ratio = {o.profiler: o.all_ratio for o in results if o.model == model}
        line["added"] = share_of_reference(ratio["gnnprof"], ratio[REFERENCE])
    print(tabulate([*lines.values()], headers="keys"))


def share_of_reference(ratio: float, reference: float) -> str:
    """What one ratio adds to the plain block's 1, in percent of what the reference's adds."""
    return f"{100 * (ratio - 1) / (reference - 1):.0f} %" if reference > 1 else "-"


if __name__ == "__main__":
    main()
