"""timeit, profileit and torch_profile: the contract, and every fault that was mended."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import inspect
import json
import math
import os
import signal
import sys
import threading
import time
import timeit as stdlib_timeit
import types
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fakes
from fakes import MIB
from gnnprof import _device, _events, _traces
from gnnprof import profile as door
from gnnprof.profile import (
    CPUStats,
    CUDALineStats,
    CUDAStats,
    CUDAStatsSummary,
    GPUStats,
    MPSStats,
    get_stats_summary,
    profileit,
    rename_profile_file,
    timeit,
    torch_profile,
    xpu_profile,
)

# -- timeit --------------------------------------------------------------------------------------


def test_block(fake_clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with timeit() as timer:
        assert not hasattr(timer, "duration")
        fake_clock.advance(0.5)
    assert timer.duration == 0.5
    assert timer.laps == (0.5,)
    assert capsys.readouterr().out == "Time: 0.50000000s\n"


def test_silent(fake_clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with timeit(log=False):
        fake_clock.advance(1.0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("divisor", "duration"), [(0, 6.0), (1, 6.0), (4, 1.5), (2.5, 2.4)])
def test_average(fake_clock: Any, divisor: float, duration: float) -> None:
    with timeit(log=False, avg_time_divisor=divisor) as timer:
        fake_clock.advance(6.0)
    assert timer.duration == duration


def test_reset(fake_clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with timeit() as timer:
        fake_clock.advance(1.0)
        timer.reset()
        assert timer.duration == 1.0
        fake_clock.advance(2.0)
    assert timer.laps == (1.0, 2.0)
    assert capsys.readouterr().out == "Time: 1.00000000s\nTime: 2.00000000s\n"


def test_reset_needs_a_running_timer(fake_clock: Any) -> None:
    timer = timeit(log=False)
    with pytest.raises(RuntimeError, match=r"Timer wasn't started\."):
        timer.reset()
    with pytest.raises(RuntimeError, match=r"Timer wasn't started\."):
        timer.__exit__(None, None, None)
    with timer:
        pass
    with pytest.raises(RuntimeError, match=r"Timer wasn't started\."):
        timer.reset()


def test_same_figures_as_the_reference(
    monkeypatch: pytest.MonkeyPatch, fake_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = pytest.importorskip("torch_geometric.profile")
    monkeypatch.setattr("torch_geometric.profile.profile.time.time", fake_clock)
    printed = []
    for tool in (timeit, reference.timeit):
        with tool(avg_time_divisor=3) as timer:
            fake_clock.advance(0.75)
            timer.reset()
            fake_clock.advance(1.5)
        printed.append((timer.duration, capsys.readouterr().out))
    assert printed[0] == printed[1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_stops_the_timer(fake_clock: Any, error: type[BaseException]) -> None:
    timer = timeit(log=False)

    def fail() -> None:
        fake_clock.advance(2.0)
        raise error

    with pytest.raises(error), timer:
        fail()
    assert timer.duration == 2.0
    with pytest.raises(RuntimeError, match="wasn't started"):
        timer.reset()


def test_nested_in_itself(fake_clock: Any) -> None:
    timer = timeit(log=False)
    with timer:
        fake_clock.advance(1.0)
        with timer:
            fake_clock.advance(2.0)
        assert timer.duration == 2.0
        fake_clock.advance(4.0)
    assert timer.laps == (2.0, 7.0)


def test_two_timers_crossing(fake_clock: Any) -> None:
    first, second = timeit(log=False), timeit(log=False)
    first.__enter__()
    fake_clock.advance(1.0)
    second.__enter__()
    fake_clock.advance(1.0)
    first.__exit__()
    fake_clock.advance(1.0)
    second.__exit__()
    assert (first.duration, second.duration) == (2.0, 2.0)


def test_recursive_function(fake_clock: Any) -> None:
    timer = timeit(log=False)

    @timer
    def countdown(n: int) -> int:
        """Count down."""
        fake_clock.advance(1.0)
        return countdown(n - 1) + 1 if n else 0

    assert countdown(2) == 2
    assert timer.laps == (1.0, 2.0, 3.0)
    assert timer.duration == 3.0
    assert (countdown.__name__, countdown.__doc__) == ("countdown", "Count down.")
    assert list(inspect.signature(countdown).parameters) == ["n"]


def test_reset_inside_a_decorated_function(fake_clock: Any) -> None:
    timer = timeit(log=False)

    @timer
    def epochs() -> None:
        fake_clock.advance(1.0)
        timer.reset()
        fake_clock.advance(2.0)

    epochs()
    assert timer.laps == (1.0, 2.0)


def test_a_subclass_acts_at_each_call_of_a_decorated_function(fake_clock: Any) -> None:
    class Logged(timeit):
        def __exit__(self, *exc_info: object) -> None:
            super().__exit__(*exc_info)
            log.append(self.duration)

    log: list[float] = []

    @Logged(log=False)
    def step(seconds: float) -> None:
        fake_clock.advance(seconds)

    step(1.0)
    step(2.0)
    assert log == [1.0, 2.0]


def test_threads_have_starts_of_their_own(fake_clock: Any) -> None:
    timer = timeit(log=False)
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with timer:
            inside.set()
            assert leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    fake_clock.advance(1.0)
    with timer:
        fake_clock.advance(2.0)
        leave.set()
        thread.join()
        assert timer.duration == 3.0
        fake_clock.advance(4.0)
    assert timer.laps == (3.0, 6.0)


def test_left_in_another_thread(fake_clock: Any) -> None:
    timer = timeit(log=False)
    timer.__enter__()
    fake_clock.advance(2.0)
    thread = threading.Thread(target=timer.__exit__)
    thread.start()
    thread.join()
    assert timer.duration == 2.0


def test_async_with(fake_clock: Any) -> None:
    async def step() -> timeit:
        async with timeit(log=False) as timer:
            fake_clock.advance(1.0)
            await asyncio.sleep(0)
        return timer

    assert asyncio.run(step()).duration == 1.0


@pytest.mark.parametrize(
    ("divisor", "error", "message"),
    [
        (-1, ValueError, "avg_time_divisor=-1 is negative; give the number of iterations"),
        (math.nan, ValueError, "avg_time_divisor=nan is not finite"),
        (math.inf, ValueError, "avg_time_divisor=inf is not finite"),
        (2j, TypeError, "avg_time_divisor=2j is a complex, not a number"),
        (True, TypeError, "avg_time_divisor=True is a bool"),
        ("3", TypeError, "avg_time_divisor='3' is a str"),
        (None, TypeError, "avg_time_divisor=None is a NoneType"),
    ],
)
def test_bad_divisor(divisor: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        timeit(avg_time_divisor=divisor)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_queued_work_is_timed(kind: str, monkeypatch: pytest.MonkeyPatch, fake_clock: Any) -> None:
    device = fakes.install(monkeypatch, kind, fake_clock)
    device.launch(5.0)  # earlier work, which is not to count
    with timeit(log=False) as timer:
        device.launch(2.0)
    assert timer.duration == 2.0
    assert device.calls("synchronize") == 2


def test_cost_without_a_device() -> None:
    if _device.accelerator() is not None:
        pytest.skip("this machine has an accelerator")
    timer = timeit(log=False)

    def once() -> None:
        with timer:
            pass

    seconds = min(stdlib_timeit.repeat(once, number=500, repeat=20)) / 500
    assert seconds < 15e-6  # the goal is 3 us; the bound leaves room for a busy machine


# -- profileit on devices --------------------------------------------------------------------------


@pytest.fixture
def nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answer for nvidia-smi; list the devices it is asked about."""
    asked: list[int] = []

    def answer(device: int) -> tuple[float, float]:
        asked.append(device)
        return 1000.0, 24.0

    monkeypatch.setattr(door, "get_gpu_memory_from_nvidia_smi", answer)
    return asked


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(3, 3)


