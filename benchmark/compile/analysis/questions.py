"""The research questions of the study, answered from the rows and from nothing else.

Every answer is a list of sentences with counts and intervals, one for each setting (device,
threads, precision, input), as figures of different settings are never averaged. Unless a question
says otherwise its rows are those of the variant and the dynamic setting that `Study.main` names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmark.compile.analysis.estimates import average
from benchmark.compile.analysis.rows import SIZES, Experiment, Row, Setting
from benchmark.compile.analysis.study import Comparison, Study, compare, grouped, speedup_of
from benchmark.compile.analysis.tables import NOTHING
from benchmark.compile.analysis.wording import (
    data_of,
    gap,
    listed,
    means_of,
    not_exercised,
    said,
    some,
    spread,
    why_not,
)


@dataclass(frozen=True)
class Answer:
    """What the records say to one question.

    Attributes:
        question: The question.
        sentences: The answer; 'not measured' with the reason where the records hold none.
        count: How many rows its figures were computed from.
    """

    question: str
    sentences: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class _Found:
    """The rows that a question asks for, those that have its figure, and what these say."""

    asked: Sequence[Row]
    used: Sequence[Row]
    sentences: Sequence[str]


def answers(study: Study) -> tuple[Answer, ...]:
    """Answer every research question."""
    return tuple(_answer(study, question, ask) for question, ask in QUESTIONS.items())


def _answer(study: Study, question: str, ask: Callable[[Study], _Found]) -> Answer:
    found = ask(study)
    sentences = tuple(found.sentences) or (f"{NOTHING}: {why_not(found.asked)}.",)
    return Answer(question, (*sentences, *not_exercised(found.asked)), len(found.used))


def _usable(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.usable]


def _setting(row: Row) -> Setting:
    return row.experiment.setting


def _experiment(row: Row) -> Hashable:
    return row.experiment


def _mode(row: Row) -> str:
    return row.name


def _without_data(row: Row) -> Experiment:
    return row.experiment.but(dataset="", scale=1.0, stand_in=False, task=None)


# --- the questions ---------------------------------------------------------------------------


def arxiv_latency(study: Study) -> _Found:
    """By data set and framework: the gain of every mode over the models that all modes ran."""
    rows = study.headline(phase="inference", family="arxiv")
    used = _usable(rows)
    groups = grouped(used, lambda row: (_setting(row), row.experiment.data, row.library))
    sentences = []
    for (setting, data, framework), group in groups.items():
        means = means_of(compare(group, _mode, _experiment, speedup_of))
        sentences.append(f"{framework} on {data} ({setting}): {means}")
    return _Found(rows, used, sentences)


def framework_by_architecture(study: Study) -> _Found:
    """By mode: every framework and model over the data that all of them ran."""
    rows = study.headline(phase="inference")
    used = _usable(rows)
    sentences = []
    for (setting, mode), group in grouped(used, lambda row: (_setting(row), row.name)).items():
        found = compare(
            group,
            lambda row: row.architecture,
            lambda row: row.experiment.but(framework="", model=""),
            speedup_of,
        )
        text = f"{mode} ({setting}): {means_of(found)}"
        if len(found.ranked) > 1:
            text += f" {gap(found, found.ranked[0], found.ranked[-1])}"
        sentences.append(text)
    return _Found(rows, used, sentences)


def trade_off(study: Study) -> _Found:
    """By framework and mode: what compiling costs, and after how many calls it has paid."""
    rows = study.headline(phase="inference")
    used = _usable(rows)
    sentences = []
    groups = grouped(used, lambda row: (_setting(row), row.library, row.name))
    for (setting, framework, mode), group in groups.items():
        gain = average([row.speedup for row in group if row.speedup is not None])
        sentences.append(
            f"{framework}, {mode} ({setting}): compiling takes "
            f"{spread([row.compile_cold for row in group], 's', 2)} cold and "
            f"{spread([row.compile_warm for row in group], 's', 2)} warm, and gains {said(gain)}, "
            f"the geometric mean over {some(len(group), 'case')} on {data_of(group)}; "
            f"{_break_even(group)}{_concordance(group)}."
        )
    return _Found(rows, used, sentences)


def _break_even(rows: Sequence[Row]) -> str:
    pays = [row.break_even for row in rows if row.break_even is not None]
    if not pays:
        return f"it pays in none of {some(len(rows), 'case')}"
    text = f"it pays in {len(pays)} of {some(len(rows), 'case')}, from {spread(pays, 'calls')} on"
    warm = [row.break_even_warm for row in rows if row.break_even_warm is not None]
    return f"{text}, with a filled cache from {spread(warm, 'calls')} on" if warm else text


def _concordance(rows: Sequence[Row]) -> str:
    """In how many pairs of cases the longer compile bought the larger gain."""
    known = [
        (row.compile_cold, row.speedup.value) for row in rows if row.compile_cold and row.speedup
    ]
    pairs = [(a, b) for a, b in combinations(known, 2) if a[0] != b[0] and a[1] != b[1]]
    if not pairs:
        return ""
    agree = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    return f"; in {agree} of {some(len(pairs), 'pair')} of cases the longer compile gained more"


def scaling(study: Study) -> _Found:
    """By framework and mode: the gain along the chain of sizes, over the models run at all."""
    rows = [r for r in study.headline(phase="inference") if r.experiment.family in SIZES]
    used = _usable(rows)
    groups = grouped(
        used, lambda row: (_setting(row), row.library, row.name, row.experiment.stand_in)
    )
    sentences = [
        f"{framework}, {mode}, {_kind(stand_in)} ({setting}): {_along_the_chain(_largest(group))}"
        for (setting, framework, mode, stand_in), group in groups.items()
    ]
    return _Found(rows, used, sentences)


def _kind(stand_in: bool) -> str:
    return "stand-ins" if stand_in else "real data"


def _largest(rows: Sequence[Row]) -> list[Row]:
    """Of every family the largest scale that was run."""
    scales: dict[str, float] = {}
    for row in rows:
        family, scale = row.experiment.family, row.experiment.scale or 1.0
        scales[family] = max(scale, scales.get(family, 0.0))
    return [row for row in rows if (row.experiment.scale or 1.0) == scales[row.experiment.family]]


def _along_the_chain(rows: Sequence[Row]) -> str:
    names = {row.experiment.family: row.experiment.data for row in rows}
    missing = [size for size in SIZES if size not in names]
    left = f" ({listed(missing)}: {NOTHING})" if missing else ""
    if len(names) < 2:
        return f"{NOTHING}, as only {listed(list(names.values()))} was run{left}."
    found = compare(rows, lambda row: row.experiment.family, _without_data, speedup_of)
    steps = [size for size in SIZES if size in found.means]
    if len(steps) < 2:
        return f"{NOTHING}, as no model was run at two sizes{left}."
    means = ", ".join(f"{names[size]} {said(found.means[size])}" for size in steps)
    change = found.against(steps[-1], steps[0])
    trends = {"faster": "grows", "slower": "shrinks", None: "does not change beyond doubt"}
    return (
        f"{means}. Geometric means over {some(len(found.keys), 'model')}; from {steps[0]} to "
        f"{steps[-1]} the gain {trends[change.decided]}: {said(change)}{left}."
    )


_TASKS = {
    "node": "node classification",
    "link": "link prediction",
    "hetero": "node classification in typed graphs",
    "kg": "knowledge-graph completion",
    "graph": "graph classification",
}


def _task(row: Row) -> str:
    return _TASKS.get(row.experiment.task or "", "unknown task")


def link_prediction(study: Study) -> _Found:
    """By framework and mode: the gain by task, over the models that ran in all tasks."""
    rows = study.headline(phase="inference")
    asked = [row for row in rows if row.experiment.task in ("link", "kg")]
    groups = grouped(
        _usable(rows), lambda row: (_setting(row), row.library, row.name, row.experiment.stand_in)
    )
    sentences = []
    for (setting, framework, mode, stand_in), group in groups.items():
        if not any(row.experiment.task in ("link", "kg") for row in group):
            continue
        found = compare(group, _task, _without_data, speedup_of)
        sentences.append(
            f"{framework}, {mode}, {_kind(stand_in)} ({setting}): {means_of(found, 'model')} "
            f"{_transfer(found)}"
        )
    return _Found(asked, _usable(asked), sentences)


def _transfer(found: Comparison[Row]) -> str:
    node, link = _TASKS["node"], _TASKS["link"]
    if node not in found.means or link not in found.means:
        return f"Transfer from {node} to {link}: {NOTHING}, as no model was run in both."
    return gap(found, link, node)


def memory(study: Study) -> _Found:
    """By framework, mode and phase: peak memory compiled over eager."""
    rows = study.headline()
    used = [row for row in rows if row.memory is not None]
    sentences = []
    groups = grouped(used, lambda row: (_setting(row), row.library, row.name, row.phase))
    for (setting, framework, mode, phase), group in groups.items():
        ratios = [row.memory for row in group if row.memory is not None]
        less = sum(ratio.value < 0.99 for ratio in ratios)
        more = sum(ratio.value > 1.01 for ratio in ratios)
        sentences.append(
            f"{framework}, {mode}, {phase} ({setting}): the compiled peak is "
            f"{said(average(ratios))} the eager one, the geometric mean over "
            f"{some(len(ratios), 'case')} on {data_of(group)}: lower in {less}, higher in {more}, "
            f"within 1 % in {len(ratios) - less - more}."
        )
    return _Found(rows, used, sentences)


def training(study: Study) -> _Found:
    """By framework: the gain of a training step with every mode, and the highest throughput."""
    rows = study.headline(phase="training")
    used = _usable(rows)
    sentences = []
    for (setting, framework), group in grouped(
        used, lambda row: (_setting(row), row.library)
    ).items():
        means = means_of(compare(group, _mode, _experiment, speedup_of))
        text = f"{framework} ({setting}), training steps per second: {means}"
        sentences.append(" ".join([text, *_highest_throughput(group)]))
    return _Found(rows, used, sentences)


def _highest_throughput(rows: Sequence[Row]) -> Iterator[str]:
    measured = [row for row in rows if row.throughput is not None]
    for unit, group in grouped(measured, lambda row: row.throughput_unit).items():
        best = max(group, key=lambda row: row.throughput or 0.0)
        yield (
            f"Highest: {best.throughput:,.0f} {unit} ({best.architecture} on "
            f"{best.experiment.data}, {best.name})."
        )


def dynamic_setting(study: Study) -> _Found:
    """By framework, mode and variant: gain, breaks and recompiles of the dynamic settings."""
    rows = study.select(lambda row: row.mode != "eager", phase="inference")
    used = _usable(rows)
    sentences = []
    groups = grouped(used, lambda row: (_setting(row), row.library, row.name, row.variant))
    for (setting, framework, mode, variant), group in groups.items():
        found = compare(group, _dynamic, _experiment, speedup_of)
        base = "dynamic=auto"
        others = [label for label in found.means if label != base and base in found.means]
        common = [row for rows in found.rows.values() for row in rows]
        sentences.append(
            " ".join(
                [
                    f"{framework}, {mode}, {variant} ({setting}): {means_of(found)}",
                    *(gap(found, label, base) for label in others),
                    _breaks(common),
                ]
            )
        )
    return _Found(rows, used, sentences)


def _dynamic(row: Row) -> str:
    return f"dynamic={row.dynamic}"


def _breaks(rows: Sequence[Row]) -> str:
    parts = []
    for setting, group in grouped(rows, _dynamic).items():
        breaks = spread([row.graph_breaks for row in group], "graph breaks")
        parts.append(f"{setting} {breaks}, {spread([r.recompiles for r in group], 'recompiles')}")
    cases = [group for group in grouped(rows, _experiment).values() if len(group) > 1]
    alike = sum(len({row.graph_breaks for row in group}) == 1 for group in cases)
    if not cases:
        return f"Breaks: {'; '.join(parts)}; there is no other setting to compare with."
    return f"Breaks: {'; '.join(parts)}; alike in {alike} of {some(len(cases), 'case')}."


def best_mode(study: Study) -> _Found:
    """By framework and phase: the mode with the highest mean over the cases that all modes ran."""
    rows = study.headline()
    used = _usable(rows)
    sentences = []
    groups = grouped(used, lambda row: (_setting(row), row.library, row.phase))
    for (setting, framework, phase), group in groups.items():
        found = compare(group, _mode, _experiment, speedup_of)
        sentences.append(
            f"{framework}, {phase} ({setting}): {means_of(found)} Best mode: {_winner(found)}"
        )
    return _Found(rows, used, sentences)


def _winner(found: Comparison[Row]) -> str:
    faster = [label for label in found.ranked if _is_faster(found, label)]
    if not faster:
        return f"eager, since nothing is faster beyond doubt ({listed(found.ranked)})."
    best = faster[0]
    others = [label for label in found.ranked if label != best]
    if not others:
        return f"{best}, the only one that was exercised."
    wins = sum(
        all(ratios[key].value <= found.ratios[best][key].value for ratios in found.ratios.values())
        for key in found.keys
    )
    text = f"{best}, the fastest in {wins} of {some(len(found.keys), 'case')}."
    return f"{text} {gap(found, best, others[0])}"


def _is_faster(found: Comparison[Row], label: str) -> bool:
    """Whether the mean is above 1 beyond doubt, or every single case is."""
    every = all(row.finding == "faster" for row in found.rows[label])
    return every or found.means[label].decided == "faster"


QUESTIONS: dict[str, Callable[[Study], _Found]] = {
    "How much latency does torch.compile save on arxiv?": arxiv_latency,
    "Which framework and architecture gain most?": framework_by_architecture,
    "What does the gain cost, and after how many calls is it paid?": trade_off,
    "Does the gain grow from Cora to PubMed to arxiv?": scaling,
    "Does the gain carry over to link prediction?": link_prediction,
    "What does compiling do to peak memory?": memory,
    "What does compiling do to the throughput of training?": training,
    "Does the dynamic setting change speed and graph breaks?": dynamic_setting,
    "Which mode is best?": best_mode,
}
"""The nine questions, in the order in which they are answered."""
