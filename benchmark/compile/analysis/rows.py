"""One row for each phase of a case: its replicates combined, its figures named."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmark.compile.analysis.estimates import Estimate, hull
from benchmark.compile.analysis.records import LOADER, Figures, Record
from gnnprof._statistics import median, median_interval

MODES = (
    "eager",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)
"""The modes of the study, in the order in which they are shown."""

DYNAMIC = {None: "auto", True: "true", False: "false"}
VARIANTS = ("fixes", "no-fixes", "fullgraph")
FRAMEWORKS = {"pyg": "PyG", "dgl": "DGL"}
MODELS = ("GCN", "GraphSAGE", "GAT", "GIN", "RGCN", "DistMult")
SIZES = ("cora", "pubmed", "arxiv")
"""The chain of growing graphs of the scaling question."""

_PARTLY = "partly eager"
_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Experiment:
    """A case without mode, dynamic setting and variant: what modes are compared on.

    Attributes:
        stand_in: Whether the data is generated.
        task: 'node', 'link', 'kg', 'graph'; None where the data was never loaded.
        more: Whatever else tells cases apart, as JSON.
    """

    framework: str
    model: str
    dataset: str
    stand_in: bool
    scale: float | None
    task: str | None
    layers: int
    hidden: int
    heads: int
    dropout: float
    threads: int
    amp: bool
    sampled: bool
    device: str
    more: str

    def but(self, **changes: Any) -> Experiment:
        """The same with some fields set alike, to pair what differs in them."""
        return dataclasses.replace(self, **changes)

    @property
    def library(self) -> str:
        """The framework as it writes its name."""
        return FRAMEWORKS.get(self.framework, self.framework)

    @property
    def data(self) -> str:
        """Name of the data; a stand-in is called one."""
        if not self.stand_in:
            return self.dataset
        scale = "" if self.scale in (None, 1) else f", scale {self.scale:g}"
        return f"{self.dataset} (stand-in{scale})"

    @property
    def family(self) -> str:
        """'arxiv' for ogbn-arxiv and for its stand-in; nothing else mixes the two."""
        name = self.dataset.lower().removesuffix("-like")
        return name.removeprefix("ogbn-").removeprefix("ogbl-")

    @property
    def setting(self) -> Setting:
        """What must be the same for all rows of one average."""
        return Setting(self.device, self.threads, self.amp, self.sampled)


@dataclass(frozen=True, order=True)
class Setting:
    """How a case was run, apart from what was run; figures of different settings never mix."""

    device: str
    threads: int
    amp: bool
    sampled: bool

    def __str__(self) -> str:
        threads = f"{self.threads} thread" + "s" * (self.threads != 1)
        precision = "bf16" if self.amp else "float32"
        return f"{self.device}, {threads}, {precision}, {self.feeding}"

    @property
    def precision(self) -> str:
        """The data type of the matrix products."""
        return "bf16 (AMP)" if self.amp else "float32"

    @property
    def feeding(self) -> str:
        """What a call is fed."""
        return "sampled batches" if self.sampled else "full graph"


@dataclass(frozen=True)
class Row:
    """One phase of one case, its replicates combined; seconds and bytes, None is unknown.

    Attributes:
        status: 'ok', a kind of failure, or 'not measured'.
        reason: Why the mode that ran is another, or the failure.
        replicates: Processes that ran it.
        replicates_ok: Those of them that the figures come from.
        time: Seconds of a call.
        eager_time: Seconds of the eager call in the same rounds.
        speedup: Eager over compiled, from the paired rounds.
        break_even: Calls from which on a cold compile pays; the most of any replicate.
        break_even_warm: The same with a filled cache.
        breaks: 'reason (file:line)' of every distinct graph break.
        sampling: Seconds per batch of training, as are the next three; of sampled cases only.
        bimodal: Whether the samples of a replicate fall into two groups.
        memory: Peak of the compiled call over that of the eager call.
    """

    experiment: Experiment
    mode: str
    dynamic: str
    variant: str
    phase: str
    status: str
    reason: str | None = None
    effective_mode: str | None = None
    replicates: int = 1
    replicates_ok: int = 0
    time: Estimate | None = None
    eager_time: Estimate | None = None
    speedup: Estimate | None = None
    compile_cold: float | None = None
    compile_warm: float | None = None
    first_call: float | None = None
    break_even: int | None = None
    break_even_warm: int | None = None
    graphs: int | None = None
    graph_breaks: int | None = None
    breaks: tuple[str, ...] = ()
    recompiles: int | None = None
    cudagraph_skips: int | None = None
    kernels: int | None = None
    kernel_launches: int | None = None
    peak_memory: int | None = None
    eager_peak_memory: int | None = None
    max_abs_error: float | None = None
    max_abs_error_grad: float | None = None
    throughput: float | None = None
    throughput_unit: str | None = None
    edges_per_second: float | None = None
    cpu_utilisation: float | None = None
    sampling: float | None = None
    transfer: float | None = None
    compute: float | None = None
    end_to_end: float | None = None
    bimodal: bool = False

    @property
    def label(self) -> str | None:
        """The mode under which its figures may be shown; None where another mode ran."""
        if self.effective_mode in (None, self.mode):
            return self.mode
        return f"{self.mode} (partly eager)" if self.effective_mode == _PARTLY else None

    @property
    def name(self) -> str:
        """`label`, or the mode that was asked for where none may be shown."""
        return self.label or self.mode

    @property
    def library(self) -> str:
        """The framework as it writes its name."""
        return self.experiment.library

    @property
    def architecture(self) -> str:
        """Framework and model."""
        return f"{self.library} {self.experiment.model}"

    @property
    def usable(self) -> bool:
        """Whether it has a speedup that belongs to its mode."""
        return self.status == "ok" and self.speedup is not None and self.label is not None

    @property
    def finding(self) -> str:
        """In a word or few: faster, slower, undecided, or why there is no verdict."""
        if self.status != "ok":
            return self.status
        if self.label is None:
            where = " on CPU" if self.experiment.device == "cpu" else ""
            return f"not exercised{where} (ran as {self.effective_mode})"
        if self.speedup is None:
            return "not measured"
        return self.speedup.decided or "undecided"

    @property
    def memory(self) -> Estimate | None:
        """Peak of the compiled call over the eager one's: a single reading, without interval.

        None where CUDA graphs ran: they keep their memory in a pool, and a call allocates nothing.
        """
        if not self.usable or not self.peak_memory or not self.eager_peak_memory:
            return None
        ran = self.mode if self.effective_mode == _PARTLY else self.effective_mode
        if ran in _CUDA_GRAPHS:
            return None
        return Estimate(self.peak_memory / self.eager_peak_memory)


@dataclass(frozen=True)
class QualityRow:
    """How good the trained models of one case are.

    Attributes:
        values: One for every seed and replicate.
    """

    experiment: Experiment
    mode: str
    dynamic: str
    variant: str
    metric: str
    epochs: int
    values: tuple[float, ...]


def row_order(row: Row | QualityRow) -> tuple[object, ...]:
    """The order in which rows are shown."""
    e = row.experiment
    return (
        _place(e.framework, FRAMEWORKS),
        e.framework,
        _place(e.model, MODELS),
        e.model,
        e.stand_in,
        _place(e.family, SIZES),
        e.dataset,
        e.scale or 0.0,
        e.setting,
        str(e),
        _place(row.variant, VARIANTS),
        row.variant,
        row.dynamic,
        _place(row.mode, MODES),
        row.mode,
        row.phase if isinstance(row, Row) else "",
    )


def _place(name: str, order: Iterable[str]) -> int:
    known = list(order)
    return known.index(name) if name in known else len(known)


def combine(
    identity: tuple[Experiment, str, str, str], phase: str, records: Sequence[Record]
) -> Row:
    """Make one row of the processes that measured the same phase of the same case.

    A wrong result in one of them takes the speedup from all: it may be wrong in the others' timed
    calls as well. Other failures leave the figures of those that succeeded.
    """
    experiment, mode, dynamic, variant = identity
    measured = [(record, figures) for record in records if (figures := record.phases.get(phase))]
    good = [(record, figures) for record, figures in measured if figures.status == "ok"]
    bad = [figures for _, figures in measured if figures.status != "ok"]
    wrong = [figures for figures in bad if figures.status == "wrong_result"]
    if wrong or not good:
        status, reason = _failure([*wrong, *bad], records)
        values = {"status": status, "reason": reason} | _counts([f for _, f in measured])
    else:
        values = {"status": "ok"} | _timed(good, phase)
    return Row(experiment, mode, dynamic, variant, phase, replicates=len(records), **values)


def _failure(bad: Sequence[Figures], records: Sequence[Record]) -> tuple[str, str | None]:
    """Kind and reason of a row without figures: the phase's own, else the whole case's."""
    if bad:
        return bad[0].status, bad[0].reason
    for record in records:
        if record.outcome != "ok":
            return record.outcome, record.reason
    return "not measured", None


def _counts(figures: Sequence[Figures]) -> dict[str, Any]:
    """What also holds for a row whose times do not."""
    return {
        "effective_mode": next((f.effective_mode for f in figures), None),
        "graphs": _most(f.graphs for f in figures),
        "graph_breaks": _most(f.graph_breaks for f in figures),
        "breaks": tuple(dict.fromkeys(text for f in figures for text in f.breaks)),
        "recompiles": _most(f.recompiles for f in figures),
        "cudagraph_skips": _most(f.cudagraph_skips for f in figures),
        "kernels": _most(f.kernels for f in figures),
        "kernel_launches": _most(f.kernel_launches for f in figures),
        "max_abs_error": _most(f.max_abs_error for f in figures),
        "max_abs_error_grad": _most(f.max_abs_error_grad for f in figures),
    }


def _timed(good: Sequence[tuple[Record, Figures]], phase: str) -> dict[str, Any]:
    # Replicates that ended in different modes are no replicates; the mode of most of them counts.
    mode = Counter(f.effective_mode for _, f in good).most_common(1)[0][0]
    good = [(record, f) for record, f in good if f.effective_mode == mode]
    figures = [f for _, f in good]
    time = hull([Estimate(f.median, f.median_low, f.median_high) for f in figures if f.median])
    eager = hull([_middle(f.eager_samples) for f in figures if f.eager_samples])
    speedup = hull(
        [
            Estimate(f.speedup, f.speedup_low, f.speedup_high, 1, f.verdict)
            for f in figures
            if f.speedup
        ]
    )
    cold = _middle_of(f.compile_seconds_cold for f in figures)
    warm = _middle_of(f.compile_seconds_warm for f in figures)
    return _counts(figures) | {
        "reason": next((f.reason for f in figures if f.reason), None),
        "replicates_ok": len(good),
        "time": time,
        "eager_time": eager,
        "speedup": speedup,
        "compile_cold": cold,
        "compile_warm": warm,
        "first_call": _middle_of(f.first_call_seconds for f in figures),
        "break_even": _break_even(figures, speedup),
        "break_even_warm": _pays_from(warm, time, eager, speedup),
        "peak_memory": _most(f.peak_memory for f in figures),
        "eager_peak_memory": _most(f.eager_peak_memory for f in figures),
        "throughput": _middle_of(record.throughput.get(phase) for record, _ in good),
        "throughput_unit": next((r.throughput_unit for r, _ in good), None),
        "edges_per_second": _middle_of(
            record.throughput.get(f"edges_{phase}") for record, _ in good
        ),
        "cpu_utilisation": _middle_of(record.cpu_utilisation for record, _ in good),
        "bimodal": any(f.bimodal for f in figures),
        **_batches([record for record, _ in good], phase),
    }


def _batches(records: Sequence[Record], phase: str) -> dict[str, float | None]:
    """What a batch takes, part by part; the loader was measured in training."""
    if phase != "training":
        return {}
    return {
        name.removesuffix("_seconds"): _middle_of(record.loader.get(name) for record in records)
        for name in LOADER
    }


def _middle(samples: Sequence[float]) -> Estimate:
    low, high = median_interval(samples) or (None, None)
    return Estimate(median(samples), low, high)


def _middle_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _most(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


def _break_even(figures: Sequence[Figures], speedup: Estimate | None) -> int | None:
    calls = [f.break_even_calls for f in figures]
    if speedup is None or speedup.decided != "faster" or None in calls:
        return None
    return _most(calls)


def _pays_from(
    compile_seconds: float | None,
    time: Estimate | None,
    eager: Estimate | None,
    speedup: Estimate | None,
) -> int | None:
    """Calls after which the time saved exceeds the time to compile."""
    if compile_seconds is None or time is None or eager is None or speedup is None:
        return None
    gain = eager.value - time.value
    return math.ceil(compile_seconds / gain) if speedup.decided == "faster" and gain > 0 else None
