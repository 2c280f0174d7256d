"""Drop-in, better torch_geometric.profile: every microsecond of a GNN lands in a named row."""

from typing import TYPE_CHECKING, Any

from gnnprof._records import BenchmarkResult, ProfileRow, Timing
from gnnprof._stats import (
    CPUStats,
    CPUStatsSummary,
    CUDAStats,
    CUDAStatsSummary,
    GPUStats,
    GPUStatsSummary,
    MPSStats,
    MPSStatsSummary,
    get_stats_summary,
)
from gnnprof._version import __version__
from gnnprof.benchmark import benchmark
from gnnprof.nvtx import nvtxit
from gnnprof.profile import (
    print_time_total,
    profileit,
    rename_profile_file,
    timeit,
    torch_profile,
    trace_handler,
    xpu_profile,
)
from gnnprof.profiler import Profiler
from gnnprof.utils import (
    count_parameters,
    get_cpu_memory_from_gc,
    get_data_size,
    get_gpu_memory_from_gc,
    get_gpu_memory_from_ipex,
    get_gpu_memory_from_nvidia_smi,
    get_model_size,
)

if TYPE_CHECKING:
    from gnnprof.compilation import CompileReport, CompileRow, compile_benchmark

__all__ = [  # noqa: RUF022 (the names of torch_geometric.profile first, in its order)
    "profileit",
    "timeit",
    "get_stats_summary",
    "trace_handler",
    "print_time_total",
    "rename_profile_file",
    "torch_profile",
    "xpu_profile",
    "count_parameters",
    "get_model_size",
    "get_data_size",
    "get_cpu_memory_from_gc",
    "get_gpu_memory_from_gc",
    "get_gpu_memory_from_nvidia_smi",
    "get_gpu_memory_from_ipex",
    "benchmark",
    "nvtxit",
    # What the reference does not export, or does not have.
    "Profiler",
    "ProfileRow",
    "GPUStats",
    "CUDAStats",
    "CPUStats",
    "MPSStats",
    "GPUStatsSummary",
    "CUDAStatsSummary",
    "CPUStatsSummary",
    "MPSStatsSummary",
    "BenchmarkResult",
    "Timing",
    "compile_benchmark",
    "CompileReport",
    "CompileRow",
    "__version__",
]

classes = __all__[:17]
"""The names of `torch_geometric.profile`, for docs pages that loop over `classes`."""


_OF_COMPILATION = ("compile_benchmark", "CompileReport", "CompileRow")


def __getattr__(name: str) -> Any:
    """Import what needs torch's compiler at its first use; importing that takes a second."""
    if name in _OF_COMPILATION:
        from gnnprof import compilation

        return getattr(compilation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
