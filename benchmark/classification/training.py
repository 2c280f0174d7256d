"""Training and inference of a classifier, epoch by epoch, and what is measured on the way.

Two durations are taken of each epoch: that of the training steps, with the batches put together and
moved to the device in it and the wait for them also told apart, and that of the evaluation. What
comes before, warm-up and compilation, is in neither.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch

from benchmark.classification.classifier import Batch, Classifier, Score, Waiting
from gnnprof import (
    Profiler,
    _device,
    profileit,
    rename_profile_file,
    timeit,
    torch_profile,
)
from gnnprof._stats import Stats

WARM_UP_BATCHES = 2  # enough without compiling: what is allocated and loaded at the first use


class Loaders(NamedTuple):
    """The batches to train on, to choose an epoch by, and to report; those not needed are None."""

    train: Iterable[Batch] | None
    validation: Iterable[Batch] | None
    test: Iterable[Batch]


@dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        epochs: Epochs at most.
        lr: Step size of Adam.
        weight_decay: L2 penalty on all parameters.
        lr_decay_factor: Factor on the step size after each `lr_decay_step_size` epochs.
        lr_decay_step_size: See there; None leaves the step size as it is.
        goal_accuracy: End with the first epoch that reaches this test accuracy; None never does.
    """

    epochs: int
    lr: float
    weight_decay: float = 0.0
    lr_decay_factor: float = 1.0
    lr_decay_step_size: int | None = None
    goal_accuracy: float | None = None

    def optimizer(self, net: torch.nn.Module) -> torch.optim.Optimizer:
        """Return a fresh Adam for a network."""
        return torch.optim.Adam(net.parameters(), lr=self.lr, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Epoch:
    """One epoch of training and the evaluation after it.

    Attributes:
        train_loss: Mean negative log-likelihood per graph during the epoch, in nats.
        validation: Score on the validation graphs; None without any.
        test: Score on the test graphs.
        train_seconds: Wall time of the training steps, loading included.
        loading_seconds: Wall time spent waiting for the batches, as part of it.
        evaluation_seconds: Wall time of both evaluations, loading included.
    """

    train_loss: float
    validation: Score | None
    test: Score
    train_seconds: float
    loading_seconds: float
    evaluation_seconds: float

    @property
    def seconds(self) -> float:
        """Wall time of training and evaluation."""
        return self.train_seconds + self.evaluation_seconds


def fit(
    classifier: Classifier,
    loaders: Loaders,
    plan: Plan,
    after_epoch: Callable[[int, Epoch], object] | None = None,
) -> tuple[Epoch, ...]:
    """Train, and return what each epoch did.

    Args:
        classifier: Is trained.
        loaders: `train` is needed; without `validation` an epoch has no score on it.
        plan: How.
        after_epoch: Called with the number of each epoch, from 1 on, and the epoch.

    Raises:
        FloatingPointError: If the training loss is not finite.
    """
    optimizer = plan.optimizer(classifier.net)
    schedule = torch.optim.lr_scheduler.StepLR(
        optimizer, plan.lr_decay_step_size or plan.epochs + 1, plan.lr_decay_factor
    )
    epochs: list[Epoch] = []
    for number in range(1, plan.epochs + 1):
        epoch = _epoch(classifier, loaders, optimizer)
        if not math.isfinite(epoch.train_loss):
            raise FloatingPointError(
                f"lr={plan.lr}: the training loss is {epoch.train_loss} in epoch {number}; give a "
                "smaller step size."
            )
        schedule.step()
        epochs.append(epoch)
        if after_epoch is not None:
            after_epoch(number, epoch)
        if plan.goal_accuracy is not None and epoch.test.accuracy >= plan.goal_accuracy:
            break
    return tuple(epochs)


def _epoch(classifier: Classifier, loaders: Loaders, optimizer: torch.optim.Optimizer) -> Epoch:
    if loaders.train is None:
        raise ValueError("loaders.train is None; training needs graphs to train on.")
    batches = Waiting(loaders.train, classifier.device)
    with timeit(log=False) as training:
        train_loss = classifier.train_epoch(optimizer, batches)
    validation = None
    with timeit(log=False) as evaluation:
        if loaders.validation is not None:
            validation = classifier.evaluate(Waiting(loaders.validation, classifier.device))
        test = classifier.evaluate(Waiting(loaders.test, classifier.device))
    return Epoch(
        train_loss, validation, test, training.duration, batches.seconds, evaluation.duration
    )


def time_inference(
    classifier: Classifier,
    loader: Iterable[Batch],
    passes: int,
    after_pass: Callable[[], object] | None = None,
) -> tuple[float, ...]:
    """Return the wall time of each of some passes over the graphs, loading included."""
    seconds = []
    for _ in range(passes):
        with timeit(log=False) as timer:
            classifier.infer(Waiting(loader, classifier.device))
        seconds.append(timer.duration)
        if after_pass is not None:
            after_pass()
    return tuple(seconds)


def warm_up(classifier: Classifier, loaders: Loaders, plan: Plan, *, whole: bool) -> float:
    """Take every path that the timed part takes, undo what was learnt, and return the seconds.

    Args:
        classifier: Has the parameters and buffers that it had before, afterwards.
        loaders: Without `train`, only inference is warmed up.
        plan: How training will go.
        whole: Whether to see all batches twice, as compiling needs, or the first few only. Dynamo
            leaves a size open only when it has met it again with another value: the number of
            neighbours in the one batch that is smaller than the others, for example.
    """
    before = copy.deepcopy(classifier.net.state_dict())
    _device.synchronize(classifier.device)
    start = _device.clock()
    for _ in range(2 if whole else 1):
        _visit(classifier, loaders, plan, None if whole else WARM_UP_BATCHES)
    _device.synchronize(classifier.device)
    seconds = _device.clock() - start
    classifier.net.load_state_dict(before)
    classifier.net.zero_grad()
    return seconds


def _visit(classifier: Classifier, loaders: Loaders, plan: Plan, limit: int | None) -> None:
    if loaders.train is None:
        classifier.infer(Waiting(islice(loaders.test, limit), classifier.device))
        return
    train = Waiting(islice(loaders.train, limit), classifier.device)
    classifier.train_epoch(plan.optimizer(classifier.net), train)
    for loader in (loaders.validation, loaders.test):
        if loader is not None:
            classifier.evaluate(Waiting(islice(loader, limit), classifier.device))


def peak_memory(classifier: Classifier, loaders: Loaders, plan: Plan) -> Stats:
    """Return time and peak memory of one step with the largest batch, by nodes and edges.

    The step trains if there are graphs to train on, so that the network is another afterwards.
    """
    loader = loaders.test if loaders.train is None else loaders.train
    batch = max(loader, key=lambda batch: (batch.num_nodes, batch.num_edges))
    batch = batch.to(classifier.device)
    step = _step(classifier, loaders, plan)
    step(batch)  # Adam makes its state at the first one
    classifier.net.zero_grad()  # or the step would begin by freeing what an earlier one allocated
    stats: Stats = profileit()(step)(batch)[1]
    return stats


def show_profile(
    classifier: Classifier, loaders: Loaders, plan: Plan, parts: Sequence[object]
) -> str:
    """Profile one step: print op table and layer table, and leave a trace.

    Args:
        classifier: Takes the step with the first batch.
        loaders: The step trains if there are graphs to train on.
        plan: How.
        parts: The parts of the trace's file name.

    Returns:
        The name of the trace, in the current folder.
    """
    loader = loaders.test if loaders.train is None else loaders.train
    batch = next(iter(loader)).to(classifier.device)
    step = _step(classifier, loaders, plan)
    step(batch)  # Adam makes its state at the first one
    with torch_profile():
        step(batch)
    trace = rename_profile_file(*parts)
    with_device = classifier.device.type in _device.EVENT_BACKENDS
    with Profiler(classifier.model, use_cuda=with_device) as prof:
        step(batch)
    print(prof.table(ops=False))
    print(f"Trace of one step, for chrome://tracing or https://ui.perfetto.dev: {trace}")
    return str(trace)


def _step(classifier: Classifier, loaders: Loaders, plan: Plan) -> Callable[[Batch], None]:
    optimizer = plan.optimizer(classifier.net)

    def step(batch: Batch) -> None:
        if loaders.train is None:
            classifier.infer([batch])
        else:
            classifier.train_step(optimizer, batch)

    return step


def compiled_graphs() -> int:
    """Return how many graphs Dynamo has compiled in this process."""
    from torch._dynamo.utils import counters  # heavy, and only of use here

    return int(counters["stats"]["unique_graphs"])
