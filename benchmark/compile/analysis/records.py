"""What a case of the study left behind, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = "gnnprof.compile-case/1"
"""The one form of record that this code reads."""

PHASES = ("inference", "training")
"""What a record measures; each phase stands alone."""

LOADER = ("sampling_seconds", "transfer_seconds", "compute_seconds", "end_to_end_seconds")
"""What a batch takes, where batches are sampled."""

IDENTITY = (
    "gnnprof",
    "torch",
    "torch_geometric",
    "dgl",
    "python",
    "cpu",
    "device",
    "device_name",
    "cuda",
    "driver",
    "omp_wait_policy",
)
"""Entries of an environment that figures must share to be compared.

Threads are not among them, as they are part of the case; load, clocks and temperature vary from
case to case.
"""


@dataclass(frozen=True)
class Case:
    """What was run, as the sweep wrote it.

    Attributes:
        framework: 'pyg' or 'dgl'.
        model: Name of the model.
        dataset: Name of the data; '-like' ends the name of a stand-in.
        mode: 'eager' or a mode of torch.compile.
        variant: 'fixes', 'no-fixes' or 'fullgraph'.
        dynamic: What was passed to torch.compile.
        scale: Factor on the size of a stand-in; None is the stand-in's own.
        sampled: Whether batches of sampled neighbourhoods were fed.
        amp: Whether bf16 autocast was on.
        layers: Number of layers.
        hidden: Width of the hidden layers.
        heads: Attention heads (GAT only).
        dropout: Share of dropped activations.
        threads: CPU threads of the process.
        epochs: Epochs of the training whose quality was measured; 0 for none.
        rounds: Samples of each timed phase.
        seed: Seed of parameters and data.
        replicate: Number of the process among those of one case.
        device: Type of the device.
        more: JSON of what else the sweep wrote, so that cases which differ in it stay apart.
    """

    framework: str
    model: str
    dataset: str
    mode: str
    variant: str
    dynamic: bool | None = None
    scale: float | None = None
    sampled: bool = False
    amp: bool = False
    layers: int = 3
    hidden: int = 256
    heads: int = 8
    dropout: float = 0.5
    threads: int = 1
    epochs: int = 0
    rounds: int = 0
    seed: int = 0
    replicate: int = 0
    device: str = "cpu"
    more: str = ""


@dataclass(frozen=True)
class Figures:
    """What one phase of a case measured: the fields of a `CompileRow` that the analysis reads.

    Seconds and bytes; None is unknown. The definitions are those of `gnnprof.compile_benchmark`.

    Attributes:
        status: 'ok' or the kind of failure.
        reason: Why the mode that ran is another one, or the error.
        effective_mode: The mode that ran.
        samples: Seconds of every compiled call, in order.
        eager_samples: Seconds of the eager call of the same round.
        breaks: 'reason (file:line)' of every distinct graph break.
        bimodal: Whether the samples fall into two groups.
    """

    status: str
    reason: str | None = None
    effective_mode: str | None = None
    samples: tuple[float, ...] = ()
    eager_samples: tuple[float, ...] = ()
    median: float | None = None
    median_low: float | None = None
    median_high: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: str | None = None
    compile_seconds_cold: float | None = None
    compile_seconds_warm: float | None = None
    first_call_seconds: float | None = None
    break_even_calls: int | None = None
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
    bimodal: bool = False


@dataclass(frozen=True)
class Quality:
    """How good a trained model is.

    Attributes:
        metric: 'accuracy', 'hits@50', 'mrr'.
        value: From 0 to 1.
        epochs: Epochs trained.
    """

    metric: str
    value: float
    epochs: int


@dataclass(frozen=True)
class Record:
    """One case and what came of it.

    Attributes:
        file: Name of the file.
        key: The sweep's content key.
        case: What was run.
        outcome: 'ok' or the kind of failure of the case as a whole.
        reason: The failure in words.
        stderr: The end of what the process wrote to stderr.
        started: When, as ISO 8601.
        harness_seconds: Wall seconds that were neither timed nor compiling.
        harness_allowed: How many of them the study grants itself.
        environment: Versions and machine.
        stand_in: Whether the data is generated; None where it was not loaded.
        task: 'node', 'link', 'kg' or 'graph'; None where the data was not loaded.
        phases: Figures by phase; a phase that was not run is not in it.
        noise: How far the A/A interval reaches from 1 (0.03 is 3 %), by phase.
        quality: How good the trained model is.
        throughput: Units per second by phase, and edges per second by 'edges_' and the phase.
        throughput_unit: The unit, such as 'nodes/s'.
        loader: Seconds per batch of training, by part: 'sampling_seconds', 'transfer_seconds',
            'compute_seconds', 'end_to_end_seconds'.
        cpu_utilisation: Share of its threads that the process kept busy, 0..1.
    """

    file: str
    key: str
    case: Case
    outcome: str
    reason: str | None
    stderr: str
    started: str
    harness_seconds: float | None
    harness_allowed: float | None
    environment: Mapping[str, str | None]
    stand_in: bool | None
    task: str | None
    phases: Mapping[str, Figures]
    noise: Mapping[str, float]
    quality: Quality | None
    throughput: Mapping[str, float]
    throughput_unit: str | None
    loader: Mapping[str, float]
    cpu_utilisation: float | None


@dataclass(frozen=True)
class Skipped:
    """A file that was not read.

    Attributes:
        file: Its name.
        reason: Why not.
    """

    file: str
    reason: str


@dataclass(frozen=True)
class Environment:
    """Records of one machine and one set of versions.

    Attributes:
        name: Short name made from what tells it from the others.
        entries: Versions and machine, as far as all its records agree.
        differs: What tells it from the other environments; empty if there is only one.
        records: Its records, in the order of their keys.
    """

    name: str
    entries: Mapping[str, str]
    differs: Mapping[str, str | None]
    records: tuple[Record, ...]
