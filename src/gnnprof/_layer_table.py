"""The layer table: every row in its place in the tree, which of them to list, and the text."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

from gnnprof._records import OUTSIDE, ProfileRow
from gnnprof._tables import COLUMNS, NOT_MEASURED

_SHORTEST_NAME = 24
"""Characters that the names keep before columns are left out to fit a width."""

SORTS = ("self", "total")
"""How the rows below one parent can be ordered: by own time, or by time with nested rows."""


class Line(NamedTuple):
    """A row and its place in the printed tree.

    Attributes:
        row: The record.
        names: Names from the model's class down to this row.
    """

    row: ProfileRow
    names: tuple[str, ...]

    @property
    def label(self) -> str:
        """The path as the reference labels it: `-act--aten::relu`; the model itself by its name.

        What is outside of the model keeps its first name: `-outside--aten::add`.
        """
        names = self.names if self.row.path is None else self.names[1:] or self.names
        return "".join("-" * depth + name for depth, name in enumerate(names, 1))

    def title(self, listed: Container[tuple[str, ...]]) -> str:
        """Name of the row as the table prints it, indented by its depth.

        Args:
            listed: The names of all lines; a module says the names of those above it that are not
                among them, except for the model's.
        """
        row, name = self.row, self.names[-1]
        if row.op is None and row.path is not None and row.phase is not None:
            name = f"[{name}]"
        elif row.op is None and row.path:
            first = len(self.names) - 1
            while first > 1 and self.names[:first] not in listed:
                first -= 1
            name = f"{'.'.join(self.names[first:])} ({row.module})"
        if row.shared_with is not None:
            name += f" = {row.shared_with or self.names[0]}"
        return "  " * (len(self.names) - 1) + name


def self_time(row: ProfileRow) -> float:
    """Seconds of a row's own in forward and backward: what adds up to the whole."""
    return row.self_cpu_time + (row.self_backward_cpu_time or 0.0)


def total_time(row: ProfileRow) -> float:
    """Seconds of a row and all that is nested in it, forward and backward."""
    return row.cpu_time + (row.backward_cpu_time or 0.0)


def lines_of(rows: Sequence[ProfileRow], model: str) -> Iterator[Line]:
    """Place every row in the tree of modules, phases and ops."""
    propagating = {row.path for row in rows if row.phase == "propagate"}
    for row in rows:
        if row.path is None:
            names: tuple[str, ...] = (row.phase or OUTSIDE,)
        else:
            names = (model, *row.path.split(".")) if row.path else (model,)
            if row.phase is not None:
                inner = row.phase in ("message", "aggregate", "message_and_aggregate")
                names += ("propagate",) if inner and row.path in propagating else ()
                names += (row.phase,)
        yield Line(row, names if row.op is None else (*names, row.op))


# --- which lines to list, in which order ------------------------------------------------------


def subtree_times(lines: Sequence[Line]) -> list[float]:
    """Self time, forward and backward, of every line and the module and phase lines below it."""
    at = {line.names: index for index, line in enumerate(lines)}
    times = [0.0] * len(lines)
    for index, (row, names) in enumerate(lines):
        own = self_time(row)
        times[index] += own
        if row.op is None:
            above = (names[:depth] for depth in range(1, len(names)))
            for parent in (at[name] for name in above if name in at):
                times[parent] += own
    return times


def selected(
    lines: Sequence[Line], *, depth: int | None = None, least: float = 0.0, ops: bool = True
) -> list[Line]:
    """The lines to list.

    Args:
        lines: All rows, in tree order.
        depth: Levels below the model to show; all by default.
        least: Seconds that a line must have, with what is below it. A line with a listed line
            below it is thereby listed, too.
        ops: Whether to list ops.
    """
    if depth is None and least <= 0.0 and ops:
        return list(lines)
    deepest = math.inf if depth is None else depth
    return [
        line
        for line, seconds in zip(lines, subtree_times(lines), strict=True)
        if len(line.names) - 1 <= deepest and seconds >= least and (ops or line.row.op is None)
    ]


