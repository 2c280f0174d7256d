"""Reads what `Profiler.to_json` wrote: one file for every process of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from gnnprof._merge import RankProfile
from gnnprof._records import ProfileRow
from gnnprof._summary import SCHEMA
from gnnprof._version import __version__

_FIRST_SCHEMA = re.compile(r'"schema"\s*:\s*"([^"]*)"')
_ANY_VERSION = SCHEMA.partition("/")[0] + "/"
_HEAD = 4096
"""Characters at the start of a file in which its schema must stand; we write it first."""

_HEADER: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "rank": (int,),
    "world_size": (int,),
    "steps": (int,),
    "total_time": (int, float),
    "coverage": (int, float),
    "environment": (dict,),
    "overhead": (dict,),
    "peaks": (dict,),
    "limits": (dict,),
    "notes": (list,),
    "rows": (list,),
}
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "None": (type(None),),
}
_ROW = {
    field.name: (
        tuple(kind for name in str(field.type).split(" | ") for kind in _KINDS[name]),
        field.default is MISSING,
    )
    for field in fields(ProfileRow)
}
"""What a row must hold: types, and whether the figure may be missing, by its name."""


class UnreadableProfileError(ValueError):
    """A file that is no profile, or not one that this version can read."""


@dataclass(frozen=True)
class Skipped:
    """A file of the folder that was left alone.

    Attributes:
        file: Its name.
        reason: Why.
    """

    file: str
    reason: str


def read_folder(folder: Path) -> tuple[list[RankProfile], list[Skipped]]:
    """Read every profile in a folder; other files are skipped.

    Args:
        folder: Not searched below its first level; hidden files do not count.

    Returns:
        The profiles in the order of their ranks, and what was skipped.

    Raises:
        UnreadableProfileError: If a file is a profile and cannot be read. It is not skipped: a
            rank would be lost.
        OSError: If there is no such folder, or a file cannot be opened.
    """
    profiles, skipped = [], []
    visible = [file for file in folder.iterdir() if not file.name.startswith(".")]
    for file in sorted(visible):  # the others are being written
        if file.suffix != ".json":
            skipped.append(Skipped(file.name, "no .json file"))
        elif not _is_profile(file):
            skipped.append(Skipped(file.name, "not written by Profiler.to_json"))
        else:
            profiles.append(read_profile(file))
    return sorted(profiles, key=lambda profile: profile.rank), skipped


def _is_profile(file: Path) -> bool:
    """Whether a file says so at its start: a Chrome trace beside it may have hundreds of MB."""
    if file.is_dir():
        return False
    with file.open(encoding="utf-8", errors="replace") as stream:
        schema = _FIRST_SCHEMA.search(stream.read(_HEAD))
    return schema is not None and schema[1].startswith(_ANY_VERSION)


def read_profile(file: Path) -> RankProfile:
    """Read one profile.

    Raises:
        UnreadableProfileError: If it is none, of another schema version, or damaged.
        OSError: If the file cannot be opened.
    """
    if not _is_profile(file):
        raise UnreadableProfileError(
            f"{file} was not written by Profiler.to_json, and only that can be read"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except ValueError as error:  # bad JSON or bad UTF-8
        raise UnreadableProfileError(f"{file} is damaged: {error}; copy it again") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise UnreadableProfileError(
            f"{file} has the schema {schema!r}, and gnnprof {__version__} reads {SCHEMA!r}; "
            "install the version of gnnprof that wrote it"
        )
    complaint = next(_complaints(content), None)
    if complaint is not None:
        raise UnreadableProfileError(f"{file} is no complete profile: {complaint}; write it again")
    rows = tuple(_row(entry) for entry in content.pop("rows"))
    return RankProfile(
        file.name, content["rank"], content["world_size"], content["model"], content, rows
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _complaints(content: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with a profile; what comes after the first complaint relies on it."""
    for name, kinds in _HEADER.items():
        if name not in content:
            yield f"it lacks {name!r}"
        elif not _is(content[name], kinds):
            yield f"{name!r} is a {type(content[name]).__name__}"
    if not 0 <= content["rank"] < content["world_size"]:
        yield f"there is no rank {content['rank']} among {content['world_size']}"
    seen = set()
    for number, entry in enumerate(content["rows"]):
        yield from (f"row {number}: {complaint}" for complaint in _row_complaints(entry))
        key = entry["path"], entry["phase"], entry["op"]
        if key in seen:
            yield f"row {number}: a second row of {key}"
        seen.add(key)


def _row_complaints(entry: Any) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield "no object"
        return
    for name, (kinds, required) in _ROW.items():
        if name not in entry and required:
            yield f"it lacks {name!r}"
        elif name in entry and not _is(entry[name], kinds):
            yield f"{name!r} is a {type(entry[name]).__name__}"


def _is(value: object, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of the kinds; true and false are no numbers."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def _row(entry: Mapping[str, Any]) -> ProfileRow:
    """Build the record; figures that only a later version knows are left out."""
    return ProfileRow(**{name: value for name, value in entry.items() if name in _ROW})
