"""Merged profiles to text, to the tables and the summary of a page, and to JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from gnnprof._figures import BYTES, TIME, Unit, unit_for, with_unit
from gnnprof._html import PageSummary, PageTable, Peaks
from gnnprof._layer_table import lines_of, self_time, text_table, titles
from gnnprof._merge import RankedRow, RankProfile, Spread, caveats, merged_facts, name_ranks
from gnnprof._records import ProfileRow
from gnnprof._statistics import median
from gnnprof._tables import NOT_MEASURED

SCHEMA = "gnnprof.ranks/1"
"""Name and version of the JSON that merged profiles are saved as."""

MOST_ROWS = 500
"""Rows in the page's table of the spread: those whose ranks lie farthest apart."""


@dataclass(frozen=True)
class MergedRun:
    """The profiles of one run and what was merged from them.

    Attributes:
        profiles: In the order of their ranks.
        rows: Every row over the ranks, in the order of the model's tree.
        medians: The same rows in the same order, every figure the median over the ranks.
    """

    profiles: Sequence[RankProfile]
    rows: Sequence[RankedRow]
    medians: Sequence[ProfileRow]

    @property
    def model(self) -> str:
        """Class name of the model."""
        return self.profiles[0].model

    @property
    def title(self) -> str:
        """The model and the ranks."""
        ranks = [profile.rank for profile in self.profiles]
        return f"{self.model}, {name_ranks(ranks)} of {self.profiles[0].world_size}"


# --- columns, defined once -------------------------------------------------------------------


@dataclass(frozen=True)
class _SpreadFigure:
    """A figure of a merged row, shown as `min / median / max`."""

    heading: str
    units: Sequence[Unit]
    read: Callable[[RankedRow], Spread | None]


_SPREADS = (
    _SpreadFigure("Self forward", TIME, attrgetter("self_cpu_time")),
    _SpreadFigure("Self backward", TIME, attrgetter("self_backward_cpu_time")),
    _SpreadFigure("Total forward", TIME, attrgetter("cpu_time")),
    _SpreadFigure("Total backward", TIME, attrgetter("backward_cpu_time")),
    _SpreadFigure("Self forward, device", TIME, attrgetter("self_device_time")),
    _SpreadFigure("Self backward, device", TIME, attrgetter("self_backward_device_time")),
    _SpreadFigure("Total forward, device", TIME, attrgetter("device_time")),
    _SpreadFigure("Total backward, device", TIME, attrgetter("backward_device_time")),
    _SpreadFigure("Peak", BYTES, attrgetter("peak_memory")),
    _SpreadFigure("Peak, device", BYTES, attrgetter("peak_device_memory")),
)
_OWN: tuple[tuple[str, Callable[[RankedRow], Spread | None]], ...] = (
    ("", attrgetter("own_time")),
    (", device", attrgetter("own_device_time")),
)
"""What ranks are compared by: the row's own time in forward and backward, on each clock."""


@dataclass(frozen=True)
class _Column:
    heading: str
    read: Callable[[RankedRow], Spread | None]
    form: Callable[[Spread], str]

    def text(self, row: RankedRow) -> str:
        spread = self.read(row)
        return NOT_MEASURED if spread is None else self.form(spread)


def _columns(rows: Sequence[RankedRow]) -> list[_Column]:
    """The columns for what was measured, the verdict first."""
    calls = _Column("Calls", attrgetter("calls"), _calls)
    return [*_comparisons(rows), calls, *_spread_columns(rows)]


def _comparisons(rows: Sequence[RankedRow]) -> Iterator[_Column]:
    for clock, read in _OWN:
        if any(read(row) for row in rows):
            yield _Column(f"Slowest rank{clock}", read, _slowest)
            yield _Column(f"Max/median{clock}", read, _imbalance)


