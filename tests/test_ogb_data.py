"""OGB's loader behind one door: found or not, asked or not, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmark import ogb_data
from benchmark.data_request import DataRequest
from benchmark.ogb_data import RAW_FILES, edge_split, import_ogb, load_ogb, ogb_version


def request(root: Path | None, name: str = "ogbl-collab", download: bool = False) -> DataRequest:
    return DataRequest(name, root, None, 0, download, False)


def write_raw(root: Path, name: str) -> None:
    raw = root / name.replace("-", "_") / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for file in RAW_FILES[name]:
        (raw / file).touch()


@pytest.fixture
def fake_ogb(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Replace ogb by a loader that notes what it is asked for."""
    asked: list[tuple[str, str]] = []

    def load(name: str, root: str) -> str:
        asked.append((name, root))
        print("Saving...")
        return f"the set {name}"

    module = SimpleNamespace(PygNodePropPredDataset=load, PygLinkPropPredDataset=load)
    monkeypatch.setattr(ogb_data, "import_ogb", lambda part: module)
    return asked


def test_a_missing_ogb_names_the_extra(monkeypatch):
    monkeypatch.setattr(ogb_data, "ogb_version", lambda: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "gnnprof\[bench\]"'):
        import_ogb("linkproppred")


def test_the_version_is_that_of_the_installed_package(monkeypatch):
    def missing(name: str) -> str:
        raise ogb_data.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(ogb_data.importlib.metadata, "version", missing)
    assert ogb_version() is None
    monkeypatch.setattr(ogb_data.importlib.metadata, "version", {"ogb": "1.3.6"}.get)
    assert ogb_version() == "1.3.6"


def test_what_ogb_would_import_on_the_side_is_kept_out_and_put_back(monkeypatch):
    monkeypatch.delitem(sys.modules, "dgl", raising=False)
    monkeypatch.setitem(sys.modules, "outdated", SimpleNamespace())
    with ogb_data._without("dgl", "outdated"):
        with pytest.raises(ModuleNotFoundError):
            __import__("dgl")
        assert sys.modules["outdated"] is not None  # loaded before, so it does nothing now
    assert "dgl" not in sys.modules
    assert sys.modules["outdated"] == SimpleNamespace()


def test_a_set_that_is_there_is_loaded_and_its_chatter_goes_to_stderr(tmp_path, fake_ogb, capsys):
    for name in ("ogbl-collab", "ogbn-arxiv"):
        write_raw(tmp_path, name)
    assert load_ogb(request(tmp_path), "collab-like") == "the set ogbl-collab"
    assert load_ogb(request(tmp_path, "ogbn-arxiv"), "arxiv-like") == "the set ogbn-arxiv"
    assert fake_ogb == [("ogbl-collab", str(tmp_path)), ("ogbn-arxiv", str(tmp_path))]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Saving..." in captured.err


def test_a_set_that_is_not_there_is_fetched_only_when_asked(tmp_path, fake_ogb, capsys):
    with pytest.raises(FileNotFoundError) as caught:
        load_ogb(request(tmp_path), "collab-like")
    assert str(caught.value) == (
        f"dataset=ogbl-collab is real data that is not on this machine "
        f"({tmp_path}/ogbl_collab/raw/edge.csv.gz is missing): give --root FOLDER that holds "
        "ogbl_collab/raw as OGB lays it out, add --download to fetch it into that folder, or use "
        "--dataset collab-like, a stand-in of its shape."
    )
    with pytest.raises(FileNotFoundError, match="no --root was given"):
        load_ogb(request(None, download=True), "collab-like")
    assert fake_ogb == []
    load_ogb(request(tmp_path, download=True), "collab-like")
    assert fake_ogb == [("ogbl-collab", str(tmp_path))]
    assert "Downloading ogbl-collab into" in capsys.readouterr().err


@pytest.mark.parametrize("name", RAW_FILES)
def test_ogbs_loader_is_not_called_where_it_would_download_unasked(name, tmp_path, fake_ogb):
    folder = tmp_path / name.replace("-", "_")
    (folder / "processed").mkdir(parents=True)
    (folder / "raw").mkdir()
    with pytest.raises(FileNotFoundError, match=f"{RAW_FILES[name][0]} is missing"):
        load_ogb(request(tmp_path, name), "like")
    write_raw(tmp_path, name)
    (folder / "raw" / RAW_FILES[name][1]).unlink()
    with pytest.raises(FileNotFoundError, match=f"{RAW_FILES[name][1]} is missing"):
        load_ogb(request(tmp_path, name), "like")
    assert fake_ogb == []


@pytest.mark.parametrize(
    ("error", "expected", "sentence"),
    [
        (OSError("network is unreachable"), ConnectionError, "unreachable.*collab-like"),
        (EOFError(), FileNotFoundError, "not what this version of OGB expects"),
    ],
)
def test_its_failures_are_one_sentence(error, expected, sentence, tmp_path, monkeypatch, capsys):
    def fail(name: str, root: str) -> None:
        raise error

    module = SimpleNamespace(PygLinkPropPredDataset=fail, PygNodePropPredDataset=fail)
    monkeypatch.setattr(ogb_data, "import_ogb", lambda part: module)
    with pytest.raises(expected, match=sentence):
        load_ogb(request(tmp_path, download=True), "collab-like")
    capsys.readouterr()


def test_its_splits_are_numpy_pickles_that_torch_would_refuse(tmp_path):
    edges = {"edge": np.array([[0, 1]]), "weight": np.array([1.5]), "head_type": ["drug"]}
    torch.save(edges, tmp_path / "train.pt")

    class Dataset:
        def get_edge_split(self) -> dict[str, object]:
            return {"train": torch.load(tmp_path / "train.pt")}

    with pytest.raises(Exception, match="Weights only load failed"):
        Dataset().get_edge_split()
    loaded = edge_split(Dataset())["train"]
    assert loaded["edge"].tolist() == [[0, 1]]
    assert loaded["head_type"] == ["drug"]
    with pytest.raises(Exception, match="Weights only load failed"):  # only while it was asked
        Dataset().get_edge_split()
