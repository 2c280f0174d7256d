"""Blocks of any length: steps, cuts, and memory that stays flat."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCN

from conftest import module_state
from gnnprof import Profiler, _attribution, _open_ranges, _recorder
from gnnprof._events import Session
from gnnprof._open_ranges import session_may_end
from test_profiler import check_sums, row_of


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("options", "forwards", "recorded"),
    [
        ({}, 5, 5),
        ({"skip": 2}, 5, 3),
        ({"warmup": 2}, 5, 3),
        ({"active": 2}, 5, 2),
        ({"skip": 1, "warmup": 1, "active": 2}, 9, 2),
        ({"skip": 3}, 2, 0),
        ({"skip": 1, "warmup": 2}, 2, 0),
    ],
)
def test_only_the_active_steps_are_recorded(model, options, forwards, recorded):
    before = module_state(model)
    with Profiler(model, **options) as prof:
        for _ in range(forwards):
            model(X)
    assert module_state(model) == before
    assert prof.steps == recorded
    assert sum(row.calls for row in prof.rows if row.path == "" and row.op is None) == recorded
    if recorded:
        check_sums(prof)


def test_a_step_lasts_until_the_next_forward(model):
    with Profiler(model, skip=1, active=1) as prof:
        for _ in range(3):
            model(X).sum().backward()
    assert row_of(prof, None, "loss").calls == 1
    assert row_of(prof, "0").backward_calls == 2  # addmm and the transposed weight


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"skip": -1}, "skip=-1 must be at least 0"),
        ({"active": 0}, "active=0 must be at least 1"),
        ({"warmup": 1.5}, "warmup=1.5 is no number of steps"),
        ({"skip": True}, "skip=True is no number of steps"),
    ],
)
def test_bad_numbers_of_steps(model, options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        Profiler(model, **options)


def test_a_block_cut_into_sessions_adds_up_like_one(model, monkeypatch):
    monkeypatch.setattr(_recorder, "_FIRST_SESSION", 10)
    monkeypatch.setattr(_recorder, "_LATER_SESSION", 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Profiler(model, profile_memory=True) as prof:
        for _ in range(20):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
    check_sums(prof)
    assert prof.steps == 20
    assert {row_of(prof, path).calls for path in ("", "0", "1")} == {20}
    assert row_of(prof, None, "optimizer").calls == 40
    assert row_of(prof, "0").backward_calls == 40
    allocated = sum(r.allocated_memory for r in prof.rows if r.op is None)
    assert row_of(prof, "0").allocated_memory <= allocated
    for row in prof.rows:
        assert row.self_cpu_memory == row.allocated_memory - row.freed_memory


def test_a_graph_used_across_a_cut_still_finds_its_rows(model, monkeypatch):
    monkeypatch.setattr(_recorder, "_FIRST_SESSION", 3)
    monkeypatch.setattr(_recorder, "_LATER_SESSION", 3)
    with Profiler(model) as prof:
        first = model(X).sum()
        with torch.no_grad():
            model(X)  # the block is cut here, between forward and backward
        first.backward()
    check_sums(prof)
    assert row_of(prof, "0").backward_calls == 2


# A session that ends while a range of torch's is open lets that range write into freed memory.


@pytest.fixture
def cuts(monkeypatch) -> list[int]:
    """Cut after every third marker, and note after how many steps."""
    made: list[int] = []
    cut = _recorder.Recorder._cut

    def noted(self) -> None:
        made.append(self.steps)
        cut(self)

    monkeypatch.setattr(_recorder, "_FIRST_SESSION", 3)
    monkeypatch.setattr(_recorder, "_LATER_SESSION", 3)
    monkeypatch.setattr(_recorder.Recorder, "_cut", noted)
    return made


def test_a_cut_waits_until_the_users_range_has_ended(model, cuts):
    methods = record_function.__enter__, record_function.__exit__
    with Profiler(model) as prof:
        for _ in range(3):
            with record_function("epoch"), record_function("part"):
                for _ in range(4):
                    model(X)
        inner = record_function.__enter__
    assert cuts == [4, 8, 12]  # at the end of each epoch, never within one
    assert row_of(prof, "").calls == 12
    check_sums(prof)
    assert inner is not methods[0]
    assert (record_function.__enter__, record_function.__exit__) == methods


class Encodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def encode(self, x):
        return self.encoder(x)

    def forward(self, x):
        return self.encode(x)


@pytest.mark.parametrize(
    ("schedule", "calls", "note"),
    [
        ({"active": 2}, 3, "The whole block was recorded: a step begins with a forward of the"),
        ({"skip": 1}, 0, "Nothing was recorded: a step begins with a forward of the model itself"),
    ],
)
def test_where_only_parts_are_called_no_step_begins_and_it_says_so(schedule, calls, note):
    model = Encodes()
    with Profiler(model, **schedule) as prof:
        for _ in range(3):
            model.encode(X)
    assert prof.steps == 0
    assert sum(row.calls for row in prof.rows if row.path == "encoder" and not row.op) == calls
    assert note in str(prof)


def test_a_model_of_which_only_parts_are_called_is_cut_as_well(cuts):
    model = Encodes()
    with Profiler(model) as prof:
        for _ in range(5):
            model.encode(X).sum().backward()
    assert len(cuts) == 4
    assert row_of(prof, "encoder").calls == row_of(prof, "encoder.0").calls == 5
    assert row_of(prof, "encoder.0").backward_calls == 10
    check_sums(prof)


def test_models_in_nested_containers_have_steps(model):
    nested = nn.ModuleDict({"all": nn.ModuleList([model])})
    with Profiler(nested, skip=1, active=2) as prof:
        for _ in range(5):
            model(X)
    assert prof.steps == row_of(prof, "all.0").calls == 2


@pytest.mark.parametrize("options", [{"warmup": 2, "active": 3}, {"active": 3}, {"skip": 1}])
def test_recorded_steps_within_a_range_are_those_asked_for(model, options):
    with Profiler(model, **options) as prof:
        with record_function("epoch"):
            for _ in range(7):
                model(X)
        model(X)
    asked = options.get("active", 7)
    assert prof.steps == row_of(prof, "").calls == row_of(prof, "0").calls == asked
    check_sums(prof)


def test_autograds_own_ranges_are_never_cut_through(model, cuts):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            model(x), model(x)
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            model(gradient), model(gradient)
            return 2 * gradient

    with Profiler(model) as prof:
        for _ in range(3):
            Doubled.apply(X.clone().requires_grad_()).sum().backward()
    check_sums(prof)
    with Profiler(model) as prof:
        for _ in range(3):
            x = X.clone().requires_grad_()
            checkpoint(model, x, use_reentrant=True).sum().backward()
    check_sums(prof)
    assert cuts == []
    with Profiler(model) as prof:
        for _ in range(3):
            model(X).sum().backward()
    assert cuts == [1, 2]  # between two steps nothing is open


def test_another_thread_that_may_run_ops_puts_a_cut_off(model, cuts):
    go_on, ended = threading.Event(), []

    def work() -> None:
        while not ended:  # in this frame, as it would be in an op
            pass
        go_on.wait()

    other = threading.Thread(target=work, daemon=True)
    with Profiler(model) as prof:
        other.start()
        for _ in range(3):
            model(X)
        assert cuts == []
        ended.append(True)
        deadline = time.monotonic() + 10
        while not cuts and time.monotonic() < deadline:  # until the other thread waits
            model(X)
        assert cuts
        go_on.set()
        other.join()
    check_sums(prof)


def test_a_compiled_function_that_calls_the_plain_model_is_not_cut(model, cuts):
    seen = []

    def step(x):
        torch._dynamo.graph_break()
        x = model(x)
        seen.append(torch.compiler.is_compiling())
        return x + 1

    compiled = torch.compile(step, backend="eager")
    plain = torch.compiler.disable(step)
    compiled(X), plain(X)
    with Profiler(model):
        for _ in range(4):
            compiled(X)
    assert cuts == []
    with Profiler(model):
        for _ in range(4):
            plain(X)
    assert len(cuts) > 1
    assert False in seen


def test_the_end_of_a_block_waits_for_an_op_on_another_thread(model, monkeypatch):
    events = []

    def others_wait() -> bool:
        events.append("asked")
        return len(events) > 3

    stop = Session.stop
    monkeypatch.setattr(_open_ranges, "_PATIENCE", 60)
    monkeypatch.setattr(_open_ranges, "_others_wait", others_wait)
    monkeypatch.setattr(Session, "stop", lambda self: (events.append("ended"), stop(self)))
    with Profiler(model) as prof:
        model(X)
    if not prof._recorder._session.all_threads:
        pytest.skip("this torch records one thread only")
    assert events == ["asked"] * 4 + ["ended"]
    check_sums(prof)


@pytest.mark.parametrize(
    ("module", "function", "waits"),
    [
        ("threading", "wait", True),
        ("threading", "run", False),  # a C function may be the target
        ("ipykernel.heartbeat", "run", True),
        ("zmq.sugar.poll", "poll", True),
        ("user", "worker", False),
    ],
)
def test_which_threads_wait(module, function, waits):
    namespace = {"__name__": module}
    exec(f"import sys\ndef {function}(): return sys._getframe()", namespace)
    assert _open_ranges._waits(namespace[function]()) is waits


def test_the_end_of_a_block_does_not_wait_for_ever(model, monkeypatch):
    monkeypatch.setattr(_open_ranges, "_others_wait", lambda: False)
    began = time.monotonic()
    with Profiler(model) as prof:
        model(X)
    assert time.monotonic() - began < 5
    check_sums(prof)


@pytest.mark.parametrize("moment", ["_end_session", "_fold", "_begin_session"])
def test_ctrl_c_in_a_cut_leaves_a_profile_and_no_session(model, cuts, moment, monkeypatch):
    step = getattr(_recorder.Recorder, moment)

    def interrupted(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # where Python would handle it
        step(self)

    prof = Profiler(model)

    def block() -> None:
        with prof, monkeypatch.context() as patch:
            model(X)
            patch.setattr(_recorder.Recorder, moment, interrupted)
            for _ in range(3):
                model(X)

    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            block()
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert len(cuts) == 1
    assert row_of(prof, "").calls == 1
    check_sums(prof)
    with Profiler(model) as prof:
        model(X)
    check_sums(prof)


def test_the_backward_of_a_generator_is_found_after_later_backwards_and_a_cut(cuts):
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    with Profiler(nn.ModuleDict({"G": generator, "C": critic})) as prof:
        for _ in range(4):
            fake = generator(X)  # its nodes are older than those of the critic below
            critic(fake.detach()).mean().backward()
            critic(X).mean().backward()
            critic(fake).mean().backward()
    assert cuts
    assert row_of(prof, "G").backward_calls == 2 * 4  # addmm and the transposed weight
    check_sums(prof)


def test_forwards_that_never_run_backward_are_forgotten_at_last(model, cuts, monkeypatch):
    monkeypatch.setattr(_attribution, "_MOST_WAITING", 10)
    with Profiler(model) as prof:
        outputs = [model(X) for _ in range(20)]
        torch.stack(outputs).sum().backward()
    assert len(cuts) > 5
    attribution = prof._recorder.settle()
    assert len(attribution._waiting) <= 10
    assert 0 < row_of(prof, "0").backward_calls < 2 * 20
    check_sums(prof)


def test_a_thread_that_waits_is_told_from_one_that_runs_c_code():
    go_on = threading.Event()
    waiting = threading.Thread(target=go_on.wait, daemon=True)
    running = threading.Thread(target=time.sleep, args=(2,), daemon=True)  # it might be an op
    assert session_may_end(all_threads=True)
    waiting.start()
    time.sleep(0.2)
    assert session_may_end(all_threads=True)
    running.start()
    time.sleep(0.2)
    assert not session_may_end(all_threads=True)
    assert session_may_end(all_threads=False)
    go_on.set()
    running.join()


def test_a_block_in_which_other_threads_work_is_cut_once_at_most(model, cuts):
    def work() -> None:
        X.clone().sort()

    with Profiler(model) as prof:
        for _ in range(6):
            other = threading.Thread(target=work)
            other.start()
            other.join()
            model(X)
    if not prof._recorder._session.all_threads:
        pytest.skip("this torch records one thread only")
    assert cuts == [1]
    check_sums(prof)


def test_several_models_in_one_block(model):
    other = nn.Linear(4, 1)
    with Profiler(nn.ModuleDict({"generator": model, "critic": other}), active=4) as prof:
        for _ in range(3):
            other(model(X)).mean().backward()
    assert row_of(prof, "generator").calls == 2  # each forward of either is a step
    assert row_of(prof, "critic").calls == 2
    check_sums(prof)


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@pytest.mark.slow
def test_a_long_run_does_not_grow_the_process():
    torch.manual_seed(0)
    x, edge_index = torch.randn(30, 4), torch.randint(30, (2, 60))
    y = torch.randint(3, (30,))
    model = GCN(4, 4, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, edge_index), y).backward()
        optimizer.step()

    step()
    with Profiler(model) as prof:
        step()
    assert prof.rows
    gc.collect()
    before = _rss()
    with Profiler(model) as prof:
        for _ in range(2000):  # some 700,000 events: a gigabyte in one session
            step()
    assert _rss() - before < 20e6
    assert row_of(prof, "").calls == 2000
    check_sums(prof)


def test_what_the_profiler_did_is_told(model):
    with Profiler(model) as prof:
        model(X)
    overhead = prof._summary()["overhead"]
    assert overhead["markers"] == 3
    assert 0 < overhead["start_time"] < 5
    assert 0 < overhead["stop_time"] < 5


def test_the_peak_names_the_row_that_reached_it():
    model = nn.Sequential(nn.Linear(10, 1000, bias=False), nn.Linear(1000, 1000, bias=False))
    x = torch.ones(50, 10)
    with torch.no_grad(), Profiler(model, profile_memory=True) as prof:
        model(x)
    assert prof._summary()["peaks"] == {"memory": 2 * 50 * 1000 * 4, "memory_row": "1"}
    assert "Peak: 390.62 KiB on the host, in 1" in str(prof)


def test_a_model_that_was_not_called_is_told(model):
    with Profiler(model) as prof:
        torch.ones(3)
    assert "The model was not called in the block" in str(prof)
