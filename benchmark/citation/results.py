"""What a citation script measured, as lines and as a JSON record.

Two durations are reported. *Duration* is the wall time of a whole run: every epoch's training step
and its evaluation, between two synchronisations. *Time* is one training step (forward, loss,
backward, optimizer), or one forward pass with `--inference`. Neither holds the loading of the data,
the warm-up or the compilation: those come first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.citation.settings import Settings
from gnnprof._statistics import mean, median, median_interval, sample_std

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class TrainingRun:
    """One training from fresh parameters.

    Attributes:
        seed: Seed of the parameters, the dropout and, with random splits, the split.
        epochs: Epochs until the end or the early stop.
        val_loss: Lowest validation loss (mean negative log-likelihood, nats).
        test_accuracy: Share of test nodes classified rightly at that epoch, 0..1.
        seconds: Wall time of all epochs, evaluation included.
        step_seconds: Wall time of each training step.
    """

    seed: int
    epochs: int
    val_loss: float
    test_accuracy: float
    seconds: float
    step_seconds: tuple[float, ...]


@dataclass(frozen=True)
class CitationResult:
    """What one call of a script measured.

    Attributes:
        network: Name of the model.
        settings: What was asked for.
        dataset: The graph's name, whether it is a stand-in, its fingerprint.
        runs: One entry per training run; none for inference.
        step_seconds: The last run's training steps, or all forward passes of inference.
        compile_seconds: Wall time of the warm-up, in which torch compiles; None without compiling.
        recompiled: Graphs compiled after the warm-up, which would taint the durations; None without
            compiling.
        environment: Versions, device, threads.
    """

    network: str
    settings: Settings
    dataset: Mapping[str, object]
    runs: tuple[TrainingRun, ...]
    step_seconds: tuple[float, ...]
    compile_seconds: float | None
    recompiled: int | None
    environment: Mapping[str, str | int]

    def to_record(self) -> dict[str, object]:
        """Return everything as JSON takes it, raw samples included."""
        return {
            "schema_version": SCHEMA_VERSION,
            "benchmark": "citation",
            "network": self.network,
            "task": "inference" if self.settings.inference else "training",
            "settings": dataclasses.asdict(self.settings),
            "dataset": dict(self.dataset),
            "runs": [_without_steps(run) for run in self.runs],
            "test_accuracy": _mean_and_std([run.test_accuracy for run in self.runs]),
            "run_seconds": _median_and_interval([run.seconds for run in self.runs]),
            "step_seconds": _median_and_interval(self.step_seconds),
            "step_seconds_samples": list(self.step_seconds),
            "compile_seconds": self.compile_seconds,
            "recompiled": self.recompiled,
            "environment": dict(self.environment),
        }

    def summary(self) -> str:
        """Return the lines that a script prints."""
        lines = []
        if self.runs:
            accuracy = [run.test_accuracy for run in self.runs]
            spread = sample_std(accuracy)
            lines.append(
                f"Val Loss: {mean([run.val_loss for run in self.runs]):.4f}, "
                f"Test Accuracy: {mean(accuracy):.3f} ± "
                f"{'n/a' if spread is None else format(spread, '.3f')}, "
                f"Duration: {mean([run.seconds for run in self.runs]):.3f}s"
            )
        what = "forward pass" if self.settings.inference else "training step"
        lines.append(
            f"Time: {self.step_seconds[-1]:.8f}s (last {what}; "
            f"median of {len(self.step_seconds)}: {median(self.step_seconds):.8f}s)"
        )
        if self.compile_seconds is not None:
            lines.append(f"Compile: {self.compile_seconds:.3f}s (warm-up, in no other figure)")
        if self.recompiled:
            lines.append(f"Warning: {self.recompiled} graphs were compiled inside the durations.")
        return "\n".join(lines)


def _without_steps(run: TrainingRun) -> dict[str, object]:
    record = dataclasses.asdict(run)
    record["median_step_seconds"] = median(record.pop("step_seconds"))
    return record


def _mean_and_std(samples: Sequence[float]) -> dict[str, float | None] | None:
    if not samples:
        return None
    return {"mean": mean(samples), "sample_std": sample_std(samples)}


def _median_and_interval(samples: Sequence[float]) -> dict[str, object] | None:
    if not samples:
        return None
    return {"median": median(samples), "interval_95": median_interval(samples)}
