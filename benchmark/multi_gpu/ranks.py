"""The processes of a data-parallel run: who starts them, and how they meet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gnnprof import _device

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
"""How processes talk, by the type of their devices."""

DEFAULT_ON_CPU = 2

PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others before it gives up; the first one may process data."""


@dataclass(frozen=True)
class Rank:
    """One process of a run.

    Attributes:
        rank: Its number, from 0.
        world_size: How many there are.
        local_rank: Its number on this machine: that of its accelerator.
        device_type: 'cpu', 'cuda' or 'xpu'.
        init_method: Where the processes meet, as torch.distributed takes it.
    """

    rank: int
    world_size: int
    local_rank: int
    device_type: str
    init_method: str

    @property
    def device(self) -> torch.device:
        """The device that this process trains on."""
        if self.device_type == "cpu":
            return torch.device("cpu")
        return torch.device(self.device_type, self.local_rank)


def device_type_of(name: str | None) -> str:
    """Return the type of the devices to train on: the one named, else the accelerator's.

    Raises:
        ValueError: If one device is named, this machine has none of the type, or processes cannot
            share work there.
    """
    accelerator = _device.accelerator()
    kind, _, index = (name or accelerator or "cpu").partition(":")
    if index:
        raise ValueError(
            f"--device={name} names one device, and each process takes one of its own; give "
            f"--device={kind}."
        )
    if kind not in BACKENDS:
        raise ValueError(f"--device={name}: processes cannot share work there; give cpu or cuda.")
    if kind not in ("cpu", accelerator):
        usable = f"cpu or {accelerator}" if accelerator in BACKENDS else "cpu"
        raise ValueError(f"--device={name} is not usable on this machine; give {usable}.")
    return kind


def process_count(asked: int | None, device_type: str) -> int:
    """Return how many processes to start.

    Args:
        asked: What was asked for; None is one per accelerator, two on a CPU.
        device_type: 'cpu', 'cuda' or 'xpu'.

    Raises:
        ValueError: If there are fewer accelerators than processes.
    """
    if device_type == "cpu":
        return asked or DEFAULT_ON_CPU
    there = _device.backend(device_type).device_count()
    if asked is not None and asked > there:
        raise ValueError(
            f"--n-gpus={asked}: this machine has {there} of type {device_type}; give at most that."
        )
    return asked or int(there)


def launched_rank(
    device_type: str, environment: MutableMapping[str, str] = os.environ
) -> Rank | None:
    """Return which process this is of those that torchrun or mpirun started; None without them.

    torchrun sets RANK and WORLD_SIZE; MPI's launchers set PMI_RANK and PMI_SIZE (MPICH, Intel) or
    OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), which are then put under torch's names.
    """
    found = _from_mpi(environment) if "RANK" not in environment else None
    if found is not None:
        environment.update(found)
        environment.setdefault("MASTER_ADDR", "127.0.0.1")
        environment.setdefault("MASTER_PORT", "29500")
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    rank = int(environment["RANK"])
    return Rank(
        rank=rank,
        world_size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment.get("LOCAL_RANK", rank)),
        device_type=device_type,
        init_method="env://",
    )


def _from_mpi(environment: Mapping[str, str]) -> dict[str, str] | None:
    for rank, size, local in (
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ):
        if rank in environment and size in environment:
            found = {"RANK": environment[rank], "WORLD_SIZE": environment[size]}
            if local in environment:
                found["LOCAL_RANK"] = environment[local]
            return found
    return None


def meeting_place(folder: Path) -> str:
    """Return an `init_method` for processes of this machine: a file, so no port can be taken."""
    return f"file://{folder.absolute() / 'meeting'}"


@contextmanager
def process_group(rank: Rank) -> Iterator[None]:
    """Join the other processes for the body."""
    if rank.device_type != "cpu":
        _device.backend(rank.device_type).set_device(rank.device)
    dist.init_process_group(
        BACKENDS[rank.device_type],
        init_method=rank.init_method,
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=PATIENCE,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
