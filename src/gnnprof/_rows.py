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
    key = place.key
    # What ran outside holds nothing: the model's rows stand beside it, not under it.
    holds_nothing = key == RowKey(None, OUTSIDE) and op is None
    forward, backward = tally.forward, tally.backward
    host = tally.host if measured.memory else None
    device = tally.device if measured.memory and measured.device else None
    on_device = measured.device
    in_backward = measured.backward
    return ProfileRow(
        path=key.path,
        module=place.module,
        phase=key.phase,
        op=op,
        calls=forward.calls,
        self_cpu_time=forward.self_ns * _SECONDS,
        cpu_time=(forward.self_ns if holds_nothing else forward.total_ns) * _SECONDS,
        self_device_time=forward.self_device_ns * _SECONDS if on_device else None,
        device_time=(
            (forward.self_device_ns if holds_nothing else forward.device_ns) * _SECONDS
            if on_device
            else None
        ),
        self_cpu_memory=host and host.net,
        cpu_memory=host and (host.net if holds_nothing else host.total_net),
        self_device_memory=device and device.net,
        device_memory=device and (device.net if holds_nothing else device.total_net),
        shared_with=place.shared_with,
        self_backward_cpu_time=backward.self_ns * _SECONDS if in_backward else None,
        backward_cpu_time=backward.total_ns * _SECONDS if in_backward else None,
        self_backward_device_time=(
            backward.self_device_ns * _SECONDS if in_backward and on_device else None
        ),
        backward_device_time=backward.device_ns * _SECONDS if in_backward and on_device else None,
        backward_calls=backward.calls if in_backward else None,
        recomputed_calls=tally.recomputed_calls,
        allocated_memory=host and host.allocated,
        freed_memory=host and host.freed,
        peak_memory=host and host.peak,
        allocated_device_memory=device and device.allocated,
        freed_device_memory=device and device.freed,
        peak_device_memory=device and device.peak,
    )
