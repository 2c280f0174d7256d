"""The figures of a row as pages show them: heading, unit, definition; each defined once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from gnnprof._records import ProfileRow
from gnnprof._tables import NOT_MEASURED

Value = float | int | str | None
Read = Callable[[ProfileRow], Value]


class Unit(NamedTuple):
    """A unit and when to use it.

    Attributes:
        least: The largest value, in the base unit, from which on the unit is used.
        name: The unit's name; empty for plain numbers.
        factor: How many base units it is.
        digits: Digits after the point.
    """

    least: float
    name: str
    factor: float
    digits: int

    def text(self, value: float | None) -> str:
        """The number without the unit's name; unknown is `n/a`."""
        return NOT_MEASURED if value is None else f"{value / self.factor:,.{self.digits}f}"


TIME = (Unit(100, "s", 1, 3), Unit(1e-3, "ms", 1e-3, 3), Unit(0, "µs", 1e-6, 1))
BYTES = (
    Unit(2**33, "GiB", 2**30, 2),
    Unit(2**20, "MiB", 2**20, 2),
    Unit(2**10, "KiB", 2**10, 1),
    Unit(0, "B", 1, 0),
)
FLOPS = (Unit(1e12, "GFLOP", 1e9, 0), Unit(1e6, "MFLOP", 1e6, 3), Unit(0, "FLOP", 1, 0))
COUNT = (Unit(0, "", 1, 0),)
INTENSITY = (Unit(0, "FLOP/byte", 1, 3),)
FLOP_RATE = (Unit(0, "GFLOP/s", 1e9, 2),)
BYTE_RATE = (Unit(0, "GB/s", 1e9, 2),)
PERCENT = (Unit(0, "%", 1, 1),)
TEXT = ()


def unit_for(values: Iterable[Value], units: Sequence[Unit]) -> Unit:
    """The unit in which the largest of the values is well read; one unit for a whole column."""
    largest = max((abs(v) for v in values if isinstance(v, int | float)), default=0)
    return next(unit for unit in units if largest >= unit.least)


def with_unit(value: float | None, units: Sequence[Unit]) -> str:
    """A number with its unit; unknown is `n/a`."""
    if value is None:
        return NOT_MEASURED
    unit = unit_for([value], units)
    return f"{unit.text(value)} {unit.name}".rstrip()


@dataclass(frozen=True)
class Figure:
    """One figure of a row.

    Attributes:
        key: Its name.
        heading: What stands above the column, without the unit.
        group: 'time', 'device', 'memory' or 'work': what must have been measured for it.
        units: The units it may be shown in; none for a text.
        read: How to get it from a row, in seconds, bytes, FLOPs or their quotients.
        about: What the number means, in one sentence.
    """

    key: str
    heading: str
    group: str
    units: Sequence[Unit]
    read: Read
    about: str


def _time(key: str, heading: str, about: str) -> Figure:
    return Figure(key, heading, "time", TIME, attrgetter(key), about)


def _device_time(key: str, heading: str, about: str) -> Figure:
    return Figure(key, heading, "device", TIME, attrgetter(key), about)


def _memory(key: str, heading: str, about: str) -> Figure:
    return Figure(key, heading, "memory", BYTES, attrgetter(key), about)


def _work(key: str, heading: str, units: Sequence[Unit], read: Read, about: str) -> Figure:
    return Figure(key, heading, "work", units, read, about)


def forward_seconds(row: ProfileRow) -> float:
    """Seconds to divide forward work by: of the kernels where a device was profiled."""
    return row.cpu_time if row.device_time is None else row.device_time


def intensity(row: ProfileRow) -> float | None:
    """Arithmetic intensity: FLOPs per byte moved (Williams et al., "Roofline", 2009)."""
    if row.flops is None or not row.bytes_moved:
        return None
    return row.flops / row.bytes_moved


def flop_rate(row: ProfileRow) -> float | None:
    """FLOP per second in the forward, nested rows included."""
    return _rate(row.flops, row)


def byte_rate(row: ProfileRow) -> float | None:
    """Bytes per second in the forward, nested rows included."""
    return _rate(row.bytes_moved, row)


def _rate(amount: int | None, row: ProfileRow) -> float | None:
    seconds = forward_seconds(row)
    return amount / seconds if amount is not None and seconds else None


def _recomputed(row: ProfileRow) -> int | None:
    """None rather than 0, so that the column shows only where checkpoints recomputed."""
    return row.recomputed_calls or None


