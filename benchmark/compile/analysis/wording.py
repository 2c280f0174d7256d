"""How figures read in a sentence; nothing is said that was not passed in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from benchmark.compile.analysis.estimates import Estimate
from benchmark.compile.analysis.rows import Row
from benchmark.compile.analysis.study import Comparison, Study, tally
from benchmark.compile.analysis.tables import NOTHING
from gnnprof._statistics import median

_MOST_NAMES = 6


def said(ratio: Estimate) -> str:
    """A ratio with its interval, as a sentence has it."""
    if ratio.low is None or ratio.high is None:
        return f"{_ratio(ratio.value)}x (no interval)"
    interval = f"95 % interval {_ratio(ratio.low)} to {_ratio(ratio.high)}"
    return f"{_ratio(ratio.value)}x ({interval})"


def briefly(row: Row) -> str:
    """The speedup of a row with interval and verdict, as a table has it; or why it has none."""
    ratio = row.speedup if row.usable else None
    if ratio is None:
        return row.finding
    interval = "no interval"
    if ratio.low is not None and ratio.high is not None:
        interval = f"{_ratio(ratio.low)} to {_ratio(ratio.high)}"
    return f"{_ratio(ratio.value)}x ({interval}) {row.finding}"


def _ratio(value: float) -> str:
    """Two digits after the point; more for a small ratio, which they would make 0, none for 100."""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def some(count: int, noun: str) -> str:
    """A count with its noun: '1 case', '4 cases'."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"


def listed(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def spread(values: Iterable[float | None], unit: str, digits: int = 0) -> str:
    """Median and range in words; unknown values are left out."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    middle, low, high = (f"{v:,.{digits}f}" for v in (median(known), min(known), max(known)))
    if len(known) == 1:
        return f"{middle} {unit}"
    return f"{middle} {unit} (median of {len(known)}; {low} to {high})"


def data_of(rows: Iterable[Row]) -> str:
    """The data of rows by name, every stand-in called one."""
    experiments = {row.experiment.data: row.experiment for row in rows}
    stand_ins = [name for name, experiment in experiments.items() if experiment.stand_in]
    if len(experiments) > _MOST_NAMES:
        return f"{len(experiments)} data sets, {len(stand_ins)} of them stand-ins"
    if len(stand_ins) == len(experiments) > 1:
        names = [name.replace("stand-in, ", "").replace(" (stand-in)", "") for name in stand_ins]
        return f"the stand-ins {listed(names)}"
    return listed(list(experiments))


def verdicts(rows: Iterable[Row]) -> str:
    """'3 faster, 0 slower, 1 undecided'."""
    counts = tally(row for row in rows if row.usable)
    return ", ".join(f"{counts[word]} {word}" for word in ("faster", "slower", "undecided"))


def means_of(found: Comparison[Row], noun: str = "case") -> str:
    """Every mean of a comparison in words, with the cases and the verdicts behind it."""
    parts = [
        f"{label} {said(found.means[label])}: {verdicts(found.rows[label])}"
        for label in found.ranked
    ]
    data = data_of(row for rows in found.rows.values() for row in rows)
    text = f"{'; '.join(parts)}. Geometric mean over {some(len(found.keys), noun)} on {data}"
    for label, ratio in found.left_out.items():
        text += f"; {label} has none of them: {said(ratio)} over {ratio.count} of its own"
    return text + "."


def gap(found: Comparison[Row], first: str, second: str) -> str:
    """What parts two labels of a comparison, and whether it is beyond doubt."""
    ratio = found.against(first, second)
    doubt = "" if ratio.decided else ", which does not tell them apart"
    return f"{first} against {second}, case by case: {said(ratio)}{doubt}."


def why_not(rows: Sequence[Row]) -> str:
    """Why rows have no figure to answer with."""
    if not rows:
        return "the records hold no such case"
    if any(row.usable for row in rows):
        return f"none of {some(len(rows), 'row')} has this figure"
    reasons = [f"{count} {finding}" for finding, count in sorted(tally(rows).items())]
    return f"of {some(len(rows), 'row')} {listed(reasons)}"


def not_exercised(rows: Iterable[Row]) -> Iterator[str]:
    """Modes that were asked for while another ran, so that nothing can be said of them."""
    asked: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row.status == "ok" and row.label is None:
            where = " on CPU" if row.experiment.device == "cpu" else ""
            asked[where, row.effective_mode or ""].append(row.mode)
    for (where, effective), modes in asked.items():
        yield (
            f"{listed(sorted(set(modes)))}: not exercised{where}, as {effective} ran instead "
            f"({some(len(modes), 'row')}); no figure of it is reported."
        )


def is_void(sentence: str) -> bool:
    """Whether a sentence only says what there is no figure for."""
    return sentence.startswith(NOTHING) or ": not exercised" in sentence


def noise(study: Study) -> str:
    """What eager against eager shows: how far two equal things differ on this machine."""
    ratios = [row.speedup for row in study.select(mode="eager", status="ok") if row.speedup]
    floors = [100 * half for r in study.records for half in r.noise.values()]
    if not ratios and not floors:
        return f"Noise floor (eager against eager): {NOTHING}."
    undecided = sum(ratio.decided is None for ratio in ratios)
    text = f"Noise floor: {undecided} of {some(len(ratios), 'comparison')} of eager with eager are"
    text += " undecided, as all should be"
    return f"{text}; the A/A intervals reach from 1 by {spread(floors, '%', 1)}."
