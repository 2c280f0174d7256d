"""The command that analyses a torch.compile study: its files, and what it says and refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark.compile import analyze
from benchmark.compile.analysis.questions import QUESTIONS
from tests.compile_records import record, small_study, write
from tests.studies import cells_of

pytest.importorskip("xlsxwriter")
openpyxl = pytest.importorskip("openpyxl")


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
