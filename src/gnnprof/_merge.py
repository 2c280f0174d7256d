"""Profiles of the ranks of one run, merged row by row: how far the ranks lie apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any

from gnnprof._layer_table import self_time
from gnnprof._records import ProfileRow
from gnnprof._statistics import median

RowKey = tuple[str | None, str | None, str | None]
"""Path, phase and op: what a row is about, on every rank."""

Read = Callable[[ProfileRow], float | None]

_Measuring = Mapping[str, "Sequence[RankProfile]"]
"""Name of a figure to the profiles that measured it."""


class DifferentRunsError(ValueError):
    """The profiles are not of the processes of one run."""


@dataclass(frozen=True)
class RankProfile:
    """What one process of a run wrote.

    Attributes:
        file: Name of the file that it was read from.
        rank: Rank of the process.
        world_size: Number of processes in the run.
        model: Class name of the model.
        summary: What holds for the whole profile, as in the file.
        rows: The rows in the order of the model's tree.
    """

    file: str
    rank: int
    world_size: int
    model: str
    summary: Mapping[str, Any]
    rows: tuple[ProfileRow, ...]

    @cached_property
    def by_key(self) -> dict[RowKey, ProfileRow]:
        """The rows by what they are about."""
        return {key_of(row): row for row in self.rows}

    @cached_property
    def measured(self) -> frozenset[str]:
        """Names of the figures that at least one row has."""
        return frozenset(
            name for name, read in _READS.items() if any(read(row) is not None for row in self.rows)
        )

    def figure(self, name: str, key: RowKey) -> float | None:
        """A figure of one row; None where it was not measured.

        A row that a profile lacks never ran on that rank. That is known, not unknown: it took 0
        seconds in 0 calls, and so the self times of all rows still add up on every rank.
        """
        if name not in self.measured:
            return None
        row = self.by_key.get(key)
        if row is not None:
            return _READS[name](row)
        return None if name in _NOTHING_IF_NOT_RUN else 0


@dataclass(frozen=True)
class Spread:
    """One figure of one row over the ranks that measured it.

    Attributes:
        min: The lowest.
        median: The middle one; with an even number of ranks the mean of the two middle ones.
        max: The highest.
        highest: Rank with the highest, the first of them if several share it; None if the figure
            is the same on all ranks.
    """

    min: float
    median: float
    max: float
    highest: int | None

    @property
    def imbalance(self) -> float | None:
        """`max / median`: 1 is balanced, 2 says that one rank has twice what the middle one has.

        None where the median is 0.
        """
        return self.max / self.median if self.median else None

    @property
    def excess(self) -> float:
        """`max - median`: what would be saved if the highest rank were like the middle one."""
        return self.max - self.median


@dataclass(frozen=True)
class RankedRow:
    """A row of a layer profile over all ranks. Times are in seconds, memory is in bytes.

    A figure is None if no rank measured it. Ranks on which the row never ran count with 0 seconds
    and 0 calls, and not at all in the peaks.

    Attributes:
        path: As in `ProfileRow`.
        module: As in `ProfileRow`.
        phase: As in `ProfileRow`.
        op: As in `ProfileRow`.
        ranks: The ranks that have this row.
        calls: Calls in the forward.
        own_time: Host time of the row itself, forward and backward together.
        self_cpu_time: As in `ProfileRow`, like the others below.
        cpu_time: Forward, nested rows included.
        self_backward_cpu_time: Backward of the row itself.
        backward_cpu_time: Backward, nested rows included.
        own_device_time: Kernels of the row itself, forward and backward together.
        self_device_time: Kernels of the forward of the row itself.
        device_time: Kernels of the forward, nested rows included.
        self_backward_device_time: Kernels of the backward of the row itself.
        backward_device_time: Kernels of the backward, nested rows included.
        peak_memory: Highest host bytes in live tensors while it ran.
        peak_device_memory: Highest device bytes in live tensors while it ran.
    """

    path: str | None
    module: str | None
    phase: str | None
    op: str | None
    ranks: tuple[int, ...]
    calls: Spread
    own_time: Spread
    self_cpu_time: Spread
    cpu_time: Spread
    self_backward_cpu_time: Spread | None = None
    backward_cpu_time: Spread | None = None
    own_device_time: Spread | None = None
    self_device_time: Spread | None = None
    device_time: Spread | None = None
    self_backward_device_time: Spread | None = None
    backward_device_time: Spread | None = None
    peak_memory: Spread | None = None
    peak_device_memory: Spread | None = None

    @property
    def slowest_rank(self) -> int | None:
        """The rank with the most host time of its own in this row, forward and backward."""
        return self.own_time.highest

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON, with the slowest rank and how far it is off."""
        entry = asdict(self)
        return {**entry, "slowest_rank": self.slowest_rank, "imbalance": self.own_time.imbalance}


