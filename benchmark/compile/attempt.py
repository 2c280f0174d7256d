"""One attempt at a case: a process of its own, ended in time, with a typed outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmark.compile import machine
from benchmark.compile.case import Case, Identity
from benchmark.compile.case_record import Ending, Job, make_record, no_findings, tail
from benchmark.compile.store import Store

ROOT = Path(__file__).resolve().parents[2]
CHILD = (sys.executable, str(ROOT / "benchmark" / "compile" / "child.py"))
"""Command that measures a case; the path of the job's file is added to it."""

WAIT_POLICY = "PASSIVE"
_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OOM_COUNTER = Path("/proc/vmstat")
_OUT_OF_MEMORY = re.compile(
    r"MemoryError|OutOfMemoryError|DefaultCPUAllocator: (can't|not enough)|std::bad_alloc"
)


@dataclass(frozen=True)
class Options:
    """How the cases of a sweep are run; none of it changes a figure.

    Attributes:
        timeout: Seconds after which a case is ended.
        root: Folder with the raw files of real data sets.
        cache: Folder with generated stand-ins; by default inside the sweep's folder.
        download: Whether real data may be fetched into `root`.
        command: Measures a case; the path of the job's file is added.
    """

    timeout: float = 1800.0
    root: Path | None = None
    cache: Path | None = None
    download: bool = False
    command: tuple[str, ...] = CHILD


class Stopped(KeyboardInterrupt):  # like what it comes from, no error
    """The sweep was asked to end by a signal."""


def attempt(
    store: Store, case: Case, key: str, identity: Identity, options: Options
) -> dict[str, Any]:
    """Run a case and return its record, which is then on disk.

    The caller holds the case's claim. The process writes the record itself when it reaches its
    end; whatever else happens, the record is written here with what the process had found so far.

    Raises:
        KeyboardInterrupt: If the sweep was asked to end. The case is then on record as interrupted.
    """
    store.remove(key)
    with store.scratch(key) as scratch:
        job = Job(
            case=case,
            key=key,
            identity=identity,
            record=store.record_path(key),
            scratch=scratch,
            root=options.root,
            cache=options.cache or store.folder / "data",
            download=options.download,
            parent=os.getpid(),
            started=time.time(),
        )
        (scratch / "tmp").mkdir()
        file = scratch / "job.json"
        file.write_text(json.dumps(job.to_dict()), encoding="utf-8")
        try:
            ending = _run(job, (*options.command, str(file)), options.timeout)
        except KeyboardInterrupt as request:
            if store.read(key) is not None:  # the case had just reached its end
                raise
            wall = time.time() - job.started
            reason = f"the sweep was ended by {_name_of(request)}"
            _write(store, job, Ending("interrupted", reason, None, wall, tail(job.stderr)))
            raise
        finally:
            _keep_log(store, job)
        record = store.read(key)
        return _write(store, job, ending) if record is None else record


def _name_of(request: KeyboardInterrupt) -> str:
    return str(request) if isinstance(request, Stopped) else "Ctrl-C"


# -- process ---------------------------------------------------------------------------------------


def _run(job: Job, command: Sequence[str], timeout: float) -> Ending:
    kills_before = _oom_kills()
    timed_out = False
    with job.stdout.open("wb") as stdout, job.stderr.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=ROOT,  # places in the code are named from here on
            env=child_environment(job, os.environ),
            start_new_session=True,  # a group that can be killed whole, and no Ctrl-C from the tty
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill_group(process)
    wall = time.time() - job.started
    said = tail(job.stderr)
    if timed_out:
        reason = f"it was ended after the time-out of {timeout:g} s"
        return Ending("timeout", reason, process.returncode, wall, said)
    killed = None if kills_before is None else (_oom_kills() or 0) - kills_before
    outcome, reason = classify(process.returncode, said, killed)
    return Ending(outcome, reason, process.returncode, wall, said)


