"""FLOPs, bytes and the machine's limit for the rows of a profile.

One forward of the block is repeated after it, untimed, under an op counter; what the ops of a row
did in that forward, times the row's calls, is the row's work.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from gnnprof import _limits
from gnnprof._attribution import RowKey
from gnnprof._counting import CallSettings, CannotCount, OpCount, counting_pass
from gnnprof._limits import LimitTime
from gnnprof._markers import CallHook, Markers, is_compiled, outermost
from gnnprof._records import ProfileRow


class Call(NamedTuple):
    """The first forward of a model in the block, to be repeated."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    settings: CallSettings
    training: dict[nn.Module, bool]

    @contextmanager
    def flags_set(self) -> Iterator[None]:
        """Put every module into the training or eval mode of the call for the block."""
        before = {module: module.training for module in self.training}
        try:
            for module, training in self.training.items():
                module.training = training
            yield
        finally:
            for module, training in before.items():
                module.training = training


class CallCatcher:
    """Keeps the arguments of the first recorded forward of each model until the block ends."""

    def __init__(self, model: nn.Module, is_recording: Callable[[], bool]) -> None:
        self.calls: dict[nn.Module, Call] = {}
        self._model = model
        self._is_recording = is_recording

    def place(self) -> ExitStack:
        """Register the hooks; closing the returned stack takes them away."""
        with ExitStack() as undo:
            for top in outermost(self._model):
                if top._compiled_call_impl is None:  # its hooks would be compiled in
                    handle = nn.Module.register_forward_pre_hook(
                        top, CallHook(self._catch), prepend=True, with_kwargs=True
                    )
                    undo.callback(handle.remove)
            return undo.pop_all()

    def count(self, selected: Collection[str] | None) -> CountedForward:
        """Repeat what was caught; see `count_forward`."""
        return count_forward(self._model, selected, self.calls.values())

    def _catch(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or model in self.calls or not self._is_recording():
            return
        training = {module: module.training for module in model.modules()}
        self.calls[model] = Call(model, args, dict(kwargs), CallSettings.current(), training)


@dataclass
class Work:
    """What was done in the counted forward by one row, nested rows included.

    Attributes:
        calls: Calls of the module, phase or op.
        flops: Floating-point operations; None if an op has no formula.
        nbytes: Bytes moved.
        ops: How often an op of each kind ran: FLOPs, bytes, device, type of the numbers.
    """

    calls: int = 0
    flops: int | None = 0
    nbytes: int = 0
    ops: Counter[tuple[int | None, int, torch.device, torch.dtype | None]] = field(
        default_factory=Counter
    )

    def add(self, count: OpCount) -> None:
        """Add one call of an op."""
        self.nbytes += count.nbytes
        unknown = self.flops is None or count.flops is None
        self.flops = None if unknown else (self.flops or 0) + (count.flops or 0)
        self.ops[count.flops, count.nbytes, count.device, count.dtype] += 1

    def limit(self, times: int) -> LimitTime | None:
        """The least time on this machine of so many forwards; None if unknown for an op."""
        total = LimitTime()
        for op, count in self.ops.items():
            least = _limits.limit_time(*op)
            if least is None:
                return None
            total += LimitTime(*(times * count * seconds for seconds in vars(least).values()))
        return total


@dataclass
class CountedForward:
    """The work of one forward by row, and what could not be counted.

    Attributes:
        rows: Module or phase -> its work, nested rows included.
        ops: Module or phase and op -> the op's work there.
        nested: Module or phase -> itself and all that ran inside it.
        notes: Sentences on what is missing.
    """

    rows: dict[RowKey, Work] = field(default_factory=dict)
    ops: dict[tuple[RowKey, str], Work] = field(default_factory=dict)
    nested: dict[RowKey, set[RowKey]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def count_forward(
    model: nn.Module, selected: Collection[str] | None, calls: Iterable[Call]
) -> CountedForward:
    """Repeat the calls under the op counter, and give every op to the rows that were open.

    Args:
        model: The profiled model.
        selected: Dotted names of the modules that have rows; None for all.
        calls: The forwards to repeat.
    """
    counted = CountedForward()
    markers = Markers(model, selected, this_thread_only=True)
    key_of = {site.marker: RowKey(site.paths[0], site.phase) for _, site in markers.layout}

    def on_op(count: OpCount) -> None:
        chain = [key_of[name] for name in markers.open_names]
        for key in dict.fromkeys(chain):
            counted.rows.setdefault(key, Work()).add(count)
            counted.nested.setdefault(key, {key}).update(chain[chain.index(key) :])
        if chain:
            work = counted.ops.setdefault((chain[-1], count.name), Work())
            work.calls += 1
            work.add(count)

    with markers.place():
        for call in calls:
            missing = _count(call, on_op)
            if isinstance(missing, str):
                return CountedForward(notes=[f"Not counted: {missing}"])
            if missing:
                names = ", ".join(sorted(missing))
                counted.notes.append(f"No FLOP formula for {names}: rows with it show n/a")
    if markers.unrecorded_calls:
        return CountedForward(notes=["Not counted: the forward calls modules on other threads"])
    for name, times in markers.calls.items():
        counted.rows.setdefault(key_of[name], Work()).calls = times
    if not counted.rows and not counted.notes:
        counted.notes.append("Not counted: no forward was recorded that could be repeated")
    return counted


def _count(call: Call, on_op: Callable[[OpCount], object]) -> dict[str, int] | str:
    """Repeat one call; returns the ops without a formula, or why it could not be repeated."""
    try:
        with call.flags_set():
            return counting_pass(call.model, call.args, call.kwargs, on_op, call.settings)
    except (CannotCount, ValueError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # a forward that cannot be repeated
        return f"repeating a forward raised {type(error).__name__}: {error}"


# --- into the rows ---------------------------------------------------------------------------


def with_work(
    rows: Sequence[ProfileRow], counted: CountedForward, model: nn.Module
) -> tuple[ProfileRow, ...]:
    """Return the rows with their FLOPs, bytes and share of the machine's limit.

    Args:
        rows: The rows of the profile.
        counted: The work of one forward.
        model: The profiled model: what is compiled in it moves fewer bytes than was counted.
    """
    opaque = {path for path, part in model.named_modules() if is_compiled(part)}
    op_seconds: Counter[RowKey] = Counter()
    for row in rows:
        if row.op is not None:
            op_seconds[RowKey(row.path, row.phase)] += row.self_cpu_time  # type: ignore[assignment]
    calls = {_key(row): row.calls for row in rows if row.op is None and row.shared_with is None}
    # Once is enough: what is above the limit after it, would be after every further one.
    measure_again = functools.cache(_limits.measure_again)
    return tuple(_with_work(row, counted, calls, op_seconds, opaque, measure_again) for row in rows)


def _key(row: ProfileRow) -> RowKey:
    return RowKey(row.shared_with if row.shared_with is not None else row.path, row.phase)


def _with_work(
    row: ProfileRow,
    counted: CountedForward,
    calls: Mapping[RowKey, int],
    op_seconds: Counter[RowKey],
    opaque: Collection[str],
    measure_again: Callable[[], None],
) -> ProfileRow:
    key = _key(row)
    work = counted.rows.get(key) if row.op is None else counted.ops.get((key, row.op))
    times = _times(calls.get(key, 0), counted.rows.get(key))
    if work is None or not times or row.calls != times * work.calls:
        return row  # not called in the counted forward, or not as often: its work is not known
    flops = None if work.flops is None else times * work.flops
    if any(key.path == path or (key.path or "").startswith(f"{path}.") for path in opaque):
        return replace(row, flops=flops)
    if row.device_time is None and any(device.type != "cpu" for _, _, device, _ in work.ops):
        return replace(row, flops=flops, bytes_moved=times * work.nbytes)  # launched, not run
    seconds = row.cpu_time if row.device_time is None else row.device_time
    in_ops = sum(op_seconds[inner] for inner in counted.nested.get(key, ()))
    outside = max(0.0, row.cpu_time - in_ops) if row.op is None else 0.0
    percent, bound = _against_limit(work, times, seconds, outside, measure_again)
    return replace(
        row, flops=flops, bytes_moved=times * work.nbytes, percent_of_limit=percent, bound=bound
    )


def _times(calls: int, counted: Work | None) -> int:
    """How often the counted forward fits into the calls of a module or phase; 0 if it does not."""
    if counted is None or not counted.calls or calls % counted.calls:
        return 0
    return calls // counted.calls


def _against_limit(
    work: Work, times: int, seconds: float, outside: float, measure_again: Callable[[], None]
) -> tuple[float | None, str | None]:
    limit = work.limit(times)
    if limit is None or not seconds:
        return None, None
    percent = _limits.percent_of_limit(limit, seconds)
    if percent is not None and percent > _limits.CREDIBLE_PERCENT:
        measure_again()  # the machine was disturbed when its limits were taken
        limit = work.limit(times) or limit
    calling = sum(n * _limits.op_cost(device) for (_, _, device, _), n in work.ops.items())
    return _limits.classify(limit, seconds, outside + times * calling)


def limits_of(counted: CountedForward) -> dict[str, Any]:
    """What the machine can do for the numbers that the model computed with most."""
    kinds: Counter[tuple[torch.device, torch.dtype]] = Counter()
    for work in counted.ops.values():
        for (flops, _, device, dtype), times in work.ops.items():
            if dtype is not None and device.type != "meta":
                kinds[device, dtype] += times * (flops or 0)
    if not kinds:
        return {}
    (device, dtype), _ = kinds.most_common(1)[0]
    bandwidth = _limits.copy_bandwidth(device)
    rate = _limits.matmul_rate(device, dtype)
    return {
        "bandwidth": bandwidth.largest.value,
        "cache_bandwidth": max(rung.value for rung in bandwidth.rungs),
        "flop_rate": rate.value if rate else None,
        "noise": max(bandwidth.largest.noise, rate.noise if rate else 0.0),
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
    }
