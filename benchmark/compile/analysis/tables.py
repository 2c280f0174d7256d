"""Plain tables, and how their figures read; every renderer shows these and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from benchmark.compile.analysis.estimates import Estimate
from benchmark.compile.analysis.rows import Row
from gnnprof._tables import NOT_MEASURED

Value = str | int | float | None

NOTHING = "not measured"
"""What stands where a whole table or answer has no figures; one figure that is unknown is n/a."""

LEGEND = {
    "better": "faster, or less memory: the 95 % interval excludes 1",
    "worse": "slower, or more memory: the 95 % interval excludes 1",
    "void": "not measured, or not exercised on this device",
    "failed": "failed",
}
"""What each tone means. No tone: the interval holds 1 (undecided), or there is none."""


class Cell(NamedTuple):
    """A value and its tone.

    Attributes:
        value: A text, a number in the unit of the column, or None for unknown.
        tone: A key of `LEGEND`, or None.
    """

    value: Value
    tone: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: What stands above it, with the unit.
        digits: Digits after the point of its numbers; None for texts and whole numbers.
    """

    heading: str
    digits: int | None = None

    @property
    def is_tiny(self) -> bool:
        """Whether its numbers would all read as zero, such as errors of 1e-7."""
        return self.digits is not None and self.digits > 6

    def text(self, cell: Cell) -> str:
        """A cell as it reads; unknown is `n/a`."""
        if cell.value is None:
            return NOT_MEASURED
        if isinstance(cell.value, float) and self.is_tiny:
            return f"{cell.value:.2e}"
        if isinstance(cell.value, float):
            return f"{cell.value:,.{2 if self.digits is None else self.digits}f}"
        return cell.value if isinstance(cell.value, str) else f"{cell.value:,}"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        columns: Its columns.
        rows: Cells, as many as there are columns.
        empty: What stands there instead where it has no rows.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = NOTHING


@dataclass(frozen=True)
class Sheet:
    """One sheet of the workbook.

    Attributes:
        name: On its tab; at most 31 characters.
        heading: What it shows and what its figures are.
        notes: Sentences to read with it.
        tables: Its tables.
    """

    name: str
    heading: str
    notes: tuple[str, ...]
    tables: tuple[Table, ...]


# --- tables from columns ---------------------------------------------------------------------

T = TypeVar("T")


class Reader(NamedTuple):
    """A column and how to read it from what a row of the table stands for."""

    heading: str
    digits: int | None
    read: Callable[..., Value | Cell]

    def of(self, pick: Callable[..., object]) -> Reader:
        """The same column for what holds the item that it reads."""
        return self._replace(read=lambda whole: self.read(pick(whole)))


def table_of(
    title: str, items: Iterable[T], readers: Sequence[Reader], *, empty: str = NOTHING
) -> Table:
    """Make a table with one row for each item."""
    return Table(
        title,
        tuple(Column(reader.heading, reader.digits) for reader in readers),
        tuple(tuple(_cell(reader.read(item)) for reader in readers) for item in items),
        empty,
    )


def _cell(found: Value | Cell) -> Cell:
    return found if isinstance(found, Cell) else Cell(found)


def mean_readers(
    heading: str, get: Callable[..., Estimate | None], *, less_is_better: bool = False
) -> tuple[Reader, Reader, Reader]:
    """The columns of a ratio and its interval; coloured where the interval excludes 1."""

    def value(item: object) -> Cell:
        ratio = get(item)
        return Cell(NOTHING, "void") if ratio is None else _toned(ratio, less_is_better)

    return (
        Reader(heading, 3, value),
        Reader("Low", 3, lambda item: getattr(get(item), "low", None)),
        Reader("High", 3, lambda item: getattr(get(item), "high", None)),
    )


def _toned(ratio: Estimate, less_is_better: bool = False) -> Cell:
    if ratio.decided is None:
        return Cell(ratio.value)
    return Cell(ratio.value, "better" if (ratio.decided == "slower") == less_is_better else "worse")


def times(value: float | None, factor: float) -> float | None:
    """A figure in another unit; unknown stays unknown."""
    return None if value is None else value * factor


# --- the columns of a row --------------------------------------------------------------------

MS, MIB = 1e3, 2.0**-20


def _shown(name: str, factor: float | None = None) -> Callable[[Row], Value]:
    """Read a figure of what ran, unless another mode ran than the row says."""

    def read(row: Row) -> Value:
        if row.label is None:
            return None
        value: Value = getattr(row, name)
        return value if factor is None or isinstance(value, str) else times(value, factor)

    return read


def _estimate(name: str, part: str, factor: float = 1.0) -> Callable[[Row], Value]:
    def read(row: Row) -> Value:
        estimate: Estimate | None = getattr(row, name) if row.label else None
        return None if estimate is None else times(getattr(estimate, part), factor)

    return read


