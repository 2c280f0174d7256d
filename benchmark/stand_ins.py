"""Seeded stand-ins for public data sets: the same shape, planted classes, nothing to download.

The graph is a degree-corrected planted partition (Karrer and Newman, "Stochastic blockmodels and
community structure in networks", 2011): an edge joins two nodes of one class with a fixed
probability, and a node is hit in proportion to a weight that falls with its rank as a power law.

Everything is drawn and computed in integers, or by operations that IEEE 754 rounds exactly, so that
one seed gives the same bits on every platform. This is what a fingerprint relies on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

GENERATOR_VERSION = 1
"""Raised whenever one seed begins to give other data, so that an old cache file is not read."""

TRAIN_PER_CLASS, NUM_VAL, NUM_TEST = 20, 500, 1000  # the public Planetoid split
MIN_NODES_PER_CLASS = 8  # fewer leave a class without a training, validation or test node
WEIGHT_UNIT = 1 << 24  # integer weights of draws keep 24 bits


@dataclass(frozen=True)
class StandIn:
    """The shape of one public data set and how strongly its classes show.

    Attributes:
        num_nodes: Nodes at scale 1.
        num_edges: Directed edges at scale 1, as PyG counts them; both directions if undirected.
        num_features: Features per node, at every scale.
        num_classes: Classes, at every scale.
        homophily: Share of edges drawn inside the source's class, in percent; the others hit any
            class, so the measured homophily is a little higher.
        features: 'words' (0/1), 'frequencies' (weighted counts) or 'embedding' (dense, signed).
        words: Words drawn per node; for an embedding unused.
        signal: For words, how many percent of them come from the vocabulary of the class; for an
            embedding, the largest coordinate of a class centre (the noise has standard deviation
            148 in the same unit).
        directed: Whether an edge goes one way only.
        train_val_percent: Split by shares of all nodes instead of the Planetoid split.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    homophily: int
    features: str
    words: int = 0
    signal: int = 0
    directed: bool = False
    train_val_percent: tuple[int, int] | None = None


STAND_INS = {
    "cora-like": StandIn(2_708, 10_556, 1_433, 7, 76, "words", words=18, signal=30),
    "citeseer-like": StandIn(3_327, 9_104, 3_703, 6, 70, "words", words=32, signal=33),
    "pubmed-like": StandIn(19_717, 88_648, 500, 3, 70, "frequencies", words=60, signal=10),
    "arxiv-like": StandIn(
        169_343,
        1_166_243,
        128,
        40,
        65,
        "embedding",
        signal=60,
        directed=True,
        train_val_percent=(54, 17),
    ),
}
"""By name. The counts are those that PyG and OGB state for Cora, CiteSeer, PubMed, ogbn-arxiv."""


@dataclass(frozen=True)
class GraphArrays:
    """One generated graph: edges [2, E], features [N, F], classes [N] and three masks [N]."""

    edge_index: IntArray
    x: FloatArray
    y: IntArray
    train_mask: BoolArray
    val_mask: BoolArray
    test_mask: BoolArray


def generate(name: str, scale: float = 1.0, seed: int = 0) -> GraphArrays:
    """Return the stand-in called `name`.

    Args:
        name: A key of `STAND_INS`.
        scale: Factor on nodes and edges; features and classes keep their number.
        seed: Seed of every draw.

    Raises:
        ValueError: If so small a scale leaves too few nodes per class.
    """
    spec = STAND_INS[name]
    num_nodes, num_edges = _scaled_counts(name, spec, scale)
    rng = np.random.Generator(np.random.PCG64(seed))
    y = _classes(num_nodes, spec.num_classes, rng)
    edge_index = _edges(spec, y, num_edges, rng)
    x = _embedding(spec, y, rng) if spec.features == "embedding" else _words(spec, y, rng)
    order = rng.permutation(num_nodes)
    if spec.train_val_percent is None:
        masks = planetoid_split(y, order)
    else:
        masks = _share_split(order, *spec.train_val_percent)
    return GraphArrays(edge_index, x, y, *masks)


