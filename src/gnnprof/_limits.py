"""What this machine can do: bandwidth, matrix-product rate and cost of an op, measured on the spot.

The limits are ceilings: of all samples the highest rate counts, because a disturbed sample only
shows what the machine did besides. They hold for one device, one number of threads and one type of
numbers, and are measured once per process. A few tenths of a second each.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor

from gnnprof import _device, _statistics

OVERHEAD_SHARE = 0.5
"""Share of the time outside the kernels above which a row counts as bound by overhead."""

CREDIBLE_PERCENT = 105.0
"""Percent of the limit up to which a figure is believed: the limit has some noise, too."""

_SECONDS = 0.4
"""Time that one measurement may take, roughly; the first samples are taken in any case."""

_LEAST_ROUNDS = 3
_MOST_ROUNDS = 200
"""Most rounds of one measurement: enough for a steady maximum where samples are short."""


@dataclass(frozen=True)
class Limit:
    """A rate that the machine reached.

    Attributes:
        value: The highest sample.
        samples: Every sample, in the order taken; work per second.
        work: Amount of work of one repetition: bytes of the working set, or FLOPs.
    """

    value: float
    samples: tuple[float, ...]
    work: int

    @property
    def noise(self) -> float:
        """Interquartile range of the samples, relative to their median."""
        low, middle, high = (_statistics.quantile(self.samples, q) for q in (0.25, 0.5, 0.75))
        return (high - low) / middle


@dataclass(frozen=True)
class Bandwidth:
    """Copy bandwidth by size: what is small enough stays in a cache, which is faster.

    Attributes:
        rungs: Bytes per second at growing working sets. Copying a byte moves two: one is read and
            one written, and the working set is both.
    """

    rungs: tuple[Limit, ...]

    @property
    def largest(self) -> Limit:
        """The rung that no cache holds: the bandwidth of the memory, to print with its noise."""
        return self.rungs[-1]

    def at(self, nbytes: int) -> float:
        """Return the ceiling for an op that moves this many distinct bytes, in bytes per second.

        The highest rate that any working set of this size *or larger* has reached: for small ones
        a copy is all overhead, and its own rate would be no ceiling. Between two rungs it is
        interpolated in the logarithms, beyond the last one it is that of the last one.
        """
        ceilings = [max(rung.value for rung in self.rungs[i:]) for i in range(len(self.rungs))]
        sizes = [rung.work for rung in self.rungs]
        above = bisect.bisect_left(sizes, nbytes)
        if above in (0, len(sizes)):
            return ceilings[min(above, len(sizes) - 1)]
        low, high = sizes[above - 1], sizes[above]
        weight = math.log(nbytes / low) / math.log(high / low)
        slower = ceilings[above] / ceilings[above - 1]
        return float(ceilings[above - 1] * slower**weight)


# -- measuring -------------------------------------------------------------------------------------

_Value = TypeVar("_Value")
_Measured = TypeVar("_Measured")


@dataclass(frozen=True)
class _Known:
    """A measurement of this process, and how to take it again."""

    measure: Callable[[], Any]
    value: Any


_known: dict[Hashable, _Known] = {}
_lock = threading.Lock()  # two measurements at a time would disturb each other


def _once(key: Hashable, measure: Callable[[], _Value]) -> _Value:
    """Return what was measured under a key, measuring it if need be."""
    with _lock:
        if key not in _known:
            _known[key] = _Known(measure, measure())
        value: _Value = _known[key].value
        return value


def measure_again() -> None:
    """Add samples to everything measured so far: for a machine that was disturbed before.

    Rates can only grow by it, as they are maxima. Worth calling when a figure comes out above the
    limit.
    """
    with _lock:
        for key, known in list(_known.items()):
            merged = _merged(known.value, known.measure())
            _known[key] = _Known(known.measure, merged)


def _merged(before: Any, now: Any) -> Any:
    """Put the samples of two measurements of the same kind together."""
    if isinstance(before, Bandwidth):
        pairs = zip_longest(before.rungs, now.rungs)  # the memory may be fuller or emptier now
        return Bandwidth(tuple(_merged(rung, again) for rung, again in pairs))
    if before is None or now is None or before.work != now.work:  # another size was the best
        return _best(before, now)
    return Limit(max(before.value, now.value), before.samples + now.samples, before.work)


def _best(*limits: Limit | None) -> Limit | None:
    known = [limit for limit in limits if limit is not None]
    return max(known, key=lambda limit: limit.value, default=None)


def copy_bandwidth(device: torch.device) -> Bandwidth:
    """Measure how fast `copy_` moves contiguous memory, for working sets that double.

    On the CPU, with the current number of threads, from 256 KiB to 128 MiB; on an accelerator
    from 8 MiB to 512 MiB. Needs that much memory once; where there is less, the largest sets are
    left out.

    Raises:
        RuntimeError: If there is not even memory for the smallest one.
    """
    return _once(("copy", device, _threads(device)), lambda: _measure_copy(device))


def _measure_copy(device: torch.device) -> Bandwidth:
    smallest, largest, per_sample = _copy_sizes(device)
    source, target = _copy_buffers(smallest, largest, device)
    largest = 2 * len(source)
    sizes = [smallest << doubling for doubling in range((largest // smallest).bit_length())]

    def copy(size: int) -> Callable[[], object]:
        to, of = target[: size // 2], source[: size // 2]
        return lambda: to.copy_(of)

    tasks = [_Task(size, copy(size), max(1, per_sample // size)) for size in sizes]
    measured = _with_each_thread_count(lambda share: _sample(tasks, device, share), device)
    fastest = [max(rungs, key=lambda rung: rung.value) for rungs in zip(*measured, strict=True)]
    return Bandwidth(tuple(fastest))


def _copy_buffers(smallest: int, largest: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two buffers of half the largest working set that there is memory for."""
    while True:
        try:
            source, target = (
                torch.zeros(largest // 2, dtype=torch.uint8, device=device) for _ in "ab"
            )
        except RuntimeError:  # no memory for this size
            if largest == smallest:
                raise
            largest //= 2
        else:
            return source, target


def _copy_sizes(device: torch.device) -> tuple[int, int, int]:
    """Return the smallest and largest working set, and the bytes to move between two stamps."""
    if device.type == "cpu":
        return 2**18, 2**27, 2**21
    return 2**23, 2**29, 2**31


def matmul_rate(device: torch.device, dtype: torch.dtype) -> Limit | None:
    """Measure how fast the device multiplies square matrices, in FLOP per second.

    The size doubles as long as the time allows, and the best size counts; `2 n^3` FLOPs each.
    On CUDA the current setting of TF32 applies.

    Returns:
        The limit, or None if the device cannot multiply matrices of this type.
    """
    key = ("matmul", device, dtype, _threads(device), _float32_precision(device))
    return _once(key, lambda: _measure_matmul(device, dtype))


def _measure_matmul(device: torch.device, dtype: torch.dtype) -> Limit | None:
    measured = _with_each_thread_count(lambda share: _grow_matmul(device, dtype, share), device)
    return _best(*measured)


def _grow_matmul(device: torch.device, dtype: torch.dtype, seconds: float) -> Limit | None:
    """Double the size of the matrices until the next one would take too long."""
    size, largest = (128, 1024) if device.type == "cpu" else (1024, 8192)
    best: Limit | None = None
    while size <= largest:
        try:
            (limit,) = _sample([_matmul(size, device, dtype)], device, seconds / 4)
        except RuntimeError:  # not implemented for this type, or no memory for this size
            break
        best = _best(best, limit)
        longer = 8 * limit.work / limit.value
        if _LEAST_ROUNDS * longer > seconds / 2:
            break
        size *= 2
    return best


def _matmul(size: int, device: torch.device, dtype: torch.dtype) -> _Task:
    # Numbers that differ: hardware saves power, and gains clock, where all bits are alike.
    left = (torch.arange(size * size, device=device) % 251 / 251).to(dtype).view(size, size)
    right, out = left.t().contiguous(), torch.empty_like(left)
    return _Task(2 * size**3, lambda: torch.mm(left, right, out=out), 1)


def op_rate(device: torch.device) -> Limit:
    """Measure how many ops on one element run in a second: dispatch, launch and allocation.

    Other than for the rates above the typical figure matters, see :func:`op_cost`.
    """
    return _once(("op", device, _threads(device)), lambda: _measure_ops(device))


def op_cost(device: torch.device) -> float:
    """Return the seconds that calling an op takes however small it is: the median of `op_rate`."""
    return 1 / _statistics.median(op_rate(device).samples)


def _measure_ops(device: torch.device) -> Limit:
    one = torch.ones(1, device=device)
    (limit,) = _sample([_Task(1, lambda: torch.relu(one), 100)], device, _SECONDS / 8)
    return limit


def _with_each_thread_count(
    measure: Callable[[float], _Measured], device: torch.device
) -> list[_Measured]:
    """Measure with the current number of threads, and on the CPU with one as well.

    Many threads are no slower than one, unless others hold the cores that they wait for: then the
    one tells more about the machine. Each gets its share of `_SECONDS`.
    """
    current = torch.get_num_threads()
    if device.type != "cpu" or current == 1:
        return [measure(_SECONDS)]
    measured = [measure(_SECONDS / 2)]
    try:
        torch.set_num_threads(1)
        measured.append(measure(_SECONDS / 2))
    finally:
        torch.set_num_threads(current)
    return measured


def _threads(device: torch.device) -> int | None:
    return torch.get_num_threads() if device.type == "cpu" else None


def _float32_precision(device: torch.device) -> object:
    """Return the setting that decides how CUDA multiplies float32."""
    matmul = torch.backends.cuda.matmul
    if device.type != "cuda":
        return None
    # The older name refuses to answer where the newer one was used to set it.
    return matmul.fp32_precision if hasattr(matmul, "fp32_precision") else matmul.allow_tf32


@dataclass(frozen=True)
class _Task:
    """Something to time: the work of one run, how to run it, runs between two stamps."""

    work: int
    run: Callable[[], object]
    runs: int


def _sample(tasks: Sequence[_Task], device: torch.device, seconds: float) -> tuple[Limit, ...]:
    """Take samples of all tasks in turn, so that a disturbance does not hit one of them alone.

    `_LEAST_ROUNDS` at least, then as long as the time allows.
    """
    samples: list[list[float]] = [[] for _ in tasks]
    end = _device.clock() + seconds
    for done in range(_MOST_ROUNDS):
        if done >= _LEAST_ROUNDS and _device.clock() >= end:
            break
        for task, taken in zip(tasks, samples, strict=True):
            taken.append(task.work * task.runs / _time(task, device))
    return tuple(
        Limit(max(taken), tuple(taken), task.work)
        for task, taken in zip(tasks, samples, strict=True)
    )


def _time(task: _Task, device: torch.device) -> float:
    """Return the seconds of the runs of a task, after one that is not timed.

    That one loads code and brings into the caches what fits there.
    """
    task.run()
    stop = _device.start_timer(device)
    for _ in range(task.runs):
        task.run()
    return max(stop(), 1e-9)  # a clock may not have moved


# -- comparing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LimitTime:
    """The least time that ops could take on this machine. Times of several ops add up.

    Attributes:
        memory: Seconds to move the bytes at the measured bandwidth.
        compute: Seconds to do the FLOPs at the measured rate.
        seconds: The larger of the two for every op, summed over the ops.
    """

    memory: float = 0.0
    compute: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: LimitTime) -> LimitTime:
        return LimitTime(
            self.memory + other.memory, self.compute + other.compute, self.seconds + other.seconds
        )


