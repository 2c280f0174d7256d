"""Homogeneous and heterogeneous data sets in the one form that the drivers take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from benchmark.datasets import NAMES, GraphDataset, load_dataset
from benchmark.hetero_data import HETERO_NAMES, HeteroDataset, load_hetero_dataset
from gnnprof import _device

SPLITS = ("train", "val", "test")

ALIASES = {"mag": "ogbn-mag", "products": "ogbn-products", "arxiv": "ogbn-arxiv"}
"""Short names that scripts used to take."""

SMOKE_SCALE = {
    "cora-like": 0.05,
    "citeseer-like": 0.05,
    "pubmed-like": 0.01,
    "arxiv-like": 0.002,
    "products-like": 0.0002,
    "reddit-like": 0.002,
    "mag-like": 0.004,
}
"""Scale of the stand-ins where a script only has to be seen running."""


@dataclass(frozen=True)
class Graph:
    """One graph for node classification, homogeneous or not.

    Attributes:
        name: The name to report.
        data: The graph.
        target: The node type whose classes are learned; None if there is but one type.
        num_features: Features per node of the target type.
        num_classes: Number of classes.
        record: What a result must say about the data, as JSON takes it.
        load_seconds: Wall time of loading or generating it, without the fingerprint.
        summary: Its counts, for the terminal.
    """

    name: str
    data: Data | HeteroData
    target: str | None
    num_features: int
    num_classes: int
    record: dict[str, object]
    load_seconds: float
    summary: str = ""

    @property
    def store(self) -> Any:
        """The nodes that have classes and splits."""
        return self.data if self.target is None else self.data[self.target]

    @property
    def relations(self) -> list[tuple[str, str, str]]:
        """The edge types; none in a homogeneous graph."""
        return [] if self.target is None else list(self.data.edge_types)

    @property
    def num_nodes(self) -> int:
        """Nodes of the target type."""
        return int(self.store.num_nodes)

    def split(self, name: str) -> Tensor:
        """Return the target nodes of one split, in order, [N]."""
        mask: Tensor = self.store[f"{name}_mask"]
        return mask.nonzero().view(-1)

    def seeds(self, nodes: Tensor) -> Any:
        """Return nodes of the target type as a loader's `input_nodes`."""
        return nodes if self.target is None else (self.target, nodes)


def canonical_name(name: str) -> str:
    """Return a data set's name as it is reported.

    Raises:
        ValueError: If there is no such data set.
    """
    name = ALIASES.get(name.lower(), name)
    known: dict[str, str] = {known.lower(): known for known in (*NAMES, *HETERO_NAMES)}
    if name.lower() not in known:
        raise ValueError(
            f"--datasets={name!r} is unknown; give some of {', '.join(known.values())}."
        )
    return known[name.lower()]


def is_heterogeneous_set(name: str) -> bool:
    """Say whether a data set has several types of nodes."""
    return name in HETERO_NAMES


def load_graph(
    name: str,
    root: Path | None = None,
    scale: float | None = None,
    seed: int = 0,
    *,
    cache: Path | None = None,
    download: bool = False,
) -> Graph:
    """Return a data set by name; the arguments are those of `load_dataset`.

    Heterogeneous graphs get the reverse of every relation, so that news reaches all types.

    Raises:
        ValueError: For an unknown name or a scale that is not possible.
        FileNotFoundError: If a real set is not in `root`.
        ModuleNotFoundError: If a library that reads it is missing.
    """
    name = canonical_name(name)
    start = _device.clock()
    dataset: GraphDataset | HeteroDataset
    target = None
    if is_heterogeneous_set(name):
        dataset = load_hetero_dataset(
            name, root, scale, seed, reverse_edges=True, download=download
        )
        target = dataset.target
    else:
        dataset = load_dataset(name, root, scale, seed, cache=cache, download=download)
    return Graph(
        name=dataset.name,
        data=dataset.data,
        target=target,
        num_features=dataset.num_features,
        num_classes=dataset.num_classes,
        record=dataset.to_dict(),
        load_seconds=_device.clock() - start - dataset.fingerprint_seconds,
        summary=str(dataset.fingerprint),
    )


def scale_for(
    name: str,
    scale: float | None,
    *,
    smoke: bool = False,
    defaults: Mapping[str, float] | None = None,
) -> float | None:
    """Return the scale to load a data set at.

    Args:
        name: Name of the data set.
        scale: What was asked for.
        smoke: Whether a script only has to be seen running.
        defaults: A script's own defaults, by name; a set that is not in it has its own.

    Returns:
        None for a set that cannot be scaled, and for a set's own scale.
    """
    name = canonical_name(name)
    if not name.endswith("-like"):
        return None
    if scale is not None:
        return scale
    return (SMOKE_SCALE if smoke else defaults or {}).get(name)


def in_order(graph: Graph) -> Tensor:
    """Return all target nodes in order, [N]."""
    return torch.arange(graph.num_nodes)
