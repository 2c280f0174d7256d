"""Tells whether a profiler session may be ended in the middle of a program.

A range of torch's that is open when a session ends writes its own end into memory that the session
has given back, when it closes later: the process dies, or its heap is damaged (seen with torch
2.13). Which C++ ranges are open cannot be asked, so what could have opened one is looked at: Python
ranges (`record_function`, which optimizers and DistributedDataParallel use too), autograd and
compiled functions on this thread's stack, and other threads that may be in the middle of an op.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.autograd.profiler import record_function

_AUTOGRAD = "torch.autograd"

_COMPILED = "torch._dynamo.eval_frame"
"""Where the function lies that `torch.compile` returns; it holds the variable `callback`."""

_PATIENCE = 0.05
"""Seconds that the end of a block waits for other threads to come out of their ops."""

_WAITING = frozenset(
    {
        *("threading", "queue", "selectors", "socket", "ssl", "asyncio", "concurrent"),
        *("multiprocessing", "subprocess"),
    }
)
"""Packages in which a thread waits for something, unless `run` has called a C function."""

_NOTEBOOK = frozenset({"zmq", "ipykernel", "tornado"})
"""Packages of a notebook's server, whose threads run no op of torch."""

_COMPILE_WORKERS = "torch._inductor.compile_worker"
"""Where a thread of Inductor waits for its processes for good."""

_lock = threading.Lock()
_watchers: list[Callable[[], None]] = []
_open: set[int] = set()
_plain_enter, _plain_exit = record_function.__enter__, record_function.__exit__


@contextmanager
def ranges_watched(all_closed: Callable[[], None]) -> Iterator[None]:
    """Keep count of the `record_function` ranges that begin in the block, on all threads.

    Args:
        all_closed: Called when the last open one has closed, by the thread that closed it.
    """
    _watch(_watchers.append, all_closed)
    try:
        yield
    finally:
        _watch(_watchers.remove, all_closed)


def session_may_end(*, all_threads: bool) -> bool:
    """Tell whether no range is open that could outlive a session that ends now.

    Call it from the thread that ends the session, inside `ranges_watched`.

    Args:
        all_threads: Whether the session records what other threads do.
    """
    if _open or _inside_range_of_torch():
        return False
    return not all_threads or _others_wait()


def let_others_finish() -> None:
    """Wait until no other thread is in the middle of an op, for as long as most ops take.

    A thread that computes all the time is left alone then, as torch.profiler would.
    """
    latest = time.monotonic() + _PATIENCE
    while not _others_wait() and time.monotonic() < latest:
        time.sleep(0.001)


def _watch(change: Callable[[Callable[[], None]], None], all_closed: Callable[[], None]) -> None:
    with _lock:
        change(all_closed)
        if not _watchers:
            _open.clear()
        enter, leave = (_enter, _exit) if _watchers else (_plain_enter, _plain_exit)
        record_function.__enter__ = enter  # type: ignore[method-assign]
        record_function.__exit__ = leave  # type: ignore[method-assign]


def _enter(self: record_function) -> record_function:
    _open.add(id(self))
    return _plain_enter(self)  # type: ignore[no-untyped-call, no-any-return]


def _exit(self: record_function, *error: Any) -> None:
    try:
        _plain_exit(self, *error)
    finally:
        _open.discard(id(self))
    if not _open:
        for all_closed in tuple(_watchers):
            all_closed()


def _inside_range_of_torch() -> bool:
    """Whether a range is around what this thread runs.

    That is in a backward, a custom Function, and what a compiled function calls at a graph break.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = _module(frame)
        if module.startswith(_AUTOGRAD):
            return True
        if module == _COMPILED and "callback" in frame.f_code.co_freevars:
            return True
        frame = frame.f_back
    return False


def _others_wait() -> bool:
    here = threading.get_ident()
    return all(thread == here or _waits(frame) for thread, frame in sys._current_frames().items())


def _waits(frame: FrameType) -> bool:
    """Whether what a thread is in the middle of is no op; `run` may call a C function at once."""
    module = _module(frame)
    if module.startswith(_COMPILE_WORKERS):
        return True
    package = module.partition(".")[0]
    if package in _NOTEBOOK:
        return True
    return package in _WAITING and frame.f_code.co_name != "run"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
