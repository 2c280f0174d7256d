"""What a driver is asked to do: the one frozen object that its flags become."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

NOT_MEASURED = (
    *("driver", "root", "download", "cache", "out", "progress_bar"),
    *("profile", "write_csv", "export_chrome_trace", "measure_load_time", "device"),
)
"""The settings that leave a case's figures alone; the device is in the environment."""

CSV_KINDS = ("bench", "prof")

SMOKE = {
    "batch_sizes": (32,),
    "num_layers": (2,),
    "hidden_channels": (8,),
    "num_neighbors": (3,),
    "num_steps": 2,
    "num_epochs": 1,
    "profile_steps": 1,
}
"""What `--smoke` puts in the place of larger values."""


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """What every driver is asked: data, loader, device, records.

    Attributes:
        driver: Name of the driver.
        datasets: Names of data sets: an axis of the cases.
        batch_sizes: Seed nodes per batch (of each process under 'multi_gpu'): an axis as well.
        num_steps: Batches in an epoch; None is all of the data, which inference layer by layer
            always takes.
        sampler: 'auto', 'pyg' or 'torch': see `benchmark.sampling`.
        num_workers: Processes that sample; 0 samples in the process that computes.
        filter_per_worker: Whether the workers gather the features as well; otherwise the process
            that computes does, while it waits for the batch.
        cpu_affinity: Whether each worker is bound to a CPU of its own.
        loader_cores: Those CPUs; none takes the first that this process may use.
        use_sparse_tensor: Hand the edges over as a sparse CSR matrix.
        profile: Afterwards, profile `profile_steps` batches.
        profile_steps: Batches in the profile.
        export_chrome_trace: Whether the profile leaves a trace.
        measure_load_time: Print what the record always holds.
        root: Folder of real data.
        download: Whether missing real data may be fetched.
        scale: Factor on the size of a stand-in; None is each one's own.
        cache: Folder to keep homogeneous stand-ins in.
        seed: Seed of parameters, dropout and sampling.
        device: Device to run on; None is the accelerator.
        threads: CPU threads of the process that computes.
        out: Folder of the records; None makes a new one.
        progress_bar: Whether to draw one on a terminal.
        smoke: Whether all was cut down to a few seconds.
    """

    AXES: ClassVar[tuple[str, ...]] = ("datasets", "batch_sizes")
    """The settings that span the cases; all others hold for every case."""

    driver: str
    datasets: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    num_steps: int | None = None
    sampler: str = "auto"
    num_workers: int = 0
    filter_per_worker: bool = False
    cpu_affinity: bool = False
    loader_cores: tuple[int, ...] = ()
    use_sparse_tensor: bool = False
    profile: bool = False
    profile_steps: int = 5
    export_chrome_trace: bool = True
    measure_load_time: bool = False
    root: Path | None = None
    download: bool = False
    scale: float | None = None
    cache: Path | None = None
    seed: int = 0
    device: str | None = None
    threads: int | None = None
    out: Path | None = None
    progress_bar: bool = True
    smoke: bool = False

    @property
    def is_profiled(self) -> bool:
        """Whether a profile is taken of every case."""
        return self.profile

    @property
    def is_trimmed(self) -> bool:
        """Whether batches have to tell what each hop has brought."""
        return False

    def measurement(self) -> dict[str, object]:
        """Return the settings that a case's figures depend on, beside the axes, as JSON takes them.

        Two runs may share a folder of records if these are the same.
        """
        values = {
            name: _plain(value)
            for name, value in dataclasses.asdict(self).items()
            if name not in (*self.AXES, *NOT_MEASURED)
        }
        return {**values, "is_profiled": self.is_profiled}


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """What a driver that runs a model is asked, read once from the command line.

    Attributes:
        models: Names out of `benchmark.drivers.models.MODELS`; with the next two, axes.
        num_layers: Layers of the model.
        hidden_channels: Width of the hidden layers.
        num_neighbors: Neighbours to sample per hop; one number holds for all layers, -1 takes all.
        num_heads: Attention heads of 'gat' and 'rgat'.
        num_epochs: Epochs (inference: passes) that are timed, each by itself.
        warmup: Epochs before, in none of the timings.
        trim: Leave out, layer by layer, the nodes that later layers do not need.
        full_batch: Every batch is the whole graph, without sampling.
        batch_wise: Inference on sampled neighbourhoods also where it could go layer by layer.
        cached_loader: Inference: sample once and keep the batches.
        reuse_device_for_embeddings: Layer-wise inference: keep the embeddings on the device.
        evaluate: Also tell the accuracy, outside of the timings.
        checkpoint: File with the parameters of the model.
        save_model: Whether to write the trained parameters into `out`.
        bf16: Autocast to bfloat16.
        compile: Whether torch compiles the model.
        vtune_profile: Emit ITT ranges while the epochs are timed.
        write_csv: 'bench' or 'prof': which table to write beside the records.
        processes: 'multi_gpu': ranks; None is one per accelerator, two on a CPU.
    """

    AXES: ClassVar[tuple[str, ...]] = (
        *("datasets", "models"),
        *("batch_sizes", "num_layers", "hidden_channels"),
    )

    models: tuple[str, ...]
    num_layers: tuple[int, ...]
    hidden_channels: tuple[int, ...]
    num_neighbors: tuple[int, ...]
    num_heads: int = 2
    num_epochs: int = 1
    warmup: int = 1
    trim: bool = False
    full_batch: bool = False
    batch_wise: bool = False
    cached_loader: bool = False
    reuse_device_for_embeddings: bool = False
    evaluate: bool = False
    checkpoint: Path | None = None
    save_model: bool = False
    bf16: bool = False
    compile: bool = False
    vtune_profile: bool = False
    write_csv: str | None = None
    processes: int | None = None

    @property
    def is_profiled(self) -> bool:
        """Whether a profile is taken of every case: the table 'prof' is made of profiles."""
        return self.profile or self.write_csv == "prof"

    @property
    def is_trimmed(self) -> bool:
        """Whether batches have to tell what each hop has brought."""
        return self.trim


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def settings_from(driver: str, args: argparse.Namespace) -> Settings:
    """Turn parsed flags into settings, cut down to a few seconds under `--smoke`.

    Args:
        driver: Name of the driver.
        args: What `driver_parser` made of the command line; other flags are left out.

    Raises:
        ValueError: If flags contradict each other.
    """
    settings = filled(Settings, driver, args)
    if settings.smoke:
        small: dict[str, Any] = dict(SMOKE)
        settings = dataclasses.replace(settings, **small)
    refuse_contradictions(settings)
    return settings


