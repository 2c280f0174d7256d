"""Rows of the torch.compile study to text: columns defined once, a recommendation in words."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gnnprof._compile_records import (
    EAGER,
    MODES,
    PARTLY_EAGER,
    CompileRow,
    NoiseFloor,
    PhaseTiming,
)
from gnnprof._statistics import LEAST_DIFFERENCE
from gnnprof._tables import NOT_MEASURED, format_bytes

_WIDTH = 100
_NOISY = 0.1  # half width of the noise floor above which the text says so
_MOST_RECOMPILES = 3  # listed for one row; the record has them all
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Attributes:
        heading: What stands above it, with the unit.
        text: The figure of a row as it is printed.
        applies: Whether a row has anything to show; a column that applies to no row is left out.
        is_text: Whether it holds words, which stand to the left.
    """

    heading: str
    text: Callable[[CompileRow], str]
    applies: Callable[[CompileRow], bool]
    is_text: bool = False


def _or_unknown(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else form.format(value)


def _milliseconds(timing: PhaseTiming | None) -> str:
    return NOT_MEASURED if timing is None else f"{timing.median * 1e3:.4g}"


def _interval(timing: PhaseTiming | None) -> str:
    if timing is None or timing.speedup is None:
        return NOT_MEASURED
    return f"{timing.speedup:.2f} [{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"


def _mode(row: CompileRow) -> str:
    settings = [] if row.dynamic is None else [f"dynamic={row.dynamic}"]
    settings += ["fullgraph"] if row.fullgraph else []
    return f"{row.mode} ({', '.join(settings)})" if settings else row.mode


def _always(row: CompileRow) -> bool:  # noqa: ARG001  # asked like every other condition
    return True


def _is_compiled(row: CompileRow) -> bool:
    return row.mode != EAGER


def _for_compiled(text: Callable[[CompileRow], str]) -> Callable[[CompileRow], str]:
    return lambda row: text(row) if _is_compiled(row) else ""


def _phase(name: str) -> Column:
    return Column(
        f"{name.capitalize()} [ms]",
        lambda row: _milliseconds(getattr(row, name)),
        lambda row: getattr(row, name) is not None,
    )


MODE = Column("Mode", _mode, _always, is_text=True)

TIMES = (
    Column("Ran as", lambda row: row.effective_mode or NOT_MEASURED, _always, is_text=True),
    Column("Status", lambda row: row.status, _always, is_text=True),
    _phase("forward"),
    _phase("backward"),
    _phase("step"),
    Column("Speedup [95 %]", lambda row: _interval(row.timing), _always),
    Column("Verdict", lambda row: row.verdict or NOT_MEASURED, _always, is_text=True),
    Column(
        "Compile [s]",
        _for_compiled(lambda row: _or_unknown(row.compile_seconds_cold, "{:.2f}")),
        lambda row: row.compile_seconds_cold is not None,
    ),
    Column(
        "Warm [s]",
        _for_compiled(lambda row: _or_unknown(row.compile_seconds_warm, "{:.2f}")),
        lambda row: row.compile_seconds_warm is not None,
    ),
    Column(
        "Break-even [calls]",
        _for_compiled(lambda row: _or_unknown(row.break_even_calls, "{:,}")),
        lambda row: row.break_even_calls is not None,
    ),
)

FACTS = (
    Column("Graphs", _for_compiled(lambda row: _or_unknown(row.graphs, "{}")), _is_compiled),
    Column("Breaks", _for_compiled(lambda row: _or_unknown(row.graph_breaks, "{}")), _is_compiled),
    Column(
        "Recompiles", _for_compiled(lambda row: _or_unknown(row.recompiles, "{}")), _is_compiled
    ),
    Column(
        "Kernels",
        _for_compiled(lambda row: _or_unknown(row.kernels, "{}")),
        lambda row: row.kernels is not None,
    ),
    Column(
        "Launches",
        lambda row: _or_unknown(row.kernel_launches, "{}"),
        lambda row: row.kernel_launches is not None,
    ),
    Column(
        "Peak memory",
        lambda row: format_bytes(row.peak_memory),
        lambda row: row.peak_memory is not None,
    ),
    Column(
        "Max error",
        lambda row: _or_unknown(row.max_abs_error, "{:.1e}"),
        lambda row: row.max_abs_error is not None,
    ),
    Column(
        "Max grad error",
        lambda row: _or_unknown(row.max_abs_error_grad, "{:.1e}"),
        lambda row: row.max_abs_error_grad is not None,
    ),
)


def shown_columns(columns: Sequence[Column], rows: Sequence[CompileRow]) -> list[Column]:
    """The columns that some row has something to show in."""
    return [column for column in columns if any(column.applies(row) for row in rows)]


def text_table(rows: Sequence[CompileRow]) -> str:
    """Lay out the times and what was compiled, a line for each row; below, what there is to say."""
    notes = list(dict.fromkeys(row.reason for row in rows if row.reason is not None))
    marks = ["" if row.reason is None else f" [{notes.index(row.reason) + 1}]" for row in rows]
    names = [MODE.text(row) + mark for row, mark in zip(rows, marks, strict=True)]
    tables = [_table(names, columns, rows) for columns in (TIMES, FACTS)]
    lines = [wrapped(f"[{number}] {note}") for number, note in enumerate(notes, 1)]
    lines += [wrapped(line) for line in _details(rows)]
    return "\n".join(filter(None, [*tables, sizes_table(rows), *lines]))


def _table(names: Sequence[str], columns: Sequence[Column], rows: Sequence[CompileRow]) -> str:
    from tabulate import tabulate

    shown = shown_columns(columns, rows)
    if not shown:
        return ""
    body = [
        [name, *(column.text(row) for column in shown)]
        for name, row in zip(names, rows, strict=True)
    ]
    table: str = tabulate(
        body,
        headers=[MODE.heading, *(column.heading for column in shown)],
        tablefmt="psql",
        disable_numparse=True,
        colalign=["left", *("left" if column.is_text else "right" for column in shown)],
    )
    return table


def latex_table(rows: Sequence[CompileRow]) -> str:
    r"""Return a `tabular` of the same columns, with booktabs rules and every text escaped."""
    columns = shown_columns((MODE, *TIMES, *FACTS), rows)
    layout = "".join("l" if column.is_text else "r" for column in columns)
    lines = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule"]
    lines.append(" & ".join(latex_escaped(column.heading) for column in columns) + r" \\")
    lines.append(r"\midrule")
    for row in rows:
        lines.append(" & ".join(latex_escaped(column.text(row)) for column in columns) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def latex_escaped(text: str) -> str:
    """Escape what LaTeX would take for markup, and let no line end inside."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def noise_text(floor: NoiseFloor) -> str:
    """Say what the machine cannot tell apart."""
    share = max(floor.half_width, LEAST_DIFFERENCE)
    text = (
        f"Noise floor: eager against eager gave {floor.ratio:.3f} [{floor.low:.3f}, "
        f"{floor.high:.3f}]; a speedup is called only if its interval is more than "
        f"{share:.1%} from 1."
    )
    if floor.half_width > _NOISY:
        text += (
            " The machine is noisy: close other programs, fix the number of threads "
            "(torch.set_num_threads), or ask for more rounds."
        )
    return wrapped(text)


def _details(rows: Sequence[CompileRow]) -> list[str]:
    """List graph breaks and recompiles, each once for all rows that share it."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        for place in row.breaks:
            where = place.location or "an unknown place"
            text = f"graph break at {where} ({place.count}x): {place.reason}"
            lines.setdefault(text, []).append(_mode(row))
        for again in row.recompile_reasons[:_MOST_RECOMPILES]:
            text = f"recompiled {again.function} ({again.count}x): {again.guard}"
            lines.setdefault(text, []).append(_mode(row))
        more = len(row.recompile_reasons) - _MOST_RECOMPILES
        if more > 0:
            lines.setdefault(f"recompiled for {more} more reasons", []).append(_mode(row))
    return [f"{', '.join(modes)}: {line}" for line, modes in lines.items()]


def sizes_table(rows: Sequence[CompileRow]) -> str:
    """Lay the other sizes out, a line for each mode and size; empty without any."""
    from tabulate import tabulate

    body = [
        [
            _mode(row),
            size.label,
            _milliseconds(size.timing),
            _or_unknown(None if size.timing is None else size.timing.eager_median * 1e3, "{:.4g}"),
            _interval(size.timing),
            f"{size.compile_seconds:.2f}",
            str(size.recompiles),
            "eager" if size.fell_back else "compiled",
        ]
        for row in rows
        for size in row.sizes
    ]
    if not body:
        return ""
    headings = ["Mode", "Size", "Compiled [ms]", "Eager [ms]", "Speedup [95 %]", "Compile [s]"]
    table: str = tabulate(
        body,
        headers=[*headings, "Recompiles", "Ran"],
        tablefmt="psql",
        disable_numparse=True,
        colalign=["left"] * 2 + ["right"] * 5 + ["left"],
    )
    return table


def wrapped(text: str) -> str:
    """Fill lines of 100 characters; what belongs to the first line is indented."""
    return textwrap.fill(
        text, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


# -- the recommendation ----------------------------------------------------------------------------


def recommendation(rows: Sequence[CompileRow]) -> str:
    """Say which mode to use, why, and from how many calls on; computed from the rows alone."""
    compiled = [row for row in rows if _is_compiled(row)]
    if not compiled:
        return "Only eager was measured: nothing to recommend."
    faster = [row for row in compiled if row.verdict == "faster"]
    agreed = [row for row in faster if not _disagreeing(row, compiled)]
    if agreed:
        text = _use(_best(agreed))
    else:
        text = _measure_again(faster[0], compiled) if faster else _stay_eager(compiled)
    return " ".join([text, *_about_breaks(compiled), *_about_failures(compiled)])


def _disagreeing(row: CompileRow, compiled: Sequence[CompileRow]) -> list[CompileRow]:
    """The rows that ran the same way as a faster one and were not faster."""
    alike = [one for one in compiled if _ran_as(one) == _ran_as(row) and one.verdict is not None]
    return [one for one in alike if one.verdict != "faster"]


def _ran_as(row: CompileRow) -> tuple[str | None, bool | None, bool]:
    return (row.mode if _ran_itself(row) else row.effective_mode), row.dynamic, row.fullgraph


def _ran_itself(row: CompileRow) -> bool:
    """Whether the mode that was asked for ran, be it for some inputs only."""
    return row.effective_mode in (row.mode, PARTLY_EAGER)


def _measure_again(row: CompileRow, compiled: Sequence[CompileRow]) -> str:
    others = _names(_disagreeing(row, compiled))
    return (
        f"Stay eager for now: {_mode(row)} was faster ({row.speedup:.2f}x), but {others} ran the "
        "same way and was not; measure again with more rounds."
    )


def _best(faster: Sequence[CompileRow]) -> CompileRow:
    """The fastest; among those whose intervals hold the fastest's speedup, the cheapest compile.

    A mode that ran as another one speaks only where that other one does not speak for itself.
    """
    own = {_ran_as(row) for row in faster if _ran_itself(row)}
    ours = [row for row in faster if _ran_itself(row) or _ran_as(row) not in own]
    top = max(ours, key=lambda row: row.speedup or 0.0)
    equal = [row for row in ours if (row.speedup_high or 0.0) >= (top.speedup or 0.0)]
    return min(equal, key=lambda row: row.compile_seconds_cold or 0.0)


def _use(row: CompileRow) -> str:
    calls = {"forward": "calls", "step": "steps"}[row.phase]
    mode = row.effective_mode if row.effective_mode in MODES else row.mode
    text = (
        f"Use torch.compile(mode={mode!r}"
        f"{'' if row.dynamic is None else f', dynamic={row.dynamic}'}"
        f"{', fullgraph=True' if row.fullgraph else ''}): {row.speedup:.2f}x "
        f"[{row.speedup_low:.2f}, {row.speedup_high:.2f}] against eager"
    )
    if row.break_even_calls is None:
        return f"{text}."
    return (
        f"{text}. Compiling takes {row.compile_seconds_cold:.1f} s, which "
        f"{row.break_even_calls:,} {calls} win back."
    )


def _stay_eager(compiled: Sequence[CompileRow]) -> str:
    slower = [row for row in compiled if row.verdict == "slower"]
    undecided = [row for row in compiled if row.verdict == "undecided"]
    if not slower and not undecided:
        return "Stay eager: no mode could be measured."
    parts = []
    if undecided:
        parts.append(f"no difference beyond the noise for {_names(undecided)}")
    if slower:
        worst = min(slower, key=lambda row: row.speedup or 0.0)
        parts.append(f"slower: {_names(slower)} (down to {worst.speedup:.2f}x)")
    return f"Stay eager: {'; '.join(parts)}."


def _names(rows: Sequence[CompileRow]) -> str:
    return ", ".join(dict.fromkeys(_mode(row) for row in rows))


def _about_breaks(compiled: Sequence[CompileRow]) -> list[str]:
    places = {place for row in compiled for place in row.breaks}
    if not places:
        return []
    where = sorted({place.location or "unknown" for place in places})
    most = max(row.graph_breaks or 0 for row in compiled)
    text = f"Up to {most} graph breaks hold compilation back ({', '.join(where)})."
    if any("nonzero" in place.reason or "ynamic shape" in place.reason for place in places):
        text += (
            " They come from an operator whose output size depends on the data: add self-loops and "
            "normalise once, before training (GCNConv(normalize=False), "
            "GATConv(add_self_loops=False)), or compile with fullgraph=True, which captures it."
        )
    return [text]


def _about_failures(compiled: Sequence[CompileRow]) -> list[str]:
    by_status: dict[str, list[CompileRow]] = {}
    for row in compiled:
        if row.status != "ok":
            by_status.setdefault(row.status, []).append(row)
    return [f"Not usable ({status}): {_names(rows)}." for status, rows in by_status.items()]


def environment_text(environment: Mapping[str, str]) -> str:
    """Put what the figures depend on into one paragraph."""
    parts = [f"{key} {value}" for key, value in environment.items()]
    return wrapped("Measured with " + ", ".join(parts) + ".")
