"""The file of a sweep's cases."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def read_matrix(path: Path) -> list[Mapping[str, Any]]:
    """Return the blocks of a TOML file, each with the entries that stand above all blocks.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no TOML, or has entries that mean nothing here.
        ModuleNotFoundError: If this Python cannot read TOML (before 3.11) and tomli is absent.
    """
    toml = _toml()
    try:
        content = toml.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"--matrix={path}: there is no such file.") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise ValueError(f"--matrix={path} is no TOML file: {error}") from None
    blocks = content.pop("cases", [{}])
    if not (isinstance(blocks, list) and all(isinstance(block, dict) for block in blocks)):
        raise ValueError(f"--matrix={path}: write each block of cases as [[cases]].")
    tables = [name for name, value in content.items() if isinstance(value, dict)]
    if tables:
        raise ValueError(f"--matrix={path}: [{tables[0]}] is unknown; write [[cases]].")
    return [{**content, **block} for block in blocks]


def _toml() -> ModuleType:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "--matrix needs Python 3.11 or tomli (pip install tomli); or give the cases by flags."
    )
