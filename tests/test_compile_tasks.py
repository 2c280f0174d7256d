"""The tasks of the compile study: what is called, trained and judged, on planted data."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from benchmark.compile import inputs, registry, tasks
from benchmark.compile.dgl_adapter import dgl_available
from benchmark.compile.inputs import GraphInputs, LinkInputs, TripleInputs
from benchmark.compile.modules import (
    DistMult,
    GraphModel,
    LinkModel,
)
from benchmark.compile.registry import (
    FRAMEWORKS,
    VARIANTS,
    DatasetEntry,
)
from benchmark.compile.tasks import WorkloadSettings, build_workload
from tests import compile_workloads
from tests.compile_workloads import (
    CLASSES,
    NODES,
    WIDTH,
    by_framework,
    random_edges,
)
from torch import Tensor, nn
from torch_geometric.data import Data

from gnnprof import _dynamo

one_thread_and_own_random_state = compile_workloads.one_thread_and_own_random_state
entries = compile_workloads.entries
planted = compile_workloads.planted
pytestmark = pytest.mark.usefixtures("one_thread_and_own_random_state")


# --- tasks ---------------------------------------------------------------------------------------


def test_both_frameworks_start_and_train_alike(planted):
    curves = {}
    for framework in FRAMEWORKS if dgl_available()[0] else ("pyg",):
        for variant in VARIANTS:
            workload = planted("GCN", variant, framework=framework, layers=3, seed=3)
            curves[framework, variant] = workload.fit(workload.model, 5)
    first = curves["pyg", "fixes"]
    assert first[-1] < first[0]
    for curve in curves.values():  # dropout included: the same random numbers
        assert curve == pytest.approx(first, rel=1e-3)


def test_a_workload_leaves_the_random_state_and_the_training_flag(planted):
    before = torch.random.get_rng_state()
    workload = planted("GIN", layers=2)
    workload.model.eval()
    workload.model.convs[0].train()
    flags = [module.training for module in workload.model.modules()]
    workload.fit(workload.model, 2)
    workload.evaluate(workload.model)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in workload.model.modules()] == flags


def test_a_training_step_trains_the_model_it_is_called_with(planted):
    workload = planted("GCN", layers=2, dropout=0.0, lr=0.1)
    mine = copy.deepcopy(workload.model.state_dict())
    other = copy.deepcopy(workload.model)
    losses = [float(workload.train_step(other, *workload.args)) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        out = copy.deepcopy(workload.model)(*workload.args)
    expected = nn.functional.cross_entropy(out[::2], workload.inputs.y[::2])
    assert losses[0] == pytest.approx(float(expected))  # of the training nodes only
    for key, tensor in workload.model.state_dict().items():
        assert torch.equal(tensor, mine[key])


class Fixed(nn.Module):
    """A model that always gives the same."""

    def __init__(self, out: Tensor) -> None:
        super().__init__()
        self.out = out

    def forward(self, *args: object) -> Tensor:
        return self.out


def test_accuracy_is_of_the_test_nodes(planted):
    workload = planted("GCN")
    scores = nn.functional.one_hot(workload.inputs.y, CLASSES).float()
    scores[0] = scores[2] = -scores[0]  # training nodes: of no account
    scores[1:11:2] = -scores[1:11:2]  # 5 of the 20 test nodes
    assert workload.evaluate(Fixed(scores)).value == 0.75
    assert workload.metric == "accuracy"
    edges = workload.inputs.edges.edge_index.size(1)
    assert workload.counts == tasks.Counts("nodes", NODES, NODES, edges, edges)


def test_the_data_record_is_the_same_for_all_variants(tmp_path):
    records = [
        build_workload(
            WorkloadSettings("pyg", model, "cora-like", variant, hidden=8, layers=1, scale=0.05)
        ).data_record()
        for model in ("GCN", "GAT")
        for variant in VARIANTS
    ]
    assert all(record == records[0] for record in records)
    assert records[0]["is_stand_in"]
    assert len(records[0]["fingerprint"]["sha256"]) == 64


def test_amp_is_inside_the_model_and_gives_float32(planted):
    exact = planted("GraphSAGE", layers=2)
    rough = planted("GraphSAGE", layers=2, amp=True)
    seen = []
    rough.model.model.convs[0].register_forward_hook(lambda *call: seen.append(call[2].dtype))
    exact.model.eval()
    rough.model.eval()
    a, b = exact.model(*exact.args), rough.model(*rough.args)
    assert (seen, b.dtype) == ([torch.bfloat16], torch.float32)
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)
    assert not torch.is_autocast_enabled("cpu")


def link_inputs(metric: str) -> LinkInputs:
    edges = random_edges()
    pairs = edges.edge_index
    shape = (30, 2) if metric == "hits@50" else (10, 6)
    return LinkInputs(
        record={"name": "pairs", "is_stand_in": True, "fingerprint": {}, "task": "link"},
        x=torch.randn(NODES, WIDTH),
        edges=edges,
        train=pairs[:, :100],
        test=pairs[:, 100:110],
        test_negatives=torch.randint(0, NODES, shape),
        metric=metric,
    )


def test_link_prediction(entries):
    data = link_inputs("mrr")
    registry.register_dataset(DatasetEntry("pairs", "link", lambda **request: data))
    workload = build_workload(
        WorkloadSettings("pyg", "GraphSAGE", "pairs", "fixes", hidden=8, batch_size=30, layers=2)
    )
    assert isinstance(workload.model, LinkModel)
    batches = list(workload.batches())
    assert [batch[0].shape for batch in batches] == [(2, 60)] * 3  # the last 10 edges are left out
    train = {tuple(pair) for pair in data.train.t().tolist()}
    for pairs, *_ in batches:
        assert all(tuple(pair) in train for pair in pairs[:, :30].t().tolist())
    out = torch.tensor([2.0, 0.0, -1.0, 3.0])  # two edges, two others
    expected = (math.log1p(math.exp(-2)) + math.log(2)) / 2 + (
        math.log1p(math.exp(-1)) + math.log1p(math.exp(3))
    ) / 2
    assert float(workload.loss(out, ())) == pytest.approx(expected)
    assert workload.counts == tasks.Counts("pairs", 60, 60, *[data.edges.edge_index.size(1)] * 2)
    quality = workload.evaluate(workload.model)
    workload.model.eval()
    z = workload.model.encoder(*workload.graph).detach()
    ranks = []
    for column, others in enumerate(data.test_negatives):
        source, target = data.test[:, column].tolist()
        true = float(z[source] @ z[target])
        false = [float(z[source] @ z[other]) for other in others.tolist()]
        above = sum(score > true for score in false) + 0.5 * sum(score == true for score in false)
        ranks.append(1 + above)
    assert quality.metric == "mrr"
    assert quality.value == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks))


def test_hits_at_50(entries, monkeypatch):
    data = link_inputs("hits@50")
    data = replace(data, test_negatives=torch.randint(0, NODES, (200, 2)))
    registry.register_dataset(DatasetEntry("pairs", "link", lambda **request: data))
    workload = build_workload(
        WorkloadSettings("pyg", "GCN", "pairs", "no-fixes", hidden=8, batch_size=30, layers=1)
    )
    quality = workload.evaluate(workload.model)
    z = workload.model.eval().encoder(*workload.graph).detach()
    false = sorted((float(z[a] @ z[b]) for a, b in data.test_negatives.tolist()), reverse=True)
    true = [float(z[a] @ z[b]) for a, b in data.test.t().tolist()]
    assert quality.value == sum(score > false[49] for score in true) / len(true)


def test_knowledge_graphs(entries):
    true = torch.tensor([[0, 0, 1], [1, 1, 2], [2, 0, 3], [3, 1, 0], [4, 0, 2]])
    data = TripleInputs(
        record={"name": "facts", "is_stand_in": True, "fingerprint": {}, "task": "kg"},
        num_entities=6,
        num_relations=2,
        train=true,
        test=true[:2],
        test_heads=torch.tensor([[2, 3, 4], [0, 4, 5]]),
        test_tails=torch.tensor([[2, 3, 5], [0, 4, 5]]),
        head_mask=torch.tensor([[True, True, False], [True, True, True]]),
        tail_mask=None,
    )
    registry.register_dataset(DatasetEntry("facts", "kg", lambda **request: data))
    for framework in FRAMEWORKS:  # pure torch: DGL need not be there
        workload = build_workload(
            WorkloadSettings(framework, "DistMult", "facts", hidden=4, batch_size=2, dropout=0.0)
        )
        model = workload.model
        assert isinstance(model, DistMult)
        (triples,) = workload.args
        assert triples.shape == (2, 33, 3)
        known = {tuple(row) for row in true.tolist()}
        assert all(tuple(row) in known for row in triples[:, 0].tolist())
        assert (triples[:, :, 1] == triples[:, :1, 1]).all()
        assert (triples[:, 1:17, 2] == triples[:, :1, 2]).all()  # other heads
        assert (triples[:, 17:, 0] == triples[:, :1, 0]).all()  # other tails
        assert workload.counts == tasks.Counts("triplets", 66, 66, None, None)
        e, r = model.entities.weight.detach(), model.relations.weight.detach()
        by_hand = sum(float(e[4, i] * r[0, i] * e[2, i]) for i in range(4))
        assert score(model, [4, 0, 2]) == pytest.approx(by_hand)
        losses = workload.fit(model, 40)
        assert losses[-1] < losses[0]
        quality = workload.evaluate(model)
        assert quality.value == pytest.approx(brute_force_mrr(model, data))


def score(model: nn.Module, triple: list[int]) -> float:
    with torch.no_grad():
        return float(model(torch.tensor(triple)))


def brute_force_mrr(model: nn.Module, data: TripleInputs) -> float:
    def rank(row: list[int], end: int, others: list[int]) -> float:
        true = score(model, row)
        false = [score(model, [*row[:end], other, *row[end + 1 :]]) for other in others]
        return 1 + sum(f > true for f in false) + 0.5 * sum(f == true for f in false)

    ranks = [rank([0, 0, 1], 0, [2, 3]), rank([1, 1, 2], 0, [0, 4, 5])]
    ranks += [rank([0, 0, 1], 2, [2, 3, 5]), rank([1, 1, 2], 2, [0, 4, 5])]
    return sum(1 / r for r in ranks) / 4


def ring(nodes: int, label: int) -> Data:
    steps = torch.arange(nodes)
    return Data(
        x=torch.randn(nodes, WIDTH),
        edge_index=torch.stack([steps, (steps + 1) % nodes]),
        y=torch.tensor([label]),
    )


@by_framework
def test_graph_classification(entries, framework):
    graphs = [ring(3 + i % 4, i % 2) for i in range(20)]
    data = GraphInputs(
        {"name": "rings", "is_stand_in": True, "fingerprint": {}, "task": "graph"}, graphs, WIDTH, 2
    )
    registry.register_dataset(DatasetEntry("rings", "graph", lambda **request: data))
    workload = build_workload(
        WorkloadSettings(framework, "GIN", "rings", hidden=8, batch_size=6, layers=2, dropout=0.0)
    )
    assert isinstance(workload.model, GraphModel)
    assert [len(args[0]) for args in workload.batches()].count(6) == 2  # 16 graphs: 6, 6 and 4
    assert [label for label, _ in workload.shapes] == ["batch 1", "batch 2"]
    assert workload.counts.unit == "graphs"
    assert workload.counts.inference == 6
    assert workload.counts.edges_inference == workload.args[2].size(0)  # rings: as many as nodes
    workload.model.eval()
    _, assignment, x, *graph = workload.args
    out = workload.model(*workload.args)
    nodes = workload.model.encoder(x, *graph)
    for number in range(6):
        pooled = nodes[assignment == number].sum(dim=0)
        torch.testing.assert_close(out[number], workload.model.head(pooled))
    losses = workload.fit(workload.model, 30)
    assert losses[-1] < losses[0]
    test = workload._test[0][1]  # a fifth of 20 graphs
    right = int((workload.model(*test).argmax(dim=-1) == test[0]).sum())
    assert workload.evaluate(workload.model).value == right / 4


# --- sampled -------------------------------------------------------------------------------------


@by_framework
@pytest.mark.parametrize("model", ["GraphSAGE", "GIN", "GAT", "RGCN"])
def test_all_neighbours_give_the_outputs_of_the_whole_graph(planted, framework, model):
    """But for GCN, whose weights need the degrees of nodes at the rim."""
    whole = planted(model, framework=framework, layers=2)
    parts = planted(
        model, framework=framework, layers=2, sampled=True, num_neighbors=(-1,), batch_size=7
    )
    whole.model.eval()
    parts.model.eval()
    expected = whole.model(*whole.args)[whole.inputs.train]
    by_class = []
    order = []
    for batch in parts._neighborhoods(parts.inputs.train, shuffle=True):
        args = parts._gather(batch)
        by_class.append(parts.model(*args))
        order.append(batch.nodes[: batch.num_seeds])
    order = torch.cat(order)
    assert sorted(order.tolist()) == parts.inputs.train.tolist()
    position = {int(node): row for row, node in enumerate(whole.inputs.train)}
    rows = [position[int(node)] for node in order]
    torch.testing.assert_close(torch.cat(by_class), expected[rows], rtol=1e-4, atol=1e-5)


@by_framework
def test_sampled_edges_are_edges_and_no_node_is_expanded_twice(planted, framework):
    workload = planted(
        "GraphSAGE", framework=framework, layers=3, sampled=True, num_neighbors=(2,), batch_size=4
    )
    edges = workload.inputs.edges.edge_index
    in_degree = torch.bincount(edges[1], minlength=NODES)
    met = 0
    for batch in workload._neighborhoods(workload.inputs.train, shuffle=True):
        assert len(batch.nodes.unique()) == len(batch.nodes)
        assert torch.equal(batch.nodes[batch.edge_index], edges[:, batch.edges])
        assert len(batch.edges.unique()) == len(batch.edges)
        drawn = torch.bincount(batch.edge_index[1], minlength=len(batch.nodes))
        wanted = in_degree[batch.nodes].clamp(max=2)
        assert ((drawn == wanted) | (drawn == 0)).all()
        assert (drawn[: batch.num_seeds] == wanted[: batch.num_seeds]).all()
        met += int((drawn > 0).sum())
    assert met > 20


@by_framework
def test_a_sampled_workload_trains_and_is_judged(planted, framework):
    workload = planted(
        "GAT", "fixes", framework=framework, layers=2, sampled=True, batch_size=8, dropout=0.0
    )
    y = workload.args[0]
    assert workload.counts.inference == len(y) == 8
    assert workload.model(*workload.args).shape == (8, CLASSES)
    assert [label for label, _ in workload.shapes] == ["batch 1", "batch 2"]  # 20 seeds: 8, 8, 4
    losses = workload.fit(workload.model, 12)
    assert losses[-1] < 0.8 * losses[0]
    again = planted(
        "GAT", "fixes", framework=framework, layers=2, sampled=True, batch_size=8, dropout=0.0
    )
    assert again.fit(again.model, 12) == losses
    assert 0 <= workload.evaluate(workload.model).value <= 1


def test_loader_times_are_told_apart(planted, fake_clock, monkeypatch):
    workload = planted("GraphSAGE", layers=1, sampled=True, batch_size=5, num_neighbors=(3,))
    gather, move, compute = workload._gather, workload.to_device, workload._compute
    delays = iter([9.0, 9.0, 9.0] + [1.0, 0.25, 3.0, 2.0, 0.5, 3.0, 1.0, 0.25, 4.0])

    def slow(function):
        def call(*args):
            fake_clock.advance(next(delays))
            return function(*args)

        return call

    monkeypatch.setattr(workload, "_gather", slow(gather))
    monkeypatch.setattr(workload, "to_device", slow(move))
    monkeypatch.setattr(workload, "_compute", slow(compute))
    times = workload.loader_times(workload.model, 3)
    assert times.to_dict() == {
        "sampling_seconds": 1.0,
        "transfer_seconds": 0.25,
        "compute_seconds": 3.0,
        "end_to_end_seconds": 5.25,
        "batches": 3,
        "compiling_batches": 0,
        "fell_back": False,
    }
    assert planted("GraphSAGE").loader_times(nn.Identity()) is None


def slow_to_compile(clock):
    def backend(graph, inputs):
        clock.advance(100.0)
        return graph

    return backend


@pytest.fixture
def every_compilation_on_record():
    """As a case has it: by itself torch keeps 64 records, which earlier tests may have filled."""
    with _dynamo.compiler_state_kept():
        yield


@pytest.mark.usefixtures("every_compilation_on_record")
def test_batches_in_which_code_is_compiled_are_left_out(planted, fake_clock):
    workload = planted("GraphSAGE", layers=1, sampled=True, batch_size=5, num_neighbors=(3,))
    model = torch.compile(workload.model, backend=slow_to_compile(fake_clock), dynamic=False)
    times = workload.loader_times(model, 4)
    assert (times.compute_seconds, times.end_to_end_seconds, times.batches) == (0.0, 0.0, 4)
    assert times.compiling_batches > 0  # batches of other sizes
    # In the first batch, and in all of these but one that reached the limit.
    assert fake_clock.now >= 1000.0 + 100.0 * times.compiling_batches


@pytest.mark.usefixtures("every_compilation_on_record")
def test_batches_that_reach_the_recompile_limit_are_said_to_run_eagerly(planted, fake_clock):
    workload = planted("GraphSAGE", layers=1, sampled=True, batch_size=5, num_neighbors=(3,))
    with torch._dynamo.config.patch(recompile_limit=2):
        model = torch.compile(workload.model, backend="eager", dynamic=False)
        assert workload.loader_times(model, 10).fell_back


@pytest.mark.usefixtures("every_compilation_on_record")
def test_batches_that_never_stop_compiling_end(planted, fake_clock, monkeypatch):
    workload = planted("GraphSAGE", layers=1, sampled=True, batch_size=5, num_neighbors=(3,))
    monkeypatch.setattr("benchmark.compile.sampled.MOST_COMPILING", 2)

    def anew(*args):
        torch._dynamo.reset()
        return torch.compile(workload.model, backend="eager")(*args)

    with pytest.raises(RuntimeError, match="code was compiled in 3 batches"):
        workload.loader_times(anew, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"dropout": 1.0}, r"dropout=1.0 must be at least 0 and below 1"),
        ({"num_neighbors": ()}, r"num_neighbors=\(\) must hold"),
        ({"num_neighbors": (5, 0)}, "a positive number per hop, or -1"),
    ],
)
def test_bad_numbers_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        WorkloadSettings("pyg", "GCN", "cora-like", **changes)


def test_fan_outs_have_one_number_per_layer():
    settings = WorkloadSettings("pyg", "GCN", "cora-like", num_neighbors=(15, 10), layers=4)
    assert settings.fan_outs() == [15, 10, 10, 10]
    assert replace(settings, layers=1).fan_outs() == [15]


# --- the data sets of the study ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "model", "scale"),
    [
        ("pubmed-like", "GCN", 0.02),
        ("mag-like", "RGCN", 0.004),
        ("collab-like", "GraphSAGE", 0.005),
        ("citation2-like", "GraphSAGE", 0.0005),
        ("biokg-like", "DistMult", 0.007),
        ("mutag-like", "GIN", 0.3),
    ],
)
def test_every_kind_of_data_runs(dataset, model, scale):
    workload = build_workload(
        WorkloadSettings("pyg", model, dataset, hidden=8, layers=2, scale=scale, batch_size=32)
    )
    loss = workload.train_step(workload.model, *workload.args)
    assert torch.isfinite(loss)
    record = workload.data_record()
    assert (record["name"], record["is_stand_in"]) == (dataset, True)
    assert record["task"] == registry.get_dataset(dataset).task
    assert record["fingerprint"]
    assert workload.evaluate(workload.model).metric == workload.metric


def test_every_registered_data_set_is_known_to_its_loader():
    from benchmark import datasets, graph_sets, hetero_data, knowledge_graphs, link_data

    known = {
        "node": datasets.NAMES,
        "hetero": hetero_data.HETERO_NAMES,
        "link": link_data.LINK_NAMES,
        "kg": knowledge_graphs.KNOWLEDGE_GRAPH_NAMES,
        "graph": graph_sets.GRAPH_SET_NAMES,
    }
    for task, names in known.items():
        registered = [
            name for name in registry.dataset_names() if registry.get_dataset(name).task == task
        ]
        assert sorted(registered) == sorted(names)


def test_a_heterogeneous_graph_becomes_one_of_typed_edges():
    from benchmark.hetero_data import load_hetero_dataset

    data = load_hetero_dataset("mag-like", scale=0.004, reverse_edges=True).data
    typed = inputs.load_typed_nodes("mag-like", scale=0.004)
    assert typed.edges.num_relations == len(data.edge_types)
    papers = data["paper"].num_nodes
    first = {"paper": 0}
    count = papers
    for node_type in data.node_types:
        if node_type != "paper":
            first[node_type] = count
            count += data[node_type].num_nodes
    assert typed.edges.num_nodes == count == papers + typed.num_embeddings
    for relation, (source, _, target) in enumerate(data.edge_types):
        chosen = typed.edges.edge_index[:, typed.edges.edge_type == relation]
        shift = torch.tensor([[first[source]], [first[target]]])
        assert torch.equal(chosen - shift, data[data.edge_types[relation]].edge_index)
