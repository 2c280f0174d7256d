"""Training of one case in one of several processes that average their gradients."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmark.drivers.affinity import cores_for
from benchmark.drivers.cases import Case
from benchmark.drivers.experiment import Tick, measuring
from benchmark.drivers.graphs import Graph
from benchmark.drivers.settings import Settings
from benchmark.drivers.timing import EpochCounts, Measured, PartClock
from benchmark.drivers.training import Training
from benchmark.multi_gpu.ranks import Rank
from gnnprof import _device


def measure_rank(
    case: Case, settings: Settings, graph: Graph, rank: Rank, out: Path, tick: Tick = lambda: None
) -> Measured:
    """Train one case together with the other processes of the group.

    Args:
        case: What to measure; its batch size is that of each process.
        settings: How.
        graph: The case's data set.
        rank: Which process this is; it has joined the group.
        out: Folder for traces, one per process.
        tick: Called after every batch.

    Returns:
        The figures of all processes together, the same in each; the parts are those of this one.
    """
    with measuring(settings, rank.device):
        return DistributedTraining(case, settings, graph, rank, tick).measure(out)


def share_of(nodes: Tensor, rank: int, world_size: int, seed: int) -> Tensor:
    """Return the seed nodes of one process, [N // world_size].

    Every process gets as many, because each waits for the others in every step; what is left of
    the shuffled nodes trains nowhere.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(nodes), generator=generator)
    each = len(nodes) // world_size
    if each == 0:
        raise ValueError(
            f"{len(nodes)} training nodes cannot be shared out among {world_size} processes; give "
            "fewer processes or a larger data set."
        )
    return nodes[order[rank * each : (rank + 1) * each]]


class DistributedTraining(Training):
    """One model in training, in one of several processes.

    Args:
        case: What to measure.
        settings: How.
        graph: The case's data set.
        rank: Which process this is.
        tick: Called after every batch.
    """

    def __init__(
        self, case: Case, settings: Settings, graph: Graph, rank: Rank, tick: Tick
    ) -> None:
        self.rank = rank
        self.own_seconds: list[float] = []
        self.parameters = 0.0
        nodes = graph.split("train")
        self.left_out = len(nodes) % rank.world_size
        share = share_of(nodes, rank.rank, rank.world_size, settings.seed)
        # The loader of each process shuffles its share in an order of its own.
        own = replace(settings, seed=settings.seed + rank.rank)
        super().__init__(case, own, graph, rank.device, tick, seeds=share)

    def wrapped(self, net: nn.Module) -> nn.Module:
        """Return the model as one of several that average their gradients."""
        devices = None if self.device.type == "cpu" else [self.device]
        # Trimming drops relations without a sampled edge, whose parameters then have no gradient.
        may_be_unused = self.settings.trim and self.graph.target is not None
        return DistributedDataParallel(
            net, device_ids=devices, find_unused_parameters=may_be_unused
        )

    def cores(self) -> tuple[int, ...]:
        """Return the CPUs of this process's workers: other ones than those of its neighbours."""
        return cores_for(self.settings, self.rank.local_rank)

    def timed_epoch(self, clock: PartClock) -> tuple[float, EpochCounts]:
        """Train for an epoch; the seconds last until the slowest process is done.

        All begin together, and each reads its own clock until all have ended; the longest reading
        is the epoch's, the same in every process.
        """
        dist.barrier()
        start = _device.clock()
        own, counts = super().timed_epoch(clock)
        dist.barrier()
        longest = torch.tensor(_device.clock() - start, dtype=torch.float64, device=self.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        self.own_seconds.append(own)
        return float(longest), counts

    def accuracy(self, split: str) -> float:
        """Return the share of a split's nodes classified rightly; computed by the first process."""
        value = torch.zeros((), device=self.device)
        if self.rank.rank == 0:
            value += super().accuracy(split)
        dist.broadcast(value, src=0)
        return float(value)

    def _quality(self, val_accuracies: list[float]) -> dict[str, float]:
        self.parameters = checksum(self.setup.net)
        return super()._quality(val_accuracies)

    def measure(self, out: Path) -> Measured:
        """Return the figures of all processes together."""
        quiet = contextlib.redirect_stdout(io.StringIO()) if self.rank.rank else None
        with quiet or contextlib.nullcontext():
            measured = super().measure(out)
        ranks = self._gathered(
            {
                "rank": self.rank.rank,
                "device": str(self.device),
                "seeds": measured.counts.seeds,
                "batches": measured.counts.batches,
                "nodes": measured.counts.nodes,
                "edges": measured.counts.edges,
                "seconds": list(self.own_seconds),
                "parts": {part: timing.median for part, timing in measured.parts.items()},
                "trace": measured.trace,
                "train_loss": measured.quality["train_loss"] if measured.quality else None,
                "parameters": self.parameters,
            }
        )
        return replace(
            measured,
            counts=together(ranks),
            trace=ranks[0]["trace"],
            extra={
                "processes": self.rank.world_size,
                "batch_size_of_all": None
                if self.case.batch_size is None
                else self.case.batch_size * self.rank.world_size,
                "seeds_left_out": self.left_out,
                "ranks": ranks,
            },
        )

    def _gathered(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        values: list[Any] = [None] * self.rank.world_size
        dist.all_gather_object(values, value)
        return values


def together(ranks: Sequence[dict[str, Any]]) -> EpochCounts:
    """Return what all processes went through; the batches are the steps that they took together."""
    sums = {name: sum(rank[name] for rank in ranks) for name in ("seeds", "nodes", "edges")}
    return EpochCounts(batches=max(rank["batches"] for rank in ranks), **sums)


def checksum(net: nn.Module) -> float:
    """Return the sum of all parameters in double precision: processes that agree have the same."""
    return sum(float(parameter.detach().double().sum()) for parameter in net.parameters())
