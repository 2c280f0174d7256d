"""What cross-validation says: the figures of the folds put together, and the best size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.classification.training import Epoch
from gnnprof._statistics import mean, median, sample_std

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Fold:
    """One training of a cross-validation.

    Attributes:
        validation_loss: The lowest of all epochs, in nats; nan only where it was nan in all.
        test_accuracy: That of the first epoch with that loss, 0..1; the test graphs choose nothing.
        best_epoch: The number of that epoch, from 1 on.
        epoch_seconds: Median wall time of an epoch, evaluation included.
    """

    validation_loss: float
    test_accuracy: float
    best_epoch: int
    epoch_seconds: float


def fold_of(epochs: Sequence[Epoch]) -> Fold:
    """Return what a training comes to.

    Raises:
        ValueError: If an epoch has no validation score.
    """
    losses = []
    for epoch in epochs:
        if epoch.validation is None:
            raise ValueError("an epoch without a validation score cannot be chosen by one.")
        losses.append(epoch.validation.loss)
    best = min(range(len(losses)), key=lambda number: _nan_last(losses[number]))
    return Fold(
        losses[best],
        epochs[best].test.accuracy,
        best + 1,
        median([epoch.seconds for epoch in epochs]),
    )


def summary_of(folds: Sequence[Fold]) -> dict[str, float | None]:
    """Return means over the folds, and the spread of the accuracy between them (sample std)."""
    accuracy = [fold.test_accuracy for fold in folds]
    return {
        "validation_loss": mean([fold.validation_loss for fold in folds]),
        "test_accuracy": mean(accuracy),
        "test_accuracy_std": sample_std(accuracy),
        "epoch_seconds": median([fold.epoch_seconds for fold in folds]),
    }


def best_sizes(records: Iterable[Record]) -> list[Record]:
    """Return, of each network on each data set, the record with the lowest validation loss.

    Records that did not end well take no part, nor do those whose loss is nan.
    """
    best: dict[tuple[str, str], Record] = {}
    for record in records:
        if record["outcome"] != "ok" or math.isnan(_loss(record)):
            continue
        key = (record["case"]["dataset"], record["case"]["model"])
        if key not in best or _loss(record) < _loss(best[key]):
            best[key] = record
    return list(best.values())


def _nan_last(loss: float) -> float:
    """Return a loss that compares as the worst where it is nan."""
    return math.inf if math.isnan(loss) else loss


def _loss(record: Record) -> float:
    return float(record["summary"]["validation_loss"])
