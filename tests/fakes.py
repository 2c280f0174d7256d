"""Stand-ins behind ``torch.cuda``, ``torch.xpu`` and ``torch.mps``.

    device = fakes.install(monkeypatch, "cuda", fake_clock, count=2)
    device.launch(3.0)            # three seconds of work queued on the current device
    device.allocate(64 * MIB)     # memory that the allocator has to count
    device.log                    # what was asked of it: [("synchronize", 0), ...]

A fake has a time line: `launch` returns at once, `synchronize` moves the clock to the end of the
queued work, and an event carries the time at which the device reaches it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

MIB = 2**20
UUID = "12345678-1234-1234-1234-1234567890{:02x}"


class Clock:
    """Seconds that pass only by `advance`; the `fake_clock` fixture's shape."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeMemory:
    """One device's allocator: bytes now and at their highest."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self.allocated_peak = self.reserved_peak = 0

    def allocate(self, nbytes: int) -> None:
        self.allocated += nbytes
        self.reserved = max(self.reserved, self.allocated)
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def free(self, nbytes: int) -> None:
        self.allocated -= nbytes  # reserved stays: a caching allocator gives nothing back

    def reset_peak(self) -> None:
        self.allocated_peak, self.reserved_peak = self.allocated, self.reserved


class FakeAccelerator:
    """What `gnnprof` asks of ``torch.cuda`` or ``torch.xpu``, and of ``torch.mps``."""

    def __init__(self, kind: str, clock: Any, count: int) -> None:
        self.kind = kind
        self.clock = clock
        self.count = count
        self.current = 0
        self.in_bad_fork = False
        self.log: list[tuple[Any, ...]] = []
        self.memory: defaultdict[int, FakeMemory] = defaultdict(FakeMemory)
        self.total_memory = 80 * 1024 * MIB
        self._busy_until: defaultdict[int, float] = defaultdict(float)
        self.nvtx = SimpleNamespace(
            range_push=lambda name: self.log.append(("range_push", name)),
            range_pop=lambda: self.log.append(("range_pop",)),
        )

    # -- what a test plants ------------------------------------------------------------------------

    def launch(self, seconds: float, device: int | None = None) -> None:
        index = self.index_of(device)
        self._busy_until[index] = max(self._busy_until[index], self.clock.now) + seconds

    def allocate(self, nbytes: int, device: int | None = None) -> None:
        self.memory[self.index_of(device)].allocate(nbytes)

    def free(self, nbytes: int, device: int | None = None) -> None:
        self.memory[self.index_of(device)].free(nbytes)

    def calls(self, name: str) -> int:
        return sum(entry[0] == name for entry in self.log)

    # -- what torch.cuda offers --------------------------------------------------------------------

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return self.in_bad_fork

    def device_count(self) -> int:
        return self.count

    def current_device(self) -> int:
        return self.current

    def synchronize(self, device: Any = None) -> None:
        if self.in_bad_fork:
            raise RuntimeError("Cannot re-initialize the device in forked subprocess")
        index = self.index_of(device)
        self.log.append(("synchronize", index))
        self.clock.now = max(self.clock.now, self._busy_until[index])

    def Event(self, enable_timing: bool = False) -> FakeEvent:
        assert enable_timing, "an event without timing has no elapsed time"
        return FakeEvent(self)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self.current = self.current, self.index_of(device)
        try:
            yield
        finally:
            self.current = before

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        memory = self.memory[self.index_of(device)]
        return {
            "allocated_bytes.all.current": memory.allocated,
            "allocated_bytes.all.peak": memory.allocated_peak,
            "reserved_bytes.all.peak": memory.reserved_peak,
            "active_bytes.all.peak": memory.allocated_peak,
        }

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self.log.append(("reset_peak_memory_stats", self.index_of(device)))
        self.memory[self.index_of(device)].reset_peak()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        used = self.memory[self.index_of(device)].reserved
        return self.total_memory - used, self.total_memory

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        index = self.index_of(device)
        return SimpleNamespace(
            name=f"Fake {self.kind} {index}",
            uuid=UUID.format(index),
            total_memory=self.total_memory,
        )

    def cudart(self) -> SimpleNamespace:
        return SimpleNamespace(
            cudaProfilerStart=lambda: self.log.append(("cudaProfilerStart",)),
            cudaProfilerStop=lambda: self.log.append(("cudaProfilerStop",)),
        )

    # -- what torch.mps offers beside --------------------------------------------------------------

    def current_allocated_memory(self) -> int:
        return self.memory[0].allocated

    def driver_allocated_memory(self) -> int:
        return self.memory[0].reserved

    def index_of(self, device: Any) -> int:
        if device is None:
            return self.current
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return self.current if index is None else index

    def time_line(self, index: int) -> float:
        """When the device reaches what is queued now."""
        return max(self.clock.now, self._busy_until[index])


class FakeEvent:
    def __init__(self, accelerator: FakeAccelerator) -> None:
        self._accelerator = accelerator
        self.device = -1
        self.time = float("nan")

    def record(self, stream: Any = None) -> None:
        self.device = self._accelerator.current
        self.time = self._accelerator.time_line(self.device)
        self._accelerator.log.append(("record", self.device))

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.device == end.device, "events of two devices have no elapsed time"
        assert end.time <= self._accelerator.clock.now, "the end event has not been reached yet"
        return (end.time - self.time) * 1000


_OFFERED = {
    "cuda": (
        "is_available is_initialized _is_in_bad_fork device_count current_device synchronize Event "
        "device memory_stats reset_peak_memory_stats mem_get_info get_device_properties cudart nvtx"
    ),
    "xpu": (
        "is_available is_initialized _is_in_bad_fork device_count current_device synchronize Event "
        "device memory_stats reset_peak_memory_stats mem_get_info get_device_properties"
    ),
    "mps": (
        "is_available _is_in_bad_fork device_count synchronize current_allocated_memory "
        "driver_allocated_memory"
    ),
}


def install(
    monkeypatch: pytest.MonkeyPatch, kind: str, clock: Any = None, *, count: int = 1
) -> FakeAccelerator:
    """Put a fake accelerator behind torch for the rest of the test.

    Args:
        monkeypatch: The test's fixture.
        kind: 'cuda', 'xpu' or 'mps'.
        clock: The `fake_clock` fixture, or None for a clock that only the fake moves.
        count: Number of devices.
    """
    fake = FakeAccelerator(kind, clock or Clock(), count)
    module = getattr(torch, kind)
    for name in _OFFERED[kind].split():
        monkeypatch.setattr(module, name, getattr(fake, name), raising=False)
    if kind == "mps":
        monkeypatch.setattr(torch.backends.mps, "is_available", fake.is_available)
    if kind == "cuda":
        has_context = lambda index: index == 0 or index in fake.memory  # noqa: E731
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", has_context, raising=False)
    return fake


class DeviceTensor(torch.Tensor):
    """A CPU tensor that says it lies on a device, made by `on`."""

    claimed: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return getattr(self, "claimed", torch.device("cpu"))

    def get_device(self) -> int:
        device = self.device
        return -1 if device.type == "cpu" else int(device.index or 0)


def on(device: str, tensor: torch.Tensor | None = None) -> DeviceTensor:
    """Make a tensor that claims to lie on a device, such as 'cuda:1'."""
    made = (torch.ones(3) if tensor is None else tensor).as_subclass(DeviceTensor)
    made.claimed = torch.device(device)
    return made


def op_row(key: str, self_cpu: float, cpu: float, count: int, **device: float) -> Any:
    """A row of key_averages, in microseconds."""
    figures: dict[str, Any] = {
        "self_cpu_time_total": self_cpu,
        "cpu_time_total": cpu,
        "self_device_time_total": 0.0,
        "device_time_total": 0.0,
        "is_user_annotation": False,
    }
    return SimpleNamespace(key=key, count=count, **figures | device)


class FakeProfile:
    """A stopped profile of a device: an op and the kernel that it launched."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __enter__(self) -> FakeProfile:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def key_averages(self) -> Any:
        cpu, cuda = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
        return FakeRows(
            [
                op_row("aten::slow_host", 90.0, 90.0, 1, device_type=cpu),
                op_row("sgemm", 0.0, 0.0, 1, self_device_time_total=50.0, device_type=cuda),
                op_row("aten::mm", 10.0, 10.0, 1, self_device_time_total=50.0, device_type=cpu),
            ]
        )

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}")


class FakeRows(list[Any]):
    def table(self, sort_by: str) -> str:
        ordered = sorted(self, key=lambda op: getattr(op, sort_by), reverse=True)
        return f"{sort_by}: {' '.join(op.key for op in ordered)}"
