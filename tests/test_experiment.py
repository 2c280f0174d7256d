"""One case measured for real, its phases one by one, and the files of an experiment."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmark.compile import experiment, phases, sweep, warm
from benchmark.compile.attempt import Options, attempt
from benchmark.compile.case import Case, content_key
from benchmark.compile.case_record import Ending, Job, make_record, no_findings
from benchmark.compile.experiment_files import (
    by_experiment,
    config,
    latex_table,
    recommendations,
    table,
    write_experiments,
)
from benchmark.compile.machine import identity
from benchmark.compile.phases import Measurement, measured_seconds
from benchmark.compile.registry import MODES, ModeEntry, register_mode
from benchmark.compile.store import Store
from benchmark.compile.warm import WarmProcess
from benchmark.compile.workload import TrainStep, Workload
from tests import compile_records
from torch import nn

from gnnprof._compile_records import CompileRow, SizeTiming

HERE = Path(__file__).parent
TINY = Case(
    "pyg",
    "GCN",
    "cora-like",
    scale=0.03,
    mode="ahead",
    layers=2,
    hidden=8,
    dropout=0.0,
    rounds=6,
    epochs=3,
)


@pytest.fixture
def mode() -> Iterator[Callable[..., str]]:
    """Return what registers a mode of a backend for one test."""
    names = []

    def register(backend: Any) -> str:
        names.append(f"own-{len(names)}")
        register_mode(ModeEntry(names[-1], "default", {"backend": backend}))
        return names[-1]

    yield register
    for name in names:
        MODES.remove(name)


class Run:
    """A case measured in this process."""

    def __init__(self, case: Case, folder: Path, warm: Any = None) -> None:
        self.job = Job(case, "key", identity("cpu"), folder / "key.json", folder)
        self.findings = no_findings()
        self.kept: list[list[str]] = []
        measurement = Measurement(self.job, self.findings, self._keep, warm)
        self.outcome, self.reason = measurement.run()

    def _keep(self) -> None:
        json.dumps(self.findings, allow_nan=False)
        self.kept.append([name for name, value in self.findings.items() if value])


# -- a process of its own --------------------------------------------------------------------------


def test_a_real_case_measures_every_phase_and_writes_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, here = Store(tmp_path / "out"), identity("cpu")
    key = content_key(TINY, here)
    options = Options(timeout=300, command=(sys.executable, str(HERE / "tiny_child.py")))

    record = attempt(store, TINY, key, here, options)

    assert record["outcome"] == "ok", record["stderr"]
    assert store.read(key) == record
    assert (record["key"], record["case"]) == (key, TINY.to_dict())
    assert record["errors"] == {}
    for phase in ("inference", "training"):
        row = record[phase]
        assert (row["mode"], row["effective_mode"], row["status"]) == ("ahead", "ahead", "ok")
        assert (row["graphs"], row["graph_breaks"]) == (1, 0), "the fixes leave one graph"
        assert len(row["samples"]) == len(row["eager_samples"]) == 6
        assert row["compile_seconds_cold"] > 0
        assert record["throughput"][phase] == pytest.approx(81 / row["median"])
    assert (record["inference"]["phase"], record["training"]["phase"]) == ("forward", "step")
    assert record["training"]["max_abs_error_grad"] is not None
    assert record["inference"]["compile_seconds_warm"] == record["warm"]["compile_seconds"] > 0
    assert record["quality"]["epochs"] == 3
    assert record["data"]["fingerprint"]["num_nodes"] == 81
    assert record["environment"]["threads"] == 1
    assert record["environment"]["omp_wait_policy"] == "PASSIVE"
    assert {name: record["environment"][name] for name in here.to_dict()} == here.to_dict()
    assert 0 < record["cpu_utilisation"] < 1.5
    measured = record["measured_seconds"]
    assert record["harness_seconds"] == pytest.approx(record["wall_seconds"] - measured)
    assert record["harness_allowed"] == pytest.approx(0.25 * measured + 8)
    assert not (store.folder / "work" / key).exists()
    assert list((store.folder / "work").iterdir()) == []
    assert "training:" in store.log_path(key).read_text()


# -- phases ----------------------------------------------------------------------------------------


def test_eager_is_a_case_that_states_the_noise(tmp_path: Path) -> None:
    run = Run(replace(TINY, mode="eager", epochs=0), tmp_path)

    assert (run.outcome, run.reason) == ("ok", None)
    row, floor = run.findings["inference"], run.findings["noise_floor"]
    assert (row["mode"], row["effective_mode"]) == ("eager", "eager")
    assert (row["samples"], row["eager_samples"]) == (floor["samples_b"], floor["samples_a"])
    assert run.findings["noise_floor_training"]["ratio"] == run.findings["training"]["speedup"]
    assert run.findings["cpu_utilisation"] > 0
    assert run.findings["warm"] is run.findings["quality"] is None
    spent = row["timed_seconds"] + run.findings["training"]["timed_seconds"]
    assert row["timed_seconds"] > 0.9 * sum(row["samples"] + row["eager_samples"])
    assert run.findings["measured_seconds"] == pytest.approx(spent + phases._LOOK_SECONDS, abs=0.5)
    assert len(run.kept) == 5, "after each phase"


def test_the_measured_seconds_are_samples_and_compilation() -> None:
    eager = CompileRow("eager", "eager", None, False, "ok", None, "step", timed_seconds=0.5)
    row = replace(
        eager,
        mode="default",
        compile_seconds_cold=1000.0,
        compile_seconds_comparison=2000.0,
        timed_seconds=30.0,
        sizes=(SizeTiming("a", 100.0, 1, False, None), SizeTiming("b", 0.0, 0, False, None)),
    )

    assert measured_seconds([eager, row]) == 3000 + 100 + 30 + 0.5
    assert measured_seconds([replace(row, compile_seconds_warm=7.0)]) == 3000 + 100 + 30 + 7
    failed = replace(eager, timed_seconds=None, failed_after_seconds=40.0)
    assert measured_seconds([failed]) == 40, "compiling, until it failed"
    late = replace(row, failed_after_seconds=5000.0)
    assert measured_seconds([late]) == measured_seconds([row]), "it failed after its compilation"


def test_an_error_in_one_phase_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: TrainStep, model: nn.Module, *args: Any) -> Any:
        raise RuntimeError("planted\nin two lines")

    monkeypatch.setattr(TrainStep, "__call__", fail)

    answer = {
        "compile_seconds": 100.0,
        "first_call_seconds": 101.0,
        "busy": {"wall_seconds": 2.0, "cpu_seconds": 3.0},
    }

    run = Run(replace(TINY, mode=mode("eager"), threads=2), tmp_path, warm=lambda: answer)

    assert run.outcome == "crash"
    error = "RuntimeError: planted"
    assert run.reason == f"training: {error}; quality: {error}"
    assert run.findings["errors"] == {"training": error, "quality": error}
    assert run.findings["training"] == {"error": error}
    assert run.findings["inference"]["status"] == "ok"
    assert run.findings["inference"]["speedup"] is not None
    assert run.findings["throughput"]["training"] is None
    assert run.findings["throughput"]["inference"] > 0
    assert "in two lines" in capsys.readouterr().err, "the whole traceback is on stderr"
    # The second process's answer.
    assert run.findings["warm"] == {"compile_seconds": 100.0, "first_call_seconds": 101.0}
    assert run.findings["inference"]["compile_seconds_warm"] == 100.0
    assert run.findings["cpu_utilisation"] == 3.0 / (2.0 * 2)
    assert run.findings["measured_seconds"] > 102


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand in for the new interpreter: what it answers is put into a list, by the test."""
    answers: list[Any] = []

    def never(job: Job) -> Any:
        raise AssertionError("it was forked")

    monkeypatch.setattr(warm, "_fork", never)
    monkeypatch.setattr(warm, "_ask_new", lambda job: answers.pop())
    monkeypatch.setattr("gnnprof._device.accelerator", lambda: "cuda")
    return answers


