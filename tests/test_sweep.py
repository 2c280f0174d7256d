"""The sweep: matrix and keys, outcomes of real processes, resuming, several workers, SIGKILL."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark.compile import attempt as attempt_module
from benchmark.compile import launchers, machine, sweep, worker
from benchmark.compile.attempt import Options, attempt, child_environment, classify
from benchmark.compile.case import (
    Case,
    Identity,
    canonical,
    content_key,
    expand,
    in_shard,
)
from benchmark.compile.matrix import read_matrix
from benchmark.compile.store import Store
from benchmark.cpus import usable_cpus
from tests.compile_records import record

FAKE = (sys.executable, str(Path(__file__).with_name("fake_child.py")))
IDENTITY = Identity("2.13.0", "2.8.1", None, "0.1", "3.11.7", "Chip", "Chip")
CASE = Case("pyg", "GCN", "fast")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "out")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, ...]]]:
    """Point the fake children at a log, and return what reads it."""
    file = tmp_path / "log"
    file.touch()
    monkeypatch.setenv("FAKE_LOG", str(file))
    return lambda: [tuple(line.split()) for line in file.read_text().splitlines()]


def entries(*cases: Case) -> tuple[worker.Entry, ...]:
    return worker.entries_of(cases, lambda device: IDENTITY)


def some_cases(count: int) -> list[Case]:
    return [dataclasses.replace(CASE, seed=seed) for seed in range(count)]


def run(store: Store, case: Case, **options: Any) -> dict[str, Any]:
    (entry,) = entries(case)
    return attempt(store, case, entry.key, IDENTITY, Options(command=FAKE, **options))


# -- keys ------------------------------------------------------------------------------------------


def test_the_key_is_the_hash_of_case_and_environment() -> None:
    content = {
        "schema": "gnnprof.compile-case/1",
        "case": CASE.to_dict(),
        "environment": dataclasses.asdict(IDENTITY),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))

    assert content_key(CASE, IDENTITY) == hashlib.sha256(text.encode()).hexdigest()[:16]


CHANGES: dict[str, Any] = {
    "framework": "dgl",
    "model": "GAT",
    "dataset": "other",
    "scale": 0.5,
    "mode": "default",
    "dynamic": True,
    "variant": "no-fixes",
    "sampled": True,
    "amp": True,
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "dropout": 0.1,
    "threads": 2,
    "rounds": 20,
    "epochs": 5,
    "seed": 1,
    "replicate": 1,
    "device": "cuda",
    "batch_size": 512,
    "num_neighbors": (10, 10),
    "sizes": 3,
}


def test_every_field_of_a_case_changes_the_key() -> None:
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Case)}
    changed = [dataclasses.replace(CASE, **{name: value}) for name, value in CHANGES.items()]

    keys = {content_key(case, IDENTITY) for case in (CASE, *changed)}

    assert len(keys) == len(CHANGES) + 1


def test_every_field_of_the_environment_changes_the_key() -> None:
    names = [field.name for field in dataclasses.fields(Identity)]
    changed = [dataclasses.replace(IDENTITY, **{name: "other"}) for name in names]

    assert len({content_key(CASE, identity) for identity in (IDENTITY, *changed)}) == len(names) + 1


def test_equal_numbers_written_differently_are_one_case() -> None:
    whole = dataclasses.replace(CASE, scale=1, dropout=0)
    real = dataclasses.replace(CASE, scale=1.0, dropout=0.0)

    assert content_key(whole, IDENTITY) == content_key(real, IDENTITY)
    assert Case.from_dict(json.loads(json.dumps(real.to_dict()))) == real


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layers", 0, "layers=0 is too small; give at least 1"),
        ("layers", "3", "layers='3' is a str; give int"),
        ("layers", True, "layers=True is a bool; give int"),
        ("amp", 1, "amp=1 is a int; give bool"),
        ("dynamic", "auto", "dynamic='auto' is a str; give bool or None"),
        ("scale", 0.0, "scale=0.0 must be a positive number"),
        ("scale", float("nan"), "scale=nan must be a positive number"),
        ("dropout", 1.0, r"dropout=1.0 must lie in \[0, 1\)"),
        ("variant", "fixed", "variant='fixed' is unknown; give one of fixes, no-fixes, fullgraph"),
        ("num_neighbors", 5, "num_neighbors=5: give one positive count"),
        ("num_neighbors", (5, 0), "give one positive count"),
        ("batch_size", 0, "batch_size=0 is too small"),
    ],
)
def test_a_case_that_makes_no_sense_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CASE, **{field: value})


def test_a_label_leaves_out_what_is_usual() -> None:
    assert CASE.label == "pyg GCN fast eager fixes"
    case = dataclasses.replace(CASE, mode="default", dynamic=False, threads=2)
    assert case.label == "pyg GCN fast default dynamic=false fixes threads=2"


# -- matrix ----------------------------------------------------------------------------------------


def test_the_matrix_is_a_product_in_which_eager_stands_once() -> None:
    block = {
        "framework": "pyg",
        "model": ["GCN", "GraphSAGE", "GAT", "GIN"],
        "dataset": "cora-like",
        "mode": ["eager", "a", "b", "c", "d"],
        "dynamic": ["auto", "true", "false"],
        "variant": ["fixes", "no-fixes"],
    }

    cases = expand([block])

    assert len(cases) == len(set(cases)) == 4 * 2 * (1 + 4 * 3)
    assert {case.dynamic for case in cases if case.mode == "eager"} == {None}
    assert {case.dynamic for case in cases if case.mode == "a"} == {None, True, False}
    assert cases[0] == Case("pyg", "GCN", "cora-like"), "in the order that was written"


def test_blocks_add_up_without_repetition_and_replicates_multiply() -> None:
    one = {"framework": "pyg", "model": "GCN", "dataset": "x", "replicates": 3}

    cases = expand([one, {**one, "model": ["GCN", "GAT"]}])

    assert Counter(case.model for case in cases) == {"GCN": 3, "GAT": 3}
    assert [case.replicate for case in cases[:3]] == [0, 1, 2]


def test_the_same_program_is_one_case() -> None:
    eager = dataclasses.replace(CASE, variant="fullgraph", num_neighbors=(5,))
    assert canonical(eager) == dataclasses.replace(CASE, variant="no-fixes")

    sampled = dataclasses.replace(CASE, sampled=True, num_neighbors=(5,), mode="default")
    assert canonical(sampled) == sampled


def test_fan_outs_are_one_value_and_several_are_a_list_of_lists() -> None:
    block = {"framework": "pyg", "model": "GCN", "dataset": "x", "sampled": True}

    one = expand([{**block, "num_neighbors": [15, 10]}])
    two = expand([{**block, "num_neighbors": [[15, 10], [5, 5]]}])

    assert [case.num_neighbors for case in one] == [(15, 10)]
    assert [case.num_neighbors for case in two] == [(15, 10), (5, 5)]


def test_all_threads_are_a_number_in_the_case() -> None:
    block = {"framework": "pyg", "model": "GCN", "dataset": "x", "threads": [1, "all"]}

    assert {case.threads for case in expand([block])} == {1, len(usable_cpus())}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"modle": "GCN"}, "'modle' is no field of a case"),
        ({"mode": []}, r"mode=\[\] leaves no case"),
        ({"dynamic": "maybe"}, "dynamic='maybe' is unknown; give one of auto, true, false"),
        ({"replicates": 0}, "replicates=0"),
    ],
)
def test_a_wrong_block_is_refused(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand([{"framework": "pyg", "model": "GCN", "dataset": "x", **block}])
    with pytest.raises(ValueError, match="a case needs a 'dataset'"):
        expand([{"framework": "pyg", "model": "GCN"}])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_a_matrix_file_shares_what_stands_above_its_blocks(tmp_path: Path) -> None:
    file = tmp_path / "matrix.toml"
    file.write_text(
        'framework = "pyg"\nrounds = 7\n[[cases]]\nmodel = "GCN"\nrounds = 9\n'
        '[[cases]]\nmodel = ["GAT", "GIN"]\n'
    )

    assert read_matrix(file) == [
        {"framework": "pyg", "rounds": 9, "model": "GCN"},
        {"framework": "pyg", "rounds": 7, "model": ["GAT", "GIN"]},
    ]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, FileNotFoundError, "there is no such file"),
        ("mode = ", ValueError, "is no TOML file"),
        ("[case]\nmode = 'x'", ValueError, r"\[case\] is unknown; write \[\[cases\]\]"),
        ("[cases]\nmode = 'x'", ValueError, r"write each block of cases as \[\[cases\]\]"),
    ],
)
def test_a_wrong_matrix_file_is_refused(
    tmp_path: Path, text: str | None, error: type[Exception], message: str
) -> None:
    file = tmp_path / "matrix.toml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(error, match=message):
        read_matrix(file)


def test_shards_part_the_cases_alike_on_unlike_machines() -> None:
    cases = some_cases(200)

    shards = [[case for case in cases if in_shard(case, index, 4)] for index in range(4)]

    assert sorted(case.seed for shard in shards for case in shard) == list(range(200))
    assert all(30 < len(shard) < 70 for shard in shards), "about a quarter each"


def of_shard(index: int, count: int, cpus: int, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases of one shard on a machine with so many CPUs."""
    monkeypatch.setattr("benchmark.compile.case.usable_cpus", lambda: range(cpus))
    flags = ["--threads=4,all", "--models=GCN,GAT,GIN", "--modes=eager,default"]
    return list(sweep.read_settings([*flags, f"--shard={index}/{count}"]).cases)