def test_a_call_within_a_call_leaves_the_outer_peak(
    monkeypatch: pytest.MonkeyPatch, fake_clock: Any, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    device = fakes.install(monkeypatch, "cuda", fake_clock)

    @profileit("cuda")
    def inner(model: torch.nn.Module, x: torch.Tensor, *, fails: bool = False) -> None:
        device.allocate(10 * MIB)
        device.free(10 * MIB)
        if fails:
            raise KeyError

    @profileit("cuda")
    def outer(model: torch.nn.Module, x: torch.Tensor, before: int, after: int) -> CUDAStats:
        device.allocate(before * MIB)
        device.free(before * MIB)
        with contextlib.suppress(KeyError):
            inner(model, x, fails=True)
        _, stats = inner(model, x)
        device.allocate(after * MIB)
        device.free(after * MIB)
        return stats

    for before, after in ((900, 20), (20, 900), (1, 1)):
        within, stats = outer(model, fakes.on("cuda:0"), before, after)
        assert within.max_allocated_gpu == 10
        assert stats.max_allocated_gpu == max(before, 10, after)


def test_work_that_runs_on_elsewhere_is_in_the_time(
    monkeypatch: pytest.MonkeyPatch, fake_clock: Any, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    device = fakes.install(monkeypatch, "cuda", fake_clock, count=2)

    @profileit("cuda")
    def train(model: torch.nn.Module, x: torch.Tensor) -> None:
        device.launch(1.0, device=0)
        device.allocate(MIB, device=1)
        device.launch(3.0, device=1)

    _, stats = train(model, fakes.on("cuda:0"))
    assert stats.time == pytest.approx(3.0)


def test_cuda_peaks_over_the_whole_call(
    monkeypatch: pytest.MonkeyPatch, fake_clock: Any, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    device = fakes.install(monkeypatch, "cuda", fake_clock, count=2)
    device.allocate(500 * MIB, device=1)  # a peak of the past, which is not to count
    device.free(490 * MIB, device=1)

    @profileit("cuda")
    def train(model: torch.nn.Module, x: torch.Tensor) -> str:
        """Train a step."""
        device.allocate(100 * MIB, device=1)  # forward
        device.launch(1.0, device=1)
        device.allocate(850 * MIB, device=1)  # backward
        device.free(900 * MIB, device=1)
        device.launch(2.0, device=1)
        return "loss"

    out, stats = train(model, fakes.on("cuda:1"))
    assert out == "loss"
    assert stats == CUDAStats(pytest.approx(3.0), 960.0, 960.0, 960.0, 1000.0, 24.0)
    assert nvidia_smi == [1]
    assert device.calls("reset_peak_memory_stats") == 1
    assert (train.__name__, train.__doc__) == ("train", "Train a step.")


def test_reserved_memory_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    device = fakes.install(monkeypatch, "cuda")
    device.allocate(8 * MIB)
    device.free(8 * MIB)
    _, stats = profileit("cuda")(lambda model, x: device.allocate(2 * MIB))(
        model, fakes.on("cuda:0")
    )
    assert (stats.max_allocated_gpu, stats.max_reserved_gpu) == (2.0, 8.0)


def test_xpu(monkeypatch: pytest.MonkeyPatch, fake_clock: Any, model: torch.nn.Module) -> None:
    device = fakes.install(monkeypatch, "xpu", fake_clock)

    @profileit("xpu")
    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        device.allocate(3 * MIB)
        device.launch(0.5)

    assert step(model, fakes.on("xpu:0"))[1] == GPUStats(pytest.approx(0.5), 3.0, 3.0, 3.0)


def test_mps(monkeypatch: pytest.MonkeyPatch, fake_clock: Any) -> None:
    device = fakes.install(monkeypatch, "mps", fake_clock)

    @profileit()
    def step(x: torch.Tensor) -> None:
        device.allocate(5 * MIB)
        device.free(4 * MIB)
        device.launch(0.5)

    assert step(fakes.on("mps:0"))[1] == MPSStats(0.5, 1.0, 5.0)


def test_figures_of_the_driver_are_not_worth_the_result(
    monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module
) -> None:
    def fail(device: int) -> None:
        raise RuntimeError("no driver")

    fakes.install(monkeypatch, "cuda")
    monkeypatch.setattr(door, "get_gpu_memory_from_nvidia_smi", fail)
    out, stats = profileit("cuda")(lambda model, x: 42)(model, fakes.on("cuda:0"))
    assert out == 42
    assert (stats.nvidia_smi_free_cuda, stats.nvidia_smi_used_cuda) == (None, None)


def test_compiled_model_whose_forward_is_not_called(
    monkeypatch: pytest.MonkeyPatch, nvidia_smi: list[int]
) -> None:
    fakes.install(monkeypatch, "cuda")
    compiled = torch.compile(torch.nn.Linear(3, 3), backend="eager")
    assert profileit("cuda")(lambda model, x: 1)(compiled, fakes.on("cuda:0"))[0] == 1


@dataclass
class Batch:
    name: str
    x: torch.Tensor


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "held",
    [
        lambda x: [x],
        lambda x: {"batch": ("graph", x)},
        lambda x: Batch("graph", x),
        lambda x: Pair(None, [Pair(1, x)]),
    ],
)
def test_device_of_a_tensor_inside_a_container(
    monkeypatch: pytest.MonkeyPatch, nvidia_smi: list[int], model: torch.nn.Module, held: Any
) -> None:
    fakes.install(monkeypatch, "cuda", count=3)
    step = profileit("cuda")(lambda model, batch, flag=None: 1)
    step(model, held(fakes.on("cuda:2")))
    step(model, None, flag=held(fakes.on("cuda:1")))
    step(model, held(torch.ones(1)), flag=fakes.on("cuda:1"))  # one given directly goes first
    assert nvidia_smi == [2, 1, 1]


def test_device_of_a_graph(
    monkeypatch: pytest.MonkeyPatch, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    data = pytest.importorskip("torch_geometric.data")
    fakes.install(monkeypatch, "cuda", count=3)
    homogeneous, heterogeneous = data.Data(x=fakes.on("cuda:2")), data.HeteroData()
    heterogeneous["paper"].x = fakes.on("cuda:1")
    step = profileit("cuda")(lambda model, graph: 1)
    step(model, homogeneous)
    step(model, heterogeneous)
    assert nvidia_smi == [2, 1]


def test_cyclic_arguments_tell_no_device(model: torch.nn.Module) -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    with pytest.raises(AttributeError, match="Could not infer GPU device"):
        profileit("cuda")(lambda model, ring: 1)(model, ring)


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda:0", "CUDA", torch.device("cuda"), 0, []])
def test_bad_device_is_refused_before_decorating(device: Any) -> None:
    with pytest.raises(AttributeError, match="supports only CUDA and XPU devices"):
        profileit(device)


def test_forgotten_parentheses() -> None:
    with pytest.raises(AttributeError, match="supports only CUDA and XPU devices"):

        @profileit
        def step(model: Any) -> None: ...


def test_bad_arguments_of_the_call(model: torch.nn.Module) -> None:
    calls: list[int] = []
    step = profileit("cuda")(lambda *args, **kwargs: calls.append(1))
    with pytest.raises(AttributeError, match=r"needs to be torch.nn.Module \(got a Tensor\)"):
        step(torch.ones(3))
    with pytest.raises(AttributeError, match=r"First argument .* \(got a NoneType\)"):
        step()
    with pytest.raises(AttributeError, match="Could not infer GPU device from the args"):
        step(model, 3)
    with pytest.raises(RuntimeError, match="not support profiling on non GPU devices: the first"):
        step(model, torch.ones(3))
    with pytest.raises(RuntimeError, match="the first tensor lies on xpu:0, not on 'cuda'"):
        step(model, fakes.on("xpu:0"))
    with pytest.raises(RuntimeError, match="lies on cpu"):
        step(model=model, x=torch.ones(3))
    assert calls == []


def test_errors_equal_the_reference(model: torch.nn.Module) -> None:
    reference = pytest.importorskip("torch_geometric.profile")
    for args in ((torch.ones(3),), (model,), (model, torch.ones(3))):
        raised = []
        for tool in (reference, door):
            with pytest.raises((AttributeError, RuntimeError)) as caught:
                tool.profileit("cuda")(lambda *args: None)(*args)
            raised.append((type(caught.value), str(caught.value)))
        assert raised[0][0] is raised[1][0]
        assert raised[1][1].startswith(raised[0][1])


def test_an_error_of_the_step_propagates(
    monkeypatch: pytest.MonkeyPatch, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    device = fakes.install(monkeypatch, "cuda")
    with pytest.raises(ZeroDivisionError):
        profileit("cuda")(lambda model, x: 1 / 0)(model, fakes.on("cuda:0"))
    assert nvidia_smi == []
    assert device.calls("synchronize") == 1  # a lost device is not asked again


def test_coroutine_function(
    monkeypatch: pytest.MonkeyPatch, fake_clock: Any, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    device = fakes.install(monkeypatch, "cuda", fake_clock)

    @profileit("cuda")
    async def step(model: torch.nn.Module, x: torch.Tensor) -> str:
        await asyncio.sleep(0)
        device.launch(1.0)
        return "loss"

    out, stats = asyncio.run(step(model, fakes.on("cuda:0")))
    assert (out, stats.time) == ("loss", pytest.approx(1.0))


def test_generator_function_returns_its_stats(
    monkeypatch: pytest.MonkeyPatch, fake_clock: Any, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    device = fakes.install(monkeypatch, "cuda", fake_clock)

    @profileit("cuda")
    def epochs(model: torch.nn.Module, x: torch.Tensor) -> Any:
        for epoch in range(2):
            device.launch(1.0)
            yield epoch
        return "loss"

    seen: list[Any] = []

    def consume() -> Any:
        for_result = yield from epochs(model, fakes.on("cuda:0"))
        seen.append(for_result)

    assert list(consume()) == [0, 1]
    out, stats = seen[0]
    assert (out, stats.time) == ("loss", pytest.approx(2.0))


def test_async_generators_have_nowhere_to_put_stats() -> None:
    async def epochs(model: Any) -> Any:
        yield 1

    with pytest.raises(TypeError, match="cannot return its stats; decorate the coroutine"):
        profileit()(epochs)


# -- profileit with pytorch_memlab -----------------------------------------------------------------


class FakeLineProfiler:
    """What profileit uses of pytorch_memlab: one record per line, each with peaks of its own."""

    def __init__(self, *functions: Any, target_gpu: int) -> None:
        self.functions = functions
        self.target_gpu = target_gpu
        self._raw_line_records: list[dict[str, int]] = []

    def enable(self) -> None:
        sys.settrace(self.trace)

    def disable(self) -> None:
        sys.settrace(None)

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_code is self.functions[0].__code__:
            statistics = torch.cuda.memory_stats(self.target_gpu)
            self._raw_line_records.append(statistics)
            torch.cuda.reset_peak_memory_stats(self.target_gpu)
        return self.trace

    def display(self) -> str:
        return f"{len(self._raw_line_records)} lines of {self.functions[0].__qualname__}"


@pytest.fixture
def memlab(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("pytorch_memlab")
    module.LineProfiler = FakeLineProfiler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pytorch_memlab", module)


class TwoLines(torch.nn.Module):
    def __init__(self, device: fakes.FakeAccelerator) -> None:
        super().__init__()
        self.accelerator = device

    def forward(self, x: Any) -> Any:
        self.accelerator.allocate(7 * MIB)
        self.accelerator.free(6 * MIB)
        return x


def test_line_profile(
    monkeypatch: pytest.MonkeyPatch, memlab: None, nvidia_smi: list[int], fake_clock: Any
) -> None:
    device = fakes.install(monkeypatch, "cuda", fake_clock)
    step = profileit("cuda", line_profile=True)(lambda model, x: model(x))
    tracer = sys.gettrace()
    x = fakes.on("cuda:0")
    out, stats = step(TwoLines(device), x)
    assert out is x
    assert isinstance(stats, CUDALineStats)
    assert stats.line_table == "3 lines of TwoLines.forward"
    assert stats.max_allocated_gpu == 7.0  # seen at a line, after which the counters start anew
    assert sys.gettrace() is tracer
    assert type(get_stats_summary([stats])) is CUDAStatsSummary


def test_line_profile_gives_the_tracer_back(
    monkeypatch: pytest.MonkeyPatch, memlab: None, nvidia_smi: list[int]
) -> None:
    def debugger(frame: Any, event: str, argument: Any) -> None:
        return None

    device = fakes.install(monkeypatch, "cuda")
    step = profileit("cuda", line_profile=True)(lambda model, x: 1 / 0)
    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        with pytest.raises(ZeroDivisionError):
            step(TwoLines(device), fakes.on("cuda:0"))
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)


def test_line_profile_of_a_compiled_model(
    monkeypatch: pytest.MonkeyPatch, memlab: None, nvidia_smi: list[int]
) -> None:
    device = fakes.install(monkeypatch, "cuda")
    compiled = torch.compile(TwoLines(device), backend="eager")
    step = profileit("cuda", line_profile=True)(lambda model, x: 1)
    assert step(compiled, fakes.on("cuda:0"))[1].line_table == "0 lines of TwoLines.forward"


def test_line_profile_needs_memlab_and_cuda(
    monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module
) -> None:
    for device in (None, "xpu"):
        with pytest.raises(ValueError, match="line_profile needs device='cuda'"):
            profileit(device, line_profile=True)
    monkeypatch.setitem(sys.modules, "pytorch_memlab", None)
    step = profileit("cuda", line_profile=True)(lambda model, x: 1)
    with pytest.raises(ImportError, match=r'pip install "gnnprof\[memlab\]"'):
        step(model, fakes.on("cuda:0"))


# -- profileit on the CPU --------------------------------------------------------------------------


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8)


def test_cpu_peak_is_exact(model: torch.nn.Module) -> None:
    @profileit()
    def step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        first = mebibytes(3)
        second = mebibytes(4)  # 7 live
        del first
        third = mebibytes(2)  # 6 live
        del second, third
        return mebibytes(1)

    kept = mebibytes(50)  # live before the call, which is not to count
    out, stats = step(model, kept)
    assert out.numel() == MIB
    assert stats.max_allocated_cpu == 7.0
    assert stats.max_rss > 50
    assert step(model, kept)[1].max_allocated_cpu == 7.0


def test_the_resident_memory_is_that_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = [100 * 2**20]

    def read(session: Any) -> Any:
        resident[0] = 900 * 2**20  # what the events take
        return events(session)

    events = door._events.Session.events
    monkeypatch.setattr(door._events.Session, "events", read)
    monkeypatch.setattr(door, "_max_rss", lambda: resident[0])
    _, stats = profileit()(work)()
    assert (stats.max_rss, resident[0]) == (100.0, 900 * 2**20)


@pytest.mark.parametrize("tool", [torch_profile, profileit])
@pytest.mark.parametrize("when", ["__enter__", "__exit__"])
def test_ctrl_c_while_a_session_starts_or_ends_leaves_none(
    tool: Any, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # where Python would handle it
        return method(*arguments)

    owner: Any = torch.profiler.profile
    if tool is profileit:
        owner, when = door._events.Session, {"__enter__": "start", "__exit__": "stop"}[when]
    method = getattr(owner, when)
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with monkeypatch.context() as patch:
            patch.setattr(owner, when, interrupted)
            with pytest.raises(KeyboardInterrupt):
                tool()(work)()
    finally:
        signal.signal(signal.SIGINT, earlier)
    with torch_profile(export_chrome_trace=False) as prof:
        work()
    assert prof.key_averages()


def test_cpu_peak_counts_the_backward_pass() -> None:
    x = torch.ones(MIB // 4, requires_grad=True)  # one MiB

    @profileit()
    def step(x: torch.Tensor) -> None:
        (x * x * x).sum().backward()

    # By hand: x*x and its product by x stay for backward (2 MiB). Backward makes the gradients of
    # both factors of the outer product (2 more), the product of the inner one, and adds up in x.
    _, stats = step(x)
    assert 4.0 <= stats.max_allocated_cpu <= 7.0
    assert x.grad is not None


def test_cpu_time(fake_clock: Any) -> None:
    assert profileit()(lambda x: fake_clock.advance(0.5))(torch.ones(1))[1].time == 0.5


def test_cpu_under_a_running_profiler_has_no_peak() -> None:
    step = profileit()(lambda x: x + 1)
    with torch.profiler.profile() as prof:
        _, stats = step(torch.ones(1))
    assert stats.max_allocated_cpu is None
    assert stats.time < 10
    assert any(op.key == "aten::add" for op in prof.key_averages())


def test_cpu_error_ends_the_session() -> None:
    with pytest.raises(ZeroDivisionError):
        profileit()(lambda x: 1 / 0)(torch.ones(1))
    with torch_profile(export_chrome_trace=False):  # refused if a session were left running
        pass


def test_threads_look_and_start_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class SlowSession:
        def __init__(self, accelerator: str | None, memory: bool) -> None: ...

        def start(self) -> None:
            log.append("start")

        def stop(self) -> None: ...

        def events(self) -> Any:
            return types.SimpleNamespace(memory=[])

    def look(what: str) -> None:
        log.append("look")
        time.sleep(0.02)  # room for the other thread to look as well

    monkeypatch.setattr(_events, "Session", SlowSession)
    monkeypatch.setattr(_events, "refuse_nested_session", look)
    step = profileit()(lambda x: x)
    threads = [threading.Thread(target=step, args=(torch.ones(1),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log == ["look", "start"] * 3


def test_no_peak_resident_memory_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert profileit()(lambda x: 1)(torch.ones(1))[1].max_rss is None


def test_inferred_device(
    monkeypatch: pytest.MonkeyPatch, nvidia_smi: list[int], model: torch.nn.Module
) -> None:
    step = profileit()(lambda *args: 1)
    assert isinstance(step()[1], CPUStats)  # there is nothing but the CPU here
    assert isinstance(step(model)[1], CPUStats)
    fakes.install(monkeypatch, "cuda", count=2)
    assert isinstance(step(model, torch.ones(1))[1], CPUStats)
    assert isinstance(step(torch.ones(1), {"x": fakes.on("cuda:1")})[1], CUDAStats)
    model.register_buffer("mask", fakes.on("cuda:0"))
    assert isinstance(step(torch.ones(1), model)[1], CUDAStats)
    assert nvidia_smi == [1, 0]
    with pytest.raises(AttributeError, match="Could not infer the device from the arguments"):
        step(1)
    with pytest.raises(AttributeError, match="profileit cannot measure hpu:0; it supports"):
        step(fakes.on("hpu:0"))


# -- torch_profile and its files -------------------------------------------------------------------

COLUMNS = ["NAME", "SELF CPU %", "SELF CPU", "CPU TOTAL %", "CPU TOTAL", "CPU TIME AVG"]
CUDA_COLUMNS = ["SELF CUDA %", "SELF CUDA", "CUDA TOTAL", "CUDA TIME AVG"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def work() -> None:
    torch.ones(10, 10) @ torch.ones(10, 10)


def test_table_and_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with torch_profile() as prof:
        work()
    printed = capsys.readouterr().out
    assert "aten::mm" in printed
    assert printed.index("Self CPU time total") > 0
    names = {
        event.get("name") for event in json.loads(Path("timeline.json").read_text())["traceEvents"]
    }
    assert "aten::mm" in names
    assert os.listdir() == ["timeline.json"]
    assert any(op.key == "aten::mm" for op in prof.key_averages())


def test_the_trace_of_the_last_profile_stands() -> None:
    for shown in ("aten::mm", "aten::relu"):
        with torch_profile():
            work() if shown == "aten::mm" else torch.relu(torch.ones(2))
    text = Path("timeline.json").read_text()
    assert "aten::relu" in text
    assert "aten::mm" not in text


def test_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with torch_profile(export_chrome_trace=False):
        work()
    assert os.listdir() == []
    assert "aten::mm" in capsys.readouterr().out


def test_compressed_trace_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "run.json.gz"
    for _ in range(2):
        with torch_profile(export_chrome_trace=target):
            work()
    assert sorted(os.listdir("out")) == ["run.1.json.gz", "run.json.gz"]
    assert f"The earlier {target} is now {tmp_path / 'out' / 'run.1.json.gz'}" in (
        capsys.readouterr().out
    )
    assert "aten::mm" in gzip.decompress(target.read_bytes()).decode()


def test_a_folder_that_is_not_there_is_told_before_the_work() -> None:
    ran: list[int] = []
    no_folder = pytest.raises(FileNotFoundError, match="there is no folder missing; make it first")
    with no_folder, torch_profile("missing/run.json"):
        ran.append(1)
    assert ran == []


def test_the_table_survives_a_trace_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(_traces._files, "write_atomically", full)
    columns: dict[str, list[Any]] = {}
    full_disk = pytest.raises(OSError, match="no space left")
    with full_disk, torch_profile(csv_data=columns, write_csv="prof"):
        work()
    assert "aten::mm" in capsys.readouterr().out
    assert "aten::mm" in columns["NAME"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_of_the_block_leaves_nothing(
    error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    columns: dict[str, list[Any]] = {}
    with pytest.raises(error), torch_profile(csv_data=columns, write_csv="prof"):
        raise error
    assert (os.listdir(), columns, capsys.readouterr().out) == ([], {}, "")
    with torch_profile(export_chrome_trace=False):
        work()


def test_nested_sessions_are_refused_before_the_body() -> None:
    entered: list[str] = []
    with torch_profile(export_chrome_trace=False) as outer:
        work()
        refused = pytest.raises(RuntimeError, match="torch_profile cannot start: another torch")
        with refused, torch_profile():
            entered.append("inner")
    assert entered == []
    assert any(op.key == "aten::mm" for op in outer.key_averages())


def test_csv_on_the_cpu() -> None:
    columns: dict[str, list[Any]] = {}
    with torch_profile(export_chrome_trace=False, csv_data=columns, write_csv="prof") as prof:
        for _ in range(3):
            work()
    assert list(columns) == [*COLUMNS, "# OF CALLS"]
    assert {len(values) for values in columns.values()} == {len(columns["NAME"])}
    ops = {op.key: op for op in prof.key_averages()}
    by_cost = sorted(ops.values(), key=lambda op: op.self_cpu_time_total, reverse=True)[:5]
    assert columns["NAME"] == [op.key for op in by_cost]
    assert columns["SELF CPU"] == [op.self_cpu_time_total / 1e6 for op in by_cost]
    assert columns["CPU TIME AVG"] == [op.cpu_time_total / op.count / 1e6 for op in by_cost]
    assert sum(columns["SELF CPU %"]) <= 100.000001
    position = columns["NAME"].index("aten::mm")
    assert columns["# OF CALLS"][position] == 3


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_device_profile(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = fakes.install(monkeypatch, kind, count=2)
    device.allocate(MIB, device=1)
    monkeypatch.setattr(door, "profile", fakes.FakeProfile)
    columns: dict[str, list[Any]] = {}
    with torch_profile(csv_data=columns, write_csv="prof") as prof:
        pass
    activities = [activity.name for activity in prof.options["activities"]]
    assert activities == ["CPU", kind.upper()]
    assert capsys.readouterr().out == "self_device_time_total: sgemm aten::mm aten::slow_host\n"
    assert columns["NAME"] == ["aten::mm", "aten::slow_host"]
    assert columns["SELF CUDA %"] == [100.0, 0.0]  # the kernel's own row does not count twice
    assert ("synchronize", 1) in device.log


def test_xpu_profile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    refused = pytest.raises(RuntimeError, match="xpu_profile found no XPU that torch can use")
    with refused, xpu_profile():
        pass
    fakes.install(monkeypatch, "xpu")
    monkeypatch.setattr(door, "profile", fakes.FakeProfile)
    with xpu_profile():
        pass
    assert capsys.readouterr().out.startswith("self_device_time_total: sgemm")
    assert os.listdir() == ["timeline.json"]
    with xpu_profile(export_chrome_trace=False) as prof:
        pass
    assert [activity.name for activity in prof.options["activities"]] == ["CPU", "XPU"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"csv_data": {}, "write_csv": "all"}, "write_csv='all'; give 'prof' to append"),
        ({"write_csv": "prof"}, "write_csv='prof' needs csv_data; give a dict"),
    ],
)
def test_bad_csv_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), torch_profile(**arguments):
        pytest.fail("the block ran")


@pytest.mark.parametrize("write_csv", ["bench", "", None])
def test_csv_is_left_alone_unless_asked_for(write_csv: str | None) -> None:
    columns: dict[str, list[Any]] = {}
    with torch_profile(export_chrome_trace=False, csv_data=columns, write_csv=write_csv):
        work()
    assert columns == {}


def test_as_a_decorator() -> None:
    @torch_profile()
    def step() -> None:
        work()

    step()
    step()
    assert os.listdir() == ["timeline.json"]


def test_ranks_have_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(door, "profile", fakes.FakeProfile)
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        with torch_profile():
            pass
    assert sorted(os.listdir()) == ["timeline-rank0.json", "timeline-rank1.json"]
    assert rename_profile_file("a") == Path("profile-a-rank1.json")
    assert sorted(os.listdir()) == ["profile-a-rank1.json", "timeline-rank0.json"]
