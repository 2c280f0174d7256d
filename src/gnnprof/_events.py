"""The one module that knows torch's profiler: its sessions, its event attributes, its versions.

The rest of the package sees `Session` (start, stop), `Events` (plain tuples) and `Marker` (a named
range that costs about two microseconds while a session runs and half a microsecond otherwise).
"""

from __future__ import annotations

import gc
import operator
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig
from torch._C._profiler import _RecordFunctionFast as Marker
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler import KinetoStepTracker
from torch.profiler import ProfilerAction

if TYPE_CHECKING:
    from torch._C._autograd import _KinetoEvent

__all__ = [
    "BACKWARD_PREFIX",
    "Events",
    "HostEvent",
    "Marker",
    "MemoryEvent",
    "Session",
    "SessionRunningError",
    "no_other_session_starts",
    "others_work",
    "refuse_nested_session",
    "starting_session",
]

BACKWARD_PREFIX = "autograd::engine::evaluate_function: "
"""How the event of an autograd node's backward begins."""

_MEMORY_EVENT = "[memory]"
_OUT_OF_MEMORY_EVENT = "[OutOfMemory]"
_RUNTIME_ACTIVITIES = frozenset({"cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver"})


class HostEvent(NamedTuple):
    """A range on a host thread. Sorts by thread, then start, then the longest first: parents first.

    Times are nanoseconds of the profiler's clock. `launch` is the correlation id by which the
    kernels in `Events.kernels` name the op that launched them. In a session with a backward,
    `sequence` is the number of the next autograd node for an op in the forward, the node's own
    for its backward, and `forward_thread` the thread that created it; otherwise -1 and 0.
    """

    thread: int
    start: int
    negative_duration: int
    order: int
    name: str
    launch: int = 0
    sequence: int = -1
    forward_thread: int = 0

    @property
    def end(self) -> int:
        """Nanosecond at which the range ends."""
        return self.start - self.negative_duration


class MemoryEvent(NamedTuple):
    """Bytes allocated (positive) or freed (negative) at one moment on one thread."""

    thread: int
    start: int
    nbytes: int
    on_device: bool


class Events(NamedTuple):
    """What one session recorded, free of torch objects.

    Attributes:
        host: Ranges, sorted.
        memory: Allocations and frees, sorted by thread and time; empty unless asked for.
        kernels: Correlation id -> nanoseconds of device time launched by that op.
        unlinked_device_ns: Device time that names no op of this session.
        has_backward: Whether an autograd backward ran.
        kernel_count: Kernels, copies and fills on the device; several may name one op.
    """

    host: list[HostEvent]
    memory: list[MemoryEvent]
    kernels: dict[int, int]
    unlinked_device_ns: int
    has_backward: bool = False
    kernel_count: int = 0


class SessionRunningError(RuntimeError):
    """A torch profiler session cannot start because another one is on."""


_starting = threading.RLock()


@contextmanager
def no_other_session_starts() -> Iterator[None]:
    """Keep other threads from starting a session while one of ours is ended and the next begun."""
    with _starting:
        yield


@contextmanager
def starting_session(what: str) -> Iterator[None]:
    """Refuse a nested session, and keep other threads from starting one until the block is left.

    Args:
        what: Name of the tool that starts a session in the block, for the message.

    Raises:
        SessionRunningError: If a session is on.
    """
    with _starting:
        refuse_nested_session(what)
        yield


def refuse_nested_session(what: str) -> None:
    """Raise if a torch profiler session runs, or waits in its warm-up, in this process.

    torch 2.13 crashes the process, or silently empties the outer profile, when two sessions
    overlap: in one thread or in two, and also when the outer one is a scheduled profiler in its
    warm-up step, which torch's own flags do not show.

    Args:
        what: Name of the tool that is about to start a session, for the message.

    Raises:
        SessionRunningError: If a session is on.
    """
    here = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    running = here or autograd_profiler._is_profiler_enabled
    if running or _scheduled_profiler_warms_up():
        raise SessionRunningError(
            f"{what} cannot start: another torch profiler session is running in this process, and "
            "torch allows one at a time (a second one crashes it). Leave the other `with` block "
            "first (torch_profile, Profiler, profileit() on the CPU, torch.profiler.profile)."
        )


