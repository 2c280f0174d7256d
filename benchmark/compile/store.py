"""The folder of a sweep: records, logs, and claims by which several workers share the cases.

::

    records/<key>.json   one per finished case, never half of one
    logs/<key>.log       what the case's process printed
    claims/              who runs which case now
    work                 scratch of running cases, removed when they end
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.compile.case import SCHEMA

OUTCOMES = (
    "ok",
    "oom",
    "timeout",
    "crash",
    "compile_error",
    "wrong_result",
    "unsupported",
    "interrupted",
)
HEARTBEAT_SECONDS = 10.0
SILENT_SECONDS = 600.0
"""A claim of another host without a heartbeat for so long is taken to be left behind."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_SPACE = Path("/proc/self/ns/pid")


class Store:
    """A sweep's folder.

    Args:
        folder: It is made, with its sub-folders, if it is not there.

    Attributes:
        folder: As given, absolute.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        for inner in ("records", "logs", "claims", "work"):
            (self.folder / inner).mkdir(parents=True, exist_ok=True)

    # -- records ---------------------------------------------------------------------------------

    def record_path(self, key: str) -> Path:
        """Return where the record of a case is, or will be."""
        return self.folder / "records" / f"{key}.json"

    def log_path(self, key: str) -> Path:
        """Return where the output of a case's process is, or will be."""
        return self.folder / "logs" / f"{key}.log"

    def read(self, key: str) -> dict[str, Any] | None:
        """Return the record of a case; None if there is none, or the file is no such record."""
        try:
            record = json.loads(self.record_path(key).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # absent, or damaged by what was not us
            return None
        valid = (
            isinstance(record, dict)
            and record.get("schema") == SCHEMA
            and record.get("key") == key
            and record.get("outcome") in OUTCOMES
        )
        return record if valid else None

    def records(self) -> Iterator[dict[str, Any]]:
        """Give every record of the folder, in the order of their keys."""
        for path in sorted((self.folder / "records").glob("*.json")):
            record = self.read(path.stem)
            if record is not None:
                yield record

    def outcome(self, key: str) -> str | None:
        """Return the outcome on record; None without a record."""
        record = self.read(key)
        return None if record is None else str(record["outcome"])

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a case's record, in the place of an earlier one.

        Raises:
            ValueError: If it holds a number that JSON does not have (nan, inf).
        """
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write_text(self.record_path(record["key"]), text, self.draft())

    def remove(self, key: str) -> None:
        """Remove the record of a case that is to run again."""
        self.record_path(key).unlink(missing_ok=True)

    # -- scratch ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self, key: str) -> Iterator[Path]:
        """Give a running case an empty folder, without what a killed worker left of that case."""
        for left in (self.folder / "work").glob(f"{key}-*"):
            _remove(left)
        folder = self.folder / "work" / f"{key}-{_token()}"
        folder.mkdir()
        try:
            yield folder
        finally:
            _remove(folder)

    def tidy(self, keys: Iterable[str]) -> None:
        """Remove what a worker left of cases that it had finished when it was killed.

        What it left of the case that it was running is removed when that case runs again.
        """
        claimed = {path.name.partition(".")[0] for path in (self.folder / "claims").iterdir()}
        for key in claimed.intersection(keys):
            with self.claimed(key) as mine:
                if mine:
                    with self.scratch(key):
                        pass

    # -- claims ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def claimed(self, key: str) -> Iterator[bool]:
        """Hold the sole right to run a case; what is yielded tells whether it could be had.

        A claim is a file with the host, the process and its start, touched every few seconds. A
        claim is left behind if its process has ended (same host), or if it has been silent for
        `SILENT_SECONDS` (another host). It is not removed but outnumbered: the claims of a case
        are numbered, the highest one counts, and two workers cannot create the same file.
        """
        claim = self._claim(key)
        if claim is None:
            yield False
            return
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(claim, stop), name="claim", daemon=True)
        beat.start()
        try:
            yield True
        finally:
            stop.set()
            beat.join()
            for number in range(1, _number(claim) + 1):  # ours last
                self._claim_path(key, number).unlink(missing_ok=True)

    def _claim(self, key: str) -> Path | None:
        highest = self._highest_claim(key)
        if highest > 0 and not _left_behind(self._claim_path(key, highest)):
            return None
        mine = self._claim_path(key, highest + 1)
        draft = self.draft()
        draft.write_text(json.dumps(_holder()), encoding="utf-8")
        try:
            _create(mine, draft)
        except FileExistsError:  # another worker was faster
            return None
        finally:
            draft.unlink()
        if self._highest_claim(key) != highest + 1:  # it was created between our two looks
            mine.unlink(missing_ok=True)
            return None
        return mine

    def _highest_claim(self, key: str) -> int:
        found = (self.folder / "claims").glob(f"{key}.*.claim")
        return max((_number(path) for path in found), default=0)

    def _claim_path(self, key: str, number: int) -> Path:
        return self.folder / "claims" / f"{key}.{number}.claim"

    def draft(self) -> Path:
        """Return a new path to write to before a file is put in its place."""
        # Not named after the case: whoever runs that removes all scratch of its name.
        return self.folder / "work" / f"draft-{_token()}"


def write_text(path: Path, text: str, draft: Path) -> None:
    """Write a file so that no reader sees half of it.

    Args:
        path: Where it shall be; an earlier file is replaced.
        text: What it shall hold.
        draft: Where to write first, on the same file system and in a folder nobody lists: a
            process that is killed here leaves no stray file among the records.
    """
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


# -- holders of claims -----------------------------------------------------------------------------


def _create(claim: Path, draft: Path) -> None:
    """Create a claim with the content of a draft, unless it is there."""
    try:
        # A link of a whole file: nobody can see a claim that does not yet say whose it is.
        os.link(draft, claim)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with claim.open("x", encoding="utf-8") as file:
            file.write(draft.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class _Holder:
    host: str
    pid: int
    started: str | None


def _holder() -> dict[str, Any]:
    return vars(_Holder(_host(), os.getpid(), _start_of(os.getpid())))


def _host() -> str:
    """Name the set of processes among which a process id means something."""
    boot = _BOOT_ID.read_text(encoding="utf-8").strip() if _BOOT_ID.exists() else ""
    space = str(_PID_SPACE.readlink()) if _PID_SPACE.exists() else ""
    return " ".join((platform.node(), boot, space)).strip()


def _start_of(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; None where that is untold.

    A process that has ended but that its parent has not asked about yet is 'ended'.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # from the third field of proc(5) on
    return "ended" if fields[0] in "ZX" else fields[19]


def _left_behind(claim: Path) -> bool:
    """Tell whether the process that made a claim has ended, as far as can be known."""
    try:
        text = claim.read_text(encoding="utf-8")
        silent = time.time() - claim.stat().st_mtime
    except FileNotFoundError:  # released just now; whoever wants it has to look again
        return False
    try:
        holder = _Holder(**json.loads(text))
    except ValueError:  # being written, or its writer was killed at that moment
        return silent > SILENT_SECONDS
    if holder.host != _host():
        return silent > SILENT_SECONDS
    return not _runs(holder)


def _runs(holder: _Holder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's, so it runs
        pass
    # A process id that was given out again belongs to a process that started later.
    return holder.started is None or _start_of(holder.pid) in (holder.started, None)


def _beat(claim: Path, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(FileNotFoundError):  # taken away by hand
            os.utime(claim)


def _number(claim: Path) -> int:
    return int(claim.name.split(".")[-2])


def _token() -> str:
    return uuid.uuid4().hex[:12]


def _remove(path: Path) -> None:
    """Remove a file or folder, however much of it there is."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
