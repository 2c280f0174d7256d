"""The peak memory of a step, out of whatever record `profileit` makes, and what it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PEAK_FIELDS = {
    "max_allocated_cpu": "of new tensors alive at once",
    "max_allocated_gpu": "of all tensors alive at once, those from before the step included",
    "driver_allocated_mps": "held from Metal after the step, where nothing counts the peak itself",
}
"""The field of each kind of record that comes closest to a peak, and what it is the memory of."""


def peak_mib(memory: Mapping[str, Any]) -> float | None:
    """Return the peak in MiB; None where it is unknown.

    Args:
        memory: The fields of a record of `profileit`.
    """
    value: float | None = memory.get(_field(memory))
    return value


def peak_meaning(memory: Mapping[str, Any]) -> str:
    """Say what the figure of `peak_mib` is the memory of, to follow the number."""
    return PEAK_FIELDS.get(_field(memory), "of a device whose memory is not known")


def _field(memory: Mapping[str, Any]) -> str:
    return next((field for field in PEAK_FIELDS if field in memory), "")
