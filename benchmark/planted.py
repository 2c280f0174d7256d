"""What the generated data sets are drawn from: classes, weighted nodes, dense features.

Everything is drawn and computed in integers, or by operations that IEEE 754 rounds exactly (sums,
products, quotients and square roots of single numbers), so that one seed gives the same bits on
every platform. A function is not changed once a data set is built on it: its bits are relied upon.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

WEIGHT_UNIT = 1 << 24  # integer weights of draws keep 24 bits


def draw_classes(num_nodes: int, num_classes: int, rng: np.random.Generator) -> IntArray:
    """Return classes in random node order; the largest is three times the smallest."""
    shares = np.linspace(100, 300, num_classes).round().astype(np.int64)
    ends = np.cumsum(shares) * num_nodes // shares.sum()
    y = np.searchsorted(ends, np.arange(num_nodes), side="right")
    return rng.permutation(y).astype(np.int64)


class WeightedNodes:
    """Draws nodes in proportion to power-law weights, among all or inside one class."""

    def __init__(self, y: IntArray, rng: np.random.Generator) -> None:
        num_nodes = len(y)
        self.num_nodes = num_nodes
        # Weight rank^-0.75 gives a degree distribution with exponent 1 + 1/0.75 = 2.33. Square
        # roots, unlike powers, are rounded alike on every platform.
        root = np.sqrt(np.arange(3, num_nodes + 3, dtype=np.float64))
        weights = (WEIGHT_UNIT / (root * np.sqrt(root))).astype(np.int64)
        self._rng = rng
        self._by_class = np.argsort(y, kind="stable")
        in_class_order = rng.permutation(weights)[self._by_class]
        self._ends = np.cumsum(in_class_order)
        last_of_class = np.cumsum(np.bincount(y)) - 1
        self._class_end = self._ends[last_of_class]
        self._class_begin = np.concatenate([[0], self._class_end[:-1]])

    def anywhere(self, size: int) -> IntArray:
        """Return `size` nodes."""
        return self._pick(self._rng.integers(0, self._ends[-1], size))

    def inside(self, labels: IntArray) -> IntArray:
        """Return one node of each of the given classes, [M]; each class has to have nodes."""
        return self._pick(self._rng.integers(self._class_begin[labels], self._class_end[labels]))

    def _pick(self, tickets: IntArray) -> IntArray:
        return self._by_class[np.searchsorted(self._ends, tickets, side="right")]


def planted_edges(
    y: IntArray, num_edges: int, homophily: int, *, directed: bool, rng: np.random.Generator
) -> IntArray:
    """Return exactly `num_edges` distinct edges without self-loops, sorted, [2, E].

    Args:
        y: Class of each node, [N].
        num_edges: Directed edges; both directions count where the graph is undirected.
        homophily: Share of edges drawn inside the source's class, in percent.
        directed: Whether an edge goes one way only.
        rng: Source of the draws.
    """
    num_nodes = len(y)
    nodes = WeightedNodes(y, rng)
    wanted = num_edges if directed else num_edges // 2
    keys = np.empty(0, dtype=np.int64)
    source = np.arange(num_nodes)  # first one edge from each node, so that hardly one is isolated
    while len(keys) < wanted:
        at_home = rng.integers(0, 100, len(source)) < homophily
        target = np.where(at_home, nodes.inside(y[source]), nodes.anywhere(len(source)))
        drawn = edge_keys(source, target, num_nodes, directed)
        keys = distinct(np.concatenate([keys, drawn]))
        source = nodes.anywhere(wanted)
    row, col = np.divmod(np.sort(keys[:wanted]), num_nodes)
    if directed:
        return np.stack([row, col])
    both = np.sort(np.concatenate([row * num_nodes + col, col * num_nodes + row]))
    return np.stack(np.divmod(both, num_nodes))


def edge_keys(source: IntArray, target: IntArray, num_nodes: int, directed: bool) -> IntArray:
    """Return one number per edge that is not a self-loop; an undirected pair has one number."""
    keep = source != target
    source, target = source[keep], target[keep]
    if not directed:
        source, target = np.minimum(source, target), np.maximum(source, target)
    return source * num_nodes + target


def planted_links(
    groups: IntArray,
    sources: WeightedNodes,
    targets: WeightedNodes,
    num_edges: int,
    homophily: int,
    rng: np.random.Generator,
    *,
    loops: bool = True,
) -> IntArray:
    """Return distinct edges between nodes of two kinds, sorted, [2, E].

    Every source has an edge if there are as many edges as sources.

    Args:
        groups: For each source the class of targets that it prefers, [N].
        sources: Draws sources.
        targets: Draws targets.
        num_edges: Edges; far fewer than there are pairs.
        homophily: Share of edges drawn inside the preferred class, in percent.
        rng: Source of the draws.
        loops: Whether a source may be joined with the target of its number; not where both kinds
            are one.
    """
    width = targets.num_nodes
    keys = np.empty(0, dtype=np.int64)
    source = rng.permutation(len(groups))
    while len(keys) < num_edges:
        at_home = rng.integers(0, 100, len(source)) < homophily
        target = np.where(at_home, targets.inside(groups[source]), targets.anywhere(len(source)))
        keep = loops | (source != target)
        keys = distinct(np.concatenate([keys, (source * width + target)[keep]]))
        source = sources.anywhere(num_edges)
    return np.stack(np.divmod(np.sort(keys[:num_edges]), width))


def distinct(keys: IntArray) -> IntArray:
    """Return the keys without repetitions, in the order of their first appearance."""
    _, first = np.unique(keys, return_index=True)
    return keys[np.sort(first)]


def class_embedding(
    y: IntArray, num_classes: int, num_features: int, signal: int, rng: np.random.Generator
) -> FloatArray:
    """Return dense features [N, F]: the centre of the class plus bell-shaped noise.

    Args:
        y: Class of each node, [N].
        num_classes: Classes.
        num_features: Features per node.
        signal: The largest coordinate of a centre, in steps of 1/256; the noise has standard
            deviation 148 in the same unit.
        rng: Source of the draws.
    """
    centres = rng.integers(-signal, signal + 1, (num_classes, num_features))
    x = centres.astype(np.int16)[y]
    for _ in range(4):  # four uniform bytes: nearly normal, and exact on every platform
        x += rng.integers(0, 256, x.shape, dtype=np.uint8)
    x -= 510
    features: FloatArray = x.astype(np.float32) / np.float32(256)
    return features