def limit_time(
    flops: int | None, nbytes: int, device: torch.device, dtype: torch.dtype | None
) -> LimitTime | None:
    """Return the least time that one op could take: the roofline model.

    Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", Communications of the ACM 52 (2009).

    Args:
        flops: FLOPs of the op; None if unknown.
        nbytes: Bytes that it moves.
        device: Where it ran.
        dtype: The numbers that it computed with.

    Returns:
        The time, or None if the FLOPs or their rate are unknown, or the tensors were not real.
    """
    if flops is None or device.type == "meta":
        return None
    rate = _peak_rate(device, dtype) if flops else math.inf
    if rate is None:
        return None
    memory = nbytes / copy_bandwidth(device).at(nbytes) if nbytes else 0.0
    compute = flops / rate
    return LimitTime(memory, compute, max(memory, compute))


def _peak_rate(device: torch.device, dtype: torch.dtype | None) -> float | None:
    """Return the most FLOP per second for numbers of a type.

    For 16 bits at least the rate of float32, in which elementwise ops compute: a processor without
    16-bit matrix products takes a slow path for those alone.
    """
    if dtype is None or not dtype.is_floating_point:
        return None
    dtypes = [dtype, torch.float32] if dtype.itemsize == 2 else [dtype]
    limits = [matmul_rate(device, each) for each in dtypes]
    return max((limit.value for limit in limits if limit is not None), default=None)


