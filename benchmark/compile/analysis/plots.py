"""Plots as inline SVG: colours by class from the page's style, names only as escaped text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmark.compile.analysis.estimates import Estimate
from gnnprof._html import escaped

WIDTH = 1000
MOST_LINES = 150
"""Lines of one plot; a study with more shows them all in the workbook."""

_LINE, _LABELS, _MARGIN, _AXIS = 20, 400, 24, 44
_LABEL_LENGTH = 58


@dataclass(frozen=True)
class Mark:
    """One figure in a plot.

    Attributes:
        estimate: Its value and, where there is one, its interval.
        kind: Class of its colour: 'faster', 'slower', 'undecided', 'first', 'second'.
        about: What a pointer that rests on it is told.
        hollow: Whether only its outline is drawn.
    """

    estimate: Estimate
    kind: str
    about: str
    hollow: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a plot: a name and its marks."""

    name: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis over a range, drawn between two places.

    Attributes:
        low: Lowest value shown.
        high: Highest value shown.
        start: Where `low` is, in the plot's units.
        end: Where `high` is.
    """

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Where a value is drawn; one out of range at the nearer end."""
        inside = min(max(value, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values in the range, a readable number of them."""
        for steps in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 2, 5), (1,)):
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [step * 10.0**decade for decade in decades for step in steps]
            found = [value for value in values if self.low <= value <= self.high]
            if len(found) <= 12:
                return found
        return found[:: math.ceil(len(found) / 12)]


def axis_over(values: Sequence[float], start: float, end: float) -> Axis:
    """An axis with some room around all values."""
    low, high = min(values), max(values)
    # Without room, equal values would have an axis of no length.
    room = max((high / low) ** 0.06, 1.05)
    return Axis(low / room, high * room, start, end)


def line_plot(
    title: str,
    unit: str,
    lines: Sequence[Line],
    *,
    base: float | None = None,
    band: tuple[float, float] | None = None,
) -> str:
    """Draw one line for each name, with its marks and their intervals on a logarithmic axis.

    Args:
        title: What the plot shows, for those who do not see it.
        unit: What the axis is marked with.
        lines: At least one, each with a mark.
        base: A value to compare with, drawn from top to bottom.
        band: A range to shade, such as the noise floor.
    """
    values = [value for line in lines for mark in line.marks for value in _ends(mark.estimate)]
    values += [] if base is None else [base]
    axis = axis_over(values, _LABELS, WIDTH - _MARGIN)
    bottom = len(lines) * _LINE + 8
    parts = [*_band(axis, band, bottom), *_grid(axis, bottom), *_base(axis, base, bottom)]
    for number, line in enumerate(lines):
        middle = number * _LINE + _LINE / 2 + 4
        parts.append(_label(line.name, middle))
        parts.extend(_mark(axis, mark, middle) for mark in line.marks)
    parts.append(_axis_name(unit, (axis.start + axis.end) / 2, bottom + _AXIS - 8))
    return _svg(title, bottom + _AXIS, parts)


def scatter_plot(
    title: str, units: tuple[str, str], points: Sequence[tuple[float, Mark]], base: float
) -> str:
    """Draw marks by a figure along the bottom and their own upwards, both axes logarithmic.

    Args:
        title: What the plot shows, for those who do not see it.
        units: What the axes are marked with, the bottom one first.
        points: At least one.
        base: A value upwards to compare with, drawn from side to side.
    """
    height = 300
    along = axis_over([x for x, _ in points], 90, WIDTH - _MARGIN)
    ends = [value for _, mark in points for value in _ends(mark.estimate)]
    upward = axis_over([*ends, base], height, 12)
    parts = list(_grid(along, height))
    for value in upward.ticks:
        place = upward.place(value)
        parts.append(
            f'<line class="grid" x1="{along.start}" x2="{along.end}" y1="{place:.1f}" '
            f'y2="{place:.1f}"/><text class="quiet" x="{along.start - 6}" y="{place + 4:.1f}" '
            f'text-anchor="end">{value:g}</text>'
        )
    level = upward.place(base)
    parts.append(
        f'<line class="base" x1="{along.start}" x2="{along.end}" y1="{level:.1f}" '
        f'y2="{level:.1f}"/>'
    )
    parts.extend(_point(along.place(x), upward, mark) for x, mark in points)
    parts.append(_axis_name(units[0], (along.start + along.end) / 2, height + _AXIS - 8))
    parts.append(
        f'<text x="18" y="{height / 2}" text-anchor="middle" '
        f'transform="rotate(-90 18 {height / 2})">{escaped(units[1])}</text>'
    )
    return _svg(title, height + _AXIS, parts)


def _ends(estimate: Estimate) -> list[float]:
    return [v for v in (estimate.value, estimate.low, estimate.high) if v is not None]


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escaped(title)}" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="100%">{"".join(parts)}</svg>'
    )


def _grid(axis: Axis, bottom: float) -> Iterator[str]:
    for value in axis.ticks:
        place = axis.place(value)
        yield (
            f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="4" y2="{bottom}"/>'
            f'<text class="quiet" x="{place:.1f}" y="{bottom + 16}" text-anchor="middle">'
            f"{value:,g}</text>"
        )


def _base(axis: Axis, base: float | None, bottom: float) -> Iterator[str]:
    if base is not None:
        place = axis.place(base)
        yield f'<line class="base" x1="{place:.1f}" x2="{place:.1f}" y1="4" y2="{bottom}"/>'


def _band(axis: Axis, band: tuple[float, float] | None, bottom: float) -> Iterator[str]:
    if band is not None:
        low, high = axis.place(band[0]), axis.place(band[1])
        yield (
            f'<rect class="noise" x="{low:.1f}" width="{high - low:.1f}" y="4" '
            f'height="{bottom - 4}"/>'
        )


def _label(name: str, middle: float) -> str:
    shown = name if len(name) <= _LABEL_LENGTH else name[: _LABEL_LENGTH - 1] + "…"
    return (
        f'<text x="{_LABELS - 12}" y="{middle + 4:g}" text-anchor="end">{escaped(shown)}'
        f"<title>{escaped(name)}</title></text>"
    )


def _mark(axis: Axis, mark: Mark, middle: float) -> str:
    estimate = mark.estimate
    whisker = ""
    if estimate.low is not None and estimate.high is not None:
        low, high = axis.place(estimate.low), axis.place(estimate.high)
        whisker = f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle:g}" y2="{middle:g}"/>'
    return _with_dot(mark, whisker, axis.place(estimate.value), middle)


def _point(along: float, upward: Axis, mark: Mark) -> str:
    estimate = mark.estimate
    whisker = ""
    if estimate.low is not None and estimate.high is not None:
        low, high = upward.place(estimate.low), upward.place(estimate.high)
        whisker = f'<line x1="{along:.1f}" x2="{along:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    return _with_dot(mark, whisker, along, upward.place(estimate.value))


def _with_dot(mark: Mark, whisker: str, along: float, upward: float) -> str:
    hollow = " hollow" * mark.hollow
    return (
        f'<g class="mark {mark.kind}{hollow}">{whisker}<circle cx="{along:.1f}" '
        f'cy="{upward:.1f}" r="4.5"/><title>{escaped(mark.about)}</title></g>'
    )


def _axis_name(name: str, along: float, upward: float) -> str:
    return f'<text x="{along:g}" y="{upward:g}" text-anchor="middle">{escaped(name)}</text>'
