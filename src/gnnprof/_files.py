"""Write files so that a reader never sees half of one and no earlier file is lost silently."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from gnnprof._process import this_process


def write_atomically(
    path: str | os.PathLike[str], write: Callable[[Path], None], *, overwrite: bool = False
) -> Path:
    """Write a file under a temporary name in the same folder, then rename it.

    Args:
        path: Where the file shall be. A link is followed; a device or pipe is written in place.
        write: Called with the temporary path, which keeps the suffix of `path`.
        overwrite: Whether to replace a file that is already there.

    Returns:
        The path written.

    Raises:
        FileExistsError: If there is a file and `overwrite` is False.
        OSError: If the folder is missing or not writable; the error names `path`.
    """
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        _write_through(target, write)
        return target
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"{target} already exists; give another name, or overwrite=True to replace it"
        )
    final = target.resolve()
    # Not the whole name: it may be as long as a name can be.
    temporary = final.with_name(f".{uuid.uuid4().hex[:12]}{_split_suffix(final)[1]}")
    try:
        _create(temporary, target)
        write(temporary)
        _put_in_place(temporary, final, overwrite)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool = False) -> Path:
    """Write a text as UTF-8; where several processes run, with the rank in the file's name.

    Args:
        path: Where the file shall be.
        text: What it shall hold.
        overwrite: Whether to replace a file that is already there.

    Returns:
        The path written.

    Raises:
        FileExistsError: If there is a file and `overwrite` is False.
        OSError: If the folder is missing or not writable.
    """

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    return write_atomically(ranked(path), write, overwrite=overwrite)


def _write_through(device: Path, write: Callable[[Path], None]) -> None:
    """Write to a device or pipe what `write` makes in a file of its own.

    torch renames a file onto the path of a trace, which would replace the device by that file.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / device.name
        write(file)
        with file.open("rb") as source, device.open("wb") as sink:
            shutil.copyfileobj(source, sink)


def _create(temporary: Path, target: Path) -> None:
    """Create the temporary file, so that a bad folder is an error that names the target."""
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        # OSError picks its own subclass by the number: FileNotFoundError, PermissionError.
        raise OSError(error.errno, f"cannot write here: {error.strerror}", str(target)) from None


def _put_in_place(temporary: Path, final: Path, overwrite: bool) -> None:
    if overwrite:
        temporary.replace(final)
        return
    try:
        # Unlike a rename, a link never replaces a file that has appeared in the meantime.
        os.link(temporary, final)
    except FileExistsError:
        raise FileExistsError(
            f"{final} already exists; give another name, or overwrite=True to replace it"
        ) from None
    except OSError:  # a file system without hard links
        temporary.rename(final)


def ranked(path: str | os.PathLike[str]) -> Path:
    """Put the rank into a file's name where several processes would write the same file.

    Returns:
        ``timeline-rank1.json`` for ``timeline.json`` on rank 1 of several, otherwise `path`.
    """
    path = Path(path)
    process = this_process()
    if process.world_size == 1:
        return path
    stem, suffix = _split_suffix(path)
    return path.with_name(f"{stem}-rank{process.rank}{suffix}")


def set_aside(path: str | os.PathLike[str]) -> Path | None:
    """Rename a file that is in the way to ``name.1.json``, ``name.2.json``, ...

    Returns:
        The new path of the file, or None if there was none.
    """
    path = Path(path)
    if not path.is_file():  # a folder of that name is not ours to move
        return None
    stem, suffix = _split_suffix(path)
    number = 1
    while (aside := path.with_name(f"{stem}.{number}{suffix}")).exists():
        number += 1
    return path.rename(aside)


def _split_suffix(path: Path) -> tuple[str, str]:
    """Split a file's name before its suffix; '.json.gz' is one suffix, 'lr-0.5.json' has one."""
    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    return path.name.removesuffix(suffix), suffix
