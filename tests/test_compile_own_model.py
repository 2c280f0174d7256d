"""The user's own model is neither run nor trained, whatever way a training step finds to it."""

from __future__ import annotations

import copy
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import _global_optimizer_pre_hooks

from gnnprof import compile_benchmark


class Net(nn.Module):
    """Parameters, buffers that a call in training changes, a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)).relu()


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> Net:
    return Net()


@pytest.fixture
def optimizer(model: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def bench(model: nn.Module, **settings: Any) -> Any:
    return compile_benchmark(model, X, modes="eager", backend="eager", rounds=6, **settings)


def refused(model: nn.Module, message: str, **settings: Any) -> None:
    """Check that a call is refused and that the model is as it was."""
    before = copy.deepcopy(model.state_dict())
    gradients = [parameter.grad for parameter in model.parameters()]
    with pytest.raises(ValueError, match=message):
        bench(model, **settings)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    after = [parameter.grad for parameter in model.parameters()]
    assert all(one is other for one, other in zip(after, gradients, strict=True))
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not _global_optimizer_pre_hooks


def test_what_a_step_holds_is_seen_before_any_call(model, optimizer):
    def trains_mine(copied, x):
        copied(x).sum().backward()
        optimizer.step()

    def calls_mine(copied, x):
        model(x).sum().backward()

    refused(model, r"optimizer of your own model \(as 'optimizer'\)", train_step=trains_mine)
    refused(model, r"uses your model itself \(as 'model'\)", train_step=calls_mine)
    refused(model, r"model itself \(as 'model'\)", train_step=functools.partial(calls_mine))


class Trainer:
    """A step as an object."""

    def __init__(self, model: nn.Module) -> None:
        self.parts = {"model": model}

    def __call__(self, copied: nn.Module, x: Tensor) -> None:
        self.parts["model"](x).sum().backward()


def test_a_model_behind_other_functions_and_objects_is_stopped_before_it_runs(model, optimizer):
    def train():
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()

    message = "'train_step' uses your model itself, so"
    refused(model, message, train_step=lambda copied, x: train())
    refused(model, message, train_step=Trainer(model))


def test_an_optimizer_behind_a_container_or_a_scheduler_is_stopped_before_its_step(
    model, optimizer
):
    held = {"optimizer": optimizer}
    scheduler = StepLR(optimizer, 1)
    model.layer.bias.grad = torch.ones(3)

    def from_a_dict(copied, x):
        copied(x).sum().backward()
        held["optimizer"].step()

    def from_a_scheduler(copied, x):
        copied(x).sum().backward()
        scheduler.optimizer.step()

    message = "'train_step' uses an optimizer of your own model, but"
    refused(model, message, train_step=from_a_dict)
    refused(model, message, train_step=from_a_scheduler)


def step_by_hand(weights: list[Tensor]) -> Callable[..., Tensor]:
    def train_step(copied: nn.Module, x: Tensor) -> Tensor:
        loss = copied(x).sum() + sum(weight.sum() for weight in weights)
        loss.backward()
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1
        return loss

    return train_step


@pytest.mark.parametrize("has_gradient", [False, True])
def test_weights_and_gradients_that_were_changed_by_hand_are_put_back(model, has_gradient):
    ours = torch.ones(3, 4)
    model.layer.weight.grad = ours if has_gradient else None
    step = step_by_hand([*model.parameters()])
    refused(model, "changed weights, buffers or gradients of your model", train_step=step)
    assert torch.equal(ours, torch.ones(3, 4))


def test_a_step_that_keeps_to_its_copy_is_let_through(model):
    @functools.cache
    def optimizer_of(model):
        return torch.optim.Adam(model.parameters())

    def train_step(copied, x):
        optimizer = optimizer_of(copied)
        optimizer.zero_grad()
        copied(x).sum().backward()
        optimizer.step()

    (row,) = bench(model, train_step=train_step).rows
    assert row.status == "ok"


# -- a forward of the object's own -----------------------------------------------------------------


def test_a_wrapped_forward_that_stays_with_the_original_is_refused(model):
    original = model.forward

    @functools.wraps(original)
    def wrapped(x):
        return original(x) * 2

    model.forward = wrapped
    refused(model, "a copy of 'model' uses your model itself")
    refused(nn.Sequential(model), "a copy of 'model' uses your model itself", backward=False)


def test_a_wrapped_forward_that_hides_the_original_is_seen_when_it_runs(model):
    hidden = [model.forward]
    model.forward = lambda x: hidden[0](x)
    refused(model, "a copy of 'model' uses your model itself", backward=False)


def test_a_method_put_into_the_object_is_copied_with_it(model):
    def twice(self, x):
        return Net.forward(self, x) * 2

    bound = functools.partial(twice, model)
    bound.__wrapped__ = model.forward  # as functools.update_wrapper leaves it
    for forward in (types.MethodType(twice, model), bound):
        model.forward = forward
        (row,) = bench(model).rows
        assert row.status == "ok"


class Shared(nn.Module):
    """A part that copies of the model share."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls = nn.BatchNorm1d(4), 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.norm(x)


def test_what_copies_share_may_run_and_change():
    model = nn.Sequential(Shared(), nn.Linear(4, 2))
    (row,) = bench(model, backward=False).rows
    assert row.status == "ok"
    assert model[0].norm.num_batches_tracked == model[0].calls
    assert model[0].calls >= 2 * 6  # two copies, six rounds


def test_a_compiled_module_beside_the_model_gives_no_warning(model):
    teacher = torch.compile(nn.Linear(4, 3), backend="eager")

    def step(student: nn.Module, x: Tensor) -> Tensor:
        return (student(x) - teacher(x)).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (row,) = bench(model, train_step=step, backward=False).rows
    assert row.status == "ok"


def test_a_compiled_forward_is_refused(model):
    model.forward = torch.compile(model.forward, backend="eager")
    refused(model, "compiled already")
