"""Binding loader workers to CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch_geometric.data import HeteroData

from benchmark.cpus import usable_cpus
from benchmark.drivers.settings import CommonSettings


def cores_for(settings: CommonSettings, process: int = 0) -> tuple[int, ...]:
    """Return one CPU per worker: those named, else the first that this process may use.

    Empty where no affinity was asked for.

    Args:
        settings: Workers and CPUs.
        process: Which of several processes with as many workers each: the CPUs after those of the
            earlier ones are taken.

    Raises:
        ValueError: If there are not enough CPUs, one named is not to be had, or this system
            cannot bind processes.
    """
    if not settings.cpu_affinity:
        return ()
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("--cpu-affinity: this system cannot bind processes to CPUs; leave it out.")
    usable = usable_cpus()
    if settings.loader_cores:
        missing = [core for core in settings.loader_cores if core not in usable]
        if missing:
            raise ValueError(f"--loader-cores={missing[0]} is not usable; give some of {usable}.")
        return settings.loader_cores
    first = process * settings.num_workers
    if first + settings.num_workers > len(usable):
        raise ValueError(
            f"--cpu-affinity: {first + settings.num_workers} workers for the {len(usable)} CPUs "
            "that this process may use; give fewer --num-workers."
        )
    return tuple(usable[first : first + settings.num_workers])


@contextmanager
def bound_workers(loader: Any, cores: Sequence[int]) -> Iterator[Mapping[str, object] | None]:
    """Bind each worker that a loader starts in the body to its CPU; afterwards none any more.

    PyG's own means is used where the loader has it. On a heterogeneous graph PyG advises against
    it with a warning, so there and for other loaders the workers bind themselves.

    Args:
        loader: The loader; its workers live as long as one iteration.
        cores: One CPU per worker; nothing is done if empty.

    Yields:
        Who binds, and to which CPUs; None for nobody.
    """
    if not cores:
        yield None
        return
    if hasattr(loader, "enable_cpu_affinity") and not _is_heterogeneous(loader):
        # PyG puts a wrapper of its own in the place of what was there.
        before = loader.worker_init_fn
        try:
            with loader.enable_cpu_affinity(list(cores)):
                yield {"cores": list(cores), "by": "torch_geometric"}
        finally:
            loader.worker_init_fn = before
        return
    before = loader.worker_init_fn
    loader.worker_init_fn = _Bind(tuple(cores), before)
    try:
        yield {"cores": list(cores), "by": "os.sched_setaffinity"}
    finally:
        loader.worker_init_fn = before


def _is_heterogeneous(loader: Any) -> bool:
    return isinstance(loader.data, HeteroData)


class _Bind:
    """The first thing a worker does: bind itself, then what it would have done before."""

    def __init__(self, cores: tuple[int, ...], then: Callable[[int], None] | None) -> None:
        self._cores = cores
        self._then = then

    def __call__(self, worker_id: int) -> None:
        os.sched_setaffinity(0, {self._cores[worker_id]})
        if self._then is not None:
            self._then(worker_id)
