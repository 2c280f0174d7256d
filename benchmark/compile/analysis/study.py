"""All rows of one environment, and comparisons over the cases that they have in common."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Generic, NamedTuple, TypeVar

from benchmark.compile.analysis.estimates import Estimate, average, hull, pool, quotient, widened
from benchmark.compile.analysis.records import PHASES, Environment, Record, Skipped
from benchmark.compile.analysis.rows import (
    DYNAMIC,
    MODES,
    VARIANTS,
    Experiment,
    QualityRow,
    Row,
    Setting,
    combine,
    row_order,
)

T = TypeVar("T")
Group = TypeVar("Group", bound=Hashable)


class Main(NamedTuple):
    """The variant and the dynamic setting that figures are of, where nothing else is said."""

    variant: str
    dynamic: str

    def __str__(self) -> str:
        return f"variant {self.variant}, dynamic={self.dynamic}"


@dataclass(frozen=True)
class Study:
    """All that the tables are made from.

    Attributes:
        environment: The machine and the versions, with the records.
        skipped: Files that could not be read.
        notes: What else a reader has to know.
    """

    environment: Environment
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of the environment."""
        return self.environment.records

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """One row for each phase of each case, in the order in which they are shown."""
        groups: dict[tuple[Experiment, str, str, str], list[Record]] = defaultdict(list)
        for record in self.records:
            groups[self._identity(record)].append(record)
        rows = [
            combine(identity, phase, group)
            for identity, group in groups.items()
            for phase in PHASES
        ]
        return tuple(sorted(rows, key=row_order))

    @cached_property
    def qualities(self) -> tuple[QualityRow, ...]:
        """One row for each case and number of epochs."""
        groups: dict[tuple[Experiment, str, str, str, str, int], list[float]] = defaultdict(list)
        for record in self.records:
            if (quality := record.quality) is not None:
                key = (*self._identity(record), quality.metric, quality.epochs)
                groups[key].append(quality.value)
        rows = [QualityRow(*key, tuple(values)) for key, values in groups.items()]
        return tuple(sorted(rows, key=lambda row: (row_order(row), row.epochs)))

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting that something was run in."""
        return tuple(dict.fromkeys(row.experiment.setting for row in self.rows))

    @cached_property
    def eager_times(self) -> Mapping[tuple[Experiment, str, str], Estimate]:
        """Seconds of an eager call by experiment, variant and phase, over all processes.

        Every process of the case counts, whatever mode it compiled, as each times eager as well.
        The interval holds what processes differ by, and `count` says how many there are.
        """
        found: dict[tuple[Experiment, str, str], list[Estimate]] = defaultdict(list)
        for row in self.rows:
            if row.status == "ok" and row.eager_time is not None:
                found[row.experiment, row.variant, row.phase].append(row.eager_time)
        times = {key: hull(estimates) for key, estimates in found.items()}
        return {key: time for key, time in times.items() if time is not None}

    def across_processes(self, row: Row) -> Estimate | None:
        """Seconds of a row, its interval widened by what processes of its case differ by."""
        eager = self.eager_times.get((row.experiment, row.variant, row.phase))
        return widened(row.time, eager) if row.time and eager else None

    @cached_property
    def _data(self) -> Mapping[str, tuple[bool, str | None]]:
        """Whether data is a stand-in, and its task: a case that failed early does not say."""
        found: dict[str, tuple[bool, str | None]] = {}
        for record in self.records:
            name = record.case.dataset
            if record.task is not None or name not in found:
                found[name] = (is_stand_in(record), record.task)
        return found

    def _identity(self, record: Record) -> tuple[Experiment, str, str, str]:
        case = record.case
        stand_in, task = self._data[case.dataset]
        names = [f.name for f in dataclasses.fields(Experiment)]
        values = {name: getattr(case, name) for name in names if name not in ("stand_in", "task")}
        # torch.compile never sees an eager case, so the setting makes no other case of it.
        dynamic = "auto" if case.mode == "eager" else DYNAMIC[case.dynamic]
        experiment = Experiment(**values, stand_in=stand_in, task=task)
        return experiment, case.mode, dynamic, case.variant

    def select(
        self, keep: Callable[[Row], bool] | None = None, **fields: object
    ) -> tuple[Row, ...]:
        """Rows whose fields, or whose experiment's fields, have the values given."""
        return tuple(
            row
            for row in self.rows
            if all(_field(row, name) == value for name, value in fields.items())
            if keep is None or keep(row)
        )

    @cached_property
    def main(self) -> Main:
        """What the questions are about: fixes and dynamic=auto, or the next that was run."""
        compiled = {(row.variant, row.dynamic) for row in self.rows if row.mode != "eager"}
        choices = [Main(*pair) for pair in product(VARIANTS, DYNAMIC.values())]
        return next((main for main in choices if main in compiled), choices[0])

    def headline(self, **fields: object) -> tuple[Row, ...]:
        """The compiled rows of the main variant and dynamic setting."""
        wanted = self.main._asdict() | fields
        return self.select(lambda row: row.mode != "eager", **wanted)

    @cached_property
    def modes(self) -> tuple[str, ...]:
        """The modes of the study, then whatever else was run."""
        found = {row.mode for row in self.rows}
        return MODES + tuple(sorted(found - set(MODES)))


