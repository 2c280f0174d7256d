"""Reading torch's events, from fakes with planted device links, and refusing a second session."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.profiler import profile, schedule

from gnnprof._events import (
    BACKWARD_PREFIX,
    HostEvent,
    Marker,
    MemoryEvent,
    Session,
    others_work,
    read_events,
    refuse_nested_session,
)


@dataclass
class FakeEvent:
    """The methods of torch's event objects that are read."""

    label: str
    start: int = 0
    end: int = 10
    thread: int = 1
    device: DeviceType = DeviceType.CPU
    correlation: int = 0
    linked: int = 0
    bytes: int = 0
    activity: str = "cpu_op"
    annotation: bool = False
    crosses_threads: bool = False

    def name(self) -> str:
        return self.label

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.end - self.start

    def start_thread_id(self) -> int:
        return self.thread

    def device_type(self) -> DeviceType:
        return self.device

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def nbytes(self) -> int:
        return self.bytes

    def activity_type(self) -> str:
        return self.activity

    def is_user_annotation(self) -> bool:
        return self.annotation

    def is_async(self) -> bool:
        return self.crosses_threads


def kernel(duration: int, linked: int, device: DeviceType = DeviceType.CUDA, **more) -> FakeEvent:
    return FakeEvent(
        "kernel", 500, 500 + duration, device=device, linked=linked, activity="kernel", **more
    )


@pytest.mark.parametrize("device", [DeviceType.CUDA, DeviceType.XPU])
def test_kernels_are_summed_per_launching_op(device):
    raw = [
        FakeEvent("aten::mm", 0, 100, correlation=7),
        kernel(30, 7, device),
        kernel(12, 7, device),
        kernel(5, 99, device),  # launched before the session
        kernel(1000, 7, device, annotation=True),  # a record_function range drawn on the device
    ]
    events = read_events(raw, with_device=True, with_memory=False)
    assert events.kernels == {7: 42}
    assert events.unlinked_device_ns == 5
    assert events.kernel_count == 3
    assert [event.name for event in events.host] == ["aten::mm"]


@pytest.mark.parametrize(
    ("other", "works"),
    [("aten::sort", True), (f"{BACKWARD_PREFIX}MulBackward0", False)],
)
def test_work_of_other_threads_is_told_from_autograds(other, works):
    def event(thread, start, name):
        return HostEvent(thread, start, -10, start, name)

    here = [event(3, 0, "block"), event(3, 5, "aten::mm"), event(3, 20, "aten::mm")]
    assert not others_work(here, "block")
    there = [event(1, 7, other), event(1, 9, "aten::mul"), event(7, 8, other)]
    assert others_work(sorted(here + there), "block") == works


def test_driver_calls_nest_in_their_op_whatever_thread_they_claim():
    raw = [
        FakeEvent("aten::mm", 0, 100, thread=1, correlation=7),
        FakeEvent("cudaLaunchKernel", 20, 30, thread=4242, linked=7, activity="cuda_runtime"),
        FakeEvent("cudaDeviceSynchronize", 200, 300, thread=4242, activity="cuda_runtime"),
    ]
    events = read_events(raw, with_device=True, with_memory=False)
    assert [(event.name, event.thread) for event in events.host] == [
        ("aten::mm", 1),
        ("cudaLaunchKernel", 1),
    ]


def test_parents_come_before_their_children():
    raw = [
        FakeEvent("child", 0, 10),
        FakeEvent("parent", 0, 50),
        FakeEvent("other", 5, 7, thread=0),
    ]
    events = read_events(raw, with_device=False, with_memory=False)
    assert [event.name for event in events.host] == ["other", "parent", "child"]
    assert events.host[1] == HostEvent(1, 0, -50, 1, "parent", 0)


def test_memory_events_are_told_apart_by_device():
    raw = [
        FakeEvent("[memory]", 5, 5, bytes=400),
        FakeEvent("[memory]", 3, 3, bytes=-64, device=DeviceType.CUDA),
        FakeEvent("[OutOfMemory]", 6, 6, bytes=1),
        FakeEvent("async", 0, 9, crosses_threads=True),
    ]
    events = read_events(raw, with_device=False, with_memory=True)
    assert events.memory == [MemoryEvent(1, 3, -64, True), MemoryEvent(1, 5, 400, False)]
    assert events.host == []


def test_a_real_session_yields_ops_and_memory():
    session = Session(None, memory=True)
    session.start()
    with Marker("mine"):
        torch.ones(1000)
    session.stop()
    events = session.events()
    assert [event.name for event in events.host][:2] == ["mine", "aten::ones"]
    assert sum(event.nbytes for event in events.memory) == 0  # freed again
    assert max(event.nbytes for event in events.memory) == 4000


def test_sessions_record_other_threads():
    session = Session(None, memory=False)
    session.start()
    thread = threading.Thread(target=torch.ones, args=(3,))
    thread.start()
    thread.join()
    torch.zeros(3)
    session.stop()
    threads = {event.name: event.thread for event in session.events().host}
    assert threads["aten::ones"] != threads["aten::zeros"]


def test_refuses_in_every_state_of_a_session():
    refuse_nested_session("it")
    with profile(), pytest.raises(RuntimeError, match="it cannot start: another torch profiler"):
        refuse_nested_session("it")
    refuse_nested_session("it")


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_refuses_a_scheduled_profiler_in_its_warm_up():
    refused = []
    with profile(schedule=schedule(wait=1, warmup=1, active=1)) as outer:
        for _ in range(3):
            try:
                refuse_nested_session("it")
            except RuntimeError:
                refused.append(outer.current_action.name)
            outer.step()
    assert refused == ["WARMUP", "RECORD_AND_SAVE"]


def test_refuses_a_session_of_another_thread():
    session = Session(None, memory=False)
    session.start()
    seen = []

    def attempt() -> None:
        try:
            refuse_nested_session("it")
        except RuntimeError as error:
            seen.append(str(error))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    session.stop()
    assert len(seen) == 1
