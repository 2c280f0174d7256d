"""What is run and timed for one model: a forward, a backward, a training step, round by round."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnnprof import _device, _statistics
from gnnprof._compile_compare import Effect
from gnnprof._dynamo import begin_step, launches_counted
from gnnprof._events import Session, SessionRunningError, starting_session
from gnnprof._isolation import detached, random_like, version_of
from gnnprof._tensors import iter_tensors

Laps = list[dict[str, float]]

_LEAST_SAMPLE = 20e-3  # seconds; a call of microseconds tells the clock rather than the model
_MOST_REPEATS = 1000


@dataclass(frozen=True)
class Workload:
    """The inputs of a model and what shall be done with it.

    Attributes:
        args: Positional arguments, detached from the user's graph.
        kwargs: Keyword arguments, likewise.
        device: Where the model runs.
        backward: Whether gradients are recorded in the forward, and the backward runs.
        train_step: Called with the model and the arguments; None for forward and backward only.
        cotangents: Gradients of the outputs, drawn once, for the backward.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    device: torch.device
    backward: bool
    train_step: Callable[..., Any] | None
    cotangents: tuple[Tensor, ...] = ()

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that are timed."""
        if self.backward:
            return ("forward", "backward", "step")
        return ("forward",) if self.train_step is None else ("step",)

    @property
    def main_phase(self) -> str:
        """The phase that a row speaks of."""
        return self.phases[-1]

    @property
    def lap_phases(self) -> tuple[str, ...]:
        """The phases whose seconds add up to those of a lap: a step without function is a sum."""
        return (self.main_phase,) if self.train_step is None else self.phases

    @property
    def observed(self) -> tuple[str, ...]:
        """What draws random numbers where one of the observed phases does, phase by phase."""
        if self.train_step is None:
            return ("the model",)
        return ("the model", "the training step") if self.backward else ("the training step",)

    @property
    def input_tensors(self) -> list[Tensor]:
        """The tensors that the inputs hold."""
        return list(iter_tensors((self.args, dict(self.kwargs))))

    @property
    def input_leaves(self) -> list[Tensor]:
        """The inputs that a backward gives gradients to."""
        return [tensor for tensor in self.input_tensors if tensor.requires_grad]

    def with_inputs(self, args: tuple[Any, ...]) -> Workload:
        """Return the same workload on other positional arguments."""
        return dataclasses.replace(self, args=own_inputs(args), cotangents=())

    def on_clones(self) -> Workload:
        """Return the same workload on floating inputs in memory of their own."""
        args, kwargs = own_inputs((self.args, dict(self.kwargs)))
        for tensor in _floating(args, kwargs):
            tensor.data = tensor.data.clone()
        return dataclasses.replace(self, args=args, kwargs=kwargs)


def own_inputs(inputs: Any) -> Any:
    """Detach the floating tensors of a structure; each requires grad where the original does."""
    copies = detached(inputs)
    for original, copy in zip(iter_tensors(inputs), iter_tensors(copies), strict=True):
        if original.requires_grad and copy is not original:
            copy.requires_grad_(True)
    return copies


def doubled(inputs: Any) -> Any:
    """Return the structure with its floating tensors in float64, complex ones in complex128."""
    copies = own_inputs(inputs)
    for tensor in _floating(copies):
        tensor.data = in_double(tensor.data)
    return copies


def in_double(tensor: Tensor) -> Tensor:
    """Return a floating or complex tensor in double precision, any other as it is."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _floating(*inputs: Any) -> list[Tensor]:
    """The tensors that `own_inputs` makes anew."""
    return [
        tensor
        for tensor in iter_tensors(inputs)
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout == torch.strided
    ]


def refuse_changed_inputs(candidate: Candidate) -> None:
    """Run a candidate once, on clones, and refuse a model that changes its inputs.

    Raises:
        ValueError: If a second call would see other inputs than the first.
    """
    work = candidate.workload
    tensors = work.input_tensors
    versions = [version_of(tensor) for tensor in tensors]
    with torch.set_grad_enabled(work.backward):
        candidate.call_once()
    if not {id(tensor) for tensor in tensors} <= {id(tensor) for tensor in work.input_tensors}:
        raise ValueError(
            "the model replaces tensors in its inputs, so that every call would see other ones; "
            "let it work on a copy (data = copy.copy(data), or dict(inputs))"
        )
    if versions != [version_of(tensor) for tensor in tensors]:
        raise ValueError(
            "the model changes its inputs in place, so that every call would see other ones; "
            "let it work on a copy (x = x.clone())"
        )