# --- what is merged --------------------------------------------------------------------------


def _own_device_time(row: ProfileRow) -> float | None:
    if row.self_device_time is None:
        return None
    return row.self_device_time + (row.self_backward_device_time or 0.0)


_TEXTS = ("path", "module", "phase", "op", "shared_with", "bound")
_NUMBERS = tuple(field.name for field in fields(ProfileRow) if field.name not in _TEXTS)
_COUNTS = frozenset(field.name for field in fields(ProfileRow) if str(field.type)[:3] == "int")
_OWN: dict[str, Read] = {"own_time": self_time, "own_device_time": _own_device_time}
_READS: dict[str, Read] = {**{name: attrgetter(name) for name in _NUMBERS}, **_OWN}
_NOTHING_IF_NOT_RUN = frozenset({"peak_memory", "peak_device_memory", "percent_of_limit"})
"""Figures of what was so while a row ran: there are none where it never ran."""


def key_of(row: ProfileRow | RankedRow) -> RowKey:
    """What the row is about."""
    return row.path, row.phase, row.op


def spread_of(figures: Mapping[int, float]) -> Spread:
    """Say how far apart a figure lies.

    Args:
        figures: Rank to figure; at least one.
    """
    values = list(figures.values())
    low, high = min(values), max(values)
    highest = min(rank for rank, value in figures.items() if value == high)
    return Spread(low, median(values), high, highest if high > low else None)


def merge_rows(profiles: Sequence[RankProfile]) -> tuple[RankedRow, ...]:
    """Merge the rows of all ranks, in the order of the model's tree.

    Args:
        profiles: At least one, of distinct ranks.
    """
    measuring = _measuring(profiles)
    return tuple(_ranked_row(key, profiles, measuring) for key in keys_in_tree_order(profiles))


def _ranked_row(key: RowKey, profiles: Sequence[RankProfile], measuring: _Measuring) -> RankedRow:
    def known(name: str) -> Spread:
        return spread_of(_figures(name, key, measuring))

    def spread(name: str) -> Spread | None:
        figures = _figures(name, key, measuring)
        return spread_of(figures) if figures else None

    path, phase, op = key
    return RankedRow(
        path,
        _first(key, profiles).module,
        phase,
        op,
        tuple(profile.rank for profile in profiles if key in profile.by_key),
        calls=known("calls"),
        own_time=known("own_time"),
        self_cpu_time=known("self_cpu_time"),
        cpu_time=known("cpu_time"),
        self_backward_cpu_time=spread("self_backward_cpu_time"),
        backward_cpu_time=spread("backward_cpu_time"),
        own_device_time=spread("own_device_time"),
        self_device_time=spread("self_device_time"),
        device_time=spread("device_time"),
        self_backward_device_time=spread("self_backward_device_time"),
        backward_device_time=spread("backward_device_time"),
        peak_memory=spread("peak_memory"),
        peak_device_memory=spread("peak_device_memory"),
    )


def median_rows(profiles: Sequence[RankProfile]) -> tuple[ProfileRow, ...]:
    """Return the rows of a rank that does not exist: every figure is the median over the ranks.

    Counts and bytes are rounded. With one or two ranks the self times add up to the median of the
    totals; with more they do so only about, because each row has its own middle rank.

    Args:
        profiles: At least one, of distinct ranks.
    """
    measuring = _measuring(profiles)
    return tuple(_median_row(key, profiles, measuring) for key in keys_in_tree_order(profiles))


def _median_row(key: RowKey, profiles: Sequence[RankProfile], measuring: _Measuring) -> ProfileRow:
    first = _first(key, profiles)
    entry: dict[str, Any] = {name: getattr(first, name) for name in _TEXTS}
    for name in _NUMBERS:
        figures = _figures(name, key, measuring).values()
        middle = median(list(figures)) if figures else None
        entry[name] = round(middle) if middle is not None and name in _COUNTS else middle
    bounds = {profile.by_key[key].bound for profile in profiles if key in profile.by_key}
    entry["bound"] = bounds.pop() if len(bounds) == 1 else None
    return ProfileRow(**entry)


