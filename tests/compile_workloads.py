"""Small workloads of the compile study that several tests build: fixtures and a random graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from benchmark.compile import registry, tasks
from benchmark.compile.dgl_adapter import dgl_available
from benchmark.compile.inputs import NodeInputs
from benchmark.compile.modules import (
    Edges,
)
from benchmark.compile.registry import (
    DatasetEntry,
)
from benchmark.compile.tasks import WorkloadSettings, build_workload

MODELS = ("GCN", "GraphSAGE", "GAT", "GIN", "RGCN")
NODES, WIDTH, CLASSES, RELATIONS = 40, 12, 4, 3

needs_dgl = pytest.mark.skipif(not dgl_available()[0], reason=str(dgl_available()[1]))
by_framework = pytest.mark.parametrize(
    "framework", ["pyg", pytest.param("dgl", marks=(needs_dgl, pytest.mark.dgl))]
)


@pytest.fixture
def one_thread_and_own_random_state() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def entries() -> Iterator[None]:
    """Give back the registered entries."""
    tables = (registry.MODELS, registry.DATASETS, registry.MODES)
    before = [dict(table.entries) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.entries.clear()
        table.entries.update(entries)


def random_edges(directed: bool = True) -> Edges:
    """A graph with some self-loops of its own and two isolated nodes, no edge twice."""
    keys = torch.randperm((NODES - 2) ** 2)[:150]
    keys = torch.cat([keys, torch.tensor([0, NODES - 1])]).unique()  # the loops of nodes 0 and 1
    edge_index = torch.stack([keys // (NODES - 2), keys % (NODES - 2)])
    if not directed:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1).unique(dim=1)
    types = torch.randint(0, RELATIONS, (edge_index.size(1),))
    return Edges(edge_index, NODES, types, RELATIONS)


@pytest.fixture
def planted(entries: None) -> Iterator[Callable[..., tasks.Workload]]:
    """A workload on a small random graph."""
    edges = random_edges()
    graph = NodeInputs(
        record={"name": "planted", "is_stand_in": True, "fingerprint": {}, "task": "node"},
        x=torch.randn(NODES, WIDTH),
        num_embeddings=0,
        edges=edges,
        y=torch.randint(0, CLASSES, (NODES,)),
        train=torch.arange(0, NODES, 2),
        test=torch.arange(1, NODES, 2),
        num_classes=CLASSES,
    )
    typed = replace(
        graph, record={**graph.record, "task": "hetero"}, x=graph.x[:25], num_embeddings=15
    )
    typed = replace(typed, y=graph.y[:25], train=torch.arange(0, 20), test=torch.arange(20, 25))
    registry.register_dataset(DatasetEntry("planted", "node", lambda **request: graph))
    registry.register_dataset(DatasetEntry("typed", "hetero", lambda **request: typed))

    def build(model: str, variant: str = "no-fixes", **changes: object) -> tasks.Workload:
        dataset = "typed" if model == "RGCN" else "planted"
        base = WorkloadSettings("pyg", model, dataset, variant, layers=1, hidden=16, heads=4)
        return build_workload(replace(base, **changes))

    yield build
    torch._dynamo.reset()
