"""From a session's events to sums per row: who called whom, and whose time and memory it was.

Pure functions on plain tuples: no torch, no clock. Every range (a marker of a module or phase, or
an op) is nested by time within its thread. A range's own time is its duration less the ranges
directly inside it, so the own times of all module, phase and outside rows, forward and backward,
add up to the whole.

A backward op belongs to the row whose forward created its autograd node. torch shows an op with the
sequence number that the next node will get, so the creator of a node is the last op that started
with the node's number; the events of the node's backward repeat it, and name the forward thread. A
node whose number no op has was made beside another one: its creator is the last op before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import NamedTuple

from gnnprof._events import BACKWARD_PREFIX, Events, HostEvent, MemoryEvent
from gnnprof._records import DATA_LOADING, GRADIENT_ACCUMULATION, LOSS, OPTIMIZER, OUTSIDE
from gnnprof._tallies import LiveBytes, Sums, Tally

SESSION_MARKER = "gnnprof:session"
"""Name of the range around the whole block."""

_NAMED_RANGES = {"Optimizer.": OPTIMIZER, "enumerate(DataLoader)#": DATA_LOADING}
"""How torch's own ranges outside the model begin, and the phase of their row."""

_RANGE_STARTS = tuple(_NAMED_RANGES)

_MOST_WAITING = 100_000
"""Autograd nodes of earlier sessions whose backward may come; beyond, the oldest are forgotten."""

_ACCUMULATE = "AccumulateGrad"
"""End of the name of the node that adds a gradient to a parameter's."""

Chain = tuple[Tally, ...]
"""The rows that something is nested in, outermost first, its own row last."""

NodeKey = tuple[int, int]
"""Forward thread and sequence number of an autograd node."""


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


@dataclass(slots=True)  # thousands are made: half the time of a NamedTuple's
class _Frame:
    """An open range.

    Attributes:
        end: When it ends.
        tally: Its row; for a marker that is the owner.
        sums: The direction of the row that it counts in.
        owner: The module, phase or outside row that it is under.
        owner_sums: The owner's sums in that direction.
        chain: The owner and the rows that the owner is nested in.
    """

    end: int
    tally: Tally
    sums: Sums
    owner: Tally
    owner_sums: Sums
    chain: Chain

    @property
    def is_op(self) -> bool:
        return self.tally is not self.owner

    @property
    def in_backward(self) -> bool:
        return self.owner_sums is self.owner.backward


