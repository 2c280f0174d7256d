"""Sets of graphs: planted motifs, real TU files, and that a GIN learns what a perceptron cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmark import graph_sets
from benchmark.graph_sets import GRAPH_STAND_INS, GraphSet, load_graph_set, take_set_fingerprint
from benchmark.planted_graphs import ATOMS, BONDS, CARBON, DOUBLE, NITROGEN, OXYGEN, SINGLE
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool
from torch_geometric.utils import coalesce, to_dense_adj


@pytest.fixture(scope="module")
def loaded() -> dict[str, GraphSet]:
    return {name: load_graph_set(name) for name in GRAPH_STAND_INS}


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- stand-ins -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "graphs", "nodes", "edges", "positive"),
    # The means that TU's page states: nodes, and undirected edges twice.
    [("mutag-like", 188, 17.93, 39.58, 0.66), ("proteins-like", 1113, 39.06, 145.63, 0.40)],
)
def test_a_stand_in_is_about_as_large_as_the_real_set(name, graphs, nodes, edges, positive, loaded):
    graph_set = loaded[name]
    assert len(graph_set.graphs) == graph_set.fingerprint.num_graphs == graphs
    assert graph_set.fingerprint.num_nodes / graphs == pytest.approx(nodes, rel=0.1)
    assert graph_set.fingerprint.num_edges / graphs == pytest.approx(edges, rel=0.1)
    y = torch.cat([graph.y for graph in graph_set.graphs])
    assert float(y.float().mean()) == pytest.approx(positive, abs=0.01)
    assert graph_set.num_classes == 2
    assert graph_set.is_stand_in


@pytest.mark.parametrize("name", GRAPH_STAND_INS)
def test_its_graphs_are_connected_undirected_and_simple(name, loaded):
    for graph in loaded[name].graphs[:50]:
        assert graph.is_undirected()
        assert not graph.has_self_loops()
        assert torch.equal(coalesce(graph.edge_index), graph.edge_index)
        reached = torch.zeros(graph.num_nodes).index_fill_(0, torch.tensor([0]), 1)
        adjacency = to_dense_adj(graph.edge_index, max_num_nodes=graph.num_nodes)[0]
        for _ in range(graph.num_nodes):
            reached = ((adjacency @ reached + reached) > 0).float()
        assert reached.all()


def test_one_hot_rows_have_the_widths_of_the_real_sets(loaded):
    molecule, protein = loaded["mutag-like"].graphs[0], loaded["proteins-like"].graphs[0]
    assert molecule.x.shape[1] == len(ATOMS) == 7
    assert molecule.edge_attr.shape == (molecule.num_edges, len(BONDS))
    assert protein.x.shape[1] == 3
    assert "edge_attr" not in protein
    for rows in (molecule.x, molecule.edge_attr, protein.x):
        assert torch.equal(rows.sum(dim=1), torch.ones(len(rows)))


def count_nitro_groups(graph: Data) -> int:
    """Nitrogens with one carbon and two oxygens around them."""
    atoms = graph.x.argmax(dim=1)
    count = 0
    for nitrogen in (atoms == NITROGEN).nonzero().view(-1):
        around = atoms[graph.edge_index[0][graph.edge_index[1] == nitrogen]]
        count += sorted(around.tolist()) == [CARBON, OXYGEN, OXYGEN]
    return count


def test_a_molecule_is_positive_exactly_if_it_has_a_nitro_group(loaded):
    for graph in loaded["mutag-like"].graphs:
        assert (count_nitro_groups(graph) > 0) == bool(graph.y)


def test_counts_of_atoms_and_bonds_do_not_tell_the_classes_of_molecules(loaded):
    for graph in loaded["mutag-like"].graphs:
        atoms = torch.bincount(graph.x.argmax(dim=1), minlength=len(ATOMS))
        bonds = torch.bincount(graph.edge_attr.argmax(dim=1), minlength=len(BONDS)) // 2
        groups, halogens = int(atoms[NITROGEN]), int(atoms[3:].sum())
        assert int(atoms[OXYGEN]) == 2 * groups
        assert bonds[DOUBLE] == groups
        assert bonds[SINGLE] == 2 * groups + halogens
        assert atoms[CARBON] in (10, 14)  # two or three hexagons that share sides


def test_a_protein_is_positive_exactly_if_it_has_a_triangle(loaded):
    for graph in loaded["proteins-like"].graphs[:200]:
        adjacency = to_dense_adj(graph.edge_index, max_num_nodes=graph.num_nodes)[0]
        triangles = int((adjacency @ adjacency @ adjacency).trace()) // 6
        assert (triangles > 0) == bool(graph.y)


def test_sizes_and_node_types_of_proteins_do_not_tell_their_class(loaded):
    """Mean size, density and share of each node type are alike within their standard errors."""
    by_class = [
        torch.stack(
            [
                torch.cat([torch.tensor([g.num_nodes, g.num_edges / g.num_nodes]), g.x.mean(0)])
                for g in loaded["proteins-like"].graphs
                if int(g.y) == label
            ]
        )
        for label in (0, 1)
    ]
    difference = by_class[0].mean(0) - by_class[1].mean(0)
    spread = sum(part.var(0) / len(part) for part in by_class).sqrt()
    assert float((difference / spread).abs().max()) < 3


def accuracy(graph_set: GraphSet, convolve: bool, epochs: int) -> float:
    """Test accuracy of three GIN layers, with their edges or without."""
    torch.manual_seed(0)
    body = GIN(graph_set.num_features, 32, 3, norm="batch_norm", jk="cat")
    head = torch.nn.Linear(32, graph_set.num_classes)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
    end = len(graph_set.graphs) * 8 // 10

    def predict(batch: Data) -> torch.Tensor:
        edges = batch.edge_index if convolve else batch.edge_index[:, :0]
        return head(global_add_pool(body(batch.x, edges), batch.batch, batch.num_graphs))

    for _ in range(epochs):
        for batch in DataLoader(graph_set.graphs[:end], 64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(predict(batch), batch.y).backward()
            optimizer.step()
    body.eval()
    (batch,) = DataLoader(graph_set.graphs[end:], len(graph_set.graphs))
    return float((predict(batch).argmax(dim=1) == batch.y).float().mean())


def test_a_gin_finds_nitro_groups_and_a_perceptron_does_not(loaded, one_thread):
    with torch.random.fork_rng():
        gin = accuracy(loaded["mutag-like"], convolve=True, epochs=20)
        perceptron = accuracy(loaded["mutag-like"], convolve=False, epochs=20)
    assert gin >= 0.9
    assert perceptron < gin - 0.1


def test_a_gin_learns_to_tell_triangles_from_longer_cycles(one_thread):
    graph_set = load_graph_set("proteins-like", scale=0.5)
    with torch.random.fork_rng():
        gin = accuracy(graph_set, convolve=True, epochs=12)
    majority = 0.6
    assert gin > majority + 0.08


def test_one_seed_gives_one_set_on_every_platform(loaded):
    hashes = {name: graph_set.fingerprint.sha256[:12] for name, graph_set in loaded.items()}
    assert hashes == {"mutag-like": "dde8a70ed40f", "proteins-like": "467e2a86ec6f"}
    assert load_graph_set("mutag-like", seed=1).fingerprint.sha256[:12] != hashes["mutag-like"]


def test_scale_is_a_factor_on_the_number_of_graphs():
    small = load_graph_set("Proteins-Like", scale=0.1)
    assert len(small.graphs) == 111
    assert small.to_dict() == {
        "name": "proteins-like",
        "is_stand_in": True,
        "scale": 0.1,
        "degree_features": False,
        "fingerprint": small.fingerprint.to_dict(),
    }
    assert str(small.fingerprint).startswith("111 graphs, ")


# --- real data -----------------------------------------------------------------------------------


def write_tu_files(root: Path, name: str, node_labels: bool = True) -> None:
    """Write a triangle of class 1 and a path of two nodes of class -1, as TU's files have them."""
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    edges = [(1, 2), (2, 1), (2, 3), (3, 2), (1, 3), (3, 1), (4, 5), (5, 4)]
    files = {
        "A": [f"{a}, {b}" for a, b in edges],
        "graph_indicator": ["1", "1", "1", "2", "2"],
        "graph_labels": ["1", "-1"],
        "edge_labels": ["0", "0", "1", "1", "0", "0", "1", "1"],
    }
    if node_labels:
        files["node_labels"] = ["0", "1", "2", "1", "1"]
        files["node_attributes"] = ["0.5", "1.5", "2.5", "3.5", "4.5"]
    for part, lines in files.items():
        (folder / f"{name}_{part}.txt").write_text("\n".join(lines) + "\n")