def planetoid_split(y: IntArray, order: IntArray) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return train, validation and test masks: 20 nodes per class, 500 and 1,000 others.

    On a graph too small for that, at most a quarter of each class trains, a fifth of all nodes
    validates and two fifths test.

    Args:
        y: Class of each node, [N].
        order: Permutation of the nodes, [N]; earlier ones are taken first.
    """
    num_nodes = len(y)
    train = np.zeros(num_nodes, dtype=bool)
    for label in np.unique(y):
        members = order[y[order] == label]
        train[members[: min(TRAIN_PER_CLASS, max(1, len(members) // 4))]] = True
    rest = order[~train[order]]
    num_val = min(NUM_VAL, num_nodes // 5)
    num_test = min(NUM_TEST, num_nodes * 2 // 5)
    val = _mask(num_nodes, rest[:num_val])
    test = _mask(num_nodes, rest[num_val : num_val + num_test])
    return train, val, test


def _share_split(
    order: IntArray, train_percent: int, val_percent: int
) -> tuple[BoolArray, BoolArray, BoolArray]:
    num_nodes = len(order)
    end_train = num_nodes * train_percent // 100
    end_val = end_train + num_nodes * val_percent // 100
    parts = np.split(order, [end_train, end_val])
    return _mask(num_nodes, parts[0]), _mask(num_nodes, parts[1]), _mask(num_nodes, parts[2])


def _mask(num_nodes: int, nodes: IntArray) -> BoolArray:
    mask = np.zeros(num_nodes, dtype=bool)
    mask[nodes] = True
    return mask


def _scaled_counts(name: str, spec: StandIn, scale: float) -> tuple[int, int]:
    num_nodes = round(spec.num_nodes * scale)
    least = MIN_NODES_PER_CLASS * spec.num_classes
    if num_nodes < least:
        raise ValueError(
            f"scale={scale} leaves {num_nodes} nodes for the {spec.num_classes} classes of {name}; "
            f"give a scale of at least {least / spec.num_nodes:.4f}."
        )
    if spec.directed:
        return num_nodes, round(spec.num_edges * scale)
    return num_nodes, 2 * round(spec.num_edges // 2 * scale)


def _classes(num_nodes: int, num_classes: int, rng: np.random.Generator) -> IntArray:
    """Return classes in random node order; the largest is three times the smallest."""
    shares = np.linspace(100, 300, num_classes).round().astype(np.int64)
    ends = np.cumsum(shares) * num_nodes // shares.sum()
    y = np.searchsorted(ends, np.arange(num_nodes), side="right")
    return rng.permutation(y).astype(np.int64)


class _WeightedNodes:
    """Draws nodes in proportion to power-law weights, among all or inside one class."""

    def __init__(self, y: IntArray, rng: np.random.Generator) -> None:
        num_nodes = len(y)
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
        return self._pick(self._rng.integers(0, self._ends[-1], size))

    def inside(self, labels: IntArray) -> IntArray:
        return self._pick(self._rng.integers(self._class_begin[labels], self._class_end[labels]))

    def _pick(self, tickets: IntArray) -> IntArray:
        return self._by_class[np.searchsorted(self._ends, tickets, side="right")]


def _edges(spec: StandIn, y: IntArray, num_edges: int, rng: np.random.Generator) -> IntArray:
    """Return exactly `num_edges` distinct edges without self-loops, sorted, [2, E]."""
    num_nodes = len(y)
    nodes = _WeightedNodes(y, rng)
    wanted = num_edges if spec.directed else num_edges // 2
    keys = np.empty(0, dtype=np.int64)
    source = np.arange(num_nodes)  # first one edge from each node, so that hardly one is isolated
    while len(keys) < wanted:
        at_home = rng.integers(0, 100, len(source)) < spec.homophily
        target = np.where(at_home, nodes.inside(y[source]), nodes.anywhere(len(source)))
        drawn = _edge_keys(source, target, num_nodes, spec.directed)
        keys = _distinct(np.concatenate([keys, drawn]))
        source = nodes.anywhere(wanted)
    row, col = np.divmod(np.sort(keys[:wanted]), num_nodes)
    if spec.directed:
        return np.stack([row, col])
    both = np.sort(np.concatenate([row * num_nodes + col, col * num_nodes + row]))
    return np.stack(np.divmod(both, num_nodes))


def _edge_keys(source: IntArray, target: IntArray, num_nodes: int, directed: bool) -> IntArray:
    """Return one number per edge that is not a self-loop; an undirected pair has one number."""
    keep = source != target
    source, target = source[keep], target[keep]
    if not directed:
        source, target = np.minimum(source, target), np.maximum(source, target)
    return source * num_nodes + target


def _distinct(keys: IntArray) -> IntArray:
    """Return the keys without repetitions, in the order of their first appearance."""
    _, first = np.unique(keys, return_index=True)
    return keys[np.sort(first)]


def _words(spec: StandIn, y: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return bag-of-words features: common words by Zipf's law, others from the class."""
    shape = (len(y), spec.words)
    vocabulary = rng.permutation(spec.num_features)
    topic_size = spec.num_features // spec.num_classes
    topic = vocabulary[y[:, None] * topic_size + rng.integers(0, topic_size, shape)]
    ends = np.cumsum(WEIGHT_UNIT // np.arange(10, spec.num_features + 10))
    common = np.searchsorted(ends, rng.integers(0, ends[-1], shape), side="right")
    words = np.where(rng.integers(0, 100, shape) < spec.signal, topic, common)
    cells = (np.arange(len(y))[:, None] * spec.num_features + words).ravel()
    counts = np.bincount(cells, minlength=len(y) * spec.num_features)
    counts = counts.reshape(len(y), spec.num_features)
    if spec.features == "frequencies":
        return _tf_idf(counts)
    present: FloatArray = (counts > 0).astype(np.float32)
    return present


def _tf_idf(counts: IntArray) -> FloatArray:
    """Return counts weighted by rarity: log2(nodes / nodes with the word), in steps of 1/16."""
    nodes_with_word = np.maximum((counts > 0).sum(axis=0), 1)
    rarity = np.floor(16 * np.log2(len(counts) / nodes_with_word)).astype(np.int64)
    weighted: FloatArray = (counts * rarity).astype(np.float32) / np.float32(16)
    return weighted


def _embedding(spec: StandIn, y: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return dense features: the centre of the class plus bell-shaped noise, in steps of 1/256."""
    centres = rng.integers(-spec.signal, spec.signal + 1, (spec.num_classes, spec.num_features))
    x = centres.astype(np.int16)[y]
    for _ in range(4):  # four uniform bytes: nearly normal, and exact on every platform
        x += rng.integers(0, 256, x.shape, dtype=np.uint8)
    x -= 510
    features: FloatArray = x.astype(np.float32) / np.float32(256)
    return features
