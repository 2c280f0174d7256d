r"""What is measured of one case, phase by phase; a phase that fails takes none of the others along.

| phase | what it finds |
|---|---|
| inference | a row of `gnnprof.compile_benchmark`, forward under no_grad, evaluation mode |
| training | a row of it, one training step |
| quality | accuracy, Hits@50 or MRR after `epochs` epochs of training in the case's mode |
| loader | sampling, transfer and compute per batch, where batches are sampled |
| warm | compile seconds of a second process that finds the case's compiled code on disk; how busy \
repeated forward passes then keep the CPUs |
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from benchmark.compile.case import Case
from benchmark.compile.case_record import Job, first_line
from benchmark.compile.registry import get_dataset, get_mode, unsupported
from benchmark.compile.tasks import Unsupported, Workload, WorkloadSettings, build_workload
from gnnprof import _device, _dynamo
from gnnprof._compile_records import EAGER, CompileRow
from gnnprof._dynamo_records import INDUCTOR
from gnnprof.compilation import compile_benchmark

INFERENCE_CACHE = "inference"
"""Folder of the compiled forward pass, inside the case's cache."""

Findings = dict[str, Any]

_OUTCOMES = {
    "ok": "ok",
    "oom": "oom",
    "compile_error": "compile_error",
    "wrong_result": "wrong_result",
    "error": "crash",
}
_ABSENT = (Unsupported, FileNotFoundError, ModuleNotFoundError, ConnectionError)
_SIZE_STEP = 0.05
_LOOK_SECONDS = 0.2

WARM_UP = 2
"""Calls before the timed ones; more follow while calls compile."""