def test_all_threads_belong_to_one_shard_whatever_the_number_of_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = [of_shard(part, 4, cpus, monkeypatch) for part, cpus in enumerate((2, 3, 5, 6), 1)]

    met = Counter((case.model, case.mode, case.variant) for shard in shards for case in shard)
    assert len(met) == 3 * 2 * 2
    assert set(met.values()) == {2}, "once with 4 threads, once with all, of whatever machine"
    assert len(of_shard(1, 1, 4, monkeypatch)) == len(met), "where all are 4, that is one case"


def test_records_of_all_threads_on_other_machines_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmark.compile.case.usable_cpus", lambda: range(2))
    arguments = [f"--out={store.folder}", "--launcher=submitit", "--models=GCN", "--modes=eager"]
    settings = sweep.read_settings([*arguments, "--threads=all", "--variants=fixes"])
    (case,) = settings.cases
    elsewhere = dataclasses.replace(case, threads=64)

    assert sweep._asked_for(elsewhere, settings)
    assert not sweep._asked_for(dataclasses.replace(elsewhere, model="GAT"), settings)
    written = sweep.read_settings([*arguments, "--threads=2", "--variants=fixes"])
    assert sweep._asked_for(case, written)
    assert not sweep._asked_for(elsewhere, written)


# -- outcomes --------------------------------------------------------------------------------------


