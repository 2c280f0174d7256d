"""What is printed and written once torch's profiler has stopped: op table, CSV columns, trace."""

from __future__ import annotations

import operator
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import profile

from gnnprof import _files

#: The trace's name by the contract of torch_geometric.profile, in the current directory.
TIMELINE = "timeline.json"


def write_trace(prof: profile, path: Path) -> Path:
    """Write the Chrome trace, with the rank in its name where there are several.

    An earlier file is kept under another name, except ``timeline.json``: by contract each
    profile replaces it.

    Returns:
        The path written.
    """
    target = _files.ranked(path)
    if path != Path(TIMELINE):
        _keep_earlier(target)
    return _files.write_atomically(
        target, lambda temporary: prof.export_chrome_trace(str(temporary)), overwrite=True
    )


def _keep_earlier(path: Path) -> None:
    aside = _files.set_aside(path)
    if aside is not None:
        print(f"The earlier {path} is now {aside}", flush=True)  # noqa: T201  # nobody asked


def trace_handler(p: profile) -> None:
    """Print a profiler's op table and write its trace to ``timeline.json`` here.

    Made to be given to ``torch.profiler.profile(on_trace_ready=trace_handler)``.

    Args:
        p: A profiler that has stopped recording.
    """
    print_time_total(p)
    write_trace(p, Path(TIMELINE))


def print_time_total(p: profile) -> None:
    """Print a profiler's op table, sorted by self time on the device, or else on the CPU.

    Args:
        p: A profiler that has stopped recording.
    """
    averages = p.key_averages()
    on_device = any(op.self_device_time_total for op in averages)
    table = averages.table(sort_by=_self_time(on_device))
    print(table, flush=True)  # noqa: T201  # the contract


def _self_time(on_device: bool) -> str:
    return "self_device_time_total" if on_device else "self_cpu_time_total"


def costliest_ops(prof: profile, on_device: bool) -> list[Any]:
    """List the ops of a profile, the one with the highest self time first."""
    # Kernels have rows of their own beside the ops that launched them: their time counts once.
    ops = [op for op in prof.key_averages() if op.device_type == DeviceType.CPU]
    return sorted(ops, key=operator.attrgetter(_self_time(on_device)), reverse=True)


def format_prof_time(time: float) -> float:
    """Turn the profiler's microseconds into seconds, without rounding."""
    return time / 1e6


def save_profile_data(
    csv_data: MutableMapping[str, list[Any]], events: Sequence[Any], use_cuda: bool
) -> None:
    """Append the first five ops of a profile to the columns of a table.

    Times are in seconds: SELF is without, TOTAL with the ops called inside, TIME AVG is TOTAL per
    call. Percentages are of the summed self time of all `events`.

    Args:
        csv_data: Lists by column name; missing ones are made.
        events: Rows of ``key_averages()``, the costliest first.
        use_cuda: Whether to fill the CUDA columns as well, with device time.
    """
    cpu_sum = sum(event.self_cpu_time_total for event in events)
    device_sum = sum(event.self_device_time_total for event in events) if use_cuda else 0.0
    for event in events[:5]:
        row = {"NAME": event.key, **_cpu_columns(event, cpu_sum)}
        if use_cuda:
            row |= _device_columns(event, device_sum)
        row["# OF CALLS"] = event.count
        for column, value in row.items():
            csv_data.setdefault(column, []).append(value)


def _cpu_columns(event: Any, whole: float) -> dict[str, Any]:
    return {
        "SELF CPU %": _percentage(event.self_cpu_time_total, whole),
        "SELF CPU": format_prof_time(event.self_cpu_time_total),
        "CPU TOTAL %": _percentage(event.cpu_time_total, whole),
        "CPU TOTAL": format_prof_time(event.cpu_time_total),
        "CPU TIME AVG": format_prof_time(event.cpu_time_total / event.count),
    }


def _device_columns(event: Any, whole: float) -> dict[str, Any]:
    return {
        "SELF CUDA %": _percentage(event.self_device_time_total, whole),
        "SELF CUDA": format_prof_time(event.self_device_time_total),
        "CUDA TOTAL": format_prof_time(event.device_time_total),
        "CUDA TIME AVG": format_prof_time(event.device_time_total / event.count),
    }


def _percentage(part: float, whole: float) -> float:
    # If the device did nothing at all, an op's part of that is nothing too.
    return part * 100 / whole if whole else 0.0


def rename_profile_file(*args: object) -> Path:
    """Rename ``timeline.json`` in the current directory to ``profile-a-b.json``.

    An earlier file of that name is kept as ``profile-a-b.1.json``, and a line says so. Under
    torch.distributed both names carry the rank, as `torch_profile` wrote it.

    Args:
        *args: Parts of the new name, of any type; slashes in them become underscores.

    Returns:
        The new path.

    Raises:
        FileNotFoundError: If there is no ``timeline.json`` here.
    """
    parts = [str(part).replace("/", "_").replace("\\", "_") for part in args]
    timeline = _files.ranked(TIMELINE)
    if not timeline.exists():
        raise FileNotFoundError(
            f"there is no {timeline} in {Path.cwd()}; torch_profile() writes it to the directory "
            "that is current when its block ends"
        )
    target = _files.ranked("-".join(["profile", *parts]) + ".json")
    _keep_earlier(target)
    return timeline.rename(target)