def _spread_columns(rows: Sequence[RankedRow]) -> Iterator[_Column]:
    time_unit = unit_for((row.cpu_time.max for row in rows), TIME)
    for figure in _SPREADS:
        highest = [spread.max for spread in map(figure.read, rows) if spread]
        if highest:
            unit = time_unit if figure.units is TIME else unit_for(highest, figure.units)
            heading = f"{figure.heading} [{unit.name}]"
            yield _Column(heading, figure.read, partial(_spread, unit.text))


def _slowest(spread: Spread) -> str:
    return "-" if spread.highest is None else str(spread.highest)


def _imbalance(spread: Spread) -> str:
    return NOT_MEASURED if spread.imbalance is None else f"{spread.imbalance:.2f}"


def _calls(spread: Spread) -> str:
    return _spread(lambda calls: f"{calls:,.1f}".removesuffix(".0"), spread)


def _spread(form: Callable[[float], str], spread: Spread) -> str:
    """Minimum, median and maximum; once where all ranks agree."""
    values = (spread.min, spread.median, spread.max)
    return " / ".join(map(form, values if spread.max > spread.min else values[:1]))


# --- text ------------------------------------------------------------------------------------


def merged_text(run: MergedRun, *, ops: bool, width: int | None = None) -> str:
    """Draw the ranks, and below them the rows in the order of the model's tree.

    Args:
        run: The merged profiles.
        ops: Whether to list the ops under modules and phases.
        width: Characters that a line of the rows may have.
    """
    listed = [
        (line, row)
        for line, row in zip(lines_of(run.medians, run.model), run.rows, strict=True)
        if ops or row.op is None
    ]
    columns = _columns([row for _, row in listed])
    head = ["Module", *(column.heading for column in columns)]
    names = titles([line for line, _ in listed])
    body = [
        [name, *(column.text(row) for column in columns)]
        for name, (_, row) in zip(names, listed, strict=True)
    ]
    ranks = ranks_table(run.profiles)
    return (
        f"{run.title}\n\n{text_table(ranks.headings, ranks.rows)}\n"
        f"Minimum / median / maximum over the ranks:\n\n{text_table(head, body, width)}"
        + "".join(f"{note}\n" for note in notes_on(run))
    )


def notes_on(run: MergedRun) -> Iterator[str]:
    """Yield what stands below the rows: where the ranks differ most, and what else to know."""
    inside = [row for row in run.rows if row.op is None and row.path is not None]
    if inside:
        row = max(inside, key=lambda row: row.own_time.excess)
        if row.own_time.highest is not None:
            yield (
                f"Farthest apart in the model: {_name(row, run.model)}, "
                f"{with_unit(row.own_time.max, TIME)} on rank {row.own_time.highest}, "
                f"{with_unit(row.own_time.median, TIME)} in the median"
            )
    partly = sum(len(row.ranks) < len(run.profiles) for row in run.rows)
    if partly:
        yield f"{partly:,} rows are not on all ranks; where one never ran it counts as 0"
    yield from caveats(run.profiles)


def _name(row: RankedRow, model: str) -> str:
    path = model if row.path == "" else row.path
    return " / ".join(part for part in (path, row.phase, row.op) if part)


# --- the page --------------------------------------------------------------------------------


def ranks_table(profiles: Sequence[RankProfile]) -> PageTable:
    """What every rank spent its time on, one line each."""
    unit = unit_for((profile.summary["total_time"] for profile in profiles), TIME)
    times = ("Total", "Forward", "Backward", "Outside the model")
    headings = ("Rank", "File", "Steps", *(f"{time} [{unit.name}]" for time in times), "In rows")
    return PageTable(
        "Ranks",
        "Host time of every process. A rank that waits for a slower one does so outside the model "
        "or in its gradient accumulation.",
        (*headings, "Peak memory"),
        [
            (
                str(profile.rank),
                profile.file,
                f"{profile.summary['steps']:,}",
                *(unit.text(seconds) for seconds in _shares(profile)),
                f"{profile.summary['coverage']:.2%}",
                with_unit(profile.summary["peaks"].get("memory"), BYTES),
            )
            for profile in profiles
        ],
    )