def test_beside_an_accelerator_nothing_is_forked(tmp_path: Path, new_process: list[Any]) -> None:
    job = Job(TINY, "key", identity("cpu"), tmp_path / "key.json", tmp_path)
    new_process.append(('{"compile_seconds": 2.0}', 0))

    assert WarmProcess(job).measure() == {"compile_seconds": 2.0}


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (('{"error": "OutOfMemoryError: CUDA", "outcome": "oom"}', 0), MemoryError, "CUDA"),
        (('{"error": "ValueError: x", "outcome": "crash"}', 0), RuntimeError, "ValueError: x"),
        (("", -9), MemoryError, "killed by SIGKILL"),
        (("", 1), RuntimeError, "ended early, with exit code 1"),
    ],
)
def test_what_ends_the_second_process_is_told_with_its_outcome(
    tmp_path: Path, new_process: list[Any], answer: Any, error: Any, message: str
) -> None:
    job = Job(TINY, "key", identity("cpu"), tmp_path / "key.json", tmp_path)
    new_process.append(answer)

    with pytest.raises(error, match=f"the second process: .*{message}") as caught:
        WarmProcess(job).measure()
    assert phases.outcome_of(caught.value) == ("oom" if error is MemoryError else "crash")


def test_the_memory_of_the_device_is_free_for_the_second_process(
    tmp_path: Path, new_process: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(TINY, device="cuda:1")
    job = Job(case, "key", identity("cpu"), tmp_path / "key.json", tmp_path)
    done: list[str] = []
    fake = SimpleNamespace(empty_cache=lambda: done.append("emptied"))
    monkeypatch.setattr("gnnprof._device.backend", lambda kind: {"cuda": fake}[kind])
    monkeypatch.setattr(warm, "_ask_new", lambda job: done.append("asked") or ("{}", 0))

    WarmProcess(job).measure()

    assert done == ["emptied", "asked"]


def test_an_error_in_the_second_process_names_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(job: Job) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(warm, "compile_again", fail)
    job = Job(TINY, "key", identity("cpu"), tmp_path / "key.json", tmp_path)

    assert json.loads(warm._answer(job)) == {
        "error": "OutOfMemoryError: CUDA out of memory",
        "outcome": "oom",
    }


def test_a_training_that_diverges_costs_its_quality_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workload, "fit", lambda *_: [1.0, math.nan])

    run = Run(replace(TINY, mode="eager"), tmp_path)

    assert run.outcome == "crash"
    assert run.reason == "quality: FloatingPointError: the training loss is nan: it diverged."
    assert run.findings["quality"] is None
    assert run.findings["training"]["status"] == "ok"
    assert len(run.kept) == 5, "every phase was kept"


