"""Frozen records of the torch.compile study: what one mode did, and against which noise.

Seconds and bytes; None means "not measured", never 0. A ratio is eager over compiled: above 1 the
compiled model is faster. `to_dict` gives plain JSON values under the names of the fields, and
`from_dict` gives back a record equal to the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

EAGER = "eager"
"""The mode of the row that compares eager with itself."""

PARTLY_EAGER = "partly eager"
"""The mode that was asked for ran, but behind a recompile limit for some inputs only."""

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""The modes of torch.compile; eager is always measured beside them."""

STATUSES = ("ok", "compile_error", "wrong_result", "oom", "error")
"""What can become of a row."""

VERDICTS = ("faster", "slower", "undecided")
"""What a speedup can mean."""

PHASES = ("forward", "backward", "step")
"""What is timed; `step` is forward and backward together, or the training step that was given."""

SCHEMA = "gnnprof.compile-report/1"


@dataclass(frozen=True)
class GraphBreak:
    """One place where Dynamo had to end a graph.

    Attributes:
        reason: Dynamo's own words, first line.
        location: `file:line` of the innermost frame that is not torch's own; None if untold.
        count: How often it broke there.
    """

    reason: str
    location: str | None
    count: int


@dataclass(frozen=True)
class Recompile:
    """One reason for which code that was already compiled was compiled again.

    Attributes:
        guard: The guard that failed.
        function: Name of the function that was compiled again.
        count: How often for this reason.
    """

    guard: str
    function: str
    count: int


@dataclass(frozen=True)
class PhaseTiming:
    """How long one phase took, compiled and eager, round by round.

    Attributes:
        samples: Seconds of one call, one sample each round, compiled.
        eager_samples: The same, eager, in the same rounds.
        median: Median of `samples`.
        median_low: Lower end of the 95 % interval of that median; None with fewer than 6 rounds.
        median_high: Upper end.
        eager_median: Median of `eager_samples`.
        speedup: Median over the rounds of eager / compiled; None where the row has none.
        speedup_low: Lower end of the 95 % bootstrap interval of that median.
        speedup_high: Upper end.
        verdict: One of `VERDICTS`; None where there is no speedup.
    """

    samples: tuple[float, ...]
    eager_samples: tuple[float, ...]
    median: float
    median_low: float | None
    median_high: float | None
    eager_median: float
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    verdict: str | None

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> PhaseTiming:
        """Restore a record from its `to_dict`."""
        return cls(**{**entry, **_tuples(entry, "samples", "eager_samples")})


@dataclass(frozen=True)
class SizeTiming:
    """What calling the compiled model with inputs of another size did.

    Attributes:
        label: Name of the size.
        compile_seconds: Seconds that Dynamo compiled for this size; 0.0 if nothing was compiled.
        recompiles: Code objects compiled again for this size.
        fell_back: Whether some code ran eagerly from this size on (the recompile limit).
        timing: Compiled and eager time at this size; None if a call failed.
    """

    label: str
    compile_seconds: float
    recompiles: int
    fell_back: bool
    timing: PhaseTiming | None

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> SizeTiming:
        """Restore a record from its `to_dict`."""
        return cls(**{**entry, "timing": _timing(entry["timing"])})


