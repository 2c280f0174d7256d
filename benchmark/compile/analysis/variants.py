"""The same case in several variants: with and without fixes, after few and many epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmark.compile.analysis.estimates import Estimate
from benchmark.compile.analysis.rows import VARIANTS, QualityRow, Row
from benchmark.compile.analysis.study import Study, grouped
from benchmark.compile.analysis.summaries import unpaired
from benchmark.compile.analysis.tables import (
    BREAKS,
    EXPERIMENT,
    MODE,
    NOTHING,
    VARIANT,
    Cell,
    Reader,
    Table,
    Value,
    mean_readers,
    speedup_cell,
    speedup_end,
    table_of,
)
from gnnprof._statistics import mean


class _Variants(NamedTuple):
    """One case by variant.

    Attributes:
        rows: With fixes, without, with fullgraph, as far as they were run.
        gain: Compiled time without fixes over that with them; different processes.
    """

    rows: dict[str, Row]
    gain: Estimate | None


def auto_against_no_fixes(study: Study) -> Iterator[Table]:
    """Speedup and graph breaks of the three variants of every case."""
    rows = study.select(lambda row: row.mode != "eager", dynamic=study.main.dynamic)
    groups = grouped(rows, lambda row: (row.experiment, row.mode, row.phase))
    cases = [_variants(study, group) for group in groups.values()]
    readers = [reader.of(_any_row) for reader in (*EXPERIMENT, VARIANT[2], MODE)]
    for name in VARIANTS:
        readers += _variant_readers(name)
    readers += mean_readers("No-fixes / fixes compiled time", lambda case: case.gain)
    title = f"The three variants side by side, dynamic={study.main.dynamic}"
    yield table_of(title, cases, readers)


def _variants(study: Study, rows: list[Row]) -> _Variants:
    by_name = {row.variant: row for row in rows}
    times = [
        study.across_processes(row) if row and row.usable else None
        for row in (by_name.get("no-fixes"), by_name.get("fixes"))
    ]
    without, with_fixes = times
    gain = unpaired(without, with_fixes) if without and with_fixes else None
    return _Variants(by_name, gain)


def _any_row(case: _Variants) -> Row:
    return next(iter(case.rows.values()))


def _variant_readers(name: str) -> Iterator[Reader]:
    def row_of(case: _Variants) -> Row | None:
        return case.rows.get(name)

    def of_row(case: _Variants, read: Callable[[Row], Value | Cell]) -> Value | Cell:
        row = row_of(case)
        return read(row) if row else None

    yield Reader(f"Speedup, {name}", 3, lambda case: speedup_cell(row_of(case)))
    yield Reader(f"Low, {name}", 3, lambda case: speedup_end(row_of(case), "low"))
    yield Reader(f"High, {name}", 3, lambda case: speedup_end(row_of(case), "high"))
    yield Reader(f"Graph breaks, {name}", None, lambda c: of_row(c, lambda row: row.graph_breaks))
    yield Reader(f"Where it breaks, {name}", None, lambda c: of_row(c, BREAKS.read))


_EPOCHS = (20, 300)


def gin_epochs(study: Study) -> Iterator[Table]:
    """Quality of GIN after few and after many epochs."""
    rows = [row for row in study.qualities if row.experiment.model == "GIN"]
    groups = grouped(
        rows, lambda row: (row.experiment, row.mode, row.dynamic, row.variant, row.metric)
    )
    cases = [{row.epochs: row for row in group} for group in groups.values()]
    readers = [reader.of(_first_quality) for reader in (*EXPERIMENT, *VARIANT[:2], MODE)]
    readers.append(Reader("Metric", None, lambda case: _first_quality(case).metric))
    for epochs in _EPOCHS:
        readers += _quality_readers(epochs)
    readers.append(Reader("Gain from 20 to 300 epochs [points]", 2, _quality_gain))
    readers.append(Reader("Other epochs run", None, _other_epochs))
    yield table_of("Quality of GIN on the test set", cases, readers)


def _first_quality(case: dict[int, QualityRow]) -> QualityRow:
    return next(iter(case.values()))


def _quality_readers(epochs: int) -> Iterator[Reader]:
    def values(case: dict[int, QualityRow]) -> tuple[float, ...]:
        return case[epochs].values if epochs in case else ()

    def percent(case: dict[int, QualityRow], of: Callable[[tuple[float, ...]], float]) -> Cell:
        found = values(case)
        return Cell(100 * of(found)) if found else Cell(NOTHING, "void")

    yield Reader(f"{epochs} epochs, mean [%]", 2, lambda case: percent(case, mean))
    yield Reader(f"{epochs} epochs, lowest [%]", 2, lambda case: percent(case, min))
    yield Reader(f"{epochs} epochs, highest [%]", 2, lambda case: percent(case, max))
    yield Reader(f"{epochs} epochs, runs", None, lambda case: len(values(case)))


def _quality_gain(case: dict[int, QualityRow]) -> Value | Cell:
    if not all(epochs in case for epochs in _EPOCHS):
        return Cell(NOTHING, "void")
    short, long = (mean(case[epochs].values) for epochs in _EPOCHS)
    return 100 * (long - short)


def _other_epochs(case: dict[int, QualityRow]) -> str | None:
    return ", ".join(str(epochs) for epochs in case if epochs not in _EPOCHS) or None
