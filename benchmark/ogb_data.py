"""The one module that imports `ogb`: real ogbn-* and ogbl-* sets, and OGB's evaluators.

OGB is an optional extra. Its own files are read by its own loaders; nothing here downloads unless
it is asked to.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from benchmark.data_request import DataRequest, check_raw_files, download_failed

_GRAPH_FILES = ("edge.csv.gz", "node-feat.csv.gz")
RAW_FILES = {
    "ogbn-arxiv": _GRAPH_FILES,
    "ogbn-products": _GRAPH_FILES,
    "ogbl-collab": _GRAPH_FILES,
    "ogbl-citation2": _GRAPH_FILES,
    "ogbl-biokg": ("num-node-dict.csv.gz", "triplet-type-list.csv.gz"),
}
"""By set: the files in `raw` without which OGB's loaders (of version 1.3.6) download it."""


def ogb_version() -> str | None:
    """Return the version of the installed ogb, or None."""
    try:
        return importlib.metadata.version("ogb")
    except importlib.metadata.PackageNotFoundError:
        return None


def import_ogb(part: str) -> ModuleType:
    """Import `ogb.<part>`.

    Args:
        part: 'nodeproppred' or 'linkproppred'.

    Raises:
        ModuleNotFoundError: If ogb is not installed; the error names the extra.
    """
    if ogb_version() is None:
        raise ModuleNotFoundError(
            'real ogbn-* and ogbl-* sets need OGB\'s loader; pip install "gnnprof[bench]".'
        )
    # OGB imports both if it can. DGL prints and writes into the home folder; `outdated` asks the
    # package index for a newer OGB, in a thread of its own.
    with warnings.catch_warnings(), _without("dgl", "outdated"):
        warnings.simplefilter("ignore")
        return importlib.import_module(f"ogb.{part}")


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Make imports of these modules fail, unless they are loaded already."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def load_ogb(request: DataRequest, stand_in: str) -> Any:
    """Return OGB's PyG data set: indexable, with `get_idx_split` or `get_edge_split`.

    Args:
        request: Its name is one of `RAW_FILES`.
        stand_in: The generated set of that shape, for the error.

    Raises:
        FileNotFoundError: If the set is not below `root` and may not be downloaded.
        ModuleNotFoundError: If ogb is not installed.
        ConnectionError: If the download fails.
    """
    folder = request.name.replace("-", "_")
    names = RAW_FILES[request.name]
    root = check_raw_files(request, folder, names, f"{folder}/raw as OGB lays it out", stand_in)
    kind = "nodeproppred" if request.name.startswith("ogbn-") else "linkproppred"
    module = import_ogb(kind)
    loader = module.PygNodePropPredDataset if kind[0] == "n" else module.PygLinkPropPredDataset
    try:
        with _pickles_of_ogb(), warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")  # pandas and numpy speak of OGB's own calls
            return loader(name=request.name, root=str(root))
    except EOFError:  # it asks whether to update or download, and there is nobody to answer
        raise FileNotFoundError(
            f"dataset={request.name} in {root / folder} is not what this version of OGB "
            "expects, or so large that OGB asks before it downloads; load it once in a terminal."
        ) from None
    except OSError as error:
        raise download_failed(request, error, stand_in) from error


@contextmanager
def _pickles_of_ogb() -> Iterator[None]:
    """Let `torch.load` read what OGB stores: PyG's `Data` and numpy arrays."""
    reconstruct = getattr(np, "_core", np.core).multiarray._reconstruct
    kinds = {type(np.dtype(kind)) for kind in ("i8", "i4", "f8", "f4", "?", "U1", "O")}
    allowed = [DataEdgeAttr, DataTensorAttr, GlobalStorage, np.ndarray, np.dtype, reconstruct]
    with torch.serialization.safe_globals([*allowed, *kinds]):
        yield


def edge_split(dataset: Any) -> dict[str, dict[str, Any]]:
    """Return OGB's split of a link data set: 'train', 'valid' and 'test'."""
    with _pickles_of_ogb():
        split: dict[str, dict[str, Any]] = dataset.get_edge_split()
    return split


def node_split(dataset: Any) -> dict[str, torch.Tensor]:
    """Return OGB's split of a node data set: node ids of 'train', 'valid' and 'test'."""
    with _pickles_of_ogb():
        split: dict[str, torch.Tensor] = dataset.get_idx_split()
    return split
