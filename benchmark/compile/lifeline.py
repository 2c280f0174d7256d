"""A process that ends with the one that started it, however that one ended.

After SIGKILL of a sweep nobody would end its running case, which would measure on beside the case
of the sweep that is started next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_SECONDS = 1.0


def end_with_parent(parent: int) -> None:
    """Ask for SIGKILL as soon as the process that started this one ends, in whatever way.

    On Linux the kernel sends it if that is the parent. Elsewhere, and where a wrapper such as
    `time` stands between the two, a thread looks every second whether it still is an ancestor.

    Args:
        parent: Its process id. If it has ended before this call, the process ends here.
    """
    if os.getppid() != parent or not _ask_kernel():
        threading.Thread(target=_watch, args=(parent,), name="lifeline", daemon=True).start()
    if not _is_ancestor(parent):  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def _ask_kernel() -> bool:
    """Tell whether the kernel has agreed to kill this process when its parent ends."""
    if sys.platform != "linux":
        return False
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):  # a C library without it
        return False
    return int(prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)) == 0


def _watch(parent: int) -> None:
    while _is_ancestor(parent):
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_ancestor(process: int) -> bool:
    """Tell whether a process lives and started this one, perhaps through others.

    Whoever outlives its parent is given another one, mostly process 1.
    """
    current = os.getppid()
    while current not in (process, 0, 1):
        current = _parent_of(current)
    return current == process


def _parent_of(process: int) -> int:
    """Return the id of a process's parent, 0 if it has ended."""
    if sys.platform == "linux":  # which may have no `ps`
        try:
            said = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return int(said.rpartition(")")[2].split()[1])  # after its name, which may hold spaces
    told = subprocess.run(
        ["ps", "-o", "ppid=", "-p", str(process)], capture_output=True, text=True, check=False
    )
    return int(told.stdout.strip() or 0)
