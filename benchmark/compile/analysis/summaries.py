"""What many rows have in common: counts, means over common cases, pairs of frameworks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from benchmark.compile.analysis.estimates import Estimate, quotient
from benchmark.compile.analysis.rows import Experiment, Row, Setting
from benchmark.compile.analysis.study import Main, Study, compare, grouped, speedup_of
from benchmark.compile.analysis.tables import (
    EXPERIMENT,
    MS,
    NOTHING,
    SETTING,
    VARIANT,
    Reader,
    Table,
    mean_readers,
    table_of,
)
from gnnprof._statistics import median

# --- by mode, by model -----------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """What the rows of one name in one setting have in common.

    Attributes:
        name: What they share besides the setting: a mode, a model.
        rows: All of them.
        mean: Geometric mean of a ratio; None if no row has it.
        common: Cases that the mean is over.
    """

    setting: Setting
    framework: str
    phase: str
    name: str
    rows: tuple[Row, ...]
    mean: Estimate | None
    common: int

    def count(self, word: str) -> int:
        """Rows whose finding starts with a word."""
        return sum(row.finding.startswith(word) for row in self.rows)

    @property
    def failed(self) -> int:
        """Rows that were run and have no figures."""
        return sum(row.status not in ("ok", NOTHING) for row in self.rows)

    def middle(self, name: str) -> float | None:
        """Median of a figure over the usable rows that have it."""
        values = [getattr(row, name) for row in self.rows if row.usable]
        known = [value for value in values if value is not None]
        return float(median(known)) if known else None


def summaries(
    rows: Iterable[Row],
    name: Callable[[Row], str],
    key: Callable[[Row], Hashable],
    figure: Callable[[Row], Estimate | None] = speedup_of,
) -> Iterator[Summary]:
    """Summarise rows by setting, framework, phase and name.

    The means of one setting, framework and phase are over the cases that all its names have; a name
    that has none of them is averaged over its own.
    """
    groups = grouped(rows, lambda row: (row.experiment.setting, row.library, row.phase))
    for (setting, framework, phase), group in groups.items():
        found = compare(group, name, key, figure)
        for label, own in grouped(group, name).items():
            mean, common = found.means.get(label), len(found.keys)
            if mean is None:
                mean = found.left_out.get(label)
                common = mean.count if mean else 0
            yield Summary(setting, framework, phase, label, tuple(own), mean, common)


_WHO = (
    Reader("Framework", None, lambda s: s.framework),
    Reader("Phase", None, lambda s: s.phase),
    *(reader.of(lambda s: s.setting) for reader in SETTING),
)
_COMMON = Reader("Common cases", None, lambda s: s.common)


def summary_table(title: str, heading: str, found: Iterable[Summary]) -> Table:
    """Speedups, verdicts and costs by what `heading` says."""
    return table_of(
        title,
        found,
        (
            Reader(heading, None, lambda s: s.name),
            *_WHO,
            Reader("Cases", None, lambda s: len(s.rows)),
            Reader("Faster", None, lambda s: s.count("faster")),
            Reader("Slower", None, lambda s: s.count("slower")),
            Reader("Undecided", None, lambda s: s.count("undecided")),
            Reader("Not exercised", None, lambda s: s.count("not exercised")),
            Reader("Failed", None, lambda s: s.failed),
            Reader("Not measured", None, lambda s: s.count(NOTHING)),
            *mean_readers("Mean speedup", lambda s: s.mean),
            _COMMON,
            Reader("Cold compile, median [s]", 2, lambda s: s.middle("compile_cold")),
            Reader("Break-even, median where it pays [calls]", 0, lambda s: s.middle("break_even")),
            Reader("Graph breaks, median", 1, lambda s: s.middle("graph_breaks")),
            Reader("Recompiles, median", 1, lambda s: s.middle("recompiles")),
        ),
    )


def memory_table(title: str, heading: str, found: Iterable[Summary]) -> Table:
    """Peaks by what `heading` says; only rows with both peaks count."""
    return table_of(
        title,
        found,
        (
            Reader(heading, None, lambda s: s.name),
            *_WHO,
            Reader("Cases", None, lambda s: len(s.rows)),
            Reader("Cases with both peaks", None, lambda s: sum(map(_has_memory, s.rows))),
            *mean_readers("Mean of compiled / eager peak", lambda s: s.mean, less_is_better=True),
            _COMMON,
        ),
    )


def _has_memory(row: Row) -> bool:
    return row.memory is not None


# --- frameworks against each other -----------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """The same case in both frameworks.

    Attributes:
        experiment: The case, without framework.
        label: What ran: a mode.
        pyg: Seconds of a call in PyG.
        dgl: Seconds of a call in DGL.
    """

    experiment: Experiment
    variant: str
    dynamic: str
    phase: str
    label: str
    pyg: Estimate
    dgl: Estimate

    @property
    def ratio(self) -> Estimate:
        """PyG's time over DGL's: above 1 DGL is faster."""
        return unpaired(self.pyg, self.dgl)


def unpaired(above: Estimate, below: Estimate) -> Estimate:
    """Ratio of times of different processes; undecided where one is from a single process.

    What processes differ by, which is more than the rounds of one of them show, is then unknown.
    """
    ratio = quotient(above, below)
    return dataclasses.replace(ratio, verdict="undecided") if ratio.count < 2 else ratio


def eager_pairs(study: Study) -> Iterator[Pair]:
    """Eager against eager."""
    for (experiment, variant, phase), time in study.eager_times.items():
        other = study.eager_times.get((experiment.but(framework="dgl"), variant, phase))
        if experiment.framework == "pyg" and other:
            yield Pair(experiment, variant, "auto", phase, "eager", time, other)


def mode_pairs(study: Study) -> Iterator[Pair]:
    """Every mode against the same mode, eager included."""
    yield from eager_pairs(study)
    found = {_case_and_mode(row): row for row in _compiled(study, "dgl")}
    for row in _compiled(study, "pyg"):
        other = found.get(_case_and_mode(row))
        pyg, dgl = study.across_processes(row), study.across_processes(other) if other else None
        if other and pyg and dgl:
            label = row.name if row.name == other.name else f"{row.name} / {other.name}"
            yield _pair(row, label, pyg, dgl)


def crossed_pairs(study: Study) -> Iterator[Pair]:
    """PyG compiled, with every mode, against DGL eager."""
    for row in _compiled(study, "pyg"):
        key = (row.experiment.but(framework="dgl"), row.variant, row.phase)
        pyg, dgl = study.across_processes(row), study.eager_times.get(key)
        if pyg and dgl:
            yield _pair(row, row.name, pyg, dgl)


def _pair(row: Row, label: str, pyg: Estimate, dgl: Estimate) -> Pair:
    return Pair(row.experiment, row.variant, row.dynamic, row.phase, label, pyg, dgl)


def _compiled(study: Study, framework: str) -> tuple[Row, ...]:
    return study.select(lambda row: row.usable and row.mode != "eager", framework=framework)


def _case_and_mode(row: Row) -> Hashable:
    return (row.experiment.but(framework=""), row.variant, row.phase, row.mode, row.dynamic)


def pair_tables(found: list[Pair], main: Main, pyg: str, dgl: str) -> Iterator[Table]:
    """Means by mode, then every pair."""
    both = f"{pyg} and {dgl}"
    yield table_of(
        f"{both}: means of {main}",
        _pair_means(found, main),
        (
            Reader("Mode", None, lambda s: s.name),
            *_WHO[1:],
            *mean_readers("Mean of PyG / DGL time", lambda s: s.mean),
            _COMMON,
        ),
    )
    yield table_of(
        f"{both}: every case",
        found,
        (
            *EXPERIMENT[1:],
            *VARIANT,
            Reader("Mode", None, lambda pair: pair.label),
            Reader(f"{pyg} [ms]", 3, lambda pair: pair.pyg.value * MS),
            Reader(f"{dgl} [ms]", 3, lambda pair: pair.dgl.value * MS),
            *mean_readers("PyG / DGL time", lambda pair: pair.ratio),
            Reader("PyG processes", None, lambda pair: pair.pyg.count),
            Reader("DGL processes", None, lambda pair: pair.dgl.count),
        ),
    )


def _pair_means(pairs: Iterable[Pair], main: Main) -> Iterator[Summary]:
    chosen = [
        pair
        for pair in pairs
        if pair.variant == main.variant and (pair.label == "eager" or pair.dynamic == main.dynamic)
    ]
    groups = grouped(chosen, lambda pair: (pair.experiment.setting, pair.phase))
    for (setting, phase), group in groups.items():
        found = compare(
            group, lambda pair: pair.label, lambda pair: pair.experiment, lambda pair: pair.ratio
        )
        for name in found.ranked:
            yield Summary(setting, "", phase, name, (), found.means[name], len(found.keys))
        for name, mean in found.left_out.items():
            yield Summary(setting, "", phase, name, (), mean, mean.count)
