"""Link prediction: metrics against hand values, splits without leaks, knowledge graphs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmark import knowledge_graphs, link_data, link_evaluation, planted_triples
from benchmark.knowledge_graphs import KnowledgeGraph, Triples, load_knowledge_graph
from benchmark.link_data import LinkDataset, load_link_dataset
from benchmark.link_evaluation import (
    Evaluation,
    evaluate,
    hits_at_k,
    mean_reciprocal_rank,
    reciprocal_ranks,
)
from benchmark.ogb_data import ogb_version
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

UMLS_ROOT = Path(__file__).parents[2] / "shared" / "data"
needs_umls = pytest.mark.skipif(
    not (UMLS_ROOT / "umls").is_dir(), reason="the UMLS files are not on this machine"
)


@pytest.fixture(autouse=True)
def without_ogb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge by our own evaluator even where ogb is installed."""
    monkeypatch.setattr(link_evaluation, "ogb_version", lambda: None)


# --- metrics -------------------------------------------------------------------------------------


def test_hits_count_the_positives_above_the_kth_negative():
    positive = torch.tensor([0.95, 0.8, 0.7, 0.5])
    negative = torch.tensor([0.1, 0.9, 0.7, 0.3])
    assert hits_at_k(positive, negative, 1) == 1 / 4  # above 0.9
    assert hits_at_k(positive, negative, 2) == 2 / 4  # above 0.7; equal is not above
    assert hits_at_k(positive, negative, 3) == 1.0  # above 0.3
    assert hits_at_k(positive, negative, 5) == 1.0  # there are only four


def test_a_rank_is_the_middle_of_the_best_and_the_worst_it_could_be():
    negative = torch.tensor([[1.0, 2.0, 3.0], [1.0, 5.0, 5.0], [9.0, 9.0, 9.0], [4.0, 4.0, 4.0]])
    positive = torch.tensor([4.0, 5.0, 0.0, 4.0])
    # Ranks: 1; between 1 and 3, so 2; 4; between 1 and 4, so 2.5.
    assert reciprocal_ranks(positive, negative).tolist() == pytest.approx(
        [1, 1 / 2, 1 / 4, 1 / 2.5]
    )
    assert mean_reciprocal_rank(positive, negative) == pytest.approx((1 + 0.5 + 0.25 + 0.4) / 4)


def test_a_negative_of_minus_infinity_does_not_count():
    negative = torch.tensor([[5.0, float("-inf")]])
    assert mean_reciprocal_rank(torch.tensor([4.0]), negative) == 1 / 2


def test_an_evaluation_says_whose_code_computed_it():
    positive, negative = torch.tensor([2.0, 0.0]), torch.tensor([1.0, -1.0])
    assert evaluate("hits@1", positive, negative) == Evaluation("hits@1", 0.5, "gnnprof")
    per_positive = torch.tensor([[1.0], [1.0]])
    assert evaluate("mrr", positive, per_positive) == Evaluation("mrr", 0.75, "gnnprof")


class FakeEvaluator:
    """OGB's interface, with figures of its own."""

    K = 50

    def __init__(self, name: str) -> None:
        self.name = name

    def eval(self, scores: dict[str, torch.Tensor]) -> dict[str, Any]:
        assert set(scores) == {"y_pred_pos", "y_pred_neg"}
        if self.name == "ogbl-citation2":
            return {"mrr_list": torch.tensor([0.25, 0.75])}
        return {f"hits@{self.K}": 0.125}


def test_ogbs_evaluator_is_used_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(link_evaluation, "ogb_version", lambda: "1.3.6")
    fake = SimpleNamespace(Evaluator=FakeEvaluator)
    monkeypatch.setattr(link_evaluation, "import_ogb", lambda part: fake)
    scores, pairs = torch.ones(2), torch.ones(2, 3)
    assert evaluate("mrr", scores, pairs) == Evaluation("mrr", 0.5, "ogb 1.3.6")
    assert evaluate("hits@20", scores, scores) == Evaluation("hits@20", 0.125, "ogb 1.3.6")