def _scheduled_profiler_warms_up() -> bool:
    # The step tracker knows that a torch.profiler.profile object is in use, not its state; the
    # search for the object takes some 50 ms and so is made only then.
    if "ProfilerStep" not in KinetoStepTracker._step_dict:
        return False
    return any(
        getattr(owner, "current_action", None) is ProfilerAction.WARMUP
        for owner in gc.get_objects()
        if type(owner) is torch.profiler.profile
    )


def others_work(host: Sequence[HostEvent], here: str) -> bool:
    """Tell whether threads have run ops that are neither autograd's nor the one with a range.

    Args:
        host: Sorted ranges, as in `Events`.
        here: Name of a range of the thread that does not count.
    """
    own = next((event.thread for event in host if event.name == here), None)
    first = 0
    while first < len(host):
        event = host[first]
        if event.thread != own and not event.name.startswith(BACKWARD_PREFIX):
            return True
        first = bisect_right(host, event.thread, lo=first, key=operator.itemgetter(0))
    return False


class Session:
    """One torch profiler session over everything that runs between `start` and `stop`.

    Args:
        accelerator: `'cuda'`, `'xpu'` or None: also record that device's kernels.
        memory: Also record allocations and frees. torch then records the starting thread only.

    Attributes:
        all_threads: Whether what other threads do is recorded too.
    """

    def __init__(self, accelerator: str | None, memory: bool) -> None:
        self._with_device = accelerator is not None
        self._with_memory = memory
        config = _ExperimentalConfig() if memory else _config_for_all_threads()
        self.all_threads = config is not None and not memory
        self._profiler = autograd_profiler.profile(
            use_kineto=True,
            use_device=accelerator,
            profile_memory=memory,
            experimental_config=config,
        )

    def start(self) -> None:
        """Begin recording."""
        self._profiler.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """End recording, after the accelerator has finished its queued work."""
        self._profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def export_chrome_trace(self, path: str) -> None:
        """Write what was recorded in Chrome's trace format."""
        self._profiler.export_chrome_trace(path)  # type: ignore[no-untyped-call]

    def events(self, *, goes_on: bool = False) -> Events:
        """Return what was recorded, as plain tuples.

        Args:
            goes_on: Whether another session follows, in which a backward of this one may run.
        """
        results = self._profiler.kineto_results
        with _collection_paused():
            raw = results.events() if results is not None else []
        return read_events(
            raw,
            with_device=self._with_device,
            with_memory=self._with_memory,
            goes_on=goes_on,
        )


def _config_for_all_threads() -> _ExperimentalConfig | None:
    """None where this torch records the starting thread only.

    Not used together with memory: torch tells allocations only to a session of one thread.
    """
    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # torch 2.6
        return None


