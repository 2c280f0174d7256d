"""Records to one self-contained HTML page, and to a table for notebooks."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from string import Template
from typing import Any, NamedTuple, TypedDict
from urllib.parse import quote

from gnnprof import _figures
from gnnprof._figures import Column, Value, measured_columns, with_unit
from gnnprof._records import ProfileRow
from gnnprof._tables import NOT_MEASURED
from gnnprof._tree import OP, OUTSIDE, PHASE, Node, sums, tree
from gnnprof._version import __version__

MOST_OPS = 20_000
"""Ops that a page lists; a profile with more loses the cheapest, which keeps it below 6 MB."""


class Overhead(TypedDict, total=False):
    """What the profiler itself cost; a key that is missing or None was not measured.

    Attributes:
        markers: Ranges that the profiler opened in the block.
        start_time: Seconds to start the session, before the block.
        stop_time: Seconds to stop it and fetch its events, after the block.
        ratio: Duration of an instrumented step over that of a plain one; 1 is free.
    """

    markers: int | None
    start_time: float | None
    stop_time: float | None
    ratio: float | None


class Limits(TypedDict, total=False):
    """What this machine can do, as measured on the spot.

    Attributes:
        bandwidth: Bytes per second that a copy reads and writes, at the largest working set.
        cache_bandwidth: The same at the working set that copies fastest: what fits in a cache.
        flop_rate: FLOP per second of a matrix product.
        noise: Relative spread of the repeats: 0.02 is 2 %.
        device: The device they hold for.
        dtype: The data type they hold for.
    """

    bandwidth: float | None
    cache_bandwidth: float | None
    flop_rate: float | None
    noise: float | None
    device: str
    dtype: str


class Peaks(TypedDict, total=False):
    """Highest bytes in live tensors, above what was live when the block began.

    Attributes:
        memory: On the host.
        memory_row: Name of the row in which that peak was reached.
        device_memory: On the accelerator.
        device_memory_row: As `memory_row`.
    """

    memory: int | None
    memory_row: str | None
    device_memory: int | None
    device_memory_row: str | None


class PageTable(NamedTuple):
    """A table to show as it is, below the rows.

    Attributes:
        title: Heading of its section.
        about: What it shows.
        headings: One for every column, the names first.
        rows: Texts, as many as there are headings.
    """

    title: str
    about: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


class _Required(TypedDict):
    model: str
    total_time: float
    coverage: float


class PageSummary(_Required, total=False):
    """What holds for the whole profile; all but the first three may be left out.

    Attributes:
        model: Class name of the model.
        total_time: Seconds that the rows should account for.
        coverage: Share of it that they do, from 0 to 1.
        title: Heading of the page; by default the model.
        environment: Name to value, as they shall be read: torch, python, device, threads ...
        overhead: What the profiler itself cost.
        limits: What the machine can do.
        peaks: Highest live bytes.
        trace_path: Where the Chrome trace of the same run lies; a relative path is taken from the
            folder of the page.
        notes: Sentences to show with the profile, such as what could not be recorded.
        tables: What else there is to show.
    """

    title: str
    environment: Mapping[str, object]
    overhead: Overhead
    limits: Limits
    peaks: Peaks
    trace_path: str | os.PathLike[str] | None
    notes: Sequence[str]
    tables: Sequence[PageTable]


# --- the page --------------------------------------------------------------------------------


def page(rows: Sequence[ProfileRow], summary: PageSummary) -> str:
    """Return one HTML page that needs no network and no other file.

    It shows the layer tree as an icicle (forward, backward or both), every row in a table that
    can be sorted and searched, a roofline plot where FLOPs and bytes were counted, and how it was
    all measured. The address after `#` holds the state of the controls: `#view=backward`.

    Args:
        rows: The rows of one profile.
        summary: What holds for all of them.
    """
    rows, notes = _without_small_ops(rows, summary.get("notes", ()))
    nodes = tree(rows, summary["model"])
    style, script = asset("page.css"), asset("page.js")
    return Template(asset("page.html")).substitute(
        policy=policy(style, script),
        version=escaped(__version__),
        title=escaped(summary.get("title") or summary["model"]),
        style=style,
        script=script,
        headline="".join(_fact(*fact) for fact in _headline(nodes, summary)),
        notes="".join(f'<p class="note">{escaped(note)}</p>' for note in notes),
        fallback=notebook_html(rows, summary),
        tables="".join(section(table) for table in summary.get("tables", ())),
        trace=_trace_link(summary.get("trace_path")),
        environment=_definitions(summary.get("environment") or {"environment": None}),
        overhead=_definitions(_overhead(summary.get("overhead", {}))),
        limits=_definitions(_limits(summary.get("limits", {}))),
        missing=_missing(rows, summary),
        data=_json_for_script(_page_data(nodes, summary)),
    )


def _without_small_ops(
    rows: Sequence[ProfileRow], notes: Sequence[str]
) -> tuple[Sequence[ProfileRow], Sequence[str]]:
    """Leave out the cheapest ops of a huge profile, and say so: a browser has to hold the rest."""
    excess = sum(row.op is not None for row in rows) - MOST_OPS
    if excess <= 0:
        return rows, notes
    ops = [index for index, row in enumerate(rows) if row.op is not None]
    dropped = set(sorted(ops, key=lambda index: _self_time(rows[index]))[:excess])
    kept = [row for index, row in enumerate(rows) if index not in dropped]
    note = f"The {excess:,} op rows with the least self time are left out of this page."
    return kept, [*notes, note]


def asset(name: str) -> str:
    file = importlib.resources.files("gnnprof") / "assets" / name
    return file.read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """A content policy: nothing is loaded, and only our own style and script are obeyed.

    It is the second line of defence; the first is that every name is escaped.
    """
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def escaped(value: object) -> str:
    """Text that HTML takes as text, also in a quoted attribute."""
    # A file name that is not valid UTF-8 has surrogates, which no file could hold.
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def _json_for_script(data: object) -> str:
    """JSON in which no name can end the script element or start a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# --- what the script draws -------------------------------------------------------------------


