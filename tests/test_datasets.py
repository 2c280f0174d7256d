"""The data sets: shapes, planted classes, splits, fingerprints, and real sets from raw files."""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F
from benchmark import datasets, ogb_data
from benchmark.datasets import GraphDataset, load_dataset, take_fingerprint, with_random_split
from benchmark.stand_ins import STAND_INS, planetoid_split
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import coalesce, degree, homophily

SHAPES = {  # nodes, directed edges, features, classes, as PyG and OGB state them
    "cora-like": (2_708, 10_556, 1_433, 7),
    "citeseer-like": (3_327, 9_104, 3_703, 6),
    "pubmed-like": (19_717, 88_648, 500, 3),
    "arxiv-like": (169_343, 1_166_243, 128, 40),
    # At their default scales, 0.01 and 0.02, of what PyG and OGB state.
    "products-like": (24_490, 1_237_182, 100, 47),
    "reddit-like": (4_659, 2_292_318, 602, 41),
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, GraphDataset]:
    return {name: load_dataset(name) for name in SHAPES}


# --- stand-ins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_a_stand_in_has_the_counts_of_the_real_set(name, loaded):
    dataset = loaded[name]
    data = dataset.data
    nodes, edges, features, classes = SHAPES[name]
    assert (data.num_nodes, data.num_edges) == (nodes, edges)
    assert data.x.shape == (nodes, features)
    assert data.x.dtype == torch.float32
    assert torch.equal(data.y.unique(), torch.arange(classes))
    assert (dataset.num_features, dataset.num_classes) == (features, classes)
    assert dataset.is_stand_in
    assert dataset.name == name


@pytest.mark.parametrize("name", SHAPES)
def test_its_edges_are_distinct_and_no_self_loops(name, loaded):
    data = loaded[name].data
    assert torch.equal(coalesce(data.edge_index), data.edge_index)
    assert not data.has_self_loops()
    assert data.is_undirected() is (name != "arxiv-like")


@pytest.mark.parametrize(
    ("name", "expected"),
    # Edges drawn at home, and the others times the share of their targets' class.
    [
        ("cora-like", 0.80),
        ("citeseer-like", 0.75),
        ("pubmed-like", 0.82),
        ("arxiv-like", 0.66),
        # The smallest classes of a dense graph hold fewer pairs than edges are drawn for them.
        ("products-like", 0.67),
    ],
)
def test_its_edges_are_homophilous(name, expected, loaded):
    data = loaded[name].data
    assert homophily(data.edge_index, data.y) == pytest.approx(expected, abs=0.03)


# Not reddit-like: where every fifth pair is an edge, the hubs have run out of neighbours.
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "reddit-like"])
def test_its_degrees_fall_like_a_power_law(name, loaded):
    data = loaded[name].data
    degrees = degree(data.edge_index[1], data.num_nodes).sort(descending=True).values.numpy()
    ranks = np.arange(data.num_nodes // 1000 + 1, data.num_nodes // 20)
    # Planted: degree ~ rank^-0.75 in the upper ranks, plus one edge drawn from every node.
    slope = np.polyfit(np.log(ranks), np.log(degrees[ranks]), 1)[0]
    assert -0.8 < slope < -0.4
    assert degrees[0] > 20 * degrees.mean()
    assert (degrees == 0).mean() < 0.2


@pytest.mark.parametrize("name", ["cora-like", "citeseer-like", "pubmed-like"])
def test_it_has_a_public_style_split(name, loaded):
    data = loaded[name].data
    assert torch.bincount(data.y[data.train_mask]).tolist() == [20] * loaded[name].num_classes
    assert int(data.val_mask.sum()) == 500
    assert int(data.test_mask.sum()) == 1000
    assert not ((data.train_mask & data.val_mask) | (data.val_mask & data.test_mask)).any()
    assert not (data.train_mask & data.test_mask).any()


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("arxiv-like", [0.54, 0.17, 0.29]),
        ("products-like", [0.08, 0.02, 0.90]),
        ("reddit-like", [0.66, 0.10, 0.24]),
    ],
)
def test_large_sets_are_split_by_the_shares_of_the_real_ones(name, shares, loaded):
    data = loaded[name].data
    masks = (data.train_mask, data.val_mask, data.test_mask)
    assert [round(float(mask.float().mean()), 2) for mask in masks] == shares
    assert torch.equal(sum(mask.long() for mask in masks), torch.ones(data.num_nodes).long())


