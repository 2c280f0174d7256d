"""Record files to frozen records, told apart by the environment that they were measured in."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from benchmark.compile.analysis.records import (
    IDENTITY,
    LOADER,
    PHASES,
    SCHEMA,
    Case,
    Environment,
    Figures,
    Quality,
    Record,
    Skipped,
)


class UnreadableRecordError(ValueError):
    """A file that is not a record of the study; the message says why."""


class MixedRecordsError(ValueError):
    """Records that must not stand in one table; the message says how to part them."""


# --- files -----------------------------------------------------------------------------------


def record_files(folder: Path) -> list[Path]:
    """Return the record files of a sweep, given its folder or the `records` folder inside.

    Raises:
        FileNotFoundError: If there is no such folder, or no record in it.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"RESULTS_DIR={folder}: there is no such folder.")
    inside = folder / "records"
    place = inside if inside.is_dir() else folder
    # A name that starts with a dot is a file that is still being written.
    files = sorted(file for file in place.glob("*.json") if not file.name.startswith("."))
    if not files:
        raise FileNotFoundError(
            f"RESULTS_DIR={folder}: no records (*.json) in {place}; "
            "run benchmark/compile/sweep.py with --out first."
        )
    return files


def read_records(files: Iterable[Path]) -> tuple[tuple[Record, ...], tuple[Skipped, ...]]:
    """Read record files; one that cannot be read is named with the reason, never dropped silently.

    Raises:
        MixedRecordsError: If two files hold the same case of the same environment.
    """
    records, skipped = [], []
    for file in files:
        try:
            records.append(parse_record(file.read_text(encoding="utf-8"), file.name))
        except (UnreadableRecordError, OSError, UnicodeDecodeError) as error:
            skipped.append(Skipped(file.name, str(error)))
    return tuple(records), tuple(skipped)


