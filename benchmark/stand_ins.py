"""Seeded stand-ins for public data sets: the same shape, planted classes, nothing to download.

The graph is a degree-corrected planted partition (Karrer and Newman, "Stochastic blockmodels and
community structure in networks", 2011): an edge joins two nodes of one class with a fixed
probability, and a node is hit in proportion to a weight that falls with its rank as a power law.

Everything is drawn and computed in integers, or by operations that IEEE 754 rounds exactly, so that
one seed gives the same bits on every platform. This is what a fingerprint relies on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmark.planted import (
    WEIGHT_UNIT,
    BoolArray,
    FloatArray,
    IntArray,
    class_embedding,
    draw_classes,
    planted_edges,
)

GENERATOR_VERSION = 1
"""Raised whenever one seed begins to give other data, so that an old cache file is not read."""

TRAIN_PER_CLASS, NUM_VAL, NUM_TEST = 20, 500, 1000  # the public Planetoid split
MAX_DENSITY = 0.25  # of all pairs of nodes may be edges
MIN_NODES_PER_CLASS = 8  # fewer leave a class without a training, validation or test node


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
        default_scale: The scale where none is given: below 1 where the whole takes gigabytes.
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
    default_scale: float = 1.0


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
    "products-like": StandIn(
        2_449_029,
        123_718_280,
        100,
        47,
        75,
        "embedding",
        signal=20,
        train_val_percent=(8, 2),
        default_scale=0.01,
    ),
    "reddit-like": StandIn(
        232_965,
        114_615_892,
        602,
        41,
        70,
        "embedding",
        signal=8,
        train_val_percent=(66, 10),
        default_scale=0.02,
    ),
}
"""By name. The counts are those of Cora, CiteSeer, PubMed, ogbn-arxiv, ogbn-products and Reddit as
PyG loads them. (OGB's page counts each undirected edge of ogbn-products once: 61,859,140.)"""


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
        ValueError: If so small a scale leaves too few nodes for the classes or the edges.
    """
    spec = STAND_INS[name]
    num_nodes, num_edges = _scaled_counts(name, spec, scale)
    rng = np.random.Generator(np.random.PCG64(seed))
    y = draw_classes(num_nodes, spec.num_classes, rng)
    edge_index = planted_edges(y, num_edges, spec.homophily, directed=spec.directed, rng=rng)
    if spec.features == "embedding":
        x = class_embedding(y, spec.num_classes, spec.num_features, spec.signal, rng)
    else:
        x = _words(spec, y, rng)
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
    enough_nodes = MIN_NODES_PER_CLASS * spec.num_classes / spec.num_nodes
    enough_pairs = spec.num_edges / (MAX_DENSITY * spec.num_nodes**2)
    if scale < enough_nodes:
        raise ValueError(
            f"scale={scale} leaves {num_nodes} nodes for the {spec.num_classes} classes of {name}; "
            f"give a scale of at least {_rounded_up(max(enough_nodes, enough_pairs)):.4f}."
        )
    if scale < enough_pairs:  # drawing distinct edges would hardly end
        raise ValueError(
            f"scale={scale} leaves {num_nodes} nodes for {round(spec.num_edges * scale)} edges of "
            f"{name}; give a scale of at least {_rounded_up(enough_pairs):.4f}."
        )
    if spec.directed:
        return num_nodes, round(spec.num_edges * scale)
    return num_nodes, 2 * round(spec.num_edges // 2 * scale)


def _rounded_up(scale: float) -> float:
    return math.ceil(scale * 10_000) / 10_000


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
