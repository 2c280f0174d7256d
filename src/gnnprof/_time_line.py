"""The time line of a session as files: torch writes it out once, users more often."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gnnprof._files import ranked, write_atomically


class TimeLine:
    """What a session recorded, in Chrome's trace format.

    Args:
        save: Writes it to a path, and can do so once.
    """

    def __init__(self, save: Callable[[str], None]) -> None:
        self._save = save
        self._is_saved = False
        self._written: Path | None = None
        self._stamp: tuple[int, ...] = ()

    def write(self, path: str | os.PathLike[str], *, overwrite: bool) -> Path:
        """Write it, the first time as torch does, later as a copy of the file written last.

        Args:
            path: The file; where several processes run, the rank is put into its name. A name that
                ends in .gz is compressed.
            overwrite: Whether to replace an earlier file.

        Returns:
            The path written.

        Raises:
            FileExistsError: If there is a file and `overwrite` is False.
            FileNotFoundError: If there is no such folder, or the file written last is gone
                or was changed.
        """
        written = write_atomically(ranked(path), self._fill, overwrite=overwrite)
        self._written = written.resolve()
        self._stamp = _stamp_of(self._written)
        return written

    def _fill(self, file: Path) -> None:
        if self._is_saved:
            self._copy_to(file)
        elif _is_compressed(file):
            with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
                plain = Path(folder) / "trace.json"
                self._save_to(plain)
                _copy(plain, file)
        else:
            self._save_to(file)

    def _save_to(self, file: Path) -> None:
        self._is_saved = True
        self._save(str(file))

    def _copy_to(self, file: Path) -> None:
        if self._written is None:
            raise FileNotFoundError(
                "torch gives a trace once, and could not write it: profile again"
            )
        if not self._written.is_file() or _stamp_of(self._written) != self._stamp:
            raise FileNotFoundError(
                f"torch gives a trace once, and {self._written} no longer holds it: profile again"
            )
        _copy(self._written, file)


def _stamp_of(file: Path) -> tuple[int, ...]:
    """What changes when a file is written again or replaced."""
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _copy(source: Path, target: Path) -> None:
    with _opened(source, "rb") as read, _opened(target, "wb") as written:
        shutil.copyfileobj(read, written)


def _opened(file: Path, mode: str) -> IO[bytes]:
    if _is_compressed(file):
        return gzip.open(file, mode)  # type: ignore[return-value]
    return file.open(mode)


def _is_compressed(file: Path) -> bool:
    return file.suffix == ".gz"