def _shares(profile: RankProfile) -> tuple[float, float, float | None, float]:
    """Seconds in all, in the model's forward, in all backward passes, and in the rest."""
    owners = [row for row in profile.rows if row.op is None]
    backward = [row.self_backward_cpu_time for row in owners]
    known = [seconds for seconds in backward if seconds is not None]
    return (
        profile.summary["total_time"],
        sum(row.self_cpu_time for row in owners if row.path is not None),
        sum(known) if known else None,
        sum(row.self_cpu_time for row in owners if row.path is None),
    )


def spread_table(run: MergedRun, *, ops: bool) -> PageTable:
    """The rows over the ranks; those come first that cost most by being uneven."""
    listed = [row for row in run.rows if ops or row.op is None]
    listed.sort(key=lambda row: -row.own_time.excess)
    shown = listed[:MOST_ROWS]
    columns = _columns(shown)
    about = (
        "Minimum / median / maximum over the ranks. The slowest rank is the one with the most time "
        "of its own in the row, forward and backward together; max/median compares it with the "
        "middle one. First come the rows in which this makes the largest difference."
    )
    if len(listed) > MOST_ROWS:
        about += f" The {len(listed) - MOST_ROWS:,} rows with the smallest one are left out."
    return PageTable(
        "Spread over the ranks",
        about,
        ("Row", *(column.heading for column in columns)),
        [(_name(row, run.model), *(column.text(row) for column in columns)) for row in shown],
    )


def merged_summary(run: MergedRun, *, ops: bool) -> PageSummary:
    """What holds for the page of the medians.

    Args:
        run: The merged profiles.
        ops: Whether the table of the spread has the ops.
    """
    summaries = {profile.rank: profile.summary for profile in run.profiles}
    total = median([summary["total_time"] for summary in summaries.values()])
    found = sum(self_time(row) for row in run.medians if row.op is None)

    def merged(part: str) -> Any:
        return merged_facts({rank: summary[part] for rank, summary in summaries.items()})

    return PageSummary(
        model=run.model,
        title=run.title,
        total_time=total,
        coverage=found / total if total else 1.0,
        environment=merged("environment"),
        overhead=merged("overhead"),
        limits=merged("limits"),
        peaks=_highest_peaks(run.profiles),
        notes=[
            "Every figure of the tree and the rows is the median over the ranks, so that the "
            "parts need not add up exactly to the whole.",
            *notes_on(run),
        ],
        tables=[ranks_table(run.profiles), spread_table(run, ops=ops)],
    )


def _highest_peaks(profiles: Sequence[RankProfile]) -> Peaks:
    """The peaks of the rank that has the highest ones."""
    peaks = Peaks()
    for profile in profiles:
        own = profile.summary["peaks"]
        if _exceeds(own.get("memory"), peaks.get("memory")):
            peaks["memory"] = own["memory"]
            peaks["memory_row"] = f"{own.get('memory_row')} on rank {profile.rank}"
        if _exceeds(own.get("device_memory"), peaks.get("device_memory")):
            peaks["device_memory"] = own["device_memory"]
            peaks["device_memory_row"] = f"{own.get('device_memory_row')} on rank {profile.rank}"
    return peaks


def _exceeds(nbytes: int | None, so_far: int | None) -> bool:
    return nbytes is not None and (so_far is None or nbytes > so_far)


# --- JSON ------------------------------------------------------------------------------------


def merged_json(run: MergedRun) -> str:
    """Return the ranks' own summaries, what to know about them, and the merged rows."""
    content = {
        "schema": SCHEMA,
        "model": run.model,
        "world_size": run.profiles[0].world_size,
        "ranks": [{"file": profile.file, **profile.summary} for profile in run.profiles],
        "notes": list(notes_on(run)),
        "rows": [row.to_dict() for row in run.rows],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