def test_a_case_that_reaches_its_end_is_recorded_by_its_process(store: Store, log: Any) -> None:
    record = run(store, dataclasses.replace(CASE, threads=2))

    assert (record["outcome"], record["written_by"]) == ("ok", "child")
    assert record["environment"]["omp"] == ["2", "PASSIVE"]
    assert not Path(record["environment"]["cache"]).exists(), "its cache is private and removed"
    assert list((store.folder / "work").iterdir()) == []
    assert store.read(record["key"]) == record


@pytest.mark.parametrize(
    ("behaviour", "outcome", "reason", "exit_code"),
    [
        ("crash", "crash", "ended with exit code 1 and no record: lines", 1),
        ("memory", "oom", "MemoryError", 1),
        ("segv", "crash", "ended by SIGSEGV: it wrote nothing to stderr", -11),
        ("terminated", "interrupted", "ended by SIGTERM from outside", -15),
    ],
)
def test_a_process_without_a_record_has_a_typed_outcome(
    store: Store, log: Any, behaviour: str, outcome: str, reason: str, exit_code: int
) -> None:
    record = run(store, dataclasses.replace(CASE, dataset=behaviour))

    found = (record["outcome"], record["reason"], record["exit_code"])
    assert found == (outcome, reason, exit_code)
    assert record["inference"] is None
    assert record["environment"]["device_name"] == "Chip"
    assert record["harness_allowed"] == 8.0
    assert record["harness_seconds"] == record["wall_seconds"] > 0