def test_a_wrong_result_gets_no_speedup(tmp_path: Path, mode: Any) -> None:
    def wrong(graph: torch.fx.GraphModule, example: Any) -> Any:
        return lambda *args: tuple(one + 1 for one in graph(*args))

    run = Run(replace(TINY, mode=mode(wrong), epochs=0), tmp_path, warm=_never)

    assert run.outcome == "wrong_result"
    assert run.findings["inference"]["status"] == "wrong_result"
    assert run.findings["inference"]["speedup"] is None
    assert run.findings["warm"] is None, "nothing that is wrong is measured further"


def _never() -> Any:
    raise AssertionError("it was called")


def test_a_compiler_that_fails_is_a_compile_error(tmp_path: Path, mode: Any) -> None:
    def broken(graph: torch.fx.GraphModule, example: Any) -> Any:
        raise ValueError("planted")

    run = Run(replace(TINY, mode=mode(broken), epochs=0), tmp_path)

    assert run.outcome == "compile_error"
    assert run.reason is not None
    assert run.reason.count("planted") == 2
    assert "training: " in run.reason


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MemoryError(), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (RuntimeError("no"), "crash"),
        (FileNotFoundError("no such data"), "unsupported"),
        (ModuleNotFoundError("No module named 'ogb'"), "unsupported"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_case_that_cannot_be_built_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: str
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(phases, "build_workload", fail)

    run = Run(replace(TINY, mode="eager"), tmp_path)

    assert run.outcome == outcome
    assert run.reason == f"{type(error).__name__}: {error}".removesuffix(": ")
    assert run.findings["inference"] is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "RGCN"}, "RGCN does not do the task of cora-like"),
        ({"model": "GAT", "heads": 3}, "hidden=8 is not a multiple of heads=3"),
        ({"dataset": "CiteSeer", "scale": None, "sizes": 2}, "CiteSeer has one size"),
        ({"dataset": "CiteSeer", "scale": None}, "CiteSeer"),
    ],
)
def test_what_cannot_run_is_unsupported_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    run = Run(replace(TINY, **{"mode": "eager", **changes}), tmp_path)

    assert run.outcome == "unsupported"
    assert run.reason is not None
    assert reason in run.reason