def test_a_real_set_is_read_from_a_folder_that_is_never_written(tmp_path):
    write_tu_files(tmp_path, "MUTAG")
    files = sorted(tmp_path.rglob("*"))
    graph_set = load_graph_set("mutag", root=tmp_path)
    assert sorted(tmp_path.rglob("*")) == files
    triangle, path = graph_set.graphs
    assert (graph_set.name, graph_set.is_stand_in, graph_set.scale) == ("MUTAG", False, None)
    assert triangle.y.tolist() == [1]
    assert path.y.tolist() == [0]
    assert triangle.x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]  # labels, no attributes
    assert path.x.tolist() == [[0, 1, 0], [0, 1, 0]]
    assert sorted(triangle.edge_index.t().tolist()) == [
        [0, 1],
        [0, 2],
        [1, 0],
        [1, 2],
        [2, 0],
        [2, 1],
    ]
    assert path.edge_index.tolist() == [[0, 1], [1, 0]]
    assert path.edge_attr.tolist() == [[0, 1], [0, 1]]
    assert not graph_set.degree_features


def test_nodes_without_features_get_their_degree(tmp_path, monkeypatch):
    write_tu_files(tmp_path, "IMDB-BINARY", node_labels=False)
    graph_set = load_graph_set("IMDB-BINARY", root=tmp_path)
    assert graph_set.degree_features
    assert graph_set.graphs[0].x.tolist() == [[0, 0, 1]] * 3
    assert graph_set.graphs[1].x.tolist() == [[0, 1, 0]] * 2
    monkeypatch.setattr(graph_sets, "MOST_DEGREES", 2)
    standardised = torch.cat([g.x for g in load_graph_set("IMDB-BINARY", root=tmp_path).graphs])
    degrees = torch.tensor([2.0, 2, 2, 1, 1])
    expected = (degrees - degrees.mean()) / degrees.std()
    assert torch.allclose(standardised.view(-1), expected)