def test_words_are_zero_or_one_and_sparse(loaded):
    for name, density in (("cora-like", 0.0127), ("citeseer-like", 0.0086)):  # the real ones'
        x = loaded[name].data.x
        assert set(x.unique().tolist()) == {0.0, 1.0}
        assert float(x.mean()) == pytest.approx(density, rel=0.1)
    frequencies = loaded["pubmed-like"].data.x
    assert float((frequencies > 0).float().mean()) == pytest.approx(0.10, abs=0.01)
    assert float(frequencies.min()) == 0


def accuracy(data: Data, convolve: bool, epochs: int = 100) -> float:
    """Test accuracy of two layers on the graph, or on the features alone."""
    torch.manual_seed(0)
    edges = data.edge_index if convolve else torch.empty(2, 0, dtype=torch.long)
    first = GCNConv(data.num_features, 16)  # without edges only self-loops are left: a perceptron
    second = GCNConv(16, int(data.y.max()) + 1)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4)
    for _ in range(epochs):
        optimizer.zero_grad()
        out = second(F.dropout(F.relu(first(data.x, edges))), edges)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    with torch.no_grad():
        out = second(F.relu(first(data.x, edges)), edges)
    return float((out.argmax(1) == data.y)[data.test_mask].float().mean())


def test_a_gcn_learns_more_than_the_features_tell_and_both_beat_chance():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data = load_dataset("cora-like", normalize_features=True).data
        with torch.random.fork_rng():
            gcn, perceptron = accuracy(data, convolve=True), accuracy(data, convolve=False)
    finally:
        torch.set_num_threads(threads)
    majority = float(torch.bincount(data.y[data.test_mask]).max() / data.test_mask.sum())
    assert 0.75 <= gcn <= 0.90
    assert perceptron < gcn - 0.2
    assert perceptron > majority + 0.05


def test_one_seed_gives_one_graph_on_every_platform():
    scales = dict.fromkeys(STAND_INS, 0.05) | {"products-like": 0.002, "reddit-like": 0.01}
    hashes = {
        name: load_dataset(name, scale=scale).fingerprint.sha256[:12]
        for name, scale in scales.items()
    }
    assert hashes == {
        "cora-like": "af6c6bedb74f",
        "citeseer-like": "50facb8ef9fd",
        "pubmed-like": "46a3633618aa",
        "arxiv-like": "9cebaeaea2fc",
        "products-like": "c125862889a3",
        "reddit-like": "c2e24df7a622",
    }


def test_another_seed_gives_another_graph_of_the_same_counts():
    first, second = (load_dataset("cora-like", scale=0.1, seed=seed) for seed in (0, 1))
    assert first.fingerprint.sha256 != second.fingerprint.sha256
    assert first.fingerprint.num_edges == second.fingerprint.num_edges == 1056


def test_scale_shrinks_nodes_edges_and_split_but_not_widths():
    dataset = load_dataset("pubmed-like", scale=0.01)
    data = dataset.data
    assert (data.num_nodes, data.num_edges) == (197, 886)
    assert (dataset.num_features, dataset.num_classes) == (500, 3)
    assert int(data.val_mask.sum()) == 197 // 5
    assert int(data.test_mask.sum()) == 197 * 2 // 5
    assert torch.bincount(data.y[data.train_mask]).tolist() == [8, 16, 20]


def test_the_split_takes_the_first_of_the_order():
    y = np.array([0, 1] * 40)
    train, val, test = planetoid_split(y, np.arange(80)[::-1])
    assert np.flatnonzero(train).tolist() == list(range(60, 80))  # a quarter of each class of 40
    assert np.flatnonzero(val).tolist() == list(range(44, 60))  # a fifth of 80
    assert np.flatnonzero(test).tolist() == list(range(12, 44))  # two fifths of 80


