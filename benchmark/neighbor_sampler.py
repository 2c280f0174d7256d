"""Neighbour sampling in plain torch, for where neither pyg_lib nor torch_sparse is installed.

The sampler takes the place of PyG's own (`NeighborLoader(..., neighbor_sampler=...)`), so that the
loader, its workers and its batches stay PyG's. It follows the same rule (Hamilton et al.,
"Inductive representation learning on large graphs", 2017): hop by hop, each node that the hop
before has found draws up to `fan_out` of its incoming edges, uniformly and without replacement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import (
    BaseSampler,
    HeteroSamplerOutput,
    NodeSamplerInput,
    SamplerOutput,
)

from benchmark.neighbor_draws import pick_neighbors

EdgeType = tuple[str, str, str]
FanOuts = Sequence[int] | Mapping[EdgeType, Sequence[int]]

SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
UNSEEN = 1 << 62  # above every local id

HOMOGENEOUS = "nodes"
HOMOGENEOUS_EDGE = (HOMOGENEOUS, "to", HOMOGENEOUS)


class _Incoming:
    """The incoming edges of each node, in compressed form (CSC)."""

    def __init__(self, edge_index: Tensor, num_targets: int) -> None:
        row, col = edge_index.cpu()
        self.edge = col.argsort(stable=True)  # position in edge_index
        self.source = row[self.edge]
        self.degree = torch.bincount(col, minlength=num_targets)
        self.begin = self.degree.cumsum(0) - self.degree


class _LocalIds:
    """Numbers the nodes of one type within a batch, in the order in which they appear."""

    def __init__(self, num_nodes: int) -> None:
        self._local = torch.full((num_nodes,), UNSEEN)
        self._parts: list[Tensor] = []
        self.count = 0

    @property
    def sizes(self) -> list[int]:
        return [len(part) for part in self._parts]

    @property
    def last(self) -> Tensor:
        return self._parts[-1]

    def nodes(self) -> Tensor:
        return torch.cat(self._parts)

    def start(self, seeds: Tensor) -> None:
        """Begin a batch; a node that is given twice has two places, and the first is its number."""
        self._local.scatter_reduce_(0, seeds, torch.arange(len(seeds)), "amin")
        self._parts, self.count = [seeds], len(seeds)

    def add(self, nodes: Tensor) -> Tensor:
        """Number the nodes that are new, and return those."""
        nodes = nodes[self._local[nodes] == UNSEEN]
        place = torch.arange(len(nodes))
        self._local.scatter_reduce_(0, nodes, place, "amin")
        new = nodes[self._local[nodes] == place]  # without repetitions, in order
        self._local[new] = torch.arange(self.count, self.count + len(new))
        self.count += len(new)
        return new

    def end_hop(self, new: list[Tensor]) -> None:
        self._parts.append(torch.cat(new) if new else torch.empty(0, dtype=torch.long))

    def local(self, nodes: Tensor) -> Tensor:
        return self._local[nodes]

    def clear(self, everything: bool) -> None:
        """Forget the batch; `everything` if it was cut short, so that some ids are not listed."""
        if everything:
            self._local.fill_(UNSEEN)
        else:
            self._local[self.nodes()] = UNSEEN


class _Edges:
    """The sampled edges of one type: local source and target, edge ids, and edges per hop."""

    def __init__(self) -> None:
        self._row: list[Tensor] = []
        self._col: list[Tensor] = []
        self._edge: list[Tensor] = []

    def add(self, row: Tensor, col: Tensor, edge: Tensor) -> None:
        self._row.append(row)
        self._col.append(col)
        self._edge.append(edge)

    @property
    def sizes(self) -> list[int]:
        return [len(part) for part in self._row]

    def joined(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.cat(self._row), torch.cat(self._col), torch.cat(self._edge)


class TorchNeighborSampler(BaseSampler):  # type: ignore[misc]
    """Samples the neighbourhoods of seed nodes; give it to PyG's `NeighborLoader`.

    The draws depend on `seed`, `epoch` and the seed nodes of the batch, and on nothing else: one
    loader gives the same batches with any number of workers, and torch's own random state is left
    alone.

    Args:
        data: The graph, with `edge_index`; copied to the CPU if it is elsewhere.
        num_neighbors: Edges to draw per node and hop, -1 for all; for a heterogeneous graph
            also a dictionary from each edge type to such a list, all of one length.
        replace: Whether a node may draw one edge more than once.
        subgraph_type: 'directional': the drawn edges. 'bidirectional': also their reverses.
            'induced': all edges between the nodes found.
        seed: Seed of the draws.

    Raises:
        ValueError: If `num_neighbors` or `subgraph_type` is not of that form, or a graph has no
            `edge_index`.
    """

    def __init__(
        self,
        data: Data | HeteroData,
        num_neighbors: FanOuts,
        *,
        replace: bool = False,
        subgraph_type: str = "directional",
        seed: int = 0,
    ) -> None:
        if subgraph_type not in SUBGRAPH_TYPES:
            allowed = ", ".join(SUBGRAPH_TYPES)
            raise ValueError(f"subgraph_type={subgraph_type!r} is unknown; give one of {allowed}.")
        self.replace, self.subgraph_type, self.seed = replace, subgraph_type, seed
        self.is_hetero = isinstance(data, HeteroData)
        self._num_nodes = _node_counts(data)
        self._incoming = {
            edge_type: _Incoming(edge_index, self._num_nodes[edge_type[2]])
            for edge_type, edge_index in _edge_indices(data).items()
        }
        self._fan_outs = read_fan_outs(num_neighbors, list(self._incoming))
        self._epoch = torch.zeros((), dtype=torch.long)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._ids: dict[str, _LocalIds] = {}

    @property
    def epoch(self) -> int:
        """Passes begun over the seeds; in shared memory, so that living workers see it change."""
        return int(self._epoch)

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._epoch.fill_(value)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ids": {}}  # scratch memory, made anew in each process

    def sample_from_nodes(
        self, index: NodeSamplerInput, **kwargs: object
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Sample around seed nodes.

        Args:
            index: The seeds, and their type if the graph is heterogeneous.
            **kwargs: For PyG's interface; unused.
        """
        del kwargs
        kind = index.input_type or HOMOGENEOUS
        finished = False
        try:
            edges = self._sample(kind, index.node)
            nodes = {name: ids.nodes() for name, ids in self._ids.items()}
            sizes = {name: ids.sizes for name, ids in self._ids.items()}
            finished = True
        finally:
            for ids in self._ids.values():
                ids.clear(everything=not finished)
        out = self._output(nodes, sizes, edges)
        out.metadata = (index.input_id, index.time)
        if self.subgraph_type == "bidirectional":
            return out.to_bidirectional()
        return out

    def sample_from_edges(self, index: object, neg_sampling: object = None) -> None:
        """Refuse: links are not sampled here.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("this sampler samples around nodes, not around edges")

    def _sample(self, kind: str, seeds: Tensor) -> dict[EdgeType, _Edges]:
        if not self._ids:
            self._ids = {name: _LocalIds(count) for name, count in self._num_nodes.items()}
        for name, ids in self._ids.items():
            ids.start(seeds if name == kind else seeds[:0])
        generator = self._generator(kind, seeds)
        edges = {edge_type: _Edges() for edge_type in self._incoming}
        num_hops = len(next(iter(self._fan_outs.values()), ()))
        for hop in range(num_hops):
            self._hop(hop, edges, generator)
        if self.subgraph_type == "induced":
            return {edge_type: self._induced(edge_type) for edge_type in self._incoming}
        return edges

    def _hop(self, hop: int, edges: dict[EdgeType, _Edges], generator: torch.Generator) -> None:
        """Let each node of the last hop draw edges of every type that ends in it."""
        new: dict[str, list[Tensor]] = {name: [] for name in self._ids}
        for edge_type, incoming in self._incoming.items():
            source, _, target = edge_type
            frontier = self._ids[target].last
            node, offset = pick_neighbors(
                incoming.degree[frontier], self._fan_outs[edge_type][hop], self.replace, generator
            )
            place = incoming.begin[frontier][node] + offset
            neighbors = incoming.source[place]
            new[source].append(self._ids[source].add(neighbors))
            first = sum(self._ids[target].sizes[:-1])
            edges[edge_type].add(
                self._ids[source].local(neighbors), first + node, incoming.edge[place]
            )
        for name, ids in self._ids.items():
            ids.end_hop(new[name])

    def _induced(self, edge_type: EdgeType) -> _Edges:
        """Return all edges of a type between the nodes of the batch."""
        incoming, (source, _, target) = self._incoming[edge_type], edge_type
        targets = self._ids[target].nodes()
        degree = incoming.degree[targets]
        node = torch.repeat_interleave(degree)
        place = incoming.begin[targets][node] + torch.arange(len(node))
        place -= (degree.cumsum(0) - degree)[node]
        row = self._ids[source].local(incoming.source[place])
        inside = row != UNSEEN
        edges = _Edges()
        edges.add(row[inside], node[inside], incoming.edge[place[inside]])
        return edges

    def _generator(self, kind: str, seeds: Tensor) -> torch.Generator:
        key = hashlib.blake2b(f"{self.seed} {self.epoch} {kind} ".encode(), digest_size=8)
        key.update(seeds.contiguous().numpy().data)
        number = int.from_bytes(key.digest(), "little") >> 1
        return torch.Generator().manual_seed(number)

    def _output(
        self,
        nodes: dict[str, Tensor],
        sizes: dict[str, list[int]],
        edges: dict[EdgeType, _Edges],
    ) -> SamplerOutput | HeteroSamplerOutput:
        joined = {edge_type: part.joined() for edge_type, part in edges.items()}
        hops = {edge_type: part.sizes for edge_type, part in edges.items()}
        by_hop = self.subgraph_type != "induced"
        if not self.is_hetero:
            row, col, edge = joined[HOMOGENEOUS_EDGE]
            return SamplerOutput(
                nodes[HOMOGENEOUS],
                row,
                col,
                edge,
                num_sampled_nodes=sizes[HOMOGENEOUS] if by_hop else None,
                num_sampled_edges=hops[HOMOGENEOUS_EDGE] if by_hop else None,
            )
        return HeteroSamplerOutput(
            nodes,
            {edge_type: part[0] for edge_type, part in joined.items()},
            {edge_type: part[1] for edge_type, part in joined.items()},
            {edge_type: part[2] for edge_type, part in joined.items()},
            num_sampled_nodes=sizes if by_hop else None,
            num_sampled_edges=hops if by_hop else None,
        )


def read_fan_outs(
    num_neighbors: FanOuts, edge_types: Sequence[EdgeType]
) -> dict[EdgeType, tuple[int, ...]]:
    """Return the fan-outs of each edge type, one per hop.

    Raises:
        ValueError: If an edge type is unknown or missing, the lists have different lengths or are
            empty, or a number is below -1.
    """
    if isinstance(num_neighbors, Mapping):
        strange = set(num_neighbors) ^ set(edge_types)
        if strange:
            raise ValueError(
                f"num_neighbors has to name each edge type of the graph once; missing or unknown: "
                f"{', '.join(map(str, sorted(strange)))}."
            )
        fan_outs = {edge_type: tuple(num_neighbors[edge_type]) for edge_type in edge_types}
    else:
        fan_outs = dict.fromkeys(edge_types, tuple(num_neighbors))
    lengths = {len(values) for values in fan_outs.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"num_neighbors={num_neighbors} has to give one number per hop, as many for each edge "
            "type and at least one."
        )
    if min(min(values) for values in fan_outs.values()) < -1:
        raise ValueError(f"num_neighbors={num_neighbors}: give -1 (all) or numbers from 0 on.")
    return fan_outs


def _node_counts(data: Data | HeteroData) -> dict[str, int]:
    if isinstance(data, HeteroData):
        return {kind: int(data[kind].num_nodes) for kind in data.node_types}
    return {HOMOGENEOUS: int(data.num_nodes)}


def _edge_indices(data: Data | HeteroData) -> dict[EdgeType, Tensor]:
    stores = data.edge_stores if isinstance(data, HeteroData) else [data]
    types = data.edge_types if isinstance(data, HeteroData) else [HOMOGENEOUS_EDGE]
    missing = [kind for kind, store in zip(types, stores, strict=True) if "edge_index" not in store]
    if missing or not types:
        raise ValueError(f"the graph has no edge_index for {missing or 'any edge type'}.")
    return {kind: store["edge_index"] for kind, store in zip(types, stores, strict=True)}