def parse_record(text: str, file: str) -> Record:
    """Read one record from its JSON text.

    Raises:
        UnreadableRecordError: If it is not a whole record of the schema that this code knows.
    """
    try:
        raw = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise UnreadableRecordError(f"not JSON: {error}") from None
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise UnreadableRecordError(f"schema is {found!r}; this analysis reads {SCHEMA!r}")
    entry = _Reader(raw, "")
    data, throughput = entry.inner("data"), entry.inner("throughput")
    return Record(
        file=file,
        key=entry.text("key", ""),
        case=_case(entry.inner("case")),
        outcome=entry.text("outcome"),
        reason=entry.text_or_none("reason"),
        stderr=entry.text("stderr", ""),
        started=entry.text("started", ""),
        harness_seconds=entry.number_or_none("harness_seconds"),
        harness_allowed=entry.number_or_none("harness_allowed"),
        environment=_environment(entry.inner("environment").values),
        stand_in=data.flag_or_none("is_stand_in"),
        task=data.text_or_none("task"),
        phases=_phases(entry),
        noise=_noise(entry),
        quality=_quality(entry.inner("quality")),
        throughput=throughput.known(*PHASES, *(f"edges_{phase}" for phase in PHASES)),
        throughput_unit=throughput.text_or_none("unit"),
        loader=entry.inner("loader").known(*LOADER),
        cpu_utilisation=entry.number_or_none("cpu_utilisation"),
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is not a number of JSON")


# --- values ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reader:
    """Values of one JSON object, checked where they are read."""

    values: Mapping[str, Any]
    path: str

    def inner(self, name: str) -> _Reader:
        """The object under a name; null or missing is an empty one."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            self._refuse(name, value, "an object")
        return _Reader(value, f"{self.path}{name}.")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            self._refuse(name, value, "a text")
        return str(value)

    def text_or_none(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.text(name)

    def number_or_none(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            self._refuse(name, value, "a finite number or null")
        return float(value)

    def count_or_none(self, name: str) -> int | None:
        value = self.number_or_none(name)
        if value is not None and value != int(value):
            self._refuse(name, value, "a whole number or null")
        return None if value is None else int(value)

    def flag_or_none(self, name: str) -> bool | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            self._refuse(name, value, "true, false or null")
        return value

    def known(self, *names: str) -> dict[str, float]:
        found = {name: self.number_or_none(name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def numbers(self, name: str) -> tuple[float, ...]:
        values = self.values.get(name) or ()
        if isinstance(values, str) or not isinstance(values, Sequence):
            self._refuse(name, values, "a list of numbers")
        inner = _Reader({str(i): value for i, value in enumerate(values)}, f"{self.path}{name}.")
        if None in inner.values.values():
            self._refuse(name, values, "a list of numbers")
        return tuple(float(inner.number_or_none(i) or 0) for i in inner.values)

    def texts(self, name: str, one: Callable[[_Reader], str]) -> tuple[str, ...]:
        values = self.values.get(name) or ()
        if isinstance(values, str) or not isinstance(values, Sequence):
            self._refuse(name, values, "a list of objects")
        inner = _Reader({str(i): value for i, value in enumerate(values)}, f"{self.path}{name}.")
        return tuple(one(inner.inner(i)) for i in inner.values)

    def _refuse(self, name: str, value: object, allowed: str) -> NoReturn:
        raise UnreadableRecordError(f"{self.path}{name} is {value!r:.60}; it should be {allowed}")


def _case(entry: _Reader) -> Case:
    readers: dict[str, Callable[[str], Any]] = {
        "str": entry.text,
        "int": entry.count_or_none,
        "float": entry.number_or_none,
        "float | None": entry.number_or_none,
        "bool": entry.flag_or_none,
        "bool | None": entry.flag_or_none,
    }
    known = {field.name: field for field in fields(Case) if field.name != "more"}
    values = {
        name: readers[str(field.type)](name)
        for name, field in known.items()
        # A field that has a default may be null or missing, a name may not.
        if entry.values.get(name) is not None or field.default is MISSING
    }
    more = {name: value for name, value in entry.values.items() if name not in known}
    return Case(**values, more=json.dumps(more, sort_keys=True) if more else "")


def _figures(entry: _Reader) -> Figures:
    if "error" in entry.values and "status" not in entry.values:
        return Figures(status="error", reason=str(entry.values["error"]))
    readers: dict[str, Callable[[str], Any]] = {
        "str": entry.text,
        "str | None": entry.text_or_none,
        "int | None": entry.count_or_none,
        "float | None": entry.number_or_none,
        "bool": lambda name: bool(entry.flag_or_none(name)),
        "tuple[float, ...]": entry.numbers,
        "tuple[str, ...]": lambda name: entry.texts(name, _break),
    }
    figures = Figures(**{f.name: readers[str(f.type)](f.name) for f in fields(Figures)})
    for name in ("speedup", "speedup_low", "speedup_high", "median"):
        value = getattr(figures, name)
        if value is not None and value <= 0:
            raise UnreadableRecordError(f"{entry.path}{name} is {value}; it should be positive")
    return figures


def _break(entry: _Reader) -> str:
    reason, location = entry.text("reason", ""), entry.text_or_none("location")
    return f"{reason} ({location})" if location else reason


def _phases(entry: _Reader) -> dict[str, Figures]:
    return {
        phase: _figures(entry.inner(phase))
        for phase in PHASES
        if entry.values.get(phase) is not None
    }


def _noise(entry: _Reader) -> dict[str, float]:
    names = {"inference": "noise_floor", "training": "noise_floor_training"}
    found = {p: entry.inner(name).number_or_none("half_width") for p, name in names.items()}
    return {phase: value for phase, value in found.items() if value is not None}


def _quality(entry: _Reader) -> Quality | None:
    value, epochs = entry.number_or_none("value"), entry.count_or_none("epochs")
    if value is None or epochs is None:
        return None
    return Quality(entry.text("metric", "quality"), value, epochs)


def _environment(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in values.items()}


# --- environments ----------------------------------------------------------------------------


def by_environment(records: Sequence[Record]) -> tuple[Environment, ...]:
    """Part records by machine and versions.

    An entry that a record does not have (a run without DGL does not know its version) parts nothing
    as long as all records that have it agree.

    Raises:
        MixedRecordsError: If two records of one environment are of the same case.
    """
    known: dict[str, set[str]] = defaultdict(set)
    for record in records:
        for name in IDENTITY:
            if (value := record.environment.get(name)) is not None:
                known[name].add(value)
    telling = [name for name in IDENTITY if len(known[name]) > 1]
    groups: dict[tuple[str | None, ...], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: (record.key, record.file)):
        groups[tuple(record.environment.get(name) for name in telling)].append(record)
    return tuple(
        _environment_of(group, dict(zip(telling, values, strict=True)))
        for values, group in sorted(groups.items(), key=lambda item: str(item[0]))
    )


def _environment_of(group: Sequence[Record], differs: dict[str, str | None]) -> Environment:
    _refuse_twins(group)
    names = {name for record in group for name in record.environment}
    values = {name: {record.environment.get(name) for record in group} - {None} for name in names}
    entries = {
        name: str(next(iter(found)))
        for name, found in sorted(values.items())
        if len(found) == 1 and name != "threads"
    }
    told = json.dumps([entries.get(name) for name in IDENTITY])
    short = hashlib.sha256(told.encode()).hexdigest()[:8]
    return Environment(short, entries, differs, tuple(group))


def _refuse_twins(group: Sequence[Record]) -> None:
    seen: dict[Case, Record] = {}
    for record in group:
        twin = seen.setdefault(record.case, record)
        if twin is not record:
            raise MixedRecordsError(
                f"{twin.file} and {record.file} are records of the same case in the same "
                "environment; which one holds cannot be told: remove one."
            )