class Attribution:
    """The sums of a block, to which the events of one session after another are added.

    Args:
        sites: The places that were marked.

    Attributes:
        tallies: Module, phase or outside row -> its sums.
        session_ns: Duration of the sessions on the thread that opened the block.
        other_threads_ns: Time of the outermost ranges on other threads.
        has_backward: Whether an autograd backward ran in the block.
        peaks: Highest live bytes above what was live when the block began, and the row that
            allocated them last, on the host and on the accelerator; None if nothing was.
    """

    def __init__(self, sites: Iterable[Site]) -> None:
        self.tallies: dict[RowKey, Tally] = {}
        self.session_ns = 0
        self.other_threads_ns = 0
        self.has_backward = False
        self._outside = self._row(_OUTSIDE_KEY)
        self._key_of = {site.marker: RowKey(site.paths[0], site.phase) for site in sites}
        self._key_of[SESSION_MARKER] = _OUTSIDE_KEY
        self._plain_ops: set[str] = set()
        self._stack: list[_Frame] = []
        self._forward_chains: dict[Tally, Chain] = {}
        self._creators: dict[NodeKey, Chain] = {}
        self._waiting: dict[NodeKey, Chain] = {}
        self._creator_numbers: dict[int, list[int]] = {}
        self._settled: dict[Tally, Tally] = {}
        self._live = LiveBytes([])
        self.peaks: dict[bool, tuple[int, RowKey] | None] = {False: None, True: None}
        self._highest: dict[bool, tuple[int, Tally]] = {}

    def add(self, events: Events) -> None:
        """Add what one session recorded.

        Raises:
            RuntimeError: If the marker of the block is missing: a foreign session replaced ours.
        """
        self._session = _find_session(events.host)
        self.session_ns -= self._session.negative_duration
        self.has_backward |= events.has_backward
        self._kernels = events.kernels
        memory = [e for e in events.memory if e.start >= self._session.start]
        self._live = LiveBytes(memory, self._live.last)
        self._nodes: dict[NodeKey, Tally] = {}
        self._candidates: list[Tally] = []
        self._creators = {}
        self._settled = {}
        host = _ended_by(self._session.end, events.host)
        self._walk(merge(host, events.memory) if events.memory else host)
        self._settle()
        self._keep_creators()
        self._outside.forward.calls = 1  # the block
        self._outside.forward.self_device_ns += events.unlinked_device_ns

    @property
    def whole_ns(self) -> int:
        """What the own times of all rows should add up to."""
        return self.session_ns + self.other_threads_ns

    # --- the pass over the events ------------------------------------------------------------

    def _walk(self, events: Iterable[HostEvent | MemoryEvent]) -> None:
        # Thousands of events, most of them ops that only count to the row they run in: for those
        # this loop does inline, in a third of the time, what `_open` does for any range.
        stack, plain_ops = self._stack, self._plain_ops
        only_times = not self._kernels and not self._live
        thread = None
        begin, end = self._session.start, self._session.end
        for event in events:
            start = event.start
            if event.thread != thread:
                self._close_all()
                thread = event.thread
            while stack and stack[-1].end <= start:
                stack.pop().tally.open -= 1
            if not begin <= start <= end:
                continue  # a warm-up, the profiler's own start and stop
            if isinstance(event, MemoryEvent):
                self._add_memory(event)
                continue
            _, _, negative_ns, _, name, _, sequence, forward_thread = event
            if stack and name in plain_ops and (sequence < 0 or forward_thread):
                parent = stack[-1]
                owner, owner_sums, sums_above = parent.owner, parent.owner_sums, parent.sums
                op = owner.op(name)
                if sums_above is not owner_sums:  # inside another op
                    sums_above.self_ns += negative_ns
                sums = op.backward if owner_sums is owner.backward else op.forward
                sums.calls += 1
                sums.self_ns -= negative_ns
                if not op.open:
                    sums.total_ns -= negative_ns
                op.open += 1
                frame = _Frame(start - negative_ns, op, sums, owner, owner_sums, parent.chain)
            else:
                frame = self._open(event, stack[-1] if stack else None)
            stack.append(frame)
            if not only_times:
                self._add_what_else_is_known(event, frame)
        self._close_all()

    def _close_all(self) -> None:
        while self._stack:
            self._stack.pop().tally.open -= 1

    def _open(self, event: HostEvent, parent: _Frame | None) -> _Frame:
        ns = -event.negative_duration
        frame = self._frame(event, parent)
        if parent is None:
            self.other_threads_ns += 0 if event is self._session else ns
        elif parent.is_op:
            parent.sums.self_ns -= ns
        if parent is None or not frame.is_op or frame.owner is not parent.owner:
            if parent is not None:
                parent.owner_sums.self_ns -= ns
            if frame.is_op:  # a row that has no marker: its outermost op stands for it
                frame.owner_sums.calls += 1
                frame.owner_sums.self_ns += ns
                frame.owner_sums.total_ns += ns
        frame.sums.self_ns += ns
        if not frame.tally.open:
            frame.sums.total_ns += ns
        frame.tally.open += 1
        return frame

    # --- whose a range is --------------------------------------------------------------------

    def _frame(self, event: HostEvent, parent: _Frame | None) -> _Frame:
        name = event.name
        if name in self._key_of:
            return self._marker(event, self._row(self._key_of[name]), parent)
        if name.startswith(_RANGE_STARTS):
            return self._named_range(event)
        if self.has_backward and name.startswith(BACKWARD_PREFIX):
            return self._backward_node(event)
        owner, chain = (parent.owner, parent.chain) if parent else (self._outside, ())
        if event.sequence >= 0 and not event.forward_thread:
            if owner is self._outside:  # a loss, if it turns out that its backward runs
                owner = Tally()
                chain = (owner,)
                self._candidates.append(owner)
            self._creators[event.thread, event.sequence] = chain
        self._plain_ops.add(name)
        op = owner.op(name)
        in_backward = parent is not None and parent.in_backward
        sums, owner_sums = (
            (op.backward, owner.backward) if in_backward else (op.forward, owner.forward)
        )
        sums.calls += 1
        return _Frame(event.end, op, sums, owner, owner_sums, chain)

    def _marker(self, event: HostEvent, row: Tally, parent: _Frame | None) -> _Frame:
        """A call of a module or phase, or the block itself."""
        if parent is not None and parent.in_backward:
            return self._recomputed(event, row, parent)
        if row is self._outside:
            return _Frame(event.end, row, row.forward, row, row.forward, ())
        row.forward.calls += 1
        chain = parent.chain if parent else ()
        if row not in chain:
            chain = (*chain, row)
            self._forward_chains[row] = chain
        return _Frame(event.end, row, row.forward, row, row.forward, chain)

    def _recomputed(self, event: HostEvent, row: Tally, parent: _Frame) -> _Frame:
        """A call that activation checkpointing makes in the backward."""
        row.recomputed_calls += 1
        chain = self._forward_chains.get(row, (row,))
        if not parent.owner.recomputed_calls:
            for above in chain[:-1]:  # their markers are not open around this call
                above.backward.total_ns -= event.negative_duration
        return _Frame(event.end, row, row.backward, row, row.backward, chain)

    def _named_range(self, event: HostEvent) -> _Frame:
        """A range that torch itself puts around an optimizer step or the fetching of a batch."""
        phase = next(
            phase for start, phase in _NAMED_RANGES.items() if event.name.startswith(start)
        )
        row = self._row(RowKey(None, phase))
        row.forward.calls += 1
        return _Frame(event.end, row, row.forward, row, row.forward, (row,))

    def _backward_node(self, event: HostEvent) -> _Frame:
        """The backward of one autograd node; its creator may stand later in the events."""
        if event.sequence >= 0:
            owner = self._nodes.setdefault((event.forward_thread, event.sequence), Tally())
        elif event.name.endswith(_ACCUMULATE):
            owner = self._row(RowKey(None, GRADIENT_ACCUMULATION))
        else:
            owner = self._outside
        op = owner.op(event.name)
        op.backward.calls += 1
        return _Frame(event.end, op, op.backward, owner, owner.backward, (owner,))

    def _row(self, key: RowKey) -> Tally:
        tally = self.tallies.get(key)
        if tally is None:
            tally = self.tallies[key] = Tally()
        return tally

    # --- device time and memory --------------------------------------------------------------

    def _add_what_else_is_known(self, event: HostEvent, frame: _Frame) -> None:
        if event.launch in self._kernels:
            self._add_device_time(frame, self._kernels[event.launch])
        if self._live:
            self._note_live_bytes(frame, event.start)

    def _add_device_time(self, frame: _Frame, ns: int) -> None:
        frame.owner_sums.self_device_ns += ns
        if frame.is_op:
            frame.sums.self_device_ns += ns
        for row in {*frame.chain, frame.owner}:
            (row.backward if frame.in_backward else row.forward).device_ns += ns
        for sums in {id(open_.sums): open_.sums for open_ in self._stack if open_.is_op}.values():
            sums.device_ns += ns

    def _add_memory(self, event: MemoryEvent) -> None:
        frame = self._stack[-1] if self._stack else None
        owner, chain = (frame.owner, frame.chain) if frame else (self._outside, ())
        ops = {open_.tally for open_ in self._stack if open_.is_op}
        for tally in {owner, frame.tally} if frame else {owner}:
            memory = tally.memory(event.on_device)
            memory.allocated += max(event.nbytes, 0)
            memory.freed += max(-event.nbytes, 0)
        for tally in {*chain, owner} | ops:
            tally.memory(event.on_device).total_net += event.nbytes
        live = self._live.at(event.start, event.on_device)
        if live > self._highest.get(event.on_device, (0, owner))[0]:
            self._highest[event.on_device] = (live, owner)
        for tally in {open_.owner for open_ in self._stack} | ops:
            memory = tally.memory(event.on_device)
            memory.peak = max(memory.peak, live)

    def _note_live_bytes(self, frame: _Frame, now: int) -> None:
        """What is live when a row is entered counts to its peak."""
        for on_device in (False, True):
            live = self._live.at(now, on_device)
            for tally in (frame.tally, frame.owner):
                memory = tally.memory(on_device)
                memory.peak = max(memory.peak, live)

    # --- afterwards --------------------------------------------------------------------------

    def _settle(self) -> None:
        """Give the backward to the rows that created it, and the ops outside to loss or outside."""
        keys = {node: key for key, node in self._nodes.items()}
        self._creator_numbers = _numbers_by_thread(self._creators if keys else ())
        with_backward = set()
        for key, node in self._nodes.items():
            known = self._chain_of(key, keys) or self._waiting.get(key)
            *above, owner = known or self._chain_of_op_before(key, keys) or (self._outside,)
            with_backward.add(owner)
            self._settled[node] = owner
            node.backward.total_ns = node.backward.self_ns  # recomputation is in rows of its own
            owner.add(node)
            for row in above:
                row.backward.total_ns += node.backward.total_ns
                row.backward.device_ns += node.backward.device_ns
                row.host.hold(node.host)
                row.device.hold(node.device)
        for candidate in self._candidates:
            phase = LOSS if candidate in with_backward else OUTSIDE
            self._row(RowKey(None, phase)).add(candidate)
            self._settled[candidate] = self._row(RowKey(None, phase))
        self._settle_peaks()

    def _keep_creators(self) -> None:
        """Keep those whose backward has not run: it may come in a later session.

        A loss over many forwards needs them all, and a GAN those of the generator; a usual
        training loop leaves few. Where no backward comes at all, the oldest are forgotten.
        """
        for key in self._nodes:
            self._waiting.pop(key, None)
        for key, chain in self._creators.items():
            if key not in self._nodes:
                settled = not self._settled.keys().isdisjoint(chain)
                self._waiting[key] = tuple(map(self._final_row, chain)) if settled else chain
        too_many = len(self._waiting) - _MOST_WAITING
        for key in list(islice(self._waiting, max(too_many, 0))):
            del self._waiting[key]

    def _final_row(self, row: Tally) -> Tally:
        """The row that stands for one that was settled: loss, outside, or a creator."""
        while row in self._settled:
            row = self._settled[row]
        return row

    def _settle_peaks(self) -> None:
        """Name the row of each peak that this session raised."""
        key_of = {tally: key for key, tally in self.tallies.items()}
        for on_device, (live, owner) in self._highest.items():
            owner = self._final_row(owner)
            so_far = self.peaks[on_device]
            if owner in key_of and (so_far is None or live > so_far[0]):
                self.peaks[on_device] = (live, key_of[owner])

    def _chain_of(self, key: NodeKey, keys: Mapping[Tally, NodeKey]) -> Chain:
        """The rows that created a node; what a backward created belongs to the first creator.

        Empty if the forward is not in this session.
        """
        seen = set()
        while key not in seen:
            seen.add(key)
            chain = self._creators.get(key, ())
            if not chain or chain[-1] not in keys:
                return chain
            key = keys[chain[-1]]
        return ()

    def _chain_of_op_before(self, key: NodeKey, keys: Mapping[Tally, NodeKey]) -> Chain:
        """The rows of the last op that began before a node was created.

        In-place work on a view creates a node, CopySlices, of whose number no op is.
        """
        thread, number = key
        numbers = self._creator_numbers.get(thread, [])
        index = bisect_left(numbers, number)
        return self._chain_of((thread, numbers[index - 1]), keys) if index else ()


def _numbers_by_thread(keys: Iterable[NodeKey]) -> dict[int, list[int]]:
    """Sequence numbers in order, by thread."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for thread, number in sorted(keys):
        numbers[thread].append(number)
    return numbers


def _ended_by(end: int, host: Sequence[HostEvent]) -> list[HostEvent]:
    """Cut off what ranges of the user have of later steps."""
    return [
        event if event[1] - event[2] <= end else event._replace(negative_duration=event[1] - end)
        for event in host
    ]


def _find_session(host: Sequence[HostEvent]) -> HostEvent:
    for event in host:
        if event.name == SESSION_MARKER:
            return event
    raise RuntimeError(
        "The profile is lost: another torch profiler session was started inside the `with` block, "
        "and torch keeps only one. Profile the inner part on its own."
    )