def _page_data(nodes: Sequence[Node], summary: PageSummary) -> dict[str, Any]:
    """Everything the script needs, one list per column, in the order of the tree."""
    rows = [node.row for node in nodes]
    number = {node: index for index, node in enumerate(nodes)}
    columns = measured_columns([row for row in rows if row])
    limits = summary.get("limits", {})
    return {
        "total": summary["total_time"],
        "nodes": {
            "name": [node.name for node in nodes],
            "parent": [number[node.parent] if node.parent else -1 for node in nodes],
            "kind": [node.kind for node in nodes],
            "module": [row and row.module for row in rows],
            "shared": [row and row.shared_with for row in rows],
        },
        "columns": [_heading(column) for column in columns],
        "values": {column.figure.key: [_value(column, row) for row in rows] for column in columns},
        "limits": {
            name: limits.get(name) for name in ("bandwidth", "cache_bandwidth", "flop_rate")
        },
    }


def _heading(column: Column) -> dict[str, Any]:
    figure, unit = column.figure, column.unit
    entry: dict[str, Any] = {
        name: getattr(figure, name) for name in ("key", "heading", "group", "about")
    }
    return entry | (
        {"unit": unit.name, "factor": unit.factor, "digits": unit.digits} if unit else {}
    )


def _value(column: Column, row: ProfileRow | None) -> Value:
    value = column.figure.read(row) if row else None
    # Seven digits: more is below the clock's resolution, and would double the page's size.
    return float(f"{value:.7g}") if isinstance(value, float) else value


# --- what stands in the page itself ----------------------------------------------------------


class _Shares(NamedTuple):
    """How the host time of a block divides; the parts add up to the sum of the self times."""

    forward: float
    backward: float | None
    outside: float


def _shares(rows: Sequence[ProfileRow]) -> _Shares:
    owners = [row for row in rows if row.op is None]
    backward = [row.self_backward_cpu_time for row in owners]
    return _Shares(
        sum(row.self_cpu_time for row in owners if row.path is not None),
        sum(t for t in backward if t is not None) if any(t is not None for t in backward) else None,
        sum(row.self_cpu_time for row in owners if row.path is None),
    )


