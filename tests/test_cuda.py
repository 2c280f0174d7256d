"""What only a real CUDA device can show. ``gpu_check.sh`` runs these, and ``gpu_check.py`` after.

Nothing here is planted by a fake: memory and seconds are compared with torch's own counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnprof import _device
from gnnprof.nvtx import nvtxit
from gnnprof.profile import (
    CUDALineStats,
    CUDAStats,
    get_stats_summary,
    profileit,
    rename_profile_file,
    timeit,
    torch_profile,
)
from gnnprof.profiler import Profiler
from gnnprof.utils import get_gpu_memory_from_gc, get_gpu_memory_from_nvidia_smi

pytestmark = pytest.mark.cuda

MIB = 2**20
CYCLES = 50_000_000  # some 25 to 50 ms of a spinning kernel


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    torch.cuda.synchronize()


@contextlib.contextmanager
def spinning() -> Iterator[list[float]]:
    """Run the spinning kernel; the list then has its seconds by device events.

    How long it spins depends on the clock of the moment, so the truth is taken on the spot.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    elapsed: list[float] = []
    begin.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    yield elapsed
    end.synchronize()
    elapsed.append(begin.elapsed_time(end) / 1000)


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(32, 64, device="cuda")


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")


# -- timeit ----------------------------------------------------------------------------------------


def test_timeit_waits_for_the_kernels() -> None:
    timer = timeit(log=False)
    with spinning(), timer:
        pass
    assert timer.duration < 0.01  # the kernel was queued before the block
    with timer:
        spin = spinning()
        truth = spin.__enter__()
    spin.__exit__(None, None, None)
    assert truth[0] <= timer.duration < truth[0] + 0.01


def test_timeit_as_a_decorator_of_a_coroutine() -> None:
    timer = timeit(log=False)

    @timer
    async def step() -> list[float]:
        with spinning() as truth:
            await asyncio.sleep(0)
        return truth

    truth = asyncio.run(step())
    assert truth[0] <= timer.duration < truth[0] + 0.01


# -- profileit -------------------------------------------------------------------------------------


def test_profileit_reads_the_allocator_over_the_whole_call(
    model: torch.nn.Module, x: torch.Tensor
) -> None:
    mebibytes(300)  # an earlier peak

    @profileit("cuda")
    def step(model: torch.nn.Module, x: torch.Tensor) -> int:
        model(x).sum().backward()
        mebibytes(200)  # after forward and backward
        return torch.cuda.max_memory_allocated()

    peak, stats = step(model, x)
    assert isinstance(stats, CUDAStats)
    assert stats.max_allocated_gpu == peak / MIB
    assert 200 <= stats.max_allocated_gpu < 300
    assert stats.max_reserved_gpu >= stats.max_active_gpu >= stats.max_allocated_gpu
    assert stats.nvidia_smi_used_cuda > 0


def test_profileit_times_the_device(model: torch.nn.Module, x: torch.Tensor) -> None:
    @profileit("cuda")
    def step(model: torch.nn.Module, x: torch.Tensor) -> list[float]:
        with spinning() as truth:
            pass
        return truth

    measured = []
    for _ in range(3):
        torch.cuda._sleep(CYCLES)  # queued before the call, and not to count
        truth, stats = step(model, x)
        assert truth[0] <= stats.time < truth[0] + 0.01
        measured.append(stats)
    summary = get_stats_summary(measured)
    assert summary.time_mean == pytest.approx(sum(s.time for s in measured) / 3)


def test_profileit_without_a_device_finds_it(model: torch.nn.Module) -> None:
    assert isinstance(profileit()(lambda model: 1)(model)[1], CUDAStats)


def test_profileit_of_a_compiled_model(model: torch.nn.Module, x: torch.Tensor) -> None:
    compiled = torch.compile(model, backend="aot_eager")
    step = profileit("cuda")(lambda model, x: model(x).sum().backward())
    assert step(compiled, x)[1].max_allocated_gpu > 0


def test_profileit_survives_an_error(model: torch.nn.Module, x: torch.Tensor) -> None:
    with pytest.raises(ZeroDivisionError):
        profileit("cuda")(lambda model, x: 1 / 0)(model, x)
    assert profileit("cuda")(lambda model, x: 1)(model, x)[0] == 1


def test_profileit_refuses_what_lies_on_the_cpu(model: torch.nn.Module) -> None:
    with pytest.raises(RuntimeError, match="on non GPU devices"):
        profileit("cuda")(lambda model, x: 1)(model, torch.ones(1))


def test_line_profile(x: torch.Tensor) -> None:
    pytest.importorskip("pytorch_memlab")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held = mebibytes(100)
            del held
            return x

    tracer = sys.gettrace()
    step = profileit("cuda", line_profile=True)(lambda model, x: model(x))
    _, stats = step(Model(), x)
    assert isinstance(stats, CUDALineStats)
    assert "held = mebibytes(100)" in stats.line_table
    assert stats.max_allocated_gpu >= 100
    assert sys.gettrace() is tracer


