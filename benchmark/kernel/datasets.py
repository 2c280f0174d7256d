"""Sets of graphs for classification, cut into folds or into three parts, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from benchmark.classification.training import Loaders
from benchmark.graph_sets import GraphSet
from benchmark.kernel.networks.shape import GraphShape


@dataclass(frozen=True)
class Split:
    """Indices of the graphs to train on, to choose an epoch by, and to report."""

    train: Tensor
    validation: Tensor
    test: Tensor


def shape_of(dataset: GraphSet) -> GraphShape:
    """Return what a network has to know of a data set."""
    counts = tuple(int(graph.num_nodes) for graph in dataset.graphs)
    return GraphShape(dataset.num_features, dataset.num_classes, counts)


def classes_of(dataset: GraphSet) -> Tensor:
    """Return the class of each graph."""
    return torch.tensor([int(graph.y) for graph in dataset.graphs])


def fold_numbers(classes: Tensor, count: int, seed: int) -> Tensor:
    """Deal the graphs out to folds, class after class and at random within a class.

    The folds, and the graphs of a class in each of them, differ in number by one at most.

    Args:
        classes: Class of each graph [G].
        count: Number of folds.
        seed: Seed of the cut; the process's random state is left alone.

    Returns:
        The fold of each graph [G], from 0 on.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(classes), generator=generator)
    order = order[classes[order].argsort(stable=True)]
    numbers = torch.empty(len(classes), dtype=torch.long)
    numbers[order] = torch.arange(len(classes)) % count
    return numbers


def folds(classes: Tensor, count: int, seed: int) -> list[Split]:
    """Return a stratified cross-validation: each fold tests once and validates once.

    Fold i is tested on; the one before it, in a circle, validates; the others train.

    Args:
        classes: Class of each graph [G].
        count: Number of folds, at least 3.
        seed: Seed of the cut.

    Raises:
        ValueError: If there are fewer than 3 folds, or fewer graphs than folds.
    """
    if count < 3:
        raise ValueError(
            f"folds={count} leaves nothing to train on beside a fold to test and one to validate; "
            "give at least 3."
        )
    if len(classes) < count:
        raise ValueError(f"folds={count} is more than the {len(classes)} graphs; give fewer.")
    numbers = fold_numbers(classes, count, seed)
    return [_split(numbers, (fold - 1) % count, fold) for fold in range(count)]


def three_parts(classes: Tensor, seed: int) -> Split:
    """Return 80 % of the graphs to train on, 10 % to validate, 10 % to test, class by class.

    Args:
        classes: Class of each graph [G].
        seed: Seed of the cut.

    Raises:
        ValueError: If there are fewer than 10 graphs.
    """
    if len(classes) < 10:
        raise ValueError(
            f"{len(classes)} graphs cannot be cut into 80, 10 and 10 %; give at least 10 "
            "(a larger --scale)."
        )
    return _split(fold_numbers(classes, 10, seed), validation=0, test=1)


def _split(numbers: Tensor, validation: int, test: int) -> Split:
    parts = (
        (numbers != validation) & (numbers != test),
        numbers == validation,
        numbers == test,
    )
    return Split(*(part.nonzero().view(-1) for part in parts))


def loaders_of(dataset: GraphSet, split: Split, batch_size: int, *, train: bool) -> Loaders:
    """Return loaders of the parts of a data set; only that of the test graphs unless `train`."""
    test = DataLoader(_chosen(dataset.graphs, split.test), batch_size)
    if not train:
        return Loaders(None, None, test)
    graphs = _chosen(dataset.graphs, split.train)
    # A rest of one graph has no variance for a batch normalisation to divide by.
    drop = len(graphs) > batch_size and len(graphs) % batch_size == 1
    return Loaders(
        DataLoader(graphs, batch_size, shuffle=True, drop_last=drop),
        DataLoader(_chosen(dataset.graphs, split.validation), batch_size),
        test,
    )


def _chosen(graphs: Sequence[Data], indices: Tensor) -> list[Data]:
    return [graphs[index] for index in indices.tolist()]
