"""Running sums of a row while the events are walked: nanoseconds, bytes, calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gnnprof._events import MemoryEvent


@dataclass(slots=True)
class Sums:
    """Calls and nanoseconds of one row in one direction, forward or backward."""

    calls: int = 0
    self_ns: int = 0
    total_ns: int = 0
    self_device_ns: int = 0
    device_ns: int = 0

    def add(self, other: Sums) -> None:
        """Add another row's sums to these."""
        self.calls += other.calls
        self.self_ns += other.self_ns
        self.total_ns += other.total_ns
        self.self_device_ns += other.self_device_ns
        self.device_ns += other.device_ns


@dataclass(slots=True)
class Memory:
    """Bytes of one row, on the host or on the accelerator.

    Attributes:
        total_net: Allocated less freed by the row and those nested in it, forward and backward.
        allocated: Allocated by the row itself.
        freed: Freed while the row itself ran.
        peak: Highest live bytes while the row ran, above what was live when the block began.
    """

    total_net: int = 0
    allocated: int = 0
    freed: int = 0
    peak: int = 0

    @property
    def net(self) -> int:
        """Allocated less freed by the row itself."""
        return self.allocated - self.freed

    def add(self, other: Memory) -> None:
        """Add another row's bytes to these."""
        self.total_net += other.total_net
        self.allocated += other.allocated
        self.freed += other.freed
        self.peak = max(self.peak, other.peak)

    def hold(self, nested: Memory) -> None:
        """Take in what a row nested in this one did."""
        self.total_net += nested.total_net
        self.peak = max(self.peak, nested.peak)


@dataclass(slots=True, eq=False)  # rows are told apart by identity
class Tally:
    """Running sums of one row and of the ops right under it.

    Attributes:
        forward: Sums of the forward; for a row outside the model, all of its sums but the backward.
        backward: Sums of the backward.
        recomputed_calls: Calls made by activation checkpointing in the backward.
        host: Bytes on the host.
        device: Bytes on the accelerator.
        open: Ranges of this row that are open now: only the outermost adds to the totals.
        ops: Sums of the ops, by name.
    """

    forward: Sums = field(default_factory=Sums)
    backward: Sums = field(default_factory=Sums)
    recomputed_calls: int = 0
    host: Memory = field(default_factory=Memory)
    device: Memory = field(default_factory=Memory)
    open: int = 0
    ops: dict[str, Tally] = field(default_factory=dict)

    def op(self, name: str) -> Tally:
        """The sums of one op under this row."""
        tally = self.ops.get(name)
        if tally is None:
            tally = self.ops[name] = Tally()
        return tally

    def memory(self, on_device: bool) -> Memory:
        """The bytes on one side."""
        return self.device if on_device else self.host

    def add(self, other: Tally) -> None:
        """Add another row and its ops to this one."""
        self.forward.add(other.forward)
        self.backward.add(other.backward)
        self.host.add(other.host)
        self.device.add(other.device)
        for name, tally in other.ops.items():
            self.op(name).add(tally)


class LiveBytes:
    """Bytes in live tensors over time, above what was live when the block began.

    Args:
        events: Allocations and frees of all threads, in any order.
        before: Live bytes before the first of them, on the host and on the accelerator.

    Attributes:
        last: Live bytes after the last of them.
    """

    def __init__(self, events: Sequence[MemoryEvent], before: tuple[int, int] = (0, 0)) -> None:
        self._curves: dict[bool, tuple[list[int], list[int]]] = {}
        for on_device in (False, True):
            curve = sorted((e.start, e.nbytes) for e in events if e.on_device is on_device)
            self._curves[on_device] = (
                [start for start, _ in curve],
                list(accumulate((nbytes for _, nbytes in curve), initial=before[on_device])),
            )
        self.last = (self._curves[False][1][-1], self._curves[True][1][-1])
        self._any = bool(events)

    def __bool__(self) -> bool:
        return self._any

    def at(self, now: int, on_device: bool) -> int:
        """Live bytes right after everything that happened up to a moment."""
        times, live = self._curves[on_device]
        return live[bisect_right(times, now)]
