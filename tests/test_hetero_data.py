"""The heterogeneous graph: its counts, its planted classes, its split, added edges and features."""

from __future__ import annotations

import pytest
import torch
from benchmark import hetero_data
from benchmark.hetero_data import (
    AFFILIATED,
    AUTHOR,
    CITES,
    FIELD,
    HAS_TOPIC,
    INSTITUTION,
    MAG_FILES,
    PAPER,
    WRITES,
    HeteroDataset,
    load_hetero_dataset,
    take_hetero_fingerprint,
)
from torch_geometric.data import HeteroData
from torch_geometric.utils import coalesce

SCALE = 0.005


@pytest.fixture(scope="module")
def dataset() -> HeteroDataset:
    return load_hetero_dataset("mag-like", scale=SCALE)


def test_it_has_the_counts_of_ogbn_mag(dataset):
    data = dataset.data
    counts = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field_of_study": 59_965}
    assert dataset.fingerprint.num_nodes == {
        kind: round(count * SCALE) for kind, count in counts.items()
    }
    assert dataset.fingerprint.num_edges == {
        "affiliated_with": round(1_043_998 * SCALE),
        "writes": round(7_145_660 * SCALE),
        "cites": round(5_416_271 * SCALE),
        "has_topic": round(7_505_078 * SCALE),
    }
    assert data.edge_types == [AFFILIATED, WRITES, CITES, HAS_TOPIC]
    assert data[PAPER].x.shape == (3_682, 128)
    assert torch.equal(data[PAPER].y.unique(), torch.arange(349))
    assert "x" not in data[AUTHOR]
    assert data.validate()


def test_edges_are_distinct_and_every_paper_has_an_author_and_a_topic(dataset):
    for kind in dataset.data.edge_types:
        edge_index = dataset.data[kind].edge_index
        assert torch.equal(coalesce(edge_index), edge_index)
    data = dataset.data
    assert len(data[WRITES].edge_index[1].unique()) == data[PAPER].num_nodes
    assert len(data[HAS_TOPIC].edge_index[0].unique()) == data[PAPER].num_nodes
    assert not (data[CITES].edge_index[0] == data[CITES].edge_index[1]).any()


def test_papers_are_split_by_year_in_the_shares_of_ogbn_mag(dataset):
    paper = dataset.data[PAPER]
    assert torch.equal(paper.train_mask, paper.year < 2018)
    assert torch.equal(paper.val_mask, paper.year == 2018)
    assert torch.equal(paper.test_mask, paper.year == 2019)
    shares = [float(paper[key].float().mean()) for key in ("train_mask", "val_mask", "test_mask")]
    assert shares == pytest.approx(
        [629_571 / 736_389, 64_879 / 736_389, 41_939 / 736_389], abs=2e-3
    )


def vote(data: HeteroData, relation: tuple[str, str, str], paper_end: int) -> float:
    """Accuracy of the commonest class among training papers that share a neighbour."""
    paper = data[PAPER]
    ends = data[relation].edge_index
    papers, others = ends[paper_end], ends[1 - paper_end]
    votes = torch.zeros(int(others.max()) + 1, 349)
    trains = paper.train_mask[papers]
    votes.index_put_((others[trains], paper.y[papers[trains]]), torch.ones(1), accumulate=True)
    scores = torch.zeros(data[PAPER].num_nodes, 349).index_add_(0, papers, votes[others])
    return float((scores.argmax(dim=1) == paper.y)[paper.test_mask].float().mean())


def test_each_relation_tells_of_the_classes(dataset):
    chance = float(torch.bincount(dataset.data[PAPER].y).max()) / dataset.data[PAPER].num_nodes
    assert chance < 0.01
    assert vote(dataset.data, WRITES, paper_end=1) > 4 * chance
    assert vote(dataset.data, HAS_TOPIC, paper_end=0) > 4 * chance
    row, col = dataset.data[CITES].edge_index
    same = (dataset.data[PAPER].y[row] == dataset.data[PAPER].y[col]).float().mean()
    assert 0.3 < float(same) < 0.6  # 55 % are drawn at home, some of which are the same edge


