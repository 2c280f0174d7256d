"""Small generated graphs whose class is decided by a planted motif, never by their node types.

All draws are integers of one seeded generator, so one seed gives the same graphs everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmark.planted import FloatArray, IntArray

ATOMS = ("C", "N", "O", "F", "I", "Cl", "Br")
CARBON, NITROGEN, OXYGEN, FIRST_HALOGEN = 0, 1, 2, 3
BONDS = ("aromatic", "single", "double", "triple")
AROMATIC, SINGLE, DOUBLE = 0, 1, 2
RESIDUES = 3  # helix, sheet, turn


@dataclass(frozen=True)
class GraphArrays:
    """One graph: edges [2, E] both ways, node types [N], edge types [E] if there are any."""

    edge_index: IntArray
    node_type: IntArray
    edge_type: IntArray | None
    y: int


@dataclass
class _Builder:
    """A graph that grows; edges are undirected."""

    node_type: list[int] = field(default_factory=list)
    edges: dict[tuple[int, int], int] = field(default_factory=dict)
    neighbors: list[set[int]] = field(default_factory=list)

    def add_node(self, kind: int) -> int:
        self.node_type.append(kind)
        self.neighbors.append(set())
        return len(self.node_type) - 1

    def add_edge(self, a: int, b: int, kind: int = 0) -> None:
        self.edges[min(a, b), max(a, b)] = kind
        self.neighbors[a].add(b)
        self.neighbors[b].add(a)

    def finish(self, y: int, rng: np.random.Generator, with_edge_types: bool) -> GraphArrays:
        """Return the graph with its nodes in random order, so that the order tells nothing."""
        order = rng.permutation(len(self.node_type))
        pairs = order[np.array(list(self.edges), dtype=np.int64)]
        kinds = np.array(list(self.edges.values()), dtype=np.int64)
        ends = np.concatenate([pairs, pairs[:, ::-1]])
        kinds = np.concatenate([kinds, kinds])
        by_source = np.lexsort((ends[:, 1], ends[:, 0]))
        node_type = np.empty(len(order), dtype=np.int64)
        node_type[order] = self.node_type
        edge_type = kinds[by_source] if with_edge_types else None
        return GraphArrays(ends[by_source].T.copy(), node_type, edge_type, y)


def nitro_molecule(y: int, rng: np.random.Generator) -> GraphArrays:
    """Return a molecule of fused rings; class 1 has a nitro group (C-N(=O)-O), class 0 has none.

    Where a group is not a nitro group it is its isomer, the nitrite (C-O-N=O): the same atoms and
    the same bonds, in another order. So the counts of atoms and of bonds do not tell the classes
    apart.
    """
    graph = _Builder()
    free = _fused_rings(graph, rings=int(rng.integers(2, 4)), rng=rng)
    free = [int(node) for node in rng.permutation(free)]
    groups = int(rng.integers(1, 3))
    nitro = int(rng.integers(1, groups + 1)) if y else 0
    for group in range(groups):
        _add_group(graph, free.pop(), is_nitro=group < nitro)
    for _ in range(int(rng.integers(0, 3))):  # halogens, in either class
        halogen = graph.add_node(int(rng.integers(FIRST_HALOGEN, len(ATOMS))))
        graph.add_edge(free.pop(), halogen, SINGLE)
    return graph.finish(y, rng, with_edge_types=True)


def _fused_rings(graph: _Builder, rings: int, rng: np.random.Generator) -> list[int]:
    """Add hexagons of carbon, each sharing an edge with the one before; return free carbons."""
    ring = [graph.add_node(CARBON) for _ in range(6)]
    _add_cycle(graph, ring)
    for _ in range(rings - 1):
        sides = [
            (a, b)
            for a, b in zip(ring, ring[1:] + ring[:1], strict=True)
            if len(graph.neighbors[a]) == len(graph.neighbors[b]) == 2
        ]
        a, b = sides[int(rng.integers(len(sides)))]
        ring = [a, *(graph.add_node(CARBON) for _ in range(4)), b]
        _add_cycle(graph, ring)
    return [node for node, around in enumerate(graph.neighbors) if len(around) == 2]


def _add_cycle(graph: _Builder, ring: list[int]) -> None:
    for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
        graph.add_edge(a, b, AROMATIC)


def _add_group(graph: _Builder, carbon: int, is_nitro: bool) -> None:
    nitrogen = graph.add_node(NITROGEN)
    single, double = graph.add_node(OXYGEN), graph.add_node(OXYGEN)
    graph.add_edge(carbon, nitrogen if is_nitro else single, SINGLE)
    graph.add_edge(nitrogen, single, SINGLE)
    graph.add_edge(nitrogen, double, DOUBLE)


def contact_graph(y: int, rng: np.random.Generator) -> GraphArrays:
    """Return a chain with contacts; class 1 has contacts that close triangles, class 0 has none.

    The planted contacts join nodes two apart in class 1 (a triangle) and three apart in class 0
    (a cycle of four), equally many. The other contacts, and the types of the nodes, are drawn alike
    in both classes; no contact that would close a triangle is kept.
    """
    num_nodes = 8 + int(rng.integers(0, 16)) * int(rng.integers(0, 16)) * 5 // 9
    graph = _Builder()
    for kind in rng.integers(0, RESIDUES, num_nodes):
        graph.add_node(int(kind))
    for node in range(num_nodes - 1):
        graph.add_edge(node, node + 1)
    span = 2 if y else 3
    for start in rng.permutation(num_nodes - 3)[: max(1, num_nodes * 7 // 10)]:
        graph.add_edge(int(start), int(start) + span)
    for a, b in rng.integers(0, num_nodes, (num_nodes * 2 // 10, 2)).tolist():
        if abs(a - b) > 3 and not graph.neighbors[a] & graph.neighbors[b]:
            graph.add_edge(a, b)
    return graph.finish(y, rng, with_edge_types=False)


def one_hot(kinds: IntArray, count: int) -> FloatArray:
    """Return a row per entry of `kinds` [N], 1 at its kind and 0 elsewhere, [N, count]."""
    rows: FloatArray = np.eye(count, dtype=np.float32)[kinds]
    return rows