FIGURES = (
    Figure("calls", "Calls", "time", COUNT, attrgetter("calls"), "How often it ran."),
    _time("self_cpu_time", "Self forward", "Host time in the row itself, nested rows left out."),
    _time("cpu_time", "Total forward", "Host time from entry to exit, nested rows included."),
    _time(
        "self_backward_cpu_time",
        "Self backward",
        "Host time of the backward of what the row itself did in the forward.",
    ),
    _time(
        "backward_cpu_time",
        "Total backward",
        "Host time of its backward and of that of the rows nested in it.",
    ),
    _device_time(
        "self_device_time",
        "Self forward, device",
        "Time of the kernels that the row itself launched.",
    ),
    _device_time(
        "device_time",
        "Total forward, device",
        "Time of the kernels that the row and the rows nested in it launched.",
    ),
    _device_time(
        "self_backward_device_time",
        "Self backward, device",
        "Time of the kernels that the row's backward launched.",
    ),
    _device_time(
        "backward_device_time",
        "Total backward, device",
        "Time of the kernels that its backward and that of the rows nested in it launched.",
    ),
    Figure(
        "backward_calls",
        "Backward nodes",
        "time",
        COUNT,
        attrgetter("backward_calls"),
        "Autograd nodes (for an op: ops) that ran for it in the backward.",
    ),
    Figure(
        "recomputed_calls",
        "Recomputed",
        "time",
        COUNT,
        _recomputed,
        "Calls by activation checkpointing; their time is in the backward.",
    ),
    _memory(
        "peak_memory",
        "Peak",
        "Most host bytes in live tensors while it ran, above what was live at the start.",
    ),
    _memory("allocated_memory", "Allocated", "Host bytes that the row itself allocated."),
    _memory("freed_memory", "Freed", "Host bytes freed while the row itself ran."),
    _memory("self_cpu_memory", "Self net", "Host bytes allocated less freed by the row itself."),
    _memory("cpu_memory", "Total net", "Host bytes allocated less freed, nested rows included."),
    _memory(
        "peak_device_memory",
        "Peak, device",
        "Most device bytes in live tensors while it ran, above what was live at the start.",
    ),
    _memory(
        "allocated_device_memory",
        "Allocated, device",
        "Device bytes that the row itself allocated.",
    ),
    _memory("freed_device_memory", "Freed, device", "Device bytes freed while the row itself ran."),
    _memory(
        "self_device_memory",
        "Self net, device",
        "Device bytes allocated less freed by the row itself.",
    ),
    _memory(
        "device_memory",
        "Total net, device",
        "Device bytes allocated less freed, nested rows included.",
    ),
    _work(
        "flops",
        "FLOPs",
        FLOPS,
        attrgetter("flops"),
        "Floating-point operations of the forward, nested rows included; a multiply-add is two.",
    ),
    _work(
        "bytes_moved",
        "Bytes moved",
        BYTES,
        attrgetter("bytes_moved"),
        "Distinct input bytes read and output bytes written by the ops of the forward.",
    ),
    _work("intensity", "Intensity", INTENSITY, intensity, "FLOPs per byte moved."),
    _work("flop_rate", "FLOP rate", FLOP_RATE, flop_rate, "FLOPs over the total forward time."),
    _work("byte_rate", "Bandwidth", BYTE_RATE, byte_rate, "Bytes over the total forward time."),
    _work(
        "percent_of_limit",
        "Of the limit",
        PERCENT,
        attrgetter("percent_of_limit"),
        "How close the forward comes to the limit measured on this machine.",
    ),
    _work("bound", "Bound by", TEXT, attrgetter("bound"), "What holds the row back."),
)
"""Every figure, in the order of the columns."""

ALWAYS = ("calls", "self_cpu_time")
"""The figures that a page shows even of a profile without rows."""


@dataclass(frozen=True)
class Column:
    """A figure in the one unit in which a page shows it for all rows.

    Attributes:
        figure: What it shows.
        unit: The unit; None for a text.
    """

    figure: Figure
    unit: Unit | None

    @property
    def heading(self) -> str:
        """What stands above it, with the unit."""
        named = self.unit and self.unit.name
        return f"{self.figure.heading} [{named}]" if named else self.figure.heading

    def text(self, row: ProfileRow | None) -> str:
        """The figure of a row without the unit; unknown is `n/a`."""
        value = self.figure.read(row) if row else None
        if value is None or isinstance(value, str):
            return value or NOT_MEASURED
        return self.unit.text(value) if self.unit else str(value)


def measured_columns(rows: Sequence[ProfileRow]) -> list[Column]:
    """A column for every figure that at least one row has, and those that every profile has.

    All columns of time share one unit, so that they can be compared at sight.
    """
    time_unit = unit_for((row.cpu_time for row in rows), TIME)
    columns = []
    for figure in FIGURES:
        values = [figure.read(row) for row in rows]
        if figure.key not in ALWAYS and all(value is None for value in values):
            continue
        unit = unit_for(values, figure.units) if figure.units else None
        columns.append(Column(figure, time_unit if figure.units is TIME else unit))
    return columns
