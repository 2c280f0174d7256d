"""What went wrong in a study, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from benchmark.compile.analysis.records import Record
from benchmark.compile.analysis.rows import FRAMEWORKS, MODES
from benchmark.compile.analysis.study import Study
from benchmark.compile.analysis.tables import (
    ALL,
    EXPERIMENT,
    MODE,
    NOTHING,
    OUTCOME,
    VARIANT,
    Cell,
    Reader,
    Table,
    table_of,
)

RECORD = (
    Reader("Record", None, lambda record: record.file),
    Reader("Framework", None, lambda record: FRAMEWORKS.get(record.case.framework, "?")),
    Reader("Model", None, lambda record: record.case.model),
    Reader("Data", None, lambda record: record.case.dataset),
    Reader("Mode", None, lambda record: record.case.mode),
    Reader("Dynamic", None, lambda record: str(record.case.dynamic)),
    Reader("Variant", None, lambda record: record.case.variant),
    Reader("Threads", None, lambda record: record.case.threads),
    Reader("Replicate", None, lambda record: record.case.replicate),
    Reader("Outcome", None, lambda record: Cell(record.outcome, "failed")),
    Reader("Reason", None, lambda record: record.reason),
    Reader("End of stderr", None, lambda record: record.stderr[-1000:].strip() or None),
)


def error_tables(study: Study) -> Iterator[Table]:
    """What failed and where, and what could not be read."""
    yield outcomes("Outcomes of all cases", study.records)
    yield table_of("Cases that did not end well", not_ok(study.records), RECORD, empty="none")
    phases = [row for row in study.rows if row.status not in ("ok", NOTHING)]
    yield table_of(
        "Phases without figures",
        phases,
        (*EXPERIMENT, *VARIANT, MODE, *OUTCOME, ALL[-1]),
        empty="none",
    )
    yield table_of(
        "Files that are not records of the study",
        study.skipped,
        (
            Reader("File", None, lambda skipped: skipped.file),
            Reader("Why", None, lambda skipped: Cell(skipped.reason, "failed")),
        ),
        empty="none",
    )
    slow = [record for record in study.records if _over_allowance(record)]
    yield table_of(
        "Cases whose harness took longer than the study allows itself",
        slow,
        (
            *RECORD[:7],
            Reader("Harness [s]", 2, lambda record: record.harness_seconds),
            Reader("Allowed [s]", 2, lambda record: record.harness_allowed),
        ),
        empty="none",
    )


def outcomes(title: str, records: tuple[Record, ...]) -> Table:
    """How many cases ended how, by framework, model and mode."""
    counts = Counter((r.case.framework, r.case.model, r.case.mode, r.outcome) for r in records)
    outcomes = sorted({outcome for *_, outcome in counts}, key=lambda word: (word != "ok", word))
    groups = dict.fromkeys(key[:3] for key in sorted(counts, key=_mode_place))
    return table_of(
        title,
        groups,
        (
            Reader("Framework", None, lambda key: FRAMEWORKS.get(key[0], key[0])),
            Reader("Model", None, lambda key: key[1]),
            Reader("Mode", None, lambda key: key[2]),
            *(
                Reader(word, None, lambda key, word=word: counts[key + (word,)])
                for word in outcomes
            ),
        ),
    )


def _mode_place(key: tuple[str, str, str, str]) -> tuple[object, ...]:
    mode = key[2]
    return (*key[:2], MODES.index(mode) if mode in MODES else len(MODES), mode)


def not_ok(records: Iterable[Record]) -> list[Record]:
    """The cases that did not end well."""
    return [record for record in records if record.outcome != "ok"]


def _over_allowance(record: Record) -> bool:
    took, allowed = record.harness_seconds, record.harness_allowed
    return took is not None and allowed is not None and took > allowed
