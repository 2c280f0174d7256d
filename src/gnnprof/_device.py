"""The one module that synchronises, reads clocks and peak memory, and picks profiler activities.

Rules for whoever changes it:

* Nothing is decided at import. Every function looks at ``torch.cuda``, ``torch.xpu`` and
  ``torch.mps`` when it is called, so that a test can put fakes there.
* Nobody else in the package asks whether a device is available, waits for one or reads a clock;
  the exception is ``nvtx.py``, which has to read ``torch.cuda`` itself.
* Inside the package time is in seconds and memory in bytes. What a backend cannot tell is
  ``None``.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, SupportsIndex

import torch
from torch.backends import mps as mps_backend
from torch.profiler import ProfilerActivity

#: Seconds on a monotonic clock. Called as ``_device.clock()``, so that a test can replace it.
clock: Callable[[], float] = time.perf_counter

_CPU_INFO = Path("/proc/cpuinfo")  # Linux only

#: Backends whose allocator counts peaks and whose events carry device time.
EVENT_BACKENDS = ("cuda", "xpu")


# Hardware does not come and go within a process, and `torch.cuda.is_available` alone costs a
# microsecond of the three that a timer may cost: the answer is kept, with the functions that gave
# it, so that replaced functions are asked anew.
_Available = Callable[[], bool] | None
_answer: tuple[_Available, _Available, _Available, str | None] = (None, None, None, None)


def accelerator() -> str | None:
    """Name the accelerator of this process: 'cuda', 'xpu', 'mps', or None without one."""
    cuda, xpu, mps, kind = _answer
    if (
        cuda is torch.cuda.is_available
        and xpu is torch.xpu.is_available
        and mps is mps_backend.is_available
    ):
        return kind
    return _ask_for_accelerator()


def _ask_for_accelerator() -> str | None:
    global _answer
    cuda, xpu = torch.cuda.is_available, torch.xpu.is_available
    mps = mps_backend.is_available
    kind = "cuda" if cuda() else "xpu" if xpu() else "mps" if mps() else None
    _answer = cuda, xpu, mps, kind
    return kind


def backend(kind: str) -> ModuleType:
    """Give the torch module of a device type: ``torch.cuda`` for 'cuda'."""
    module: ModuleType = getattr(torch, kind)
    return module


def synchronize(device: torch.device | None = None) -> None:
    """Wait until the accelerator has finished all queued work.

    Args:
        device: The device to wait for; by default the current device of this process's
            accelerator and every other device of it that the process has work on. A CPU device
            has no queue, so there is nothing to wait for.
    """
    if device is None:
        kind = accelerator()
        if kind is not None and not _forked_without(kind):
            _synchronize_all(kind)
    elif device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        backend(device.type).synchronize(device)


def _forked_without(kind: str) -> bool:
    """Tell whether this process was forked from one that already used the accelerator.

    Such a child (a data loader's worker, for one) has no work on the device, and asking the
    device anything raises.
    """
    in_bad_fork: Callable[[], bool] | None = getattr(backend(kind), "_is_in_bad_fork", None)
    return in_bad_fork is not None and in_bad_fork()


def _synchronize_all(kind: str) -> None:
    module = backend(kind)
    module.synchronize()
    count = module.device_count() if kind in EVENT_BACKENDS else 1
    if count > 1:
        for index in range(count):
            if index != module.current_device() and _has_context(kind, index):
                module.synchronize(index)


def _has_context(kind: str, index: int) -> bool:
    """Tell whether the process has used a device, so that waiting for it starts nothing on it.

    Waiting for a CUDA device that was not used would put a context of some hundred megabytes
    there. An XPU platform shares one context among its devices.
    """
    if kind != "cuda":
        return True
    has_primary_context: Callable[[int], bool] | None = getattr(
        torch._C, "_cuda_hasPrimaryContext", None
    )
    return has_primary_context is not None and has_primary_context(index)


def profiler_activities(accelerator: str | None) -> list[ProfilerActivity]:
    """List what a profiler session has to record: the CPU, and the accelerator if it can be.

    Args:
        accelerator: 'cuda', 'xpu', 'mps' or None. MPS has no profiler activity in torch.
    """
    activities = [ProfilerActivity.CPU]
    if accelerator in EVENT_BACKENDS:
        activities.append(getattr(ProfilerActivity, accelerator.upper()))
    return activities


def resolve_device(device: Any) -> torch.device:
    """Turn any way to name a device into a `torch.device`, with its index filled in.

    Args:
        device: An index of the accelerator (any integer type), a name such as 'cpu', 'cuda' or
            'cuda:1', or a `torch.device`. A name without an index means the current device.

    Raises:
        TypeError: If `device` is none of these.
        ValueError: If the name or the index is not a device's.
    """
    if isinstance(device, (str, torch.device)):
        return _with_index(_named_device(device))
    if isinstance(device, bool) or not isinstance(device, SupportsIndex):
        raise TypeError(
            f"device={device!r} is a {type(device).__name__}; give an index, a name such as "
            f"'cuda:1', or a torch.device"
        )
    index = operator.index(device)
    if index < 0:
        raise ValueError(f"device={index} is negative; give the index of a device, from 0 on")
    # A bare index means the accelerator, and CUDA where there is none, as it always has in torch.
    return torch.device(accelerator() or "cuda", index)


def _named_device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device={device!r} names no device; give a name such as 'cpu', 'cuda' or 'cuda:1'"
        ) from error


def _with_index(device: torch.device) -> torch.device:
    if device.index is not None or device.type == "cpu":
        return device
    # Asking a backend that is not in use for its current device would start it.
    in_use = device.type in EVENT_BACKENDS and backend(device.type).is_initialized()
    return torch.device(device.type, backend(device.type).current_device() if in_use else 0)


def environment(device: torch.device) -> dict[str, str]:
    """Tell what a measured number depends on beside the program: versions, device, threads."""
    pyg = sys.modules.get("torch_geometric")  # not imported here: it takes seconds
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if pyg is not None:
        versions["torch_geometric"] = pyg.__version__
    return {
        **versions,
        "platform": platform.platform(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": str(torch.get_num_threads()),
    }


def device_name(device: torch.device) -> str:
    """Give the maker's name of a device, or its type where nothing tells more."""
    if device.type in EVENT_BACKENDS:
        return str(backend(device.type).get_device_name(device))
    if device.type == "cpu" and _CPU_INFO.exists():
        for line in _CPU_INFO.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or device.type


def release_freed_memory() -> None:
    """Give host memory that was freed back to the operating system, where the C library can.

    glibc keeps what it frees for the process; a long profile would look like a leak.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # no glibc: macOS, musl, Windows
        return None
    return trim


def start_timer(device: torch.device) -> Callable[[], float]:
    """Start timing work on one device.

    The device is idle at the start and at the end. On CUDA and XPU the time lies between two
    events in the device's current stream, elsewhere between two readings of `clock`.

    Returns:
        A function that stops the timer and gives the seconds since the start.
    """
    synchronize(device)
    if device.type not in EVENT_BACKENDS:
        start = clock()

        def stop_clock() -> float:
            synchronize(device)
            return clock() - start

        return stop_clock

    begin = _record_event(device)

    def stop_events() -> float:
        synchronize()  # the event waits for no other stream or device
        end = _record_event(device)
        synchronize(device)
        return float(begin.elapsed_time(end)) / 1000  # events tell milliseconds

    return stop_events


def _record_event(device: torch.device) -> Any:
    module = backend(device.type)
    event = module.Event(enable_timing=True)
    with module.device(device):
        event.record()
    return event


@dataclass(frozen=True)
class PeakMemory:
    """Highest memory of one device since `reset_peak_memory`, in bytes; None where untold.

    Attributes:
        allocated: Bytes in live tensors.
        reserved: Bytes that the caching allocator held from the driver.
        active: Bytes in live tensors and in blocks not yet free to reuse on another stream.
    """

    allocated: int | None
    reserved: int | None
    active: int | None

    def or_higher(self, other: PeakMemory) -> PeakMemory:
        """Return the higher one of each figure; a known one is higher than none."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        known = [[figure for figure in pair if figure is not None] for pair in pairs]
        return PeakMemory(*(max(pair, default=None) for pair in known))


def reset_peak_memory(device: torch.device) -> None:
    """Start a device's peak counters anew at what is in use now.

    The counters are the process's own: torch can neither keep a second set nor put the earlier
    peaks back.
    """
    if device.type in EVENT_BACKENDS:
        backend(device.type).reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> PeakMemory:
    """Read the peaks since `reset_peak_memory` from the device's caching allocator."""
    if device.type not in EVENT_BACKENDS:
        return PeakMemory(None, None, None)
    statistics = backend(device.type).memory_stats(device)
    return PeakMemory(
        allocated=statistics.get("allocated_bytes.all.peak"),
        reserved=statistics.get("reserved_bytes.all.peak"),
        active=statistics.get("active_bytes.all.peak"),
    )


def memory_info(index: int) -> tuple[int, int] | None:
    """Ask the driver for the free and total bytes of a CUDA device, all processes together.

    Returns:
        ``(free, total)``, or None if there is no such device or the driver does not tell.
    """
    if not _is_cuda_device(index):
        return None
    try:
        free, total = torch.cuda.mem_get_info(index)
    except (AssertionError, RuntimeError):  # torch without CUDA, a driver that refuses
        return None
    return free, total


def cuda_uuid(index: int) -> str | None:
    """Give the UUID of a CUDA device, by which the driver's tools know the same card.

    Returns:
        The UUID without ``GPU-``, or None if there is no such device or torch does not tell.
    """
    if not _is_cuda_device(index):
        return None
    try:
        properties = torch.cuda.get_device_properties(index)
    except (AssertionError, RuntimeError):
        return None
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None else str(uuid)


def _is_cuda_device(index: int) -> bool:
    return accelerator() == "cuda" and 0 <= index < torch.cuda.device_count()


def mps_memory() -> tuple[int, int]:
    """Read what MPS has allocated now: bytes in live tensors, bytes held from the driver."""
    return torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
