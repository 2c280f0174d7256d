"""Time and memory of a step, and torch's own op table: timeit, profileit, torch_profile.

Times are in seconds. Memory figures are in MiB (2**20 bytes), except those of ``nvidia-smi``,
which keep the unit of ``torch_geometric.profile``: MB.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.profiler import ProfilerActivity, profile

from gnnprof import _device, _events, _wrapping
from gnnprof._interrupts import interrupts_deferred
from gnnprof._stats import (
    CPUStats,
    CPUStatsSummary,
    CUDALineStats,
    CUDAStats,
    CUDAStatsSummary,
    GPUStats,
    GPUStatsSummary,
    MPSStats,
    MPSStatsSummary,
    Stats,
    get_stats_summary,
)
from gnnprof._tensors import iter_tensors
from gnnprof._timing import timeit
from gnnprof._traces import (
    TIMELINE,
    costliest_ops,
    format_prof_time,
    print_time_total,
    rename_profile_file,
    save_profile_data,
    trace_handler,
    write_trace,
)
from gnnprof.utils import get_gpu_memory_from_nvidia_smi

__all__ = [
    "CPUStats",
    "CPUStatsSummary",
    "CUDALineStats",
    "CUDAStats",
    "CUDAStatsSummary",
    "GPUStats",
    "GPUStatsSummary",
    "MPSStats",
    "MPSStatsSummary",
    "format_prof_time",
    "get_stats_summary",
    "print_time_total",
    "profileit",
    "rename_profile_file",
    "save_profile_data",
    "timeit",
    "torch_profile",
    "trace_handler",
    "xpu_profile",
]

# -- profileit ------------------------------------------------------------------------------------


def profileit(
    device: str | None = None, *, line_profile: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function to return, beside its result, the time and peak memory of the call.

    On CUDA and XPU the time lies between two device events around the call, and the peaks are
    those of the caching allocator over the whole call: forward, backward and optimizer. The
    allocator has one set of peak counters; they start anew with each call, and what they held
    before is lost, but for decorated calls around this one. Work on other streams and devices,
    too, has ended when the time is taken.

    A decorated coroutine function is measured until its coroutine has returned; a decorated
    generator function until its generator ends, and its return value (of ``yield from``) becomes
    ``(out, stats)``.

    Example:
        >>> @profileit("cuda")
        ... def train(model, x, edge_index, y):
        ...     loss = criterion(model(x, edge_index), y)
        ...     loss.backward()
        ...     return loss.item()
        >>> loss, stats = train(model, x, edge_index, y)
        >>> stats.max_allocated_gpu
        41.5

    Args:
        device: 'cuda' or 'xpu': the function's first argument is then a module, and the first
            tensor among its arguments (inside containers, if none is given directly) lies on the
            device to measure. None: the first accelerator that the arguments or their modules'
            parameters lie on, otherwise the CPU.
        line_profile: Also trace ``model.forward`` line by line with pytorch_memlab, on CUDA.
            This slows the call down many times, and its time with it, and empties the
            allocator's cache.

    Returns:
        A decorator. The decorated function returns ``(out, stats)``, where ``stats`` is a
        `CUDAStats` (`CUDALineStats` with `line_profile`), `GPUStats` for XPU, `CPUStats` or
        `MPSStats`.

    Raises:
        AttributeError: If `device` is anything else. The decorated function raises it if its first
            argument is not a module or no argument tells the device.
        ValueError: If `line_profile` is asked of a device other than 'cuda'.
        RuntimeError: From the decorated function, if the first tensor is not on such a device.
    """
    if not (device is None or (isinstance(device, str) and device in _device.EVENT_BACKENDS)):
        raise AttributeError(
            f"The profiling decorator supports only CUDA and XPU devices (got device={device!r}); "
            f"give 'cuda' or 'xpu', or nothing to take the device from the arguments"
        )
    if line_profile and device != "cuda":
        raise ValueError(f"line_profile needs device='cuda' (got device={device!r})")

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Measurement:
        if device is None:
            return _measurement(_infer_device(args, kwargs))
        model = _first_argument(args, kwargs)
        if not isinstance(model, torch.nn.Module):
            raise AttributeError(
                "First argument for profiling needs to be torch.nn.Module "
                f"(got a {type(model).__name__})"
            )
        target = _find_device(device, args, kwargs)
        return _CUDALineMeasurement(target, model) if line_profile else _measurement(target)

    def decorator(func: Any) -> Any:
        if inspect.isasyncgenfunction(_wrapping.code_of(func)):
            raise TypeError(
                "an async generator cannot return its stats; decorate the coroutine that "
                "consumes it, or use timeit"
            )
        return _wrapping.wrap(func, begin, _with_stats)

    return decorator


