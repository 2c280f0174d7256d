"""The process of one case: reads its job, measures, writes the record, ends.

    python benchmark/compile/child.py JOB.json

The sweep starts it, and keeps its output in OUT/logs.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.compile.case_record import (
    Ending,
    Job,
    first_line,
    make_record,
    no_findings,
    tail,
)
from benchmark.compile.lifeline import end_with_parent
from benchmark.compile.store import Store, write_text

if TYPE_CHECKING:
    from benchmark.compile.phases import Measurement


def main(file: Path) -> None:
    """Measure the case of a job's file and write its record."""
    job = Job.from_dict(json.loads(file.read_text(encoding="utf-8")))
    if job.parent is not None:
        end_with_parent(job.parent)
    findings = no_findings()
    environment: dict[str, Any] = {}
    measurement = _prepare(job, findings, environment)
    try:
        outcome, reason = measurement.run()
    except MemoryError as error:  # between two phases
        outcome, reason = "oom", first_line(error)
    sys.stderr.flush()
    ending = Ending(outcome, reason, 0, time.time() - job.started, tail(job.stderr))
    Store(job.record.parents[1]).write(make_record(job, findings, ending, environment))


def _prepare(job: Job, findings: dict[str, Any], environment: dict[str, Any]) -> Measurement:
    """Import what is heavy, start the compiler, and fork the second process before any work."""
    # What imports make is no garbage: looking through it while they run takes a quarter of their
    # time, and a tenth of a second at each collection after them.
    gc.disable()
    import torch
    import torch_geometric  # noqa: F401  # here, so that the fork has it

    from benchmark.compile import inputs, machine, models_pyg  # noqa: F401  # likewise
    from benchmark.compile.phases import Measurement, uses_inductor
    from benchmark.compile.registry import get_mode
    from benchmark.compile.warm import WarmProcess
    from benchmark.reporting import pick_device
    from gnnprof import _dynamo

    gc.freeze()
    gc.enable()
    warm = None
    if uses_inductor(job.case):
        start = time.perf_counter()
        if _dynamo.start_compiler(pick_device(job.case.device), with_backward=False):
            findings["compiler_start_seconds"] = time.perf_counter() - start
            findings["measured_seconds"] += findings["compiler_start_seconds"]
    if not get_mode(job.case.mode).is_eager:
        warm = WarmProcess(job)
    torch.set_num_threads(job.case.threads)
    torch.set_num_interop_threads(1)
    environment |= machine.environment(
        job.case,
        job.identity,
        threads=torch.get_num_threads(),
        wait_policy=os.environ.get("OMP_WAIT_POLICY"),
    )

    def keep() -> None:
        text = json.dumps({"findings": findings, "environment": environment}, allow_nan=False)
        write_text(job.partial, text, job.partial.with_suffix(".draft"))

    return Measurement(job, findings, keep, None if warm is None else warm.measure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # The record is written: taking torch, its workers and its caches down in order takes a second.
    os._exit(0)