def percent_of_limit(limit: LimitTime, seconds: float) -> float | None:
    """Return the least time in percent of the measured one; None where one of them is zero.

    Well above 100 the limit is too low: see :func:`measure_again`.
    """
    return 100 * limit.seconds / seconds if limit.seconds > 0 and seconds > 0 else None


def classify(limit: LimitTime, seconds: float, outside: float) -> tuple[float | None, str | None]:
    """Compare what was measured with the limit, and name what holds it back.

    Overhead: more than half of the time (`OVERHEAD_SHARE`) passes outside the kernels. Otherwise
    memory or compute, whichever of the two needs more time at the limit.

    Args:
        limit: The least time, summed over the ops.
        seconds: The time that was measured.
        outside: How much of it went into no kernel: Python code between the ops, and the cost of
            calling each op (`op_cost`).

    Returns:
        Percent of the limit that was reached, and 'memory', 'compute' or 'overhead'. The percent
        are None where nothing was moved or computed, and above `CREDIBLE_PERCENT`, where the limit
        must be wrong; both are None where no time was measured.
    """
    if seconds <= 0:
        return None, None
    percent = percent_of_limit(limit, seconds)
    if percent is None or outside > OVERHEAD_SHARE * seconds:
        bound = "overhead"
    else:
        bound = "memory" if limit.memory >= limit.compute else "compute"
    return (None if percent is None or percent > CREDIBLE_PERCENT else percent), bound
