"""Columns defined once; records to text, CSV, JSON and pandas.

A record is any frozen dataclass of numbers and strings. Nothing here measures.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnprof._files import ranked, write_atomically, write_text
from gnnprof._records import ProfileRow

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pandas import DataFrame

NOT_MEASURED = "n/a"

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


# --- records to files ------------------------------------------------------------------------


def records_to_json(
    path: str | os.PathLike[str],
    rows: Sequence[DataclassInstance],
    header: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> Path:
    """Write `{**header, "rows": [...]}`; where several processes run, with the rank in the name.

    Args:
        path: Where the file shall be.
        rows: Records, one object each; None becomes null.
        header: What holds for all rows: schema name and version, totals, environment.
        overwrite: Whether to replace an earlier file.

    Returns:
        The path written.

    Raises:
        FileExistsError: If there is a file and `overwrite` is False.
        OSError: If the folder is missing or not writable.
    """
    text = json.dumps({**header, "rows": [asdict(row) for row in rows]}, indent=1, allow_nan=False)
    return write_text(path, text + "\n", overwrite=overwrite)


def records_to_csv(
    path: str | os.PathLike[str],
    rows: Sequence[DataclassInstance],
    names: Sequence[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Write one line per record, None as an empty field; otherwise as `records_to_json`.

    Text that a spreadsheet would take for a formula gets a leading apostrophe.

    Args:
        path: Where the file shall be.
        rows: Records of one class.
        names: The fields to write, in order: the heading.
        overwrite: Whether to replace an earlier file.
    """

    def write(file: Path) -> None:
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(names)
            writer.writerows([_csv_value(getattr(row, name)) for name in names] for row in rows)

    return write_atomically(ranked(path), write, overwrite=overwrite)


def records_to_pandas(rows: Sequence[DataclassInstance], names: Sequence[str]) -> DataFrame:
    """Return a data frame with one line per record.

    Raises:
        ImportError: If pandas is not installed; the message names the extra that brings it.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError('to_pandas() needs pandas: pip install "gnnprof[report]"') from error
    return pandas.DataFrame([asdict(row) for row in rows], columns=list(names))


def field_names(record: type[DataclassInstance]) -> tuple[str, ...]:
    """Names of a record's fields, in order."""
    return tuple(field.name for field in fields(record))


def _csv_value(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value


# --- numbers to text -------------------------------------------------------------------------


def format_time(time_us: float | None) -> str:
    """Format microseconds as `1.234us`, `1.234ms` or `1.234s`; unknown is `n/a`."""
    if time_us is None:
        return NOT_MEASURED
    size = abs(time_us)
    if size >= 1e6:
        return f"{time_us / 1e6:.3f}s"
    return f"{time_us / 1e3:.3f}ms" if size >= 1e3 else f"{time_us:.3f}us"


def format_memory(nbytes: int | None) -> str:
    """Format bytes as the reference does: `12 b`, `1.50 Kb` for 1,536 bytes, `Mb`, `Gb`."""
    if nbytes is None:
        return NOT_MEASURED
    for power, unit in ((3, "Gb"), (2, "Mb"), (1, "Kb")):
        if abs(nbytes) >= 1024**power:
            return f"{nbytes / 1024**power:.2f} {unit}"
    return f"{nbytes} b"


def format_bytes(nbytes: int | None) -> str:
    """Format bytes as `12 B`, `1.50 KiB`, `1.50 MiB` or `1.50 GiB`; unknown is `n/a`."""
    if nbytes is None:
        return NOT_MEASURED
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(nbytes) >= 1024**power:
            return f"{nbytes / 1024**power:.2f} {unit}"
    return f"{nbytes} B"


def format_count(number: int | None) -> str:
    """Format a count as `12`, `1.50 K`, `1.50 M` or `1.50 G` (powers of 1,000)."""
    if number is None:
        return NOT_MEASURED
    for power, unit in ((3, "G"), (2, "M"), (1, "K")):
        if number >= 1000**power:
            return f"{number / 1000**power:.2f} {unit}"
    return str(number)


def _or_unknown(figure: Any, form: str) -> str:
    return NOT_MEASURED if figure is None else form.format(figure)


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


# --- the layer table -------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One figure of a `ProfileRow`.

    Attributes:
        key: Name of the record's field.
        heading: What stands above the column. CUDA stands for whichever accelerator was profiled.
        measure: The figure in the unit of the raw results: microseconds, bytes or a count.
        text: The figure as the table prints it.
        needs: What must have been measured: any of 'device', 'memory', 'backward' and 'work'.
        in_trace: Whether `Profiler.get_trace` lists it: the columns of the reference.
    """

    key: str
    heading: str
    measure: Callable[[Any], Any]
    text: Callable[[Any], str]
    needs: frozenset[str] = frozenset()
    in_trace: bool = True

    def read(self, row: ProfileRow) -> Any:
        """The figure of a row in the unit of the raw results."""
        return self.measure(getattr(row, self.key))


def _time(key: str, heading: str, *needs: str) -> Column:
    in_trace = "backward" not in needs
    return Column(key, heading, _microseconds, format_time, frozenset(needs), in_trace)


def _memory(key: str, heading: str, *needs: str, in_trace: bool = True) -> Column:
    return Column(key, heading, lambda nbytes: nbytes, format_bytes, frozenset(needs), in_trace)


def _work(key: str, heading: str, text: Callable[[Any], str]) -> Column:
    return Column(key, heading, lambda figure: figure, text, frozenset({"work"}), in_trace=False)


COLUMNS = (
    _time("self_cpu_time", "Self CPU total"),
    _time("cpu_time", "CPU total"),
    _time("self_backward_cpu_time", "Self CPU backward", "backward"),
    _time("backward_cpu_time", "CPU backward", "backward"),
    _time("self_device_time", "Self CUDA total", "device"),
    _time("device_time", "CUDA total", "device"),
    _time("self_backward_device_time", "Self CUDA backward", "device", "backward"),
    _time("backward_device_time", "CUDA backward", "device", "backward"),
    _memory("self_cpu_memory", "Self CPU Mem", "memory"),
    _memory("cpu_memory", "CPU Mem", "memory"),
    _memory("peak_memory", "CPU Mem peak", "memory", in_trace=False),
    _memory("self_device_memory", "Self CUDA Mem", "device", "memory"),
    _memory("device_memory", "CUDA Mem", "device", "memory"),
    _memory("peak_device_memory", "CUDA Mem peak", "device", "memory", in_trace=False),
    _work("flops", "FLOPs", format_count),
    _work("bytes_moved", "Bytes moved", format_bytes),
    _work("percent_of_limit", "% of limit", lambda share: _or_unknown(share, "{:.1f}")),
    _work("bound", "Bound by", lambda bound: _or_unknown(bound, "{}")),
    Column("calls", "Number of Calls", lambda calls: calls, str),
)

TRACE_COLUMNS = tuple(column for column in COLUMNS if column.in_trace)

HEADINGS = ("Module", *(column.heading for column in TRACE_COLUMNS))
"""What `Profiler.get_trace` lists as headings, whatever was measured."""