def test_a_real_set_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_graph_set("PROTEINS")
    assert str(caught.value) == (
        "dataset=PROTEINS is real data that is not on this machine (no --root was given): give "
        "--root FOLDER that holds PROTEINS/raw/PROTEINS_*.txt, add --download to fetch it into "
        "that folder, or use --dataset proteins-like, a stand-in of its shape."
    )
    write_tu_files(tmp_path, "MUTAG")
    (tmp_path / "MUTAG" / "raw" / "MUTAG_A.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"MUTAG_A\.txt is missing"):
        load_graph_set("MUTAG", root=tmp_path)


def test_a_download_happens_only_when_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        graph_sets, "TUDataset", lambda root, name: write_tu_files(Path(root), name)
    )
    with pytest.raises(FileNotFoundError):
        load_graph_set("NCI1", root=tmp_path)
    assert len(load_graph_set("NCI1", root=tmp_path, download=True).graphs) == 2
    assert "Downloading NCI1 into" in capsys.readouterr().err

    def refuse(root: str, name: str) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(graph_sets, "TUDataset", refuse)
    with pytest.raises(ConnectionError, match=r"DD cannot be downloaded .*unreachable"):
        load_graph_set("DD", root=tmp_path, download=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "mutag"}, None),
        ({"name": "MUTAGX"}, "dataset='MUTAGX' is unknown; give one of MUTAG, .*proteins-like"),
        ({"name": "mutag-like", "scale": 0.1}, r"leaves 19 graphs .*at least 0\.106"),
        ({"name": "mutag-like", "scale": -1}, "scale=-1 must be a positive number"),
        ({"name": "MUTAG", "scale": 0.5}, "only the '-like' stand-ins can be scaled"),
        ({"name": "mutag-like", "seed": -1}, "seed=-1 must not be negative"),
    ],
)
def test_a_bad_argument_is_refused(arguments, sentence):
    error = FileNotFoundError if sentence is None else ValueError
    with pytest.raises(error, match=sentence):
        load_graph_set(**arguments)


def test_the_fingerprint_depends_on_edges_features_classes_and_their_order():
    def graph(edge: tuple[int, int], feature: float, label: int) -> Data:
        edge_index = torch.tensor([[edge[0]], [edge[1]]])
        return Data(x=torch.full((2, 1), feature), edge_index=edge_index, y=torch.tensor([label]))

    base = [graph((0, 1), 1.0, 0), graph((1, 0), 2.0, 1)]
    others = [
        [graph((1, 0), 1.0, 0), base[1]],
        [graph((0, 1), 1.5, 0), base[1]],
        [base[0], graph((1, 0), 2.0, 0)],
        base[::-1],
    ]
    hashes = {take_set_fingerprint(graphs).sha256 for graphs in [base, *others]}
    assert len(hashes) == 5