def speedup_cell(row: Row | None) -> Cell:
    """Speedup of a row, or in words why it has none."""
    if row is None:
        return Cell(NOTHING, "void")
    if row.usable and row.speedup is not None:
        return _toned(row.speedup)
    return finding_cell(row)


def speedup_end(row: Row | None, name: str) -> float | None:
    """Lower or upper end of the interval of a row's speedup: `name` is 'low' or 'high'."""
    if row is None or not row.usable or row.speedup is None:
        return None
    return row.speedup.low if name == "low" else row.speedup.high


def finding_cell(row: Row) -> Cell:
    """The verdict of a row, or in words why it has none."""
    finding = row.finding
    if row.usable:
        return Cell(finding, {"faster": "better", "slower": "worse"}.get(finding))
    return Cell(finding, "void" if row.status in ("ok", NOTHING) else "failed")


SETTING = (
    Reader("Device", None, lambda setting: setting.device),
    Reader("Threads", None, lambda setting: setting.threads),
    Reader("Precision", None, lambda setting: setting.precision),
    Reader("Input", None, lambda setting: setting.feeding),
)
EXPERIMENT = (
    Reader("Framework", None, lambda row: row.experiment.library),
    Reader("Model", None, lambda row: row.experiment.model),
    Reader("Data", None, lambda row: row.experiment.data),
    Reader("Task", None, lambda row: row.experiment.task),
    *(reader.of(lambda row: row.experiment.setting) for reader in SETTING),
    Reader("Layers", None, lambda row: row.experiment.layers),
    Reader("Hidden", None, lambda row: row.experiment.hidden),
)
VARIANT = (
    Reader("Dynamic", None, lambda row: row.dynamic),
    Reader("Variant", None, lambda row: row.variant),
    Reader("Phase", None, lambda row: row.phase),
)
OUTCOME = (
    Reader("Verdict", None, finding_cell),
    Reader("Mode that ran", None, lambda row: row.effective_mode),
    Reader("Processes", None, lambda row: row.replicates),
    Reader("Processes used", None, lambda row: row.replicates_ok),
)
SPEED = (
    Reader("Time [ms]", 3, _estimate("time", "value", MS)),
    Reader("Time low [ms]", 3, _estimate("time", "low", MS)),
    Reader("Time high [ms]", 3, _estimate("time", "high", MS)),
    Reader("Eager time, same rounds [ms]", 3, _estimate("eager_time", "value", MS)),
    Reader("Speedup", 3, speedup_cell),
    Reader("Speedup low", 3, _estimate("speedup", "low")),
    Reader("Speedup high", 3, _estimate("speedup", "high")),
)
COMPILING = (
    Reader("Cold compile [s]", 2, _shown("compile_cold")),
    Reader("Warm compile [s]", 2, _shown("compile_warm")),
    Reader("First call [s]", 2, _shown("first_call")),
    Reader("Break-even, cold [calls]", None, _shown("break_even")),
    Reader("Break-even, warm [calls]", None, _shown("break_even_warm")),
    Reader("Graphs", None, _shown("graphs")),
    Reader("Graph breaks", None, _shown("graph_breaks")),
    Reader("Recompiles", None, _shown("recompiles")),
    Reader("CUDA-graph skips", None, _shown("cudagraph_skips")),
    Reader("Distinct kernels", None, _shown("kernels")),
    Reader("Kernel launches per call", None, _shown("kernel_launches")),
)
MEMORY = (
    Reader("Peak memory [MiB]", 2, _shown("peak_memory", MIB)),
    Reader("Eager peak memory [MiB]", 2, _shown("eager_peak_memory", MIB)),
)
MEMORY_RATIO = Reader(
    "Compiled / eager peak", 3, lambda row: row.memory.value if row.memory else None
)
REST = (
    Reader("Throughput", 1, _shown("throughput")),
    Reader("Throughput unit", None, _shown("throughput_unit")),
    Reader("Edges/s", 1, _shown("edges_per_second")),
    Reader("Sampling per batch [ms]", 3, _shown("sampling", MS)),
    Reader("Transfer per batch [ms]", 3, _shown("transfer", MS)),
    Reader("Compute per batch [ms]", 3, _shown("compute", MS)),
    Reader("Batch, end to end [ms]", 3, _shown("end_to_end", MS)),
    Reader("CPU utilisation [%]", 1, _shown("cpu_utilisation", 100)),
    Reader("Samples in two groups", None, lambda row: "yes" if row.bimodal else "no"),
    Reader("Max abs error of outputs", 9, lambda row: row.max_abs_error),
    Reader("Max abs error of gradients", 9, lambda row: row.max_abs_error_grad),
    Reader("Reason", None, lambda row: row.reason),
)
MODE = Reader("Mode", None, lambda row: row.mode)
BREAKS = Reader("Where it breaks", None, lambda row: "; ".join(row.breaks) or None)

ALL = (*EXPERIMENT, *VARIANT, *OUTCOME, *SPEED, *COMPILING, *MEMORY, *REST)
"""Every column of a row that is one mode's."""