class Candidate:
    """A model of ours under a workload: eager, or wrapped by torch.compile.

    Args:
        module: A copy of the user's model.
        workload: What to do with it.
        wrapped: The compiled wrapper of `module`, or None to run it eagerly.
    """

    def __init__(
        self, module: nn.Module, workload: Workload, wrapped: nn.Module | None = None
    ) -> None:
        self.module = module
        self.workload = workload
        self._wrapped = wrapped
        self._model = module if wrapped is None else wrapped

    def on(self, workload: Workload) -> Candidate:
        """Return the same model under another workload."""
        return Candidate(self.module, workload, self._wrapped)

    def _leaves(self) -> list[Tensor]:
        return [*self.module.parameters(), *self.workload.input_leaves]

    def _clear_gradients(self) -> None:
        for leaf in self._leaves():
            leaf.grad = None

    # -- one call, looked at -----------------------------------------------------------------------

    def observe(self, seed: int) -> tuple[tuple[Effect, ...], float]:
        """Run every phase once from a seeded random state and keep all that they did.

        Returns:
            What each did, and their wall-clock seconds together.
        """
        torch.manual_seed(seed)
        effects: list[Effect] = []
        laps: dict[str, float] = {}
        for run in self._runs():
            before = _random_states(self.workload.device)
            returned, seconds = run()
            random = any(
                not torch.equal(old, new)
                for old, new in zip(before, _random_states(self.workload.device), strict=True)
            )
            gradients = [leaf.grad for leaf in self._leaves() if leaf.requires_grad]
            buffers = [buffer for _, buffer in self.module.named_buffers()]
            # Copied at once: the next run of a CUDA graph writes over what this one returned.
            effects.append(Effect.of(returned, gradients, buffers, random=random))
            self._clear_gradients()
            laps |= seconds
        return tuple(effects), math.fsum(laps[phase] for phase in self.workload.lap_phases)

    def observe_later(self, seed: int, laps: int, original: nn.Module) -> tuple[Effect, ...]:
        """Observe a call after others, from the weights and buffers that the first one met.

        Args:
            seed: As in `observe`.
            laps: Calls before that.
            original: Where weights and buffers are taken from.
        """
        for _ in range(laps):
            self.lap()
        restore(self.module, original)
        return self.observe(seed)[0]

    def draw_cotangents(self, seed: int) -> Workload:
        """Draw gradients for the outputs of one forward, and return the workload that has them."""
        if not self.workload.backward:
            return self.workload
        torch.manual_seed(seed)
        with torch.enable_grad():
            output = self._model(*self.workload.args, **self.workload.kwargs)
        tensors = _differentiable(output)
        if not tensors:
            raise ValueError(
                f"the model's output ({type(output).__name__}) holds no tensor that requires grad; "
                "measure inference with backward=False"
            )
        return dataclasses.replace(
            self.workload, cotangents=tuple(random_like(tensor) for tensor in tensors)
        )

    def call_once(self) -> None:
        """Run the forward alone, untimed."""
        self._model(*self.workload.args, **self.workload.kwargs)

    # -- one call, timed ---------------------------------------------------------------------------

    def lap(self) -> dict[str, float]:
        """Run every phase once; return the seconds of each."""
        seconds: dict[str, float] = {}
        for run in self._runs():
            seconds |= run()[1]
            self._clear_gradients()
        return seconds

    def run_main_phase(self) -> None:
        """Run what a row speaks of once: the training step, or the forward and the backward."""
        self._runs()[-1]()
        self._clear_gradients()

    def _runs(self) -> list[Callable[[], tuple[Any, dict[str, float]]]]:
        """What a lap consists of; each returns what the user's code did, and seconds by phase."""
        work = self.workload
        if work.train_step is None:
            return [self._timed_pass]
        return [self._timed_pass, self._timed_step] if work.backward else [self._timed_step]

    def _timed_pass(self) -> tuple[Any, dict[str, float]]:
        work = self.workload
        with torch.set_grad_enabled(work.backward):
            self._begin()
            start = self._now()
            output = self._model(*work.args, **work.kwargs)
            seconds = {"forward": self._now() - start}
            if work.backward:
                tensors = _differentiable(output)
                start = self._now()
                torch.autograd.backward(tensors, work.cotangents[: len(tensors)])
                seconds["backward"] = self._now() - start
                seconds["step"] = seconds["forward"] + seconds["backward"]
        return output, seconds

    def _timed_step(self) -> tuple[Any, dict[str, float]]:
        work = self.workload
        assert work.train_step is not None
        with torch.enable_grad():
            self._begin()
            start = self._now()
            returned = work.train_step(self._model, *work.args, **work.kwargs)
            return returned, {"step": self._now() - start}

    def _begin(self) -> None:
        if self._wrapped is not None:
            begin_step()

    def _now(self) -> float:
        _device.synchronize(self.workload.device)
        return _device.clock()

    # -- one call, counted -------------------------------------------------------------------------

    def peak_memory(self) -> int | None:
        """Highest bytes in live tensors during one call, over what was live before it.

        On CUDA and XPU from the allocator's counters, on the CPU from the allocations and frees
        that torch's profiler records. None where neither tells.
        """
        device = self.workload.device
        if device.type in _device.EVENT_BACKENDS:
            _device.synchronize(device)
            _device.reset_peak_memory(device)
            before = _device.peak_memory(device).allocated
            self.run_main_phase()
            after = _device.peak_memory(device).allocated
            return None if before is None or after is None else after - before
        return self._peak_on_host() if device.type == "cpu" else None

    def _peak_on_host(self) -> int | None:
        session = Session(None, memory=True)
        try:
            with starting_session("compile_benchmark"):
                session.start()
        except SessionRunningError:  # the caller profiles this very call
            return None
        try:
            self.run_main_phase()
        finally:
            session.stop()
        live = peak = 0
        for event in sorted(session.events().memory, key=lambda event: event.start):
            live += 0 if event.on_device else event.nbytes
            peak = max(peak, live)
        return peak

    def kernel_launches(self) -> int | None:
        """Kernels that one call launches: all of them on CUDA and XPU, Inductor's on the CPU.

        On CUDA and XPU also copies and fills of memory, which are launched likewise.
        """
        device = self.workload.device
        if device.type == "cpu":
            with launches_counted() as counts:
                self.run_main_phase()
            return counts.total()
        if device.type not in _device.EVENT_BACKENDS:
            return None
        session = Session(device.type, memory=False)
        try:
            with starting_session("compile_benchmark"):
                session.start()
        except SessionRunningError:
            return None
        try:
            self.run_main_phase()
        finally:
            session.stop()
        return session.events().kernel_count


