"""Loaders of sampled batches, and how a model is called on one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from benchmark.drivers.graphs import Graph
from benchmark.drivers.settings import CommonSettings
from benchmark.sampling import neighbor_loader, sampler_by_hop, sampler_name

CSR_WARNING = "Sparse CSR tensor support is in beta state"

SPARSE_CHECKS_WARNING = "Sparse invariant checks are implicitly disabled"


@dataclass(frozen=True)
class Batch:
    """What a model needs of one batch, on the device.

    Attributes:
        inputs: Positional arguments of the model.
        options: Keyword arguments of the model.
        labels: Classes of the seed nodes, [B].
        num_seeds: Seed nodes; the model's first rows are theirs.
        num_nodes: Nodes of all types.
        num_edges: Edges of all types.
        weights: Weights of the edges, [E]; None where they have none, or the matrix holds them.
    """

    inputs: tuple[Any, ...]
    options: dict[str, Any]
    labels: Tensor
    num_seeds: int
    num_nodes: int
    num_edges: int
    weights: Tensor | None = None


def make_loader(
    graph: Graph,
    settings: CommonSettings,
    nodes: Tensor,
    *,
    batch_size: int,
    num_neighbors: Iterable[int],
    shuffle: bool = False,
    **options: Any,
) -> Any:
    """Return a NeighborLoader whose seeds are `nodes` of the target type.

    Args:
        graph: The graph to sample from.
        settings: Sampler, workers and seed.
        nodes: Seed nodes, [N].
        batch_size: Seed nodes per batch.
        num_neighbors: Neighbours per hop, -1 for all.
        shuffle: Whether every epoch has another order.
        **options: Further arguments of `neighbor_loader`.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    return neighbor_loader(
        graph.data,
        list(num_neighbors),
        batch_size,
        graph.seeds(nodes),
        seed=settings.seed,
        sampler=_sampler_for(settings),
        shuffle=shuffle,
        generator=generator,
        num_workers=settings.num_workers,
        filter_per_worker=settings.filter_per_worker,
        **options,
    )


def sampler_of(settings: CommonSettings) -> str:
    """Return library and version of what samples the batches."""
    return sampler_name(_sampler_for(settings))


def _sampler_for(settings: CommonSettings) -> str:
    return sampler_by_hop() if settings.is_trimmed else settings.sampler


def limited(loader: Iterable[Any], num_steps: int | None) -> Iterator[Any]:
    """Go through a loader once, or take so many batches of it, from the beginning if need be.

    Raises:
        ValueError: If the loader gives nothing.
    """
    if num_steps is None:
        yield from loader
        return
    left = num_steps
    while left:
        before = left
        for batch in islice(iter(loader), left):
            left -= 1
            yield batch
        if left == before:
            raise ValueError("the loader gives no batch; the split has no nodes.")


class Feeder:
    """Turns what a loader gives into a `Batch` on the device.

    Args:
        graph: Where the batches come from.
        device: Where the model is.
        sparse: Whether the edges become a CSR matrix.
        trim: Whether the model is told what each hop has brought.
    """

    def __init__(
        self, graph: Graph, device: torch.device, *, sparse: bool = False, trim: bool = False
    ) -> None:
        self.graph = graph
        self.device = device
        self.sparse = sparse
        self.trim = trim

    def prepare(self, raw: Any) -> Any:
        """Put the edges into the layout asked for; on the host, before the transfer."""
        if not self.sparse or "adj_t" in raw:
            return raw
        if self.graph.target is None:
            size = (raw.num_nodes, raw.num_nodes)
            raw.adj_t = csr(raw.edge_index, size, raw.get("edge_weight"))
        else:
            _add_adjacencies(raw)
        return raw

    def transfer(self, raw: Any) -> Batch:
        """Move what the model needs to the device."""
        raw = raw.to(self.device, non_blocking=True)
        if self.graph.target is None:
            return self._homogeneous(raw)
        return self._heterogeneous(raw)

    def _homogeneous(self, raw: Any) -> Batch:
        options = {}
        if self.trim:
            options["num_sampled_nodes_per_hop"] = list(raw.num_sampled_nodes)
            options["num_sampled_edges_per_hop"] = list(raw.num_sampled_edges)
        edges = raw.adj_t if self.sparse else raw.edge_index
        return Batch(
            inputs=(raw.x, edges),
            options=options,
            labels=raw.y[: raw.batch_size].view(-1),
            num_seeds=int(raw.batch_size),
            num_nodes=int(raw.num_nodes),
            num_edges=int(raw.edge_index.size(1)),
            weights=None if self.sparse else raw.get("edge_weight"),
        )

    def _heterogeneous(self, raw: Any) -> Batch:
        options = {}
        if self.trim:
            options["nodes_per_hop"] = raw.num_sampled_nodes_dict
            options["edges_per_hop"] = raw.num_sampled_edges_dict
        target = raw[self.graph.target]
        edges = raw.adj_t_dict if self.sparse else raw.edge_index_dict
        return Batch(
            inputs=(raw.x_dict, edges, raw.n_id_dict),
            options=options,
            labels=target.y[: target.batch_size].view(-1),
            num_seeds=int(target.batch_size),
            num_nodes=sum(int(store.num_nodes) for store in raw.node_stores),
            num_edges=sum(int(store.edge_index.size(1)) for store in raw.edge_stores),
        )


