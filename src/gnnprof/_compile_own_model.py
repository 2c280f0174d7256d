"""Sees to it that only copies are measured: the user's own model is neither run nor trained.

A training step may reach it through a global, an object, a learning-rate scheduler; a copy may run
it through a forward that was replaced by a function. What can be seen without a call is refused
before; the first eager call is watched, because no look at code finds every way.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gnnprof._isolation import held_by, version_of
from gnnprof._tensors import iter_tensors

TRAIN_STEP = "'train_step'"
COPY = "a copy of 'model'"
"""Who may do to the user's model what it must not."""

_REMEDIES = {
    TRAIN_STEP: "use the model it is called with: train_step(model, *args)",
    COPY: "its forward, or that of a part, holds the model; define it in the class, or put it in "
    "as types.MethodType(function, module), which is copied with the module",
}


# -- before any call -------------------------------------------------------------------------------


def refuse_own_model(train_step: Callable[..., Any], model: nn.Module) -> None:
    """Refuse a training step that holds the user's model or an optimizer of it.

    Raises:
        ValueError: If it does.
    """
    for name, value in _within(train_step):
        if value is model:
            raise _runs_it(TRAIN_STEP, f" (as {name!r})")
        if isinstance(value, torch.optim.Optimizer) and _trains(value, model):
            raise _steps_it(TRAIN_STEP, f" (as {name!r})")


def refuse_bound_forward(model: nn.Module) -> None:
    """Refuse a model with a forward of its own that a copy of it would still run on the original.

    `copy.deepcopy` binds methods to the copy, but keeps functions, and what they hold, as they are.

    Raises:
        ValueError: If the forward of a module is such a function.
    """
    own = set(map(id, model.modules()))
    for module in model.modules():
        for value in _kept_by(vars(module).get("forward")):
            if id(value) in own or id(getattr(value, "__self__", None)) in own:
                raise _runs_it(COPY)


def _kept_by(function: Any) -> Iterator[Any]:
    """What a function, and those in its closure, keep of the place where they were defined."""
    pending, seen = [function], set[int]()
    while pending:
        current = pending.pop()
        if isinstance(current, functools.partial):
            current = current.func
        current = getattr(current, "__func__", current)
        if not inspect.isfunction(current) or id(current) in seen:
            continue
        seen.add(id(current))
        values = [*_cells(current), *(current.__defaults__ or ())]
        yield from values
        pending.extend(value for value in values if inspect.isfunction(value))


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is not set yet
            continue


def _within(train_step: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What a step holds, and what the object holds that it is a method of."""
    for name, value in held_by(train_step):
        yield name, value
        if name == "self" and hasattr(value, "__dict__"):
            yield from vars(value).items()


def _trains(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    own = set(map(id, model.parameters()))
    return any(id(one) in own for group in optimizer.param_groups for one in group["params"])


def _runs_it(who: str, name: str = "") -> ValueError:
    return ValueError(
        f"{who} uses your model itself{name}, so that every mode would run it eagerly; "
        f"{_REMEDIES[who]}"
    )


def _steps_it(who: str, name: str = "") -> ValueError:
    return ValueError(
        f"{who} uses an optimizer of your own model{name}, but it is called "
        "with copies, which that one would not train; make the optimizer inside, once for "
        "each model: functools.cache(lambda model: torch.optim.Adam(model.parameters()))"
    )


# -- during a call ---------------------------------------------------------------------------------


@contextmanager
def own_model_watched(model: nn.Module, ours: nn.Module, who: str) -> Iterator[None]:
    """Refuse a call that runs the user's model, steps an optimizer of it or changes its tensors.

    Weights, buffers and gradients are put back; what an optimizer of the user's remembers of a step
    that it took is not, so that it is stopped before.

    Args:
        model: The user's model.
        ours: The copy that is called. What a copy shares with the original on purpose may run.
        who: `TRAIN_STEP` or `COPY`.

    Raises:
        ValueError: If the call in the block does one of these.
    """
    here = threading.get_ident()
    copied = set(map(id, ours.modules()))
    shared = set(map(id, iter_tensors(ours)))

    def module_runs(module: nn.Module, inputs: Any) -> None:  # noqa: ARG001  # torch's signature
        if threading.get_ident() == here:
            raise _runs_it(who)

    def optimizer_steps(optimizer: torch.optim.Optimizer, *inputs: Any) -> None:  # noqa: ARG001
        if _trains(optimizer, model):
            raise _steps_it(who)

    def own_tensors() -> list[Tensor]:
        return [tensor for tensor in iter_tensors(model) if id(tensor) not in shared]

    kept = [_Kept.of(tensor) for tensor in own_tensors()]
    with ExitStack() as stack:
        for module in model.modules():
            if id(module) not in copied:
                handle = nn.Module.register_forward_pre_hook(module, module_runs, prepend=True)
                stack.callback(handle.remove)
        stack.callback(register_optimizer_step_pre_hook(optimizer_steps).remove)
        try:
            yield
        finally:
            changed = [one for one in kept if one.has_changed]
            for one in changed:
                one.put_back()
    if changed or [id(one.tensor) for one in kept] != [id(tensor) for tensor in own_tensors()]:
        raise ValueError(
            f"{who} changed weights, buffers or gradients of your model itself, which has their "
            f"values back; {_REMEDIES[who]}"
        )


@dataclass(frozen=True)
class _Kept:
    """A tensor of the user's model as it was, with its gradient."""

    tensor: Tensor
    version: int
    values: Tensor
    gradient: _Kept | None

    @classmethod
    def of(cls, tensor: Tensor) -> _Kept:
        gradient = tensor.grad if tensor.is_leaf else None
        return cls(
            tensor,
            version_of(tensor),
            tensor.detach().clone(),
            None if gradient is None else cls.of(gradient),
        )

    @property
    def _gradient_now(self) -> Tensor | None:
        return self.tensor.grad if self.tensor.is_leaf else None

    @property
    def has_changed(self) -> bool:
        """Whether the tensor or its gradient was written to, or the gradient replaced."""
        if version_of(self.tensor) != self.version:
            return True
        before = None if self.gradient is None else self.gradient.tensor
        if self._gradient_now is not before:
            return True
        return self.gradient is not None and self.gradient.has_changed

    def put_back(self) -> None:
        """Give the tensor its values and its gradient again."""
        with torch.no_grad():
            if version_of(self.tensor) != self.version:
                self.tensor.copy_(self.values)
        if self.tensor.is_leaf:
            self.tensor.grad = None if self.gradient is None else self.gradient.tensor
        if self.gradient is not None:
            self.gradient.put_back()
