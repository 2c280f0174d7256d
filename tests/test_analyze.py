"""The analysis of the torch.compile study: known answers from records made by hand."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from benchmark.compile import analyze
from benchmark.compile.analysis.estimates import (
    Estimate,
    average,
    hull,
    pool,
    quotient,
    student_quantile,
    widened,
)
from benchmark.compile.analysis.latex import escape, latex
from benchmark.compile.analysis.load import (
    MixedRecordsError,
    UnreadableRecordError,
    by_environment,
    parse_record,
)
from benchmark.compile.analysis.page import page
from benchmark.compile.analysis.plots import Axis, Line, Mark, axis_over, line_plot
from benchmark.compile.analysis.questions import QUESTIONS, answers
from benchmark.compile.analysis.rows import row_order
from benchmark.compile.analysis.sheets import SHEETS, sheets
from benchmark.compile.analysis.study import Study, compare, speedup_of
from benchmark.compile.analysis.wording import listed, noise, some
from benchmark.compile.analysis.workbook import write_workbook
from tests import browser
from tests.compile_records import MODES, record, row, samples, small_study, write

pytest.importorskip("xlsxwriter")
openpyxl = pytest.importorskip("openpyxl")

HOSTILE = "=cmd()<script>alert('x')</script>&${x}"
ON_CPU = "(cpu, 1 thread, float32, full graph)"


def study_of(records):
    """A study of records that have one environment, without files."""
    parsed = [parse_record(json.dumps(entry), f"{entry['key']}.json") for entry in records]
    (environment,) = by_environment(parsed)
    return Study(environment)


def answer(records, number):
    """The sentences that answer a question, counted from 1 as in the specification."""
    return answers(study_of(records))[number - 1].sentences


# --- estimates -------------------------------------------------------------------------------


def test_a_mean_of_ratios_is_geometric_with_students_interval():
    found = average([Estimate(1.0), Estimate(4.0)])
    assert found.value == pytest.approx(2)
    # Logs 0 and ln 4: standard error ln 2; Student's quantile for one degree of freedom 12.7062.
    assert found.high == pytest.approx(2 * math.exp(12.7062 * math.log(2)), rel=1e-4)
    assert found.low == pytest.approx(2 / math.exp(12.7062 * math.log(2)), rel=1e-4)
    assert found.count == 2


@pytest.mark.parametrize(
    ("freedom", "value"),  # Abramowitz and Stegun, table 26.10
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (29, 2.045)]
    + [(30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_students_quantile_is_that_of_the_table(freedom, value):
    assert student_quantile(freedom) == pytest.approx(value, abs=5.1e-4)


def test_cases_that_agree_by_chance_keep_the_doubt_of_their_own_intervals():
    case = Estimate(1.2, 0.8, 1.8)  # 1.5 times either way
    found = average([case, case])
    assert found.value == pytest.approx(1.2)
    # Two errors of ln 1.5 each: their mean has ln 1.5 / sqrt 2.
    assert found.high == pytest.approx(1.2 * 1.5 ** (1 / math.sqrt(2)))
    assert found.low == pytest.approx(1.2 / 1.5 ** (1 / math.sqrt(2)))
    assert found.decided is None


def test_a_single_case_keeps_its_interval_and_its_verdict():
    case = Estimate(1.2, 1.1, 1.3, 3, "undecided")
    assert average([case]) == Estimate(1.2, 1.1, 1.3, 1, "undecided")


def test_pooled_ratios_do_not_count_their_spread():
    found = pool([Estimate(1.0, 0.5, 2.0), Estimate(4.0, 2.0, 8.0)])
    assert found.value == pytest.approx(2)
    assert found.high == pytest.approx(2 * 2 ** (1 / math.sqrt(2)))
    assert pool([Estimate(1.0), Estimate(4.0, 2.0, 8.0)]) == Estimate(2.0, count=2)


def test_replicates_span_all_their_intervals_and_have_to_agree():
    one, two = Estimate(1.2, 1.1, 1.3, 1, "faster"), Estimate(1.5, 1.4, 1.6, 1, "faster")
    both = hull([one, two])
    assert both == Estimate(pytest.approx(math.sqrt(1.8)), 1.1, 1.6, 2, "faster")
    assert both.decided == "faster"
    doubtful = hull([one, Estimate(1.2, 1.1, 1.3, 1, "undecided")])
    assert doubtful.verdict == "undecided"
    assert doubtful.decided is None
    assert hull([one, Estimate(1.5, None, None, 1, "faster")]).low is None
    assert hull([]) is None


def test_a_quotient_takes_the_worst_ends():
    found = quotient(Estimate(6.0, 5.0, 8.0), Estimate(3.0, 2.0, 4.0))
    assert (found.value, found.low, found.high) == (2.0, 1.25, 4.0)
    assert quotient(Estimate(6.0), Estimate(3.0, 2.0, 4.0)) == Estimate(2.0)
    wide = widened(Estimate(10.0, 9.0, 11.0), Estimate(2.0, 1.0, 3.0, 5))
    assert wide == Estimate(10.0, 4.5, 16.5, 5)


@pytest.mark.parametrize(
    ("low", "high", "verdict", "decided"),
    [
        (1.01, 1.2, None, "faster"),
        (0.8, 0.99, None, "slower"),
        (0.99, 1.01, None, None),
        (1.0, 1.2, None, None),
        (1.01, 1.2, "undecided", None),  # within the noise floor
        (0.99, 1.01, "faster", None),  # a verdict against its own interval
        (None, None, "faster", None),
    ],
)
def test_a_ratio_is_decided_only_where_its_interval_excludes_one(low, high, verdict, decided):
    assert Estimate(1.0, low, high, 1, verdict).decided == decided


# --- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.update(schema="gnnprof.compile-case/2"), "schema is 'gnnprof.compile-case/2'"),
        (lambda r: r.pop("outcome"), "outcome is None; it should be a text"),
        (lambda r: r["case"].pop("model"), "case.model is None; it should be a text"),
        (lambda r: r["case"].update(threads="two"), "case.threads is 'two'; it should be a finite"),
        (lambda r: r["case"].update(dynamic="auto"), "case.dynamic is 'auto'"),
        (lambda r: r["inference"].update(speedup=-1.0), "inference.speedup is -1.0"),
        (lambda r: r["inference"].update(graphs=1.5), "inference.graphs is 1.5"),
        (lambda r: r["inference"].update(samples=[1.0, None]), "inference.samples is [1.0, None]"),
        (lambda r: r["inference"].update(samples="fast"), "inference.samples is 'fast'"),
        (lambda r: r.update(training=[1]), "training is [1]; it should be an object"),
        (lambda r: r["inference"].update(median=math.nan), "NaN, which is not a number of JSON"),
    ],
)
def test_what_is_no_record_says_why(change, words):
    entry = record()
    change(entry)
    with pytest.raises(UnreadableRecordError, match=re.escape(words)):
        parse_record(json.dumps(entry), "x.json")


def test_half_a_file_is_no_record():
    with pytest.raises(UnreadableRecordError, match="not JSON"):
        parse_record(json.dumps(record())[:100], "x.json")


def test_rows_read_what_compile_benchmark_writes():
    records = pytest.importorskip("gnnprof._compile_records")
    timing = records.PhaseTiming(
        (0.1, 0.1), (0.2, 0.2), 0.1, 0.09, 0.11, 0.2, 2.0, 1.9, 2.1, "faster"
    )
    made = records.CompileRow(
        mode="default",
        effective_mode="default",
        dynamic=None,
        fullgraph=False,
        status="ok",
        reason=None,
        phase="forward",
        forward=timing,
        graph_breaks=1,
        breaks=(records.GraphBreak("nonzero", "a.py:3", 2),),
        peak_memory=5,
    )
    floor = records.NoiseFloor((1.0,), (1.0,), 1.0, 0.98, 1.02, 0.02)
    entry = record(inference_row=made.to_dict(), record_changes={"noise_floor": floor.to_dict()})
    read = parse_record(json.dumps(entry), "x.json")
    found = read.phases["inference"]
    for name in ("samples", "eager_samples", "median", "speedup", "speedup_low", "verdict"):
        assert getattr(found, name) == getattr(made, name)
    assert found.breaks == ("nonzero (a.py:3)",)
    assert (found.graph_breaks, found.peak_memory, found.graphs) == (1, 5, None)
    assert read.noise == {"inference": 0.02}


def test_cases_of_the_sweep_are_read_whole():
    case = pytest.importorskip("benchmark.compile.case")
    entry = record() | {"case": case.Case("dgl", "GAT", "UMLS", dynamic=True).to_dict()}
    read = parse_record(json.dumps(entry), "x.json").case
    assert (read.framework, read.model, read.dataset, read.dynamic) == ("dgl", "GAT", "UMLS", True)


def test_an_entry_of_a_case_that_is_not_known_here_keeps_cases_apart():
    one, two = record(), record(sizes=12)
    assert len(study_of([one, two]).select(phase="inference")) == 2


def test_two_records_of_one_case_are_refused():
    entry = record()
    twin = parse_record(json.dumps(entry), "b.json")
    with pytest.raises(MixedRecordsError, match=r"a\.json and b\.json are records of the same"):
        by_environment([parse_record(json.dumps(entry), "a.json"), twin])


def test_environments_are_told_apart_by_versions_and_machine_only():
    entries = [
        record(),
        record(model="GAT", environment={"load_average": [9, 9, 9], "hostname": "there"}),
        record(model="GIN", environment={"dgl": None}),  # unknown is no difference
        record(model="GraphSAGE", environment={"torch": "2.12.0"}),
        record(model="GCN", threads=2),
    ]
    found = by_environment(
        [parse_record(json.dumps(e), f"{i}.json") for i, e in enumerate(entries)]
    )
    assert sorted(len(environment.records) for environment in found) == [1, 4]
    assert {e.differs["torch"] for e in found} == {"2.12.0", "2.13.0+cpu"}
    assert len({e.name for e in found}) == 2
    large = max(found, key=lambda e: len(e.records))
    assert "load_average" not in large.entries
    assert "threads" not in large.entries
    assert large.entries["dgl"] == "2.1.0"


# --- rows ------------------------------------------------------------------------------------


def only(records, **fields):
    (found,) = study_of(records).select(**{"phase": "inference"} | fields)
    return found


def test_replicates_become_one_row():
    found = only([record(1.2, replicate=0), record(1.5, replicate=1), record(1.8, seed=1)])
    assert found.replicates == found.replicates_ok == 3
    assert found.speedup.value == pytest.approx((1.2 * 1.5 * 1.8) ** (1 / 3))
    assert found.speedup.low == pytest.approx(1.2 / 1.05)
    assert found.speedup.high == pytest.approx(1.8 * 1.05)
    assert found.break_even == math.ceil(10 / (0.010 - 0.010 / 1.2))  # the most of the three
    assert found.finding == "faster"


def test_one_replicate_that_is_not_faster_leaves_the_case_undecided():
    found = only([record(1.5, replicate=0), record(1.0, replicate=1)])
    assert found.finding == "undecided"
    assert found.break_even is None


def test_a_wrong_result_takes_the_speedup_from_all_replicates():
    wrong = row(status="wrong_result", speedup=9.0, reason="outputs differ by 0.5")
    found = only([record(1.5), record(replicate=1, inference_row=wrong)])
    assert (found.finding, found.speedup, found.reason) == (
        "wrong_result",
        None,
        "outputs differ by 0.5",
    )
    assert not found.usable


def test_a_crash_of_one_replicate_leaves_the_others():
    found = only([record(1.5), record(replicate=1, outcome="crash")])
    assert (found.finding, found.replicates, found.replicates_ok) == ("faster", 2, 1)


def test_each_phase_stands_alone():
    entry = record(1.5, training_row={"error": "MemoryError: no more"})
    study = study_of([entry])
    (inference,), (training,) = (study.select(phase=p) for p in ("inference", "training"))
    assert inference.finding == "faster"
    assert (training.finding, training.reason) == ("error", "MemoryError: no more")


def test_a_case_that_failed_as_a_whole_says_so_in_both_phases():
    found = study_of([record(outcome="timeout")]).rows
    assert [(r.finding, r.reason) for r in found] == [("timeout", "timeout it was")] * 2


def test_what_another_mode_ran_is_not_reported_under_the_label():
    fell_back = only([record(1.5, mode="max-autotune", row_changes={"effective": "default"})])
    assert fell_back.finding == "not exercised on CPU (ran as default)"
    assert not fell_back.usable
    partly = only([record(1.5, row_changes={"effective": "partly eager"})])
    assert (partly.label, partly.usable) == ("default (partly eager)", True)


def test_the_dynamic_setting_makes_no_other_case_of_eager():
    found = only([record(1.0, mode="eager"), record(1.0, mode="eager", dynamic=True)])
    assert (found.dynamic, found.replicates) == ("auto", 2)


def test_warm_break_even_uses_the_warm_compile():
    found = only([record(2.0, row_changes={"cold": 10.0, "warm": 2.0})])
    assert (found.break_even, found.break_even_warm) == (2000, 400)  # 5 ms saved in each call


def test_batches_are_told_part_by_part():
    times = ("sampling_seconds", "transfer_seconds", "compute_seconds", "end_to_end_seconds")
    loader = dict(zip(times, (0.001, 0.002, 0.004, 0.008), strict=True))
    throughput = {"unit": "nodes/s", "inference": 10.0, "edges_inference": 50.0, "training": None}
    entry = record(
        sampled=True,
        row_changes={"bimodal": True},
        record_changes={"loader": loader, "throughput": throughput},
    )
    table = sheet_of([entry], "Default").tables[0]
    inference, training = dicts(table)
    parts = ("Sampling", "Transfer", "Compute")
    assert [training[f"{part} per batch [ms]"].value for part in parts] == [1.0, 2.0, 4.0]
    assert training["Batch, end to end [ms]"].value == 8.0
    assert inference["Sampling per batch [ms]"].value is None
    assert (inference["Throughput"].value, inference["Edges/s"].value) == (10.0, 50.0)
    assert (training["Throughput"].value, training["Edges/s"].value) == (None, None)
    assert inference["CPU utilisation [%]"].value == 97.0
    assert inference["Input"].value == "sampled batches"
    assert inference["Samples in two groups"].value == "yes"


def test_rows_have_one_order_whatever_the_files_are_called():
    records = small_study()
    rows = study_of(records).rows
    assert rows == study_of(records[::-1]).rows
    assert list(rows) == sorted(rows, key=row_order)


# --- the common set --------------------------------------------------------------------------


def test_modes_are_averaged_over_the_cases_that_all_of_them_have():
    on_gpu = {"device": "cuda", "environment": {"device": "cuda"}}
    records = [record(s, dataset=d, **on_gpu) for s, d in ((2.0, "a"), (8.0, "b"), (100.0, "c"))]
    records += [
        record(s, dataset=d, mode="reduce-overhead", **on_gpu) for s, d in ((3.0, "a"), (3.0, "b"))
    ]
    rows = study_of(records).select(phase="inference")
    found = compare(rows, lambda r: r.name, lambda r: r.experiment, speedup_of)
    assert [key.dataset for key in found.keys] == ["a", "b"]
    assert found.means["default"].value == pytest.approx(4.0)  # not the cube root of 1600
    assert found.means["reduce-overhead"].value == pytest.approx(3.0)
    assert found.left_out == {}
    # Case by case 2/3 and 8/3.
    assert found.against("default", "reduce-overhead").value == pytest.approx(4 / 3)


def test_what_shares_no_case_is_left_out_with_its_own_mean():
    records = [record(2.0, dataset=d) for d in ("a", "b")]
    records += [record(3.0, dataset=d, model="GAT") for d in ("a", "b")]
    records += [record(5.0, dataset="biokg-like", model="DistMult")]
    rows = study_of(records).select(phase="inference")
    found = compare(rows, lambda r: r.experiment.model, lambda r: r.experiment.dataset, speedup_of)
    assert set(found.means) == {"GCN", "GAT"}
    assert {name: ratio.value for name, ratio in found.left_out.items()} == {"DistMult": 5.0}


# --- the questions ---------------------------------------------------------------------------


def test_arxiv_latency():
    records = [record(2.0, dataset="arxiv-like", scale=0.1)]
    records += [record(8.0, dataset="arxiv-like", scale=0.1, model="GAT")]
    records += [record(50.0, dataset="cora-like")]  # not asked for
    records += [record(0.8, dataset="ogbn-arxiv", framework="dgl")]
    made = answer(records, 1)
    # sqrt(2 * 8) = 4; standard error ln 2, as above: 4 exp(12.7062 ln 2) = 4 * 6682.65.
    assert made == (
        f"PyG on arxiv-like (stand-in, scale 0.1) {ON_CPU}: default 4.00x (95 % interval 0.0006 "
        "to 26,731): 2 faster, 0 slower, 0 undecided. Geometric mean over 2 cases on arxiv-like "
        "(stand-in, scale 0.1).",
        f"DGL on ogbn-arxiv {ON_CPU}: default 0.80x (95 % interval 0.76 to 0.84): 0 faster, "
        "1 slower, 0 undecided. Geometric mean over 1 case on ogbn-arxiv.",
    )


def test_threads_are_never_averaged():
    records = [record(s, dataset="arxiv-like", threads=t) for s, t in ((5.0, 1), (2.0, 2))]
    made = answer(records, 1)
    assert [re.search(r"\d thread.*default (\S+)", text).group(1) for text in made] == [
        "5.00x",
        "2.00x",
    ]


def test_framework_by_architecture():
    speedups = {("pyg", "GCN"): 2.0, ("pyg", "GAT"): 1.6, ("dgl", "GCN"): 0.8}
    records = [record(s, framework=f, model=m) for (f, m), s in speedups.items()]
    records += [record(9.0, model="GAT", dataset="pubmed-like")]  # GAT alone: not in the set
    (made,) = answer(records, 2)
    assert made == (
        f"default {ON_CPU}: PyG GCN 2.00x (95 % interval 1.90 to 2.10): 1 faster, 0 slower, "
        "0 undecided; PyG GAT 1.60x (95 % interval 1.52 to 1.68): 1 faster, 0 slower, 0 undecided; "
        "DGL GCN 0.80x (95 % interval 0.76 to 0.84): 0 faster, 1 slower, 0 undecided. Geometric "
        "mean over 1 case on cora-like (stand-in). PyG GCN against DGL GCN, case by case: 2.50x "
        "(95 % interval 2.27 to 2.76)."  # 1.9048 / 0.84 and 2.1 / 0.7619
    )


def test_trade_off():
    costs = {"a": (2.0, 10.0), "b": (1.25, 20.0), "c": (1.0, 30.0)}
    records = [record(s, dataset=d, row_changes={"cold": c}) for d, (s, c) in costs.items()]
    (made,) = answer(records, 3)
    # 10 s / 5 ms = 2,000 and 20 s / 2 ms = 10,000 calls; warm 2 s: 400 and 1,000; longer is less.
    assert (
        f"PyG, default {ON_CPU}: compiling takes 20.00 s (median of 3; 10.00 to 30.00) cold" in made
    )
    assert "2.00 s (median of 3; 2.00 to 2.00) warm, and gains 1.36x (95 % interval" in made
    assert "the geometric mean over 3 cases on a, b and c" in made
    assert made.endswith(
        "it pays in 2 of 3 cases, from 6,000 calls (median of 2; 2,000 to 10,000) on, with a "
        "filled cache from 700 calls (median of 2; 400 to 1,000) on; in 0 of 3 pairs of cases the "
        "longer compile gained more."
    )


def test_scaling():
    sizes = {"cora-like": 1.0, "pubmed-like": 1.5, "arxiv-like": 2.0}
    records = [
        record(s * f, dataset=d, model=m)
        for d, s in sizes.items()
        for m, f in (("GCN", 1), ("GAT", 4))
    ]
    records += [record(9.0, dataset="arxiv-like", scale=0.01)]  # the largest scale counts
    records += [record(1.2, dataset="PubMed"), record(1.2, dataset="CiteSeer")]
    real, made = answer(records, 4)
    assert f"PyG, default, stand-ins {ON_CPU}: cora-like (stand-in) 2.00x" in made
    assert "pubmed-like (stand-in) 3.00x" in made
    assert "arxiv-like (stand-in) 4.00x" in made
    # Twice in both models; each ratio is 1.05 * 1.05 wide, and two of them leave 1.05**sqrt(2).
    assert made.endswith(
        "Geometric means over 2 models; from cora to arxiv the gain grows: 2.00x (95 % interval "
        "1.87 to 2.14)."
    )
    assert real == (
        f"PyG, default, real data {ON_CPU}: not measured, as only PubMed was run (cora and arxiv: "
        "not measured)."
    )


def test_link_prediction():
    records = [record(1.0), record(4.0, dataset="pubmed-like")]  # GCN on nodes: 2
    records += [record(1.0, dataset="collab-like")]  # on links: 1
    records += [record(3.0, dataset="biokg-like", model="DistMult")]
    (made,) = answer(records, 5)
    assert f"PyG, default, stand-ins {ON_CPU}: node classification 2.00x" in made
    assert (
        "link prediction 1.00x (95 % interval 0.95 to 1.05): 0 faster, 0 slower, 1 undecided"
        in made
    )
    assert (
        "Geometric mean over 1 model on the stand-ins cora-like, pubmed-like and collab-like"
        in made
    )
    assert "knowledge-graph completion has none of them: 3.00x (95 % interval 2.86 to 3.15)" in made
    # 1 / 2, each within its own interval: 1.05 and 1.05**(1 / sqrt 2).
    assert made.endswith(
        "link prediction against node classification, case by case: 0.50x (95 % interval 0.46 to "
        "0.54)."
    )


def test_memory():
    peaks = {"a": (100, 200), "b": (400, 200), "c": (200, 200)}
    records = [
        record(training=None, dataset=d, row_changes={"peak": p, "eager_peak": e})
        for d, (p, e) in peaks.items()
    ]
    (made,) = answer(records, 6)
    # Ratios 1/2, 2, 1: logs spread by ln 2, so ln 2 / sqrt 3 times 4.3027.
    bound = math.exp(4.302653 * math.log(2) / math.sqrt(3))
    assert made == (
        f"PyG, default, inference {ON_CPU}: the compiled peak is 1.00x (95 % interval "
        f"{1 / bound:.2f} to {bound:.2f}) the eager one, the geometric mean over 3 cases on a, b "
        "and c: lower in 1, higher in 1, within 1 % in 1."
    )


def test_training():
    records = [record(None, training=1.25), record(None, training=0.8, dataset="arxiv-like")]
    records[1]["throughput"]["training"] = 3e5
    (made,) = answer(records, 7)
    assert made.startswith(f"PyG {ON_CPU}, training steps per second: default 1.00x (95 % interval")
    assert "1 faster, 1 slower, 0 undecided. Geometric mean over 2 cases" in made
    assert made.endswith("Highest: 300,000 nodes/s (PyG GCN on arxiv-like (stand-in), default).")


def test_dynamic_setting():
    records = [record(2.0, row_changes={"breaks": 4}), record(2.0, dynamic=True)]
    records += [record(4.0, dataset="a"), record(1.0, dataset="a", dynamic=True)]
    (made,) = answer(records, 8)
    assert made.startswith(f"PyG, default, fixes {ON_CPU}: dynamic=auto 2.83x")  # sqrt(2 * 4)
    assert "dynamic=true 1.41x" in made
    assert "dynamic=true against dynamic=auto, case by case: 0.50x" in made  # sqrt(1 * 1 / 4)
    assert made.endswith(
        "Breaks: dynamic=auto 2 graph breaks (median of 2; 0 to 4), 0 recompiles (median of 2; 0 "
        "to 0); dynamic=true 0 graph breaks (median of 2; 0 to 0), 0 recompiles (median of 2; 0 to "
        "0); alike in 1 of 2 cases."
    )


def test_best_mode():
    on_gpu = {"device": "cuda", "environment": {"device": "cuda"}, "training": None}
    gains = {("default", "a"): 1.5, ("default", "b"): 1.6}
    gains |= {("reduce-overhead", "a"): 3.0, ("reduce-overhead", "b"): 3.2}
    gains |= {("max-autotune", "a"): 1.0, ("max-autotune", "b"): 1.0}
    records = [record(s, mode=m, dataset=d, **on_gpu) for (m, d), s in gains.items()]
    (made,) = answer(records, 9)
    assert made.endswith(
        "Best mode: reduce-overhead, the fastest in 2 of 2 cases. reduce-overhead against default, "
        "case by case: 2.00x (95 % interval 1.87 to 2.14)."
    )


def test_no_mode_is_best_where_nothing_is_faster():
    (inference, _) = answer([record(1.0, training=0.9)], 9)
    assert inference.endswith("Best mode: eager, since nothing is faster beyond doubt (default).")


def test_a_study_without_fixes_is_answered_too():
    records = [record(1.0, mode="eager", variant="no-fixes")]
    records += [record(2.0, variant="no-fixes", dynamic=d) for d in (True, False)]
    study = study_of(records)
    assert str(study.main) == "variant no-fixes, dynamic=true"
    assert "default 2.00x" in answers(study)[8].sentences[0]
    (wide,) = sheet_of(records, "Memory 5 (eager vs compiled)").tables
    assert dicts(wide)[0]["default [MiB]"].value == 1000 / 1024
    assert "2.00x" in page(study)
    assert str(study_of([record()]).main) == "variant fixes, dynamic=auto"


def test_modes_that_did_not_run_are_no_finding():
    records = [record(1.5)]
    records += [record(3.0, mode=m, row_changes={"effective": "default"}) for m in MODES[1:]]
    for number in (2, 3, 6, 7, 9):
        made = answer(records, number)
        assert made[-1].startswith(
            "max-autotune, max-autotune-no-cudagraphs and reduce-overhead: not exercised on CPU, "
            "as default ran instead ("
        )
        assert not any("3.00x" in sentence for sentence in made)
    assert answer(records, 9)[0].endswith("Best mode: default, the only one that was exercised.")


def test_what_was_not_measured_says_so():
    made = answers(study_of([record(outcome="oom", dataset="arxiv-like")]))
    assert len(made) == len(QUESTIONS) == 9
    assert all(a.sentences[0].startswith("not measured: ") and a.count == 0 for a in made)
    assert made[0].sentences == ("not measured: of 1 row 1 oom.",)
    assert made[4].sentences == ("not measured: the records hold no such case.",)
    without = record(row_changes={"peak": None, "eager_peak": None})
    assert answer([without], 6) == ("not measured: none of 2 rows has this figure.",)


def test_answers_count_the_rows_behind():
    found = answers(study_of(small_study()))
    # 2 frameworks x 2 models: of arxiv 1 set, of all 4; the chain has 3; memory has both phases.
    assert [a.count for a in found] == [4, 16, 16, 12, 4, 32, 16, 16, 32]


def test_the_noise_floor_is_counted():
    records = [record(1.0, training=1.2, mode="eager", row_changes={"verdict": None})]
    assert noise(study_of(records)) == (
        "Noise floor: 2 of 2 comparisons of eager with eager are undecided, as all should be; the "
        "A/A intervals reach from 1 by 3.0 %."
    )
    bad = record(mode="eager", inference_row=row("eager", 1.2, verdict="faster"), noise=None)
    assert noise(study_of([bad])).startswith("Noise floor: 1 of 2 comparisons")
    assert noise(study_of([record(noise=None)])).endswith("(eager against eager): not measured.")


def test_counts_and_lists_read_well():
    assert [some(n, "case") for n in (0, 1, 1200)] == ["0 cases", "1 case", "1,200 cases"]
    assert [listed(list(w)) for w in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]


# --- sheets ----------------------------------------------------------------------------------


def sheet_of(records, name):
    (found,) = [sheet for sheet in sheets(study_of(records)) if sheet.name == name]
    return found


def dicts(table):
    """The rows of a table by heading; a heading that comes twice keeps its first."""
    headings = [column.heading for column in table.columns]
    return [dict(zip(headings[::-1], cells[::-1], strict=True)) for cells in table.rows]


def test_there_are_24_sheets():
    assert [builder.name for builder in SHEETS] == [
        "Research Questions",
        "Eager",
        "Default",
        "Reduce Overhead",
        "Max Autotune",
        "Max Autotune No CudaGraphs",
        "Mode Summary (auto)",
        "Mode Summary (true)",
        "Mode Summary (false)",
        "Mode Summary (no-fixes)",
        "DGL Summary",
        "PyG Summary",
        "DGL vs PyG (eager)",
        "DGL vs PyG (all modes)",
        "DGL eager vs PyG compiled",
        "Compile Modes vs Eager",
        "Memory 1 (by model)",
        "Memory 2 (by mode)",
        "Memory 3 (inference)",
        "Memory 4 (training)",
        "Memory 5 (eager vs compiled)",
        "Auto vs No-Fixes",
        "GIN 300 vs 20 epochs",
        "Error Summary",
    ]
    assert len(SHEETS) == 24


def test_the_summary_of_a_mode_counts_every_row():
    records = [record(2.0, dataset="a"), record(0.5, dataset="b"), record(1.0, dataset="c")]
    records += [record(dataset="d", outcome="oom")]
    records += [record(None, dataset="e")]
    records += [record(9.0, mode="max-autotune", row_changes={"effective": "default"})]
    (table,) = sheet_of(records, "Mode Summary (auto)").tables
    default, tuned = (r for r in dicts(table) if r["Phase"].value == "inference")
    counts = ("Cases", "Faster", "Slower", "Undecided", "Not exercised", "Failed", "Not measured")
    assert [default[name].value for name in counts] == [5, 1, 1, 1, 0, 1, 1]
    assert default["Mean speedup"].value == pytest.approx(1.0)
    assert default["Mean speedup"].tone is None
    assert default["Common cases"].value == 3
    assert default["Break-even, median where it pays [calls]"].value == 2000
    assert [tuned[name].value for name in counts] == [1, 0, 0, 0, 1, 0, 0]
    assert tuned["Mean speedup"] == ("not measured", "void")


def test_frameworks_are_compared_between_processes():
    # PyG's eager call takes 10 and 11 ms in its two processes, DGL's 20 and 20.
    records = [
        record(1.0, mode="eager"),
        record(2.0, row_changes={"eager": 0.011}),
        record(1.0, mode="eager", framework="dgl", row_changes={"eager": 0.020}),
        record(1.0, framework="dgl", row_changes={"eager": 0.020}),
    ]
    means, table = sheet_of(records, "DGL vs PyG (eager)").tables
    (found,) = [r for r in dicts(table) if r["Phase"].value == "inference"]
    assert found["PyG eager [ms]"].value == pytest.approx(math.sqrt(110))
    assert found["PyG / DGL time"].value == pytest.approx(math.sqrt(110) / 20)
    assert found["PyG / DGL time"].tone == "worse"  # DGL is slower
    # The second smallest of the 10 ms samples over the second largest of the 20 ms ones.
    assert found["Low"].value == pytest.approx(
        sorted(samples(0.010))[1] / sorted(samples(0.02))[-2]
    )
    assert found["High"].value == pytest.approx(
        sorted(samples(0.011))[-2] / sorted(samples(0.02))[1]
    )
    assert (found["PyG processes"].value, found["DGL processes"].value) == (2, 2)
    (mean,) = [r for r in dicts(means) if r["Phase"].value == "inference"]
    assert mean["Mean of PyG / DGL time"].value == found["PyG / DGL time"].value
    _, crossed = sheet_of(records, "DGL eager vs PyG compiled").tables
    (found,) = [r for r in dicts(crossed) if r["Phase"].value == "inference"]
    assert found["PyG / DGL time"].value == pytest.approx(5.5 / 20)
    _, modes = sheet_of(records, "DGL vs PyG (all modes)").tables
    ratios = {r["Mode"].value: r["PyG / DGL time"].value for r in dicts(modes)[::2]}
    assert ratios == {"eager": pytest.approx(math.sqrt(110) / 20), "default": pytest.approx(0.275)}


def test_one_process_of_each_framework_decides_nothing():
    records = [record(1.0, mode="eager"), record(9.0, mode="eager", framework="dgl")]
    records[1]["inference"]["eager_samples"] = samples(0.5)
    _, table = sheet_of(records, "DGL vs PyG (eager)").tables
    found = dicts(table)[0]
    assert found["PyG / DGL time"] == (pytest.approx(0.02), None)


def test_modes_stand_side_by_side():
    records = [record(1.5), record(2.5, mode="max-autotune", row_changes={"effective": "default"})]
    records += [record(mode="reduce-overhead", outcome="oom")]
    (table,) = sheet_of(records, "Compile Modes vs Eager").tables
    found = dicts(table)[0]
    assert found["Speedup, default"] == (1.5, "better")
    assert found["Speedup, reduce-overhead"] == ("oom", "failed")
    assert found["Speedup, max-autotune"] == ("not exercised on CPU (ran as default)", "void")
    assert found["Low, max-autotune"].value is None
    assert found["Speedup, max-autotune-no-cudagraphs"] == ("not measured", "void")


def test_memory_is_compared_by_model_by_mode_and_by_case():
    records = [
        record(model=m, dataset=d, row_changes={"peak": p * 2**20, "eager_peak": 8 * 2**20})
        for m, d, p in (("GCN", "a", 4), ("GCN", "b", 4), ("GAT", "a", 16), ("GAT", "b", 16))
    ]
    records += [record(1.0, mode="eager", dataset="a", row_changes={"peak": 9 * 2**20})]
    (by_model,) = sheet_of(records, "Memory 1 (by model)").tables
    means = {r["Model and mode"].value: r["Mean of compiled / eager peak"] for r in dicts(by_model)}
    assert means["GCN, default"] == (pytest.approx(0.5), "better")
    assert means["GAT, default"] == (pytest.approx(2.0), "worse")
    (by_mode,) = sheet_of(records, "Memory 2 (by mode)").tables
    mean = dicts(by_mode)[0]
    assert mean["Mean of compiled / eager peak"] == (pytest.approx(1.0), None)
    assert (mean["Cases with both peaks"].value, mean["Common cases"].value) == (4, 4)
    for name, phase in (("Memory 3 (inference)", "inference"), ("Memory 4 (training)", "training")):
        (table,) = sheet_of(records, name).tables
        assert {r["Phase"].value for r in dicts(table)} == {phase}
        assert dicts(table)[0]["Peak memory [MiB]"].value == 4.0
        assert dicts(table)[0]["Compiled / eager peak"] == (0.5, None)
    (wide,) = sheet_of(records, "Memory 5 (eager vs compiled)").tables
    assert dicts(wide)[0]["eager [MiB]"].value == 9.0
    assert dicts(wide)[0]["default [MiB]"].value == 4.0


def test_variants_stand_side_by_side():
    records = [record(2.0), record(1.25, variant="no-fixes", row_changes={"breaks": 4})]
    records += [record(1.6, variant="fullgraph")]
    (table,) = sheet_of(records, "Auto vs No-Fixes").tables
    found = dicts(table)[0]
    speedups = [found[f"Speedup, {name}"].value for name in ("fixes", "no-fixes", "fullgraph")]
    assert speedups == [2.0, 1.25, 1.6]
    assert (found["Graph breaks, fixes"].value, found["Graph breaks, no-fixes"].value) == (0, 4)
    assert found["Where it breaks, no-fixes"].value.startswith("aten.nonzero (loop.py:650); aten")
    # 10 ms / 1.25 over 10 ms / 2, from one process each.
    assert found["No-fixes / fixes compiled time"] == (pytest.approx(1.6), None)


def test_gin_after_few_and_many_epochs():
    records = [
        record(model="GIN", dataset="arxiv-like", mode="eager", epochs=e, seed=s, quality=q)
        for e, s, q in (
            (20, 0, ("accuracy", 0.50, 20)),
            (20, 1, ("accuracy", 0.54, 20)),
            (300, 0, ("accuracy", 0.62, 300)),
            (5, 0, ("accuracy", 0.30, 5)),
        )
    ]
    records += [record(model="GCN", quality=("accuracy", 0.9, 20))]
    records += [record(model="GIN", quality=("accuracy", 0.9, 20))]
    (table,) = sheet_of(records, "GIN 300 vs 20 epochs").tables
    short, both = sorted(dicts(table), key=lambda r: r["Mode"].value)
    assert both["20 epochs, mean [%]"].value == pytest.approx(52)
    assert both["20 epochs, lowest [%]"].value == pytest.approx(50)
    assert (both["20 epochs, runs"].value, both["300 epochs, runs"].value) == (2, 1)
    assert both["Gain from 20 to 300 epochs [points]"].value == pytest.approx(10)
    assert both["Other epochs run"].value == "5"
    assert short["300 epochs, mean [%]"] == ("not measured", "void")
    assert short["Gain from 20 to 300 epochs [points]"] == ("not measured", "void")


def test_errors_are_listed_whole():
    slow = {"harness_seconds": 20.0, "harness_allowed": 14.0}
    records = [
        record(),
        record(model="GAT", outcome="oom", record_changes={"stderr": "x" * 2000 + "last words"}),
        record(model="GIN", training_row={"error": "ValueError: no"}, record_changes=slow),
    ]
    counts, failed, phases, skipped, late = sheet_of(records, "Error Summary").tables
    assert {(r["Model"].value, r["ok"].value, r["oom"].value) for r in dicts(counts)} == {
        ("GCN", 1, 0),
        ("GAT", 0, 1),
        ("GIN", 1, 0),
    }
    (crash,) = dicts(failed)
    assert (crash["Outcome"], crash["Reason"].value) == (("oom", "failed"), "oom it was")
    assert crash["End of stderr"].value.endswith("last words")
    assert ("error", "ValueError: no") in {
        (r["Verdict"].value, r["Reason"].value) for r in dicts(phases)
    }
    assert (skipped.rows, skipped.empty) == ((), "none")
    assert [(r["Model"].value, r["Harness [s]"].value) for r in dicts(late)] == [("GIN", 20.0)]


# --- the workbook ----------------------------------------------------------------------------


def cells_of(sheet, first_heading):
    """The rows below a heading as mappings from heading to cell."""
    rows = list(sheet.iter_rows())
    top = next(i for i, cells in enumerate(rows) if cells[0].value == first_heading)
    headings = [cell.value for cell in rows[top] if cell.value is not None]
    found = []
    for cells in rows[top + 1 :]:
        if cells[0].value is None:
            break
        found.append(dict(zip(headings, cells, strict=False)))
    return found


def fill(cell):
    return cell.fill.fgColor.rgb[2:] if cell.fill.fill_type == "solid" else None


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory):
    """The small study on disk, its records and the folder that the command wrote to."""
    records = small_study()
    folder = write(tmp_path_factory.mktemp("study"), records)
    assert analyze.main([str(folder)]) == 0
    return records, folder / "analysis"


def test_the_workbook_has_24_sheets_with_headings_and_the_legend(analyzed):
    book = openpyxl.load_workbook(analyzed[1] / "study.xlsx")
    assert book.sheetnames == [builder.name for builder in SHEETS]
    for sheet in book:
        texts = [cell.value for cells in sheet.iter_rows(max_row=8) for cell in cells]
        assert "faster, or less memory: the 95 % interval excludes 1" in texts
        assert "no colour: undecided" in texts
    assert "variant fixes, dynamic=auto" in book["Research Questions"]["A2"].value
    assert "Generated stand-ins" in book["Research Questions"]["A4"].value


def test_the_workbook_equals_the_records(analyzed):
    records, out = analyzed
    cells = cells_of(openpyxl.load_workbook(out / "study.xlsx")["Default"], "Framework")
    raw = {
        ({"pyg": "PyG", "dgl": "DGL"}[r["case"]["framework"]], r["case"]["model"],
         r["case"]["dataset"], phase): r[phase]
        for r in records
        for phase in ("inference", "training")
        if r["case"]["mode"] == "default" and r["outcome"] == "ok"
    }  # fmt: skip
    checked = 0
    for found in cells:
        name = found["Data"].value.removesuffix(" (stand-in)")
        key = (found["Framework"].value, found["Model"].value, name, found["Phase"].value)
        if key not in raw:
            assert found["Verdict"].value == "oom"
            continue
        expected, checked = raw[key], checked + 1
        for heading, field, factor in (
            ("Time [ms]", "median", 1e3),
            ("Time low [ms]", "median_low", 1e3),
            ("Time high [ms]", "median_high", 1e3),
            ("Speedup", "speedup", 1),
            ("Speedup low", "speedup_low", 1),
            ("Speedup high", "speedup_high", 1),
            ("Cold compile [s]", "compile_seconds_cold", 1),
            ("Warm compile [s]", "compile_seconds_warm", 1),
            ("Peak memory [MiB]", "peak_memory", 2**-20),
            ("Eager peak memory [MiB]", "eager_peak_memory", 2**-20),
            ("Max abs error of outputs", "max_abs_error", 1),
        ):
            assert found[heading].value == pytest.approx(expected[field] * factor, rel=1e-12)
        for heading, field in (
            ("Graphs", "graphs"),
            ("Graph breaks", "graph_breaks"),
            ("Distinct kernels", "kernels"),
            ("Kernel launches per call", "kernel_launches"),
        ):
            assert found[heading].value == expected[field]
        assert found["Verdict"].value == expected["verdict"]
        assert found["Break-even, cold [calls]"].value == (expected["break_even_calls"] or "n/a")
        colours = {"faster": "C6E7CE", "slower": "F7CFC9", "undecided": None}
        assert fill(found["Speedup"]) == colours[expected["verdict"]]
    assert checked == len(raw) == 32


def test_the_means_equal_those_of_the_records(analyzed):
    records, out = analyzed
    cells = cells_of(openpyxl.load_workbook(out / "study.xlsx")["Mode Summary (auto)"], "Mode")
    for framework, name in (("pyg", "PyG"), ("dgl", "DGL")):
        for phase in ("inference", "training"):
            gains = [
                r[phase]["speedup"]
                for r in records
                if r["outcome"] == "ok"
                and (r["case"]["mode"], r["case"]["framework"]) == ("default", framework)
            ]
            (found,) = [
                c
                for c in cells
                if (c["Mode"].value, c["Framework"].value, c["Phase"].value)
                == ("default", name, phase)
            ]
            product = math.prod(gains) ** (1 / len(gains))
            assert found["Mean speedup"].value == pytest.approx(product)
            assert found["Common cases"].value == len(gains) == 8


def test_no_mode_that_did_not_run_has_a_figure(analyzed):
    book = openpyxl.load_workbook(analyzed[1] / "study.xlsx")
    for name in ("Reduce Overhead", "Max Autotune", "Max Autotune No CudaGraphs"):
        for found in cells_of(book[name], "Framework"):
            assert found["Speedup"].value == "not exercised on CPU (ran as default)"
            assert fill(found["Speedup"]) == "E7E9EC"
            for heading in ("Time [ms]", "Cold compile [s]", "Throughput", "Peak memory [MiB]"):
                assert found[heading].value == "n/a"


def test_text_never_becomes_a_formula_a_link_or_a_number(tmp_path):
    names = ["=1+1", "+1", "-1", "@x", "https://x.y", "12", "a\x00b\x0bc", "\ud800", "ab" * 40_000]
    records = [record(model=name) for name in names]
    write_workbook(tmp_path / "x.xlsx", sheets(study_of(records)))
    book = openpyxl.load_workbook(tmp_path / "x.xlsx")
    cells = [cell for sheet in book for row_ in sheet.iter_rows() for cell in row_]
    assert not [cell for cell in cells if cell.data_type == "f" or cell.hyperlink]
    found = {c["Model"].value for c in cells_of(book["Default"], "Framework")}
    assert {"=1+1", "+1", "-1", "@x", "https://x.y", "12", "?"} < found
    assert max(map(len, found)) == 32_767


def test_the_workbook_of_the_same_records_is_the_same(tmp_path):
    records = small_study()[:20]
    for name, some_records in (("a.xlsx", records), ("b.xlsx", records[::-1])):
        write_workbook(tmp_path / name, sheets(study_of(some_records)))
    first, second = (
        [[c.value for c in cells] for s in openpyxl.load_workbook(tmp_path / n) for cells in s]
        for n in ("a.xlsx", "b.xlsx")
    )
    assert first == second


def test_the_workbook_is_never_written_over(tmp_path):
    made = sheets(study_of([record()]))
    (tmp_path / "x.xlsx").write_text("mine")
    with pytest.raises(FileExistsError):
        write_workbook(tmp_path / "x.xlsx", made)
    assert (tmp_path / "x.xlsx").read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["x.xlsx"]


# --- LaTeX -----------------------------------------------------------------------------------


def test_latex_is_escaped():
    assert escape("50 % of a_b & {c} #1 $x^2~y\\") == (
        r"50 \% of a\_b \& \{c\} \#1 \$x\textasciicircum{}2\textasciitilde{}y\textbackslash{}"
    )
    assert escape("[1] * <a|b> `c\nd") == (
        r"{[}1{]} {*} \textless{}a\textbar{}b\textgreater{} \textasciigrave{}c d"
    )
    assert escape("a--b---c") == "a-{}-b-{}-{}-c"


def test_latex_tables_are_whole():
    study = study_of([*small_study(), record(model="a & b_c {%}", dataset="[x]\\\\")])
    text = latex(answers(study), sheets(study))
    plain = re.sub(r"\\[\\{}&%_#$]", "", text)
    assert plain.count("{") == plain.count("}")
    tables = re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) > 10
    for columns, body in tables:
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(lines) >= 2
        for line in lines:
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
    assert text.count("\\paragraph{") == 9
    assert r"a \& b\_c \{\%\}" in text


def test_latex_prints_decided_ratios_bold_and_names_what_is_too_large():
    records = [record(2.0, dataset=f"d{i}") for i in range(70)]
    study = study_of(records)
    text = latex(answers(study), sheets(study))
    assert r"\textbf{2.000}" in text
    assert "% Default: Every case with mode default: 140 rows" in text


# --- the page --------------------------------------------------------------------------------


class Document(HTMLParser):
    """Start tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag, **attributes):
        return [a for name, a in self.tags if name == tag and attributes.items() <= a.items()]

    def marks(self, word):
        return [a for a in self.all("g") if word in a["class"].split()]