def test_random_splits_are_drawn_from_torchs_state_and_leave_the_graph_alone():
    data = load_dataset("cora-like").data
    fixed = data.train_mask.clone()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first, second = with_random_split(data), with_random_split(data)
        torch.manual_seed(1)
        again = with_random_split(data)
    assert torch.equal(first.train_mask, again.train_mask)
    assert not torch.equal(first.train_mask, second.train_mask)
    assert torch.equal(data.train_mask, fixed)
    assert torch.bincount(first.y[first.train_mask]).tolist() == [20] * 7
    assert (int(first.val_mask.sum()), int(first.test_mask.sum())) == (500, 1000)


# --- normalisation, fingerprint, cache -----------------------------------------------------------


def test_feature_rows_add_up_to_one_and_the_fingerprint_is_of_the_data_before():
    plain = load_dataset("cora-like", scale=0.1)
    normal = load_dataset("cora-like", scale=0.1, normalize_features=True)
    assert torch.allclose(normal.data.x.sum(dim=1), torch.ones(normal.data.num_nodes))
    assert normal.features_normalized
    assert not plain.features_normalized
    assert normal.fingerprint == plain.fingerprint


def test_signed_features_are_left_as_they_are():
    plain = load_dataset("arxiv-like", scale=0.01)
    asked = load_dataset("arxiv-like", scale=0.01, normalize_features=True)
    assert torch.equal(plain.data.x, asked.data.x)
    assert not asked.features_normalized


def small_graph(edge_index: list[list[int]]) -> Data:
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 0.0]])
    return Data(x=x, edge_index=torch.tensor(edge_index), y=torch.tensor([0, 1, 1]))


def test_the_fingerprint_is_the_hash_of_sorted_edges_features_and_classes():
    fingerprint = take_fingerprint(small_graph([[0, 1], [1, 2]]))
    edges = struct.pack("<2q", 0 * 3 + 1, 1 * 3 + 2)
    features = struct.pack("<6f", 1, 0, 0, 2, 0.5, 0)
    classes = struct.pack("<3q", 0, 1, 1)
    assert fingerprint.sha256 == hashlib.sha256(edges + features + classes).hexdigest()
    assert str(fingerprint).startswith("3 nodes, 2 directed edges, 2 features, 2 classes, sha256 ")
    assert fingerprint == take_fingerprint(small_graph([[1, 0], [2, 1]]))  # another order
    assert fingerprint != take_fingerprint(small_graph([[1, 0], [2, 2]]))


def test_a_result_says_what_the_data_is():
    assert load_dataset("KarateClub").to_dict() == {
        "name": "KarateClub",
        "is_stand_in": False,
        "scale": None,
        "features_normalized": False,
        "fingerprint": {
            "num_nodes": 34,
            "num_edges": 156,
            "num_features": 34,
            "num_classes": 4,
            "sha256": load_dataset("KarateClub").fingerprint.sha256,
        },
    }


def test_nothing_is_cached_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = load_dataset("cora-like", scale=0.05)
    assert list(tmp_path.iterdir()) == []
    load_dataset("cora-like", scale=0.05, cache=tmp_path / "cache")
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [
        "cora-like-scale0.05-seed0-v1.npz"
    ]
    monkeypatch.setattr(datasets, "generate", None)  # so that it is not called again
    cached = load_dataset("cora-like", scale=0.05, cache=tmp_path / "cache")
    assert cached.fingerprint == first.fingerprint
    assert torch.equal(cached.data.test_mask, first.data.test_mask)


# --- real data -----------------------------------------------------------------------------------


