"""Measures one mode of torch.compile: compile, compare with eager, time in rounds, look closer."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from gnnprof import _device, _dynamo, _statistics
from gnnprof._compile_compare import (
    Effect,
    Errors,
    Tolerance,
    comparable_phases,
    compare_phases,
    joined,
)
from gnnprof._compile_records import PHASES, CompileRow, PhaseTiming, SizeTiming
from gnnprof._compile_study import Study, always_in_eval
from gnnprof._compile_workload import Candidate, Workload, paired_rounds, restore, series
from gnnprof._dynamo_records import INDUCTOR, Compilation, Watch, effective_mode
from gnnprof._tensors import iter_tensors

_MOST_WARMUPS = 8  # beyond those asked for, while calls still compile
_CALLS_BEFORE_REPLAY = 2  # after the first: CUDA graphs warm up, record, replay
_ERRORS = ("max_abs_error", "max_rel_error", "max_abs_error_grad", "max_rel_error_grad")


def measure_mode(study: Study, mode: str, dynamic: bool | None, folder: Path | None) -> CompileRow:
    """Measure one mode; whatever goes wrong in it becomes the row's status and reason.

    Args:
        study: Eager's side, whose own row has been measured.
        mode: As torch.compile takes it.
        dynamic: As torch.compile takes it.
        folder: Where the compiler's files shall lie; None for an empty folder of its own.
    """
    run = _ModeRun(study, mode, dynamic)
    start = _device.clock()
    try:
        with _dynamo.compilers_warnings_ignored():
            _attempt(run, folder)
    except Exception as error:  # noqa: BLE001  # a mode that fails is a row with its reason
        status, reason = _dynamo.failure(error)
        run.give_up(status, reason)
        run.facts["failed_after_seconds"] = _device.clock() - start
    finally:
        _dynamo.start_afresh()
    row = CompileRow(
        **{
            "mode": mode,
            "effective_mode": None,
            "dynamic": dynamic,
            "fullgraph": study.plan.fullgraph,
            "phase": study.workload.main_phase,
            "eager_peak_memory": study.eager_peak,
            **run.facts,
            "reason": "; ".join(run.notes) or None,
        }
    )
    return replace(row, break_even_calls=_break_even(row))


def _attempt(run: _ModeRun, folder: Path | None) -> None:
    """Measure one mode, and once more with dynamic output shapes where fullgraph wants them."""
    try:
        run.measure(folder)
        return
    except Exception as error:
        if not (run.fullgraph and _dynamo.wants_dynamic_output_shapes(error)):
            raise
        _, reason = _dynamo.failure(error)
    run.facts.clear()
    run.notes[:] = [
        f"compiled with {_dynamo.DYNAMIC_OUTPUT_SHAPES}, without which fullgraph=True fails "
        f"({reason})"
    ]
    with _dynamo.dynamic_output_shapes():
        run.measure(folder)


@dataclass(frozen=True)
class _Doubt:
    """Gradients that float64 has to decide about.

    Attributes:
        workload: What was run.
        wrong: What differed.
        in_eval: Whether it was run in eval mode.
        laps: Calls between the first one and the doubtful one, itself included; 0 for the first.
    """

    workload: Workload
    wrong: str
    in_eval: bool
    laps: int


class _ModeRun:
    """One mode from its first call to its last.

    Attributes:
        facts: Fields of the row, put in as soon as they are known, so that an error later on
            leaves what came before it.
        notes: Parts of the row's reason.
        fullgraph: Whether the mode is compiled with fullgraph=True.
    """

    def __init__(self, study: Study, mode: str, dynamic: bool | None) -> None:
        self.facts: dict[str, Any] = {}
        self.notes: list[str] = []
        self.fullgraph = study.plan.fullgraph
        self._study = study
        self._plan = study.plan
        self._mode = mode
        self._dynamic = dynamic
        self._doubts: list[_Doubt] = []

    def give_up(self, status: str, reason: str) -> None:
        """Take back the times, which are worth nothing now, and say why."""
        self.facts.update(dict.fromkeys(PHASES))
        self.facts["status"] = status
        self.notes.insert(0, reason)

    def measure(self, folder: Path | None) -> None:
        """Compile, compare, time and look closer."""
        self._doubts.clear()
        if self._study.in_eval and not self._agrees_in_eval():
            return
        # A folder with files in it is one that an earlier process has filled.
        filled = folder is not None and folder.exists() and any(folder.iterdir())
        with _dynamo.private_cache(folder) as used:
            _dynamo.start_afresh()
            candidate = self._candidate(self._study.copy())
            watch = Watch()
            if not self._first_call_agrees(candidate):
                self._note_compilation(watch.read(), filled)
                return
            laps = self._warm_up(candidate, watch)
            agrees = self._study.in_eval or self._later_call_agrees(candidate, laps)
            did = watch.read()
            self._note_compilation(did, filled)
            if not agrees:
                return
            self._time(candidate, did, watch)
            self._look_closer(candidate)
            self._measure_sizes(candidate, watch)
            self.facts["status"] = self.facts.get("status", "ok")
            if self._plan.warm and not filled and self._plan.backend == INDUCTOR:
                self.facts["compile_seconds_warm"] = self._compile_again(used)
        self._settle_doubts()

    def _candidate(
        self, module: nn.Module, workload: Workload | None = None, *, in_eval: bool = False
    ) -> Candidate:
        wrapped = _dynamo.compiled(
            module,
            self._mode,
            dynamic=self._dynamic,
            fullgraph=self._plan.fullgraph,
            backend=self._plan.backend,
        )
        if in_eval:  # the wrapper has a `train` of its own, which sets the mode of the module
            always_in_eval(wrapped)
        return Candidate(module, workload or self._study.workload, wrapped)

    # -- is it right? ------------------------------------------------------------------------------

    def _agrees_in_eval(self) -> bool:
        """Compare in eval mode, in a compilation of its own with files of its own."""
        with _dynamo.private_cache():
            _dynamo.start_afresh()
            watch = Watch()
            candidate = self._candidate(self._study.copy_to_compare(), in_eval=True)
            effects, _ = candidate.observe(self._plan.seed)
            agrees = self._accept(effects, "eval") and self._later_call_agrees(candidate)
            self.facts["compile_seconds_comparison"] = watch.read().seconds
        return agrees

    def _first_call_agrees(self, candidate: Candidate) -> bool:
        effects, seconds = candidate.observe(self._plan.seed)
        self.facts["first_call_seconds"] = seconds
        return self._study.in_eval or self._accept(effects, "as timed")

    def _accept(self, effects: Sequence[Effect], compared_in: str) -> bool:
        reference, phases = self._study.compared, self._study.workload.observed
        count = comparable_phases(reference)
        if count < len(reference):
            who = "" if count == 0 else f"{phases[count]} is "
            whose = phases[count] if count == 0 else "it"
            self.notes.append(f"{who}not compared with eager: {whose} is random in eval mode, too")
        if count == 0:
            return True
        if not joined(reference[:count]).tells_something:
            self.notes.append("not compared with eager: the call returns no tensor")
            return True
        self.facts["compared_in"] = compared_in
        return self._may_go_on(self._compared(effects), self._study.workload)

    def _compared(self, effects: Sequence[Effect]) -> Errors:
        """Compare a call with eager's, and keep the largest differences of all such calls."""
        study = self._study
        errors = compare_phases(
            study.compared, effects, self._plan.tolerance, study.compared_in_float64
        )
        for name, figure in errors.figures.items():
            if figure is not None:
                self.facts[name] = max(figure, self.facts.get(name) or 0.0)
        return errors

    def _later_call_agrees(self, candidate: Candidate, laps: int = 0) -> bool:
        """Compare a call at which all is compiled; CUDA graphs are replayed from the third on.

        Args:
            candidate: What is compiled, after its first call.
            laps: Calls since that one; as many more are made as are missing.
        """
        if "compared_in" not in self.facts:
            return True
        more = max(0, _CALLS_BEFORE_REPLAY - laps)
        study = self._study
        effects = candidate.observe_later(self._plan.seed, more, study.model)
        before = {name: self.facts[name] for name in _ERRORS if name in self.facts}
        errors = self._compared(effects)
        laps += more + 1
        if errors.wrong is not None and not study.repeats_itself(laps):
            self.facts.update(before)
            self.notes.append(
                "only the first call was compared with eager: a later one is another in eager, too"
            )
            return True
        return self._may_go_on(errors, study.workload, "at a later call: ", laps=laps)

    def _may_go_on(
        self, errors: Errors, workload: Workload, where: str = "", *, laps: int = 0
    ) -> bool:
        """Give the mode up if it is wrong beyond doubt, and keep a doubt for later."""
        if errors.wrong is None:
            return True
        if errors.is_doubt:
            in_eval = self._study.in_eval and workload is self._study.workload
            self._doubts = [one for one in self._doubts if one.workload is not workload]
            self._doubts.append(_Doubt(workload, where + errors.wrong, in_eval, laps))
            return True
        self.give_up("wrong_result", where + errors.wrong)
        return False

    def _settle_doubts(self) -> None:
        """Compare in float64 what may differ by an activation on a kink."""
        for doubt in self._doubts:
            if self.facts["status"] == "wrong_result":
                return
            try:
                in_float64 = self._wrong_in_float64(doubt)
            except Exception as error:  # noqa: BLE001  # whatever the user's code raises
                in_float64 = f"no comparison was possible ({_dynamo.failure(error)[1]})"
            if in_float64 is None:
                self.notes.append(
                    f"{doubt.wrong}, but in float64 all agree, as with an activation on a kink"
                )
            else:
                self.give_up("wrong_result", f"{doubt.wrong}; in float64: {in_float64}")

    def _wrong_in_float64(self, doubt: _Doubt) -> str | None:
        """Compare the first call in float64, and the later one where that is doubtful as well."""
        seed = self._plan.seed
        with _dynamo.private_cache():
            _dynamo.start_afresh()
            watch = Watch()
            module, doubled = self._study.in_float64(doubt.workload, in_eval=doubt.in_eval)
            original = copy.deepcopy(module)
            eager, _ = Candidate(copy.deepcopy(module), doubled).observe(seed)
            candidate = self._candidate(module, doubled, in_eval=doubt.in_eval)
            wrong = compare_phases(eager, candidate.observe(seed)[0], Tolerance()).wrong
            if wrong is None and doubt.laps:
                later = candidate.observe_later(seed, doubt.laps - 1, original)
                wrong = compare_phases(eager, later, Tolerance()).wrong
            so_far = self.facts.get("compile_seconds_comparison") or 0.0
            self.facts["compile_seconds_comparison"] = so_far + watch.read().seconds
        return wrong

    # -- how long does it take? --------------------------------------------------------------------

    def _warm_up(self, candidate: Candidate, watch: Watch) -> int:
        """Run the calls that were asked for, then on until a call compiles nothing; count them."""
        for number in range(self._plan.warmup + _MOST_WARMUPS):
            before = watch.read().seconds
            candidate.lap()
            compiled_more = watch.read().seconds > before
            if number >= self._plan.warmup - 2 and not compiled_more:
                break
        return number + 1

    def _note_compilation(self, did: Compilation, filled: bool) -> None:
        effective, reasons = effective_mode(
            self._mode, self._plan.backend, self._study.workload.device, did
        )
        self.notes.extend(reasons)
        self.facts.update(
            effective_mode=effective,
            graphs=did.graphs,
            graph_breaks=did.break_count,
            breaks=did.breaks,
            recompiles=did.recompile_count,
            recompile_reasons=did.recompiles,
            cudagraph_skips=did.cudagraph_skips,
            kernels=did.kernels,
            compile_seconds_cold=None if filled else did.seconds,
            compile_seconds_warm=did.seconds if filled else None,
        )

    def _time(self, candidate: Candidate, did: Compilation, watch: Watch) -> None:
        rounds = paired_rounds(candidate, self._study.eager, self._plan.rounds)
        self.facts["timed_seconds"] = rounds.seconds
        phases = self._study.workload.phases
        self.facts.update(self._study.timings(rounds.first, rounds.second, phases, floors=True))
        main = series(rounds.first, self._study.workload.main_phase)
        self.facts["bimodal"] = _statistics.is_bimodal(main)
        late = watch.read().seconds - did.seconds
        if late > 0:
            self.notes.append(f"{late:.2f} s of compiling fell into the timed rounds")

    def _look_closer(self, candidate: Candidate) -> None:
        self.facts["peak_memory"] = candidate.peak_memory()
        if self._plan.backend == INDUCTOR:
            self.facts["kernel_launches"] = candidate.kernel_launches()

    def _compile_again(self, folder: Path) -> float:
        """Compile from the files on disk; nothing of the first time is left in memory."""
        with _dynamo.private_cache(folder):
            _dynamo.start_afresh()
            watch = Watch()
            candidate = self._candidate(self._study.copy())
            for _ in range(self._plan.warmup):
                candidate.lap()
            return watch.read().seconds

    # -- other sizes -------------------------------------------------------------------------------

    def _measure_sizes(self, candidate: Candidate, watch: Watch) -> None:
        known = {_shapes(self._study.workload.args)}
        limited: tuple[str, ...] = ()
        first_limited = ""
        sizes: list[SizeTiming] = []
        for label, args in self._plan.sizes:
            size, did = self._measure_size(candidate, label, args)
            shapes = _shapes(args)
            if did.limited and not limited:
                first_limited = label
            limited += did.limited
            fell_back = bool(limited) and shapes not in known
            if not limited:
                known.add(shapes)
            sizes.append(replace(size, fell_back=fell_back))
            self.facts["sizes"] = tuple(sizes)
            if self.facts.get("status") == "wrong_result":
                break
        if sizes:
            self._note_sizes(watch.read(), first_limited)

    def _measure_size(
        self, candidate: Candidate, label: str, args: tuple[Any, ...]
    ) -> tuple[SizeTiming, Compilation]:
        study = self._study
        watch = Watch()
        timing = None
        try:
            workload = study.eager.on(study.workload.with_inputs(args)).draw_cotangents(
                self._plan.seed
            )
            for one in (candidate, study.eager):
                restore(one.module, study.model)
            eager, other = study.eager.on(workload), candidate.on(workload)
            timing = self._timed_size(eager, other, label)
        except Exception as error:  # noqa: BLE001  # a size that fails is told in its row
            self.notes.append(f"size {label!r} failed: {_dynamo.failure(error)[1]}")
        did = watch.read()
        return SizeTiming(label, did.seconds, did.recompile_count, False, timing), did

    def _timed_size(self, eager: Candidate, other: Candidate, label: str) -> PhaseTiming | None:
        reference, _ = eager.observe(self._plan.seed)
        effects, _ = other.observe(self._plan.seed)
        errors = compare_phases(
            reference,
            effects,
            self._plan.tolerance,
            lambda: self._study.observed_in_float64(eager.workload),
        )
        if not self._may_go_on(errors, other.workload, f"size {label!r}: "):
            return None
        rounds = paired_rounds(
            other, eager, self._plan.rounds, warmup=self._plan.warmup_after_first
        )
        self.facts["timed_seconds"] += rounds.seconds
        phase = self._study.workload.main_phase
        return self._study.timings(rounds.first, rounds.second, [phase], floors=True)[phase]

    def _note_sizes(self, did: Compilation, first_limited: str) -> None:
        """Count what the sizes added; the breaks stay those of the first size."""
        self.facts.update(
            graphs=did.graphs,
            recompiles=did.recompile_count,
            recompile_reasons=did.recompiles,
        )
        if did.limited:
            effective, reasons = effective_mode(
                self._mode, self._plan.backend, self._study.workload.device, did
            )
            self.facts["effective_mode"] = effective
            self.notes.insert(0, f"from size {first_limited!r} on: {reasons[-1]}")


def _break_even(row: CompileRow) -> int | None:
    """Calls after which the seconds of a cold compile are won back."""
    timing = row.timing
    if timing is None or timing.verdict != "faster" or row.compile_seconds_cold is None:
        return None
    gain = timing.eager_median - timing.median
    return math.ceil(row.compile_seconds_cold / gain) if gain > 0 else None


def _shapes(args: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in iter_tensors(args))
