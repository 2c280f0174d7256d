"""From the sums of a session to the rows of a profile, in the order of the module tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gnnprof._attribution import Attribution, RowKey, Site
from gnnprof._records import OUTSIDE, OUTSIDE_PHASES, ProfileRow
from gnnprof._tallies import Memory, Sums, Tally

_SECONDS = 1e-9


class Measured(NamedTuple):
    """What a session recorded beside host time.

    Attributes:
        device: Kernels of an accelerator.
        memory: Allocations and frees.
        backward: An autograd backward, because one ran.
    """

    device: bool
    memory: bool
    backward: bool


class _Place(NamedTuple):
    """Where a row stands: its key, its module's class, the first name of a shared module."""

    key: RowKey
    module: str | None = None
    shared_with: str | None = None


def rows_of(
    attribution: Attribution,
    layout: Sequence[tuple[str, Site]],
    *,
    with_device: bool,
    with_memory: bool,
) -> tuple[ProfileRow, ...]:
    """Order the sums as the module tree: a module, its ops, its phases and theirs, its children.

    A module that was never called is a row with 0 calls; a phase that a layer never enters is no
    row. The rows outside the model come last.

    Args:
        attribution: Sums per row.
        layout: The marked places in the order of the module tree, once under each name.
        with_device: Whether device time and device memory were recorded.
        with_memory: Whether memory was recorded.
    """
    measured = Measured(with_device, with_memory, attribution.has_backward)
    rows: list[ProfileRow] = []
    for place, tally in _places(attribution, layout):
        rows.append(_row(place, None, tally, measured))
        costliest_first = sorted(
            tally.ops.items(),
            key=lambda op: (-op[1].forward.self_ns - op[1].backward.self_ns, op[0]),
        )
        rows.extend(_row(place, name, sums, measured) for name, sums in costliest_first)
    return tuple(rows)


def _places(
    attribution: Attribution, layout: Sequence[tuple[str, Site]]
) -> Iterator[tuple[_Place, Tally]]:
    tallies = attribution.tallies
    for path, site in layout:
        first = site.paths[0]
        tally = tallies.get(RowKey(first, site.phase))
        if tally is None and site.phase is not None:
            continue
        tally = tally or Tally()
        if path == first:
            yield _Place(RowKey(path, site.phase), site.module), tally
        else:
            place = _Place(RowKey(path, site.phase), site.module, shared_with=first)
            yield place, _under_another_name(tally)
    for phase in OUTSIDE_PHASES:
        key = RowKey(None, phase)
        if key in tallies:
            yield _Place(key), tallies[key]


def _under_another_name(tally: Tally) -> Tally:
    """The calls and totals of a shared module; its own figures stay with its first name."""

    def totals(sums: Sums) -> Sums:
        return Sums(calls=sums.calls, total_ns=sums.total_ns, device_ns=sums.device_ns)

    def net(memory: Memory) -> Memory:
        return Memory(total_net=memory.total_net, peak=memory.peak)

    return Tally(
        forward=totals(tally.forward),
        backward=totals(tally.backward),
        recomputed_calls=tally.recomputed_calls,
        host=net(tally.host),
        device=net(tally.device),
    )


def _row(place: _Place, op: str | None, tally: Tally, measured: Measured) -> ProfileRow:
    # What ran outside holds nothing: the model's rows stand beside it, not under it.
    holds_nothing = place.key == RowKey(None, OUTSIDE) and op is None
    forward = _times(tally.forward, holds_nothing, measured.device)
    backward = _times(tally.backward, False, measured.device) if measured.backward else _UNKNOWN
    host = _bytes(tally.host, holds_nothing) if measured.memory else _UNKNOWN_BYTES
    with_device_memory = measured.memory and measured.device
    device = _bytes(tally.device, holds_nothing) if with_device_memory else _UNKNOWN_BYTES
    return ProfileRow(
        path=place.key.path,
        module=place.module,
        phase=place.key.phase,
        op=op,
        calls=tally.forward.calls,
        self_cpu_time=forward.self_cpu or 0.0,
        cpu_time=forward.cpu or 0.0,
        self_device_time=forward.self_device,
        device_time=forward.device,
        self_cpu_memory=host.net,
        cpu_memory=host.total_net,
        self_device_memory=device.net,
        device_memory=device.total_net,
        shared_with=place.shared_with,
        self_backward_cpu_time=backward.self_cpu,
        backward_cpu_time=backward.cpu,
        self_backward_device_time=backward.self_device,
        backward_device_time=backward.device,
        backward_calls=tally.backward.calls if measured.backward else None,
        recomputed_calls=tally.recomputed_calls,
        allocated_memory=host.allocated,
        freed_memory=host.freed,
        peak_memory=host.peak,
        allocated_device_memory=device.allocated,
        freed_device_memory=device.freed,
        peak_device_memory=device.peak,
    )


class _Times(NamedTuple):
    """Seconds of a row in one direction; None where not measured."""

    self_cpu: float | None
    cpu: float | None
    self_device: float | None
    device: float | None


class _Bytes(NamedTuple):
    """Bytes of a row on one side; None where not measured."""

    net: int | None
    total_net: int | None
    allocated: int | None
    freed: int | None
    peak: int | None


_UNKNOWN = _Times(None, None, None, None)
_UNKNOWN_BYTES = _Bytes(None, None, None, None, None)


def _times(sums: Sums, holds_nothing: bool, with_device: bool) -> _Times:
    total_ns = sums.self_ns if holds_nothing else sums.total_ns
    device_ns = sums.self_device_ns if holds_nothing else sums.device_ns
    return _Times(
        sums.self_ns * _SECONDS,
        total_ns * _SECONDS,
        sums.self_device_ns * _SECONDS if with_device else None,
        device_ns * _SECONDS if with_device else None,
    )


def _bytes(memory: Memory, holds_nothing: bool) -> _Bytes:
    total_net = memory.net if holds_nothing else memory.total_net
    return _Bytes(memory.net, total_net, memory.allocated, memory.freed, memory.peak)
