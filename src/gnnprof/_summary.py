"""What holds for a whole profile: totals, environment, peaks, and what the profiler itself did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gnnprof import _device
from gnnprof._attribution import RowKey
from gnnprof._process import this_process
from gnnprof._recorder import Recorder
from gnnprof._tables import format_bytes, format_time

SCHEMA = "gnnprof.profile/1"
"""Name and version of the JSON that a profile is saved as."""


def summary_of(
    recorder: Recorder, model: str, coverage: float, overhead_ratio: float | None
) -> dict[str, Any]:
    """Return it as the JSON header has it and the page takes it.

    Args:
        recorder: What recorded the block, settled.
        model: Class name of the model.
        coverage: Share of the total time that the rows account for.
        overhead_ratio: Time of a step under the profiler by its time without; None if not measured.
    """
    accelerator = recorder.accelerator
    return {
        "schema": SCHEMA,
        "model": model,
        **this_process()._asdict(),  # what `gnnprof report` merges by
        "accelerator": accelerator,
        "steps": recorder.steps,
        "total_time": recorder.attribution.whole_ns * 1e-9,
        "coverage": coverage,
        "environment": _device.environment(torch.device(accelerator or "cpu")),
        "overhead": {
            "markers": recorder.markers.recorded,
            "start_time": recorder.start_seconds,
            "stop_time": recorder.stop_seconds,
            "ratio": overhead_ratio,
        },
        "peaks": dict(_peaks(recorder, model)),
        "limits": _limits(recorder),
        "notes": list(recorder.unmeasured()),
    }


def footer_of(
    recorder: Recorder, model: str, coverage: float, overhead_ratio: float | None
) -> Iterator[str]:
    """Yield the lines under the printed table."""
    whole = format_time(recorder.attribution.whole_ns * 1e-3)
    yield f"Total: {whole}, of which rows cover {coverage:.2%}"
    peaks = dict(_peaks(recorder, model))
    for side, name in (("memory", "host"), ("device_memory", "device")):
        if side in peaks:
            yield f"Peak: {format_bytes(peaks[side])} on the {name}, in {peaks[f'{side}_row']}"
    yield (
        f"Profiler: {recorder.markers.recorded} markers, started in "
        f"{format_time(recorder.start_seconds * 1e6)}, stopped in "
        f"{format_time(recorder.stop_seconds * 1e6)}, both outside the rows"
    )
    if overhead_ratio is not None:
        yield f"Overhead: a step takes {overhead_ratio:.2f} times as long under the profiler"
    limits = _limits(recorder)
    if limits:
        yield _limits_line(limits)
    yield from recorder.unmeasured()


def _peaks(recorder: Recorder, model: str) -> Iterator[tuple[str, Any]]:
    for on_device, peak in recorder.attribution.peaks.items():
        if peak is not None:
            name = "device_memory" if on_device else "memory"
            nbytes, key = peak
            yield name, nbytes
            yield f"{name}_row", _row_name(key, model)


def _row_name(key: RowKey, model: str) -> str:
    name = model if key.path == "" else key.path
    return " / ".join(part for part in (name, key.phase) if part)


def _limits(recorder: Recorder) -> dict[str, Any]:
    if recorder.counted is None:
        return {}
    from gnnprof._work import limits_of

    return limits_of(recorder.counted)


def _limits_line(limits: dict[str, Any]) -> str:
    rate = limits["flop_rate"]
    flops = f"{rate / 1e9:.1f} GFLOP/s" if rate else "no matrix product"
    return (
        f"Limits: copy {limits['bandwidth'] / 1e9:.1f} GB/s (in cache "
        f"{limits['cache_bandwidth'] / 1e9:.1f}), {flops} in {limits['dtype']} on "
        f"{limits['device']}, noise {limits['noise']:.0%}"
    )