def read_events(
    raw: Sequence[_KinetoEvent],
    *,
    with_device: bool,
    with_memory: bool,
    goes_on: bool = False,
) -> Events:
    """Turn torch's event objects into plain tuples.

    Host events that only mirror a call into the driver (`cudaLaunchKernel`) are nested into the op
    that made the call, as torch.profiler does it; without such an op they are left out, because
    their time is a second view of the time of the calling thread.

    Args:
        raw: Kineto events, as a session's result lists them.
        with_device: Whether the session recorded an accelerator.
        with_memory: Whether the session recorded allocations.
        goes_on: Read the sequence numbers even without a backward: it may come in a later session.
    """
    ranges: list[_KinetoEvent] = []
    memory: list[MemoryEvent] = []
    device: list[_KinetoEvent] = []
    with _collection_paused():
        if with_device or with_memory:
            for event in raw:
                _sort_in(event, ranges, memory, device)
        else:
            ranges = list(compress(raw, map(operator.not_, _column(raw, "is_async"))))
        host, has_backward = _host_events(ranges, with_device, goes_on)
        kernels, unlinked, count = _link_device_events(device, host)
        host.sort()
        memory.sort()
        return Events(host, memory, kernels, unlinked, has_backward, count)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Keep the garbage collector from searching thousands of new events, none of them garbage.

    Its searches take more than half of the time of reading them otherwise.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _sort_in(
    event: _KinetoEvent,
    ranges: list[_KinetoEvent],
    memory: list[MemoryEvent],
    device: list[_KinetoEvent],
) -> None:
    """Put one event where it belongs; leave out what is no range of the host's own."""
    name = event.name()
    on_device = event.device_type() != DeviceType.CPU
    if name == _MEMORY_EVENT:
        nbytes = event.nbytes()  # type: ignore[attr-defined]  # missing in torch's stubs
        memory.append(MemoryEvent(event.start_thread_id(), event.start_ns(), nbytes, on_device))
    elif on_device or event.linked_correlation_id():
        device.append(event)
    elif not (event.is_async() or name == _OUT_OF_MEMORY_EVENT or _mirrors_driver_call(event)):
        ranges.append(event)


def _mirrors_driver_call(event: _KinetoEvent) -> bool:
    if hasattr(event, "activity_type"):
        return event.activity_type() in _RUNTIME_ACTIVITIES
    return event.name().startswith("cuda")  # torch 2.6


def _host_events(
    ranges: Sequence[_KinetoEvent], with_device: bool, with_sequences: bool
) -> tuple[list[HostEvent], bool]:
    """Return the events, and whether a backward is among them."""
    names = list(_column(ranges, "name"))
    has_backward = any(name.startswith(BACKWARD_PREFIX) for name in set(names))
    with_sequences |= has_backward
    count = len(ranges)
    columns = zip(
        _column(ranges, "start_thread_id"),
        _column(ranges, "start_ns"),
        map(operator.neg, _column(ranges, "duration_ns")),
        range(count),
        names,
        _column(ranges, "correlation_id") if with_device else repeat(0, count),
        _column(ranges, "sequence_nr") if with_sequences else repeat(-1, count),
        _column(ranges, "fwd_thread_id") if with_sequences else repeat(0, count),
        strict=True,
    )
    return list(map(_new_host_event, columns)), has_backward


_new_host_event: Callable[[tuple[Any, ...]], HostEvent] = partial(tuple.__new__, HostEvent)
"""`HostEvent._make` in a third of its time, which shows with thousands of events."""


def _column(events: Sequence[_KinetoEvent], method: str) -> Iterator[Any]:
    """What a method of each event returns, in a third of the time of a loop over the events.

    The C function under pybind11's wrapper is called directly. All events are of one class.
    """
    if not events:
        return iter(())
    wrapper = getattr(type(events[0]), method)
    return map(getattr(wrapper, "__func__", wrapper), events)


def _link_device_events(
    device: list[_KinetoEvent], host: list[HostEvent]
) -> tuple[dict[int, int], int, int]:
    """Sum kernel time per launching op; append driver calls to `host` under their op's thread.

    Returns:
        Nanoseconds by launching op, nanoseconds that name none, and the number of kernels.
    """
    thread_of = {event.launch: event.thread for event in host}
    kernels: dict[int, int] = {}
    unlinked = count = 0
    for event in device:
        launch = event.linked_correlation_id()
        if event.device_type() != DeviceType.CPU:
            if event.is_user_annotation():
                continue  # a range of record_function on the device's time line, not a kernel
            count += 1
            if launch in thread_of:
                kernels[launch] = kernels.get(launch, 0) + event.duration_ns()
            else:
                unlinked += event.duration_ns()
        elif launch in thread_of:
            start, duration = event.start_ns(), event.duration_ns()
            host.append(HostEvent(thread_of[launch], start, -duration, len(host), event.name()))
    return kernels, unlinked, count
