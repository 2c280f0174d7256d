"""The files of one experiment: all modes of one model on one data set, out of their records.

Pure but for `write_experiments`: records in, texts out. Written anew whenever a sweep ends.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from tabulate import tabulate

from benchmark.compile.analysis.estimates import Estimate, hull
from benchmark.compile.case import Case, Identity, content_key, dynamic_word
from benchmark.compile.registry import mode_names
from benchmark.compile.store import Store, write_text
from gnnprof._statistics import median

SCHEMA = "gnnprof.compile-experiment/1"
Record = Mapping[str, Any]

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_PHASES = {"inference": "call of the forward pass", "training": "training step"}


def write_experiments(store: Store, records: Iterable[Record]) -> dict[str, list[Record]]:
    """Write config.json, results.json, tables.tex, run.log and recommendations.txt of each one.

    They lie in `OUT/experiments/<name>/` and replace those that were there.

    Args:
        store: The sweep's folder.
        records: Of the experiments to write. Whatever else the folder has of those, such as the
            modes that other shards have run, is in the files as well.

    Returns:
        All records of each experiment, by its name.
    """
    names = by_experiment(records).keys()
    everything = by_experiment(store.records())
    experiments = {name: everything[name] for name in names}
    for name, members in experiments.items():
        folder = store.folder / "experiments" / name
        folder.mkdir(parents=True, exist_ok=True)
        logs = [store.log_path(record["key"]) for record in members]
        texts = {
            "config.json": _json(config(members)),
            "results.json": _json({"schema": SCHEMA, "records": members}),
            "tables.tex": latex_table(members),
            "run.log": "\n".join(log.read_text(encoding="utf-8") for log in logs if log.exists()),
            "recommendations.txt": recommendations(members),
        }
        for file, text in texts.items():
            write_text(folder / file, text, store.draft())
    return experiments


def by_experiment(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Sort records into experiments: those that differ in mode, dynamic and replicate only."""
    experiments: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        experiments[_name(record)].append(record)
    return {name: sorted(members, key=_order) for name, members in experiments.items()}


def _order(record: Record) -> tuple[object, ...]:
    """The order of a table: the modes as they are registered, then those no longer known."""
    case, known = Case.from_dict(record["case"]), mode_names()
    place = known.index(case.mode) if case.mode in known else len(known)
    return place, case.mode, dynamic_word(case.dynamic), case.replicate


def _name(record: Record) -> str:
    experiment = Case.from_dict(record["case"]).experiment
    known = {field.name: record["environment"].get(field.name) for field in fields(Identity)}
    key = content_key(experiment, Identity(**known))
    words = (experiment.framework, experiment.model, experiment.dataset, experiment.variant)
    return f"{re.sub(r'[^A-Za-z0-9-]+', '_', '-'.join(words))}-{key[:8]}"


def config(records: Sequence[Record]) -> dict[str, Any]:
    """Return what the experiment's cases share, and the modes that were run."""
    shared = Case.from_dict(records[0]["case"]).experiment.to_dict()
    for name in ("mode", "dynamic", "replicate"):
        shared.pop(name)
    runs = [
        {name: record["case"][name] for name in ("mode", "dynamic", "replicate")}
        for record in records
    ]
    known = [field.name for field in fields(Identity)]
    environment = {name: records[0]["environment"].get(name) for name in known}
    return {"case": shared, "runs": runs, "environment": environment, "data": _data(records)}


def _data(records: Sequence[Record]) -> Any:
    return next((record["data"] for record in records if record["data"]), None)


# -- table -----------------------------------------------------------------------------------------


