"""The folder of a sweep: records that are whole or absent, claims that one worker holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from benchmark.compile import store as store_module
from benchmark.compile.case import SCHEMA
from benchmark.compile.store import SILENT_SECONDS, Store, _holder

KEY = "0123456789abcdef"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "out")


def record(**changes: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "key": KEY, "outcome": "ok", "value": 1.5, **changes}


# -- records ---------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written(store: Store) -> None:
    store.write(record())

    assert store.read(KEY) == record()
    assert store.outcome(KEY) == "ok"
    assert json.loads(store.record_path(KEY).read_text()) == record()


def test_only_whole_records_are_in_the_folder(store: Store) -> None:
    store.write(record())

    with pytest.raises(ValueError, match="Out of range"):
        store.write(record(value=float("nan")))

    assert store.read(KEY) == record(), "the earlier record is as it was"
    assert [path.name for path in (store.folder / "records").iterdir()] == [f"{KEY}.json"]


def test_a_later_record_takes_the_place_of_an_earlier_one(store: Store) -> None:
    store.write(record(outcome="crash"))
    store.write(record(outcome="ok"))

    assert store.outcome(KEY) == "ok"


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"schema": "gnnprof.compile-case/1", "key": "0123456789abcdef", "outco',
        json.dumps(record(schema="gnnprof.compile-case/0")),
        json.dumps(record(key="fedcba9876543210")),
        json.dumps(record(outcome="splendid")),
        "[]",
    ],
    ids=["empty", "half", "other schema", "other key", "unknown outcome", "no object"],
)
def test_what_is_no_record_of_the_case_counts_as_absent(store: Store, text: str) -> None:
    store.record_path(KEY).write_text(text)

    assert store.read(KEY) is None
    assert store.outcome(KEY) is None


def test_an_absent_record_is_none_and_can_be_removed(store: Store) -> None:
    assert store.read(KEY) is None
    store.remove(KEY)
    store.write(record())
    store.remove(KEY)
    assert store.read(KEY) is None


# -- scratch ---------------------------------------------------------------------------------------


def test_scratch_is_empty_and_removed(store: Store) -> None:
    with store.scratch(KEY) as folder:
        assert list(folder.iterdir()) == []
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")

    assert list((store.folder / "work").iterdir()) == []


def test_scratch_removes_what_a_killed_worker_left_of_that_case_only(store: Store) -> None:
    work = store.folder / "work"
    for name in (f"{KEY}-old", "fedcba9876543210-other", "draft-1"):
        (work / name).mkdir()

    with store.scratch(KEY):
        left = {path.name for path in work.iterdir() if not path.name.startswith(KEY)}
        assert left == {"fedcba9876543210-other", "draft-1"}
        assert not (work / f"{KEY}-old").exists()


# -- claims ----------------------------------------------------------------------------------------


def claims(store: Store) -> list[str]:
    return sorted(path.name for path in (store.folder / "claims").iterdir())


def plant_claim(store: Store, number: int = 1, **changes: Any) -> Path:
    path = store.folder / "claims" / f"{KEY}.{number}.claim"
    path.write_text(json.dumps({**_holder(), **changes}))
    return path


def dead_pid() -> int:
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], **PIPE)
    return int(process.stdout)


PIPE: dict[str, Any] = {"capture_output": True, "text": True, "check": True}


def test_one_holder_at_a_time(store: Store) -> None:
    with store.claimed(KEY) as first:
        with store.claimed(KEY) as second:
            assert (first, second) == (True, False)
        assert claims(store) == [f"{KEY}.1.claim"], "the loser takes nothing away"
        with store.claimed("fedcba9876543210") as other:
            assert other, "another case is free"

    assert claims(store) == []
    with store.claimed(KEY) as again:
        assert again


def test_a_claim_is_released_when_the_body_raises(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), store.claimed(KEY):
        raise KeyboardInterrupt

    assert claims(store) == []


def test_the_claim_of_a_process_that_has_ended_is_left_behind(store: Store) -> None:
    plant_claim(store, pid=dead_pid())

    with store.claimed(KEY) as mine:
        assert mine
        assert claims(store) == [f"{KEY}.1.claim", f"{KEY}.2.claim"]
        with store.claimed(KEY) as second:
            assert not second
    assert claims(store) == []


def test_the_claim_of_a_process_that_nobody_has_waited_for_is_left_behind(store: Store) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    started = store_module._start_of(zombie.pid)
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    plant_claim(store, pid=zombie.pid, started=started)
    try:
        with store.claimed(KEY) as mine:
            assert mine
    finally:
        zombie.wait()


def test_a_process_id_that_was_given_out_again_is_another_process(store: Store) -> None:
    plant_claim(store, pid=os.getppid(), started="1")

    with store.claimed(KEY) as mine:
        assert mine


def test_the_claim_of_a_process_that_runs_holds(store: Store) -> None:
    claim = plant_claim(store, pid=os.getppid(), started=store_module._start_of(os.getppid()))
    os.utime(claim, (0, 0))  # however long it has been silent

    with store.claimed(KEY) as mine:
        assert not mine
    assert claims(store) == [f"{KEY}.1.claim"]


@pytest.mark.parametrize(("silent", "free"), [(0.5, False), (1.1, True)])
def test_another_host_is_judged_by_its_heartbeat(store: Store, silent: float, free: bool) -> None:
    claim = plant_claim(store, host="elsewhere", pid=dead_pid())
    then = claim.stat().st_mtime - silent * SILENT_SECONDS
    os.utime(claim, (then, then))

    with store.claimed(KEY) as mine:
        assert mine is free


def test_a_claim_that_is_being_written_holds_for_a_while(store: Store) -> None:
    claim = store.folder / "claims" / f"{KEY}.1.claim"
    claim.write_text("")
    with store.claimed(KEY) as mine:
        assert not mine

    os.utime(claim, (0, 0))
    with store.claimed(KEY) as mine:
        assert mine


def test_claims_work_without_hard_links(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    with store.claimed(KEY) as first, store.claimed(KEY) as second:
        assert (first, second) == (True, False)
    assert claims(store) == []


def test_a_claim_is_touched_while_it_is_held(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HEARTBEAT_SECONDS", 0.01)
    with store.claimed(KEY):
        (claim,) = (store.folder / "claims").iterdir()
        os.utime(claim, (0, 0))
        touched = threading.Event()
        for _ in range(500):
            if claim.stat().st_mtime > 0:
                touched.set()
                break
            touched.wait(0.01)
        assert touched.is_set()


def test_of_many_claimants_at_once_one_wins(store: Store) -> None:
    plant_claim(store, pid=dead_pid())
    start, wins = threading.Barrier(8), []

    def claim() -> None:
        start.wait()
        with store.claimed(KEY) as mine:
            if mine:
                wins.append(threading.get_ident())
                release.wait(10)

    release = threading.Event()
    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:  # the losers end at once, the winner waits
        thread.join(0.5)
    assert len(wins) == 1
    release.set()
    for thread in threads:
        thread.join()
    assert claims(store) == []