def restore(module: nn.Module, original: nn.Module) -> None:
    """Give a copy the weights and buffers of the original again, in the tensors it has."""
    sources = {**dict(original.named_parameters()), **dict(original.named_buffers())}
    with torch.no_grad():
        for name, target in (*module.named_parameters(), *module.named_buffers()):
            source = sources.get(name)
            if source is not None and source.shape == target.shape:  # else a call made it
                target.copy_(source)


def _differentiable(output: Any) -> list[Tensor]:
    return [tensor for tensor in iter_tensors(output) if tensor.requires_grad]


def _random_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type in _device.EVENT_BACKENDS:
        states.append(_device.backend(device.type).get_rng_state(device))
    return states


# -- rounds ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounds:
    """Two candidates timed side by side.

    Attributes:
        first: Samples of the first, seconds of one call by phase.
        second: Samples of the second, in the same rounds.
        seconds: What the calls of all samples took together.
    """

    first: Laps
    second: Laps
    seconds: float


def paired_rounds(first: Candidate, second: Candidate, rounds: int, *, warmup: int = 1) -> Rounds:
    """Time two candidates side by side: one sample of each in every round, in turning order.

    A sample is the median over as many calls as take 20 ms together, at least one. Garbage is
    collected between rounds, never within one.

    Args:
        first: The one.
        second: The other.
        rounds: Samples of either.
        warmup: Calls of either before those, at least one; the last tells how long a call takes.
    """
    samples: tuple[Laps, Laps] = ([], [])
    pair = (first, second)
    seconds = 0.0
    with _collection_by_hand():
        repeats = [_repeats(candidate, warmup) for candidate in pair]
        for number in range(rounds):
            gc.collect(1)
            start = _device.clock()
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                samples[which].append(_sample(pair[which], repeats[which]))
            seconds += _device.clock() - start
    return Rounds(*samples, seconds)


def series(laps: Sequence[Mapping[str, float]], phase: str) -> tuple[float, ...]:
    """Pick the seconds of one phase."""
    return tuple(lap[phase] for lap in laps)


def _repeats(candidate: Candidate, warmup: int) -> int:
    for _ in range(warmup - 1):
        candidate.lap()
    lap = candidate.lap()
    seconds = max(math.fsum(lap[phase] for phase in candidate.workload.lap_phases), 1e-9)
    return max(1, min(_MOST_REPEATS, math.ceil(_LEAST_SAMPLE / seconds)))


def _sample(candidate: Candidate, repeats: int) -> dict[str, float]:
    laps = [candidate.lap() for _ in range(repeats)]
    return {phase: _statistics.median(series(laps, phase)) for phase in laps[0]}


@contextmanager
def _collection_by_hand() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
