"""The 24 sheets of the study as plain tables, in the order of the workbook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmark.compile.analysis.errors import RECORD, error_tables, not_ok
from benchmark.compile.analysis.questions import answers
from benchmark.compile.analysis.rows import Row
from benchmark.compile.analysis.study import Study, grouped
from benchmark.compile.analysis.summaries import (
    Pair,
    crossed_pairs,
    eager_pairs,
    memory_table,
    mode_pairs,
    pair_tables,
    summaries,
    summary_table,
)
from benchmark.compile.analysis.tables import (
    ALL,
    EXPERIMENT,
    MEMORY,
    MEMORY_RATIO,
    MIB,
    MODE,
    NOTHING,
    OUTCOME,
    VARIANT,
    Cell,
    Reader,
    Sheet,
    Table,
    Value,
    speedup_cell,
    speedup_end,
    table_of,
    times,
)
from benchmark.compile.analysis.variants import auto_against_no_fixes, gin_epochs
from benchmark.compile.analysis.wording import is_void, noise

_RATIO = "Speedup is eager over compiled time: the median of paired rounds, with its 95 % interval."
_MEAN = (
    "Means are geometric, over the cases that all compared rows have ('Common cases'). Their 95 % "
    "interval is the wider of two: Student's, from the spread of the cases, and what the own "
    "intervals of the cases leave open."
)
_BETWEEN = (
    "Times of different processes, not measured in turns: the interval joins the worst ends of "
    "both, widened by what the eager times of all processes of the case differ by; no colour where "
    "there is one process only."
)
_UNPAIRED = f"Time of a call in PyG over that in DGL: above 1 DGL is faster. {_BETWEEN}"
_PEAK = (
    "A peak is the most memory of one call above what was live before it: one reading, without "
    "interval, so no single ratio of peaks is coloured."
)

Build = Callable[[Study], Iterator[Table]]


class Builder(NamedTuple):
    """A sheet's name, what it shows, and how to make its tables."""

    name: str
    heading: str
    build: Build


def sheets(study: Study) -> tuple[Sheet, ...]:
    """Make every sheet."""
    notes = (f"Where nothing else is said: {study.main}.", noise(study), *study.notes)
    return tuple(
        Sheet(name, heading, () if number else notes, tuple(build(study)))
        for number, (name, heading, build) in enumerate(SHEETS)
    )


# --- research questions ----------------------------------------------------------------------


def _questions(study: Study) -> Iterator[Table]:
    lines = [
        (answer.question, sentence, answer.count)
        for answer in answers(study)
        for sentence in answer.sentences
    ]
    yield table_of(
        "Answers, computed from the records",
        lines,
        (
            Reader("Question", None, lambda line: line[0]),
            Reader("Answer", None, lambda line: _answer_cell(line[1])),
            Reader("Rows used", None, lambda line: line[2]),
        ),
    )
    yield table_of(
        "Environment",
        study.environment.entries.items(),
        (
            Reader("Entry", None, lambda entry: entry[0]),
            Reader("Value", None, lambda entry: entry[1]),
        ),
    )


def _answer_cell(sentence: str) -> Cell:
    return Cell(sentence, "void" if is_void(sentence) else None)


# --- modes -----------------------------------------------------------------------------------


def _mode_sheet(mode: str) -> Build:
    def build(study: Study) -> Iterator[Table]:
        yield table_of(f"Every case with mode {mode}", study.select(mode=mode), ALL)

    return build


def _mode_summary(dynamic: str, variant: str) -> Build:
    def build(study: Study) -> Iterator[Table]:
        rows = study.headline(dynamic=dynamic, variant=variant)
        found = summaries(rows, lambda row: row.name, lambda row: row.experiment)
        yield summary_table(f"By mode, dynamic={dynamic}, variant {variant}", "Mode", found)

    return build


def _framework_summary(framework: str) -> Build:
    def build(study: Study) -> Iterator[Table]:
        rows = study.headline(framework=framework)
        by_mode = summaries(rows, lambda row: row.name, lambda row: row.experiment)
        yield summary_table(f"By mode, {study.main}", "Mode", by_mode)
        by_model = summaries(
            rows,
            lambda row: f"{row.experiment.model}, {row.name}",
            lambda row: row.experiment.but(model=""),
        )
        yield summary_table(f"By model and mode, {study.main}", "Model and mode", by_model)
        records = [r for r in not_ok(study.records) if r.case.framework == framework]
        yield table_of("Cases that did not end well", records, RECORD, empty="none")

    return build


def _side_by_side(study: Study) -> Iterator[Table]:
    rows = [row for row in study.rows if row.mode != "eager"]
    groups = grouped(rows, lambda row: (row.experiment, row.dynamic, row.variant, row.phase))
    wide = [{row.mode: row for row in group} for group in groups.values()]
    readers = [reader.of(_any_row) for reader in (*EXPERIMENT, *VARIANT)]
    for mode in study.modes[1:]:
        readers += [
            Reader(f"Speedup, {mode}", 3, _of_mode(mode, speedup_cell)),
            Reader(f"Low, {mode}", 3, _of_mode(mode, lambda row: speedup_end(row, "low"))),
            Reader(f"High, {mode}", 3, _of_mode(mode, lambda row: speedup_end(row, "high"))),
        ]
    yield table_of("Every case, its modes side by side", wide, readers)


def _any_row(modes: dict[str, Row]) -> Row:
    return next(iter(modes.values()))