@pytest.mark.parametrize(
    ("kills", "outcome", "reason"),
    [
        ([5, 5], "crash", "from outside"),
        ([5, 6], "oom", "the kernel counts 1 such kills meanwhile"),
        ([None, None], "oom", "as the kernel does when memory runs out"),
    ],
)
def test_sigkill_from_outside_is_out_of_memory_unless_the_kernel_denies_it(
    store: Store,
    log: Any,
    monkeypatch: pytest.MonkeyPatch,
    kills: list[int | None],
    outcome: str,
    reason: str,
) -> None:
    answers = iter(kills)
    monkeypatch.setattr(attempt_module, "_oom_kills", lambda: next(answers))

    record = run(store, dataclasses.replace(CASE, dataset="killed"))

    assert record["outcome"] == outcome
    assert reason in record["reason"]
    assert record["exit_code"] == -9


def test_a_shells_137_and_allocators_count_as_out_of_memory() -> None:
    assert classify(137, "", None)[0] == "oom"
    text = "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"
    assert classify(1, f"Traceback\n{text}\n", 0) == ("oom", text)
    assert classify(1, "torch.OutOfMemoryError: CUDA out of memory", 0)[0] == "oom"
    assert classify(-6, "std::bad_alloc", 0)[0] == "oom"
    assert classify(143, "", 0) == ("interrupted", "ended by SIGTERM from outside")
    assert classify(1, "ValueError: no memory of that", 0)[0] == "crash"


def test_a_time_out_ends_the_whole_group_and_keeps_what_was_found(store: Store, log: Any) -> None:
    start = time.monotonic()
    record = run(store, dataclasses.replace(CASE, dataset="hang"), timeout=1.5)

    assert time.monotonic() - start < 10
    assert record["outcome"] == "timeout"
    assert record["reason"] == "it was ended after the time-out of 1.5 s"
    assert record["inference"] == {"status": "ok", "speedup": None}, "a finished phase stands"
    assert record["environment"] == {"torch": "as measured"}
    assert record["harness_seconds"] == pytest.approx(record["wall_seconds"] - 2.0)
    assert record["harness_allowed"] == 0.25 * 2.0 + 8
    assert record["stderr"] == "hanging now\n"
    ((_, _, pid),) = log()
    assert group_is_gone(int(pid)), "the sleep that it started has ended, too"
    assert "hanging now" in store.log_path(record["key"]).read_text()


def group_is_gone(group: int) -> bool:
    for _ in range(200):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, 0)
            time.sleep(0.02)
            continue
        return True
    return False


def test_a_record_that_was_written_holds_whatever_came_after(store: Store, log: Any) -> None:
    record = run(store, dataclasses.replace(CASE, dataset="late"))

    assert (record["outcome"], record["written_by"]) == ("ok", "child")


def test_the_last_four_kilobytes_of_stderr_are_kept(store: Store, log: Any) -> None:
    record = run(store, dataclasses.replace(CASE, dataset="talkative"))

    assert len(record["stderr"]) == 4096
    assert record["stderr"].endswith("xthe end\n")
    assert len(store.log_path(record["key"]).read_text()) > 10_000, "the log has all of it"


def test_the_environment_pins_threads_and_keeps_the_rest(store: Store, tmp_path: Path) -> None:
    job = attempt_module.Job(CASE, "k", IDENTITY, tmp_path / "k.json", tmp_path / "scratch")

    environment = child_environment(job, {"PYTHONPATH": "mine", "HOME": "here"})

    assert environment["HOME"] == "here"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "1"
    assert environment["KINETO_LOG_LEVEL"] == "99"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "scratch" / "inductor")
    assert environment["PYTHONPATH"].split(os.pathsep)[1] == "mine"


# -- resuming --------------------------------------------------------------------------------------


def sweep_through(
    store: Store, cases: list[Case], retry: tuple[str, ...] = (), timeout: float = 30
) -> worker.Progress:
    return worker.run_cases(store, entries(*cases), Options(timeout, command=FAKE), retry)


def test_finished_cases_are_skipped_and_interrupted_ones_run_again(store: Store, log: Any) -> None:
    kinds = ("fast", "crash", "wrong_result", "terminated")
    cases = [dataclasses.replace(CASE, dataset=name) for name in kinds]

    first = sweep_through(store, cases)
    second = sweep_through(store, cases)

    expected = {"ok": 1, "crash": 1, "wrong_result": 1, "interrupted": 1}
    assert first == worker.Progress(expected, ran=4, elsewhere=0)
    assert second == worker.Progress(expected, ran=1, elsewhere=0)
    starts = Counter(key for word, key, _ in log() if word == "start")
    assert starts == {e.key: 2 if e.case.dataset == "terminated" else 1 for e in entries(*cases)}


