"""Fixtures every test shares: a clock that only moves when told, proof that nothing is left."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault(
    "KINETO_LOG_LEVEL", "99"
)  # before torch: two stderr lines per session otherwise

import pytest
import torch
from torch.nn.modules import module as nn_module

from gnnprof import Profiler
from gnnprof._layer_table import self_time

_HOOK_DICTS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_propagate_forward_pre_hooks",
    "_propagate_forward_hooks",
    "_message_forward_pre_hooks",
    "_message_forward_hooks",
    "_aggregate_forward_pre_hooks",
    "_aggregate_forward_hooks",
    "_message_and_aggregate_forward_pre_hooks",
    "_message_and_aggregate_forward_hooks",
    "_edge_update_forward_pre_hooks",
    "_edge_update_forward_hooks",
)


class FakeClock:
    """Seconds that pass only by `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Replace the one clock of the package."""
    clock = FakeClock()
    monkeypatch.setattr("gnnprof._device.clock", clock)
    return clock


def module_state(model: torch.nn.Module) -> list[tuple[object, ...]]:
    """What a profiler could change in a model: hooks, instance attributes, flags, gradients."""
    state: list[tuple[object, ...]] = []
    for path, module in model.named_modules():
        hooks = tuple((name, tuple(vars(module).get(name, ()))) for name in _HOOK_DICTS)
        attributes = tuple(sorted(vars(module)))
        compiled = id(vars(module).get("_compiled_call_impl"))
        state.append((path, module.training, hooks, attributes, compiled))
    for name, parameter in model.named_parameters():
        state.append((name, parameter.requires_grad, id(parameter.grad)))
    return state


def _process_state() -> dict[str, object]:
    return {
        "cwd": os.getcwd(),
        "tracer": sys.gettrace(),
        "python profiler": sys.getprofile(),
        # sympy, which torch imports on its first need, adds a filter for a category of its own.
        "warning filters": [f for f in warnings.filters if "sympy" not in f[2].__module__],
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "torch profiler": torch.autograd.profiler._is_profiler_enabled,
        "global forward hooks": dict(nn_module._global_forward_hooks),
        "global forward pre-hooks": dict(nn_module._global_forward_pre_hooks),
        "std streams": (sys.stdout, sys.stderr)
        if "pytest" not in type(sys.stdout).__module__
        else None,
    }


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    """Fail a test that leaves anything changed in the process."""
    before = _process_state()
    threads = set(threading.enumerate())
    yield
    after = _process_state()
    changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    assert not changed, f"left behind: {changed}"
    left = [t for t in set(threading.enumerate()) - threads if not t.daemon]
    assert not left, f"threads left running: {left}"


@pytest.fixture(autouse=True)
def sums_add_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which the rows of any profile do not add up to the profiled time."""
    finished: list[Profiler] = []
    leave = Profiler.__exit__

    def leave_and_remember(self: Profiler, *exc_info: Any) -> None:
        leave(self, *exc_info)
        finished.append(self)

    monkeypatch.setattr(Profiler, "__exit__", leave_and_remember)
    yield
    for prof in finished:
        try:
            rows = prof.rows
        except RuntimeError:  # a test of a session that was lost, or that was entered again
            continue
        own = [self_time(row) for row in rows if row.op is None]
        assert sum(own) == pytest.approx(prof.total_time, abs=1e-7), "the rows do not add up"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device or a library that is not here."""
    missing = {
        "cuda": None if torch.cuda.is_available() else "no CUDA device",
        "xpu": None if torch.xpu.is_available() else "no XPU device",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
