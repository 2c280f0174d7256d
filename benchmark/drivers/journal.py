"""The folder of one run: a header, one line of JSON per finished case, and the tables made of them.

A case is written when it ends, in one piece, so that no interruption loses a finished one. A run
that is started again with the same folder goes on with the cases that are missing in it; a run
with other settings, or in another environment, is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from gnnprof._files import write_atomically

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HEADER, RECORDS, LOCK = "run.json", "records.jsonl", ".lock"
SCHEMA = "gnnprof.driver-run/1"

Record = Mapping[str, Any]


class FolderTakenError(RuntimeError):
    """The folder cannot take the records of this run."""


def new_folder(driver: str) -> Path:
    """Name a folder that is not there yet: ./out, the driver and the time of day."""
    stem = Path("out") / f"{driver}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = stem, 1
    while folder.exists():
        folder = stem.with_name(f"{stem.name}.{number}")
        number += 1
    return folder


class Journal:
    """The records of one run on disk; use it as a context manager.

    Args:
        folder: Where they are kept; made if it is not there.
        header: What holds for all records: the driver, its settings, the environment.

    Attributes:
        folder: As given.
        finished: The records of cases that ended well, by key, those of earlier runs included.

    Raises:
        FolderTakenError: On entering, if another process writes into the folder, or it holds
            records that cannot stand beside those of this run.
    """

    def __init__(self, folder: Path, header: Mapping[str, object]) -> None:
        self.folder = folder
        self.finished: dict[str, Record] = {}
        self._header = {"schema": SCHEMA, **json.loads(json.dumps(header, default=str))}
        self._lock: Any = None

    def __enter__(self) -> Journal:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._check_header()
            self._read()
        except BaseException:
            self._release_lock()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release_lock()

    @property
    def path(self) -> Path:
        """The file of the records."""
        return self.folder / RECORDS

    def append(self, record: Record) -> None:
        """Write one record, whole, and see it onto the disk.

        Raises:
            ValueError: If the record holds a number that JSON does not have (nan, inf).
        """
        line = json.dumps(record, default=str, allow_nan=False) + "\n"
        # One write to a file opened for appending: a reader never sees half of a record.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            _write_all(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._keep(json.loads(line))

    def write_table(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> Path:
        """Write a CSV table made of the records so far, in the place of the one before."""

        def write(path: Path) -> None:
            import csv

            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(rows)

        return write_atomically(self.folder / name, write, overwrite=True)

    def _take_lock(self) -> None:
        if fcntl is None:
            return
        self._lock = (self.folder / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            self._lock = None
            raise FolderTakenError(
                f"--out={self.folder}: another process writes its records there; wait for it, or "
                "give another folder."
            ) from None

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_header(self) -> None:
        path = self.folder / HEADER
        if not path.exists():
            if self.path.exists():
                raise FolderTakenError(
                    f"--out={self.folder} holds records without the {HEADER} that says how they "
                    "were made; give another folder."
                )
            text = json.dumps(self._header, indent=2) + "\n"
            write_atomically(path, lambda file: _write_text(file, text))
            return
        earlier = json.loads(path.read_text(encoding="utf-8"))
        found = list(differences(earlier, self._header))
        if found:
            raise FolderTakenError(
                f"--out={self.folder} holds records of another run ({'; '.join(found)}); give "
                "another folder, or the same settings to go on with that run."
            )

    def _read(self) -> None:
        """Read the earlier records, and cut off a last line that was never finished."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self.path.open("r+b") as file:
                file.truncate(whole)
        for line in content[:whole].splitlines():
            self._keep(json.loads(line))

    def _keep(self, record: Record) -> None:
        """Remember a record that ended well; one that failed is for the next run to try again."""
        if record["status"] == "ok":
            self.finished[record["key"]] = record


def differences(
    earlier: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterable[str]:
    """Say in which values two headers differ: `settings.warmup was 1, is 2`."""
    for name in sorted({*earlier, *now}):
        before, after = earlier.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name} was {before}, is {after}"


def case_record(
    key: str,
    case: Mapping[str, object],
    status: str,
    result: Mapping[str, object],
    *,
    started: datetime,
    error: str | None = None,
) -> dict[str, object]:
    """Return the record of one case.

    Args:
        key: What tells the case from others.
        case: The case itself.
        status: 'ok' or 'error'.
        result: What was measured; empty after an error.
        started: When the case began.
        error: Type and message of the exception that ended it.
    """
    return {
        "key": key,
        "case": dict(case),
        "status": status,
        "error": error,
        "started": started.astimezone(timezone.utc).isoformat(timespec="seconds"),
        **result,
    }


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


Column = tuple[str, Callable[[Record], object]]
"""A heading of a table and how its value is read from a record."""
