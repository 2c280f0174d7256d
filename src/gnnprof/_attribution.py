"""From a session's events to rows: who called whom, and whose time it was.

Pure functions on plain tuples: no torch, no clock. Every range (a marker of a module or phase, or
an op) is nested by time within its thread. A range's own time is its duration less the ranges
directly inside it, so the own times of all module, phase and outside rows add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

from gnnprof._events import Events, HostEvent, MemoryEvent
from gnnprof._records import OUTSIDE, ProfileRow

SESSION_MARKER = "gnnprof:session"
"""Name of the range around the whole block."""

_SECONDS = 1e-9


@dataclass(frozen=True)
class Site:
    """A place that is marked: a module under all its names, or one message-passing phase of it.

    Attributes:
        paths: Every dotted name of the module, in the order of the module tree. The first one
            carries the figures, as in the reference.
        module: Class name.
        phase: None for the module itself.
    """

    paths: tuple[str, ...]
    module: str
    phase: str | None = None

    @property
    def marker(self) -> str:
        """Name of the range that marks a call of this site in the session's events."""
        return f"gnnprof:{self.paths[0]}:{self.phase or 'forward'}"


class RowKey(NamedTuple):
    """Identity of a module, phase or outside row."""

    path: str | None
    phase: str | None


_OUTSIDE_KEY = RowKey(None, OUTSIDE)


@dataclass(slots=True)
class Tally:
    """Running sums of one row, in nanoseconds and bytes."""

    calls: int = 0
    self_ns: int = 0
    total_ns: int = 0
    self_device_ns: int = 0
    device_ns: int = 0
    self_memory: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    """Bytes by whether they are on the accelerator."""
    memory: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    open: int = 0
    """Ranges of this row that are open now: only the outermost adds to the totals."""
    ops: dict[str, Tally] = field(default_factory=dict)
    """Sums of the ops right under a module, phase or outside row."""


class _Frame(NamedTuple):
    """An open range: when it ends, its row, and the module, phase or outside row it is under."""

    end: int
    tally: Tally
    owner: Tally

    @property
    def is_op(self) -> bool:
        return self.tally is not self.owner


class Attribution:
    """One pass over the events in time order, with the stack of open ranges.

    Args:
        events: What the session recorded.
        sites: The places that were marked.

    Attributes:
        tallies: Module, phase or outside row -> its sums.
        session_ns: Duration of the block on the thread that opened it.
        other_threads_ns: Time of the outermost ranges on other threads.

    Raises:
        RuntimeError: If the marker of the block is missing: a foreign session replaced ours.
    """

    def __init__(self, events: Events, sites: Iterable[Site]) -> None:
        self.outside = Tally()
        self.tallies: dict[RowKey, Tally] = {_OUTSIDE_KEY: self.outside}
        self.other_threads_ns = 0
        self._session = _find_session(events.host)
        self.session_ns = -self._session.negative_duration
        self._key_of = {site.marker: RowKey(site.paths[0], site.phase) for site in sites}
        self._key_of[SESSION_MARKER] = _OUTSIDE_KEY
        self._kernels = events.kernels
        self._stack: list[_Frame] = []
        self.outside.self_device_ns += events.unlinked_device_ns
        self._walk(merge(events.host, events.memory) if events.memory else events.host)

    def _walk(self, events: Iterable[HostEvent | MemoryEvent]) -> None:
        stack, session = self._stack, self._session
        session_end = session.start - session.negative_duration
        thread = None
        for event in events:
            start = event.start
            if event.thread != thread:
                self._close_all()
                thread = event.thread
            while stack and stack[-1].end <= start:
                stack.pop().tally.open -= 1
            if thread == session.thread and not session.start <= start <= session_end:
                continue  # the profiler's own start and stop
            if isinstance(event, MemoryEvent):
                self._add_memory(event)
            else:
                self._open(event, stack[-1] if stack else None)
        self._close_all()

    def _close_all(self) -> None:
        while self._stack:
            self._stack.pop().tally.open -= 1

    def _open(self, event: HostEvent, parent: _Frame | None) -> None:
        _, start, negative_duration, _, name, launch = event
        if name in self._key_of:
            tally = owner = self._tally(self._key_of[name])
            if parent:
                parent.owner.self_ns += negative_duration
        else:
            owner = parent.owner if parent else self.outside
            tally = owner.ops.get(name) or owner.ops.setdefault(name, Tally())
            if not parent:
                owner.self_ns -= negative_duration
        if not parent:
            self.other_threads_ns -= 0 if event is self._session else negative_duration
        elif parent.tally is not parent.owner:  # directly inside an op
            parent.tally.self_ns += negative_duration
        tally.calls += 1
        tally.self_ns -= negative_duration
        if not tally.open:
            tally.total_ns -= negative_duration
        tally.open += 1
        self._stack.append(_Frame(start - negative_duration, tally, owner))
        if launch in self._kernels:
            self._add_device_time(self._kernels[launch])

    def _tally(self, key: RowKey) -> Tally:
        return self.tallies.get(key) or self.tallies.setdefault(key, Tally())

    def _add_device_time(self, ns: int) -> None:
        for tally in self._own_tallies():
            tally.self_device_ns += ns
        for tally in self._open_tallies():
            tally.device_ns += ns

    def _add_memory(self, event: MemoryEvent) -> None:
        for tally in self._own_tallies():
            tally.self_memory[event.on_device] += event.nbytes
        for tally in self._open_tallies():
            tally.memory[event.on_device] += event.nbytes

    def _own_tallies(self) -> list[Tally]:
        """The module, phase or outside row of this moment and, inside an op, the op's row."""
        if not self._stack:
            return [self.outside]
        frame = self._stack[-1]
        return [frame.owner, frame.tally] if frame.is_op else [frame.owner]

    def _open_tallies(self) -> Iterable[Tally]:
        """Every row with an open range, once."""
        return {id(frame.tally): frame.tally for frame in self._stack}.values()


