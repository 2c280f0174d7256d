"""Lets Ctrl-C wait until a step that must not be torn apart is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Handle a SIGINT that arrives within the block right after it, also if the block raises.

    Only the main thread receives signals, and only a handler in Python can be put off; elsewhere
    the block just runs.
    """
    earlier = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(earlier):
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
        if arrived:
            earlier(*arrived[0])
