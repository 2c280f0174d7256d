"""Sets of graphs with one class each: TU sets by `root`, stand-ins that need no download."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.data.separate import separate
from torch_geometric.datasets import TUDataset
from torch_geometric.io import read_tu_data
from torch_geometric.utils import degree

from benchmark.data_request import (
    DataRequest,
    check_request,
    content_hash,
    data_is_missing,
    download_failed,
)
from benchmark.planted_graphs import (
    ATOMS,
    BONDS,
    RESIDUES,
    GraphArrays,
    contact_graph,
    nitro_molecule,
    one_hot,
)

TU_NAMES = (
    "MUTAG",
    "PROTEINS",
    "ENZYMES",
    "NCI1",
    "DD",
    "IMDB-BINARY",
    "REDDIT-BINARY",
    "COLLAB",
)
LEAST_GRAPHS = 20  # of a stand-in: ten folds with two graphs each
MOST_DEGREES = 1000  # above, a degree is one number instead of a one-hot row


@dataclass(frozen=True)
class GraphSetStandIn:
    """A generated set: how many graphs, how many of them in class 1, and what they are made of.

    Attributes:
        num_graphs: Graphs at scale 1.
        percent_positive: Share of class 1, in percent.
        make: Returns one graph of the given class.
        node_types: Node types, each a column of `x`.
        edge_types: Edge types, each a column of `edge_attr`; 0 for no `edge_attr`.
    """

    num_graphs: int
    percent_positive: int
    make: Callable[[int, np.random.Generator], GraphArrays]
    node_types: int
    edge_types: int = 0


GRAPH_STAND_INS = {
    "mutag-like": GraphSetStandIn(188, 66, nitro_molecule, len(ATOMS), len(BONDS)),
    "proteins-like": GraphSetStandIn(1_113, 40, contact_graph, RESIDUES),
}
"""By name. Counts and shares are those of MUTAG and PROTEINS."""

GRAPH_SET_NAMES = (*TU_NAMES, *GRAPH_STAND_INS)


@dataclass(frozen=True)
class GraphSetFingerprint:
    """What tells one set of graphs from another: its counts, and a hash of its content.

    Attributes:
        num_graphs: Graphs.
        num_nodes: Nodes of all graphs together.
        num_edges: Directed edges of all graphs together.
        num_features: Features per node.
        num_classes: Classes.
        sha256: Hash of the sizes, edges, features and classes of all graphs, in their order.
    """

    num_graphs: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    sha256: str

    def __str__(self) -> str:
        counts = f"{self.num_graphs:,} graphs, {self.num_nodes:,} nodes"
        widths = f"{self.num_features:,} features, {self.num_classes} classes"
        return f"{counts}, {self.num_edges:,} directed edges, {widths}, sha256 {self.sha256[:12]}"

    def to_dict(self) -> dict[str, int | str]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class GraphSet:
    """Graphs to classify, and what a result must say about them.

    Attributes:
        name: The name to report, '-like' at its end if it is a stand-in.
        graphs: Each with `x` [N, F], `edge_index` [2, E], `y` [1] and, where the set has edge
            types, `edge_attr` [E, D].
        num_features: Features per node.
        num_classes: Classes.
        is_stand_in: Whether the graphs are generated.
        scale: Number of graphs of a stand-in as a share of the real set's; None for real data.
        degree_features: Whether `x` was made of node degrees because the set has no features.
        fingerprint: Counts and content hash.
    """

    name: str
    graphs: list[Data]
    num_features: int
    num_classes: int
    is_stand_in: bool
    scale: float | None
    degree_features: bool
    fingerprint: GraphSetFingerprint

    def to_dict(self) -> dict[str, object]:
        """Return all but the graphs, as JSON takes it."""
        return {
            "name": self.name,
            "is_stand_in": self.is_stand_in,
            "scale": self.scale,
            "degree_features": self.degree_features,
            "fingerprint": self.fingerprint.to_dict(),
        }


def load_graph_set(
    name: str,
    root: str | os.PathLike[str] | None = None,
    scale: float | None = None,
    seed: int = 0,
    download: bool = False,
) -> GraphSet:
    """Return a set of graphs by name.

    Args:
        name: One of `GRAPH_SET_NAMES`, in any case.
        root: Folder with the raw files of real sets, as PyG lays them out: `root/MUTAG/raw`. It is
            only read, never written, except to download.
        scale: Factor on the number of graphs of a stand-in; by default 1.
        seed: Seed of a stand-in.
        download: Whether real files that are not in `root` may be fetched into it.

    Raises:
        ValueError: For an unknown name, or a bad scale or seed.
        FileNotFoundError: If a real set is not in `root` and may not be downloaded.
        ConnectionError: If the download fails.
    """
    defaults = dict.fromkeys(GRAPH_STAND_INS, 1.0)
    request = check_request(name, GRAPH_SET_NAMES, defaults, root, scale, seed, download)
    graphs = _generate(request) if request.is_stand_in else _read_tu(request)
    degree_features = graphs[0].x is None
    if degree_features:
        _add_degrees(graphs)
    fingerprint = take_set_fingerprint(graphs)
    return GraphSet(
        request.name,
        graphs,
        fingerprint.num_features,
        fingerprint.num_classes,
        request.is_stand_in,
        request.scale,
        degree_features,
        fingerprint,
    )


def take_set_fingerprint(graphs: list[Data]) -> GraphSetFingerprint:
    """Return counts and content hash of graphs with `x`, `edge_index` and `y`."""
    sizes = np.array([graph.num_nodes for graph in graphs])
    edges = np.concatenate([graph.edge_index.numpy() for graph in graphs], axis=1)
    edge_counts = np.array([graph.num_edges for graph in graphs])
    x = np.concatenate([graph.x.numpy() for graph in graphs])
    y = np.concatenate([graph.y.numpy() for graph in graphs])
    return GraphSetFingerprint(
        num_graphs=len(graphs),
        num_nodes=int(sizes.sum()),
        num_edges=int(edge_counts.sum()),
        num_features=x.shape[1],
        num_classes=int(y.max()) + 1,
        sha256=content_hash([sizes, edge_counts, edges, x, y]),
    )


def _generate(request: DataRequest) -> list[Data]:
    spec = GRAPH_STAND_INS[request.name]
    num_graphs = round(spec.num_graphs * request.stand_in_scale)
    if num_graphs < LEAST_GRAPHS:
        raise ValueError(
            f"scale={request.scale} leaves {num_graphs} graphs of {request.name}; give a scale of "
            f"at least {LEAST_GRAPHS / spec.num_graphs:.3f}."
        )
    rng = np.random.Generator(np.random.PCG64(request.seed))
    positive = num_graphs * spec.percent_positive // 100
    classes = rng.permutation((np.arange(num_graphs) < positive).astype(np.int64))
    return [_to_data(spec.make(int(y), rng), spec) for y in classes]


def _to_data(arrays: GraphArrays, spec: GraphSetStandIn) -> Data:
    data = Data(
        x=torch.from_numpy(one_hot(arrays.node_type, spec.node_types)),
        edge_index=torch.from_numpy(arrays.edge_index),
        y=torch.tensor([arrays.y]),
    )
    if arrays.edge_type is not None:
        data.edge_attr = torch.from_numpy(one_hot(arrays.edge_type, spec.edge_types))
    return data


def _read_tu(request: DataRequest) -> list[Data]:
    """Return a real set, read from its raw files without writing beside them."""
    name = request.name
    stand_in = "proteins-like" if name == "PROTEINS" else "mutag-like"
    missing = _missing_file(request)
    if missing is not None and request.download and request.root is not None:
        print(f"Downloading {name} into {request.root} ...", file=sys.stderr)
        try:
            TUDataset(str(request.root), name)
        except OSError as error:
            raise download_failed(request, error, stand_in) from error
        missing = _missing_file(request)
    if missing is not None or request.root is None:
        raise data_is_missing(request, missing, f"{name}/raw/{name}_*.txt", stand_in)
    data, slices, sizes = read_tu_data(str(request.root / name / "raw"), name)
    graphs = []
    for i in range(len(slices["edge_index"]) - 1):
        graph = separate(Data, data, i, slices, decrement=False)
        graphs.append(_without_attributes(graph, sizes))
    return graphs


def _missing_file(request: DataRequest) -> Path | None:
    if request.root is None:
        return Path(request.name)
    folder = request.root / request.name / "raw"
    files = [folder / f"{request.name}_{part}.txt" for part in ("A", "graph_indicator")]
    return next((file for file in files if not file.is_file()), None)


def _without_attributes(graph: Data, sizes: dict[str, int]) -> Data:
    """Keep types of nodes and edges and drop continuous attributes, as PyG does by default."""
    if graph.x is not None:
        types = graph.x[:, sizes["num_node_attributes"] :]
        graph.x = types if types.size(1) > 0 else None
    if graph.edge_attr is not None:
        types = graph.edge_attr[:, sizes["num_edge_attributes"] :]
        graph.edge_attr = types if types.size(1) > 0 else None
    return graph


def _add_degrees(graphs: list[Data]) -> None:
    """Give nodes without features a one-hot row of their degree, or one standardised number."""
    degrees = [degree(graph.edge_index[0], graph.num_nodes) for graph in graphs]
    most = int(torch.cat(degrees).max())
    if most < MOST_DEGREES:
        for graph, each in zip(graphs, degrees, strict=True):
            graph.x = torch.nn.functional.one_hot(each.long(), most + 1).float()
        return
    std, mean = torch.std_mean(torch.cat(degrees))
    for graph, each in zip(graphs, degrees, strict=True):
        graph.x = ((each - mean) / std)[:, None]