def test_reverse_edges_and_features_are_added_on_request_only(dataset):
    full = load_hetero_dataset("mag-like", scale=SCALE, reverse_edges=True, all_features=True)
    assert full.fingerprint == dataset.fingerprint
    data = full.data
    assert len(data.edge_types) == 7
    writes = data[WRITES].edge_index
    reverse = data[PAPER, "rev_writes", AUTHOR].edge_index
    assert torch.equal(coalesce(reverse.flip(0)), writes)
    assert coalesce(data[CITES].edge_index.flip(0)).equal(coalesce(data[CITES].edge_index))
    for kind in (AUTHOR, INSTITUTION, FIELD):
        assert data[kind].x.shape == (data[kind].num_nodes, 128)
    author = int(writes[0, 0])
    papers = writes[1][writes[0] == author]
    assert torch.allclose(data[AUTHOR].x[author], data[PAPER].x[papers].mean(0), atol=1e-5)
    institutions = data[AFFILIATED].edge_index
    members = institutions[0][institutions[1] == 0]
    assert torch.allclose(data[INSTITUTION].x[0], data[AUTHOR].x[members].mean(0), atol=1e-5)
    without = set(range(data[AUTHOR].num_nodes)) - set(writes[0].tolist())
    assert not data[AUTHOR].x[list(without)].any()


def test_one_seed_gives_one_graph_on_every_platform(dataset):
    assert dataset.fingerprint.sha256[:12] == "c94df167fbb5"
    other = load_hetero_dataset("mag-like", scale=SCALE, seed=1)
    assert other.fingerprint.sha256 != dataset.fingerprint.sha256
    assert other.fingerprint.num_edges == dataset.fingerprint.num_edges
    assert dataset.to_dict() == {
        "name": "mag-like",
        "is_stand_in": True,
        "scale": SCALE,
        "target": "paper",
        "fingerprint": dataset.fingerprint.to_dict(),
    }
    assert str(dataset.fingerprint).startswith("nodes: 3,682 paper, 5,673 author, ")


def test_the_default_scale_is_small_and_recorded():
    assert load_hetero_dataset("MAG-like").scale == 0.01


def test_real_data_is_read_by_pygs_loader(tmp_path, monkeypatch, dataset):
    for name in MAG_FILES:
        (tmp_path / "mag" / "raw" / name).mkdir(parents=True)
    monkeypatch.setattr(hetero_data, "OGB_MAG", lambda root: [dataset.data])
    real = load_hetero_dataset("ogbn-mag", root=tmp_path)
    assert (real.name, real.is_stand_in, real.scale) == ("ogbn-mag", False, None)
    assert real.fingerprint == take_hetero_fingerprint(dataset.data)

    def refuse(root: str) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(hetero_data, "OGB_MAG", refuse)
    with pytest.raises(ConnectionError, match=r"ogbn-mag cannot be downloaded .*unreachable"):
        load_hetero_dataset("ogbn-mag", root=tmp_path / "other", download=True)


def test_pygs_loader_is_not_called_where_it_would_download_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr(hetero_data, "OGB_MAG", None)
    raw = tmp_path / "mag" / "raw"
    (tmp_path / "mag" / "processed").mkdir(parents=True)
    for name in MAG_FILES:  # each time one more is there
        with pytest.raises(FileNotFoundError, match=rf"raw.{name} is missing.*mag-like"):
            load_hetero_dataset("ogbn-mag", root=tmp_path)
        (raw / name).mkdir(parents=True)


def test_the_names_are_those_that_pygs_loader_looks_for():
    unread = object.__new__(hetero_data.OGB_MAG)
    unread.preprocess = None
    assert list(MAG_FILES) == unread.raw_file_names


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "mag"}, "is unknown; give one of ogbn-mag, mag-like"),
        ({"name": "mag-like", "scale": 0.003}, r"leaves 2209 papers .*at least 0\.0038"),
        ({"name": "ogbn-mag", "scale": 0.5}, "only the '-like' stand-ins can be scaled"),
    ],
)
def test_a_bad_argument_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_hetero_dataset(**arguments)