def _headline(nodes: Sequence[Node], summary: PageSummary) -> Iterator[tuple[str, str, str]]:
    """The figures at the top of the page: label, value, explanation."""
    shares, peaks = _shares([node.row for node in nodes if node.row]), summary.get("peaks", {})
    yield (
        "Total time",
        _seconds(summary["total_time"]),
        f"{summary['coverage']:.2%} of it is in the rows below",
    )
    yield "Forward", _seconds(shares.forward), "host time in the model's forward"
    yield (
        "Backward",
        _seconds(shares.backward),
        "no backward ran" if shares.backward is None else "host time of all backward passes",
    )
    yield "Outside", _seconds(shares.outside), "loss, optimizer and all else in the block"
    yield from _costliest(nodes, summary["total_time"])
    yield (
        "Peak memory",
        with_unit(peaks.get("memory"), _figures.BYTES),
        _peak_note(peaks.get("memory"), peaks.get("memory_row")),
    )
    if peaks.get("device_memory") is not None:
        yield (
            "Peak memory, device",
            with_unit(peaks["device_memory"], _figures.BYTES),
            _peak_note(peaks["device_memory"], peaks.get("device_memory_row")),
        )


def _costliest(nodes: Sequence[Node], whole: float) -> Iterator[tuple[str, str, str]]:
    """The row of the model with the most self time, forward and backward together."""
    inside = [node for node in nodes if node.row and node.kind not in (OP, OUTSIDE)]
    if inside and whole:
        node = max(inside, key=lambda node: _self_time(node.row))
        yield "Costliest row", f"{_self_time(node.row) / whole:.1%}", _full_name(node)


def _self_time(row: ProfileRow | None) -> float:
    return row.self_cpu_time + (row.self_backward_cpu_time or 0.0) if row else 0.0


def _full_name(node: Node) -> str:
    """Dotted module path, then the phases: `convs.1 / propagate / message`."""
    inner = []
    while node.kind == PHASE and node.parent:
        inner.append(node.name)
        node = node.parent
    return " / ".join([".".join(node.names[1:]) or node.name, *reversed(inner)])


def _peak_note(peak: int | None, row: str | None) -> str:
    if peak is None:
        return "memory was not recorded"
    return f"of live tensors, reached in {row}" if row else "of live tensors"


def _seconds(value: float | None) -> str:
    return with_unit(value, _figures.TIME)


def _fact(label: str, value: str, note: str) -> str:
    return (
        f"<div><dt>{escaped(label)}</dt><dd>{escaped(value)}"
        f'<span class="about">{escaped(note)}</span></dd></div>'
    )


def _definitions(entries: Mapping[str, object]) -> str:
    return "".join(
        f"<tr><th scope=row>{escaped(name)}</th>"
        f"<td>{escaped(NOT_MEASURED if value is None else value)}</td></tr>"
        for name, value in entries.items()
    )


def _overhead(overhead: Overhead) -> dict[str, str]:
    ratio = overhead.get("ratio")
    return {
        "Markers placed": with_unit(overhead.get("markers"), _figures.COUNT),
        "Starting the session": _seconds(overhead.get("start_time")),
        "Stopping the session": _seconds(overhead.get("stop_time")),
        "Instrumented step / plain step": NOT_MEASURED if ratio is None else f"{ratio:.3f}",
    }


def _limits(limits: Limits) -> dict[str, object]:
    noise = limits.get("noise")
    return {
        "Copy bandwidth": with_unit(limits.get("bandwidth"), _figures.BYTE_RATE),
        "Copy bandwidth in cache": with_unit(limits.get("cache_bandwidth"), _figures.BYTE_RATE),
        "Matmul rate": with_unit(limits.get("flop_rate"), _figures.FLOP_RATE),
        "Noise of the samples": NOT_MEASURED if noise is None else f"± {noise:.1%}",
        "Measured on": " ".join(filter(None, (limits.get("device"), limits.get("dtype")))) or None,
    }


def _missing(rows: Sequence[ProfileRow], summary: PageSummary) -> str:
    """What was not measured, and how to have it measured."""
    reasons = {
        "Backward": ("self_backward_cpu_time", "no backward ran in the block"),
        "Device time": ("self_device_time", "no accelerator in the profile (use_cuda=True)"),
        "Memory": ("self_cpu_memory", "not asked for (profile_memory=True)"),
        "FLOPs and bytes moved": ("bytes_moved", "not asked for (counts=True)"),
    }
    missing = {
        what: f"{NOT_MEASURED}: {why}"
        for what, (key, why) in reasons.items()
        if all(getattr(row, key) is None for row in rows)
    }
    if summary.get("overhead", {}).get("ratio") is None:
        missing["Overhead"] = f"{NOT_MEASURED}: the block was not run without the profiler"
    return _definitions(missing) or _definitions({"Everything": "was measured"})