def _with_stats(out: Any, measurement: _Measurement) -> tuple[Any, Stats]:
    return out, measurement.stats()


def _first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return next(iter((*args, *kwargs.values())), None)


def _find_device(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Find the device to measure: that of the first tensor, a direct one before a nested one."""
    values = [v for v in (*args, *kwargs.values()) if not isinstance(v, torch.nn.Module)]
    direct = (value for value in values if isinstance(value, torch.Tensor))
    tensor = next(direct, None)
    if tensor is None:
        tensor = next(iter_tensors(values), None)
    if tensor is None:
        raise AttributeError(
            "Could not infer GPU device from the args in the function being profiled: none of "
            "them holds a tensor; pass one that lies on the device"
        )
    index = tensor.get_device()
    if index < 0 or tensor.device.type not in (kind, "cpu"):
        raise RuntimeError(
            "The profiling decorator does not support profiling on non GPU devices: the first "
            f"tensor lies on {tensor.device}, not on {kind!r}; move it there, or decorate with "
            "profileit() to take the device from the arguments"
        )
    return torch.device(kind, index)


def _infer_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Find the first accelerator that the arguments lie on, otherwise the CPU."""
    # A list of a hundred thousand graphs need not be searched at every call.
    devices = [tensor.device for tensor in islice(iter_tensors((args, kwargs)), 1000)]
    accelerated = [device for device in devices if device.type not in ("cpu", "meta")]
    if accelerated and accelerated[0].type in _MEASUREMENTS:
        return accelerated[0]
    if accelerated:
        raise AttributeError(
            f"profileit cannot measure {accelerated[0]}; it supports the CPU, CUDA, XPU and MPS"
        )
    if not devices and _device.accelerator() is not None:
        raise AttributeError(
            "Could not infer the device from the arguments of the function being profiled: none "
            "of them holds a tensor; pass the model or a tensor, or give the device by name"
        )
    return torch.device("cpu")


def _measurement(device: torch.device) -> _Measurement:
    return _MEASUREMENTS[device.type](device)


class _Measurement:
    """One call being measured: a context manager that has the record afterwards."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.time = 0.0

    def __enter__(self) -> _Measurement:
        self._stop_timer = _device.start_timer(self.device)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:  # after an error nobody asks for the record, and the device may be lost
            self.time = self._stop_timer()

    def stats(self) -> Stats:
        raise NotImplementedError


class _GPUMeasurement(_Measurement):
    _running: ClassVar[list[_GPUMeasurement]] = []

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.peak = _device.PeakMemory(None, None, None)

    def __enter__(self) -> _Measurement:
        # There is one set of counters: what they hold is kept for the calls around this one.
        so_far = _device.peak_memory(self.device)
        for outer in self._running:
            if outer.device == self.device:
                outer.peak = outer.peak.or_higher(so_far)
        _device.reset_peak_memory(self.device)
        super().__enter__()
        self._running.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._running.remove(self)
        super().__exit__(kind, *rest)
        if kind is None:
            self.peak = self.peak.or_higher(_device.peak_memory(self.device))

    def stats(self) -> GPUStats:
        peak = self.peak
        return GPUStats(self.time, _mib(peak.allocated), _mib(peak.reserved), _mib(peak.active))


class _CUDAMeasurement(_GPUMeasurement):
    def stats(self) -> CUDAStats:
        gpu = vars(super().stats())
        try:
            free, used = get_gpu_memory_from_nvidia_smi(device=self.device.index)
        except (AttributeError, RuntimeError):  # no reason to lose what the call has made
            free = used = None
        return CUDAStats(**gpu, nvidia_smi_free_cuda=free, nvidia_smi_used_cuda=used)


class _CUDALineMeasurement(_CUDAMeasurement):
    """A call in which pytorch_memlab's tracer looks at every line of ``model.forward``."""

    def __init__(self, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(device)
        # Inside a compiled model no line runs as Python; those of the original can be shown.
        original = getattr(model, "_orig_mod", model)
        self._lines = _line_profiler_class()(original.forward, target_gpu=device.index)

    def __enter__(self) -> _Measurement:
        self._earlier_tracer = sys.gettrace()
        super().__enter__()
        self._lines.enable()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            super().__exit__(kind, *rest)
        finally:
            self._lines.disable()
            sys.settrace(self._earlier_tracer)
        if kind is None:
            self.peak = self._peak_of_all_lines()

    def _peak_of_all_lines(self) -> _device.PeakMemory:
        """Put the peak together: the tracer starts the counters anew at every line."""
        records: list[dict[str, int]] = self._lines._raw_line_records
        last = self.peak
        return _device.PeakMemory(
            _larger(last.allocated, records, "allocated_bytes.all.peak"),
            _larger(last.reserved, records, "reserved_bytes.all.peak"),
            _larger(last.active, records, "active_bytes.all.peak"),
        )

    def stats(self) -> CUDALineStats:
        return CUDALineStats(**vars(super().stats()), line_table=str(self._lines.display()))


def _line_profiler_class() -> Any:
    try:
        from pytorch_memlab import LineProfiler
    except ImportError as error:
        raise ImportError(
            'line_profile=True needs pytorch_memlab: pip install "gnnprof[memlab]"'
        ) from error
    return LineProfiler


def _larger(last: int | None, records: Sequence[dict[str, int]], key: str) -> int | None:
    peaks = [record[key] for record in records if key in record]
    return max(peaks if last is None else [*peaks, last], default=None)


class _CPUMeasurement(_Measurement):
    def __enter__(self) -> _Measurement:
        with ExitStack() as undo:
            with interrupts_deferred():
                self._session = _memory_session()
                undo.callback(self._stop)
            super().__enter__()
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            super().__exit__(kind, *rest)
        finally:
            self._highest_rss = _max_rss()  # before the events of the session are read
            self._stop()

    def _stop(self) -> None:
        with interrupts_deferred():
            if self._session is not None:
                self._session.stop()

    def stats(self) -> CPUStats:
        allocated = None if self._session is None else _peak_of(self._session.events().memory)
        return CPUStats(self.time, _mib(allocated), _mib(self._highest_rss))


def _memory_session() -> _events.Session | None:
    """Start recording allocations, unless a profiler session runs: torch allows only one."""
    session = _events.Session(accelerator=None, memory=True)
    try:
        with _events.starting_session("profileit"):
            session.start()
    except _events.SessionRunningError:
        return None
    return session


def _peak_of(allocations: Iterable[_events.MemoryEvent]) -> int:
    """Highest sum of the bytes allocated less the bytes freed so far, in order of time."""
    live = peak = 0
    for event in sorted(allocations, key=lambda event: event.start):
        if not event.on_device:
            live += event.nbytes
            peak = max(peak, live)
    return peak


def _max_rss() -> int | None:
    """Highest resident memory of this process so far, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024  # Linux tells KiB


class _MPSMeasurement(_Measurement):
    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self.allocated, self.held = _device.mps_memory()

    def stats(self) -> MPSStats:
        return MPSStats(self.time, _mib(self.allocated), _mib(self.held))


_MEASUREMENTS: dict[str, type[_Measurement]] = {
    "cuda": _CUDAMeasurement,
    "xpu": _GPUMeasurement,
    "cpu": _CPUMeasurement,
    "mps": _MPSMeasurement,
}


def _mib(nbytes: int | None) -> float | None:
    return None if nbytes is None else nbytes / 2**20


# -- torch_profile and its files ------------------------------------------------------------------


@contextmanager
def torch_profile(
    export_chrome_trace: bool | str | os.PathLike[str] = True,
    csv_data: MutableMapping[str, list[Any]] | None = None,
    write_csv: str | None = None,
) -> Iterator[profile]:
    """Profile a block with torch's profiler, print the op table and write the Chrome trace.

    The CPU is profiled, and CUDA or XPU where there is one. The table is sorted by self time on
    the device, or on the CPU without one. If the block raises, nothing is printed or written.

    Example:
        >>> with torch_profile() as prof:
        ...     model(x, edge_index)
        >>> prof.key_averages()  # still there afterwards

    Args:
        export_chrome_trace: Whether to write ``timeline.json`` in the current directory, over
            an earlier one; rank 1 of several processes writes ``timeline-rank1.json``. A path
            says where else: ``run.json.gz`` is compressed, and a file that is already there is
            kept under the name ``run.1.json.gz``.
        csv_data: Lists by column name, to which ``write_csv='prof'`` appends (see
            `save_profile_data`). Missing lists are made.
        write_csv: 'prof' to append the five costliest ops to `csv_data`. 'bench' and None leave
            `csv_data` alone.

    Yields:
        The ``torch.profiler.profile``, to be asked after the block.

    Raises:
        RuntimeError: If another profiler session is running.
        ValueError: If `write_csv` is something else, or 'prof' without `csv_data`.
        FileNotFoundError: If the folder of the trace does not exist.
    """
    _check_csv(csv_data, write_csv)
    trace = _trace_path(export_chrome_trace)
    accelerator = _device.accelerator()
    with _session("torch_profile", _device.profiler_activities(accelerator)) as prof:
        yield prof
    print_time_total(prof)
    if csv_data is not None and write_csv == "prof":
        use_device = accelerator in _device.EVENT_BACKENDS
        save_profile_data(csv_data, costliest_ops(prof, use_device), use_device)
    if trace is not None:
        write_trace(prof, trace)


@contextmanager
def xpu_profile(export_chrome_trace: bool | str | os.PathLike[str] = True) -> Iterator[profile]:
    """Profile a block on an Intel GPU: the same as `torch_profile`, which also serves XPU.

    Args:
        export_chrome_trace: As in `torch_profile`.

    Yields:
        The ``torch.profiler.profile``, to be asked after the block.

    Raises:
        RuntimeError: If there is no XPU, or another profiler session is running.
    """
    if _device.accelerator() != "xpu":
        raise RuntimeError(
            "xpu_profile found no XPU that torch can use; use torch_profile for other devices"
        )
    trace = _trace_path(export_chrome_trace)
    with _session("xpu_profile", _device.profiler_activities("xpu")) as prof:
        yield prof
    print_time_total(prof)
    if trace is not None:
        write_trace(prof, trace)


@contextmanager
def _session(what: str, activities: list[ProfilerActivity]) -> Iterator[profile]:
    prof = profile(activities=activities)

    def stop(*exc_info: Any) -> None:
        with interrupts_deferred():  # torn apart, torch would take the session for a running one
            prof.__exit__(*exc_info)  # type: ignore[no-untyped-call]

    with ExitStack() as undo:
        with interrupts_deferred(), _events.starting_session(what):
            prof.__enter__()  # type: ignore[no-untyped-call]
            undo.push(stop)
        yield prof
        _device.synchronize()  # torch waits for the current device only


def _check_csv(csv_data: object, write_csv: object) -> None:
    if write_csv not in (None, "", "prof", "bench"):
        raise ValueError(
            f"write_csv={write_csv!r}; give 'prof' to append the costliest ops to csv_data, or "
            "'bench' or None not to"
        )
    if write_csv == "prof" and csv_data is None:
        raise ValueError("write_csv='prof' needs csv_data; give a dict to append the columns to")
    if csv_data is not None and not isinstance(csv_data, MutableMapping):
        raise TypeError(
            f"csv_data is a {type(csv_data).__name__}; give a dict of lists by column name"
        )


def _trace_path(export: bool | str | os.PathLike[str]) -> Path | None:
    """Decide where the trace goes, before the block runs and its work can be lost."""
    if export is None or isinstance(export, (bool, int)):
        return Path(TIMELINE) if export else None
    if not isinstance(export, (str, os.PathLike)) or not str(export):
        raise TypeError(f"export_chrome_trace={export!r}; give True, False or the path of a file")
    path = Path(export)
    if path.is_dir():
        raise IsADirectoryError(
            f"export_chrome_trace={str(path)!r} is a folder; give the path of a file in it"
        )
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(
            f"export_chrome_trace={str(path)!r}: there is no folder {path.parent}; make it first"
        )
    return path.absolute()  # the block may change the current directory