def is_stand_in(record: Record) -> bool:
    """Whether the data is generated; by its name where the data was never loaded."""
    if record.stand_in is None:
        return record.case.dataset.endswith("-like")
    return record.stand_in


def _field(row: Row, name: str) -> object:
    return getattr(row, name) if hasattr(row, name) else getattr(row.experiment, name)


@dataclass(frozen=True)
class Comparison(Generic[T]):
    """Ratios of several things on the set of cases that all of them have.

    Attributes:
        means: Geometric mean by label, each over all of `keys`.
        ratios: The ratios behind, by label and case.
        keys: The common cases.
        rows: The rows behind, by label.
        left_out: Labels that share no case with the others, with the mean over their own cases.
    """

    means: Mapping[str, Estimate]
    ratios: Mapping[str, Mapping[Hashable, Estimate]]
    keys: tuple[Hashable, ...]
    rows: Mapping[str, Sequence[T]]
    left_out: Mapping[str, Estimate]

    def against(self, label: str, base: str) -> Estimate:
        """Geometric mean of one label's ratios over another's, case by case."""
        pairs = [quotient(self.ratios[label][key], self.ratios[base][key]) for key in self.keys]
        return average(pairs)

    @property
    def ranked(self) -> list[str]:
        """The labels, the highest mean first."""
        return sorted(self.means, key=lambda label: (-self.means[label].value, label))


def speedup_of(row: Row) -> Estimate | None:
    """The speedup of a row, if it is one of its mode."""
    return row.speedup if row.usable else None


def compare(
    rows: Iterable[T],
    by: Callable[[T], str],
    key: Callable[[T], Hashable],
    figure: Callable[[T], Estimate | None],
) -> Comparison[T]:
    """Average a ratio of several things over the cases that all of them have.

    Where the things have no case in common, the one with the fewest cases is left out, and the next
    one, until those that stay have.

    Args:
        rows: What to average (rows, pairs of rows); those without the figure are passed over.
        by: The things to compare.
        key: The case; rows that agree in label and key are pooled first.
        figure: The ratio.
    """
    cells: dict[str, dict[Hashable, list[Estimate]]] = defaultdict(lambda: defaultdict(list))
    behind: dict[str, list[T]] = defaultdict(list)
    for row in rows:
        if (ratio := figure(row)) is not None:
            cells[by(row)][key(row)].append(ratio)
            behind[by(row)].append(row)
    kept = {
        label: {key: pool(ratios) for key, ratios in found.items()}
        for label, found in cells.items()
    }
    left_out: dict[str, Estimate] = {}
    while kept and not (common := _common(kept)):
        fewest = min(kept, key=lambda label: (len(kept[label]), label))
        left_out[fewest] = average(list(kept.pop(fewest).values()))
    if not kept:
        return Comparison({}, {}, (), {}, left_out)
    means = {label: average([found[key] for key in common]) for label, found in kept.items()}
    chosen = set(common)
    used = {label: [row for row in behind[label] if key(row) in chosen] for label in kept}
    return Comparison(means, kept, common, used, left_out)


def _common(cells: Mapping[str, Mapping[Hashable, Estimate]]) -> tuple[Hashable, ...]:
    first = next(iter(cells.values()))
    return tuple(key for key in first if all(key in found for found in cells.values()))


def grouped(rows: Iterable[T], key: Callable[[T], Group]) -> dict[Group, list[T]]:
    """Part rows by a key, keeping their order."""
    groups: dict[Group, list[T]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def tally(rows: Iterable[Row]) -> Counter[str]:
    """How many rows are faster, slower, undecided, or have no verdict, and why."""
    return Counter(row.finding for row in rows)