def test_the_page_loads_nothing(analyzed):
    text = (analyzed[1] / "study.html").read_text(encoding="utf-8")
    document = Document(text)
    for tag, attributes in document.tags:
        assert tag not in {
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
            "a",
        }
        assert not {"src", "href", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in text
    (policy,) = [m["content"] for m in document.all("meta") if "http-equiv" in m]
    style = re.search("<style>(.*?)</style>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none';")
    assert f"style-src 'sha256-{digest}'" in policy


def test_every_question_is_answered_on_the_page(analyzed):
    records, out = analyzed
    words = " ".join(Document((out / "study.html").read_text(encoding="utf-8")).words)
    for found in answers(study_of(records)):
        assert found.question in words
        assert all(sentence in words for sentence in found.sentences)


def test_plots_hold_a_mark_for_every_row():
    records = [
        record(2.0),
        record(0.5, model="GAT"),
        record(1.0, model="GIN"),
        record(outcome="oom", model="x"),
    ]
    document = Document(page(study_of(records)))
    # Inference and training (1.2), each once among the speedups and once in the trade-off.
    assert len(document.marks("faster")) == 2 * (1 + 3)
    assert len(document.marks("slower")) == 2 * 1
    assert len(document.marks("undecided")) == 2 * 1
    # Break-even, cold and warm, of the four rows that are faster; memory of six.
    assert len(document.marks("first")) == 2 * 4 + 3
    assert len(document.marks("second")) == 3
    titles = [word for word in document.words if "calls" in word and "cold" in word]
    assert (
        f"PyG GCN on cora-like (stand-in) {ON_CPU}, default, fixes: inference, cold: 2,000 calls"
        in titles
    )


def test_lines_name_what_tells_their_settings_apart():
    document = Document(page(study_of([record(2.0), record(3.0, threads=2)])))
    assert "GCN, cora-like (stand-in), default, 2 threads" in document.words


def test_marks_stand_where_their_figures_are():
    axis = Axis(1.0, 100.0, 200.0, 400.0)
    assert [axis.place(v) for v in (1.0, 10.0, 100.0, 1000.0)] == [200.0, 300.0, 400.0, 400.0]
    assert axis.ticks == [1, 2, 5, 10, 20, 50, 100]
    narrow = axis_over([2.0], 0.0, 10.0)
    assert narrow.low < 2.0 < narrow.high
    assert len(axis_over([1e-3, 1e9], 0, 1).ticks) <= 13
    mark = Mark(Estimate(10.0, 1.0, 100.0), "faster", "about")
    svg = line_plot("t", "u", [Line("n", (mark,))])
    (circle,) = Document(svg).all("circle")
    whisker = next(a for a in Document(svg).all("line") if "class" not in a)
    assert float(circle["cx"]) == pytest.approx((float(whisker["x1"]) + float(whisker["x2"])) / 2)


def test_a_large_study_says_how_many_lines_are_left_out():
    records = [record(2.0, training=None, dataset=f"d{i}") for i in range(153)]
    text = page(study_of(records))
    assert "3 rows more: in the workbook." in text
    assert text.count("3 lines more: in the workbook.") == 2


def test_a_page_without_figures_says_so():
    text = page(study_of([record(outcome="oom")]))
    assert text.count("not measured: no ") == 4
    assert "<svg" not in text


def test_names_stay_text():
    records = [record(2.0, model=HOSTILE, dataset=HOSTILE), record(outcome="crash", model=HOSTILE)]
    text = page(study_of(records))
    assert "<script>" not in text
    document = Document(text)
    assert any(HOSTILE in word for word in document.words)


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium on the PATH")
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_opens_in_a_browser(analyzed, dark):
    opened = browser.open_page(analyzed[1] / "study.html", dark=dark)
    assert opened.console == ()
    assert opened.dom.count("<svg") == 4 + 4 + 1 + 1
    assert "Best mode" in opened.dom


# --- the command -----------------------------------------------------------------------------


def run(capsys, *arguments):
    status = analyze.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_the_command_prints_the_answers_and_where_the_files_are(tmp_path, capsys):
    folder = write(tmp_path / "study", small_study())
    status, out, err = run(capsys, folder, "--out", tmp_path / "here")
    assert (status, err) == (0, "")
    assert out.startswith("81 records: 80 ok and 1 oom.")
    assert all(question in out for question in QUESTIONS)
    files = sorted(file.name for file in (tmp_path / "here").iterdir())
    assert files == ["study.html", "study.xlsx", "tables.tex"]
    assert all(str(tmp_path / "here" / name) in out for name in files)


def test_earlier_files_are_replaced_by_force_only(tmp_path, capsys):
    folder = write(tmp_path, [record()])
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "tables.tex").write_text("mine")
    status, out, err = run(capsys, folder)
    assert (status, out) == (1, "")
    assert err == (
        f"analyze.py: {tmp_path / 'analysis' / 'tables.tex'} already exists; give another --out, "
        "or --force to replace it.\n"
    )
    assert [file.name for file in (tmp_path / "analysis").iterdir()] == ["tables.tex"]
    assert run(capsys, folder, "--force")[0] == 0
    assert "mine" not in (tmp_path / "analysis" / "tables.tex").read_text()


