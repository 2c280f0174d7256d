"""The drivers' records: none is lost, none is mixed with those of another run."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark.drivers.journal import FolderTakenError, Journal, differences
from benchmark.drivers.loop import CaseFailedError, exit_status, run_cases
from tests import driver_cases
from tests.driver_cases import HEADER, ROOT, record

in_a_folder_of_its_own = driver_cases.in_a_folder_of_its_own
pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def test_records_are_lines_of_json_and_the_next_run_reads_them(tmp_path):
    with Journal(tmp_path / "out", HEADER) as journal:
        journal.append(record("a"))
        journal.append(record("b", "error"))
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["a", "b"]
    with Journal(tmp_path / "out", HEADER) as journal:
        assert list(journal.finished) == ["a"]  # what failed is tried again


def test_a_line_that_was_never_finished_is_cut_off(tmp_path):
    with Journal(tmp_path, HEADER) as journal:
        journal.append(record("a"))
        journal.append(record("b"))
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-9])  # the machine went down in the middle of the second
    with Journal(tmp_path, HEADER) as journal:
        assert list(journal.finished) == ["a"]
        journal.append(record("c"))
    assert [json.loads(line)["key"] for line in journal.path.read_text().splitlines()] == ["a", "c"]


def test_a_folder_of_another_run_is_refused_with_what_differs(tmp_path):
    with Journal(tmp_path, HEADER):
        pass
    other = {**HEADER, "settings": {"warmup": 2}, "environment": {"torch": "2.12"}}
    with (
        pytest.raises(FolderTakenError, match=r"settings\.warmup was 1, is 2") as caught,
        Journal(tmp_path, other),
    ):
        pass
    assert "environment.torch was 2.13, is 2.12" in str(caught.value)


def test_differences_reach_into_mappings():
    found = list(differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}))
    assert found == ["a.c was 2, is 4", "d was 3, is None", "e was None, is 5"]


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path):
    with (
        Journal(tmp_path, HEADER),
        pytest.raises(FolderTakenError, match="another process writes its records there"),
        Journal(tmp_path, HEADER),
    ):
        pass
    with Journal(tmp_path, HEADER):  # free again
        pass


def test_records_that_nobody_says_how_they_were_made_are_refused(tmp_path):
    (tmp_path / "records.jsonl").write_text("{}\n")
    with (
        pytest.raises(FolderTakenError, match=r"records without the run\.json"),
        Journal(tmp_path, HEADER),
    ):
        pass


def test_a_record_holds_no_nan(tmp_path):
    with Journal(tmp_path, HEADER) as journal:
        with pytest.raises(ValueError, match="not JSON compliant"):
            journal.append({**record("a"), "value": float("nan")})
        assert not journal.path.exists()


@dataclasses.dataclass(frozen=True)
class FakeCase:
    """A case that is only a name."""

    key: str

    def to_dict(self) -> dict[str, object]:
        return {"name": self.key}


CASES = [FakeCase(key) for key in "abcd"]


def run_fakes(folder: Path, measure: Any, **options: Any) -> list[Any]:
    with Journal(folder, HEADER) as journal:
        return run_cases(
            CASES,
            measure,
            journal,
            describe=lambda record: str(record.get("value")),
            progress_bar=False,
            **options,
        )


def test_an_interruption_loses_no_finished_case(tmp_path, capsys):
    measured: list[str] = []

    def interrupted(one: FakeCase, tick: Any) -> dict[str, object]:
        if one.key == "c":
            raise KeyboardInterrupt
        measured.append(one.key)
        return {"value": one.key.upper()}

    with pytest.raises(KeyboardInterrupt):
        run_fakes(tmp_path, interrupted)
    assert f"--out {tmp_path} goes on with the others" in capsys.readouterr().err

    def rest(one: FakeCase, tick: Any) -> dict[str, object]:
        measured.append(one.key)
        return {"value": one.key.upper()}

    records = run_fakes(tmp_path, rest)
    assert measured == ["a", "b", "c", "d"]
    assert [entry["value"] for entry in records] == ["A", "B", "C", "D"]
    assert "2 of 4 cases are in" in capsys.readouterr().out


def test_tables_hold_the_records_of_earlier_runs_even_if_nothing_is_measured_now(tmp_path):
    def measure(one: FakeCase, tick: Any) -> dict[str, object]:
        return {"value": one.key.upper()}

    def power_cut() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):  # between the first record and its table
        run_fakes(tmp_path, measure, after_each=power_cut)
    with Journal(tmp_path, HEADER) as journal:
        tables: list[list[str]] = []
        for cases in (CASES[:1], CASES):
            run_cases(
                cases,
                measure,
                journal,
                describe=str,
                progress_bar=False,
                after_each=lambda: tables.append(list(journal.finished)),
            )
    assert tables == [["a"], ["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]


def test_there_is_no_table_before_there_is_a_record(tmp_path):
    with Journal(tmp_path, HEADER) as journal:
        tables: list[int] = []
        run_cases(
            [],
            lambda case, tick: {},
            journal,
            describe=str,
            progress_bar=False,
            after_each=lambda: tables.append(1),
        )
    assert tables == []


KILLED = """
import os, signal, sys
from benchmark.drivers.journal import Journal
from benchmark.drivers.loop import run_cases
from pathlib import Path
sys.path.insert(0, "tests")

class Case:
    def __init__(self, key): self.key = key
    def to_dict(self): return {{"name": self.key}}

def measure(case, tick):
    if case.key == "c":
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"value": case.key.upper()}}

with Journal(Path({folder!r}), {header!r}) as journal:
    run_cases([Case(k) for k in "abcd"], measure, journal, describe=str, progress_bar=False)
"""


def test_a_killed_process_loses_only_the_running_case(tmp_path):
    code = KILLED.format(folder=str(tmp_path), header=HEADER)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr
    measured: list[str] = []

    def rest(one: FakeCase, tick: Any) -> dict[str, object]:
        measured.append(one.key)
        return {"value": one.key.upper()}

    records = run_fakes(tmp_path, rest)
    assert measured == ["c", "d"]
    assert [entry["value"] for entry in records] == ["A", "B", "C", "D"]


def test_a_case_that_fails_is_recorded_and_the_others_run(tmp_path, capsys):
    def measure(one: FakeCase, tick: Any) -> dict[str, object]:
        if one.key == "b":
            raise MemoryError("no more")
        return {"value": float("nan") if one.key == "c" else one.key}

    records = run_fakes(tmp_path, measure)
    assert [entry["status"] for entry in records] == ["ok", "error", "error", "ok"]
    assert records[1]["error"] == "MemoryError: no more"
    assert "not JSON compliant" in records[2]["error"]
    assert exit_status(records) == 1
    assert exit_status(records[3:]) == 0
    assert "Failed: {'name': 'b'}: MemoryError: no more" in capsys.readouterr().err


def test_a_case_that_others_depend_on_ends_the_run(tmp_path, capsys):
    def measure(one: FakeCase, tick: Any) -> dict[str, object]:
        raise ValueError("broken")

    with pytest.raises(CaseFailedError, match="ValueError: broken"):
        run_fakes(tmp_path, measure, go_on=False)
    assert "broken" in capsys.readouterr().err
