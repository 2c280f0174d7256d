"""Counts what every op of a call computes and moves, in a pass of its own that is not timed.

:class:`OpCounter` watches; :mod:`gnnprof._formulas` holds the formulas; :func:`counting_pass` runs
a model once under the counter and leaves it, its inputs and the random state as they were.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.parallel.scatter_gather import scatter_kwargs
from torch.utils._python_dispatch import TorchDispatchMode

from gnnprof import _device
from gnnprof._formulas import OpCall, count_bytes, count_flops, stored
from gnnprof._isolation import random_state_kept
from gnnprof._process import this_process
from gnnprof._tensors import iter_tensors


@dataclass(frozen=True)
class OpCount:
    """What one call of one op computed and moved.

    Attributes:
        name: Name as the torch profiler gives it: `'aten::index_select'`.
        flops: Floating-point operations, a multiply-add being two; None if no formula is known.
        nbytes: Distinct input bytes read plus output bytes written; 0 for a view.
        device: Where the op ran.
        dtype: Type of the floating-point numbers that it read, or else wrote; None if it had none.
    """

    name: str
    flops: int | None
    nbytes: int
    device: torch.device
    dtype: torch.dtype | None


class CannotCount(RuntimeError):
    """The pass was given up because going on would have changed something of the user's."""


class _OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every op that does something, each once."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, the default, imports all of Dynamo at the first op, which takes seconds.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one op: by its parts if it has any, else under `_run`."""
        kwargs = kwargs or {}
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # an EdgeIndex and the like: they call ops on what they wrap
        if getattr(func, "namespace", "aten") in _NOT_OPS:
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError


def _is_composite(func: Any) -> bool:
    """Whether an op only calls other ops: in inference mode such ops arrive whole.

    Only kernels in C++ matter here. `func.decompose` prefers those that Python has for tracing,
    which do not do the same: they clone what dropout with p = 0 returns as it is.
    """
    if not isinstance(func, OpOverload):
        return False
    name = func.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

_NOT_OPS = ("profiler", "prim")
"""Namespaces of calls that do no work: profiler ranges, questions for a device."""


