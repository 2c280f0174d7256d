"""One worker: goes through the cases of a sweep and runs those that nobody has run or runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from benchmark.compile.attempt import Options, attempt
from benchmark.compile.case import Case, Identity, content_key
from benchmark.compile.store import OUTCOMES, Store

_BAR: dict[str, Any] = {"unit": "case", "disable": None}  # on a terminal only, with time left


@dataclass(frozen=True)
class Entry:
    """A case of a sweep with its key, and the environment that the key speaks of."""

    key: str
    case: Case
    identity: Identity


@dataclass(frozen=True)
class Progress:
    """What a worker came back with.

    Attributes:
        outcomes: How many of the sweep's cases are on record, by outcome.
        ran: Cases that this worker ran.
        elsewhere: Cases that another worker runs now.
    """

    outcomes: Mapping[str, int]
    ran: int
    elsewhere: int


def entries_of(cases: Sequence[Case], identify: Callable[[str], Identity]) -> tuple[Entry, ...]:
    """Give each case its key.

    Args:
        cases: In the order in which they shall run.
        identify: Returns the environment of a device.
    """
    identities = {device: identify(device) for device in {case.device for case in cases}}
    return tuple(
        Entry(content_key(case, identities[case.device]), case, identities[case.device])
        for case in cases
    )


def is_finished(store: Store, key: str, retry: Collection[str] = ()) -> bool:
    """Tell whether a case is on record with an outcome that is not to be tried again."""
    outcome = store.outcome(key)
    return outcome is not None and outcome != "interrupted" and outcome not in retry


def run_cases(
    store: Store, entries: Sequence[Entry], options: Options, retry: Collection[str] = ()
) -> Progress:
    """Run the cases that are not finished, one after the other, with a progress bar.

    Args:
        store: The sweep's folder, perhaps shared with other workers.
        entries: The cases.
        options: How they are run.
        retry: Outcomes whose cases run again.

    Raises:
        KeyboardInterrupt: If the worker was asked to end; every finished case is on record.
    """
    pending = [entry for entry in entries if not is_finished(store, entry.key, retry)]
    keys = {entry.key for entry in pending}
    store.tidy(entry.key for entry in entries if entry.key not in keys)
    # What is tried again is what is on record now: not what another worker has just tried again.
    stale = {key: store.read(key) for key in keys}
    ran, elsewhere = 0, pending
    with tqdm(total=len(entries), initial=len(entries) - len(pending), **_BAR) as bar:
        for _ in range(2):  # whoever had claimed a case may have ended without running it
            pending, elsewhere = elsewhere, []
            for entry in pending:
                bar.set_postfix_str(entry.case.label, refresh=True)
                with store.claimed(entry.key) as mine:
                    if not mine:
                        elsewhere.append(entry)
                        continue
                    if store.read(entry.key) == stale[entry.key]:
                        record = attempt(store, entry.case, entry.key, entry.identity, options)
                        bar.write(describe(record))
                        ran += 1
                bar.update()
    elsewhere = [entry for entry in elsewhere if not is_finished(store, entry.key)]
    return Progress(count_outcomes(store, entries), ran, len(elsewhere))


def count_outcomes(store: Store, entries: Sequence[Entry]) -> dict[str, int]:
    """Return how many of the cases are on record, by outcome, in the order of `OUTCOMES`."""
    counted = Counter(store.outcome(entry.key) for entry in entries)
    return {outcome: counted[outcome] for outcome in OUTCOMES if counted[outcome]}


# -- one line per case -----------------------------------------------------------------------------


def describe(record: Mapping[str, Any]) -> str:
    """Return one line on what became of a case."""
    case = Case.from_dict(record["case"])
    parts = [f"{record['outcome']}: {case.label}"]
    for phase, floor in (("inference", "noise_floor"), ("training", "noise_floor_training")):
        row = record[phase]
        if row and row.get("speedup") is not None:
            parts.append(f"{phase} {_speedup(row, record.get(floor))}")
    if record["reason"]:
        parts.append(record["reason"])
    parts.append(f"{record['wall_seconds']:.0f} s")
    return "; ".join(parts)


def _speedup(row: Mapping[str, Any], noise_floor: Mapping[str, Any] | None) -> str:
    low, high, verdict = row["speedup_low"], row["speedup_high"], row["verdict"]
    if verdict == "undecided" and noise_floor and not low <= 1 <= high:
        verdict = f"undecided, as noise is {noise_floor['half_width']:.0%}"
    return f"{row['speedup']:.2f}x ({low:.2f} to {high:.2f}, {verdict})"