def _measuring(profiles: Sequence[RankProfile]) -> _Measuring:
    """Who measured what; asked once, because big models have many rows and figures."""
    return {name: [p for p in profiles if name in p.measured] for name in _READS}


def _figures(name: str, key: RowKey, measuring: _Measuring) -> dict[int, float]:
    """Rank to figure of one row."""
    figures = ((profile.rank, profile.figure(name, key)) for profile in measuring[name])
    return {rank: figure for rank, figure in figures if figure is not None}


def _first(key: RowKey, profiles: Iterable[RankProfile]) -> ProfileRow:
    return next(profile.by_key[key] for profile in profiles if key in profile.by_key)


def keys_in_tree_order(profiles: Iterable[RankProfile]) -> list[RowKey]:
    """Return what the rows of all ranks are about; a row that only some have keeps its place."""
    # A linked list: None comes before the first key and after the last one.
    following: dict[RowKey | None, RowKey | None] = {None: None}
    for profile in profiles:
        before: RowKey | None = None
        for key in profile.by_key:
            if key not in following:
                following[key], following[before] = following[before], key
            before = key
    keys = []
    at = following[None]
    while at is not None:
        keys.append(at)
        at = following[at]
    return keys


# --- what holds for the whole run ------------------------------------------------------------


def check_together(profiles: Sequence[RankProfile]) -> None:
    """Refuse to merge what does not belong together.

    Raises:
        DifferentRunsError: If models or numbers of processes differ, or a rank comes twice.
    """
    first = profiles[0]
    for profile in profiles[1:]:
        for what in ("model", "world_size"):
            value, other = getattr(first, what), getattr(profile, what)
            if value != other:
                raise DifferentRunsError(
                    f"{what} is {value!r} in {first.file} and {other!r} in {profile.file}; "
                    "put the files of each run into a folder of its own"
                )
    files: dict[int, str] = {}
    for profile in profiles:
        earlier = files.setdefault(profile.rank, profile.file)
        if earlier != profile.file:
            raise DifferentRunsError(
                f"both {earlier} and {profile.file} are of rank {profile.rank}; "
                "put the files of each run into a folder of its own"
            )


def caveats(profiles: Sequence[RankProfile]) -> Iterator[str]:
    """Say what a reader has to know about these ranks: who is missing, what differs.

    Args:
        profiles: Of one run, in the order of their ranks.
    """
    size = profiles[0].world_size
    missing = sorted(set(range(size)) - {profile.rank for profile in profiles})
    if missing:
        yield f"No profile of {name_ranks(missing)} of {size}"
    names = dict.fromkeys(name for profile in profiles for name in profile.summary["environment"])
    for name in names:
        yield from _difference(name, {p.rank: p.summary["environment"].get(name) for p in profiles})
    yield from _difference("number of steps", {p.rank: p.summary["steps"] for p in profiles})
    for profile in profiles:
        yield from (f"Rank {profile.rank}: {note}" for note in profile.summary["notes"])


def _difference(what: str, values: Mapping[int, object]) -> Iterator[str]:
    if len(set(values.values())) > 1:
        yield f"The ranks differ in {what}: {_each_with_its_ranks(values)}"


def merged_facts(facts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge what every rank tells under the same names.

    Args:
        facts: Rank to names and values.

    Returns:
        By name the median of numbers, and otherwise the one value that all share, or each value
        with its ranks.
    """
    names = dict.fromkeys(name for own in facts.values() for name in own)
    return {
        name: _merged_fact({rank: own[name] for rank, own in facts.items() if name in own})
        for name in names
    }


def _merged_fact(values: Mapping[int, Any]) -> Any:
    known = [value for value in values.values() if value is not None]
    if known and all(isinstance(value, int | float) for value in known):
        return median(known)
    distinct = set(values.values())
    return distinct.pop() if len(distinct) == 1 else _each_with_its_ranks(values)


def _each_with_its_ranks(values: Mapping[int, object]) -> str:
    ranks: dict[object, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {name_ranks(holders)}" for value, holders in ranks.items())


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in ascending order: `rank 3`, `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(names)}"