def test_outcomes_can_be_tried_again(store: Store, log: Any) -> None:
    cases = [dataclasses.replace(CASE, dataset=name) for name in ("fast", "crash", "segv")]
    sweep_through(store, cases)

    assert sweep_through(store, cases, retry=("crash",)).ran == 2


def test_another_environment_runs_anew_and_lies_beside_the_first(store: Store, log: Any) -> None:
    other = dataclasses.replace(IDENTITY, torch="2.14.0")
    options = Options(command=FAKE)

    worker.run_cases(store, entries(CASE), options)
    worker.run_cases(store, worker.entries_of([CASE], lambda device: other), options)

    records = [json.loads(path.read_text()) for path in (store.folder / "records").iterdir()]
    assert {record["environment"]["torch"] for record in records} == {"2.13.0", "2.14.0"}


def test_a_damaged_record_is_run_again(store: Store, log: Any) -> None:
    sweep_through(store, [CASE])
    (entry,) = entries(CASE)
    store.record_path(entry.key).write_text("{")

    assert sweep_through(store, [CASE]).ran == 1
    assert store.outcome(entry.key) == "ok"


def test_a_case_that_another_worker_runs_is_left_to_it(store: Store, log: Any) -> None:
    one, other = entries(*some_cases(2))
    with store.claimed(one.key):
        progress = worker.run_cases(store, (one, other), Options(command=FAKE))

    assert progress == worker.Progress({"ok": 1}, ran=1, elsewhere=1)


# -- workers that are processes --------------------------------------------------------------------


