"""The study as text for a terminal: what it stands on, the cases, the answers."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from tabulate import tabulate

from benchmark.compile.analysis.questions import Answer
from benchmark.compile.analysis.rows import Experiment, Row
from benchmark.compile.analysis.study import Study, grouped
from benchmark.compile.analysis.wording import briefly, listed, noise, some
from gnnprof._tables import NOT_MEASURED

_HEADINGS = (
    "Case",
    "Variant",
    "Mode",
    "Inference",
    "Training",
    "Graph breaks",
    "Cold compile [s]",
    "Pays from call",
    "Pays from step",
)

_ABOUT_CASES = (
    "Eager over compiled time: the median of paired rounds, its 95 % interval, and the verdict, "
    "which minds the noise floor as well. Graph breaks and compile seconds are those of inference; "
    "where compiled is faster, the cold compile is paid back from that call of the forward and "
    "that step of training on."
)


def overview(study: Study, found: Sequence[Answer], width: int) -> Iterator[str]:
    """Yield paragraphs: the summary, the cases, each question with its answer.

    Args:
        study: The study.
        found: The answers.
        width: Columns to wrap sentences at; a table is as wide as it needs.
    """
    yield from (_wrapped(line, width) for line in _summary(study))
    table = _cases(study)
    if table:
        yield ""
        yield _wrapped(f"{_ABOUT_CASES} dynamic={study.main.dynamic}.", width)
        yield f"\n{table}"
    for answer in found:
        yield f"\n{answer.question}"
        yield from (_wrapped(sentence, width, indent="  ") for sentence in answer.sentences)


def _wrapped(sentence: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        sentence,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,  # names of modes and data sets have some
        break_long_words=False,
    )


def _summary(study: Study) -> Iterator[str]:
    """Say in few lines what the answers stand on."""
    outcomes = Counter(record.outcome for record in study.records).most_common()
    ended = listed([f"{count} {outcome}" for outcome, count in outcomes])
    yield f"{some(len(study.records), 'record')}: {ended}."
    yield from study.notes
    yield noise(study)
    yield f"Where nothing else is said: {study.main}."
    if not any(row.usable for row in study.rows):
        yield "No case has a speedup: the tables say why, and 'not measured' elsewhere."
    yield from (f"Not read: {skipped.file}: {skipped.reason}" for skipped in study.skipped)


# --- the cases -------------------------------------------------------------------------------


def _cases(study: Study) -> str:
    """The compiled cases that ran in their own mode, or failed; a line each."""
    rows = study.select(lambda row: row.mode != "eager", dynamic=study.main.dynamic)
    names = _telling_apart({row.experiment for row in rows})
    groups = grouped(rows, lambda row: (row.experiment, row.variant, row.mode))
    lines = [
        [_case(experiment, names), variant, mode, *_figures({row.phase: row for row in group})]
        for (experiment, variant, mode), group in groups.items()
        if any(row.label is not None or row.status != "ok" for row in group)
    ]
    return tabulate(lines, _HEADINGS, disable_numparse=True, colalign=_ALIGNED) if lines else ""


_ALIGNED = (*["left"] * 5, *["right"] * 4)

_SHOWN = ("framework", "model", "dataset", "stand_in", "scale", "task")
"""Fields of an experiment that its line always shows, or that follow from what it shows."""


def _telling_apart(experiments: set[Experiment]) -> list[str]:
    """The further fields in which the experiments of the study differ."""
    further = [name for name in Experiment.__dataclass_fields__ if name not in _SHOWN]
    return [name for name in further if len({getattr(e, name) for e in experiments}) > 1]


def _case(experiment: Experiment, names: Sequence[str]) -> str:
    more = [f"{name}={getattr(experiment, name)}" for name in names]
    return ", ".join([f"{experiment.library} {experiment.model}", experiment.data, *more])


def _figures(phases: dict[str, Row]) -> Iterator[str]:
    inference, training = phases["inference"], phases["training"]
    cold = _own(inference, "compile_cold")
    yield briefly(inference)
    yield briefly(training)
    yield _count(_own(inference, "graph_breaks"))
    yield NOT_MEASURED if cold is None else f"{cold:.1f}"
    yield _count(_own(inference, "break_even"))
    yield _count(_own(training, "break_even"))


def _own(row: Row, name: str) -> float | None:
    """A figure of the mode that was asked for; None where another one ran."""
    value: float | None = getattr(row, name)
    return value if row.label else None


def _count(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,}"