def test_other_sizes_are_smaller_graphs_of_the_same_kind(tmp_path: Path) -> None:
    case = replace(TINY, scale=0.1, sizes=2)
    job = Job(case, "key", identity("cpu"), tmp_path / "key.json", tmp_path)
    workload = phases.build_workload(phases.workload_settings(job))

    sizes = phases.other_sizes(job, workload)

    assert [label for label, _ in sizes] == ["scale 0.095", "scale 0.09025"]
    nodes = [args[0].size(0) for args in (workload.args, *(args for _, args in sizes))]
    assert nodes == [271, 257, 244]  # of 2,708
    for _, args in sizes:
        assert workload.model(*args).shape == (args[0].size(0), 7)


# -- files -----------------------------------------------------------------------------------------


def made_record(store: Store, mode: str, **changes: Any) -> dict[str, Any]:
    """A record whose rows are made by hand."""
    case = replace(TINY, mode=mode, **changes.pop("case", {}))
    job = Job(case, content_key(case, identity("cpu")), identity("cpu"), Path(), Path())
    findings = {**no_findings(), **{"measured_seconds": 4.0}, **changes}
    outcome = "ok" if findings["inference"] else "crash"
    ending = Ending(outcome, None if outcome == "ok" else "boom", 0, 10.0, "")
    store.log_path(job.key).write_text(f"log of {mode}\n")
    return make_record(job, findings, ending, {**job.identity.to_dict(), "load_average": [0, 0, 0]})


@pytest.fixture
def records(tmp_path: Path) -> list[dict[str, Any]]:
    store = Store(tmp_path / "out")
    row = compile_records.row
    return [
        made_record(store, "eager", inference=row("eager"), training=row("eager")),
        made_record(store, "default", inference=row("default", 1.5), training=row("default", 1.0)),
        # Fast by luck: it ran as 'default'.
        made_record(
            store,
            "reduce-overhead",
            inference=row("reduce-overhead", 1.9, effective="default"),
            training=row("reduce-overhead", 1.0, effective="default"),
        ),
        made_record(store, "max-autotune"),
    ]


def test_a_record_states_the_share_of_the_harness(records: list[dict[str, Any]]) -> None:
    assert records[1]["harness_seconds"] == 10.0 - 4.0
    assert records[1]["harness_allowed"] == 0.25 * 4.0 + 8


def test_the_files_of_an_experiment_are_computed_from_its_records(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    store = Store(tmp_path / "out")
    for record in records:
        store.write(record)

    write_experiments(store, records)
    write_experiments(store, records[:1])  # as another shard does, which knows of its own

    (folder,) = (store.folder / "experiments").iterdir()
    assert folder.name.startswith("pyg-GCN-cora-like-fixes-")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "recommendations.txt",
        "results.json",
        "run.log",
        "tables.tex",
    ]
    assert json.loads((folder / "results.json").read_text())["records"] == records
    content = json.loads((folder / "config.json").read_text())
    assert [run["mode"] for run in content["runs"]] == [r["case"]["mode"] for r in records]
    assert content["case"]["hidden"] == 8
    assert "mode" not in content["case"]
    log = (folder / "run.log").read_text()
    assert [line for line in log.splitlines() if line] == [
        "log of eager",
        "log of default",
        "log of reduce-overhead",
        "log of max-autotune",
    ]


