"""The second process of a case: what compiling costs when the compiled code is on disk already.

On a machine without accelerator it is forked from the first one when that has imported everything
and compiled nothing of the case, so that neither imports nor the start of the compiler are paid
twice; it then waits. Where there is an accelerator it is a new interpreter, for a case on the CPU
as well: CUDA does not survive a fork, and Dynamo asks every device for its random state.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.compile.case_record import Job, first_line
from benchmark.compile.lifeline import end_with_parent
from benchmark.compile.phases import (
    INFERENCE_CACHE,
    WARM_UP,
    compiled,
    outcome_of,
    utilisation,
    workload_settings,
)
from benchmark.compile.tasks import build_workload
from gnnprof import _device, _dynamo
from gnnprof._dynamo_records import Watch

PATIENCE = 600.0
"""Seconds after which the second process is given up; it reads what took the first one minutes."""


class WarmProcess:
    """The second process, made early and used late.

    Args:
        job: The case.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        can_fork = job.case.device == "cpu" and _device.accelerator() is None
        self._forked = _fork(job) if can_fork else None

    def measure(self) -> Mapping[str, Any]:
        """Let it compile, and return `compile_seconds` and `first_call_seconds`.

        Raises:
            MemoryError: If it ran out of memory, with its reason.
            RuntimeError: If it failed otherwise, with its reason.
        """
        if self._forked is None:
            _free_device(self._job.case.device)
            text, exit_code = _ask_new(self._job)
        else:
            text, exit_code = _ask_forked(*self._forked)
        answer: dict[str, Any] = json.loads(text) if text else _ended_early(exit_code)
        if "error" in answer:
            kind = MemoryError if answer["outcome"] == "oom" else RuntimeError
            raise kind(f"the second process: {answer['error']}")
        return answer


def _ended_early(exit_code: int) -> dict[str, Any]:
    """Say how the process ended that gave no answer."""
    if exit_code == -signal.SIGKILL:
        reason = "killed by SIGKILL, as the kernel does when memory runs out"
        return {"outcome": "oom", "error": reason}
    return {"outcome": "crash", "error": f"it ended early, with exit code {exit_code}"}


def _free_device(device: str) -> None:
    """Give back what the allocator of this process keeps, for the second one to use."""
    kind = torch.device(device).type
    if kind != "cpu":
        _dynamo.start_afresh()  # code that was compiled last, and its CUDA graphs
        gc.collect()
        _device.backend(kind).empty_cache()


def compile_again(job: Job) -> dict[str, Any]:
    """Compile the case's forward pass in this process with what lies in the case's cache.

    Returns:
        `compile_seconds` by Dynamo's own timers, `first_call_seconds` by the clock, and `busy`: the
        seconds of further calls.
    """
    torch.set_num_threads(job.case.threads)
    workload = build_workload(workload_settings(job))
    workload.model.eval()
    cache = _dynamo.private_cache(job.inductor_cache / INFERENCE_CACHE)
    with _dynamo.compiler_state_kept(), cache, workload.dynamo():
        model, watch = compiled(workload, job.case), Watch()
        with torch.no_grad():
            stop = _device.start_timer(workload.device)
            model(*workload.args, **workload.kwargs)
            first = stop()
            for _ in range(WARM_UP - 1):  # the calls whose compilation counts in the first process
                model(*workload.args, **workload.kwargs)
        seconds = {"compile_seconds": watch.read().seconds, "first_call_seconds": first}
        return {**seconds, "busy": asdict(utilisation(model, workload))}


def _fork(job: Job) -> tuple[int, int, int]:
    """Fork the process; return its id and the ends of the pipes that start it and that answer."""
    start_read, start_write = os.pipe()
    answer_read, answer_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(start_write)
        os.close(answer_read)
        _serve(job, parent, start_read, answer_write)
    os.close(start_read)
    os.close(answer_write)
    return pid, start_write, answer_read


def _serve(job: Job, parent: int, start: int, answer: int) -> NoReturn:
    """Be the forked process: wait, compile, answer, end without what the parent has to clean up."""
    end_with_parent(parent)
    if os.read(start, 1) == b"":  # the parent needs it no more
        os._exit(0)
    os.write(answer, _answer(job).encode())
    os._exit(0)


def _answer(job: Job) -> str:
    try:
        return json.dumps(compile_again(job))
    except Exception as error:  # noqa: BLE001  # the end of a process; the other one reports it
        traceback.print_exc()
        return json.dumps({"error": first_line(error), "outcome": outcome_of(error)})


def _ask_forked(pid: int, start: int, answer: int) -> tuple[str, int]:
    """Start the forked process; return its answer, empty without one, and its exit code."""
    os.write(start, b"1")
    os.close(start)
    with os.fdopen(answer, encoding="utf-8") as file:
        # Its end of the pipe closes when it ends, however it does.
        ready, _, _ = select.select([file], [], [], PATIENCE)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        text = file.read()
    _, status = os.waitpid(pid, 0)
    if not ready:
        raise TimeoutError(f"the second process gave no answer within {PATIENCE:.0f} s")
    return text, os.waitstatus_to_exitcode(status)


def _ask_new(job: Job) -> tuple[str, int]:
    """Start a new interpreter on the same job; return as `_ask_forked` does."""
    command = [sys.executable, str(Path(__file__)), str(job.scratch / "job.json")]
    answer = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
    )
    last = answer.stdout.strip().rpartition("\n")[2]
    return (last if answer.returncode == 0 else ""), answer.returncode


def main() -> None:
    """Be the new interpreter: answer on the last line of stdout."""
    end_with_parent(os.getppid())
    job = Job.from_dict(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    _dynamo.start_compiler(_device.resolve_device(job.case.device), with_backward=False)
    print(_answer(job))


if __name__ == "__main__":
    main()
