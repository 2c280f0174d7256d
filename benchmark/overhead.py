"""What profiling costs: forwards plain, under torch.profiler, gnnprof and PyG's Profiler.

All contestants run in turn in one process, round after round, so that drift of the machine hits
them alike; a figure is the median over the rounds of the paired ratio to the plain block. The cost
of a profiler includes its start, its stop and the printing of its table.

    python benchmark/overhead.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # two lines on stderr per session otherwise

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from gnnprof import Profiler, _device
from gnnprof._statistics import median

MODELS = ("GCN", "GraphSAGE", "GAT", "GIN")


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        nodes: Nodes of the random graph; the default is Cora's size.
        edges: Directed edges.
        features: Width of the node features.
        hidden: Width of the hidden layers.
        layers: Layers of each model.
        forwards: Forwards in one block.
        rounds: How often every contestant has its turn; the first turn is not counted.
    """

    nodes: int = 2708
    edges: int = 10556
    features: int = 1433
    hidden: int = 64
    layers: int = 2
    forwards: int = 20
    rounds: int = 7


@dataclass(frozen=True)
class Overhead:
    """Cost of one profiler on one model.

    Attributes:
        model: Class name of the PyG model.
        contestant: Which profiler.
        ratio: Median over the rounds of block time with the profiler by plain block time.
        samples: Seconds of each block, table included.
    """

    model: str
    contestant: str
    ratio: float
    samples: tuple[float, ...]


def main(argv: list[str] | None = None) -> list[Overhead]:
    """Measure and print; returns the records."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--smoke", action="store_true", help="a tiny graph and one round")
    parser.add_argument("--json", metavar="FILE", help="also write the records here")
    options = vars(parser.parse_args(argv))
    models, smoke, file = options.pop("models"), options.pop("smoke"), options.pop("json")
    if smoke:
        options |= {"nodes": 50, "edges": 200, "features": 8, "forwards": 2, "rounds": 2}
    settings = Settings(**options)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two busy threads on a shared machine measure each other
    try:
        results = [record for name in models for record in measure(name, settings)]
    finally:
        torch.set_num_threads(threads)
    report(results, settings)
    if file:
        with open(file, "w", encoding="utf-8") as stream:
            json.dump([asdict(record) for record in results], stream, indent=1)
    return results


def measure(name: str, settings: Settings) -> list[Overhead]:
    """Run every contestant in turn on one model."""
    from torch_geometric import nn as pyg_nn

    torch.manual_seed(0)
    model: nn.Module = getattr(pyg_nn, name)(
        settings.features, settings.hidden, settings.layers, 7
    ).eval()
    x = torch.randn(settings.nodes, settings.features)
    edge_index = torch.randint(settings.nodes, (2, settings.edges))
    blocks = contestants(model, x, edge_index, settings.forwards)
    samples: dict[str, list[float]] = {contestant: [] for contestant in blocks}
    for turn in range(settings.rounds):
        for contestant, block in blocks.items():
            seconds = timed(block)
            if turn > 0:
                samples[contestant].append(seconds)
    return [
        Overhead(
            name, contestant, paired_ratio(samples[contestant], samples["plain"]), tuple(taken)
        )
        for contestant, taken in samples.items()
    ]


def contestants(
    model: nn.Module, x: Tensor, edge_index: Tensor, forwards: int
) -> dict[str, Callable[[], object]]:
    """The same block of forwards, each under another profiler, its table included."""
    from torch_geometric.profile.profiler import Profiler as ReferenceProfiler

    def run() -> None:
        with torch.no_grad():
            for _ in range(forwards):
                model(x, edge_index)

    def bare() -> str:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            run()
        return str(profiler.key_averages().table())

    def ours() -> str:
        with Profiler(model) as profiler:
            run()
        return str(profiler)

    def reference() -> str:
        with ReferenceProfiler(model) as profiler:
            run()
        return str(profiler)

    return {
        "plain": run,
        "torch.profiler": bare,
        "gnnprof": ours,
        "torch_geometric.profile": reference,
    }


def timed(block: Callable[[], object]) -> float:
    """Seconds of one block."""
    start = _device.clock()
    block()
    return _device.clock() - start


def paired_ratio(samples: list[float], plain: list[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return median([sample / base for sample, base in zip(samples, plain, strict=True)])


def report(results: list[Overhead], settings: Settings) -> None:
    """Print one line per model: every contestant's time relative to the plain block."""
    print(
        f"{settings.forwards} forwards per block, {settings.layers} layers, hidden "
        f"{settings.hidden}, {settings.nodes} nodes, {settings.edges} edges, "
        f"{settings.features} features, 1 thread, median of {settings.rounds - 1} rounds; "
        f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    )
    names = list(dict.fromkeys(record.contestant for record in results))
    table = {record.model: [record.model] for record in results}
    for record in results:
        table[record.model].append(f"{record.ratio:.2f}x")
    print(tabulate(table.values(), headers=["time of the block relative to plain", *names]))


if __name__ == "__main__":
    main()
