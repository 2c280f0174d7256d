"""The records that profileit returns, and the summary of several of them.

Times are in seconds. Memory figures are in MiB (2**20 bytes), except those of ``nvidia-smi``,
which keep the unit of ``torch_geometric.profile``: MB. An unknown figure is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from gnnprof._statistics import mean, sample_std


def _figure(unit: str) -> Any:
    """Declare a field of a record: a number in `unit`."""
    return field(metadata={"unit": unit})


@dataclass(repr=False)
class _Figures:
    """A record that shows each figure with its unit, and n/a for one that is unknown."""

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{f.name}={_with_unit(getattr(self, f.name), f.metadata['unit'])}"
            for f in fields(self)
            if f.repr
        )
        return f"{type(self).__name__}({shown})"


def _with_unit(figure: float | None, unit: str) -> str:
    return "n/a" if figure is None else f"{round(figure, 6)!r} {unit}"


# The records can be changed, as those of torch_geometric.profile can, which scripts rely on.


@dataclass(repr=False)
class GPUStats(_Figures):
    """What `profileit` measured on one GPU.

    Attributes:
        time: Seconds of device time line from before the call to after it.
        max_allocated_gpu: Highest memory in live tensors during the call, in MiB.
        max_reserved_gpu: Highest memory held by the caching allocator, in MiB.
        max_active_gpu: Highest memory in live tensors and blocks not yet free to reuse, in MiB.
    """

    time: float = _figure("s")
    max_allocated_gpu: float | None = _figure("MiB")
    max_reserved_gpu: float | None = _figure("MiB")
    max_active_gpu: float | None = _figure("MiB")


@dataclass(repr=False)
class CUDAStats(GPUStats):
    """What `profileit` measured on one CUDA device.

    Attributes:
        nvidia_smi_free_cuda: Free memory of the whole device after the call as ``nvidia-smi``
            tells it, in MB (not MiB), all processes counted; None if it does not tell.
        nvidia_smi_used_cuda: Used memory, likewise.
    """

    nvidia_smi_free_cuda: float | None = _figure("MB")
    nvidia_smi_used_cuda: float | None = _figure("MB")


@dataclass(repr=False)
class CUDALineStats(CUDAStats):
    """What ``profileit("cuda", line_profile=True)`` measured.

    Attributes:
        line_table: The lines of ``model.forward`` with their peak memory, as text.
    """

    line_table: str = field(default="", repr=False)


@dataclass(repr=False)
class CPUStats(_Figures):
    """What `profileit` measured on the CPU.

    Attributes:
        time: Seconds of the call, torch's memory recording included: about 5 microseconds
            per op (some ten milliseconds more pass outside this time). `timeit` gives the time
            without it.
        max_allocated_cpu: Highest memory in live tensors during the call, less what was live at
            its start, in MiB: exact, from every allocation and release of the calling thread.
            The release of a tensor made before the first profiled call is not seen by torch.
            None if another profiler session was running, in which torch cannot record a second
            one.
        max_rss: Highest resident memory of the whole process since it started, in MiB: Python,
            libraries and freed blocks not given back included. None where the system (Windows)
            does not tell.
    """

    time: float = _figure("s")
    max_allocated_cpu: float | None = _figure("MiB")
    max_rss: float | None = _figure("MiB")


@dataclass(repr=False)
class MPSStats(_Figures):
    """What `profileit` measured on Apple's MPS, whose allocator counts no peaks.

    Attributes:
        time: Seconds of the call, the device synchronised before and after.
        allocated_mps: Memory in live tensors after the call, in MiB.
        driver_allocated_mps: Memory held from Metal after the call, in MiB; it seldom shrinks,
            and so is close to the peak of what torch held.
    """

    time: float = _figure("s")
    allocated_mps: float | None = _figure("MiB")
    driver_allocated_mps: float | None = _figure("MiB")


@dataclass(repr=False)
class GPUStatsSummary(_Figures):
    """Several `GPUStats` in one.

    Attributes:
        time_mean: Mean time in seconds.
        time_std: Sample standard deviation of the time in seconds; None for a single record.
        max_allocated_gpu: Highest of all, in MiB; so are the others.
        max_reserved_gpu: Likewise.
        max_active_gpu: Likewise.
    """

    time_mean: float = _figure("s")
    time_std: float | None = _figure("s")
    max_allocated_gpu: float | None = _figure("MiB")
    max_reserved_gpu: float | None = _figure("MiB")
    max_active_gpu: float | None = _figure("MiB")


@dataclass(repr=False)
class CUDAStatsSummary(GPUStatsSummary):
    """Several `CUDAStats` in one.

    Attributes:
        min_nvidia_smi_free_cuda: Least free memory of those that were told, in MB (not MiB).
        max_nvidia_smi_used_cuda: Most used memory of those that were told, in MB (not MiB).
    """

    min_nvidia_smi_free_cuda: float | None = _figure("MB")
    max_nvidia_smi_used_cuda: float | None = _figure("MB")


@dataclass(repr=False)
class CPUStatsSummary(_Figures):
    """Several `CPUStats` in one.

    Attributes:
        time_mean: Mean time in seconds.
        time_std: Sample standard deviation of the time in seconds; None for a single record.
        max_allocated_cpu: Highest of those that are known, in MiB.
        max_rss: Likewise.
    """

    time_mean: float = _figure("s")
    time_std: float | None = _figure("s")
    max_allocated_cpu: float | None = _figure("MiB")
    max_rss: float | None = _figure("MiB")


@dataclass(repr=False)
class MPSStatsSummary(_Figures):
    """Several `MPSStats` in one.

    Attributes:
        time_mean: Mean time in seconds.
        time_std: Sample standard deviation of the time in seconds; None for a single record.
        max_allocated_mps: Highest of those that are known, in MiB.
        max_driver_allocated_mps: Likewise.
    """

    time_mean: float = _figure("s")
    time_std: float | None = _figure("s")
    max_allocated_mps: float | None = _figure("MiB")
    max_driver_allocated_mps: float | None = _figure("MiB")


Stats: TypeAlias = GPUStats | CPUStats | MPSStats
StatsSummary: TypeAlias = GPUStatsSummary | CPUStatsSummary | MPSStatsSummary


def get_stats_summary(stats_list: Iterable[Stats]) -> StatsSummary:
    """Summarise what several calls of a profiled function measured.

    Args:
        stats_list: Records of one kind of device. If not all of them are `CUDAStats`, what only
            those have is left out.

    Returns:
        Mean and sample standard deviation of the time, extremes of the memory: a
        `CUDAStatsSummary` for `CUDAStats`, and so on. Unknown figures are skipped; a figure that
        no record has is None.

    Raises:
        ValueError: If `stats_list` is empty.
        TypeError: If `stats_list` holds something else, or records of several kinds of device.
    """
    if not isinstance(stats_list, Iterable):
        raise TypeError(
            f"stats_list is {stats_list!r}; give a list of records that profiled calls returned"
        )
    stats = list(stats_list)
    if not stats:
        raise ValueError("stats_list is empty; give the records that profiled calls returned")
    times = [record.time for record in stats if isinstance(record, Stats)]
    for kind, summarise in _SUMMARIES:
        if all(isinstance(record, kind) for record in stats):
            return summarise(stats, mean(times), sample_std(times))
    kinds = ", ".join(sorted({type(record).__name__ for record in stats}))
    raise TypeError(f"stats_list holds {kinds}; give records of one kind of device")


def _known(stats: Sequence[Any], name: str) -> list[float]:
    return [value for record in stats if (value := getattr(record, name)) is not None]


def _highest(stats: Sequence[Any], *names: str) -> tuple[float | None, ...]:
    return tuple(max(_known(stats, name), default=None) for name in names)


def _summarise_gpu(
    stats: Sequence[Any], time_mean: float, time_std: float | None
) -> GPUStatsSummary:
    peaks = _highest(stats, "max_allocated_gpu", "max_reserved_gpu", "max_active_gpu")
    return GPUStatsSummary(time_mean, time_std, *peaks)


def _summarise_cuda(
    stats: Sequence[Any], time_mean: float, time_std: float | None
) -> CUDAStatsSummary:
    gpu = _summarise_gpu(stats, time_mean, time_std)
    return CUDAStatsSummary(
        **vars(gpu),
        min_nvidia_smi_free_cuda=min(_known(stats, "nvidia_smi_free_cuda"), default=None),
        max_nvidia_smi_used_cuda=max(_known(stats, "nvidia_smi_used_cuda"), default=None),
    )


def _summarise_cpu(
    stats: Sequence[Any], time_mean: float, time_std: float | None
) -> CPUStatsSummary:
    return CPUStatsSummary(time_mean, time_std, *_highest(stats, "max_allocated_cpu", "max_rss"))


def _summarise_mps(
    stats: Sequence[Any], time_mean: float, time_std: float | None
) -> MPSStatsSummary:
    peaks = _highest(stats, "allocated_mps", "driver_allocated_mps")
    return MPSStatsSummary(time_mean, time_std, *peaks)


# A more special kind stands before the kind it extends.
_SUMMARIES: tuple[tuple[type, Callable[..., StatsSummary]], ...] = (
    (CUDAStats, _summarise_cuda),
    (GPUStats, _summarise_gpu),
    (CPUStats, _summarise_cpu),
    (MPSStats, _summarise_mps),
)
