"""The study as text: a line for each case, sentences that keep to the width of the terminal."""

from __future__ import annotations

import re

from benchmark.compile.analysis.overview import overview
from benchmark.compile.analysis.questions import answers
from tests.compile_records import record, row, small_study
from tests.studies import study_of


def text_of(records, width=80):
    study = study_of(records)
    return "\n".join(overview(study, answers(study), width))


def cells_of(records):
    """The lines below the headings, cell by cell."""
    lines = iter(text_of(records).splitlines())
    for line in lines:
        if line.startswith("Case "):
            break
    assert re.fullmatch(r"(-+  )+-+", next(lines))
    found = []
    for line in lines:
        if not line:
            return found
        found.append(re.split(r" {2,}", line))
    return found


def test_a_line_has_both_phases_and_what_compiling_cost():
    inference = row(speedup=2.0, width=0.25, cold=12.34, breaks=4, eager=0.010)
    training = row(speedup=1.25, width=0.01, cold=30.0, eager=0.010)
    (line,) = cells_of([record(inference_row=inference, training_row=training)])
    # 12.34 s are won back at 5 ms a call, 30 s at 2 ms a step.
    assert line == [
        *("PyG GCN, cora-like (stand-in)", "fixes", "default"),
        *("2.00x (1.60 to 2.50) faster", "1.25x (1.24 to 1.26) faster"),
        *("4", "12.3", "2,468", "15,000"),
    ]


def test_a_phase_that_failed_stands_beside_one_that_did_not():
    failed = row(status="compile_error", cold=None)
    phases = {"inference_row": row(speedup=2.0), "training_row": failed}
    (line,) = cells_of([record(outcome="compile_error", **phases)])
    assert line[3].startswith("2.00x")
    assert line[4] == "compile_error"
    assert line[-1] == "n/a"


def test_a_mode_that_was_not_exercised_has_no_line_and_eager_none():
    ran_as_default = [row("max-autotune", effective="default") for _ in range(2)]
    records = [
        record(),
        record(mode="eager", inference_row=row("eager", 1.0), training_row=row("eager", 1.0)),
        record(
            mode="max-autotune", inference_row=ran_as_default[0], training_row=ran_as_default[1]
        ),
    ]
    assert [line[2] for line in cells_of(records)] == ["default"]


def test_no_figure_of_another_mode_stands_in_a_line():
    failed = row("max-autotune", status="compile_error", cold=None)
    other = row("max-autotune", 1.5, effective="default", breaks=3)
    changes = {"inference_row": other, "training_row": failed, "outcome": "compile_error"}
    (line,) = cells_of([record(mode="max-autotune", **changes)])
    assert line[3:] == [
        *("not exercised on CPU (ran as default)", "compile_error"),
        *("n/a", "n/a", "n/a", "n/a"),
    ]


def test_what_cases_differ_in_is_named():
    lines = cells_of([record(hidden=64), record(hidden=256), record(hidden=64, threads=2)])
    assert {line[0] for line in lines} == {
        "PyG GCN, cora-like (stand-in), hidden=64, threads=1",
        "PyG GCN, cora-like (stand-in), hidden=256, threads=1",
        "PyG GCN, cora-like (stand-in), hidden=64, threads=2",
    }


def test_only_the_main_dynamic_setting_has_lines():
    lines = cells_of([record(1.5), record(3.0, dynamic=True)])
    assert [line[3] for line in lines] == ["1.50x (1.43 to 1.58) faster"]


def test_sentences_are_wrapped_and_none_is_lost():
    text = text_of(small_study(), 70)
    table = re.compile(r"^(Case |-----|PyG|DGL)")
    assert all(len(line) <= 70 for line in text.splitlines() if not table.match(line))
    whole = " ".join(text.split())
    for answer in answers(study_of(small_study())):
        assert answer.question in whole
        for sentence in answer.sentences:
            assert " ".join(sentence.split()) in whole


def test_a_study_without_compiled_cases_has_no_table():
    text = text_of([record(mode="eager", inference_row=row("eager", 1.0), training=None)])
    assert "Case " not in text
    assert "1 record: 1 ok." in text
