"""Heterogeneous graphs for node classification: ogbn-mag by `root`, and a stand-in of its shape."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.datasets import OGB_MAG
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import scatter

from benchmark.data_request import (
    DataRequest,
    check_raw_files,
    check_request,
    content_hash,
    download_failed,
    timed,
)
from benchmark.planted import (
    IntArray,
    WeightedNodes,
    class_embedding,
    draw_classes,
    planted_edges,
    planted_links,
)

EdgeType = tuple[str, str, str]

PAPER, AUTHOR, INSTITUTION, FIELD = "paper", "author", "institution", "field_of_study"
AFFILIATED = (AUTHOR, "affiliated_with", INSTITUTION)
WRITES = (AUTHOR, "writes", PAPER)
CITES = (PAPER, "cites", PAPER)
HAS_TOPIC = (PAPER, "has_topic", FIELD)

NUM_NODES = {PAPER: 736_389, AUTHOR: 1_134_649, INSTITUTION: 8_740, FIELD: 59_965}
NUM_EDGES = {AFFILIATED: 1_043_998, WRITES: 7_145_660, CITES: 5_416_271, HAS_TOPIC: 7_505_078}
NUM_FEATURES, NUM_CLASSES = 128, 349
TRAIN_PER_MILLE, VAL_PER_MILLE = 855, 88  # of ogbn-mag: all before 2018, 2018, 2019
FIRST_YEAR, VAL_YEAR, TEST_YEAR = 2010, 2018, 2019

HOMOPHILY = 55  # percent of each relation's edges that stay within a group
SIGNAL = 30  # of the features, in steps of 1/256 (`class_embedding`)
LEAST_PER_CLASS = 8  # papers, and nodes of a group of another type
DEFAULT_SCALE = 0.01

STAND_IN = "mag-like"
MAG_FILES = ("node-feat", "node-label", "relations", "split", "num-node-dict.csv.gz")
"""What PyG's OGB_MAG looks for in its raw folder."""
HETERO_NAMES = ("ogbn-mag", STAND_IN)


