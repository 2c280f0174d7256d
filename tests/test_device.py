"""The one module that asks the device: with fakes behind torch, known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity

import fakes
from fakes import MIB
from gnnprof import _device


def test_no_accelerator_here() -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    assert _device.accelerator() is None
    _device.synchronize()  # nothing to wait for


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_accelerator_is_asked_at_call_time(
    kind: str, monkeypatch: pytest.MonkeyPatch, fake_clock: Any
) -> None:
    fakes.install(monkeypatch, kind, fake_clock)
    assert _device.accelerator() == kind
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _device.accelerator() is None


def test_the_answer_of_one_function_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(1) or True)
    assert [_device.accelerator() for _ in range(3)] == ["cuda"] * 3
    assert len(asked) == 1


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_synchronize_waits_for_queued_work(
    kind: str, monkeypatch: pytest.MonkeyPatch, fake_clock: Any
) -> None:
    device = fakes.install(monkeypatch, kind, fake_clock)
    device.launch(2.0)
    assert fake_clock.now == 1000.0
    _device.synchronize()
    assert fake_clock.now == 1002.0


def test_synchronize_waits_for_every_device_in_use_and_starts_no_other(
    monkeypatch: pytest.MonkeyPatch, fake_clock: Any
) -> None:
    device = fakes.install(monkeypatch, "cuda", fake_clock, count=3)
    device.allocate(MIB, device=2)  # only devices 0 and 2 have a context
    device.launch(5.0, device=2)
    _device.synchronize()
    assert fake_clock.now == 1005.0
    assert device.log == [("synchronize", 0), ("synchronize", 2)]


def test_synchronize_waits_for_every_xpu(monkeypatch: pytest.MonkeyPatch, fake_clock: Any) -> None:
    device = fakes.install(monkeypatch, "xpu", fake_clock, count=2)
    device.launch(5.0, device=1)
    _device.synchronize()
    assert fake_clock.now == 1005.0


def test_synchronize_one_device(monkeypatch: pytest.MonkeyPatch, fake_clock: Any) -> None:
    device = fakes.install(monkeypatch, "cuda", fake_clock, count=2)
    device.launch(5.0, device=0)
    _device.synchronize(torch.device("cuda:1"))
    _device.synchronize(torch.device("cpu"))
    assert device.log == [("synchronize", 1)]
    assert fake_clock.now == 1000.0


def test_a_forked_child_has_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = fakes.install(monkeypatch, "cuda")
    device.in_bad_fork = True
    _device.synchronize()
    assert device.log == []


@pytest.mark.parametrize(
    ("accelerator", "names"),
    [(None, ["CPU"]), ("mps", ["CPU"]), ("cuda", ["CPU", "CUDA"]), ("xpu", ["CPU", "XPU"])],
)
def test_profiler_activities(accelerator: str | None, names: list[str]) -> None:
    expected = [ProfilerActivity.__members__[name] for name in names]
    assert _device.profiler_activities(accelerator) == expected


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        (1, "cuda:1"),
        (np.int64(1), "cuda:1"),
        (torch.tensor(1), "cuda:1"),
        ("cuda:1", "cuda:1"),
        ("cuda", "cuda:0"),
        (torch.device("cuda", 1), "cuda:1"),
        (torch.device("cuda"), "cuda:0"),
        ("xpu", "xpu:0"),
        ("mps", "mps:0"),
        ("cpu", "cpu"),
    ],
)
def test_any_form_of_a_device(given: Any, resolved: str) -> None:
    assert _device.resolve_device(given) == torch.device(resolved)


def test_an_index_means_the_accelerator_and_a_name_the_current_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = fakes.install(monkeypatch, "xpu", count=2)
    device.current = 1
    assert _device.resolve_device(0) == torch.device("xpu:0")
    assert _device.resolve_device("xpu") == torch.device("xpu:1")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (True, TypeError, "device=True is a bool; give an index"),
        (None, TypeError, "device=None is a NoneType"),
        (1.0, TypeError, "device=1.0 is a float"),
        (-1, ValueError, "device=-1 is negative"),
        ("gpu", ValueError, "device='gpu' names no device; give a name such as"),
        ("cuda:x", ValueError, "device='cuda:x' names no device"),
    ],
)
def test_what_names_no_device(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _device.resolve_device(given)


def test_timer_on_the_cpu(fake_clock: Any) -> None:
    stop = _device.start_timer(torch.device("cpu"))
    fake_clock.advance(0.25)
    assert stop() == 0.25


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_timer_on_a_device_counts_its_work_only(
    kind: str, monkeypatch: pytest.MonkeyPatch, fake_clock: Any
) -> None:
    device = fakes.install(monkeypatch, kind, fake_clock, count=2)
    device.launch(7.0, device=1)  # earlier work, which is not to count
    stop = _device.start_timer(torch.device(kind, 1))
    device.launch(2.0, device=1)
    assert stop() == pytest.approx(2.0)
    assert device.current == 0
    recorded = [entry for entry in device.log if entry[0] == "record"]
    assert recorded == [("record", 1), ("record", 1)]


def test_timer_on_mps(monkeypatch: pytest.MonkeyPatch, fake_clock: Any) -> None:
    device = fakes.install(monkeypatch, "mps", fake_clock)
    device.launch(7.0)
    stop = _device.start_timer(torch.device("mps"))
    device.launch(2.0)
    assert stop() == 2.0


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_peak_memory_since_the_reset(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = fakes.install(monkeypatch, kind, count=2)
    one = torch.device(kind, 1)
    device.allocate(9 * MIB, device=1)
    device.free(8 * MIB, device=1)
    _device.reset_peak_memory(one)
    device.allocate(4 * MIB, device=1)
    device.free(4 * MIB, device=1)
    device.allocate(2 * MIB, device=1)
    assert _device.peak_memory(one) == _device.PeakMemory(5 * MIB, 9 * MIB, 5 * MIB)


def test_peak_memory_untold() -> None:
    _device.reset_peak_memory(torch.device("cpu"))
    assert _device.peak_memory(torch.device("cpu")) == _device.PeakMemory(None, None, None)


def test_driver_memory_and_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    device = fakes.install(monkeypatch, "cuda", count=2)
    device.allocate(3 * MIB, device=1)
    assert _device.memory_info(1) == (device.total_memory - 3 * MIB, device.total_memory)
    assert _device.cuda_uuid(1) == fakes.UUID.format(1)
    for index in (-1, 2):
        assert _device.memory_info(index) is None
        assert _device.cuda_uuid(index) is None


def test_driver_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: object) -> None:
        raise RuntimeError("CUDA driver error")

    fakes.install(monkeypatch, "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    assert _device.memory_info(0) is None
    assert _device.cuda_uuid(0) is None


def test_mps_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = fakes.install(monkeypatch, "mps")
    device.allocate(5 * MIB)
    device.free(2 * MIB)
    assert _device.mps_memory() == (3 * MIB, 5 * MIB)