def test_an_empty_folder_is_a_clear_error(tmp_path, capsys):
    status, _, err = run(capsys, tmp_path / "nowhere")
    assert (status, "there is no such folder" in err) == (1, True)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / ".half.json").write_text("{")  # still being written
    status, _, err = run(capsys, tmp_path)
    assert status == 1
    assert "no records (*.json)" in err
    assert "sweep.py" in err
    assert not (tmp_path / "analysis").exists()


def test_files_that_are_no_records_are_named_and_the_others_used(tmp_path, capsys):
    folder = write(tmp_path, [record()])
    (folder / "records" / "half.json").write_text('{"schema": "gnn')
    (folder / "records" / "bytes.json").write_bytes(b"\xff\xfe\x00")
    status, out, _ = run(capsys, folder)
    assert status == 0
    assert "1 record: 1 ok." in out
    assert "2 files could not be read" in out
    assert "Not read: half.json: not JSON" in out
    book = openpyxl.load_workbook(folder / "analysis" / "study.xlsx")
    found = {c["File"].value for c in cells_of(book["Error Summary"], "File")}
    assert found == {"half.json", "bytes.json"}


def test_several_machines_of_one_kind_are_named(tmp_path, capsys):
    there = record(model="GAT", environment={"hostname": "there"})
    folder = write(tmp_path, [record(), there])
    status, out, _ = run(capsys, folder)
    assert status == 0
    assert "Measured on 2 machines of one kind" in out