def _of_mode(
    mode: str, read: Callable[[Row], Value | Cell]
) -> Callable[[dict[str, Row]], Value | Cell]:
    def found(modes: dict[str, Row]) -> Value | Cell:
        return read(modes[mode]) if mode in modes else Cell(NOTHING, "void")

    return found


def _pair_sheet(pairs: Callable[[Study], Iterator[Pair]], pyg: str, dgl: str) -> Build:
    def build(study: Study) -> Iterator[Table]:
        yield from pair_tables(list(pairs(study)), study.main, pyg, dgl)

    return build


# --- memory ----------------------------------------------------------------------------------


def _memory_by_model(study: Study) -> Iterator[Table]:
    found = summaries(
        study.headline(),
        lambda row: f"{row.experiment.model}, {row.name}",
        lambda row: row.experiment.but(model=""),
        lambda row: row.memory,
    )
    yield memory_table(
        f"Compiled over eager peak, by model and mode, {study.main}", "Model and mode", found
    )


def _memory_by_mode(study: Study) -> Iterator[Table]:
    found = summaries(
        study.headline(), lambda row: row.name, lambda row: row.experiment, lambda row: row.memory
    )
    yield memory_table(f"Compiled over eager peak, by mode, {study.main}", "Mode", found)


def _memory_of(phase: str) -> Build:
    def build(study: Study) -> Iterator[Table]:
        rows = study.select(lambda row: row.mode != "eager", phase=phase)
        readers = (*EXPERIMENT, *VARIANT, MODE, *OUTCOME, *MEMORY, MEMORY_RATIO)
        yield table_of(f"Peaks of {phase}, every case", rows, readers)

    return build


def _peaks(study: Study) -> Iterator[Table]:
    rows = study.select(lambda row: row.mode == "eager" or row.dynamic == study.main.dynamic)
    groups = grouped(rows, lambda row: (row.experiment, row.variant, row.phase))
    wide = [{row.mode: row for row in group} for group in groups.values()]
    readers = [reader.of(_any_row) for reader in (*EXPERIMENT, *VARIANT[1:])]
    for mode in study.modes:
        readers.append(Reader(f"{mode} [MiB]", 2, _of_mode(mode, _peak)))
    title = f"Peaks of all modes side by side, dynamic={study.main.dynamic}"
    yield table_of(title, wide, readers)


def _peak(row: Row) -> Value | Cell:
    if row.status == "ok" and row.label is None:
        return Cell("not exercised", "void")
    return times(row.peak_memory, MIB)


_ABOUT_MODE = f"Every case of one mode, inference and training apart. {_RATIO}"

SHEETS = (
    Builder(
        "Research Questions",
        "What the records say to the questions; see the notes for variant and dynamic setting.",
        _questions,
    ),
    Builder(
        "Eager",
        "Eager against eager (A/A): the speedup should be 1; how far it is off is the noise.",
        _mode_sheet("eager"),
    ),
    Builder("Default", _ABOUT_MODE, _mode_sheet("default")),
    Builder("Reduce Overhead", _ABOUT_MODE, _mode_sheet("reduce-overhead")),
    Builder("Max Autotune", _ABOUT_MODE, _mode_sheet("max-autotune")),
    Builder("Max Autotune No CudaGraphs", _ABOUT_MODE, _mode_sheet("max-autotune-no-cudagraphs")),
    Builder(
        "Mode Summary (auto)", f"With fixes, dynamic=None. {_MEAN}", _mode_summary("auto", "fixes")
    ),
    Builder(
        "Mode Summary (true)", f"With fixes, dynamic=True. {_MEAN}", _mode_summary("true", "fixes")
    ),
    Builder(
        "Mode Summary (false)",
        f"With fixes, dynamic=False. {_MEAN}",
        _mode_summary("false", "fixes"),
    ),
    Builder(
        "Mode Summary (no-fixes)",
        f"The library's own self-loops and normalisation in every forward, dynamic=None. {_MEAN}",
        _mode_summary("auto", "no-fixes"),
    ),
    Builder("DGL Summary", _MEAN, _framework_summary("dgl")),
    Builder("PyG Summary", _MEAN, _framework_summary("pyg")),
    Builder("DGL vs PyG (eager)", _UNPAIRED, _pair_sheet(eager_pairs, "PyG eager", "DGL eager")),
    Builder("DGL vs PyG (all modes)", _UNPAIRED, _pair_sheet(mode_pairs, "PyG", "DGL")),
    Builder(
        "DGL eager vs PyG compiled",
        _UNPAIRED,
        _pair_sheet(crossed_pairs, "PyG compiled", "DGL eager"),
    ),
    Builder("Compile Modes vs Eager", _RATIO, _side_by_side),
    Builder("Memory 1 (by model)", f"{_PEAK} {_MEAN}", _memory_by_model),
    Builder("Memory 2 (by mode)", f"{_PEAK} {_MEAN}", _memory_by_mode),
    Builder("Memory 3 (inference)", f"Inference. {_PEAK}", _memory_of("inference")),
    Builder("Memory 4 (training)", f"Training steps. {_PEAK}", _memory_of("training")),
    Builder("Memory 5 (eager vs compiled)", f"Peaks of every mode. {_PEAK}", _peaks),
    Builder(
        "Auto vs No-Fixes",
        f"{_RATIO} The last ratio compares two variants. {_BETWEEN}",
        auto_against_no_fixes,
    ),
    Builder(
        "GIN 300 vs 20 epochs",
        "Test quality after training; every seed and replicate is a run.",
        gin_epochs,
    ),
    Builder("Error Summary", "What failed, in which phase, and what was not read.", error_tables),
)
"""The 24 sheets of the workbook."""