@contextlib.contextmanager
def forked(body: Callable[[], object]) -> Iterator[int]:
    """Run a function in a forked process; it needs no imports, and only starts processes."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                sys.stdout = sys.stderr = nothing
                body()
                code = 0
        except KeyboardInterrupt:
            code = 130
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within ten seconds")


def test_two_workers_never_run_a_case_twice(
    store: Store, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.02")
    cases = some_cases(16)

    def work() -> None:
        sweep_through(store, cases)

    with forked(work) as one, forked(work) as two:
        assert {os.waitpid(pid, 0)[1] for pid in (one, two)} == {0}

    assert sorted(os.listdir(store.folder / "records")) == sorted(
        f"{entry.key}.json" for entry in entries(*cases)
    )
    starts = Counter(key for word, key, _ in log() if word == "start")
    assert set(starts.values()) == {1}
    assert os.listdir(store.folder / "claims") == []


def test_sigkill_at_any_moment_loses_at_most_the_running_case(
    store: Store, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.1")
    cases = some_cases(12)
    moments = random.Random(4)
    finished: set[str] = set()

    def starts() -> int:
        return sum(1 for word, _, _ in log() if word == "start")

    for _ in range(5):
        before = starts()
        with forked(lambda: sweep_through(store, cases)) as pid:
            wait_for(lambda before=before: starts() > before)
            time.sleep(moments.uniform(0, 0.15))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        children = [int(child) for word, _, child in log() if word == "start"]
        wait_for(lambda found=children: all(map(gone, found)))  # no orphan measures on
        now = {path.name for path in (store.folder / "records").iterdir()}
        assert now >= finished, "no finished record is lost"
        finished = now
    progress = sweep_through(store, cases)

    assert progress.outcomes == {"ok": 12}
    assert len(list((store.folder / "records").iterdir())) == 12
    assert 0 < starts() - 12 <= 5, "each kill repeats one case at most, and some fell into one"
    assert os.listdir(store.folder / "work") == os.listdir(store.folder / "claims") == []


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat").read_text() if Path(f"/proc/{pid}").exists() else ") Z"
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_request_to_end_leaves_the_running_case_interrupted(
    store: Store, log: Any, number: signal.Signals, name: str
) -> None:
    cases = [CASE, dataclasses.replace(CASE, dataset="hang"), dataclasses.replace(CASE, seed=9)]
    fast, hanging, untouched = (entry.key for entry in entries(*cases))

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with attempt_module.stopped_by_signals():
            sweep_through(store, cases)

    with forked(work) as pid:
        wait_for(lambda: ("start", hanging) in [line[:2] for line in log()])
        wait_for(lambda: any(store.folder.glob("work/*/partial.json")))
        os.kill(pid, number)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130

    record = store.read(hanging)
    assert record is not None
    assert (record["outcome"], record["reason"]) == (
        "interrupted",
        f"the sweep was ended by {name}",
    )
    assert record["data"] == {"name": "hang"}, "what it had found is kept"
    assert (store.outcome(fast), store.outcome(untouched)) == ("ok", None)
    assert all(group_is_gone(int(child)) for word, _, child in log() if word == "start")
    assert os.listdir(store.folder / "work") == os.listdir(store.folder / "claims") == []


# -- command line ----------------------------------------------------------------------------------


@pytest.fixture
def arguments(tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sweep, "noise_warning", lambda: None)
    command = " ".join(FAKE)
    small = ["--models=GCN,GAT", "--modes=eager,default", "--variants=fixes"]
    return [f"--out={tmp_path / 'out'}", f"--child={command}", *small]


def test_the_command_runs_its_cases_and_resumes(
    arguments: list[str], log: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main(arguments) == 0
    assert f"4 of 4 cases are on record in {tmp_path / 'out'}: 4 ok." in capsys.readouterr().out
    assert sweep.main([*arguments, "--resume"]) == 0
    assert sweep.main([*arguments, "--models", "GIN"]) == 0

    assert sum(1 for word, _, _ in log() if word == "start") == 6
    assert "2 of 2 cases are on record" in capsys.readouterr().out


def test_a_dry_run_lists_and_touches_nothing(
    arguments: list[str], log: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([*arguments, "--dry-run"]) == 0

    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5
    assert said[0].split()[1:] == ["to", "run", "pyg", "GCN", "cora-like", "eager", "fixes"]
    assert said[-1] == f"4 cases, 4 to run; records go to {tmp_path / 'out'}."
    assert not (tmp_path / "out").exists()

    sweep.main(arguments)
    capsys.readouterr()
    sweep.main([*arguments, "--dry-run"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("4 cases, 0 to run")


def test_shards_of_the_command_make_up_the_whole(arguments: list[str], tmp_path: Path) -> None:
    keys = []
    for shard in ("1/3", "2/3", "3/3"):
        settings = sweep.read_settings([*arguments, "--shard", shard])
        keys += [entry.key for entry in settings.entries]

    whole = [entry.key for entry in sweep.read_settings(arguments).entries]
    assert sorted(keys) == sorted(whole)
    assert len(whole) == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models", "GNC"], "model='GNC' is unknown; give one of GCN"),
        (["--frameworks", "jax"], "framework='jax' is unknown; give one of pyg, dgl"),
        (["--datasets", "CiteSeer", "--scale", "0.1"], "only the '-like' stand-ins"),
        (["--out", "nowhere", "--resume"], "there is no sweep in --out=nowhere"),
        (["--jobs", "2"], "need --launcher submitit"),
        (["--launcher", "submitit", "--shard", "1/2"], "its jobs are the shards"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(
    arguments: list[str],
    log: Any,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    assert sweep.main([*arguments, *flags]) == 2

    assert message in capsys.readouterr().err
    assert log() == []


@pytest.mark.parametrize("flags", [["--shard", "0/4"], ["--shard", "5/4"], ["--retry", "bad"]])
def test_a_malformed_flag_ends_the_command(
    arguments: list[str], capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    with pytest.raises(SystemExit):
        sweep.main([*arguments, *flags])
    assert repr(flags[1]) in capsys.readouterr().err


def test_names_are_taken_in_any_case(arguments: list[str]) -> None:
    lower = [word.replace("GCN,GAT", "gcn,gat") for word in arguments]

    assert sweep.read_settings(lower).entries == sweep.read_settings(arguments).entries


def test_a_request_to_end_says_how_to_go_on(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_cases", interrupt)
    assert sweep.main(arguments) == 130

    said = capsys.readouterr()
    assert "0 of 4 cases are on record" in said.out
    assert said.err.strip().startswith("Ended on request. To go on: python ")
    assert "--models=GCN,GAT" in said.err


# -- launchers -------------------------------------------------------------------------------------


def test_a_job_is_the_command_itself_cut_to_a_shard() -> None:
    launcher = launchers.Launcher("submitit", jobs=2)
    argv = ["--out", "x", "--launcher", "submitit", "--jobs=2", "--slurm", "a=b", "--amp"]

    commands = launchers.job_commands(launcher, Path("sweep.py"), argv)

    common = [sys.executable, "sweep.py", "--out", "x", "--amp"]
    assert commands == [[*common, "--shard=1/2"], [*common, "--shard=2/2"]]


JOB_SCRIPT = """
import os, sys
out = sys.argv[1].partition("=")[2]
with open(os.path.join(out, f"seen-{sys.argv[-1].replace('/', '-')}"), "w") as file:
    file.write(" ".join([os.getcwd(), *sys.argv[1:]]))