def test_a_folder_of_other_files_is_a_clear_error(tmp_path, capsys):
    (tmp_path / "package.json").write_text("{}")
    status, _, err = run(capsys, tmp_path)
    assert status == 1
    assert "none of 1 file is a record of the study; package.json: schema is None" in err


def test_a_study_in_which_all_failed_is_written_and_says_so(tmp_path, capsys):
    folder = write(tmp_path, [record(outcome="oom"), record(outcome="crash", model="GAT")])
    status, out, _ = run(capsys, folder)
    assert status == 0
    assert "No case has a speedup" in out
    assert out.count("not measured:") == 9
    book = openpyxl.load_workbook(folder / "analysis" / "study.xlsx")
    assert len(book.sheetnames) == 24
    assert {c["Speedup"].value for c in cells_of(book["Default"], "Framework")} == {"oom", "crash"}


def test_environments_are_never_mixed(tmp_path, capsys):
    folder = write(tmp_path, [record(), record(3.0, environment={"torch": "2.12.0"})])
    status, _, err = run(capsys, folder)
    assert status == 1
    assert "several environments, which are never mixed" in err
    names = re.findall(r"^  (\w{8}): 1 record, torch (\S+)$", err, re.MULTILINE)
    assert {torch for _, torch in names} == {"2.12.0", "2.13.0+cpu"}
    name = {torch: name for name, torch in names}["2.12.0"]
    status, out, _ = run(capsys, folder, "--environment", name)
    assert status == 0
    assert "1 record of other environments left out" in out
    assert "3.00x" in out
    assert "1.50x" not in out
    status, _, err = run(capsys, folder, "--environment", "other")
    assert (status, "none named 'other'" in err) == (1, True)
    assert run(capsys, folder, "--environment=each", "--out", tmp_path / "each")[0] == 0
    assert {path.name for path in (tmp_path / "each").iterdir()} == {name for name, _ in names}


def test_it_runs_as_a_script_from_any_folder(tmp_path):
    folder = write(tmp_path / "study", [record()])
    script = Path(__file__).parent.parent / "benchmark" / "compile" / "analyze.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "analysis" / "study.xlsx").stat().st_size > 10_000
