"""A profile of some steps of a case: op table, layer table, trace, and the rows of a CSV table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from gnnprof import Profiler, ProfileRow, _device, torch_profile
from gnnprof._files import ranked
from gnnprof._layer_table import lines_of, self_time, total_time

NOT_IN_OPS = "(Python between the ops)"


@dataclass(frozen=True)
class Share:
    """What one layer, or one op, took of a profile.

    Two levels are listed, and each accounts for the whole: the self times of a level add up to the
    profiled seconds, and their percentages to 100.

    Attributes:
        level: 'layer' for a module, a phase of message passing or what ran outside of the model;
            'op' for an op, wherever it ran.
        name: Path of the layer, or name of the op.
        calls: How often it ran; an op in the backward as well, a layer in the forward.
        self_cpu: Seconds without what is nested in it, forward and backward.
        cpu: Seconds with what is nested in it. For an op that calls itself, each level counts.
        self_device: Seconds of the kernels that it launched itself; None without an accelerator.
        device: The same, with what is nested in it.
        self_cpu_percent: `self_cpu` of the profiled seconds.
        cpu_percent: `cpu` of the profiled seconds.
        cpu_average: `cpu` per call; None without a call.
        self_device_percent: `self_device` of the device seconds of the level.
        device_average: `device` per call.
    """

    level: str
    name: str
    calls: int
    self_cpu: float
    cpu: float
    self_device: float | None = None
    device: float | None = None
    self_cpu_percent: float | None = None
    cpu_percent: float | None = None
    cpu_average: float | None = None
    self_device_percent: float | None = None
    device_average: float | None = None

    def plus(self, other: Share) -> Share:
        """Return both together, under this name."""
        return replace(
            self,
            calls=self.calls + other.calls,
            self_cpu=self.self_cpu + other.self_cpu,
            cpu=self.cpu + other.cpu,
            self_device=_sum(self.self_device, other.self_device),
            device=_sum(self.device, other.device),
        )


def shares_of(rows: Sequence[ProfileRow], model: str) -> list[Share]:
    """Return the layers, then the ops, each level with the costliest first.

    Args:
        rows: The rows of one `Profiler`.
        model: Name of the model, for the row of the model itself.
    """
    layers = [
        _layer(" / ".join(line.names), line.row)
        for line in lines_of(rows, model)
        if line.row.op is None
    ]
    whole = sum(share.self_cpu for share in layers)
    ops = _by_name(_op(row) for row in rows if row.op is not None)
    rest = whole - sum(share.self_cpu for share in ops)
    ops.append(Share("op", NOT_IN_OPS, 0, rest, rest, *_nothing(layers)))
    return [*_with_shares(layers, whole), *_with_shares(ops, whole)]


def _layer(name: str, row: ProfileRow) -> Share:
    return Share(
        "layer",
        name,
        row.calls,
        self_time(row),
        total_time(row),
        _sum(row.self_device_time, row.self_backward_device_time),
        _sum(row.device_time, row.backward_device_time),
    )


def _op(row: ProfileRow) -> Share:
    share = _layer(str(row.op), row)
    return replace(share, level="op", calls=row.calls + (row.backward_calls or 0))


def _by_name(shares: Iterable[Share]) -> list[Share]:
    found: dict[str, Share] = {}
    for share in shares:
        found[share.name] = found[share.name].plus(share) if share.name in found else share
    return list(found.values())


def _nothing(layers: Sequence[Share]) -> tuple[float | None, float | None]:
    """Device seconds of what launches no kernels: none, or unknown without an accelerator."""
    with_device = any(share.self_device is not None for share in layers)
    return (0.0, 0.0) if with_device else (None, None)


def _with_shares(shares: Sequence[Share], whole: float) -> list[Share]:
    device_whole = sum(share.self_device or 0.0 for share in shares)
    filled = [
        replace(
            share,
            self_cpu_percent=_percent(share.self_cpu, whole),
            cpu_percent=_percent(share.cpu, whole),
            cpu_average=share.cpu / share.calls if share.calls else None,
            self_device_percent=_percent(share.self_device, device_whole),
            device_average=None
            if share.device is None or not share.calls
            else share.device / share.calls,
        )
        for share in shares
    ]
    return sorted(filled, key=lambda share: share.self_cpu, reverse=True)


def _percent(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part * 100 / whole


def _sum(first: float | None, second: float | None) -> float | None:
    if first is None and second is None:
        return None
    return (first or 0.0) + (second or 0.0)


# --- taking it -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """What a profile left: the rows for the table, and the trace's file name."""

    rows: list[dict[str, object]]
    trace: str | None


def take_profile(
    steps: Callable[[], object],
    model: torch.nn.Module,
    *,
    name: str,
    device: torch.device,
    trace: Path | None,
    show: bool,
) -> Profile:
    """Run some steps under torch's profiler, and once more under gnnprof's.

    Args:
        steps: Runs them.
        model: What they call.
        name: Name of the model.
        device: Where it is.
        trace: File for the trace, one of the same name is set aside; None for none.
        show: Whether to print the table of ops and the table of layers.
    """
    written = None
    if show:
        with torch_profile(export_chrome_trace=False if trace is None else trace):
            steps()
        written = None if trace is None else ranked(trace)
    with Profiler(model, use_cuda=device.type in _device.EVENT_BACKENDS) as prof:
        steps()
    if show:
        print(prof.table(ops=False))
    if written is not None:
        print(f"Trace, for chrome://tracing or https://ui.perfetto.dev: {written}")
    rows = [asdict(share) for share in shares_of(prof.rows, name)]
    return Profile(rows, None if written is None else written.name)


def trace_path(folder: Path, parts: Sequence[str]) -> Path:
    """Return the place of a case's trace; slashes in its name become underscores."""
    stem = "-".join(["profile", *parts]).replace("/", "_")
    return folder / f"{stem}.json"


@contextmanager
def itt_ranges(enabled: bool) -> Iterator[None]:
    """Emit an ITT range for every op of the body, which VTune shows on its time line.

    Raises:
        ValueError: If this torch is built without ITT.
    """
    if not enabled:
        yield
        return
    refuse_without_itt()
    with torch.autograd.profiler.emit_itt():  # type: ignore[no-untyped-call]
        yield


def refuse_without_itt() -> None:
    """Raise where `--vtune-profile` could have no effect.

    Raises:
        ValueError: If this torch is built without ITT.
    """
    if not torch.profiler.itt.is_available():  # type: ignore[no-untyped-call]
        raise ValueError(
            "--vtune-profile: this torch is built without ITT; use Intel's or PyTorch's x86 wheel."
        )
