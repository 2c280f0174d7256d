"""Seconds of epochs and of the parts of their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gnnprof import Timing, _device

PARTS = ("load", "transfer", "forward", "backward", "optimizer")
"""Parts of a training step, in their order; inference has the first three.

load: the wait for the loader, putting the edges into the layout asked for, and layer by layer
gathering the features. transfer: moving the batch to the device. forward: the model, and the loss
in training.
"""


class PartClock:
    """A stopwatch that says to which part of a step the time since its last reading belongs.

    Args:
        device: Where the work is done.
        synchronise: Whether to wait for the device at every reading. On a CPU there is nothing to
            wait for; on an accelerator a part is otherwise only the time to queue its work.
    """

    def __init__(self, device: torch.device, *, synchronise: bool = False) -> None:
        self._device = device
        self._synchronise = synchronise
        self._samples: dict[str, list[float]] = {}
        self._last = 0.0

    def start(self) -> None:
        """Begin an epoch."""
        self._last = self._now()

    def lap(self, part: str) -> None:
        """Give the time since the last reading to `part`."""
        now = self._now()
        self._samples.setdefault(part, []).append(now - self._last)
        self._last = now

    def _now(self) -> float:
        if self._synchronise:
            _device.synchronize(self._device)
        return _device.clock()

    def timings(self) -> dict[str, Timing]:
        """Return the samples of each part: one per step."""
        return {part: Timing(tuple(samples)) for part, samples in self._samples.items()}


@dataclass(frozen=True)
class EpochCounts:
    """What one epoch went through: seed nodes, batches, and nodes and edges of the batches.

    Seed nodes are those that are scored: in training, those of the training split.
    """

    seeds: int = 0
    batches: int = 0
    nodes: int = 0
    edges: int = 0

    def plus(self, seeds: int, nodes: int, edges: int) -> EpochCounts:
        """Return the counts with one more batch."""
        return EpochCounts(
            self.seeds + seeds, self.batches + 1, self.nodes + nodes, self.edges + edges
        )


@dataclass
class TimedEpochs:
    """What the timed epochs of a training have brought, one after the other.

    Attributes:
        counts: What the first one went through.
        seconds: Wall time of each.
        peaks: Highest bytes in live tensors on the accelerator in each; None on a CPU.
        val_accuracies: After each, where it was evaluated.
    """

    counts: EpochCounts = EpochCounts()
    seconds: list[float] = field(default_factory=list)
    peaks: list[int | None] = field(default_factory=list)
    val_accuracies: list[float] = field(default_factory=list)

    @property
    def peak_memory(self) -> int | None:
        """The highest of the peaks; None on a CPU."""
        return max((peak for peak in self.peaks if peak is not None), default=None)


@dataclass(frozen=True)
class Measured:
    """What was measured of one case.

    Attributes:
        unit: 'epoch' or 'pass': what one sample of `seconds` is.
        counts: What one such unit goes through; of the first one.
        seconds: Wall time of each, from an idle device to an idle device; evaluation, warm-up and
            compilation are in none.
        parts: Wall time per batch of each part; see `PARTS`.
        parts_taken: In which epochs the parts were read.
        warm_up_seconds: Wall time of the warm-up, which also holds the compilation; None without.
        compile_seconds: Seconds that Dynamo counted for itself in the warm-up; None without
            compiling.
        recompiled: Graphs compiled after the warm-up, which taint the timings; None likewise.
        peak_memory: Highest bytes in live tensors on the accelerator while the epochs were timed;
            None on a CPU.
        sampler: What sampled; None without sampling.
        affinity: Who bound the workers to which CPUs; None where nobody did.
        quality: Accuracies by split (0..1), and the loss of the last timed batch.
        profile: Rows of the profile, as `benchmark.drivers.profiling` makes them.
        trace: The trace's file name.
        extra: What one driver alone has to say.
    """

    unit: str
    counts: EpochCounts
    seconds: Timing
    parts: Mapping[str, Timing]
    parts_taken: str
    warm_up_seconds: float | None = None
    compile_seconds: float | None = None
    recompiled: int | None = None
    peak_memory: int | None = None
    sampler: str | None = None
    affinity: Mapping[str, object] | None = None
    quality: Mapping[str, float] | None = None
    profile: Sequence[Mapping[str, object]] | None = None
    trace: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Seed nodes per second: those of one unit by the median of its seconds."""
        return self.counts.seeds / self.seconds.median

    @property
    def latency(self) -> float:
        """Seconds per seed node: the reciprocal of the throughput."""
        return self.seconds.median / self.counts.seeds

    def to_dict(self) -> dict[str, object]:
        """Return all, raw samples included, as JSON takes it. Keys of `extra` stand beside."""
        counts = self.counts
        return {
            "unit": self.unit,
            "seeds": counts.seeds,
            "batches": counts.batches,
            "nodes_per_batch": counts.nodes / counts.batches,
            "edges_per_batch": counts.edges / counts.batches,
            "seconds": self.seconds.to_dict(),
            "throughput": self.throughput,
            "latency": self.latency,
            "parts": {part: timing.to_dict() for part, timing in self.parts.items()},
            "parts_taken": self.parts_taken,
            "warm_up_seconds": self.warm_up_seconds,
            "compile_seconds": self.compile_seconds,
            "recompiled": self.recompiled,
            "peak_memory": self.peak_memory,
            "sampler": self.sampler,
            "affinity": None if self.affinity is None else dict(self.affinity),
            "quality": None if self.quality is None else dict(self.quality),
            "profile": None if self.profile is None else [dict(row) for row in self.profile],
            "trace": self.trace,
            **self.extra,
        }