@pytest.mark.skipif(ogb_version() is None, reason="ogb is not installed")
def test_ours_agree_with_ogbs_also_on_ties(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    positive = torch.randint(20, (100,), generator=generator).float()
    negative = torch.randint(20, (100, 30), generator=generator).float()
    ours = evaluate("mrr", positive, negative), evaluate("hits@50", positive, negative[:, 0])
    monkeypatch.setattr(link_evaluation, "ogb_version", ogb_version)
    theirs = evaluate("mrr", positive, negative), evaluate("hits@50", positive, negative[:, 0])
    assert [each.value for each in ours] == pytest.approx([each.value for each in theirs])
    assert theirs[0].evaluator.startswith("ogb ")


@pytest.mark.parametrize(
    ("metric", "positive", "negative", "sentence"),
    [
        ("auc", (2,), (2,), "metric='auc' is unknown; give 'mrr' or 'hits@K'"),
        ("hits@0", (2,), (2,), "metric='hits@0' is unknown"),
        ("mrr", (2,), (3, 4), r"negatives \[2, K\]; got \[2\] and \[3, 4\]"),
        ("mrr", (0,), (0, 4), "one positive score or more"),
        ("hits@50", (2,), (2, 4), r"negatives \[N\]; got \[2\] and \[2, 4\]"),
    ],
)
def test_scores_of_other_shapes_are_refused(metric, positive, negative, sentence):
    with pytest.raises(ValueError, match=sentence):
        evaluate(metric, torch.ones(positive), torch.ones(negative))


# --- graphs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collab() -> LinkDataset:
    return load_link_dataset("collab-like", scale=0.02)


@pytest.fixture(scope="module")
def citation() -> LinkDataset:
    return load_link_dataset("citation2-like", scale=0.002)


def pairs_of(edges: torch.Tensor) -> set[tuple[int, int]]:
    return {(a, b) for a, b in edges.tolist()}


def test_collab_like_has_the_counts_of_ogbl_collab(collab):
    assert collab.data.num_nodes == round(235_868 * 0.02)
    assert len(collab.valid.edges) == round(60_084 * 0.02)
    assert len(collab.test.edges) == round(46_329 * 0.02)
    total = sum(len(part.edges) for part in (collab.train, collab.valid, collab.test))
    assert total == round(1_285_465 * 0.02)
    assert collab.valid.negatives.shape == collab.test.negatives.shape == (2_000, 2)
    assert collab.train.negatives is None
    assert collab.metric == "hits@50"
    assert collab.data.x.shape[1] == 128


def test_only_training_edges_are_in_the_graph_and_no_part_leaks_into_another(collab):
    train, valid, test = (
        pairs_of(part.edges) for part in (collab.train, collab.valid, collab.test)
    )
    assert train.isdisjoint(valid | test)
    assert valid.isdisjoint(test)
    both_ways = train | {(b, a) for a, b in train}
    assert pairs_of(collab.data.edge_index.t()) == both_ways
    assert torch.equal(coalesce(collab.data.edge_index), collab.data.edge_index)
    every = both_ways | valid | test | {(b, a) for a, b in valid | test}
    for negatives in (collab.valid.negatives, collab.test.negatives):
        assert not pairs_of(negatives) & every
        assert not (negatives[:, 0] == negatives[:, 1]).any()
        assert int(negatives.max()) < collab.data.num_nodes


def test_citation2_like_takes_one_edge_of_each_chosen_source_for_each_part(citation):
    assert citation.data.num_nodes == round(2_927_963 * 0.002)
    assert len(citation.valid.edges) == len(citation.test.edges) == round(86_596 * 0.002)
    assert torch.equal(citation.valid.edges[:, 0], citation.test.edges[:, 0])
    assert len(citation.valid.edges[:, 0].unique()) == len(citation.valid.edges)
    assert citation.metric == "mrr"
    train, valid, test = (
        pairs_of(part.edges) for part in (citation.train, citation.valid, citation.test)
    )
    assert len(train) + len(valid) + len(test) == round(30_561_187 * 0.002)
    assert train.isdisjoint(valid | test)
    assert valid.isdisjoint(test)
    assert pairs_of(citation.data.edge_index.t()) == train
    known = train | valid | test
    for part in (citation.valid, citation.test):
        assert part.negatives.shape == (len(part.edges), 1_000)
        for edge, negatives in zip(part.edges[:40], part.negatives[:40], strict=True):
            source = int(edge[0])
            false = {(source, target) for target in negatives.tolist()}
            assert false.isdisjoint(known)
            assert (source, source) not in false


def neighborhood_scores(data: Data, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Common neighbours of pairs, the classic untrained baseline."""
    around = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.bool)
    around[data.edge_index[0], data.edge_index[1]] = True
    around |= around.t().clone()
    return torch.stack(
        [(around[s] & around[t]).sum() for s, t in zip(sources, targets, strict=True)]
    ).float()


def test_communities_tell_of_held_out_edges(collab, citation):
    edges, negatives = collab.test.edges, collab.test.negatives
    positive = neighborhood_scores(collab.data, *edges.t())
    negative = neighborhood_scores(collab.data, *negatives.t())
    # Chance is 50 of 2,000 negatives. Ties at small counts hold the baseline down.
    assert evaluate("hits@50", positive, negative).value > 0.1
    row, targets = citation.test.edges[:50], citation.test.negatives[:50, :20]
    positive = neighborhood_scores(citation.data, *row.t())
    sources = row[:, :1].expand(-1, 20).reshape(-1)
    negative = neighborhood_scores(citation.data, sources, targets.reshape(-1)).view(50, 20)
    chance = sum(1 / rank for rank in range(1, 22)) / 21
    assert evaluate("mrr", positive, negative).value > chance + 0.2


def test_one_seed_gives_one_graph_on_every_platform(collab, citation):
    assert collab.fingerprint.sha256[:12] == "d84565b89420"
    assert citation.fingerprint.sha256[:12] == "80cfe7373be5"
    other = load_link_dataset("collab-like", scale=0.02, seed=1)
    assert other.fingerprint.sha256 != collab.fingerprint.sha256
    assert collab.to_dict() == {
        "name": "collab-like",
        "is_stand_in": True,
        "scale": 0.02,
        "metric": "hits@50",
        "fingerprint": collab.fingerprint.to_dict(),
    }
    assert str(collab.fingerprint).startswith("4,717 nodes, 23,580 + 1,202 + 927 edges, 128 ")


def test_real_graphs_are_given_with_the_official_split(tmp_path, monkeypatch):
    graph = Data(x=torch.ones(6, 2), edge_index=torch.tensor([[0, 1], [1, 0]]))
    held_out = {"edge": torch.tensor([[2, 3]]), "edge_neg": torch.tensor([[4, 5], [3, 5]])}
    split = {"train": {"edge": torch.tensor([[0, 1]])}, "valid": held_out, "test": held_out}
    monkeypatch.setattr(link_data, "load_ogb", lambda request, stand_in: [graph])
    monkeypatch.setattr(link_data, "edge_split", lambda dataset: split)
    real = load_link_dataset("ogbl-collab", root=tmp_path)
    assert (real.name, real.is_stand_in, real.scale, real.metric) == (
        "ogbl-collab",
        False,
        None,
        "hits@50",
    )
    assert real.valid.negatives.tolist() == [[4, 5], [3, 5]]
    assert real.train.negatives is None

    pairs = {"source_node": torch.tensor([0, 1]), "target_node": torch.tensor([1, 2])}
    ranked = {**pairs, "target_node_neg": torch.tensor([[3, 4], [4, 5]])}
    split = {"train": pairs, "valid": ranked, "test": ranked}
    monkeypatch.setattr(link_data, "edge_split", lambda dataset: split)
    real = load_link_dataset("ogbl-citation2", root=tmp_path)
    assert real.test.edges.tolist() == [[0, 1], [1, 2]]
    assert real.test.negatives.tolist() == [[3, 4], [4, 5]]
    assert real.metric == "mrr"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "collab"}, "is unknown; give one of ogbl-collab, .*citation2-like"),
        ({"name": "collab-like", "scale": 0.001}, r"leaves 236 nodes .*at least 0\.0043"),
        ({"name": "ogbl-collab", "scale": 0.5}, "only the '-like' stand-ins can be scaled"),
    ],
)
def test_a_bad_argument_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_link_dataset(**arguments)


# --- knowledge graphs ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def biokg() -> KnowledgeGraph:
    return load_knowledge_graph("biokg-like", scale=0.008)


def triples_of(part: Triples) -> set[tuple[int, int, int]]:
    columns = zip(part.head.tolist(), part.relation.tolist(), part.tail.tolist(), strict=True)
    return set(columns)


def type_of(graph: KnowledgeGraph, entity: int) -> str:
    return next(kind for kind, (begin, end) in graph.entity_types.items() if begin <= entity < end)


def test_biokg_like_has_the_types_relations_and_split_of_ogbl_biokg(biokg):
    counts = {kind: end - begin for kind, (begin, end) in biokg.entity_types.items()}
    assert counts == {
        "disease": round(10_687 * 0.008),
        "drug": round(10_533 * 0.008),
        "function": round(45_085 * 0.008),
        "protein": round(17_499 * 0.008),
        "sideeffect": round(9_969 * 0.008),
    }
    assert biokg.num_entities == sum(counts.values())
    assert biokg.num_relations == len(biokg.relation_names) == 51
    assert sum(name.startswith("drug-drug") for name in biokg.relation_names) == 38
    assert (len(biokg.valid), len(biokg.test)) == (1_303, 1_303)
    total = sum(map(len, (biokg.train, biokg.valid, biokg.test)))
    assert total == pytest.approx(5_088_434 * 0.008, rel=1e-3)
    assert torch.equal(biokg.train.relation.unique(), torch.arange(51))


def test_heads_and_tails_have_the_types_of_their_relation(biokg):
    for part in (biokg.train, biokg.test):
        for head, relation, tail in list(triples_of(part))[:500]:
            kinds = biokg.relation_names[relation].split("_")[0].split("-")
            assert [type_of(biokg, head), type_of(biokg, tail)] == kinds
            assert head != tail


def test_negatives_are_of_the_right_type_and_never_true(biokg):
    known = triples_of(biokg.train) | triples_of(biokg.valid) | triples_of(biokg.test)
    assert len(known) == sum(map(len, (biokg.train, biokg.valid, biokg.test)))
    part = biokg.test
    assert part.head_neg.shape == part.tail_neg.shape == (len(part), 40)  # half of 80 side effects
    assert part.head_neg_mask is None
    for i in range(0, len(part), 10):
        head, relation, tail = int(part.head[i]), int(part.relation[i]), int(part.tail[i])
        for other in part.head_neg[i].tolist():
            assert type_of(biokg, other) == type_of(biokg, head)
            assert (other, relation, tail) not in known
        for other in part.tail_neg[i].tolist():
            assert type_of(biokg, other) == type_of(biokg, tail)
            assert (head, relation, other) not in known
    assert biokg.train.head_neg is None


def test_training_triples_tell_of_the_held_out_ones(biokg):
    """Each relation's tails, counted over training heads that share a tail with the head."""
    size = biokg.num_entities
    part, relation = biokg.test, biokg.relation_names.index("function-function")
    chosen = part.relation == relation
    train = biokg.train.relation == relation
    joined = torch.zeros(size, size)
    joined[biokg.train.head[train], biokg.train.tail[train]] = 1
    scores = joined @ joined.t() @ joined  # heads that share tails, and what they are joined with
    positive = scores[part.head[chosen], part.tail[chosen]]
    negative = scores[part.head[chosen][:, None], part.tail_neg[chosen]]
    chance = sum(1 / rank for rank in range(1, 42)) / 41
    assert mean_reciprocal_rank(positive, negative) > 2 * chance


def test_one_seed_gives_one_knowledge_graph_on_every_platform(biokg):
    assert biokg.fingerprint.sha256[:12] == "d7338cb47cba"
    other = load_knowledge_graph("BioKG-like", scale=0.008, seed=1)
    assert other.fingerprint.sha256 != biokg.fingerprint.sha256
    assert biokg.to_dict() == {
        "name": "biokg-like",
        "is_stand_in": True,
        "scale": 0.008,
        "metric": "mrr",
        "fingerprint": biokg.fingerprint.to_dict(),
    }
    assert str(biokg.fingerprint).startswith("750 entities, 51 relations, ")


def write_umls(root: Path, valid: str = "a\tr\tc\n") -> None:
    folder = root / "umls"
    folder.mkdir(parents=True)
    (folder / "train.txt").write_text("a\tr\tb\nb\ts\tc\nc\tr\tb\n")
    (folder / "valid.txt").write_text(valid)
    (folder / "test.txt").write_text("b\ts\ta\n")


def test_umls_is_ranked_against_all_entities_that_do_not_make_a_true_triple(tmp_path):
    write_umls(tmp_path)
    graph = load_knowledge_graph("umls", root=tmp_path)
    assert (graph.num_entities, graph.num_relations) == (3, 2)  # a b c, r s
    assert graph.relation_names == ("r", "s")
    assert triples_of(graph.train) == {(0, 0, 1), (1, 1, 2), (2, 0, 1)}
    assert triples_of(graph.valid) == {(0, 0, 2)}
    assert graph.valid.head_neg.tolist() == graph.valid.tail_neg.tolist() == [[0, 1, 2]]
    assert graph.valid.head_neg_mask.tolist() == [[False, True, True]]  # only (a r c) is true
    assert graph.valid.tail_neg_mask.tolist() == [[True, False, False]]  # (a r b), (a r c) are
    assert graph.test.tail_neg_mask.tolist() == [[False, True, False]]  # (b s a), (b s c) are
    assert graph.train.head_neg is None
    assert not graph.is_stand_in


def test_umls_files_that_are_missing_or_malformed_are_named(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_knowledge_graph("UMLS", root=tmp_path, download=True)
    assert str(caught.value) == (
        f"dataset=UMLS is real data that is not on this machine ({tmp_path}/umls/train.txt is "
        "missing): give --root FOLDER that holds umls/train.txt, valid.txt, test.txt, or use "
        "--dataset biokg-like, a stand-in of its shape."
    )
    write_umls(tmp_path, valid="a\tr\tc\na r c\n")
    with pytest.raises(ValueError, match=r"valid\.txt has no three columns in triple 2"):
        load_knowledge_graph("UMLS", root=tmp_path)
    (tmp_path / "umls" / "valid.txt").write_text("")
    with pytest.raises(ValueError, match=r"valid\.txt is empty"):
        load_knowledge_graph("UMLS", root=tmp_path)


@needs_umls
def test_real_umls_has_its_published_counts():
    graph = load_knowledge_graph("UMLS", root=UMLS_ROOT)
    assert (graph.num_entities, graph.num_relations) == (135, 46)
    assert [len(part) for part in (graph.train, graph.valid, graph.test)] == [5_216, 652, 661]
    # A true triple never counts against itself.
    rows = torch.arange(661)
    assert not graph.test.head_neg_mask[rows, graph.test.head].any()
    assert not graph.test.tail_neg_mask[rows, graph.test.tail].any()
    assert 0.5 < float(graph.test.tail_neg_mask.float().mean()) < 1


def test_ogbl_biokg_gets_ids_of_all_types_in_one_row(tmp_path, monkeypatch):
    graph = SimpleNamespace(
        num_nodes_dict={"disease": 2, "drug": 3},
        edge_reltype={
            ("drug", "interacts", "drug"): torch.tensor([[1]]),
            ("disease", "treated", "drug"): torch.tensor([[0], [0]]),
        },
    )
    train = {
        "head_type": ["disease", "drug"],
        "head": torch.tensor([1, 0]),
        "relation": torch.tensor([0, 1]),
        "tail_type": ["drug", "drug"],
        "tail": torch.tensor([2, 1]),
    }
    ranked = {
        **train,
        "head_neg": torch.tensor([[0], [2]]),
        "tail_neg": torch.tensor([[1], [2]]),
    }
    monkeypatch.setattr(knowledge_graphs, "load_ogb", lambda request, stand_in: [graph])
    split = {"train": train, "valid": ranked, "test": ranked}
    monkeypatch.setattr(knowledge_graphs, "edge_split", lambda dataset: split)
    real = load_knowledge_graph("ogbl-biokg", root=tmp_path)
    assert real.entity_types == {"disease": (0, 2), "drug": (2, 5)}
    assert real.relation_names == ("treated", "interacts")
    assert triples_of(real.train) == {(1, 0, 4), (2, 1, 3)}
    assert real.test.head_neg.tolist() == [[0], [4]]
    assert real.test.tail_neg.tolist() == [[3], [4]]


def test_an_entity_without_false_tails_is_an_error_not_an_endless_loop(monkeypatch):
    monkeypatch.setattr(planted_triples, "MOST_ROUNDS", 3)
    triples = torch.tensor([[0, 0], [0, 0], [1, 2]]).numpy()  # one head, joined with both tails
    rng = planted_triples.np.random.default_rng(0)
    draw = planted_triples._Negatives(triples, {"a": (0, 1), "b": (1, 3)}, 2, rng)
    with pytest.raises(ValueError, match="give a larger scale"):
        draw(triples, 2)


def test_a_scale_too_small_for_a_knowledge_graph_is_refused():
    with pytest.raises(ValueError, match=r"leaves 50 entities of a type .*at least 0\.0061"):
        load_knowledge_graph("biokg-like", scale=0.005)
