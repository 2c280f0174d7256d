"""Rows of a small profile, written by hand: a GAT layer and a linear layer, in milliseconds."""

from __future__ import annotations

from dataclasses import replace

from gnnprof._records import ProfileRow

MS = 1e-3


def row(path, module, phase=None, op=None, self_ms=0.0, total_ms=None, **figures):
    """A row with its forward times in milliseconds."""
    total_ms = self_ms if total_ms is None else total_ms
    calls = figures.pop("calls", 2)
    return ProfileRow(path, module, phase, op, calls, self_ms * MS, total_ms * MS, **figures)


FORWARD = (
    row("", "Net", None, None, 1, 20),
    row("", "Net", None, "aten::relu", 0.5),
    row("convs", "ModuleList", calls=0),
    row("convs.0", "GATConv", None, None, 3, 13),
    row("convs.0", "GATConv", None, "aten::mul", 1),
    row("convs.0", "GATConv", "propagate", None, 2, 10),
    row("convs.0", "GATConv", "propagate", "aten::index_select", 1.5),
    row("convs.0", "GATConv", "message", None, 6),
    row("convs.0", "GATConv", "message", "aten::mul", 4),
    row("convs.0", "GATConv", "message", "aten::exp", 1),
    row("convs.0", "GATConv", "aggregate", None, 2),
    row("lin", "Linear", None, None, 6),
    row("lin", "Linear", None, "aten::addmm", 5),
    row("head", "Linear", None, None, 0, 6, shared_with="lin"),
    row(None, None, "loss", None, 2),
    row(None, None, "loss", "aten::nll_loss", 1),
    row(None, None, "outside", None, 3, calls=1),
)
"""Module, phase and outside rows: 1 + 3 + 2 + 6 + 2 + 6 = 20 ms in the model and 5 ms outside."""

FORWARD_TIME = 25 * MS
BACKWARD_MS = (2, 1, 0, 4, 2, 0, 0, 12, 8, 2, 3, 9, 9, 0, 1, 1, 0)
"""Self backward of the rows above; 2 + 4 + 12 + 3 + 9 + 1 = 31 ms in rows that are no op."""
BACKWARD_TIME = 31 * MS


def with_backward(rows=FORWARD):
    """The same profile of a training step."""
    return tuple(
        replace(
            entry,
            self_backward_cpu_time=ms * MS,
            backward_cpu_time=ms * MS,
            backward_calls=1,
        )
        for entry, ms in zip(rows, BACKWARD_MS, strict=True)
    )


def with_work(rows):
    """The same with memory, FLOPs and bytes; the gather in `propagate` does no arithmetic."""
    return tuple(
        replace(
            entry,
            self_cpu_memory=0,
            cpu_memory=0,
            peak_memory=2**20,
            bytes_moved=int(entry.cpu_time * 8e9),
            flops=0 if entry.op == "aten::index_select" else int(entry.cpu_time * 4e9),
            percent_of_limit=40.0,
            bound="memory",
        )
        if entry.path is not None
        else entry
        for entry in rows
    )


def with_device_time(rows):
    """The same where every row of the model kept the device busy for as long as the host."""
    return tuple(
        replace(
            entry,
            self_device_time=entry.self_cpu_time if entry.path is not None else 0.0,
            device_time=entry.cpu_time if entry.path is not None else 0.0,
            self_backward_device_time=entry.self_backward_cpu_time if entry.path is not None else 0,
            backward_device_time=entry.backward_cpu_time if entry.path is not None else 0.0,
        )
        for entry in rows
    )
