"""What keeps a measurement from marking what it measures: own inputs, gradients, random state."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from gnnprof import _device
from gnnprof._tensors import iter_tensors

# -- inputs ----------------------------------------------------------------------------------------


def require_grad(x: Any, requires_grad: bool = True) -> Any:
    """Detach the floating tensors in a structure, so that gradients stop there.

    Goes through lists, tuples (named ones too), mappings, dataclasses and the graph objects of
    PyG, and copies these; tensors share their memory with the originals. A tensor that
    appears twice stays one tensor. Everything else, sparse tensors among it, is returned as it is.

    Args:
        x: A tensor or a structure of tensors.
        requires_grad: Whether the detached tensors require grad.

    Returns:
        The new structure; `x` is unchanged.
    """
    return _detached(x, requires_grad, {}, torch.is_floating_point)


def detached(x: Any) -> Any:
    """Do as `require_grad(x, False)`, with complex tensors as well."""
    return _detached(x, False, {}, lambda tensor: tensor.is_floating_point() or tensor.is_complex())


def _detached(
    value: Any,
    requires_grad: bool,
    done: dict[int, tuple[Any, Any]],
    concerns: Callable[[Tensor], bool],
) -> Any:
    """Do the work of `require_grad`.

    Args:
        value: What to go through.
        requires_grad: As in `require_grad`.
        done: Originals and copies so far by the original's id, which ends cycles. It holds the
            originals because the id of a temporary would be given out again.
        concerns: Tells the tensors that are detached, of those with strides.
    """
    if id(value) in done:
        return done[id(value)][1]
    inner = functools.partial(_detached, requires_grad=requires_grad, done=done, concerns=concerns)
    if isinstance(value, tuple):
        items = [inner(item) for item in value]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, Tensor):
        result = value
        if concerns(value) and value.layout == torch.strided:
            result = value.detach().requires_grad_(requires_grad)
        done[id(value)] = (value, result)
        return result
    fill = _filler(value)
    if fill is None:
        return value
    result = copy.copy(value)
    done[id(value)] = (value, result)
    fill(result, inner)
    return result


def _filler(value: Any) -> Callable[[Any, Callable[[Any], Any]], None] | None:
    """Return what replaces the members of a shallow copy; None for what has no members."""
    if isinstance(value, list):
        return _fill_list
    if isinstance(value, dict):
        return _fill_dict
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fill_dataclass
    if hasattr(value, "stores") and hasattr(value, "apply"):  # the graph objects of PyG
        return _fill_graph
    return None


def _fill_list(result: list[Any], inner: Callable[[Any], Any]) -> None:
    result[:] = [inner(item) for item in result]


def _fill_dict(result: dict[Any, Any], inner: Callable[[Any], Any]) -> None:
    for key in list(result):
        result[key] = inner(result[key])


def _fill_dataclass(result: Any, inner: Callable[[Any], Any]) -> None:
    for field in dataclasses.fields(result):
        if hasattr(result, field.name):
            # The copy is ours, so that even a frozen one may be written once.
            object.__setattr__(result, field.name, inner(getattr(result, field.name)))


def _fill_graph(result: Any, inner: Callable[[Any], Any]) -> None:
    result.apply(inner)


# -- gradients -------------------------------------------------------------------------------------


def random_like(tensor: Tensor) -> Tensor:
    """Draw a gradient from the normal distribution: same shape, dtype, device and layout."""
    tensor = tensor.detach()
    if tensor.layout != torch.sparse_coo:
        return torch.randn_like(tensor)
    return torch.sparse_coo_tensor(  # randn_like does not know this layout
        tensor._indices(),
        torch.randn_like(tensor._values()),
        tensor.shape,
        is_coalesced=tensor.is_coalesced(),
        check_invariants=False,  # taken from a valid tensor; and leaving it out warns
    )


@contextmanager
def grads_set_aside(outputs: Sequence[Tensor], others: Sequence[Tensor] = ()) -> Iterator[None]:
    """Take away the `.grad` of every leaf that a backward pass reaches, and put it back.

    Without it the first pass would set the gradients and the later ones add to them, which is
    more work.

    Args:
        outputs: Where the backward pass starts.
        others: Leaves that its graph does not show: a reentrant checkpoint hides those inside.
    """
    kept = [(leaf, leaf.grad) for leaf in (*_leaves_behind(outputs), *others)]
    try:
        for leaf, _ in kept:
            leaf.grad = None
        yield
    finally:
        for leaf, grad in kept:
            leaf.grad = grad


def _leaves_behind(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves that the autograd graph of the outputs shows."""
    pending: list[Node] = [get_gradient_edge(output).node for output in outputs]
    seen: set[Node] = set()
    leaves: list[Tensor] = []
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves.append(node.variable)  # type: ignore[attr-defined]  # only this node has it
        pending.extend(inner for inner, _ in node.next_functions if inner is not None)
    return leaves


def leaves_held_by(func: Callable[..., Any]) -> list[Tensor]:
    """Return the leaves requiring grad that a function can reach without its arguments.

    Args:
        func: Any callable: a module, a method of one, a partial, or a function that uses modules
            and tensors of its closure or its globals.
    """
    held = [func, *(value for _, value in held_by(func))]
    return [t for t in iter_tensors(held) if t.is_leaf and t.requires_grad]


def held_by(func: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What a function can reach without its arguments, by the name it has there."""
    if isinstance(func, functools.partial):
        yield from held_by(func.func)
        yield from ((f"argument {number}", one) for number, one in enumerate(func.args))
        yield from func.keywords.items()
        return
    if not inspect.isroutine(func):  # an object that can be called
        func = MethodType(type(func).__call__, func)
    owner = getattr(func, "__self__", None)
    if owner is not None:
        yield "self", owner
    try:
        function = inspect.unwrap(getattr(func, "__func__", func))
        variables = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    except ValueError:  # wrappers in a circle, or a closure over a name that is not set yet
        return
    if variables is not None:
        yield from variables.nonlocals.items()
        yield from variables.globals.items()


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to; 0 for one of inference mode, which does not count."""
    return 0 if tensor.is_inference() else tensor._version


# -- random state ----------------------------------------------------------------------------------


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the random state of Python, NumPy, torch and the accelerator back."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002  # the global state is the one users draw from
    kind = _device.accelerator()
    try:
        with torch.random.fork_rng(devices=_seeded_devices(kind), device_type=kind or "cpu"):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def _seeded_devices(kind: str | None) -> Sequence[int]:
    """Return the accelerators that have a random state to keep."""
    if kind is None:
        return ()
    _device.synchronize()  # starts the backend, so that a seed set earlier takes effect now
    module = _device.backend(kind)
    # Not in use even now: a forked child without access to the device, where asking would fail.
    in_use = module.is_initialized() if hasattr(module, "is_initialized") else True
    return range(module.device_count()) if in_use else ()