def _find_session(host: Sequence[HostEvent]) -> HostEvent:
    for event in host:
        if event.name == SESSION_MARKER:
            return event
    raise RuntimeError(
        "The profile is lost: another torch profiler session was started inside the `with` block, "
        "and torch keeps only one. Profile the inner part on its own."
    )


def rows_of(
    attribution: Attribution,
    layout: Sequence[tuple[str, Site]],
    *,
    with_device: bool,
    with_memory: bool,
) -> tuple[ProfileRow, ...]:
    """Order the sums as the module tree: a module, its ops, its phases and theirs, its children.

    A module that was never called is a row with 0 calls; a phase that a layer never enters is no
    row. The outside row comes last.

    Args:
        attribution: Sums per row.
        layout: The marked places in the order of the module tree, once under each name.
        with_device: Whether device time and device memory were recorded.
        with_memory: Whether memory was recorded.
    """
    tallies = attribution.tallies
    rows: list[ProfileRow] = []
    places = [(RowKey(path, site.phase), site) for path, site in layout]
    for key, site in (*places, (_OUTSIDE_KEY, None)):
        tally, first_name = tallies.get(key, Tally()), None
        if site is not None and key.path != site.paths[0]:
            first_name = site.paths[0]
            tally = _under_another_name(tallies.get(RowKey(first_name, key.phase), Tally()))
        if not tally.calls and key.phase is not None:
            continue
        costliest_first = sorted(tally.ops.items(), key=lambda op: (-op[1].self_ns, op[0]))
        for op, sums in ((None, tally), *costliest_first):
            rows.append(
                _row(
                    key,
                    op,
                    sums,
                    site.module if site else None,
                    first_name,
                    with_device,
                    with_memory,
                )
            )
    return tuple(rows)


def _under_another_name(tally: Tally) -> Tally:
    """The calls and totals of a shared module; its own figures stay with its first name."""
    return Tally(
        calls=tally.calls, total_ns=tally.total_ns, device_ns=tally.device_ns, memory=tally.memory
    )


def _row(
    key: RowKey,
    op: str | None,
    tally: Tally,
    module: str | None,
    shared_with: str | None,
    with_device: bool,
    with_memory: bool,
) -> ProfileRow:
    # What ran outside holds nothing: the model's rows stand beside it, not under it.
    total = key != _OUTSIDE_KEY or op is not None
    total_memory = tally.memory if total else tally.self_memory
    device_ns = tally.device_ns if total else tally.self_device_ns
    on_device = with_memory and with_device
    return ProfileRow(
        path=key.path,
        module=module,
        phase=key.phase,
        op=op,
        calls=tally.calls,
        self_cpu_time=tally.self_ns * _SECONDS,
        cpu_time=(tally.total_ns if total else tally.self_ns) * _SECONDS,
        self_device_time=tally.self_device_ns * _SECONDS if with_device else None,
        device_time=device_ns * _SECONDS if with_device else None,
        self_cpu_memory=tally.self_memory[False] if with_memory else None,
        cpu_memory=total_memory[False] if with_memory else None,
        self_device_memory=tally.self_memory[True] if on_device else None,
        device_memory=total_memory[True] if on_device else None,
        shared_with=shared_with,
    )