def table(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the experiment: one row per case; what is unknown is n/a."""
    heads = ["mode", "dynamic", "outcome"]
    for phase in _PHASES:
        heads += [f"{phase} speedup", f"{phase} compile [s]"]
    heads += ["graph breaks", "max abs error"]
    return heads, [_cells(record) for record in records]


def latex_table(records: Sequence[Record]) -> str:
    """Return the table as a tabular; every cell is escaped."""
    heads, rows = table(records)
    body = tabulate(
        [[_escape(cell) for cell in row] for row in rows],
        headers=[_escape(head) for head in heads],
        tablefmt="latex_raw",
        disable_numparse=True,
    )
    case, data = Case.from_dict(records[0]["case"]), _data(records)
    kind = ", a generated stand-in" if data and data["is_stand_in"] else ""
    title = f"{case.framework} {case.model} on {case.dataset}{kind}, {case.variant}"
    return f"% {_escape(title)}. Speedup: eager over compiled, 95 % interval.\n{body}\n"


def _cells(record: Record) -> list[str]:
    case = Case.from_dict(record["case"])
    dynamic = "n/a" if case.mode == "eager" else dynamic_word(case.dynamic)
    cells = [case.mode, dynamic, record["outcome"]]
    for phase in _PHASES:
        row = record[phase] or {}
        cells += [speedup_text(row), _number(row.get("compile_seconds_cold"), ".1f")]
    row = record["inference"] or {}
    return [*cells, _number(row.get("graph_breaks"), "d"), _number(row.get("max_abs_error"), ".1e")]


def speedup_text(row: Record) -> str:
    """Return '1.52 (1.40 to 1.61)', or n/a for a row without a speedup."""
    if row.get("speedup") is None:
        return "n/a"
    low, high = row.get("speedup_low"), row.get("speedup_high")
    interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{row['speedup']:.2f}{interval}"


def _number(value: Any, form: str) -> str:
    return "n/a" if value is None else format(value, form)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


# -- recommendation --------------------------------------------------------------------------------


def recommendations(records: Sequence[Record]) -> str:
    """Say for each phase which mode pays and from how many calls on, computed from the records."""
    lines = []
    for phase in _PHASES:
        lines.append(f"{phase.capitalize()}: {_advice(records, phase)}")
    for record in records:
        if record["outcome"] != "ok":
            label = Case.from_dict(record["case"]).label
            lines.append(f"Note: {label} ended as {record['outcome']}: {record['reason']}.")
    return "\n".join(lines) + "\n"


def _advice(records: Sequence[Record], phase: str) -> str:
    rows = [
        (Case.from_dict(record["case"]), record[phase])
        for record in records
        if record["case"]["mode"] != "eager" and record[phase]
    ]
    # A mode that ran as another one is that other one: the best of four equal modes is luck.
    own = [(case, row) for case, row in rows if row.get("effective_mode") == case.mode]
    valid = _combined([(case, row) for case, row in own if row.get("verdict")])
    if not valid:
        return "not measured."
    faster = [(case, row) for case, row in valid if row["verdict"] == "faster"]
    if not faster:
        best = median([row["speedup"] for _, row in valid])
        return (
            f"stay eager: of {len(valid)} compiled cases none is faster beyond the noise "
            f"(median speedup {best:.2f})."
        )
    case, row = max(faster, key=lambda pair: pair[1]["speedup_low"] or 0.0)
    calls = row["break_even_calls"]
    pays = "" if calls is None else f"; compiling is paid back after {calls:,} times"
    return (
        f"compile with mode={case.mode!r}, dynamic={case.dynamic}: a {_PHASES[phase]} is "
        f"{speedup_text(row)} times as fast as eager{pays}."
    )


def _combined(rows: Sequence[tuple[Case, Record]]) -> list[tuple[Case, Record]]:
    """Put the replicates of a case into one row: the luckiest process is no result.

    The break-even is that of the process that needs the most calls.
    """
    replicates: dict[Case, list[Record]] = defaultdict(list)
    for case, row in rows:
        replicates[replace(case, replicate=0)].append(row)
    return [(case, _one_row(group)) for case, group in replicates.items()]


def _one_row(replicates: Sequence[Record]) -> Record:
    ratios = [
        Estimate(row["speedup"], row["speedup_low"], row["speedup_high"], verdict=row["verdict"])
        for row in replicates
    ]
    speedup = hull(ratios)
    assert speedup is not None  # a group has a member
    calls = [row.get("break_even_calls") for row in replicates]
    known = [count for count in calls if count is not None]
    return {
        "speedup": speedup.value,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "verdict": speedup.verdict,
        "break_even_calls": max(known) if len(known) == len(calls) else None,
    }


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