def costliest_first(lines: Sequence[Line], figure: Callable[[ProfileRow], float]) -> list[Line]:
    """The same lines with siblings in falling order; every line keeps the ones below it.

    Lines whose parent is not listed stay together, in the place of the costliest of them.
    """

    def cost(group: Sequence[Line]) -> float:
        highest = min(len(line.names) for line in group)
        return max(figure(line.row) for line in group if len(line.names) == highest)

    def ordered(part: Sequence[Line], depth: int) -> Iterator[Line]:
        groups = [list(g) for _, g in itertools.groupby(part, key=lambda line: line.names[:depth])]
        for group in sorted(groups, key=cost, reverse=True):
            # More than one if a range of the user's has the name of the module after it.
            is_head = [len(line.names) <= depth for line in group]
            yield from itertools.compress(group, is_head)
            below = [line for line, head in zip(group, is_head, strict=True) if not head]
            yield from ordered(below, depth + 1)

    return list(ordered(lines, 1))


# --- text ------------------------------------------------------------------------------------


def layer_table(
    lines: Sequence[Line],
    measured: frozenset[str],
    whole: float,
    accelerator: str | None,
    width: int | None = None,
) -> str:
    """Draw the table of a layer profile.

    Args:
        lines: Rows in tree order.
        measured: What was measured, as in `Column.needs`: its columns are shown.
        whole: Seconds that 100 % of self CPU time stands for.
        accelerator: Name of the profiled accelerator's backend, for the headings.
        width: Characters that a line may have: first names are shortened, then columns left out.
    """
    columns = [column for column in COLUMNS if column.needs <= measured]
    device = (accelerator or "cuda").upper()
    head = ["Module", "Self CPU %", *(c.heading.replace("CUDA", device) for c in columns)]
    body = [
        [
            title,
            _percent(self_time(line.row), whole),
            *(column.text(column.read(line.row)) for column in columns),
        ]
        for line, title in zip(lines, titles(lines), strict=True)
    ]
    return text_table(head, body, width)


def titles(lines: Sequence[Line]) -> list[str]:
    """The names of rows as a table of these lines prints them."""
    listed = {line.names for line in lines}
    return [line.title(listed) for line in lines]


def terminal_width() -> int | None:
    """Columns of the terminal that is printed to; None if it is none, such as a log file."""
    is_terminal = getattr(sys.stdout, "isatty", None)  # not all that can be written to has it
    if is_terminal is None or getattr(sys.stdout, "closed", False) or not is_terminal():
        return None
    return shutil.get_terminal_size().columns


def text_table(head: Sequence[str], body: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Draw a table: names on the left, figures aligned on the right.

    Args:
        head: The headings.
        body: The cells of every line.
        width: As in `layer_table`.
    """
    # Not tabulate: it looks at every cell several times.
    widths = [max(map(len, cells)) for cells in zip(head, *body, strict=True)]
    if width is not None:
        widths = _fitting(widths, width)
    shown = len(widths)
    name = widths[0]
    # One format for a whole line: a big model has thousands of lines.
    line = " | ".join([f"{{:<{name}}}", *(f"{{:>{figure}}}" for figure in widths[1:])]).format
    rule = "-|-".join("-" * width for width in widths)
    lines = [line(_shortened(row[0], name), *row[1:shown]) for row in (head, *body)]
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def _fitting(widths: Sequence[int], width: int) -> list[int]:
    """The widths of the columns that fit."""
    name, *figures = widths
    while figures and _SHORTEST_NAME + sum(figure + 3 for figure in figures) > width:
        figures.pop()
    room = width - sum(figure + 3 for figure in figures)
    return [min(name, max(_SHORTEST_NAME, room)), *figures]


def _shortened(title: str, width: int) -> str:
    """A title cut in its middle: indentation and the end stay readable."""
    if len(title) <= width:
        return title
    end = (width - 2) // 2
    return f"{title[: width - 2 - end]}..{title[-end:]}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else NOT_MEASURED