def child_environment(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a case's process."""
    threads = str(job.case.threads)
    path = environ.get("PYTHONPATH")
    return {
        **environ,
        # Read before the first line of the program is: setting it from inside would be too late.
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        # Waiting threads that spin take the CPUs from whoever else wants them.
        "OMP_WAIT_POLICY": WAIT_POLICY,
        "KINETO_LOG_LEVEL": "99",
        "TORCHINDUCTOR_CACHE_DIR": str(job.inductor_cache),
        # What a killed process leaves among the temporary files goes with the rest.
        "TMPDIR": str(job.scratch / "tmp"),
        "PYTHONPATH": os.pathsep.join((str(ROOT), path)) if path else str(ROOT),
    }


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, and wait for it."""
    # The group may outlive its first process: compile workers, a second process.
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def classify(exit_code: int, stderr: str, oom_kills: int | None) -> tuple[str, str]:
    """Return outcome and reason of a process that has ended without writing its record.

    Out of memory is: a `MemoryError` or torch's `OutOfMemoryError` that ended the program, or
    SIGKILL (exit code 137 under a shell) that the sweep did not send, unless the kernel counts its
    kills for want of memory and counted none. SIGINT, SIGTERM and SIGHUP are requests to end.

    Args:
        exit_code: Negative for a signal.
        stderr: The last that the process wrote to stderr.
        oom_kills: Processes that the kernel killed meanwhile; None where it does not tell.
    """
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number == signal.SIGKILL:
        if oom_kills == 0:
            return "crash", "killed by SIGKILL from outside (the kernel ran out of no memory)"
        seen = "" if oom_kills is None else f"; the kernel counts {oom_kills} such kills meanwhile"
        return "oom", f"killed by SIGKILL, as the kernel does when memory runs out{seen}"
    if number in _ASKED_TO_END:
        return "interrupted", f"ended by {signal.Signals(number).name} from outside"
    last = (stderr.strip().splitlines() or ["it wrote nothing to stderr"])[-1]
    if _OUT_OF_MEMORY.search(last):
        return "oom", last
    if number in signal.valid_signals() and number > 0:
        return "crash", f"ended by {signal.Signals(number).name}: {last}"
    return "crash", f"ended with exit code {exit_code} and no record: {last}"


def _oom_kills() -> int | None:
    """Return how many processes the kernel has killed for want of memory; None if untold."""
    try:
        lines = _OOM_COUNTER.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


# -- the record in its place -----------------------------------------------------------------------


def _write(store: Store, job: Job, ending: Ending) -> dict[str, Any]:
    """Write the record of a process that could not, with what it had found."""
    findings, place = no_findings(), None
    with contextlib.suppress(FileNotFoundError, ValueError):  # it ended before its first phase
        kept = json.loads(job.partial.read_text(encoding="utf-8"))
        findings, place = kept["findings"], kept["environment"]
    if place is None:
        place = machine.environment(
            job.case, job.identity, threads=job.case.threads, wait_policy=WAIT_POLICY
        )
    record = make_record(job, findings, ending, place)
    store.write(record)
    return record


def _keep_log(store: Store, job: Job) -> None:
    """Keep the whole output of the process beside the records."""
    parts = [f"{job.case.label}\n"]
    for file in (job.stdout, job.stderr):
        if file.exists() and file.stat().st_size > 0:
            text = file.read_text(encoding="utf-8", errors="replace")
            parts.append(f"--- {file.stem} ---\n{text}")
    store.log_path(job.key).write_text("\n".join(parts), encoding="utf-8")


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP (a scheduler's, a closed terminal's) into `Stopped` in the body."""

    def stop(number: int, _frame: object) -> NoReturn:
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def with_absolute_paths(options: Options) -> Options:
    """Return options that mean the same from any folder."""
    root = options.root and options.root.absolute()
    cache = options.cache and options.cache.absolute()
    return dataclasses.replace(options, root=root, cache=cache)
