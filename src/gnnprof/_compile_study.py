"""Eager's side of the comparison: what the model does, how long it takes, how noisy that is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType
from typing import Any

from torch import nn

from gnnprof import _statistics
from gnnprof._compile_compare import Effect, Errors, Tolerance, compare_phases
from gnnprof._compile_own_model import COPY, TRAIN_STEP, own_model_watched
from gnnprof._compile_records import EAGER, CompileRow, NoiseFloor, PhaseTiming
from gnnprof._compile_workload import (
    Candidate,
    Laps,
    Workload,
    doubled,
    in_double,
    paired_rounds,
    refuse_changed_inputs,
    series,
)
from gnnprof._tensors import iter_tensors


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
        self.in_eval = any(effect.random for effect in self.reference)
        self.compared = self._observed_in_eval() if self.in_eval else self.reference
        self._precise: list[tuple[Effect, ...] | None] = []
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
        again, _ = other.observe(self.plan.seed)
        if self.in_eval:
            again = self._observed_in_eval()
        return compare_phases(self.compared, again, self.plan.tolerance)

    def repeats_itself(self, laps: int) -> bool:
        """Tell whether eager does the same after other calls, once weights and buffers are back.

        A training step that goes through batches does not, nor a model that counts its calls.

        Args:
            laps: How many calls.
        """
        eager = Candidate(self.copy_to_compare(), self.workload)
        later = eager.observe_later(self.plan.seed, laps, self.model)
        return compare_phases(self.compared, later, self.plan.tolerance).wrong is None

    # -- what the parts of a run share -------------------------------------------------------------

    @property
    def _on_cpu(self) -> bool:
        return self.workload.device.type == "cpu"

    def copy(self) -> nn.Module:
        """Return a fresh copy of the user's model."""
        return copy.deepcopy(self.model)

    def copy_to_compare(self) -> nn.Module:
        """Return a fresh copy in the mode in which it is compared."""
        return always_in_eval(self.copy()) if self.in_eval else self.copy()

    def _observed_in_eval(self) -> tuple[Effect, ...]:
        return Candidate(always_in_eval(self.copy()), self.workload).observe(self.plan.seed)[0]

    def compared_in_float64(self) -> tuple[Effect, ...] | None:
        """`compared` in float64, computed at the first need; None if the model has no such."""
        if not self._precise:
            self._precise.append(self.observed_in_float64(self.workload, in_eval=self.in_eval))
        return self._precise[0]

    def observed_in_float64(
        self, workload: Workload, *, in_eval: bool = False
    ) -> tuple[Effect, ...] | None:
        """What eager does in float64 under a workload; None if the model has no such."""
        try:
            module, work = self.in_float64(workload, in_eval=in_eval)
            return Candidate(module, work).observe(self.plan.seed)[0]
        except Exception:  # noqa: BLE001  # whatever the user's code raises: there is no reference
            return None

    def in_float64(
        self, workload: Workload, *, in_eval: bool = False
    ) -> tuple[nn.Module, Workload]:
        """Return a copy of the model in float64, and its work.

        Args:
            workload: The work in the precision of the user.
            in_eval: Whether the copy stays in eval mode.
        """
        args, kwargs = doubled((workload.args, dict(workload.kwargs)))
        cotangents = tuple(map(in_double, workload.cotangents))
        doubled_work = replace(workload, args=args, kwargs=kwargs, cotangents=cotangents)
        module = self.copy().double()  # which leaves complex numbers as they are
        for tensor in iter_tensors(module):
            tensor.data = in_double(tensor.data)
        return always_in_eval(module) if in_eval else module, doubled_work

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


def always_in_eval(module: nn.Module) -> nn.Module:
    """Put a copy of ours, or its wrapper, into eval mode for good, whoever calls `train`.

    A method of each object does nothing then; `copy.deepcopy` binds methods to the copy.
    """
    for part in module.eval().modules():
        vars(part)["train"] = MethodType(_stay, part)
    return module


def _stay(self: nn.Module, mode: bool = True) -> nn.Module:  # noqa: ARG001  # as nn.Module.train
    return self
