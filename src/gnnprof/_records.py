"""Frozen records of what was measured. Seconds and bytes; None means "not measured", never 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnnprof import _statistics

OUTSIDE = "outside"
"""Phase of the row that holds what ran in the block but in no selected module."""

LOSS = "loss"
"""Phase of the row for ops outside the model whose backward ran."""

OPTIMIZER = "optimizer"
"""Phase of the row for `step` and `zero_grad` of optimizers."""

DATA_LOADING = "data loading"
"""Phase of the row for the time a `DataLoader` took to give a batch."""

GRADIENT_ACCUMULATION = "gradient accumulation"
"""Phase of the row for adding gradients to `.grad`."""

OUTSIDE_PHASES = (LOSS, GRADIENT_ACCUMULATION, OPTIMIZER, DATA_LOADING, OUTSIDE)
"""Phases of the rows that have no path, in the order they are listed."""

PHASES = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
"""The phases of a message-passing layer, named after the methods of `MessagePassing`."""


@dataclass(frozen=True)
class ProfileRow:
    """One row of a layer profile: a module, a message-passing phase of it, or an op under either.

    Module and phase rows (`op is None`) share out the block among them: their `self_cpu_time` adds
    up to the block's duration. Op rows break a module or phase row down and are not added to it.

    Attributes:
        path: Dotted name of the module as in `named_modules()`; `''` is the model itself, None is
            the row for what ran outside the profiled modules.
        module: Class name of the module; None outside.
        phase: None for the module itself, one of `PHASES`, or `'outside'`.
        op: Name of the op as the torch profiler gives it (`'aten::mm'`); None for the module and
            phase rows.
        calls: How often the module, phase or op ran.
        self_cpu_time: Seconds on the calling thread, less what is in rows nested in this one. For
            a module or phase this includes its own ops and the Python code between them; for an
            op, only the op itself.
        cpu_time: Seconds from entry to exit, nested rows included (recursion counted once).
        self_device_time: Seconds of the kernels that this row's own ops launched; None without an
            accelerator in the profile.
        device_time: The same, nested rows included.
        self_cpu_memory: Bytes of host tensors allocated less freed by the row itself, forward and
            backward, summed over its calls; None unless memory was asked for.
        cpu_memory: The same, nested rows included.
        self_device_memory: Bytes on the accelerator, as `self_cpu_memory`.
        device_memory: The same, nested rows included.
        shared_with: For a module that is in the model under several names, at all but the first:
            that first name. Calls and totals stand at every name, the self figures and the ops
            only at the first.
        self_backward_cpu_time: Seconds of the backward of what this row's own ops did in the
            forward, on the threads that ran it; None when no backward ran in the block.
        backward_cpu_time: The same, with the rows that were nested in this one in the forward.
        self_backward_device_time: Seconds of the kernels which that backward launched.
        backward_device_time: The same, nested rows included.
        backward_calls: Autograd nodes (for an op row: ops) that ran for this row in the backward.
        recomputed_calls: Calls made by activation checkpointing during the backward; they are not
            in `calls`, and their time is in the backward columns.
        allocated_memory: Host bytes that the row itself allocated, forward and backward; None
            unless memory was asked for.
        freed_memory: Host bytes freed while the row itself ran, whoever had allocated them.
        peak_memory: Highest host bytes in live tensors while the row ran, nested rows included,
            above what was live when the block began.
        allocated_device_memory: Bytes on the accelerator, as `allocated_memory`.
        freed_device_memory: As `freed_memory`.
        peak_device_memory: As `peak_memory`.
        flops: Floating-point operations of all forward calls, nested rows included; one
            multiply-add is two. None unless counting was asked for.
        bytes_moved: Distinct input bytes read and output bytes written by the ops of all forward
            calls, nested rows included.
        percent_of_limit: How close the forward comes to this machine's measured limit, in percent.
        bound: 'memory', 'compute' or 'overhead': what holds the row back.
    """

    path: str | None
    module: str | None
    phase: str | None
    op: str | None
    calls: int
    self_cpu_time: float
    cpu_time: float
    self_device_time: float | None = None
    device_time: float | None = None
    self_cpu_memory: int | None = None
    cpu_memory: int | None = None
    self_device_memory: int | None = None
    device_memory: int | None = None
    shared_with: str | None = None
    self_backward_cpu_time: float | None = None
    backward_cpu_time: float | None = None
    self_backward_device_time: float | None = None
    backward_device_time: float | None = None
    backward_calls: int | None = None
    recomputed_calls: int = 0
    allocated_memory: int | None = None
    freed_memory: int | None = None
    peak_memory: int | None = None
    allocated_device_memory: int | None = None
    freed_device_memory: int | None = None
    peak_device_memory: int | None = None
    flops: int | None = None
    bytes_moved: int | None = None
    percent_of_limit: float | None = None
    bound: str | None = None


@dataclass(frozen=True)
class Timing:
    """How long the steps of one kind took: the raw samples, and what follows from them.

    Attributes:
        samples: Seconds of each step, in the order they ran; at least one. The device is
            synchronised before both readings of the clock; warm-up steps are left out.
    """

    samples: tuple[float, ...]

    @property
    def total(self) -> float:
        """Seconds of all steps together."""
        return math.fsum(self.samples)

    @property
    def mean(self) -> float:
        """Seconds per step, averaged."""
        return _statistics.mean(self.samples)

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the steps in seconds; None for a single step."""
        return _statistics.sample_std(self.samples)

    @property
    def median(self) -> float:
        """Seconds of the middle step: what outliers do not move."""
        return _statistics.median(self.samples)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the median in seconds; None with fewer than 6 steps."""
        return _statistics.median_interval(self.samples)

    def to_dict(self, prefix: str = "") -> dict[str, object]:
        """Return the samples and every figure that follows from them, keys after `prefix`."""
        low, high = self.interval or (None, None)
        figures = {
            "total": self.total,
            "mean": self.mean,
            "std": self.std,
            "median": self.median,
            "median_low": low,
            "median_high": high,
            "samples": list(self.samples),
        }
        return {prefix + name: value for name, value in figures.items()}


@dataclass(frozen=True)
class BenchmarkResult:
    """What `benchmark` measured of one function.

    Attributes:
        name: Name of the function in the table.
        forward: Calls of the function; None if it failed before the first measured step.
        backward: Backward passes from the function's outputs; None without `backward=True`, and
            like `forward` on failure.
        error: Type and message of the exception that ended the measurement early; the timings
            then hold the steps before it. None if all steps ran.
    """

    name: str
    forward: Timing | None
    backward: Timing | None = None
    error: str | None = None

    @property
    def total(self) -> float | None:
        """Seconds of all forward and backward steps together; None if nothing was measured."""
        if self.forward is None:
            return None
        return self.forward.total + (self.backward.total if self.backward else 0.0)

    def to_dict(self) -> dict[str, object]:
        """Return a flat dictionary for JSON or pandas, in seconds; no keys for what did not run."""
        entry: dict[str, object] = {"name": self.name, "error": self.error, "total": self.total}
        for kind, timing in (("forward", self.forward), ("backward", self.backward)):
            if timing is not None:
                entry.update(timing.to_dict(f"{kind}_"))
        return entry