class Measurement:
    """The phases of one case, and what they have found so far.

    Args:
        job: The case.
        findings: Filled as `case_record.no_findings` describes.
        keep: Called after each phase.
        warm_compile: Returns the seconds of the 'warm' phase; None where nothing is compiled.
    """

    def __init__(
        self,
        job: Job,
        findings: Findings,
        keep: Callable[[], None],
        warm_compile: Callable[[], Mapping[str, Any]] | None,
    ) -> None:
        self.job = job
        self.case = job.case
        self.mode = get_mode(job.case.mode)
        self.findings = findings
        self._keep = keep
        self._warm_compile = warm_compile
        self._bad: list[tuple[str, str]] = []

    def run(self) -> tuple[str, str | None]:
        """Measure, and return outcome and reason.

        The outcome is that of the first phase that did not end well; the reason names them all.
        """
        reason = why_unsupported(self.case)
        if reason is not None:
            return "unsupported", reason
        with self._phase("build"):
            workload = self._build()
        if self._bad:
            return self._bad[0]
        self.findings["data"] = workload.data_record()
        self.findings["dynamo_settings"] = workload.dynamo_settings
        for name in ("inference", "training", "quality", "loader", "warm"):
            with self._phase(name):
                getattr(self, f"_{name}")(workload)
            self._keep()
        self._count(workload)
        if not self._bad:
            return "ok", None
        return self._bad[0][0], "; ".join(reason for _, reason in self._bad)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Time a phase, and note its failure."""
        start = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is, other phases are still good
            traceback.print_exc()
            self._note(name, outcome_of(error), first_line(error))
            if name in ("inference", "training"):
                self.findings[name] = {"error": first_line(error)}
        self.findings["phase_seconds"][name] = time.perf_counter() - start
        print(f"{name}: {self.findings['phase_seconds'][name]:.1f} s", flush=True)

    def _note(self, name: str, outcome: str, reason: str) -> None:
        self.findings["errors"][name] = reason
        self._bad.append((outcome, f"{name}: {reason}" if name != "build" else reason))

    def _measured(self, seconds: float) -> None:
        self.findings["measured_seconds"] += seconds

    def _build(self) -> Workload:
        return build_workload(workload_settings(self.job))

    # -- phases ----------------------------------------------------------------------------------

    def _inference(self, workload: Workload) -> None:
        workload.model.eval()
        sizes = [*workload.shapes, *other_sizes(self.job, workload)]
        self._benchmark(workload, "inference", backward=False, shapes=sizes or None)
        if self.mode.is_eager:
            busy = utilisation(workload.model, workload)
            self._measured(busy.wall_seconds)
            self.findings["cpu_utilisation"] = busy.share(self.case.threads)

    def _training(self, workload: Workload) -> None:
        workload.model.train()
        self._benchmark(workload, "training", backward=False, train_step=workload.train_step)

    def _benchmark(self, workload: Workload, phase: str, **settings: Any) -> None:
        with workload.dynamo():
            report = compile_benchmark(
                workload.model,
                workload.args,
                workload.kwargs,
                **benchmark_arguments(self.case),
                dynamic=self.case.dynamic,
                fullgraph=workload.fullgraph,
                rounds=self.case.rounds,
                warmup=WARM_UP,
                cache_dir=self.job.inductor_cache / phase,
                warm=False,  # that is a phase of its own, in another process
                prime=False,  # done before anything else
                seed=self.case.seed,
                **settings,
            )
        row = report.rows[-1]  # the eager row stands first
        found = {**row.to_dict(), "mode": self.case.mode}
        if row.effective_mode == row.mode:
            found["effective_mode"] = self.case.mode
        self.findings[phase] = found
        floor = report.noise_floor
        name = "noise_floor" if phase == "inference" else "noise_floor_training"
        self.findings[name] = None if floor is None else floor.to_dict()
        self.findings["recommendations"][phase] = report.recommendation
        self._measured(measured_seconds(report.rows))
        if row.status != "ok":
            self._note(phase, _OUTCOMES[row.status], row.reason or row.status)

    def _quality(self, workload: Workload) -> None:
        if self.case.epochs == 0:
            return
        start = time.perf_counter()
        # The code that the training step has been compiled to is found there.
        with workload.dynamo(), _dynamo.private_cache(self.job.inductor_cache / "training"):
            losses = workload.fit(self.in_mode(workload), self.case.epochs)
        self._measured(time.perf_counter() - start)
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"the training loss is {losses[-1]}: it diverged.")
        start = time.perf_counter()
        quality = workload.evaluate(workload.model)
        self._measured(time.perf_counter() - start)
        self.findings["quality"] = {
            **quality.to_dict(),
            "epochs": self.case.epochs,
            "last_loss": losses[-1],
        }

    def _loader(self, workload: Workload) -> None:
        if not self.case.sampled:
            return
        start = time.perf_counter()
        workload.model.train()
        # Torch keeps 64 records of compilations by itself, by which loader_times knows of them.
        with _dynamo.compiler_state_kept(), workload.dynamo():
            times = workload.loader_times(self.in_mode(workload), training=True)
        self._measured(time.perf_counter() - start)
        self.findings["loader"] = None if times is None else times.to_dict()

    def in_mode(self, workload: Workload) -> nn.Module:
        """Return the model as the case's mode runs it."""
        if self.mode.is_eager:
            return workload.model
        return compiled(workload, self.case)

    def _warm(self, workload: Workload) -> None:
        del workload
        row = self.findings["inference"]
        if self._warm_compile is None or row is None or row.get("status") != "ok":
            return
        answer = dict(self._warm_compile())
        busy = Busy(**answer.pop("busy"))
        self.findings["warm"] = answer
        self.findings["cpu_utilisation"] = busy.share(self.case.threads)
        seconds = answer["compile_seconds"]
        self._measured(seconds + busy.wall_seconds)
        if row.get("compile_seconds_warm") is None:
            row["compile_seconds_warm"] = seconds

    def _count(self, workload: Workload) -> None:
        """Turn median seconds into items per second."""
        counts = workload.counts
        found: dict[str, Any] = {"unit": f"{counts.unit}/s"}
        for phase in ("inference", "training"):
            row = self.findings[phase] or {}
            seconds = row.get("median")
            for name, items in (
                (phase, getattr(counts, phase)),
                (f"edges_{phase}", getattr(counts, f"edges_{phase}")),
            ):
                found[name] = items / seconds if items is not None and seconds else None
        self.findings["throughput"] = found


# -- pieces ----------------------------------------------------------------------------------------


