"""The records of finished cases: a file with one line of JSON for each.

A case is written when it ends, in one piece, so that no interruption loses a finished one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnnprof._files import ranked
from gnnprof._interrupts import interrupts_deferred

SCHEMA = "gnnprof.graph-case/1"

IDENTITY = ("benchmark", "case", "dataset", "environment")
"""What two records of the same measurement have in common."""

Record = Mapping[str, Any]


class CaseLog:
    """Appends records to a file, and tells which cases it already has.

    Args:
        path: The file, made with its first record; None keeps nothing. Under torch.distributed
            the rank is put into the name.
        resume: Whether cases that an earlier run has finished need not run again.

    Raises:
        FileNotFoundError: If the folder of the file is missing.
        OSError: If the file cannot be appended to.
        ValueError: If the file is there and holds something else, or `resume` has no file.
    """

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        if path is None and resume:
            raise ValueError("--resume needs --json FILE, the file of the run to go on with.")
        self.path = None if path is None else ranked(path)
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(
                f"--json={path}: there is no folder {self.path.parent}; make it first."
            )
        if self.path is not None:
            _check_appending(self.path)
        earlier = list(self._read())
        self._finished = [record for record in earlier if record["outcome"] == "ok"]
        self._resume = resume

    def finished(self, identity: Record, *, with_trace: bool = False) -> Record | None:
        """Return the earlier record of a case that need not run again, or None.

        Args:
            identity: The case, its data set and the environment, as its record has them; a figure
                of another machine or of other versions is not the same.
            with_trace: Whether a profile is wanted: a record without a trace does not do then.
        """
        if not self._resume:
            return None
        wanted = json.loads(json.dumps({"schema": SCHEMA, **identity}, default=str))
        for record in self._finished:
            if with_trace and record.get("trace") is None:
                continue
            if all(record.get(key) == wanted.get(key) for key in ("schema", *IDENTITY)):
                return record
        return None

    def append(self, record: Record) -> None:
        """Write one record, whole, and see it onto the disk.

        Raises:
            ValueError: If the record holds a number that JSON does not have (nan, inf).
        """
        if self.path is None:
            return
        line = json.dumps({"schema": SCHEMA, **record}, default=str, allow_nan=False) + "\n"
        # One write to a file opened for appending: a reader never sees half of a record.
        with interrupts_deferred(), _appending(self.path) as descriptor:
            if not _ends_a_line(self.path):  # what a crash left of the last record
                line = "\n" + line
            _write_all(descriptor, line.encode())
            os.fsync(descriptor)

    def _read(self) -> Iterator[Record]:
        if self.path is None or not self.path.exists():
            return
        *lines, rest = self.path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, start=1):
            record = _parsed(line)
            if record is not None:
                yield record
            elif line and not _torn(line):
                raise ValueError(
                    f"--json={self.path}: line {number} is not a record of this benchmark; give "
                    "another file."
                )
        if rest and not lines and not _torn(rest):
            raise ValueError(f"--json={self.path} is not a file of records; give another file.")


def _parsed(line: str) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_record = isinstance(record, dict) and record.get("schema") == SCHEMA
    return record if is_record else None


def _torn(line: str) -> bool:
    """Say whether this is the beginning of a record that was never finished."""
    begin = f'{{"schema": "{SCHEMA}"'
    return line.startswith(begin) or begin.startswith(line)


def _check_appending(path: Path) -> None:
    """Open the file for appending and leave everything as it is.

    Raises:
        OSError: If it cannot be opened.
    """
    try:
        with _appending(path, os.O_EXCL):
            pass
    except FileExistsError:
        with _appending(path):
            pass
    else:
        path.unlink()


@contextlib.contextmanager
def _appending(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
