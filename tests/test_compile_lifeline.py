"""A case's process ends with the sweep that started it, be it through a wrapper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmark.compile.lifeline import _is_ancestor, _parent_of

ROOT = Path(__file__).parents[1]
CHILD = """
import sys, time
from benchmark.compile.lifeline import end_with_parent
end_with_parent(int(sys.argv[1]))
print("alive", flush=True)
time.sleep(60)
"""
WRAPPER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
SWEEP = """
import os, subprocess, sys
sys.exit(subprocess.call([*sys.argv[1:], str(os.getpid())]))
"""
PYTHON = (sys.executable, "-c")


def started(command: list[str]) -> subprocess.Popen[str]:
    """Start a process whose group can be ended, from where `benchmark` is found."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.fixture(params=[0, 1, 2])
def sweep(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that starts the child through none, one or two wrappers."""
    wrappers = [*PYTHON, WRAPPER] * request.param
    process = started([*PYTHON, SWEEP, *wrappers, *PYTHON, CHILD])
    yield process
    for kill in (process.kill, lambda: os.killpg(process.pid, signal.SIGKILL)):
        try:
            kill()
        except ProcessLookupError:
            continue
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_child_lives_under_wrappers_and_ends_with_the_sweep(sweep):
    assert sweep.stdout.readline() == "alive\n"
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    start = time.monotonic()
    assert sweep.stdout.read() == ""  # until nobody has it open
    assert time.monotonic() - start < 30  # it sleeps for 60


def test_a_child_whose_sweep_has_ended_ends_at_once():
    ended = subprocess.Popen([*PYTHON, ""])
    ended.wait()
    child = started([*PYTHON, CHILD, str(ended.pid)])
    assert child.communicate(timeout=60)[0] == ""
    assert child.returncode == -signal.SIGKILL


def test_ancestors_are_told_from_others():
    assert _is_ancestor(os.getppid())
    grandparent = _parent_of(os.getppid())  # 0 in a container whose first process runs the tests
    assert grandparent == 0 or _is_ancestor(grandparent)
    assert not _is_ancestor(os.getpid())
    child = subprocess.Popen([*PYTHON, "import time; time.sleep(60)"])
    try:
        assert not _is_ancestor(child.pid)
        assert _parent_of(child.pid) == os.getpid()
    finally:
        child.kill()
        child.wait()
    assert _parent_of(child.pid) == 0
