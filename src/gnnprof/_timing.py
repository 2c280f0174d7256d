"""The stopwatch: seconds of a block or a function, the accelerator's work included."""

from __future__ import annotations

import math
import operator
from contextvars import ContextVar
from numbers import Real
from typing import Any, SupportsIndex, TypeVar, cast

from gnnprof import _device, _wrapping

_Decorated = TypeVar("_Decorated")


class timeit:
    """Measure the seconds that a block or a function takes, the accelerator's work included.

    The accelerator is synchronised before both readings of a monotonic clock. One object may be
    nested in itself, called recursively and shared by threads and asyncio tasks: each entry has
    its own start.

    As a decorator it also times coroutine functions (until the coroutine has returned, waiting
    included) and generator functions (from the first item asked for to the end, what the consumer
    does in between included).

    Example:
        >>> with timeit() as timer:
        ...     out = model(x, edge_index)
        Time: 0.00213500s
        >>> timer.duration
        0.002135

    Args:
        log: Whether to print each duration.
        avg_time_divisor: If greater than 1, the number each duration is divided by: the
            iterations of a loop inside, for a time per iteration. It need not be whole.

    Attributes:
        duration: Seconds of the last finished lap. Does not exist before the first one.

    Raises:
        TypeError: If `avg_time_divisor` is not a number.
        ValueError: If `avg_time_divisor` is negative or not finite.
    """

    duration: float

    def __init__(self, log: bool = True, avg_time_divisor: float = 0) -> None:
        if callable(log):
            raise TypeError(f"log={log!r}; decorate with @timeit(), with parentheses")
        self.log = log
        self.avg_time_divisor = _checked_divisor(avg_time_divisor)
        self._laps: list[float] = []
        self._latest: _Lap | None = None

    @property
    def laps(self) -> tuple[float, ...]:
        """Seconds of every finished lap, in the order in which they finished."""
        return tuple(self._laps)

    def __enter__(self) -> timeit:
        self._begin()
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        lap = _innermost.get()  # nearly always the one, and looked up without another call
        self._end(lap if lap is not None and lap.timer is self else self._innermost_lap())

    async def __aenter__(self) -> timeit:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    def __call__(self, func: _Decorated) -> _Decorated:
        """Decorate a function: each call of it is a lap."""
        lap_of_call = _Call if _enters_as_timeit(type(self)) else _CallOfSubclass
        timed = _wrapping.wrap(
            func, lambda _args, _kwargs: lap_of_call(self), lambda out, _lap: out
        )
        return cast("_Decorated", timed)

    def reset(self) -> None:
        """Finish the running lap, print it if `log` is set, and start the next one.

        Raises:
            RuntimeError: If the timer is not running.
        """
        lap = self._innermost_lap()
        if lap.has_device:
            _device.synchronize()
        self._record(_device.clock() - lap.start)
        lap.start = _device.clock()

    def _begin(self) -> _Lap:
        lap = _Lap()
        lap.timer = self
        lap.has_device = _device.accelerator() is not None
        if lap.has_device:
            _device.synchronize()
        lap.outer = _innermost.get()
        _innermost.set(lap)
        self._latest = lap
        lap.start = _device.clock()
        return lap

    def _end(self, lap: _Lap) -> None:
        try:
            if lap.has_device:
                _device.synchronize()
            seconds = _device.clock() - lap.start
        finally:
            if _innermost.get() is lap:
                _innermost.set(lap.outer)
            else:
                lap.leave_early()
            if self._latest is lap:
                self._latest = None
        self._record(seconds)

    def _innermost_lap(self) -> _Lap:
        """Find the lap that this thread or task entered last and has not left."""
        lap = _innermost.get()
        while lap is not None and lap.timer is not self:
            lap = lap.outer
        # Entered in one context and left in another, as a web framework's thread pool may do it.
        lap = lap or self._latest
        if lap is None:
            raise RuntimeError("Timer wasn't started.")
        return lap

    def _record(self, seconds: float) -> None:
        if self.avg_time_divisor > 1:
            seconds /= self.avg_time_divisor
        self._laps.append(seconds)
        self.duration = seconds
        if self.log:
            print(f"Time: {seconds:.8f}s", flush=True)


class _Lap:
    """One run of a timer, and the lap of any timer in which it was entered."""

    # No `__init__`, and the device asked for once: each would be a tenth of what a lap costs.
    __slots__ = ("has_device", "outer", "start", "timer")

    timer: timeit
    outer: _Lap | None
    has_device: bool
    start: float

    def leave_early(self) -> None:
        """Take this lap out of the chain from under those that are still running.

        Generators need not end in the order in which they began.
        """
        lap = _innermost.get()
        while lap is not None and lap.outer is not self:
            lap = lap.outer
        if lap is not None:
            lap.outer = self.outer


# Each thread and each asyncio task has its own value: the lap that it entered last. Timers share
# one variable, because a context would keep a variable of each timer for good.
_innermost: ContextVar[_Lap | None] = ContextVar("innermost lap", default=None)


class _Call:
    """The lap of one call of a decorated function."""

    def __init__(self, timer: timeit) -> None:
        self._timer = timer

    def __enter__(self) -> None:
        self._lap = self._timer._begin()

    def __exit__(self, *exc_info: object) -> None:
        self._timer._end(self._lap)


class _CallOfSubclass:
    """The lap of one call, where a subclass does something of its own around it."""

    def __init__(self, timer: timeit) -> None:
        self._timer = timer

    def __enter__(self) -> None:
        self._timer.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._timer.__exit__(*exc_info)


def _enters_as_timeit(kind: type[timeit]) -> bool:
    return kind.__enter__ is timeit.__enter__ and kind.__exit__ is timeit.__exit__


def _checked_divisor(divisor: Any) -> float:
    if type(divisor) is int and divisor >= 0:  # nearly always: a timer costs three microseconds
        return divisor
    allowed = "give the number of iterations in the block, or 0 for none"
    if isinstance(divisor, bool) or not isinstance(divisor, (Real, SupportsIndex)):
        kind = type(divisor).__name__
        raise TypeError(f"avg_time_divisor={divisor!r} is a {kind}, not a number; {allowed}")
    number = float(divisor) if isinstance(divisor, Real) else operator.index(divisor)
    if number < 0 or not math.isfinite(number):
        fault = "negative" if number < 0 else "not finite"
        raise ValueError(f"avg_time_divisor={divisor!r} is {fault}; {allowed}")
    return number
