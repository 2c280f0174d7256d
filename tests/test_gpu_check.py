"""The GPU check itself, run on the CPU: every check meets a fake device before a real one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fakes
import gpu_check
from fakes import MIB, op_row
from gnnprof._records import BenchmarkResult, ProfileRow, Timing
from gnnprof.profile import save_profile_data
from gpu_check import Figure, Lab


class FakeLab(Lab):
    """A lab whose kernels, tensors and bytes are those of a fake device."""

    side = 8

    def __init__(self, device: fakes.FakeAccelerator) -> None:
        self.fake = device
        super().__init__()

    def plant(self, nbytes: int) -> torch.Tensor:
        self.fake.allocate(nbytes)
        planted = self.ones(1)
        weakref.finalize(planted, self.fake.free, nbytes)
        return planted

    def ones(self, *shape: int) -> torch.Tensor:
        return fakes.on("cuda:0", torch.ones(*shape))

    def gcn(self) -> tuple[torch.nn.Module, Any]:
        return torch.nn.Identity(), (torch.ones(1),)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, fake_clock: Any) -> FakeLab:
    device = fakes.install(monkeypatch, "cuda", fake_clock)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda n: device.launch(n / 2e9), raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Fake CUDA")
    monkeypatch.setenv("PATH", "")  # no nvidia-smi: the driver answers
    plant_kernels(monkeypatch)
    return FakeLab(device)


def plant_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for what only real kernels can show to the profiler."""

    @contextlib.contextmanager
    def torch_profile(export_chrome_trace: bool, csv_data: Any, write_csv: str) -> Iterator[None]:
        yield
        mm = op_row("aten::mm", 10.0, 10.0, 10, self_device_time_total=0.0)
        add = op_row("aten::add", 10.0, 10.0, 10, self_device_time_total=0.0)
        save_profile_data(csv_data, [mm, add], use_cuda=True)
        csv_data["SELF CUDA %"] = [95.0, 5.0]

    def benchmark(funcs: Any, args: Any, num_steps: int, num_warmups: int) -> Any:
        for func in funcs:
            func(*args)
        return (BenchmarkResult("spin", Timing((0.01,) * num_steps)),)

    monkeypatch.setattr(gpu_check, "torch_profile", torch_profile)
    monkeypatch.setattr(gpu_check, "benchmark", benchmark)
    monkeypatch.setattr(gpu_check, "Profiler", FakeProfiler)
    monkeypatch.setattr(gpu_check, "device_seconds_by_torch", lambda work: work() is None or 0.5)


class FakeProfiler:
    """Rows of a profile whose device times and bytes add up."""

    coverage = 1.0
    rows = (
        ProfileRow("", "GCN", None, None, 1, 0.1, 0.4, 0.1, 0.5, 0, 0, 0, 0),
        ProfileRow("conv1", "GCNConv", "message", None, 2, 0.3, 0.3, 0.4, 0.4, 0, 0, 0, 0),
        ProfileRow("", "GCN", None, "aten::mm", 1, 0.1, 0.1, 0.1, 0.1, 0, 0, 0, 0),
        ProfileRow("conv1", "GCNConv", "message", "aten::mul", 1, 0.1, 0.1, 0.4, 0.4, 0, 0, 0, 0),
    )

    def __init__(self, model: Any, **options: bool) -> None:
        assert options["use_cuda"]

    def __enter__(self) -> FakeProfiler:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def table(self) -> str:
        return ""


@pytest.mark.parametrize("check", gpu_check.CHECKS, ids=lambda check: check.__name__)
def test_every_check_agrees_with_what_was_planted(
    check: Callable[[Lab], list[Figure]], lab: FakeLab
) -> None:
    figures = check(lab)
    assert figures
    assert {figure.verdict for figure in figures} <= {"ok", "info"}, gpu_check.table_of(figures)


def test_a_profiler_that_misses_the_backward_pass_fails(
    lab: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward_only(device: str) -> Callable[..., Any]:
        return lambda func: (
            lambda *args: (
                func(*args),
                SimpleNamespace(max_allocated_gpu=64.0, max_reserved_gpu=64.0),
            )
        )

    monkeypatch.setattr(gpu_check, "profileit", forward_only)
    verdicts = [figure.verdict for figure in gpu_check.check_profileit_peaks(lab)]
    assert verdicts[:3] == ["FAIL", "FAIL", "FAIL"]


def test_the_lab_knows_its_clock(lab: FakeLab) -> None:
    assert lab.seconds_of(lambda: lab.spin(0.25)) == pytest.approx(0.25, rel=1e-6)


def test_the_lab_frees_what_it_planted(lab: FakeLab) -> None:
    held = lab.plant(3 * MIB)
    assert lab.allocated() == 3 * MIB
    del held
    assert lab.allocated() == 0


def test_kernels_are_summed_without_the_ops_that_launched_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes.install(monkeypatch, "cuda")
    monkeypatch.setattr(torch.profiler, "profile", fakes.FakeProfile)
    assert gpu_check.device_seconds_by_torch(lambda: None) == pytest.approx(50e-6)


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure("a", "b", 1.0, "s"), "info"),
        (Figure("a", "b", 1.0, "s", low=1.0, high=1.0), "ok"),
        (Figure("a", "b", 1.1, "s", high=1.0), "FAIL"),
        (Figure("a", "b", 0.9, "s", low=1.0), "FAIL"),
        (Figure("a", "b", None, "s", low=1.0), "FAIL"),
        (Figure("a", "b", None, "s"), "FAIL"),
        (gpu_check.near("a", "b", 10.0, 10.0, 0, ""), "ok"),
    ],
)
def test_verdicts(figure: Figure, verdict: str) -> None:
    assert figure.verdict == verdict


def test_main_writes_the_record_and_prints_the_table_last(
    lab: FakeLab,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(lab: Lab) -> list[Figure]:
        raise ValueError("out of order")

    monkeypatch.setattr(gpu_check, "Lab", lambda: lab)
    monkeypatch.setenv("OUT", str(tmp_path))
    junit = tmp_path / "pytest.xml"
    junit.write_text(
        '<testsuites><testsuite tests="9" failures="0" errors="0" skipped="2"/></testsuites>'
    )
    monkeypatch.setattr(gpu_check, "CHECKS", (gpu_check.check_nvtx,))
    assert gpu_check.main(["--junit", str(junit)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 4 figures failed"
    monkeypatch.setattr(gpu_check, "CHECKS", (broken, gpu_check.check_nvtx))
    assert gpu_check.main(["--junit", str(tmp_path / "missing.xml")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "broken" in lines[0]
    assert "ValueError: out of order" in lines[0]
    assert lines[-1] == "2 of 3 figures failed"
    record = json.loads((tmp_path / "gpu_check.json").read_text())
    assert record["device"] == "Fake CUDA"
    assert [figure["verdict"] for figure in record["figures"]] == ["FAIL", "ok", "FAIL"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the check would really run")
def test_the_command_says_that_there_is_no_device(tmp_path: Path) -> None:
    """The script finds its way, also from another folder, and fails where nothing was checked."""
    script = Path(__file__).with_name("gpu_check.sh")
    stub = tmp_path / "python"
    stub.write_text(
        f'#!/bin/sh\ncase "$*" in *"-m pytest"*) exit 0;; *) exec {sys.executable} "$@";; esac\n'
    )
    stub.chmod(0o755)
    done = subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": str(stub), "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "gpu_check needs a CUDA device, and torch finds none"
    assert done.returncode == 1