@dataclass(frozen=True)
class HeteroFingerprint:
    """What tells one heterogeneous graph from another: its counts, and a hash of its content.

    Attributes:
        num_nodes: Nodes of each type.
        num_edges: Directed edges of each relation, by its name.
        num_features: Features per paper.
        num_classes: Classes of papers.
        sha256: Hash of the edges of each relation (sorted), the features and the classes; without
            added reverse edges and added features.
    """

    num_nodes: dict[str, int]
    num_edges: dict[str, int]
    num_features: int
    num_classes: int
    sha256: str

    def __str__(self) -> str:
        nodes = ", ".join(f"{count:,} {kind}" for kind, count in self.num_nodes.items())
        edges = ", ".join(f"{count:,} {name}" for name, count in self.num_edges.items())
        widths = f"{self.num_features:,} features, {self.num_classes} classes"
        return f"nodes: {nodes}; edges: {edges}; {widths}; sha256 {self.sha256[:12]}"

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class HeteroDataset:
    """One heterogeneous graph, and what a result must say about it.

    Attributes:
        name: The name to report, '-like' at its end if it is a stand-in.
        data: 'paper' has `x` [N, F], `y` [N], `year` [N] and the three masks [N]; the other types
            have `num_nodes`, and `x` if features were asked for.
        target: The node type to classify.
        num_features: Features per node.
        num_classes: Classes of the target type.
        is_stand_in: Whether the graph is generated.
        scale: Size of a stand-in as a share of the real set's; None for real data.
        fingerprint: Counts and content hash.
        fingerprint_seconds: Wall time of taking the fingerprint, which is no part of loading.
    """

    name: str
    data: HeteroData
    target: str
    num_features: int
    num_classes: int
    is_stand_in: bool
    scale: float | None
    fingerprint: HeteroFingerprint
    fingerprint_seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return what a result must say about the graph, as JSON takes it."""
        return {
            "name": self.name,
            "is_stand_in": self.is_stand_in,
            "scale": self.scale,
            "target": self.target,
            "fingerprint": self.fingerprint.to_dict(),
        }


def load_hetero_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    scale: float | None = None,
    seed: int = 0,
    *,
    reverse_edges: bool = False,
    all_features: bool = False,
    download: bool = False,
) -> HeteroDataset:
    """Return a heterogeneous graph by name.

    Args:
        name: One of `HETERO_NAMES`, in any case.
        root: Folder of real data as PyG's `OGB_MAG` lays it out: `root/mag/raw`. PyG keeps what it
            has processed beside it.
        scale: Factor on nodes and edges of the stand-in; by default 0.01.
        seed: Seed of the stand-in.
        reverse_edges: Whether to add for each relation its reverse (`rev_writes`, ...), and to make
            citations go both ways.
        all_features: Whether the other types get features too: the mean of their neighbours', of
            papers for authors and fields, and of authors for institutions.
        download: Whether real files that are not in `root` may be fetched into it.

    Raises:
        ValueError: For an unknown name, or a bad scale or seed.
        FileNotFoundError: If the real graph is not in `root` and may not be downloaded.
        ConnectionError: If the download fails.
    """
    defaults = {STAND_IN: DEFAULT_SCALE}
    request = check_request(name, HETERO_NAMES, defaults, root, scale, seed, download)
    data = _generate(request) if request.is_stand_in else _load_mag(request)
    fingerprint, seconds = timed(lambda: take_hetero_fingerprint(data))
    if all_features:
        _spread_features(data)
    if reverse_edges:
        data = ToUndirected()(data)
    return HeteroDataset(
        request.name,
        data,
        PAPER,
        fingerprint.num_features,
        fingerprint.num_classes,
        request.is_stand_in,
        request.scale,
        fingerprint,
        seconds,
    )


def take_hetero_fingerprint(data: HeteroData) -> HeteroFingerprint:
    """Return counts and content hash of a graph whose papers have `x` and `y`."""
    edges = []
    for edge_type in data.edge_types:
        row, col = data[edge_type].edge_index.numpy()
        edges.append(np.sort(row * data[edge_type[2]].num_nodes + col))
    x, y = data[PAPER].x.numpy(), data[PAPER].y.numpy()
    return HeteroFingerprint(
        num_nodes={kind: int(data[kind].num_nodes) for kind in data.node_types},
        num_edges={kind[1]: int(data[kind].num_edges) for kind in data.edge_types},
        num_features=x.shape[1],
        num_classes=int(y.max()) + 1,
        sha256=content_hash([*edges, x, y]),
    )


def _generate(request: DataRequest) -> HeteroData:
    """Return papers with planted classes; other nodes belong to groups that classes prefer."""
    scale = request.stand_in_scale
    counts = {kind: round(count * scale) for kind, count in NUM_NODES.items()}
    if counts[PAPER] < LEAST_PER_CLASS * NUM_CLASSES:
        least = LEAST_PER_CLASS * NUM_CLASSES / NUM_NODES[PAPER]
        raise ValueError(
            f"scale={scale} leaves {counts[PAPER]} papers for the {NUM_CLASSES} classes of "
            f"{request.name}; give a scale of at least {least + 5e-5:.4f}."
        )
    rng = np.random.Generator(np.random.PCG64(request.seed))
    y = draw_classes(counts[PAPER], NUM_CLASSES, rng)
    data = HeteroData()
    data[PAPER].x = torch.from_numpy(class_embedding(y, NUM_CLASSES, NUM_FEATURES, SIGNAL, rng))
    data[PAPER].y = torch.from_numpy(y)
    _split(data, rng)
    for edge_type, edge_index in _relations(y, counts, scale, rng).items():
        for kind in (edge_type[0], edge_type[2]):
            data[kind].num_nodes = counts[kind]
        data[edge_type].edge_index = torch.from_numpy(edge_index)
    return data


def _relations(
    y: IntArray, counts: dict[str, int], scale: float, rng: np.random.Generator
) -> dict[EdgeType, IntArray]:
    """Return the edges [2, E] of the four relations, in the order of `NUM_EDGES`."""
    edges = {edge_type: round(count * scale) for edge_type, count in NUM_EDGES.items()}
    groups = {PAPER: y}
    for kind in (AUTHOR, INSTITUTION, FIELD):
        num_groups = min(NUM_CLASSES, max(1, counts[kind] // LEAST_PER_CLASS))
        groups[kind] = draw_classes(counts[kind], num_groups, rng)
    nodes = {kind: WeightedNodes(group, rng) for kind, group in groups.items()}

    def links(edge_type: EdgeType, source: str, target: str) -> IntArray:
        preferred = groups[source] % (int(groups[target].max()) + 1)
        return planted_links(
            preferred, nodes[source], nodes[target], edges[edge_type], HOMOPHILY, rng
        )

    return {
        AFFILIATED: links(AFFILIATED, AUTHOR, INSTITUTION),
        WRITES: _swapped(links(WRITES, PAPER, AUTHOR)),  # so that every paper has an author
        CITES: planted_edges(y, edges[CITES], HOMOPHILY, directed=True, rng=rng),
        HAS_TOPIC: links(HAS_TOPIC, PAPER, FIELD),
    }


def _swapped(edge_index: IntArray) -> IntArray:
    col, row = edge_index
    order = np.lexsort((col, row))
    return np.stack([row[order], col[order]])


def _split(data: HeteroData, rng: np.random.Generator) -> None:
    """Set years and masks: papers before 2018 train, those of 2018 validate, those of 2019 test."""
    num_papers = len(data[PAPER].y)
    year = rng.integers(FIRST_YEAR, VAL_YEAR, num_papers)
    order = rng.permutation(num_papers)
    end_train = num_papers * TRAIN_PER_MILLE // 1000
    end_val = num_papers * (TRAIN_PER_MILLE + VAL_PER_MILLE) // 1000
    year[order[end_train:end_val]] = VAL_YEAR
    year[order[end_val:]] = TEST_YEAR
    data[PAPER].year = torch.from_numpy(year)
    data[PAPER].train_mask = data[PAPER].year < VAL_YEAR
    data[PAPER].val_mask = data[PAPER].year == VAL_YEAR
    data[PAPER].test_mask = data[PAPER].year == TEST_YEAR


def _spread_features(data: HeteroData) -> None:
    """Give each other type the mean of its neighbours' features, 0 where it has no neighbour."""
    papers, authors = data[WRITES].edge_index.flip(0)
    data[AUTHOR].x = _mean(data[PAPER].x, papers, authors, data[AUTHOR].num_nodes)
    papers, fields = data[HAS_TOPIC].edge_index
    data[FIELD].x = _mean(data[PAPER].x, papers, fields, data[FIELD].num_nodes)
    authors, institutions = data[AFFILIATED].edge_index
    data[INSTITUTION].x = _mean(data[AUTHOR].x, authors, institutions, data[INSTITUTION].num_nodes)


def _mean(x: Tensor, source: Tensor, target: Tensor, num_targets: int) -> Tensor:
    means: Tensor = scatter(x[source], target, dim_size=num_targets, reduce="mean")
    return means


def _load_mag(request: DataRequest) -> HeteroData:
    layout = "mag/raw as PyG's OGB_MAG lays it out"
    root = check_raw_files(request, "mag", MAG_FILES, layout, STAND_IN)
    try:
        return OGB_MAG(str(root))[0]
    except OSError as error:
        raise download_failed(request, error, STAND_IN) from error
