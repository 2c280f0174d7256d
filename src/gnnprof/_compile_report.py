"""The result of `compile_benchmark`: its rows, and what they say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnprof import _compile_tables
from gnnprof._compile_records import SCHEMA, CompileRow, NoiseFloor
from gnnprof._files import write_text

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class CompileReport:
    """What `compile_benchmark` measured.

    Attributes:
        rows: The row of eager against eager, then one row for each mode and `dynamic`.
        noise_floor: Eager against eager in the main phase: what this machine cannot tell apart.
        environment: Versions, device, threads and load that the figures depend on.
        settings: What `compile_benchmark` was asked for, as text and numbers.
    """

    rows: tuple[CompileRow, ...]
    noise_floor: NoiseFloor
    environment: Mapping[str, str]
    settings: Mapping[str, Any]

    @cached_property
    def recommendation(self) -> str:
        """Which mode to use, why, and from how many calls on; computed from the rows."""
        return _compile_tables.recommendation(self.rows)

    def __str__(self) -> str:
        return "\n".join(
            [
                _compile_tables.text_table(self.rows),
                _compile_tables.noise_text(self.noise_floor),
                _compile_tables.wrapped(self.recommendation),
                _compile_tables.environment_text(self.environment),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values, in seconds and bytes."""
        return {
            "schema": SCHEMA,
            "settings": dict(self.settings),
            "environment": dict(self.environment),
            "noise_floor": self.noise_floor.to_dict(),
            "recommendation": self.recommendation,
            "rows": [row.to_dict() for row in self.rows],
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> CompileReport:
        """Restore a report from its `to_dict`.

        Raises:
            ValueError: If the entry has another schema.
        """
        if entry.get("schema") != SCHEMA:
            raise ValueError(
                f"the schema is {entry.get('schema')!r}; this version reads {SCHEMA!r}"
            )
        return cls(
            rows=tuple(CompileRow.from_dict(row) for row in entry["rows"]),
            noise_floor=NoiseFloor.from_dict(entry["noise_floor"]),
            environment=dict(entry["environment"]),
            settings=dict(entry["settings"]),
        )

    def to_json(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write `to_dict` to a file, at once or not at all; with the rank in a distributed run.

        Raises:
            FileExistsError: If there is a file and `overwrite` is False.
            OSError: If the folder is missing or not writable.
        """
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        return write_text(path, text + "\n", overwrite=overwrite)

    def to_pandas(self) -> DataFrame:
        """Return a data frame with a line for each row, in seconds and bytes.

        Raises:
            ImportError: If pandas is not installed; the message names the extra that brings it.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError('to_pandas() needs pandas: pip install "gnnprof[report]"') from error
        return pandas.DataFrame([row.to_dict() for row in self.rows])

    def to_latex(self) -> str:
        r"""Return a LaTeX `tabular` (package booktabs) with the columns of `str`, escaped."""
        return _compile_tables.latex_table(self.rows)
