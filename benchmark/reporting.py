"""Where a benchmark ran, and its record on disk."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from gnnprof import _device
from gnnprof._files import ranked, write_atomically


def pick_device(name: str | None) -> torch.device:
    """Return the device to run on: the one named, else the accelerator, else the CPU.

    Raises:
        ValueError: If the device named is not one of this machine's.
    """
    accelerator = _device.accelerator()
    device = _device.resolve_device(name or accelerator or "cpu")
    if device.type not in ("cpu", accelerator):
        usable = f"cpu or {accelerator}" if accelerator else "cpu"
        raise ValueError(f"device={name!r} is not usable on this machine; give {usable}.")
    return device


@contextlib.contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Run the body on `count` CPU threads; None leaves torch's choice."""
    if count is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def private_random_state(device: torch.device) -> Iterator[None]:
    """Give back the random state of the CPU and of `device` as it was before the body."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
            yield


def check_record_path(path: Path | None) -> None:
    """Find out before the work, not after it, whether the record has a place to go.

    Raises:
        FileExistsError: If the file is already there.
        FileNotFoundError: If its folder is not.
    """
    if path is None:
        return
    if ranked(path).exists():
        raise FileExistsError(f"--json={path} already exists; give a new name or remove it.")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"--json={path}: there is no folder {path.parent}; make it first.")


def check_trace_folder(profiled: bool) -> None:
    """Find out before the work whether a profile can leave its trace in the current folder.

    Args:
        profiled: Whether there will be a profile; nothing is checked without one.

    Raises:
        OSError: If no file can be made there.
    """
    if not profiled:
        return
    folder = Path.cwd()
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            error.errno,
            f"--profile leaves its trace in the current folder, which cannot be written to "
            f"({error.strerror}); run the script from another one",
            str(folder),
        ) from error


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Write a record as JSON, whole or not at all, never over an earlier one.

    Under torch.distributed the rank is put into the name.

    Raises:
        FileExistsError: If there is such a file already.
        ValueError: If the record holds a number that JSON does not have (nan, inf).
    """
    text = json.dumps(record, indent=2, default=str, allow_nan=False) + "\n"
    write_atomically(ranked(path), lambda file: _write_text(file, text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