def why_unsupported(case: Case) -> str | None:
    """Return why a case cannot run here, as its registered entries say; None if it can be tried."""
    if case.sizes and not get_dataset(case.dataset).is_stand_in:
        return f"{case.dataset} has one size; graphs of other sizes are made of stand-ins only."
    names = ("framework", "model", "dataset", "mode", "variant", "sampled", "amp", "device")
    named = {name: getattr(case, name) for name in (*names, "hidden", "heads")}
    return unsupported(**named)


def workload_settings(job: Job) -> WorkloadSettings:
    """Return what the case says about data and model."""
    case = job.case
    shared = {field.name for field in fields(WorkloadSettings)}
    values = {name: value for name, value in vars(case).items() if name in shared}
    return WorkloadSettings(**values, root=job.root, cache=job.cache, download=job.download)


def other_sizes(job: Job, workload: Workload) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the inputs of smaller graphs of the same kind: 95 %, 90 %, ... of the case's."""
    settings = workload_settings(job)
    own = workload.data_record()["scale"]
    sizes = []
    for number in range(1, job.case.sizes + 1):
        scale = own * (1 - _SIZE_STEP) ** number
        smaller = build_workload(replace(settings, scale=scale))
        sizes.append((f"scale {scale:.4g}", smaller.args))
    return sizes


def compiled(workload: Workload, case: Case) -> nn.Module:
    """Return the workload's model compiled in the case's mode, with nothing compiled before."""
    _dynamo.start_afresh()
    arguments = benchmark_arguments(case)
    return _dynamo.compiled(
        workload.model,
        arguments["modes"][0],
        dynamic=case.dynamic,
        fullgraph=workload.fullgraph,
        backend=arguments.get("backend", INDUCTOR),
    )


def benchmark_arguments(case: Case) -> dict[str, Any]:
    """Return what `gnnprof.compile_benchmark` takes to run the case's mode."""
    mode = get_mode(case.mode)
    return {**mode.benchmark_arguments(), **({"modes": (EAGER,)} if mode.is_eager else {})}


@dataclass(frozen=True)
class Busy:
    """Seconds of repeated calls: by the clock, and of all threads of this process together."""

    wall_seconds: float
    cpu_seconds: float

    def share(self, threads: int) -> float:
        """Return how much of the time that `threads` CPUs had was used; 1 is all of it."""
        return self.cpu_seconds / (self.wall_seconds * threads)


def utilisation(model: nn.Module, workload: Workload) -> Busy:
    """Repeat forward passes for a while, one at least, and return what they took."""
    with torch.no_grad():
        start, used = time.perf_counter(), time.process_time()
        while True:
            model(*workload.args, **workload.kwargs)
            _device.synchronize(workload.device)
            wall = time.perf_counter() - start
            if wall >= _LOOK_SECONDS:
                return Busy(wall, time.process_time() - used)


def uses_inductor(case: Case) -> bool:
    """Tell whether the case's mode compiles by Inductor."""
    if get_mode(case.mode).is_eager:
        return False
    return bool(benchmark_arguments(case).get("backend", INDUCTOR) == INDUCTOR)


def measured_seconds(rows: Sequence[CompileRow]) -> float:
    """Return what the rows of a report spent on compiling and on the calls of their samples.

    Warm-up, the comparison with eager and the measurement of memory are not: they are the harness.
    A compilation that failed has no compile seconds, and took until its error.
    """
    total = 0.0
    for row in rows:
        compiled = (row.compile_seconds_cold, row.compile_seconds_warm)
        spent = (
            *(compiled if any(compiled) else (row.failed_after_seconds,)),
            row.compile_seconds_comparison,
            row.timed_seconds,
            *(size.compile_seconds for size in row.sizes),
        )
        total += math.fsum(seconds or 0.0 for seconds in spent)
    return total


def outcome_of(error: Exception) -> str:
    """Return the outcome of a phase that an exception ended."""
    if isinstance(error, _ABSENT):
        return "unsupported"
    said = f"{type(error).__name__}: {error}"
    allocation = "DefaultCPUAllocator" in said and "memory" in said
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or allocation:
        return "oom"
    return "crash"
