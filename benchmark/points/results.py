"""What a script on point clouds measured, as lines and as a JSON record.

*Duration* is the wall time of an epoch: the training steps and the evaluation on the test clouds,
from an idle device to an idle device. With `--inference`, *Time* is a pass over the test clouds.
Putting batches together and searching neighbours is in both, as the network searches anew at each
call; loading the data, warm-up and compilation are in neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.classification.training import Epoch
from benchmark.points.settings import Settings
from gnnprof._statistics import median, median_interval
from gnnprof._stats import Stats

NOT_MEASURED = ("root", "download", "json", "profile", "smoke", "device", "threads")
"""The settings that leave the figures alone; device and threads are in the environment."""


@dataclass(frozen=True)
class PointsResult:
    """What one call of a script measured.

    Attributes:
        network: Name of the model.
        settings: What was asked for.
        dataset: Its name, whether it is a stand-in, its fingerprint.
        spatial: The library that searched neighbours.
        majority: Share of the test clouds in their largest class: what guessing reaches.
        epochs: What each epoch did; none for inference.
        pass_seconds: Wall time of each pass of inference; none for training.
        memory: Time and peak memory of one more step, on the largest batch.
        compile_seconds: Wall time of the warm-up, in which torch compiles; None without compiling.
        recompiled: Graphs compiled after the warm-up, which would taint the durations; None without
            compiling.
        trace: Name of the trace; None without a profile.
        environment: Versions, device, threads.
    """

    network: str
    settings: Settings
    dataset: Mapping[str, object]
    spatial: str
    majority: float
    epochs: tuple[Epoch, ...]
    pass_seconds: tuple[float, ...]
    memory: Stats
    compile_seconds: float | None
    recompiled: int | None
    trace: str | None
    environment: Mapping[str, str | int]

    def to_record(self) -> dict[str, object]:
        """Return everything as JSON takes it, raw samples included."""
        flags = dataclasses.asdict(self.settings)
        case = {name: value for name, value in flags.items() if name not in NOT_MEASURED}
        return {
            "benchmark": "points",
            "case": {"network": self.network, "task": self.settings.task, **case},
            "dataset": dict(self.dataset),
            "environment": {**self.environment, "spatial": self.spatial},
            "outcome": "ok",
            "test_accuracy": self.epochs[-1].test.accuracy if self.epochs else None,
            "majority": self.majority,
            "epochs": [dataclasses.asdict(epoch) for epoch in self.epochs],
            "epoch_seconds": _median_and_interval([epoch.seconds for epoch in self.epochs]),
            "pass_seconds": _median_and_interval(self.pass_seconds),
            "pass_seconds_samples": list(self.pass_seconds),
            "memory": dataclasses.asdict(self.memory),
            "compile_seconds": self.compile_seconds,
            "recompiled": self.recompiled,
            "trace": self.trace,
        }

    def summary(self) -> str:
        """Return the lines that a script prints at its end."""
        lines = []
        if self.epochs:
            last = self.epochs[-1]
            durations = [epoch.seconds for epoch in self.epochs]
            loading = sum(epoch.loading_seconds for epoch in self.epochs)
            training = sum(epoch.train_seconds for epoch in self.epochs)
            lines.append(
                f"Test Accuracy: {last.test.accuracy:.3f} after {len(self.epochs)} epochs "
                f"(the largest class: {self.majority:.3f}), Duration: {median(durations):.3f}s per "
                f"epoch (median), {loading / training:.1%} of the training spent on loading"
            )
        else:
            lines.append(
                f"Time: {self.pass_seconds[-1]:.8f}s (last pass over the test clouds; median of "
                f"{len(self.pass_seconds)}: {median(self.pass_seconds):.8f}s)"
            )
        if self.compile_seconds is not None:
            lines.append(f"Compile: {self.compile_seconds:.3f}s (warm-up, in no other figure)")
        if self.recompiled:
            lines.append(f"Warning: {self.recompiled} graphs were compiled inside the durations.")
        return "\n".join([*lines, f"One step with the largest batch: {self.memory}"])


def _median_and_interval(samples: Sequence[float]) -> dict[str, object] | None:
    if not samples:
        return None
    return {"median": median(samples), "interval_95": median_interval(samples)}
