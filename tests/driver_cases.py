"""Small cases of the training and inference drivers: settings, graphs, a record, a compiler."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark.drivers.cases import Case
from benchmark.drivers.graphs import Graph, load_graph
from benchmark.drivers.settings import Settings, settings_from
from torch_geometric.data import HeteroData

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
FAST = ["--threads", "1", "--no-progress-bar"]
HEADER = {"driver": "training", "settings": {"warmup": 1}, "environment": {"torch": "2.13"}}


@pytest.fixture
def in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(driver: str) -> Any:
    return importlib.import_module(f"benchmark.{driver}.{driver}_benchmark")


def settings(*flags: str, driver: str = "training") -> Settings:
    return settings_from(driver, script(driver).parser().parse_args(flags))


SMALL = settings(
    "--threads", "1", "--hidden-channels", "8", "--num-neighbors", "3", "--num-steps", "-1"
)


@pytest.fixture(scope="module")
def cora() -> Graph:
    return load_graph("cora-like", scale=0.05)


@pytest.fixture(scope="module")
def mag() -> Graph:
    """Papers with features, authors and fields without, and a venue that no paper hears of."""
    generator = torch.Generator().manual_seed(1)
    data = HeteroData()
    data["paper"].x = torch.randn(40, 6, generator=generator)
    data["paper"].y = torch.arange(40) % 3
    data["paper"].train_mask = torch.arange(40) < 24
    data["paper"].val_mask = (torch.arange(40) >= 24) & (torch.arange(40) < 32)
    data["paper"].test_mask = torch.arange(40) >= 32
    sizes = {"paper": 40, "author": 30, "field": 5, "venue": 4}
    for name, count in sizes.items():
        data[name].num_nodes = count
    for source, relation, goal, count in (
        ("author", "writes", "paper", 90),
        ("paper", "cites", "paper", 80),
        ("field", "rev_has", "paper", 50),
        ("paper", "rev_writes", "author", 70),
        ("paper", "appears_in", "venue", 40),
    ):
        ends = [torch.randint(sizes[t], (count,), generator=generator) for t in (source, goal)]
        data[source, relation, goal].edge_index = torch.unique(torch.stack(ends), dim=1)
    return Graph("mag-tiny", data, "paper", 6, 3, {"is_stand_in": True, "fingerprint": "tiny"}, 0.5)


def case(model: str, dataset: str = "cora-like", **changes: Any) -> Case:
    fields = {"batch_size": 8, "num_layers": 2, "hidden_channels": 8, "num_neighbors": (3, 3)}
    return Case(dataset, model, **{**fields, **changes})


@pytest.fixture
def fast_compiler(monkeypatch) -> Iterator[None]:
    """Dynamo without Inductor: the same graphs and recompilations in a tenth of the time."""
    compile_fully = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda model, dynamic: compile_fully(model, backend="eager", dynamic=dynamic),
    )
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def record(key: str, status: str = "ok") -> dict[str, Any]:
    return {"key": key, "status": status, "case": {}, "error": None}