def test_karate_club_trains_on_one_node_per_class_and_shares_out_the_others():
    data = load_dataset("karateclub").data
    assert torch.bincount(data.y[data.train_mask]).tolist() == [1, 1, 1, 1]
    assert data.train_mask.nonzero().view(-1).tolist() == [0, 4, 8, 24]
    assert data.val_mask.nonzero().view(-1)[:4].tolist() == [1, 3, 6, 9]
    assert data.test_mask.nonzero().view(-1)[:4].tolist() == [2, 5, 7, 10]
    assert int(data.val_mask.sum()) == int(data.test_mask.sum()) == 15


def write_planetoid_files(folder: Path, name: str) -> None:
    """Write a graph of 600 nodes in a ring, in the raw layout of the Planetoid sets."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    x = scipy.sparse.csr_matrix((rng.random((600, 8)) < 0.5).astype(np.float32))
    y = np.eye(3, dtype=np.int32)[np.arange(600) % 3]
    graph = {i: [(i - 1) % 600, (i + 1) % 600] for i in range(600)}
    parts = {"x": x[:60], "tx": x[560:], "allx": x[:560], "y": y[:60], "ty": y[560:]}
    for part, content in {**parts, "ally": y[:560], "graph": graph}.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(content))
    (folder / f"ind.{name}.test.index").write_text("\n".join(map(str, range(560, 600))) + "\n")


def test_a_real_set_is_read_from_a_folder_that_is_never_written(tmp_path):
    write_planetoid_files(tmp_path / "PubMed" / "raw", "pubmed")
    files = sorted(tmp_path.rglob("*"))
    (tmp_path / "PubMed").chmod(0o555)
    try:
        dataset = load_dataset("pubmed", root=tmp_path)
    finally:
        (tmp_path / "PubMed").chmod(0o755)
    assert sorted(tmp_path.rglob("*")) == files
    assert dataset.name == "PubMed"
    assert not dataset.is_stand_in
    assert (dataset.data.num_nodes, dataset.data.num_edges) == (600, 1200)
    assert dataset.data.y.tolist() == [i % 3 for i in range(600)]
    masks = (dataset.data.train_mask, dataset.data.val_mask, dataset.data.test_mask)
    assert [int(mask.sum()) for mask in masks] == [60, 500, 40]


def test_a_real_set_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset("Cora")
    assert str(caught.value) == (
        "dataset=Cora is real data that is not on this machine (no --root was given): give --root "
        "FOLDER that holds Cora/raw/ind.cora.*, add --download to fetch it into that folder, or "
        "use --dataset cora-like, a stand-in of its shape."
    )
    write_planetoid_files(tmp_path / "Cora" / "raw", "cora")
    (tmp_path / "Cora" / "raw" / "ind.cora.graph").unlink()
    with pytest.raises(FileNotFoundError, match=r"ind\.cora\.graph is missing"):
        load_dataset("Cora", root=tmp_path)
    with pytest.raises(ValueError, match="--download of Cora needs --root"):
        load_dataset("Cora", download=True)


def test_download_is_tried_only_when_asked_and_its_failure_is_one_sentence(tmp_path, monkeypatch):
    def refuse(root: str, name: str) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(datasets, "Planetoid", refuse)
    with pytest.raises(FileNotFoundError):
        load_dataset("Cora", root=tmp_path)
    with pytest.raises(
        ConnectionError, match=r"Cora cannot be downloaded .*unreachable.*cora-like"
    ):
        load_dataset("Cora", root=tmp_path, download=True)


def test_downloaded_files_are_read_like_any_others(tmp_path, monkeypatch, capsys):
    def fetch(root: str, name: str) -> None:
        write_planetoid_files(Path(root) / name / "raw", name.lower())

    monkeypatch.setattr(datasets, "Planetoid", fetch)
    dataset = load_dataset("Cora", root=tmp_path, download=True)
    assert dataset.name == "Cora"
    assert dataset.fingerprint.num_nodes == 600
    assert "Downloading Cora into" in capsys.readouterr().err


def test_an_ogbn_graph_gets_its_official_split_as_masks(tmp_path, monkeypatch):
    graph = small_graph([[0, 1], [1, 2]])
    graph.y = graph.y[:, None]  # as OGB has it
    split = {"train": torch.tensor([2]), "valid": torch.tensor([0]), "test": torch.tensor([1])}
    asked = []

    def load(request: ogb_data.DataRequest, stand_in: str) -> list[Data]:
        asked.append((request.name, request.root, stand_in))
        return [graph]

    monkeypatch.setattr(datasets, "load_ogb", load)
    monkeypatch.setattr(datasets, "node_split", lambda dataset: split)
    dataset = load_dataset("OGBN-arxiv", root=tmp_path)
    assert asked == [("ogbn-arxiv", tmp_path, "arxiv-like")]
    assert dataset.data.y.tolist() == [0, 1, 1]
    masks = (dataset.data.train_mask, dataset.data.val_mask, dataset.data.test_mask)
    assert [mask.tolist() for mask in masks] == [
        [False, False, True],
        [True, False, False],
        [False, True, False],
    ]
    assert (dataset.name, dataset.is_stand_in, dataset.scale) == ("ogbn-arxiv", False, None)


def test_reddit_is_read_by_pygs_loader_when_its_files_are_there(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no --root was given.*reddit-like"):
        load_dataset("Reddit")
    with pytest.raises(FileNotFoundError, match=r"reddit_data\.npz is missing"):
        load_dataset("Reddit", root=tmp_path)
    raw = tmp_path / "Reddit" / "raw"
    raw.mkdir(parents=True)
    edges = scipy.sparse.coo_matrix((np.ones(2), ([0, 1], [1, 2])), shape=(3, 3))
    scipy.sparse.save_npz(raw / "reddit_graph.npz", edges)
    np.savez(
        raw / "reddit_data.npz",
        feature=np.eye(3),
        label=np.array([0, 1, 1]),
        node_types=np.array([1, 2, 3]),
    )
    dataset = load_dataset("reddit", root=tmp_path)
    assert (dataset.data.num_nodes, dataset.data.num_edges, dataset.num_classes) == (3, 2, 2)
    assert dataset.data.val_mask.tolist() == [False, True, False]

    def refuse(root: str) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(datasets, "Reddit", refuse)
    with pytest.raises(ConnectionError, match=r"Reddit cannot be downloaded .*unreachable"):
        load_dataset("Reddit", root=tmp_path / "other", download=True)


def test_reading_a_real_set_needs_scipy_and_says_how_to_get_it(tmp_path, monkeypatch):
    write_planetoid_files(tmp_path / "Cora" / "raw", "cora")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "gnnprof\[bench\]"'):
        load_dataset("Cora", root=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"name": "Coral"},
            r"dataset='Coral' is unknown; give one of KarateClub, Cora, .*arxiv-like",
        ),
        ({"name": "cora-like", "scale": 0}, "scale=0 must be a positive number"),
        ({"name": "cora-like", "scale": float("nan")}, "scale=nan must be a positive number"),
        (
            {"name": "cora-like", "scale": 0.001},
            r"leaves 3 nodes for the 7 classes.*at least 0\.0207",
        ),
        (
            {"name": "reddit-like", "scale": 0.005},
            r"leaves 1165 nodes for 573079 edges of reddit-like; .*at least 0\.0085",
        ),
        ({"name": "cora-like", "seed": -1}, "seed=-1 must not be negative"),
        ({"name": "KarateClub", "scale": 0.5}, "scale=0.5 with KarateClub: only the '-like'"),
    ],
)
def test_a_bad_argument_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_dataset(**arguments)


def test_the_scale_is_in_the_record_and_the_largest_sets_have_a_small_one_by_default(loaded):
    assert loaded["products-like"].to_dict()["scale"] == 0.01
    assert loaded["cora-like"].to_dict()["scale"] == 1.0
    assert load_dataset("KarateClub", scale=1).scale is None


def test_a_stand_in_is_never_called_by_the_real_name():
    assert all(name.endswith("-like") for name in STAND_INS)
    assert not set(STAND_INS) & set(datasets.REAL_NAMES)