SomeSettings = TypeVar("SomeSettings", bound=CommonSettings)


def filled(kind: type[SomeSettings], driver: str, args: argparse.Namespace) -> SomeSettings:
    """Return the settings whose fields are the flags of the same name."""
    known = {field.name for field in dataclasses.fields(kind)} - {"driver"}
    values = {name: value for name, value in vars(args).items() if name in known}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return kind(driver=driver, **values)


def refuse_contradictions(settings: Settings) -> None:
    """Raise for flags that cannot hold together, before any work is done.

    Raises:
        ValueError: With the remedy.
    """
    refuse_bad_loading(settings)
    s = settings
    rules = (
        (
            s.compile and s.warmup == 0,
            "--compile with --warmup=0 would time the compilation; give --warmup of at least 1.",
        ),
        (
            s.trim and s.full_batch,
            "--trim cuts sampled batches, and --full-batch samples none; give one of the two.",
        ),
        (
            s.trim and s.use_sparse_tensor,
            "--trim cuts edge lists, and --use-sparse-tensor has none; give one of the two.",
        ),
        (
            s.full_batch and s.num_workers > 0,
            "--num-workers loads sampled batches, and --full-batch has none; leave it out.",
        ),
    )
    _raise_first(rules)
    refuse_bad_neighbors(s.num_neighbors)
    for layers in s.num_layers:
        hops_for(s.num_neighbors, layers)


def refuse_bad_loading(settings: CommonSettings) -> None:
    """Raise for flags of the loader's processes that cannot hold together.

    Raises:
        ValueError: With the remedy.
    """
    s = settings
    rules = (
        (
            s.cpu_affinity and s.num_workers == 0,
            "--cpu-affinity binds loader workers, and --num-workers=0 has none; give "
            "--num-workers of at least 1.",
        ),
        (
            bool(s.loader_cores) and not s.cpu_affinity,
            "--loader-cores has no effect without --cpu-affinity; add it.",
        ),
        (
            bool(s.loader_cores) and len(s.loader_cores) != s.num_workers,
            f"--loader-cores names {len(s.loader_cores)} CPUs for {s.num_workers} workers; give "
            "one CPU per worker.",
        ),
    )
    _raise_first(rules)


def _raise_first(rules: Sequence[tuple[bool, str]]) -> None:
    for broken, sentence in rules:
        if broken:
            raise ValueError(sentence)


def refuse_bad_neighbors(num_neighbors: Sequence[int]) -> None:
    """Raise for numbers of neighbours that mean nothing.

    Raises:
        ValueError: If one is neither positive nor -1.
    """
    for wrong in (k for k in num_neighbors if k != -1 and k < 1):
        raise ValueError(f"--num-neighbors={wrong}: give counts of at least 1, or -1 for all.")


def hops_for(num_neighbors: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return the neighbours to sample per hop: one hop for each layer.

    Raises:
        ValueError: If several numbers are given and they are not as many as the layers.
    """
    if len(num_neighbors) == 1:
        return tuple(num_neighbors) * num_layers
    if len(num_neighbors) != num_layers:
        raise ValueError(
            f"--num-neighbors={list(num_neighbors)} has {len(num_neighbors)} hops for a model of "
            f"{num_layers} layers; give one number, or one per layer."
        )
    return tuple(num_neighbors)
