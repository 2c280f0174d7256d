"""Data sets in the form that the tasks of the study take, whatever framework then runs.

Each loader takes a name and the keywords `root`, `scale`, `seed`, `download` and `cache`. The
record that comes with the data (name, whether it is a stand-in, fingerprint) is taken before any
variant prepares the graph, so it is the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.compile.modules import Edges

Record = dict[str, Any]


@dataclass(frozen=True)
class NodeInputs:
    """One graph whose nodes, or those of its first type, are classified.

    Attributes:
        record: What a result must say about the data.
        x: Features of the nodes that have them, [N1, F]; those nodes come first.
        num_embeddings: Nodes after them, which have no features; N = N1 + this.
        edges: All edges.
        y: Class of each of the first nodes, [N1].
        train: Numbers of the training nodes.
        test: Numbers of the test nodes.
        num_classes: Classes.
    """

    record: Record
    x: Tensor
    num_embeddings: int
    edges: Edges
    y: Tensor
    train: Tensor
    test: Tensor
    num_classes: int


@dataclass(frozen=True)
class LinkInputs:
    """One graph of training edges, and pairs of nodes to score.

    Attributes:
        record: What a result must say about the data.
        x: Features [N, F].
        edges: The edges that messages take.
        train: Pairs [2, M] that are edges.
        test: Pairs [2, P] that are.
        test_negatives: Pairs [K, 2] that are not (hits@50), or per test pair K targets that are
            not, [P, K] (mrr).
        metric: 'hits@50' or 'mrr'.
    """

    record: Record
    x: Tensor
    edges: Edges
    train: Tensor
    test: Tensor
    test_negatives: Tensor
    metric: str


@dataclass(frozen=True)
class TripleInputs:
    """A knowledge graph.

    Attributes:
        record: What a result must say about the data.
        num_entities: Entities of all types.
        num_relations: Relations.
        train: Triples [M, 3] of head, relation, tail.
        test: Triples [P, 3].
        test_heads: Heads that make a test triple false, [P, K].
        test_tails: Tails likewise, [P, K].
        head_mask: Which of `test_heads` count, [P, K]; None for all.
        tail_mask: Likewise.
    """

    record: Record
    num_entities: int
    num_relations: int
    train: Tensor
    test: Tensor
    test_heads: Tensor
    test_tails: Tensor
    head_mask: Tensor | None
    tail_mask: Tensor | None


@dataclass(frozen=True)
class GraphInputs:
    """Many small graphs to classify.

    Attributes:
        record: What a result must say about the data.
        graphs: PyG graphs with `x`, `edge_index` and `y`.
        num_features: Features per node.
        num_classes: Classes.
    """

    record: Record
    graphs: list[Any]
    num_features: int
    num_classes: int


def load_nodes(
    name: str,
    *,
    root: Path | None = None,
    scale: float | None = None,
    seed: int = 0,
    download: bool = False,
    cache: Path | None = None,
) -> NodeInputs:
    """Return a set for node classification; errors as in `benchmark.datasets.load_dataset`."""
    from benchmark.datasets import load_dataset

    dataset = load_dataset(
        name, root, scale, seed, normalize_features=True, cache=cache, download=download
    )
    data = dataset.data
    return NodeInputs(
        record=_record(dataset, "node"),
        x=data.x,
        num_embeddings=0,
        edges=Edges(data.edge_index, int(data.num_nodes)),
        y=data.y,
        train=_numbers(data.train_mask),
        test=_numbers(data.test_mask),
        num_classes=dataset.num_classes,
    )


def load_typed_nodes(
    name: str,
    *,
    root: Path | None = None,
    scale: float | None = None,
    seed: int = 0,
    download: bool = False,
    cache: Path | None = None,
) -> NodeInputs:
    """Return a heterogeneous graph, with reversed relations, as one graph with typed edges."""
    from benchmark.hetero_data import load_hetero_dataset

    del cache
    dataset = load_hetero_dataset(name, root, scale, seed, reverse_edges=True, download=download)
    data, target = dataset.data, dataset.target
    others = [node_type for node_type in data.node_types if node_type != target]
    first = 0
    offsets = {}
    for node_type in (target, *others):  # those with features first
        offsets[node_type] = first
        first += int(data[node_type].num_nodes)
    parts, types = [], []
    for relation, (source, _, end) in enumerate(data.edge_types):
        edge_index = data[data.edge_types[relation]].edge_index
        shift = torch.tensor([[offsets[source]], [offsets[end]]])
        parts.append(edge_index + shift)
        types.append(torch.full((edge_index.size(1),), relation))
    nodes = data[target]
    return NodeInputs(
        record=_record(dataset, "hetero"),
        x=nodes.x,
        num_embeddings=first - int(nodes.num_nodes),
        edges=Edges(torch.cat(parts, dim=1), first, torch.cat(types), len(data.edge_types)),
        y=nodes.y.view(-1),
        train=_numbers(nodes.train_mask),
        test=_numbers(nodes.test_mask),
        num_classes=dataset.num_classes,
    )


def load_links(
    name: str,
    *,
    root: Path | None = None,
    scale: float | None = None,
    seed: int = 0,
    download: bool = False,
    cache: Path | None = None,
) -> LinkInputs:
    """Return a set for link prediction."""
    from benchmark.link_data import load_link_dataset

    del cache
    dataset = load_link_dataset(name, root, scale, seed, download)
    data = dataset.data
    return LinkInputs(
        record=_record(dataset, "link"),
        x=data.x,
        edges=Edges(data.edge_index, int(data.num_nodes)),
        train=dataset.train.edges.t().contiguous(),
        test=dataset.test.edges.t().contiguous(),
        test_negatives=_given(dataset.test.negatives, name),
        metric=dataset.metric,
    )


def load_triples(
    name: str,
    *,
    root: Path | None = None,
    scale: float | None = None,
    seed: int = 0,
    download: bool = False,
    cache: Path | None = None,
) -> TripleInputs:
    """Return a knowledge graph."""
    from benchmark.knowledge_graphs import load_knowledge_graph

    del cache
    dataset = load_knowledge_graph(name, root, scale, seed, download)
    test = dataset.test
    return TripleInputs(
        record=_record(dataset, "kg"),
        num_entities=dataset.num_entities,
        num_relations=dataset.num_relations,
        train=_stacked(dataset.train),
        test=_stacked(test),
        test_heads=_given(test.head_neg, name),
        test_tails=_given(test.tail_neg, name),
        head_mask=test.head_neg_mask,
        tail_mask=test.tail_neg_mask,
    )


def load_graphs(
    name: str,
    *,
    root: Path | None = None,
    scale: float | None = None,
    seed: int = 0,
    download: bool = False,
    cache: Path | None = None,
) -> GraphInputs:
    """Return a set of graphs to classify."""
    from benchmark.graph_sets import load_graph_set

    del cache
    dataset = load_graph_set(name, root, scale, seed, download)
    return GraphInputs(
        _record(dataset, "graph"), list(dataset.graphs), dataset.num_features, dataset.num_classes
    )


def _record(dataset: Any, task: str) -> Record:
    return {
        "name": dataset.name,
        "is_stand_in": dataset.is_stand_in,
        "scale": dataset.scale,
        "fingerprint": dataset.fingerprint.to_dict(),
        "task": task,
    }


def _numbers(mask: Tensor) -> Tensor:
    return mask.nonzero().view(-1)


def _stacked(triples: Any) -> Tensor:
    return torch.stack([triples.head, triples.relation, triples.tail], dim=1)


def _given(negatives: Tensor | None, name: str) -> Tensor:
    if negatives is None:
        raise ValueError(f"dataset={name}: its test split has no false examples to compare with.")
    return negatives