@dataclass(frozen=True)
class CompileRow:
    """What became of one mode.

    Attributes:
        mode: What was asked for: 'eager' (eager against eager) or a mode of torch.compile.
        effective_mode: What really ran: 'default' where the mode's own part was skipped, 'eager'
            where Dynamo gave up, 'partly eager' where it gave up for some inputs of a mode that
            did run; None if nothing ran.
        dynamic: The `dynamic` that torch.compile was given.
        fullgraph: The `fullgraph` that torch.compile was given.
        status: One of `STATUSES`.
        reason: Why the effective mode differs, or the error; None if there is nothing to say.
        phase: The phase that `samples`, `median`, `speedup` and `verdict` of the row speak of.
        forward: Times of the forward pass (under no_grad where no gradients were measured).
        backward: Times of the backward pass from the outputs.
        step: Times of forward and backward together, or of the training step that was given.
        compile_seconds_cold: Seconds in Dynamo's own timers over warm-up with an empty cache.
        compile_seconds_warm: The same with the files that the cold compile left on disk.
        first_call_seconds: Wall-clock seconds of the very first time, every phase once.
        break_even_calls: Calls after which the compile seconds are won back; None if not faster.
        graphs: Graphs that Dynamo handed to the backend before timing.
        graph_breaks: How often Dynamo broke a graph while it compiled for the first size: the sum
            of `count` over `breaks`. A place is counted again when its code is compiled again.
        breaks: The distinct (reason, location) pairs.
        recompiles: Code objects compiled again, other sizes included.
        recompile_reasons: Why.
        cudagraph_skips: Graphs for which CUDA graphs were asked and skipped.
        kernels: Distinct kernels in the generated code; None where the backend tells none.
        kernel_launches: Kernels that one call of `phase` launches.
        peak_memory: Highest bytes in live tensors during one call (and backward), over what was
            live before it.
        eager_peak_memory: The same of eager.
        max_abs_error: Largest difference of an output element from eager; in eager's own row,
            between two eager runs.
        max_rel_error: Largest difference of an output over the largest element of that output.
        max_abs_error_grad: As `max_abs_error`, of the gradients of parameters and inputs.
        max_rel_error_grad: As `max_rel_error`, of the gradients.
        compared_in: 'as timed', or 'eval' where random layers make training incomparable.
        compile_seconds_comparison: Seconds spent compiling in eval mode or in float64 only to
            compare, apart from `compile_seconds_cold`; None if that needed no compile of its own.
        sizes: Inputs of other sizes, in the order they were called.
        bimodal: Whether the samples fall into two clearly apart groups.
        timed_seconds: What the calls of all samples took together, eager's and those of other
            sizes included; None if nothing was timed.
        failed_after_seconds: Wall-clock seconds from the mode's first call to the error that ended
            it; None without one.
    """

    mode: str
    effective_mode: str | None
    dynamic: bool | None
    fullgraph: bool
    status: str
    reason: str | None
    phase: str
    forward: PhaseTiming | None = None
    backward: PhaseTiming | None = None
    step: PhaseTiming | None = None
    compile_seconds_cold: float | None = None
    compile_seconds_warm: float | None = None
    first_call_seconds: float | None = None
    break_even_calls: int | None = None
    graphs: int | None = None
    graph_breaks: int | None = None
    breaks: tuple[GraphBreak, ...] = ()
    recompiles: int | None = None
    recompile_reasons: tuple[Recompile, ...] = ()
    cudagraph_skips: int | None = None
    kernels: int | None = None
    kernel_launches: int | None = None
    peak_memory: int | None = None
    eager_peak_memory: int | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    max_abs_error_grad: float | None = None
    max_rel_error_grad: float | None = None
    compared_in: str | None = None
    compile_seconds_comparison: float | None = None
    sizes: tuple[SizeTiming, ...] = ()
    bimodal: bool = False
    timed_seconds: float | None = None
    failed_after_seconds: float | None = None

    @property
    def timing(self) -> PhaseTiming | None:
        """The times of the row's main phase; None if it was not timed."""
        timing: PhaseTiming | None = getattr(self, self.phase)
        return timing

    @property
    def samples(self) -> tuple[float, ...]:
        """Seconds of one call of the main phase, one each round; empty if it was not timed."""
        return self.timing.samples if self.timing else ()

    @property
    def eager_samples(self) -> tuple[float, ...]:
        """The same, eager, in the same rounds."""
        return self.timing.eager_samples if self.timing else ()

    @property
    def median(self) -> float | None:
        """Median of `samples` in seconds."""
        return self.timing.median if self.timing else None

    @property
    def median_low(self) -> float | None:
        """Lower end of the 95 % interval of the median."""
        return self.timing.median_low if self.timing else None

    @property
    def median_high(self) -> float | None:
        """Upper end of the 95 % interval of the median."""
        return self.timing.median_high if self.timing else None

    @property
    def speedup(self) -> float | None:
        """Eager over compiled, median of the rounds; None unless the status is 'ok'."""
        return self.timing.speedup if self.timing else None

    @property
    def speedup_low(self) -> float | None:
        """Lower end of the 95 % interval of the speedup."""
        return self.timing.speedup_low if self.timing else None

    @property
    def speedup_high(self) -> float | None:
        """Upper end of the 95 % interval of the speedup."""
        return self.timing.speedup_high if self.timing else None

    @property
    def verdict(self) -> str | None:
        """'faster', 'slower' or 'undecided'; None unless the status is 'ok'."""
        return self.timing.verdict if self.timing else None

    def to_dict(self) -> dict[str, Any]:
        """Return every field, and the figures of the main phase, as plain JSON values."""
        entry = asdict(self)
        for name in _OF_MAIN_PHASE:
            entry[name] = getattr(self, name)
        plain = _plain(entry)
        assert isinstance(plain, dict)
        return plain

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> CompileRow:
        """Restore a row from its `to_dict`."""
        values = {name: entry[name] for name in entry if name not in _OF_MAIN_PHASE}
        values.update({phase: _timing(entry[phase]) for phase in PHASES})
        values["breaks"] = tuple(GraphBreak(**one) for one in entry["breaks"])
        values["recompile_reasons"] = tuple(Recompile(**one) for one in entry["recompile_reasons"])
        values["sizes"] = tuple(SizeTiming.from_dict(one) for one in entry["sizes"])
        return cls(**values)


_OF_MAIN_PHASE = (
    "samples",
    "eager_samples",
    "median",
    "median_low",
    "median_high",
    "speedup",
    "speedup_low",
    "speedup_high",
    "verdict",
)


@dataclass(frozen=True)
class NoiseFloor:
    """Eager against eager under the rules of every other row: what this machine cannot tell apart.

    Attributes:
        samples_a: Seconds of one call, one sample each round.
        samples_b: The same model, in the same rounds.
        ratio: Median over the rounds of a / b; about 1.
        low: Lower end of the 95 % bootstrap interval of that median.
        high: Upper end.
        half_width: How far the interval reaches from 1 (0.03: 3 %); a speedup must lie beyond.
    """

    samples_a: tuple[float, ...]
    samples_b: tuple[float, ...]
    ratio: float
    low: float
    high: float
    half_width: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        plain = _plain(asdict(self))
        assert isinstance(plain, dict)
        return plain

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> NoiseFloor:
        """Restore a record from its `to_dict`."""
        return cls(**{**entry, **_tuples(entry, "samples_a", "samples_b")})


def _plain(value: Any) -> Any:
    """Replace tuples by lists, as JSON does, so that a record equals what is read back."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _tuples(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: tuple(entry[name]) for name in names}


def _timing(entry: Mapping[str, Any] | None) -> PhaseTiming | None:
    return None if entry is None else PhaseTiming.from_dict(entry)