# -- torch_profile ---------------------------------------------------------------------------------


def test_torch_profile_has_device_columns(
    capsys: pytest.CaptureFixture[str], x: torch.Tensor
) -> None:
    columns: dict[str, list[Any]] = {}
    with torch_profile(csv_data=columns, write_csv="prof") as prof:
        x @ x.T
    assert "Self CUDA" in capsys.readouterr().out
    assert "aten::mm" in columns["NAME"]
    assert len({len(values) for values in columns.values()}) == 1
    mm = next(op for op in prof.key_averages() if op.key == "aten::mm")
    position = columns["NAME"].index("aten::mm")
    assert columns["SELF CUDA"][position] == mm.self_device_time_total / 1e6
    assert '"cat": "kernel"' in Path("timeline.json").read_text()
    assert rename_profile_file("mm").name == "profile-mm.json"


def test_sessions_are_not_nested(model: torch.nn.Module, x: torch.Tensor) -> None:
    with torch_profile(export_chrome_trace=False):
        model(x)
        with pytest.raises(RuntimeError, match="another torch profiler session"):
            Profiler(model, use_cuda=True).__enter__()


# -- Profiler --------------------------------------------------------------------------------------


def test_profiler_finds_the_kernels_of_every_layer(model: torch.nn.Module, x: torch.Tensor) -> None:
    model(x)
    with Profiler(model, use_cuda=True, profile_memory=True) as prof:
        out = model(x)
    rows = {(row.path, row.op): row for row in prof.rows}
    assert rows["0", None].self_device_time > 0
    assert rows["1", None].self_device_time > 0
    assert rows["", None].device_time >= (
        rows["0", None].device_time + rows["1", None].device_time - 1e-9
    )
    # By hand: each layer makes one output of 32 x 64 floats, 8 KiB.
    assert rows["0", None].self_device_memory == out.numel() * 4
    assert rows["1", None].self_device_memory == out.numel() * 4
    assert prof.coverage >= 0.995


def test_profiler_of_a_compiled_model(model: torch.nn.Module, x: torch.Tensor) -> None:
    compiled = torch.compile(model, backend="aot_eager")
    compiled(x)
    with Profiler(compiled, use_cuda=True) as prof:
        compiled(x)
    assert sum(row.self_device_time for row in prof.rows if row.op is None) > 0
    assert str(prof)


# -- nvtx, memory, timers on several devices -------------------------------------------------------


def test_nvtx_ranges_nest_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: seen.append(name) or push(name))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("pop") or pop())

    @nvtxit()
    def inner() -> None:
        torch.cuda._sleep(1000)

    @nvtxit("outer")
    def outer() -> None:
        inner()
        raise ValueError("within the range")

    for _ in range(2):
        with pytest.raises(ValueError, match="within the range"):
            outer()
    once = "outer_{0} inner_{0} pop pop"
    assert " ".join(seen) == f"{once.format(0)} {once.format(1)}"


def test_nvtx_on_two_threads() -> None:
    step = nvtxit()(lambda: torch.cuda._sleep(1000))
    threads = [threading.Thread(target=step) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_gc_finds_the_bytes_of_live_tensors() -> None:
    before = get_gpu_memory_from_gc(0)
    held = mebibytes(10)
    for device in (0, "cuda", "cuda:0", torch.device("cuda", 0)):
        assert get_gpu_memory_from_gc(device) - before == held.numel()


NVIDIA_SMI = """
import torch
from gnnprof import _device
from gnnprof.utils import get_gpu_memory_from_nvidia_smi
held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
free, used = get_gpu_memory_from_nvidia_smi(0)
total = _device.memory_info(0)[1] / 2**20 * 1.0485
assert used > 2**10 * 1.0485, used
assert abs(free + used - total) < 0.03 * total, (free, used, total)
"""


@pytest.mark.parametrize("visible", [None, "0", "uuid"])
def test_nvidia_smi_reads_the_right_card(visible: str | None) -> None:
    uuid = _device.cuda_uuid(torch.cuda.current_device())
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = f"GPU-{uuid}" if visible == "uuid" else visible
    subprocess.run([sys.executable, "-c", NVIDIA_SMI], env=environment, check=True, timeout=100)


def test_nvidia_smi_of_no_such_device() -> None:
    with pytest.raises(AttributeError, match="not available"):
        get_gpu_memory_from_nvidia_smi(torch.cuda.device_count())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_timeit_waits_for_the_other_device() -> None:
    torch.ones(1, device="cuda:1")
    with timeit(log=False) as empty:
        pass
    with torch.cuda.device(1):
        torch.cuda._sleep(CYCLES)
    with timeit(log=False) as timer, torch.cuda.device(1):
        torch.cuda._sleep(CYCLES)
    assert timer.duration > empty.duration + 0.01


FORKED = """
import os, torch
from gnnprof.profile import timeit
torch.ones(1, device="cuda")
child = os.fork()
if child == 0:
    with timeit(log=False):
        pass
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_timeit_in_a_forked_worker() -> None:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-c", FORKED], env=environment, check=True, timeout=100)
