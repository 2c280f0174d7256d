"""The arguments that every loader of data takes, checked once at the door."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnprof import _device

Result = TypeVar("Result")


@dataclass(frozen=True)
class DataRequest:
    """Which data set is wanted, from where, and at which size.

    Attributes:
        name: The name as the set spells it.
        root: Folder of real data, or None.
        scale: Factor on the size of a stand-in; None for real data.
        seed: Seed of a stand-in.
        download: Whether missing real data may be fetched into `root`.
        is_stand_in: Whether the set is generated.
    """

    name: str
    root: Path | None
    scale: float | None
    seed: int
    download: bool
    is_stand_in: bool

    @property
    def stand_in_scale(self) -> float:
        """The scale of a stand-in."""
        if self.scale is None:
            raise TypeError(f"{self.name} is real data, which has no scale")
        return self.scale


def check_request(
    name: str,
    names: Iterable[str],
    default_scales: Mapping[str, float],
    root: str | os.PathLike[str] | None,
    scale: float | None,
    seed: int,
    download: bool,
) -> DataRequest:
    """Return the request, with the name as the set spells it and the scale filled in.

    Args:
        name: What the user wrote, in any case.
        names: All names that exist.
        default_scales: The scale of each stand-in where none is given; its keys are the stand-ins.
        root: Folder of real data.
        scale: Factor on the size of a stand-in, or None for its default.
        seed: Seed of a stand-in.
        download: Whether missing real data may be fetched into `root`.

    Raises:
        ValueError: For an unknown name, a bad scale or seed, or a scale for real data.
    """
    known = {known_name.lower(): known_name for known_name in names}
    if name.lower() not in known:
        raise ValueError(f"dataset={name!r} is unknown; give one of {', '.join(known.values())}.")
    name = known[name.lower()]
    is_stand_in = name in default_scales
    if is_stand_in:
        scale = default_scales[name] if scale is None else scale
        if not 0 < scale < float("inf"):
            raise ValueError(f"scale={scale} must be a positive number.")
    elif scale not in (None, 1):
        raise ValueError(f"scale={scale} with {name}: only the '-like' stand-ins can be scaled.")
    else:
        scale = None
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative.")
    where = None if root is None else Path(root)
    return DataRequest(name, where, scale, seed, download, is_stand_in)


def data_is_missing(
    request: DataRequest,
    missing: Path | None,
    layout: str,
    stand_in: str | None,
    *,
    fetchable: bool = True,
) -> FileNotFoundError:
    """Return the error for real data that is not on this machine.

    Args:
        request: What was wanted.
        missing: The first file or folder that is not there; unused without a root.
        layout: What the root has to hold, below it.
        stand_in: A generated set of that shape, or None.
        fetchable: Whether it can be downloaded.
    """
    where = "no --root was given" if request.root is None else f"{missing} is missing"
    remedies = [f"give --root FOLDER that holds {layout}"]
    if fetchable:
        remedies.append("add --download to fetch it into that folder")
    if stand_in is not None:
        remedies.append(f"use --dataset {stand_in}, a stand-in of its shape")
    advice = ", or ".join([*([", ".join(remedies[:-1])] if remedies[1:] else []), remedies[-1]])
    return FileNotFoundError(
        f"dataset={request.name} is real data that is not on this machine ({where}): {advice}."
    )


def check_raw_files(
    request: DataRequest, folder: str, names: Iterable[str], layout: str, stand_in: str
) -> Path:
    """Return the root, after a look whether all raw files are below it or may be fetched.

    The loaders of PyG and OGB fetch the whole set where one name is missing, and some clear the
    raw folder first. So they are not called unless every name is there or it was asked for.

    Args:
        request: What is wanted.
        folder: Of the set, below the root; the raw files are in `raw` within.
        names: Of the files and folders that the loader looks for.
        layout: What the root has to hold, for the error.
        stand_in: A generated set of that shape, for the error.

    Raises:
        FileNotFoundError: If there is no root, or a name is missing and may not be downloaded.
    """
    if request.root is None:
        raise data_is_missing(request, None, layout, stand_in)
    paths = (request.root / folder / "raw" / name for name in names)
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        if not request.download:
            raise data_is_missing(request, missing, layout, stand_in)
        print(f"Downloading {request.name} into {request.root} ...", file=sys.stderr)
    return request.root


def download_failed(
    request: DataRequest, error: BaseException, stand_in: str | None
) -> ConnectionError:
    """Return the error for real data that cannot be fetched."""
    instead = "" if stand_in is None else f", or use --dataset {stand_in}, a stand-in of its shape"
    return ConnectionError(
        f"dataset={request.name} cannot be downloaded into {request.root} ({error}): bring the "
        f"files there by other means{instead}."
    )


def timed(function: Callable[[], Result]) -> tuple[Result, float]:
    """Return what a function returns, and its seconds of wall time."""
    start = _device.clock()
    result = function()
    return result, _device.clock() - start


def content_hash(arrays: Iterable[NDArray[np.generic]]) -> str:
    """Return the SHA-256 of arrays, numbers in little-endian int64, float32 or single bytes.

    Whole numbers are hashed as int64 and other numbers as float32, whatever their type was; truth
    values are hashed as bytes. Each array is preceded by its shape.
    """
    content = hashlib.sha256()
    for array in arrays:
        dtype = {"b": "?", "f": "<f4"}.get(array.dtype.kind, "<i8")
        content.update(np.asarray(array.shape, dtype="<i8").tobytes())
        content.update(np.ascontiguousarray(array, dtype=dtype).data)
    return content.hexdigest()