class OpCounter(_OpMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts every op of the thread it is entered on, forward and backward.

    Ops of compiled functions are those of the original program; code outside torch's dispatcher
    (NumPy, extensions with their own Python bindings) is not seen. The device does not matter:
    meta and fake tensors are counted as well.

    Args:
        on_op: Called after every op with its counts.

    Attributes:
        unsupported: How often an op ran whose FLOPs no formula gives, by name.
    """

    def __init__(self, on_op: Callable[[OpCount], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_op = on_op
        self.unsupported: Counter[str] = Counter()

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        call = OpCall.of(func, args, kwargs, result)
        if call.inputs or call.outputs:
            counts = _counts_of(call)
            if counts.flops is None:
                self.unsupported[counts.name] += 1
            self._on_op(counts)
        return result


def _counts_of(call: OpCall) -> OpCount:
    tensors = [*call.inputs, *call.outputs]
    dtypes = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    # A result is where the work was done: scalars on the host may be among the inputs.
    device = (call.outputs or tensors)[0].device
    return OpCount(
        call.name, count_flops(call), count_bytes(call), device, dtypes[0] if dtypes else None
    )


# -- one pass over a model -------------------------------------------------------------------------


@dataclass(frozen=True)
class CallSettings:
    """The modes of torch that decide which ops a model calls.

    Attributes:
        grad: Whether autograd records.
        inference: Whether inference mode is on.
        autocast: Device type, whether autocast is on, and the type it casts to.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def current(cls) -> CallSettings:
        """Return the settings on this thread now."""
        kinds = [kind for kind in ("cpu", _device.accelerator()) if kind is not None]
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                for kind in kinds
            ),
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Apply the settings within a block."""
        with ExitStack() as undo:
            undo.enter_context(torch.inference_mode(self.inference))
            undo.enter_context(torch.set_grad_enabled(self.grad))
            for kind, enabled, dtype in self.autocast:
                undo.enter_context(torch.autocast(kind, dtype, enabled))
            yield


def counting_pass(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    on_op: Callable[[OpCount], object],
    settings: CallSettings | None = None,
) -> dict[str, int]:
    """Call a model once more and count its ops; afterwards everything is as it was.

    Parameters, inputs and gradients are not written. Buffers are copies while the pass runs, so
    that running statistics stay; what the forward sets on its modules (a cache, a counter) is put
    back, one level deep in containers and arrays; so are the random state and that of generators
    that are attributes of modules. Hooks of the user run. A cached layer counts what it does with
    the cache as it is now. No other rank takes part: `DistributedDataParallel` only calls its
    module.

    Args:
        model: The model; compiled parts run as the original program.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        on_op: Called after every op.
        settings: The modes of the call to repeat; by default those of now.

    Returns:
        How often an op ran whose FLOPs no formula gives, by name.

    Raises:
        CannotCount: If the forward writes in place to a tensor that is not its own, such as an
            input, or calls a collective of several ranks, neither of which has happened; or if it
            runs on several threads.
        ValueError: If the model has lazy parameters, which the pass would initialise.
    """
    _refuse_lazy(model)
    _refuse_replicas(model)
    counter = OpCounter(on_op)
    guard = _Guard()
    with ExitStack() as undo:
        undo.enter_context(random_state_kept())
        undo.enter_context(_run_uncompiled())
        undo.enter_context((settings or CallSettings.current()).active())
        undo.enter_context(guard)
        undo.enter_context(modules_kept(model))
        _leave_other_ranks_alone(model)
        undo.enter_context(counter)
        try:
            model(*args, **kwargs)
        finally:
            guard.confirm()  # the forward may have caught what the guard raised
    return dict(counter.unsupported)


def _refuse_lazy(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"model has the lazy parameter {name!r}, which counting would initialise: run one "
                "forward pass with a sample input first"
            )


def _refuse_replicas(model: nn.Module) -> None:
    """An op counter sees its own thread only."""
    if any(isinstance(m, nn.DataParallel) and len(m.device_ids) > 1 for m in model.modules()):
        raise CannotCount("the forward of DataParallel runs on a thread for each device")


@contextmanager
def _run_uncompiled() -> Iterator[None]:
    """Run compiled functions as they were written: their kernels do not call the dispatcher."""
    if "torch._dynamo" not in sys.modules:  # nothing can be compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _leave_other_ranks_alone(model: nn.Module) -> None:
    """Let data-parallel modules only call what they wrap, until `modules_kept` undoes it."""
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            module.forward = partial(_call_alone, module)  # type: ignore[method-assign]


def _call_alone(parallel: nn.parallel.DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
    """Call the module inside, with its inputs on its device, as the data-parallel one does."""
    if parallel.device_ids:
        (args,), (kwargs,) = scatter_kwargs(args, kwargs, parallel.device_ids)
    return parallel.module(*args, **kwargs)


@contextmanager
def modules_kept(model: nn.Module) -> Iterator[None]:
    """Give the modules copies of their buffers, and put back all that is set on them meanwhile."""
    copies: dict[Tensor, Tensor] = {}
    with ExitStack() as undo:
        for module in model.modules():
            undo.callback(_put_back, module, dict(vars(module)))
            for value in vars(module).values():
                restore = _restorer(value)
                if restore is not None:
                    undo.callback(restore)
            for name, buffer in module._buffers.items():
                if buffer is not None and not isinstance(module, torch.jit.ScriptModule):
                    module._buffers[name] = copies.setdefault(buffer, buffer.detach().clone())
        yield


def _put_back(module: nn.Module, attributes: dict[str, Any]) -> None:
    """Take away what was set on a module, and set what it had."""
    now = vars(module)
    for name in now.keys() - attributes.keys():
        del now[name]
    now.update(attributes)


def _restorer(value: Any) -> Callable[[], object] | None:
    """What puts the present state of an attribute back; None where nothing is known to change it.

    That is a container, one level deep, an array, or a source of random numbers.
    """
    if isinstance(value, list | dict | set | deque):
        return partial(_refill, value, value.copy())
    if type(value) is np.ndarray and value.flags.writeable:  # not a file in memory
        return partial(np.copyto, value, value.copy())
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return partial(value.setstate, value.getstate())
    return None


def _refill(container: Any, members: Any) -> None:
    container.clear()
    (container.update if isinstance(container, dict | set) else container.extend)(members)


class _Guard(_OpMode):  # type: ignore[no-untyped-call]
    """Stops an op that must not run a second time.

    That is one that would write to memory which existed before the guard was entered, or one in
    which other ranks take part: they would wait for each other, or take it for their next one.

    It knows the storages that ops have made since. A storage that was freed cannot be mistaken for
    a foreign one: those that existed before have kept their identity all the time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own: set[int] = set()
        self._refusal: CannotCount | None = None
        self._several_ranks = this_process().world_size > 1

    def confirm(self) -> None:
        """Raise if an op was refused."""
        if self._refusal is not None:
            raise self._refusal

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = OpCall.of(func, args, kwargs, None)
        reason = self._reason_against(call)
        if reason is not None:
            self._refusal = CannotCount(reason)
            raise self._refusal
        result = func(*args, **kwargs)
        inputs = {identity for tensor in call.inputs for identity in _storage_ids(tensor)}
        fresh = func is torch.ops.aten.lift_fresh.default  # torch.tensor(...) makes its memory
        for tensor in iter_tensors([result]):
            self._own |= _storage_ids(tensor) - (set() if fresh else inputs)
        return result

    def _reason_against(self, call: OpCall) -> str | None:
        """Say why the op must not run; None if it may."""
        if self._several_ranks and call.name.startswith(_COLLECTIVES):
            return (
                f"the forward calls {call.name}, in which other ranks take part, and they may not "
                "repeat it"
            )
        foreign = [tensor for tensor in call.written if not self._may_write(tensor)]
        if foreign:
            return (
                f"the forward changes a tensor of shape {tuple(foreign[0].shape)} in place "
                f"({call.name}) that is not its own, such as an input or a plain tensor attribute, "
                "and a second call would change it again; register it as a buffer, or write to a "
                "clone"
            )
        return None

    def _may_write(self, tensor: Tensor) -> bool:
        return tensor.numel() == 0 or (tensor.is_meta or _storage_ids(tensor) <= self._own)


_COLLECTIVES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
"""How the names of torch's collectives begin."""


def _storage_ids(tensor: Tensor) -> set[int]:
    """Return the identity of the storage; empty for a tensor that has none of its own."""
    values = stored(tensor)
    return {values.untyped_storage()._cdata} if values.layout == torch.strided else set()