def test_the_recommendation_passes_over_modes_that_ran_as_another(
    records: list[dict[str, Any]],
) -> None:
    said = recommendations(records).splitlines()

    row = records[1]["inference"]
    interval = f"1.50 ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
    calls = row["break_even_calls"]
    assert said[0] == (
        "Inference: compile with mode='default', dynamic=None: a call of the forward pass is "
        f"{interval} times as fast as eager; compiling is paid back after {calls:,} times."
    )
    assert said[1] == (
        "Training: stay eager: of 1 compiled cases none is faster beyond the noise "
        "(median speedup 1.00)."
    )
    assert said[2].startswith("Note: pyg GCN cora-like max-autotune")
    assert said[2].endswith("ended as crash: boom.")


def test_the_luckiest_of_several_processes_recommends_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    replicates = [
        made_record(
            store,
            "default",
            case={"replicate": number},
            inference=compile_records.row("default", speedup),
            training=compile_records.row("default", 1.5 + number / 10),
        )
        for number, speedup in enumerate((1.6, 1.0, 1.0))
    ]

    inference, training = recommendations(replicates).splitlines()

    assert inference.startswith("Inference: stay eager: of 1 compiled cases none is faster")
    rows = [record["training"] for record in replicates]
    low, high = rows[0]["speedup_low"], rows[2]["speedup_high"]
    assert f"is 1.60 ({low:.2f} to {high:.2f}) times as fast" in training
    assert f"paid back after {max(row['break_even_calls'] for row in rows):,} times" in training


def test_nothing_compiled_is_not_measured(records: list[dict[str, Any]]) -> None:
    assert recommendations(records[:1]).splitlines() == [
        "Inference: not measured.",
        "Training: not measured.",
    ]


def test_a_table_says_what_is_unknown_and_is_escaped(records: list[dict[str, Any]]) -> None:
    heads, rows = table(records)

    assert len(heads) == len(rows[0])
    assert rows[0][:3] == ["eager", "n/a", "ok"]
    assert rows[3] == ["max-autotune", "auto", "crash"] + ["n/a"] * 6
    named = [{**record, "case": {**record["case"], "mode": "my_mode&co"}} for record in records]
    assert r"my\_mode\&co" in latex_table(named)
    assert "my_mode&co" not in latex_table(named)
    assert latex_table(records).startswith("% pyg GCN on cora-like, fixes. Speedup")


def test_experiments_differ_in_all_but_mode_dynamic_and_replicate(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    first = made_record(store, "default")
    same = [
        made_record(store, "eager"),
        made_record(store, "default", case={"dynamic": True}),
        made_record(store, "default", case={"replicate": 1}),
    ]
    others = [
        made_record(store, "default", case={"variant": "no-fixes"}),
        made_record(store, "default", case={"threads": 2}),
        {**first, "environment": {**first["environment"], "torch": "2.14"}},
    ]

    grouped = by_experiment([first, *same, *others])

    assert [len(members) for members in grouped.values()] == [4, 1, 1, 1]
    assert config([first, *same])["case"]["variant"] == "fixes"


# -- commands --------------------------------------------------------------------------------------


def test_an_experiment_by_hand_measures_its_modes_and_leaves_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(experiment, "noise_warning", lambda: None)
    child = f"--child={sys.executable} {HERE / 'fake_child.py'}"
    out = tmp_path / "out"

    code = experiment.main(
        ["--framework=pyg", "--model=gcn", f"--out={out}", child, "--modes=eager,default"]
    )

    assert code == 0
    (folder,) = (out / "experiments").iterdir()
    said = capsys.readouterr().out
    assert f"Files: {folder}" in said
    assert "Inference: not measured." in said
    assert len(list((out / "records").iterdir())) == 2
    assert len(list(folder.iterdir())) == 5
    assert experiment.main(["--model=GNC", f"--out={out}"]) == 2
    assert "model='GNC' is unknown" in capsys.readouterr().err


SCRIPTS = sorted((HERE.parent / "benchmark" / "compile").glob("run_*.sh"))


@pytest.fixture
def fast_python(tmp_path: Path) -> Path:
    """Stand in for the interpreter: prints the arguments it was called with, and may fail."""
    file = tmp_path / "python"
    file.write_text(
        '#!/bin/sh\nshift\necho "call: $*"\ncase "$*" in *arxiv*--fail*) exit 3 ;; esac\n'
    )
    file.chmod(0o755)
    return file


def shell(script: Path, python: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(script), *flags],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHON": str(python), "PATH": "/usr/bin:/bin"},
    )


