"""The answers to the study's nine questions: known ones from records made by hand."""

from __future__ import annotations

import math
import re

from benchmark.compile.analysis.page import page
from benchmark.compile.analysis.questions import QUESTIONS, answers
from benchmark.compile.analysis.wording import listed, noise, some
from tests.compile_records import MODES, record, row, small_study
from tests.studies import ON_CPU, dicts, sheet_of, study_of


def answer(records, number):
    """The sentences that answer a question, counted from 1 as in the specification."""
    return answers(study_of(records))[number - 1].sentences


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
