"""The data sets of every benchmark script: real ones by `root`, stand-ins that need no download.

A real set keeps its real name and a stand-in ends in '-like'; no option turns one into the other.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub, Planetoid, Reddit
from torch_geometric.io import read_planetoid_data
from torch_geometric.transforms import NormalizeFeatures

from benchmark.data_request import (
    DataRequest,
    check_raw_files,
    check_request,
    data_is_missing,
    download_failed,
    timed,
)
from benchmark.ogb_data import load_ogb, node_split
from benchmark.stand_ins import GENERATOR_VERSION, STAND_INS, GraphArrays, generate, planetoid_split
from gnnprof._files import write_atomically

PLANETOID_FILES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
PLANETOID_NAMES = ("Cora", "CiteSeer", "PubMed")
OGB_NAMES = ("ogbn-arxiv", "ogbn-products")
REDDIT_FILES = ("reddit_data.npz", "reddit_graph.npz")
REAL_NAMES = (*PLANETOID_NAMES, "Reddit", *OGB_NAMES)
NAMES = ("KarateClub", *REAL_NAMES, *STAND_INS)


@dataclass(frozen=True)
class Fingerprint:
    """What tells one graph from another: its counts, and a hash of its content.

    Attributes:
        num_nodes: Nodes.
        num_edges: Directed edges, as PyG counts them.
        num_features: Features per node.
        num_classes: Classes.
        sha256: Hash of the edges (sorted, so that their order does not matter), the features before
            any normalisation and the classes, in little-endian int64 and float32.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    sha256: str

    def __str__(self) -> str:
        counts = f"{self.num_nodes:,} nodes, {self.num_edges:,} directed edges"
        widths = f"{self.num_features:,} features, {self.num_classes} classes"
        return f"{counts}, {widths}, sha256 {self.sha256[:12]}"

    def to_dict(self) -> dict[str, int | str]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class GraphDataset:
    """One graph for node classification, and what a result must say about it.

    Attributes:
        name: The name to report, '-like' at its end if it is a stand-in.
        data: `x` [N, F], `edge_index` [2, E], `y` [N], `train_mask`, `val_mask`, `test_mask` [N].
        is_stand_in: Whether the graph is generated and only has the shape of a real one.
        features_normalized: Whether each row of `x` was divided by its sum.
        fingerprint: Counts and content hash.
        scale: Size of a stand-in as a share of the real set's; None for real data.
        fingerprint_seconds: Wall time of taking the fingerprint, which is no part of loading.
    """

    name: str
    data: Data
    is_stand_in: bool
    features_normalized: bool
    fingerprint: Fingerprint
    scale: float | None = None
    fingerprint_seconds: float = 0.0

    @property
    def num_features(self) -> int:
        """Features per node."""
        return self.fingerprint.num_features

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.fingerprint.num_classes

    def to_dict(self) -> dict[str, object]:
        """Return what a result must say about the graph, as JSON takes it."""
        return {
            "name": self.name,
            "is_stand_in": self.is_stand_in,
            "scale": self.scale,
            "features_normalized": self.features_normalized,
            "fingerprint": self.fingerprint.to_dict(),
        }


def load_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    scale: float | None = None,
    seed: int = 0,
    *,
    normalize_features: bool = False,
    cache: str | os.PathLike[str] | None = None,
    download: bool = False,
) -> GraphDataset:
    """Return a data set by name.

    Args:
        name: One of `NAMES`, in any case.
        root: Folder with the raw files of real sets, as PyG lays them out: `root/PubMed/raw`. It is
            only read, never written, except to download.
        scale: Factor on nodes and edges of a stand-in; by default 1, except for the largest, which
            are shrunk (`StandIn.default_scale`).
        seed: Seed of a stand-in.
        normalize_features: Whether to divide each row of features by its sum. Signed features
            (embeddings) are left as they are: the sum of such a row means nothing.
        cache: Folder to keep a generated stand-in in, and to read it from the next time.
        download: Whether real files that are not in `root` may be fetched into it.

    Raises:
        ValueError: For an unknown name, a bad scale or seed, or an argument that does not apply.
        FileNotFoundError: If a real set is not in `root` and may not be downloaded.
        ConnectionError: If the download fails.
        ModuleNotFoundError: If scipy or ogb, which read real sets, is not installed.
    """
    default_scales = {stand_in: spec.default_scale for stand_in, spec in STAND_INS.items()}
    request = check_request(name, NAMES, default_scales, root, scale, seed, download)
    data = _load_stand_in(request, cache) if request.is_stand_in else _load_real(request)
    fingerprint, seconds = timed(lambda: take_fingerprint(data))
    normalize_features = normalize_features and float(data.x.min()) >= 0
    if normalize_features:
        data = NormalizeFeatures()(data)
    return GraphDataset(
        request.name,
        data,
        request.is_stand_in,
        normalize_features,
        fingerprint,
        request.scale,
        seconds,
    )


