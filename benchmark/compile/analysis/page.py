"""The study as one HTML page that needs no network and no other file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from string import Template

from benchmark.compile.analysis.errors import outcomes
from benchmark.compile.analysis.estimates import Estimate
from benchmark.compile.analysis.plots import MOST_LINES, Line, Mark, line_plot, scatter_plot
from benchmark.compile.analysis.questions import answers
from benchmark.compile.analysis.rows import Row
from benchmark.compile.analysis.study import Study, grouped, tally
from benchmark.compile.analysis.summaries import summaries, summary_table
from benchmark.compile.analysis.tables import MIB, NOTHING, Table
from benchmark.compile.analysis.wording import is_void, noise, said, some
from gnnprof._html import PageTable, asset, escaped, policy, section
from gnnprof._version import __version__

_STYLE = """
:root { --faster: #17713a; --slower: #b3261e; --undecided: #59636e; --second: #8a4b00; }
@media (prefers-color-scheme: dark) {
  :root { --faster: #6fd08c; --slower: #ff8a80; --undecided: #9da9b6; --second: #f0b060; }
}
.mark line { stroke: currentColor; stroke-width: 2; }
.mark circle { fill: currentColor; stroke: currentColor; }
.mark.hollow circle { fill: var(--card); stroke-width: 2; }
.faster { color: var(--faster); }
.slower { color: var(--slower); }
.undecided { color: var(--undecided); }
.first { color: var(--accent); }
.second { color: var(--second); }
.base { stroke: var(--text); stroke-width: 1; stroke-dasharray: 4 3; }
.noise { fill: var(--line); opacity: 0.6; }
.key span { margin-right: 18px; }
#answers h3 { margin: 14px 0 2px; color: var(--text); font-size: 14px; }
#answers p { margin: 2px 0; max-width: 120ch; overflow-wrap: anywhere; }
#answers .void { color: var(--muted); font-style: italic; }
summary { cursor: pointer; font-weight: 600; padding: 4px 0; }
"""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Does torch.compile pay for graph neural networks?</title>
<style>$style</style>
</head>
<body>
<header>
<p class="brand">gnnprof <span>$version</span></p>
<h1>Does torch.compile pay for graph neural networks?</h1>
<dl id="facts">$facts</dl>
$notes
</header>
<main>
<section id="answers"><h2>Research questions</h2>$answers</section>
<section id="speedup"><h2>Speedup</h2>
<p class="hint">Eager over compiled time, median of paired rounds with its 95 % interval,
dynamic=$dynamic. Colour only where the interval excludes 1 and the noise floor; the shaded band is
the widest of the A/A intervals.</p>
$key
$speedup</section>
<section id="trade-off"><h2>Compile time against gain</h2>
<p class="hint">Each mark is one row of $main, its whisker the 95 % interval.
</p>
$key
$trade_off</section>
<section id="break-even"><h2>Break-even</h2>
<p class="hint">Calls after which the time saved exceeds the time to compile, for the rows that are
faster. Filled: cold compile. Hollow: with a filled cache.</p>
$break_even</section>
<section id="memory"><h2>Memory</h2>
<p class="hint">Peak of a compiled call over that of an eager one, above what was live before;
single readings without interval. Filled: inference. Hollow: training.</p>
$memory</section>
$tables
</main>
<footer>Computed from $count. This file is complete: it loads nothing.</footer>
</body>
</html>
""")


def page(study: Study) -> str:
    """Return the page: answers, plots, means by mode, outcomes, environment."""
    style = asset("page.css") + _STYLE
    return _PAGE.substitute(
        policy=policy(style, ""),
        style=style,
        version=escaped(__version__),
        facts="".join(_fact(*fact) for fact in _facts(study)),
        notes="".join(f'<p class="note">{escaped(n)}</p>' for n in (noise(study), *study.notes)),
        answers="".join(_answers(study)),
        key=_KEY,
        main=escaped(study.main),
        dynamic=escaped(study.main.dynamic),
        speedup="".join(_speedups(study)),
        trade_off="".join(_trade_offs(study)),
        break_even=_break_even(study),
        memory=_memory(study),
        tables="".join(section(_page_table(*table)) for table in _tables(study)),
        count=escaped(some(len(study.records), "record")),
    )


_KEY = (
    '<p class="hint key">'
    + "".join(
        f'<span class="{kind}">● {escaped(meaning)}</span>'
        for kind, meaning in (
            ("faster", "faster: the 95 % interval lies above 1"),
            ("slower", "slower: it lies below 1"),
            ("undecided", "undecided"),
        )
    )
    + "</p>"
)


# --- words -----------------------------------------------------------------------------------


def _fact(label: str, value: str, about: str) -> str:
    return (
        f"<div><dt>{escaped(label)}</dt><dd>{escaped(value)}"
        f'<span class="about">{escaped(about)}</span></dd></div>'
    )


def _facts(study: Study) -> Iterator[tuple[str, str, str]]:
    ended = sum(record.outcome == "ok" for record in study.records)
    yield "Cases", f"{len(study.records):,}", f"{ended:,} ended well"
    counts = tally(row for row in study.rows if row.mode != "eager")
    for word in ("faster", "slower", "undecided"):
        yield word.capitalize(), f"{counts[word]:,}", "compiled rows, inference and training"
    away = sum(n for word, n in counts.items() if word.startswith("not exercised"))
    yield "Not exercised", f"{away:,}", "rows in which another mode ran than was asked for"
    entries = study.environment.entries
    yield "torch", entries.get("torch", "n/a"), entries.get("device_name", entries.get("cpu", ""))


def _answers(study: Study) -> Iterator[str]:
    for answer in answers(study):
        yield f"<h3>{escaped(answer.question)}</h3>"
        for sentence in answer.sentences:
            void = ' class="void"' if is_void(sentence) else ""
            yield f"<p{void}>{escaped(sentence)}</p>"


def _tables(study: Study) -> Iterator[tuple[Table, str]]:
    rows = study.headline()
    by_mode = summaries(rows, lambda row: row.name, lambda row: row.experiment)
    yield (
        summary_table("Means by mode", "Mode", by_mode),
        f"Of {study.main}. Geometric means over the cases that all compared modes have.",
    )
    yield outcomes("Outcomes", study.records), "Of all cases, by framework, model and mode."


def _page_table(table: Table, about: str) -> PageTable:
    return PageTable(
        table.title,
        about if table.rows else f"{about} {table.empty}",
        [column.heading for column in table.columns],
        [
            [column.text(cell) for column, cell in zip(table.columns, cells, strict=True)]
            for cells in table.rows
        ],
    )


def _nothing(why: str) -> str:
    return f'<p class="note">{escaped(f"{NOTHING}: {why}")}</p>'


# --- plots -----------------------------------------------------------------------------------


def _name(study: Study, row: Row) -> str:
    """Model, data, mode and variant, and what tells the setting from the others."""
    e = row.experiment
    parts = [e.model, e.data, row.name, *[row.variant] * (row.variant != study.main.variant)]
    others = [str(setting).split(", ") for setting in study.settings]
    own = str(e.setting).split(", ")
    return ", ".join([*parts, *(part for part in own if any(part not in o for o in others))])


def _kind(row: Row) -> str:
    return (row.speedup.decided if row.speedup else None) or "undecided"


def _about(row: Row, text: str) -> str:
    e = row.experiment
    return f"{row.architecture} on {e.data} ({e.setting}), {row.name}, {row.variant}: {text}"


def _shown(rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    """As many rows as a plot takes, and what to say of the others."""
    left_out = len(rows) - MOST_LINES
    if left_out <= 0:
        return rows, ""
    note = f"{some(left_out, 'row')} more: in the workbook."
    return rows[:MOST_LINES], f'<p class="note">{escaped(note)}</p>'


def _usable(study: Study) -> list[Row]:
    return [r for r in study.select(dynamic=study.main.dynamic) if r.usable and r.mode != "eager"]


def _speedups(study: Study) -> Iterator[str]:
    rows = _usable(study)
    if not rows:
        yield _nothing("no compiled row has a speedup")
    groups = grouped(rows, lambda row: (row.library, row.phase))
    for number, ((framework, phase), group) in enumerate(groups.items()):
        shown, note = _shown(group)
        lines = [
            Line(
                _name(study, row),
                (Mark(row.speedup, _kind(row), _about(row, said(row.speedup))),),
            )
            for row in shown
            if row.speedup is not None
        ]
        title = f"{framework}, {phase}: {some(len(group), 'row')}"
        plot = line_plot(
            title, "speedup (above 1: compiled is faster)", lines, base=1, band=_band(study, phase)
        )
        opened = "" if number else " open"
        yield f"<details{opened}><summary>{escaped(title)}</summary>{plot}{note}</details>"


def _band(study: Study, phase: str) -> tuple[float, float] | None:
    """The widest A/A interval of a phase."""
    floors = [record.noise[phase] for record in study.records if phase in record.noise]
    return (1 / (1 + max(floors)), 1 + max(floors)) if floors else None


def _trade_offs(study: Study) -> Iterator[str]:
    rows = [
        r
        for r in _usable(study)
        if r.variant == study.main.variant and r.compile_cold and r.speedup
    ]
    if not rows:
        yield _nothing("no row has both a compile time and a speedup")
    for (framework, phase), group in grouped(rows, lambda row: (row.library, row.phase)).items():
        points = [
            (
                row.compile_cold,
                Mark(
                    row.speedup,
                    _kind(row),
                    _about(row, f"{row.compile_cold:.1f} s to compile, {said(row.speedup)}"),
                ),
            )
            for row in group
            if row.compile_cold is not None and row.speedup is not None
        ]
        title = f"{framework}, {phase}"
        plot = scatter_plot(title, ("cold compile [s]", "speedup"), points, 1)
        yield f"<details open><summary>{escaped(title)}</summary>{plot}</details>"


def _break_even(study: Study) -> str:
    rows = [row for row in _usable(study) if row.break_even]
    if not rows:
        return _nothing("no row is faster and says after how many calls")
    return _lines(study, rows, "Break-even calls", "calls", _break_even_marks)


def _break_even_marks(row: Row) -> Iterator[Mark]:
    for calls, cache in ((row.break_even, "cold"), (row.break_even_warm, "warm")):
        if calls:
            about = _about(row, f"{row.phase}, {cache}: {calls:,} calls")
            yield Mark(Estimate(calls), "first", about, hollow=cache == "warm")


def _memory(study: Study) -> str:
    rows = [row for row in _usable(study) if row.memory is not None]
    if not rows:
        return _nothing("no row has the peaks of both")
    return _lines(study, rows, "Peak memory", "compiled / eager peak", _memory_marks, base=1)


def _memory_marks(row: Row) -> Iterator[Mark]:
    if row.memory is not None and row.peak_memory is not None:
        peak = f"{row.memory.value:.2f}x, {row.peak_memory * MIB:,.1f} MiB"
        about = _about(row, f"{row.phase}: {peak}")
        kind = "first" if row.phase == "inference" else "second"
        yield Mark(row.memory, kind, about, hollow=row.phase == "training")


def _lines(
    study: Study,
    rows: Iterable[Row],
    title: str,
    unit: str,
    marks: Callable[[Row], Iterator[Mark]],
    base: float | None = None,
) -> str:
    """A plot with one line for the phases of a case."""
    cases = grouped(rows, lambda row: (row.library, _name(study, row), row.phase))
    names = {key: f"{key[0]} {key[1]}, {key[2]}" for key in cases}
    lines = [
        Line(names[key], tuple(mark for row in group for mark in marks(row)))
        for key, group in cases.items()
    ]
    note = ""
    if len(lines) > MOST_LINES:
        more = f"{some(len(lines) - MOST_LINES, 'line')} more: in the workbook."
        note = f'<p class="note">{escaped(more)}</p>'
    return line_plot(title, unit, lines[:MOST_LINES], base=base) + note
