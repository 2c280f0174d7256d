"""The torch.compile study from end to end in smoke size: sweep, resume, experiment, analysis."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark.compile import analyze, experiment, sweep


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "out"
    assert sweep.main(["--smoke", f"--out={folder}"]) == 0
    return folder


def records_of(out: Path) -> dict[str, dict]:
    found = [json.loads(file.read_text()) for file in (out / "records").glob("*.json")]
    return {record["case"]["mode"]: record for record in found}


@pytest.mark.slow
def test_every_case_has_a_typed_outcome_breaks_errors_and_intervals(out):
    records = records_of(out)
    assert set(records) == {"eager", "default"}
    assert {record["outcome"] for record in records.values()} == {"ok"}
    for phase in ("inference", "training"):
        row = records["default"][phase]
        assert (row["status"], row["graph_breaks"], row["effective_mode"]) == ("ok", 0, "default")
        assert 0 <= row["max_abs_error"] < 1e-3
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        assert row["verdict"] in ("faster", "slower", "undecided")
    assert records["default"]["training"]["max_abs_error_grad"] < 1e-3
    assert records["default"]["data"]["is_stand_in"] is True
    assert records["eager"]["inference"]["compile_seconds_cold"] is None


@pytest.mark.slow
def test_the_same_call_measures_nothing_again(out, monkeypatch):
    before = {file: file.stat().st_mtime_ns for file in (out / "records").iterdir()}
    monkeypatch.setenv("PYTHON", "false")
    assert sweep.main(["--smoke", "--resume", f"--out={out}"]) == 0
    assert experiment.main(["--smoke", f"--out={out}"]) == 0  # its cases are the sweep's
    assert {file: file.stat().st_mtime_ns for file in (out / "records").iterdir()} == before
    assert (next((out / "experiments").iterdir()) / "results.json").is_file()


@pytest.mark.slow
def test_the_analysis_reads_what_the_sweep_wrote(out, capsys):
    assert analyze.main([str(out)]) == 0
    assert {file.name for file in (out / "analysis").iterdir()} == {
        "study.xlsx",
        "tables.tex",
        "study.html",
    }
    assert "cora-like" in capsys.readouterr().out