def with_random_split(data: Data) -> Data:
    """Return the graph with public-style masks drawn from torch's CPU random state."""
    order = torch.randperm(data.num_nodes).numpy()
    masks = planetoid_split(data.y.cpu().numpy(), order)
    split = copy.copy(data)
    split.train_mask, split.val_mask, split.test_mask = (
        torch.from_numpy(mask).to(data.y.device) for mask in masks
    )
    return split


def take_fingerprint(data: Data) -> Fingerprint:
    """Return counts and content hash of a graph with `x`, `edge_index` and `y`."""
    row, col = data.edge_index.cpu().numpy()
    content = hashlib.sha256()
    for array, dtype in (
        (np.sort(row * data.num_nodes + col), "<i8"),
        (data.x.cpu().numpy(), "<f4"),
        (data.y.cpu().numpy(), "<i8"),
    ):
        content.update(np.ascontiguousarray(array, dtype=dtype).data)
    return Fingerprint(
        num_nodes=int(data.num_nodes),
        num_edges=int(data.num_edges),
        num_features=int(data.num_features),
        num_classes=int(data.y.max()) + 1,
        sha256=content.hexdigest(),
    )


def _load_real(request: DataRequest) -> Data:
    if request.name == "KarateClub":
        return _load_karate_club()
    if request.name == "Reddit":
        return _load_reddit(request)
    if request.name in OGB_NAMES:
        return _load_ogb_nodes(request)
    return _load_planetoid(request)


def _load_stand_in(request: DataRequest, cache: str | os.PathLike[str] | None) -> Data:
    name, scale, seed = request.name, request.stand_in_scale, request.seed
    if cache is None:
        return _to_data(generate(name, scale, seed))
    path = Path(cache) / f"{name}-scale{scale:g}-seed{seed}-v{GENERATOR_VERSION}.npz"
    if path.exists():
        with np.load(path) as arrays:
            return _to_data(GraphArrays(**arrays))
    arrays = generate(name, scale, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: np.savez(temporary, **vars(arrays)), overwrite=True)
    return _to_data(arrays)


def _to_data(arrays: GraphArrays) -> Data:
    return Data(**{key: torch.from_numpy(array) for key, array in vars(arrays).items()})


def _load_karate_club() -> Data:
    """Return Zachary's karate club with the training mask that PyG gives: one node per class.

    PyG defines no other mask. Of the remaining thirty nodes, in their order, every second one
    validates, beginning with the first, and the others test.
    """
    data = KarateClub()[0]
    rest = (~data.train_mask).nonzero().view(-1)
    data.val_mask = _mask(rest[0::2], data.num_nodes)
    data.test_mask = _mask(rest[1::2], data.num_nodes)
    return data


def _mask(nodes: Tensor, num_nodes: int) -> Tensor:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[nodes] = True
    return mask


def _load_planetoid(request: DataRequest) -> Data:
    """Return a real citation graph, read from its raw files without writing beside them."""
    name, root, stand_in = request.name, request.root, f"{request.name.lower()}-like"
    missing = _missing_files(name, root)
    if missing and request.download:
        _download(request)
        missing = _missing_files(name, root)
    if missing or root is None:
        layout = f"{name}/raw/ind.{name.lower()}.*"
        raise data_is_missing(request, missing[0], layout, stand_in)
    _require_scipy(name)
    with warnings.catch_warnings():
        # The files are pickles of old scipy and numpy objects; PyG's reader also sets a filter.
        warnings.simplefilter("ignore")
        return read_planetoid_data(str(root / name / "raw"), name)


def _require_scipy(name: str) -> None:
    if importlib.util.find_spec("scipy") is None:
        raise ModuleNotFoundError(
            f'dataset={name}: its raw files hold scipy matrices; pip install "gnnprof[bench]".'
        )


def _missing_files(name: str, root: Path | None) -> list[Path]:
    if root is None:
        return [Path(name)]
    paths = [root / name / "raw" / f"ind.{name.lower()}.{part}" for part in PLANETOID_FILES]
    return [path for path in paths if not path.is_file()]


def _download(request: DataRequest) -> None:
    if request.root is None:
        raise ValueError(f"--download of {request.name} needs --root FOLDER to store it in.")
    print(f"Downloading {request.name} into {request.root} ...", file=sys.stderr)
    try:
        Planetoid(str(request.root), request.name)
    except OSError as error:
        raise download_failed(request, error, f"{request.name.lower()}-like") from error


def _load_reddit(request: DataRequest) -> Data:
    """Return Reddit as PyG's loader gives it; the loader keeps its result in `root/Reddit`."""
    layout = "Reddit/raw/reddit_*.npz"
    root = check_raw_files(request, "Reddit", REDDIT_FILES, layout, "reddit-like")
    _require_scipy("Reddit")
    try:
        return Reddit(str(root / "Reddit"))[0]
    except OSError as error:
        raise download_failed(request, error, "reddit-like") from error


def _load_ogb_nodes(request: DataRequest) -> Data:
    """Return an ogbn-* graph with its official split as masks and classes as [N]."""
    dataset = load_ogb(request, f"{request.name.removeprefix('ogbn-')}-like")
    data = dataset[0]
    data.y = data.y.view(-1)
    parts = node_split(dataset)
    for key, part in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        data[key] = _mask(parts[part], data.num_nodes)
    return data