if "--fail" in sys.argv and sys.argv[-1].endswith("=2/2"):
    sys.exit("planted failure")
"""


def test_submitit_runs_the_jobs_and_names_those_that_fail(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    script = tmp_path / "job.py"
    script.write_text(JOB_SCRIPT)
    launcher = launchers.Launcher("submitit", 2, "local", (("timeout_min", 5),))
    argv = [f"--out={tmp_path}", "--launcher=submitit", "--fail"]

    with pytest.raises(RuntimeError, match="1 of 2 jobs failed, the first one"):
        launchers.submit(launcher, script, argv, tmp_path)

    for shard in ("1/2", "2/2"):
        seen = (tmp_path / f"seen---shard={shard.replace('/', '-')}").read_text().split()
        assert seen == [os.getcwd(), argv[0], argv[2], f"--shard={shard}"]


def test_the_report_finds_what_other_machines_measured_under_keys_of_theirs(
    arguments: list[str],
    log: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = machine.identity("cpu")

    def elsewhere(*_: Any) -> None:  # the job, on another kind of processor
        monkeypatch.setattr(
            sweep, "identity", lambda device: dataclasses.replace(here, cpu="another")
        )
        assert sweep.main(arguments) == 0
        capsys.readouterr()

    def no_device(device: str) -> Identity:
        raise ValueError(f"device={device!r} cannot be used here")

    monkeypatch.setattr(sweep, "identity", no_device)
    monkeypatch.setattr(launchers, "submit", elsewhere)

    assert sweep.main([*arguments, "--launcher=submitit"]) == 0
    assert f"4 of 4 cases are on record in {tmp_path / 'out'}: 4 ok." in capsys.readouterr().out
    assert sweep.main([*arguments, "--launcher=submitit", "--models=GCN"]) == 0
    assert "2 of 2 cases" in capsys.readouterr().out


def test_submitit_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "gnnprof\[bench\]"'):
        launchers.submit(launchers.Launcher("submitit"), tmp_path / "x.py", [], tmp_path)


# -- machine ---------------------------------------------------------------------------------------


def test_an_accelerator_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1])
        good = command[-1] == "cuda:0"
        said = "a warning\n" + json.dumps("Card 9000")
        return subprocess.CompletedProcess(command, int(not good), said, "ValueError: no such card")

    monkeypatch.setattr(subprocess, "run", answer)
    machine._name_in_child.cache_clear()

    assert machine.identity("cuda:0").device_name == "Card 9000"
    assert machine.identity("cuda:0").cpu == machine.identity("cpu").device_name
    assert asked == ["cuda:0"], "once"
    with pytest.raises(ValueError, match="device='cuda:77' cannot be used here: ValueError: no"):
        machine.identity("cuda:77")
    machine._name_in_child.cache_clear()


@pytest.mark.parametrize(("load", "warns"), [(0.0, False), (100.0, True)])
def test_a_busy_machine_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, load: float, warns: bool
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))

    warning = machine.noise_warning()

    assert (warning is not None) is warns
    assert not warns or ("100.0 of" in str(warning) and "--rounds" in str(warning))


def test_a_finished_case_is_one_line_with_both_verdicts_and_the_noise_behind_them() -> None:
    done = record(speedup=1.5, training=1.04, row_changes={"verdict": "undecided"}, noise=0.6)

    line = worker.describe(done)

    assert line.startswith("ok: pyg GCN cora-like default dynamic=auto fixes")
    assert "inference 1.50x (1.43 to 1.58, undecided, as noise is 60%)" in line
    assert "training 1.04x (0.99 to 1.09, undecided)" in line  # its interval holds 1
