"""A process that ends with the one that started it, however that one ended.

After SIGKILL of a sweep nobody would end its running case, which would measure on beside the case
of the sweep that is started next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_SECONDS = 1.0


def end_with_parent(parent: int) -> None:
    """Ask for SIGKILL as soon as the parent process ends, in whatever way.

    On Linux the kernel sends it. Elsewhere a thread looks every second whether the process has
    been given another parent.

    Args:
        parent: Process id of the parent. If it has ended before this call, the process ends here.
    """
    if not (sys.platform == "linux" and _ask_kernel()):
        threading.Thread(target=_watch, args=(parent,), name="lifeline", daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def _ask_kernel() -> bool:
    """Tell whether the kernel has agreed to kill this process when its parent ends."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):  # a C library without it
        return False
    return int(prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)) == 0


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
