"""The study's figures: estimates, what is read from records, rows, the common set of cases."""

from __future__ import annotations

import json
import math
import re

import pytest
from benchmark.compile.analysis.estimates import (
    Estimate,
    average,
    hull,
    pool,
    quotient,
    student_quantile,
    widened,
)
from benchmark.compile.analysis.load import (
    MixedRecordsError,
    UnreadableRecordError,
    by_environment,
    parse_record,
)
from benchmark.compile.analysis.rows import row_order
from benchmark.compile.analysis.study import compare, speedup_of
from tests.compile_records import record, row, small_study
from tests.studies import dicts, sheet_of, study_of

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


@pytest.mark.parametrize("effective", ["reduce-overhead", "partly eager"])
def test_memory_of_cuda_graphs_lies_in_a_pool_and_is_no_ratio(effective):
    changes = {"effective": effective, "peak": 5, "eager_peak": 10}
    assert only([record(1.5, mode="reduce-overhead", row_changes=changes)]).memory is None
    partly = only([record(1.5, row_changes={**changes, "effective": "partly eager"})])
    assert partly.memory.value == 0.5


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
