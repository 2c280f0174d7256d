"""The one loop over the cases of a run: measure, keep the record, go on after a failure."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Protocol

from tqdm import tqdm

from benchmark.drivers.journal import Journal, Record, case_record


class CaseFailedError(RuntimeError):
    """A case raised, and the others cannot run without it."""


class AnyCase(Protocol):
    """What the loop has to know of a case."""

    @property
    def key(self) -> str:
        """What tells it from every other."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON takes it."""
        ...


Measure = Callable[[Any, Callable[[], object]], Mapping[str, object]]
"""Measures a case, calling its second argument after every batch, and returns the record's part."""


def run_cases(
    cases: Sequence[AnyCase],
    measure: Measure,
    journal: Journal,
    *,
    describe: Callable[[Record], str],
    progress_bar: bool = True,
    after_each: Callable[[], None] = lambda: None,
    go_on: bool = True,
) -> list[Record]:
    """Measure the cases that the journal does not hold yet.

    A case that raises becomes a record with its error, and the others still run. An interruption
    ends the loop; what was finished is kept.

    Args:
        cases: What to measure, in this order.
        measure: Measures one.
        journal: Takes the records.
        describe: Says in a few lines what a record holds, for the terminal.
        progress_bar: Whether to draw bars on a terminal.
        after_each: Called after each record, to bring tables up to date; also before the first if
            there are records of earlier runs.
        go_on: Whether the other cases still run after one has raised.

    Returns:
        The records of all cases, in order, those of earlier runs included.
    """
    missing = [case for case in cases if case.key not in journal.finished]
    if len(missing) < len(cases):
        done = len(cases) - len(missing)
        print(f"{done} of {len(cases)} cases are in {journal.folder} already.")
    records: dict[str, Record] = {
        case.key: journal.finished[case.key] for case in cases if case not in missing
    }
    if journal.finished:
        after_each()  # the earlier run may have had no tables, or ended just before them
    off = None if progress_bar else True  # None: off outside of a terminal
    with _interruption_told(journal), tqdm(total=len(missing), unit="case", disable=off) as bar:
        for case in missing:
            print(f"-- {case}", flush=True)
            with tqdm(unit="batch", disable=off, leave=False) as batches:
                record = attempt(case, lambda case: measure(case, batches.update))
            journal.append(record)
            records[case.key] = record
            after_each()
            print(describe(record), flush=True)
            bar.update()
            if record["status"] != "ok" and not go_on:
                raise CaseFailedError(str(record["error"]))
    print(f"Records: {journal.path}")
    return [records[case.key] for case in cases]


def attempt(case: AnyCase, measure: Callable[[Any], Mapping[str, object]]) -> dict[str, object]:
    """Return the record of one case, of its failure if it fails."""
    started = datetime.now(timezone.utc)
    try:
        result = measure(case)
        json.dumps(result, default=str, allow_nan=False)  # a nan is a failure, too
    except Exception as error:  # noqa: BLE001  # one case must not end the others; it is recorded
        traceback.print_exc(file=sys.stderr)
        text = f"{type(error).__name__}: {error}"
        return case_record(case.key, case.to_dict(), "error", {}, started=started, error=text)
    return case_record(case.key, case.to_dict(), "ok", result, started=started)


@contextmanager
def _interruption_told(journal: Journal) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"Interrupted; the finished cases are in {journal.path}. The same command with "
            f"--out {journal.folder} goes on with the others.",
            file=sys.stderr,
        )
        raise


def exit_status(records: Sequence[Record]) -> int:
    """Return 1 if a case failed, else 0, and say which."""
    failed = [record for record in records if record["status"] != "ok"]
    for record in failed:
        print(f"Failed: {record['case']}: {record['error']}", file=sys.stderr)
    return 1 if failed else 0
