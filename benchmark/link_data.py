"""Graphs for link prediction: ogbl-collab and -citation2 by `root`, stand-ins of their shape."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from benchmark.data_request import DataRequest, check_request, content_hash
from benchmark.ogb_data import edge_split, load_ogb
from benchmark.planted import IntArray, class_embedding, draw_classes, planted_edges

NODES_PER_COMMUNITY = 100
LEAST_NODES = 1_000
HOMOPHILY = 85  # percent of the edges that stay within a community
SIGNAL = 60  # of the features, in steps of 1/256 (`class_embedding`)
NUM_FEATURES = 128


@dataclass(frozen=True)
class LinkStandIn:
    """The shape of one public data set.

    Attributes:
        num_nodes: Nodes at scale 1.
        num_edges: Edges of all three parts at scale 1; an undirected edge counts once.
        num_valid: Edges to validate on at scale 1.
        num_test: Edges to test on at scale 1.
        num_negatives: False edges of each of these parts at scale 1, for hits; false targets of
            each edge, at every scale, for mrr.
        metric: 'hits@50' or 'mrr'.
        default_scale: The scale where none is given.
    """

    num_nodes: int
    num_edges: int
    num_valid: int
    num_test: int
    num_negatives: int
    metric: str
    default_scale: float


LINK_STAND_INS = {
    "collab-like": LinkStandIn(235_868, 1_285_465, 60_084, 46_329, 100_000, "hits@50", 0.05),
    "citation2-like": LinkStandIn(2_927_963, 30_561_187, 86_596, 86_596, 1_000, "mrr", 0.005),
}
"""By name. The counts are those that OGB states for ogbl-collab and ogbl-citation2."""

METRICS = {"ogbl-collab": "hits@50", "ogbl-citation2": "mrr"}
LINK_NAMES = (*METRICS, *LINK_STAND_INS)


@dataclass(frozen=True)
class LinkSplit:
    """True edges of one part and the false edges they are ranked against.

    Attributes:
        edges: Source and target of each edge, [M, 2].
        negatives: For hits the false edges of all, [N, 2]; for mrr the false targets of each
            edge's source, [M, K]; None for training.
    """

    edges: Tensor
    negatives: Tensor | None


Parts = tuple[LinkSplit, LinkSplit, LinkSplit]
"""Training, validation and test edges."""


@dataclass(frozen=True)
class LinkFingerprint:
    """What tells one link data set from another: its counts, and a hash of its content.

    Attributes:
        num_nodes: Nodes.
        num_train: Edges to train on; an undirected edge counts once.
        num_valid: Edges to validate on.
        num_test: Edges to test on.
        num_features: Features per node.
        sha256: Hash of the features, the edges of the three parts and the negatives.
    """

    num_nodes: int
    num_train: int
    num_valid: int
    num_test: int
    num_features: int
    sha256: str

    def __str__(self) -> str:
        parts = f"{self.num_train:,} + {self.num_valid:,} + {self.num_test:,} edges"
        widths = f"{self.num_features:,} features"
        return f"{self.num_nodes:,} nodes, {parts}, {widths}, sha256 {self.sha256[:12]}"

    def to_dict(self) -> dict[str, int | str]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class LinkDataset:
    """One graph for link prediction, and what a result must say about it.

    Attributes:
        name: The name to report, '-like' at its end if it is a stand-in.
        data: `x` [N, F] and `edge_index` [2, E]: the training edges, both ways if undirected.
        train: Edges to train on.
        valid: Edges to validate on.
        test: Edges to test on.
        metric: 'hits@50' or 'mrr', for `benchmark.link_evaluation.evaluate`.
        is_stand_in: Whether the graph is generated.
        scale: Size of a stand-in as a share of the real set's; None for real data.
        fingerprint: Counts and content hash.
    """

    name: str
    data: Data
    train: LinkSplit
    valid: LinkSplit
    test: LinkSplit
    metric: str
    is_stand_in: bool
    scale: float | None
    fingerprint: LinkFingerprint

    def to_dict(self) -> dict[str, object]:
        """Return all but the data, as JSON takes it."""
        return {
            "name": self.name,
            "is_stand_in": self.is_stand_in,
            "scale": self.scale,
            "metric": self.metric,
            "fingerprint": self.fingerprint.to_dict(),
        }


def load_link_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    scale: float | None = None,
    seed: int = 0,
    download: bool = False,
) -> LinkDataset:
    """Return a data set for link prediction by name.

    Args:
        name: One of `LINK_NAMES`, in any case.
        root: Folder of real data as OGB lays it out: `root/ogbl_collab`.
        scale: Factor on nodes and edges of a stand-in; by default `LinkStandIn.default_scale`.
        seed: Seed of a stand-in.
        download: Whether real files that are not in `root` may be fetched into it.

    Raises:
        ValueError: For an unknown name, or a bad scale or seed.
        FileNotFoundError: If a real set is not in `root` and may not be downloaded.
        ModuleNotFoundError: If ogb, which reads real sets, is not installed.
        ConnectionError: If the download fails.
    """
    defaults = {stand_in: spec.default_scale for stand_in, spec in LINK_STAND_INS.items()}
    request = check_request(name, LINK_NAMES, defaults, root, scale, seed, download)
    if request.is_stand_in:
        metric = LINK_STAND_INS[request.name].metric
        data, parts = _generate(request, LINK_STAND_INS[request.name])
    else:
        metric = METRICS[request.name]
        data, parts = _load_ogb(request, metric)
    return LinkDataset(
        request.name,
        data,
        parts[0],
        parts[1],
        parts[2],
        metric,
        request.is_stand_in,
        request.scale,
        take_link_fingerprint(data, parts),
    )


def take_link_fingerprint(data: Data, parts: Parts) -> LinkFingerprint:
    """Return counts and content hash of features and of training, validation and test edges."""
    arrays = [data.x.numpy()]
    for part in parts:
        arrays.append(part.edges.numpy())
        if part.negatives is not None:
            arrays.append(part.negatives.numpy())
    return LinkFingerprint(
        int(data.num_nodes),
        len(parts[0].edges),
        len(parts[1].edges),
        len(parts[2].edges),
        int(data.num_features),
        content_hash(arrays),
    )


def _generate(request: DataRequest, spec: LinkStandIn) -> tuple[Data, Parts]:
    scale = request.stand_in_scale
    num_nodes = round(spec.num_nodes * scale)
    if num_nodes < LEAST_NODES:
        raise ValueError(
            f"scale={scale} leaves {num_nodes} nodes of {request.name}; give a scale of at least "
            f"{LEAST_NODES / spec.num_nodes + 5e-5:.4f}."
        )
    rng = np.random.Generator(np.random.PCG64(request.seed))
    num_communities = num_nodes // NODES_PER_COMMUNITY
    community = draw_classes(num_nodes, num_communities, rng)
    x = class_embedding(community, num_communities, NUM_FEATURES, SIGNAL, rng)
    make = _undirected_parts if spec.metric.startswith("hits") else _directed_parts
    edge_index, parts = make(community, spec, scale, rng)
    data = Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(edge_index))
    return data, parts


def _undirected_parts(
    community: IntArray, spec: LinkStandIn, scale: float, rng: np.random.Generator
) -> tuple[IntArray, Parts]:
    """Return training edges both ways [2, E], and the parts with negatives shared by all edges."""
    num_edges = round(spec.num_edges * scale)
    both = planted_edges(community, 2 * num_edges, HOMOPHILY, directed=False, rng=rng)
    pairs = both[:, both[0] < both[1]].T
    pairs = pairs[rng.permutation(len(pairs))]
    end_valid = round(spec.num_valid * scale)
    end_test = end_valid + round(spec.num_test * scale)
    valid, test, train = np.split(pairs, [end_valid, end_test])
    num_negatives = round(spec.num_negatives * scale)
    known = _keys(both[0], both[1], len(community))
    sources = rng.integers(0, len(community), (2, num_negatives))
    targets = _false_targets(sources, known, len(community), rng)
    negatives = np.stack([sources, targets], axis=2)
    edge_index = np.concatenate([train, train[:, ::-1]]).T
    edge_index = edge_index[:, np.lexsort(edge_index[::-1])]
    parts = (
        _split(train, None),
        _split(valid, negatives[0]),
        _split(test, negatives[1]),
    )
    return edge_index, parts


def _directed_parts(
    community: IntArray, spec: LinkStandIn, scale: float, rng: np.random.Generator
) -> tuple[IntArray, Parts]:
    """Return training edges [2, E], and the parts with false targets for each edge.

    As in ogbl-citation2, chosen sources lose two edges, one to validate and one to test.
    """
    num_nodes = len(community)
    edges = planted_edges(
        community, round(spec.num_edges * scale), HOMOPHILY, directed=True, rng=rng
    )
    edges = edges[:, rng.permutation(edges.shape[1])]
    by_source = edges[:, np.argsort(edges[0], kind="stable")]  # in random order for each source
    degree = np.bincount(by_source[0], minlength=num_nodes)
    begin = np.cumsum(degree) - degree
    chosen = rng.permutation(np.flatnonzero(degree >= 3))[: round(spec.num_valid * scale)]
    known = _keys(by_source[0], by_source[1], num_nodes)
    held_out = []
    for place in (begin[chosen], begin[chosen] + 1):
        pairs = by_source[:, place].T
        sources = np.broadcast_to(pairs[:, :1], (len(pairs), spec.num_negatives))
        held_out.append(_split(pairs, _false_targets(sources, known, num_nodes, rng)))
    stays = np.ones(by_source.shape[1], dtype=bool)
    stays[begin[chosen]] = stays[begin[chosen] + 1] = False
    train = by_source[:, stays]
    train = train[:, np.lexsort(train[::-1])]
    return train, (_split(train.T, None), held_out[0], held_out[1])


def _keys(source: IntArray, target: IntArray, num_nodes: int) -> IntArray:
    """Return a sorted number for each edge."""
    return np.sort(source * num_nodes + target)


def _false_targets(
    sources: IntArray, known: IntArray, num_nodes: int, rng: np.random.Generator
) -> IntArray:
    """Return for each source a node, uniform among those that it has no edge to and is not."""
    targets = rng.integers(0, num_nodes, sources.shape)
    while True:
        keys = sources * num_nodes + targets
        place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        bad = (known[place] == keys) | (sources == targets)
        if not bad.any():
            return targets
        targets[bad] = rng.integers(0, num_nodes, int(bad.sum()))


def _split(edges: IntArray, negatives: IntArray | None) -> LinkSplit:
    return LinkSplit(
        torch.from_numpy(np.ascontiguousarray(edges)),
        None if negatives is None else torch.from_numpy(np.ascontiguousarray(negatives)),
    )


def _load_ogb(request: DataRequest, metric: str) -> tuple[Data, Parts]:
    """Return a real set by OGB's loader, with its official split."""
    dataset = load_ogb(request, f"{request.name.removeprefix('ogbl-')}-like")
    split = edge_split(dataset)
    parts = []
    for part in ("train", "valid", "test"):
        given = split[part]
        if metric == "mrr":
            edges = torch.stack([given["source_node"], given["target_node"]], dim=1)
            negatives = given.get("target_node_neg")
        else:
            edges, negatives = given["edge"], given.get("edge_neg")
        parts.append(LinkSplit(edges, None if part == "train" else negatives))
    return dataset[0], (parts[0], parts[1], parts[2])
