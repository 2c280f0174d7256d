"""Eager's side of the comparison: what the model does, how long it takes, how noisy that is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from gnnprof import _statistics
from gnnprof._compile_compare import Effect, Errors, Tolerance, compare
from gnnprof._compile_own_model import COPY, TRAIN_STEP, own_model_watched
from gnnprof._compile_records import EAGER, CompileRow, NoiseFloor, PhaseTiming
from gnnprof._compile_workload import (
    Candidate,
    Laps,
    Workload,
    doubled,
    paired_rounds,
    refuse_changed_inputs,
    series,
)


@dataclass(frozen=True)
class Plan:
    """How to measure every mode.

    Attributes:
        fullgraph: As torch.compile takes it.
        backend: As torch.compile takes it.
        rounds: Samples of each phase.
        warmup: Calls before those, the first one included.
        tolerance: What may differ from eager.
        cache_dir: Folder for the compiler's files; None for an empty one each time.
        warm: Whether to compile once more from the files of the first time.
        seed: Of the random state that every compared call starts from, and of the bootstrap.
        sizes: Labels and positional arguments of the other sizes.
    """

    fullgraph: bool
    backend: str | Callable[..., Any]
    rounds: int
    warmup: int
    tolerance: Tolerance
    cache_dir: Path | None
    warm: bool
    seed: int
    sizes: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    @property
    def warmup_after_first(self) -> int:
        """Calls of the warm-up after the first one, which is looked at and compared."""
        return max(1, self.warmup - 1)


class Study:
    """Eager's side: what it does, how long it takes, how much of a difference is noise.

    Args:
        model: The user's model, of which copies are measured.
        workload: What to do with the copies.
        plan: How to measure.
    """

    def __init__(self, model: nn.Module, workload: Workload, plan: Plan) -> None:
        self.model = model
        self.plan = plan
        first, ours = self.copy(), self.copy()
        with own_model_watched(model, first, COPY):
            refuse_changed_inputs(Candidate(first, workload.on_clones()))
        self.workload = Candidate(self.copy(), workload).draw_cotangents(plan.seed)
        self.eager = Candidate(ours, self.workload)
        with own_model_watched(model, ours, COPY if workload.train_step is None else TRAIN_STEP):
            self.reference, _ = self.eager.observe(plan.seed)
        self.eval_reference: Effect | None = None
        if self.reference.random:
            self.eval_reference = self._observed_in_eval()
        self._precise: list[Effect | None] = []
        self._floors: dict[str, float] = {}
        self.eager_peak: int | None = None

    # -- eager against eager -----------------------------------------------------------------------

    def eager_row(self) -> tuple[CompileRow, NoiseFloor]:
        """Time two eager copies side by side: what two equal programs differ by on this machine."""
        other = Candidate(self.copy(), self.workload)
        again = self._against_itself(other)
        rounds = paired_rounds(
            self.eager, other, self.plan.rounds, warmup=self.plan.warmup_after_first
        )
        self.eager_peak = self.eager.peak_memory()
        timings = self.timings(rounds.second, rounds.first, self.workload.phases)
        phase = self.workload.main_phase
        self._floors = {
            name: _statistics.half_width(timing.speedup_low or 1.0, timing.speedup_high or 1.0)
            for name, timing in timings.items()
        }
        main = timings[phase]
        ratio, low, high = _statistics.paired_ratio_interval(
            main.eager_samples, main.samples, seed=self.plan.seed
        )
        floor = NoiseFloor(
            main.eager_samples, main.samples, ratio, low, high, _statistics.half_width(low, high)
        )
        row = CompileRow(
            mode=EAGER,
            effective_mode=EAGER,
            dynamic=None,
            fullgraph=False,
            status="ok",
            reason=again.wrong and f"two eager runs differ: {again.wrong}",
            max_abs_error=again.max_abs,
            max_rel_error=again.max_rel,
            max_abs_error_grad=again.max_abs_grad,
            max_rel_error_grad=again.max_rel_grad,
            phase=phase,
            kernel_launches=None if self._on_cpu else self.eager.kernel_launches(),
            peak_memory=self.eager_peak,
            eager_peak_memory=self.eager_peak,
            bimodal=_statistics.is_bimodal(main.samples),
            timed_seconds=rounds.seconds,
            forward=timings.get("forward"),
            backward=timings.get("backward"),
            step=timings.get("step"),
        )
        return row, floor

    def _against_itself(self, other: Candidate) -> Errors:
        """Compare two eager runs from one random state: atomics add in another order each time."""
        first = self.reference
        again, _ = other.observe(self.plan.seed)
        if self.eval_reference is not None:
            first, again = self.eval_reference, self._observed_in_eval()
        if first.random:
            return Errors(None, None, None, None, None)
        return compare(first, again, self.plan.tolerance)

    # -- what the parts of a run share -------------------------------------------------------------

    @property
    def _on_cpu(self) -> bool:
        return self.workload.device.type == "cpu"

    def copy(self) -> nn.Module:
        """Return a fresh copy of the user's model."""
        return copy.deepcopy(self.model)

    def _observed_in_eval(self) -> Effect:
        return Candidate(self.copy().eval(), self.workload).observe(self.plan.seed)[0]

    def reference_in_float64(self) -> Effect | None:
        """Eager's effect in float64, computed at the first need; None if the model has no such."""
        if not self._precise:
            self._precise.append(self.observed_in_float64(self.workload))
        return self._precise[0]

    def observed_in_float64(self, workload: Workload) -> Effect | None:
        """Eager's effect in float64 under a workload; None if the model has no such."""
        try:
            module, work = self.in_float64(workload)
            return Candidate(module, work).observe(self.plan.seed)[0]
        except Exception:  # noqa: BLE001  # whatever the user's code raises: there is no reference
            return None

    def in_float64(self, workload: Workload) -> tuple[nn.Module, Workload]:
        """Return a copy of the model in float64, in the mode in which it is compared, and its work.

        Args:
            workload: The work in the precision of the user.
        """
        args, kwargs = doubled((workload.args, dict(workload.kwargs)))
        cotangents = tuple(one.double() for one in workload.cotangents)
        doubled_work = replace(workload, args=args, kwargs=kwargs, cotangents=cotangents)
        module = self.copy().double()
        return module if self.eval_reference is None else module.eval(), doubled_work

    def timings(
        self, compiled: Laps, eager: Laps, phases: Sequence[str], *, floors: bool = False
    ) -> dict[str, PhaseTiming]:
        """Turn paired samples into records, judged against the noise floors if asked to."""
        return {
            phase: self._timing(
                series(compiled, phase),
                series(eager, phase),
                self._floors.get(phase, 0.0) if floors else 0.0,
            )
            for phase in phases
        }

    def _timing(
        self, compiled: tuple[float, ...], eager: tuple[float, ...], floor: float
    ) -> PhaseTiming:
        speedup, low, high = _statistics.paired_ratio_interval(eager, compiled, seed=self.plan.seed)
        median_low, median_high = _statistics.median_interval(compiled) or (None, None)
        return PhaseTiming(
            samples=compiled,
            eager_samples=eager,
            median=_statistics.median(compiled),
            median_low=median_low,
            median_high=median_high,
            eager_median=_statistics.median(eager),
            speedup=speedup,
            speedup_low=low,
            speedup_high=high,
            verdict=_statistics.verdict(low, high, floor),
        )
