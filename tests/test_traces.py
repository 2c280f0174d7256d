"""What is printed and written once a profiler has stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import op_row
from gnnprof._traces import (
    format_prof_time,
    print_time_total,
    rename_profile_file,
    save_profile_data,
    trace_handler,
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_csv_by_hand() -> None:
    events = [
        op_row("aten::mm", 30.0, 40.0, 4, self_device_time_total=60.0, device_time_total=80.0),
        op_row("aten::add", 10.0, 20.0, 2, self_device_time_total=20.0, device_time_total=20.0),
        *(op_row(f"aten::op{i}", 10.0, 10.0, 1) for i in range(6)),
    ]
    columns: dict[str, list[Any]] = {"NAME": ["earlier"]}
    save_profile_data(columns, events, use_cuda=True)
    assert columns["NAME"] == [
        "earlier",
        "aten::mm",
        "aten::add",
        *(f"aten::op{i}" for i in range(3)),
    ]
    assert {name: values[:2] for name, values in columns.items() if name != "NAME"} == {
        "SELF CPU %": [30.0, 10.0],
        "SELF CPU": [30e-6, 10e-6],
        "CPU TOTAL %": [40.0, 20.0],
        "CPU TOTAL": [40e-6, 20e-6],
        "CPU TIME AVG": [10e-6, 10e-6],
        "SELF CUDA %": [75.0, 25.0],
        "SELF CUDA": [60e-6, 20e-6],
        "CUDA TOTAL": [80e-6, 20e-6],
        "CUDA TIME AVG": [20e-6, 10e-6],
        "# OF CALLS": [4, 2],
    }


def test_csv_of_an_idle_device() -> None:
    columns: dict[str, list[Any]] = {}
    save_profile_data(columns, [op_row("aten::mm", 30.0, 40.0, 4)], use_cuda=True)
    assert columns["SELF CUDA %"] == [0.0]
    assert format_prof_time(1.5) == 1.5e-6


def test_handlers_serve_other_profilers(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.profiler.profile(on_trace_ready=trace_handler) as prof:
        torch.ones(10, 10) @ torch.ones(10, 10)
    assert "aten::mm" in capsys.readouterr().out
    assert os.listdir() == ["timeline.json"]
    print_time_total(prof)
    assert "aten::mm" in capsys.readouterr().out


def test_rename(capsys: pytest.CaptureFixture[str]) -> None:
    Path("timeline.json").write_text("first")
    assert rename_profile_file("GCN", 0.5, None, "a/b\\c") == Path(
        "profile-GCN-0.5-None-a_b_c.json"
    )
    assert os.listdir() == ["profile-GCN-0.5-None-a_b_c.json"]
    assert capsys.readouterr().out == ""


def test_rename_keeps_the_earlier_file(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("first", "second", "third"):
        Path("timeline.json").write_text(text)
        assert rename_profile_file("a", "b") == Path("profile-a-b.json")
    names = ["profile-a-b.1.json", "profile-a-b.2.json", "profile-a-b.json"]
    assert {name: Path(name).read_text() for name in sorted(os.listdir())} == dict(
        zip(names, ["first", "second", "third"], strict=True)
    )
    assert "The earlier profile-a-b.json is now profile-a-b.1.json" in capsys.readouterr().out


def test_rename_without_a_trace() -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no timeline\.json in .*torch_profile"):
        rename_profile_file("a")