def calls(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("call: ")]
    return [line.split()[1:] for line in lines]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_runners_call_the_sweep_with_flags_that_it_takes(
    script: Path, fast_python: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")

    done = shell(script, fast_python, "--dry-run", "--dynamic=auto,true", f"--out={out}")

    assert done.returncode == 0, done.stderr
    found = calls(done)
    assert found
    for argv in found:
        settings = sweep.read_settings(argv)
        assert settings.dry_run
        assert str(settings.out) == out
        assert settings.entries
        assert {e.case.dynamic for e in settings.entries if e.case.mode != "eager"} == {None, True}
        assert all(entry.case.dataset.endswith("-like") for entry in settings.entries)


def test_there_are_the_four_runners_of_the_study() -> None:
    assert [path.name for path in SCRIPTS] == [
        "run_experiments.sh",
        "run_gin_accuracy.sh",
        "run_no_fixes.sh",
        "run_products.sh",
    ]


def test_the_phases_are_those_of_the_study(fast_python: Path) -> None:
    entries = []
    for argv in calls(shell(SCRIPTS[0], fast_python, "--root=real")):
        entries.append({(e.case.model, e.case.dataset) for e in sweep.read_settings(argv).entries})

    four = ("GCN", "GraphSAGE", "GAT", "GIN")
    assert entries == [
        {("GCN", "Cora"), ("GAT", "Cora")},
        {("GCN", "PubMed"), ("GAT", "PubMed")},
        {(model, "ogbn-arxiv") for model in four},
        {(model, "ogbl-collab") for model in four},
        {("RGCN", "ogbn-mag")},
        {("DistMult", "ogbl-biokg")},
    ]


def test_the_runners_of_one_question(fast_python: Path) -> None:
    _, accuracy, no_fixes, products = SCRIPTS
    epochs = [sweep.read_settings(argv).entries for argv in calls(shell(accuracy, fast_python))]
    assert [{(e.case.model, e.case.epochs) for e in part} for part in epochs] == [
        {("GIN", 20)},
        {("GIN", 300)},
    ]
    for argv in calls(shell(no_fixes, fast_python)):
        assert {e.case.variant for e in sweep.read_settings(argv).entries} == {"no-fixes"}
    for argv in calls(shell(products, fast_python)):
        assert {
            (e.case.sampled, e.case.batch_size, e.case.num_neighbors)
            for e in sweep.read_settings(argv).entries
        } == {(True, 1024, (15, 10, 5))}


def test_a_runner_takes_phases_and_names_those_that_fail(fast_python: Path) -> None:
    one = shell(SCRIPTS[0], fast_python, "--phase=2,5", "--threads=1,all")
    assert [line for line in one.stdout.splitlines() if line.startswith("Phase")] == [
        "Phase 2: PubMed",
        "Phase 5: mag",
        "Phase 5: biokg",
    ]
    assert all("--threads=1,all" in argv for argv in calls(one))

    failed = shell(SCRIPTS[0], fast_python, "--fail")
    assert failed.returncode == 1
    assert "These phases did not run: 3" in failed.stderr
    assert len(calls(failed)) == 6, "the others run"

    assert shell(SCRIPTS[0], fast_python, "--out", "x").returncode == 2
    said = shell(SCRIPTS[0], fast_python, "--help").stdout
    assert "--dynamic=WORDS" in said
    assert calls(shell(SCRIPTS[0], fast_python, "--help")) == []