def section(table: PageTable) -> str:
    head = "".join(f"<th scope=col>{escaped(heading)}</th>" for heading in table.headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in cells)}</tr>" for cells in table.rows
    )
    return (
        f"<section><h2>{escaped(table.title)}</h2><p class=hint>{escaped(table.about)}</p>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(table.title)}">'
        f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div></section>"
    )


def _trace_link(path: str | os.PathLike[str] | None) -> str:
    if path is None:
        return f"<p>{NOT_MEASURED}: no Chrome trace was written beside this page.</p>"
    return (
        f'<p><a href="{escaped(_href(path))}">{escaped(os.fspath(path))}</a>: the time line of the '
        "same run, with a range for every module and phase. Open it in <code>chrome://tracing"
        "</code> or <code>ui.perfetto.dev</code>.</p>"
    )


def _href(path: str | os.PathLike[str]) -> str:
    """A link to a file. Quoting turns a colon into text, so that no path can be a `javascript:`."""
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(os.fsencode(pure.as_posix()))


# --- notebooks -------------------------------------------------------------------------------


def notebook_html(
    rows: Sequence[ProfileRow], summary: PageSummary, *, depth: int = 5, top: int = 25
) -> str:
    """Return a table of the costliest modules and phases, without script, for `_repr_html_`.

    Args:
        rows: The rows of one profile.
        summary: What holds for all of them.
        depth: How many levels below the model to show.
        top: How many rows to show: those with the most time, nested rows included.
    """
    nodes = tree(rows, summary["model"])
    totals = sums(nodes, _self_time)
    listed = [node for node in nodes if node.kind != OP and node.depth <= depth]
    kept = set(sorted(listed, key=lambda node: -totals[node])[:top])
    columns = [c for c in measured_columns(rows) if c.figure.key in _NOTEBOOK_KEYS]
    whole = summary["total_time"]
    body = "".join(
        _notebook_row(node, totals[node], whole, columns) for node in listed if node in kept
    )
    left_out = sum(node.kind != OP for node in nodes) - len(kept)
    rest = f" {left_out} rows with less time or deeper in the tree are left out." * bool(left_out)
    return (
        f'<table style="{_TABLE_STYLE}"><caption style="text-align:left">'
        f"{escaped(summary['model'])}: {_seconds(whole)}, of which rows cover "
        f"{summary['coverage']:.2%}.{rest}</caption><thead><tr>"
        f"{''.join(_notebook_headings(columns))}</tr></thead><tbody>{body}</tbody></table>"
    )


_NOTEBOOK_KEYS = frozenset(
    {
        "calls",
        "self_cpu_time",
        "self_backward_cpu_time",
        "self_device_time",
        "self_backward_device_time",
        "peak_memory",
        "peak_device_memory",
        "percent_of_limit",
        "bound",
    }
)
_TABLE_STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_LEFT = "text-align:left;padding:2px 8px;white-space:pre"
_RIGHT = "text-align:right;padding:2px 8px;white-space:nowrap"


def _notebook_headings(columns: Iterable[Column]) -> Iterator[str]:
    yield f'<th style="{_LEFT}">Row</th>'
    for heading in ("Self [%]", "With nested [%]", *(column.heading for column in columns)):
        yield f'<th style="{_RIGHT}">{escaped(heading)}</th>'


def _notebook_row(node: Node, total: float, whole: float, columns: Iterable[Column]) -> str:
    shares = (_percent(_self_time(node.row), whole), _percent(total, whole))
    cells = [*shares, *(column.text(node.row) for column in columns)]
    name = "  " * node.depth + (f"[{node.name}]" if node.kind == PHASE else node.name)
    module = f" ({node.row.module})" if node.row and node.kind not in (PHASE, OUTSIDE) else ""
    numbers = "".join(f'<td style="{_RIGHT}">{escaped(cell)}</td>' for cell in cells)
    return f'<tr><td style="{_LEFT}">{escaped(name + module)}</td>{numbers}</tr>'


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else NOT_MEASURED