class WholeGraph:
    """A loader of one batch: the graph, laid out and on the device once and for all.

    Args:
        graph: The graph.
        feeder: Lays out the edges.
    """

    def __init__(self, graph: Graph, feeder: Feeder) -> None:
        batch = copy.copy(graph.data)
        if graph.target is not None:
            for node_type in batch.node_types:
                batch[node_type].n_id = torch.arange(batch[node_type].num_nodes)
        (batch if graph.target is None else batch[graph.target]).batch_size = graph.num_nodes
        self._batch = feeder.prepare(batch).to(feeder.device)

    def __iter__(self) -> Iterator[Any]:
        yield copy.copy(self._batch)


class Kept:
    """A loader whose batches are sampled once and given again at every later iteration.

    Args:
        loader: Samples the batches.
        most: How many of them are used; None is all.
    """

    def __init__(self, loader: Iterable[Any], most: int | None = None) -> None:
        self._loader = loader
        self._most = most
        self._batches: list[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        # What is given away is filled with other features; the kept batch stays as it is.
        return iter([copy.copy(batch) for batch in self.fill()])

    def fill(self) -> list[Any]:
        """Sample the batches unless they are there, and return them."""
        if self._batches is None:
            self._batches = list(islice(self._loader, self._most))
        return self._batches


def without_features(graph: Graph, *, normalized: bool = False) -> Graph:
    """Return a homogeneous graph that has only edges and classes: nothing else is gathered.

    Args:
        graph: The graph.
        normalized: Whether to add self-loops and the weights that GCN gives the edges of the whole
            graph: in a batch of one hop, the degrees of the outer nodes are not to be seen.
    """
    data = graph.data
    bare = Data(edge_index=data.edge_index, y=data.y, num_nodes=data.num_nodes)
    if normalized:
        bare.edge_index, bare.edge_weight = gcn_norm(data.edge_index, num_nodes=data.num_nodes)
    return replace(graph, data=bare)


def _add_adjacencies(raw: HeteroData) -> None:
    for source, relation, goal in raw.edge_types:
        store = raw[source, relation, goal]
        size = (raw[source].num_nodes, raw[goal].num_nodes)
        store.adj_t = csr(store.edge_index, size)


def csr(edge_index: Tensor, size: tuple[int, int], weights: Tensor | None = None) -> Tensor:
    """Return the transposed adjacency matrix [targets, sources] in CSR layout.

    Args:
        edge_index: Sources and targets, [2, E].
        size: Number of source and of target nodes.
        weights: Values of the edges, [E]; None is ones.
    """
    source, target = edge_index
    order = target * size[0] + source
    order = order.argsort(stable=True)
    row_ends = torch.bincount(target, minlength=size[1]).cumsum(0)
    row_pointers = torch.cat([row_ends.new_zeros(1), row_ends])
    with csr_warnings_ignored():
        return torch.sparse_csr_tensor(
            row_pointers,
            source[order],
            torch.ones_like(order, dtype=torch.float) if weights is None else weights[order],
            size=(size[1], size[0]),
            check_invariants=False,  # made right here, and checking costs more than making
        )


@contextmanager
def csr_warnings_ignored() -> Iterator[None]:
    """Silence torch's notes that CSR matrices are young, which PyG's layers set off as well."""
    with warnings.catch_warnings():
        for message in (CSR_WARNING, SPARSE_CHECKS_WARNING):
            warnings.filterwarnings("ignore", message)
        yield
