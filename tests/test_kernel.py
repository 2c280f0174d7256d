"""Graph classification: networks, folds, durations, records, and what interruptions leave."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch_geometric.typing
from benchmark.classification import case_log, training
from benchmark.classification.case_log import SCHEMA, CaseLog
from benchmark.classification.classifier import Classifier, Score, Waiting
from benchmark.classification.training import Epoch, Loaders, Plan, fit, time_inference, warm_up
from benchmark.graph_sets import load_graph_set
from benchmark.kernel import sweep
from benchmark.kernel.datasets import fold_numbers, folds, loaders_of, three_parts
from benchmark.kernel.main_performance import COLUMNS, call_on_graphs, epochs_to_goal, spread
from benchmark.kernel.networks import NETWORKS, GraphShape, unsupported
from benchmark.kernel.networks.dense import masked_mean
from benchmark.kernel.networks.readout import sorted_length
from benchmark.kernel.settings import Case
from benchmark.kernel.statistics import Fold, best_sizes, fold_of, summary_of
from benchmark.reporting import cpu_threads
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_mean_pool

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ROOT / "benchmark" / "kernel"
SMOKE = ["--smoke", "--threads", "1"]
HERE = [name for name in NETWORKS if unsupported(name) is None]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(name: str) -> ModuleType:
    return importlib.import_module(f"benchmark.kernel.{name}")


def graph(nodes: int, label: int = 0, seed: int = 0) -> Data:
    """A ring with chords, and features that tell all nodes apart."""
    generator = torch.Generator().manual_seed(seed)
    ring = torch.arange(nodes)
    chords = torch.randint(nodes, (2, nodes // 2), generator=generator)
    edges = torch.cat([torch.stack([ring, (ring + 1) % nodes]), chords], dim=1)
    edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
    x = torch.rand(nodes, 4, generator=generator)
    return Data(x=x, edge_index=edges, y=torch.tensor([label]))


# --- networks ------------------------------------------------------------------------------------


def network(name: str, layers: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name](GraphShape(4, 3, (12, 15, 9)), layers, 8).eval()


@pytest.mark.parametrize("name", HERE)
def test_a_graphs_class_does_not_depend_on_the_others_in_its_batch(name):
    net = network(name)
    graphs = [graph(12, seed=1), graph(15, seed=2), graph(9, seed=3)]
    with torch.no_grad():
        together = call_on_graphs(net, Batch.from_data_list(graphs))
        alone = [call_on_graphs(net, Batch.from_data_list([one])) for one in graphs]
    assert together.shape == (3, 3)
    assert torch.allclose(together.exp().sum(dim=1), torch.ones(3))
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-6)


# SortPool sorts by a feature that is zero, after ReLU, for many nodes: their order decides.
@pytest.mark.parametrize("name", [name for name in HERE if name != "SortPool"])
def test_a_graphs_class_does_not_depend_on_the_order_of_its_nodes(name):
    one = graph(12, seed=4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    other = Data(x=one.x[order], edge_index=place[one.edge_index], y=one.y)
    net = network(name)
    with torch.no_grad():
        first, second = (
            call_on_graphs(net, Batch.from_data_list([either])) for either in (one, other)
        )
    assert torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_every_parameter_learns_at_any_depth(name, layers):
    net = network(name, layers).train()
    batch = Batch.from_data_list([graph(12, seed=seed) for seed in range(6)])
    call_on_graphs(net, batch)[:, 0].sum().backward()
    lazy = [key for key, parameter in net.named_parameters() if parameter.grad is None]
    # torch_geometric's ASAPooling selects by its fitness, not by the weight of its selection.
    assert [key for key in lazy if not (name == "ASAP" and key.endswith("select.weight"))] == []


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN0", "GIN", "GIN0WithJK", "GINWithJK"])
def test_flat_networks_read_the_mean_of_the_nodes_out(name):
    one, net = graph(12, seed=4), network(name)
    edges = torch.cat([one.edge_index, one.edge_index + 12], dim=1)
    twice = Data(
        x=one.x.repeat(2, 1), edge_index=edges, y=one.y
    )  # its sum is another, not its mean
    with torch.no_grad():
        first, second = (call_on_graphs(net, Batch.from_data_list([x])) for x in (one, twice))
    assert torch.allclose(first, second, atol=1e-5)


def test_asap_drops_none_of_its_attention():
    assert [pool.dropout for pool in network("ASAP", layers=5).pools] == [0.0, 0.0]


def test_jumping_knowledge_sees_the_output_of_every_layer():
    for name in ("GCN", "GraphSAGE", "GIN", "GIN0"):
        assert network(f"{name}WithJK").head.lin1.in_features == 3 * 8
        assert network(name).head.lin1.in_features == 8


def test_gin0_has_a_fixed_epsilon():
    assert not any("eps" in key for key, _ in network("GIN0").named_parameters())
    assert sum("eps" in key for key, _ in network("GIN").named_parameters()) == 3


def test_sort_pool_keeps_as_many_nodes_as_most_graphs_have():
    assert sorted_length(GraphShape(1, 2, (50, 10, 20, 40, 30))) == 30  # the third of five
    assert sorted_length(GraphShape(1, 2, (3, 4))) == 10


def test_the_mean_of_a_dense_graph_is_over_the_nodes_it_has():
    x = torch.tensor([[[1.0], [3.0], [99.0]], [[2.0], [4.0], [6.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert masked_mean(x, mask).tolist() == [[2.0], [4.0]]
    assert masked_mean(x[1:], None).tolist() == [[4.0]]


def test_graclus_runs_only_where_something_clusters(monkeypatch):
    monkeypatch.setattr(torch_geometric.typing, "WITH_GRACLUS", False, raising=False)
    monkeypatch.setattr(torch_geometric.typing, "WITH_TORCH_CLUSTER", False, raising=False)
    assert "pyg_lib" in str(unsupported("Graclus"))
    assert unsupported("GCN") is None
    monkeypatch.setattr(torch_geometric.typing, "WITH_GRACLUS", True)
    assert unsupported("Graclus") is None


def test_graclus_merges_the_nodes_that_are_paired(monkeypatch):
    from benchmark.kernel.networks import pooling

    monkeypatch.setattr(pooling, "graclus", lambda edges, num_nodes: torch.tensor([0, 0, 2, 3, 2]))
    x = torch.tensor([[1.0], [5.0], [2.0], [7.0], [3.0]])
    edge_index = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    pool = pooling.Graclus(GraphShape(1, 2, (5,)), 3, 1).pools[0]
    x, edge_index, batch = pool(x, edge_index, torch.tensor([0, 0, 0, 0, 0]))
    assert x.view(-1).tolist() == [5.0, 3.0, 7.0]
    assert sorted(edge_index.t().tolist()) == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert batch.tolist() == [0, 0, 0]


# --- folds ---------------------------------------------------------------------------------------

CLASSES = torch.tensor([0] * 20 + [1] * 10 + [2] * 5)


def test_folds_test_and_validate_each_graph_once_and_keep_the_mix_of_classes():
    splits = folds(CLASSES, 5, seed=0)
    everything = list(range(35))
    assert sorted(torch.cat([split.test for split in splits]).tolist()) == everything
    assert sorted(torch.cat([split.validation for split in splits]).tolist()) == everything
    for before, split in zip([splits[-1], *splits], splits, strict=False):
        whole = torch.cat([split.train, split.validation, split.test])
        assert sorted(whole.tolist()) == everything
        assert torch.equal(split.validation, before.test)
        assert torch.bincount(CLASSES[split.test]).tolist() == [4, 2, 1]


def test_folds_of_any_number_differ_by_little():
    for split in folds(CLASSES, 10, seed=3):
        assert len(split.test) in (3, 4)
        assert int((CLASSES[split.test] == 0).sum()) == 2


def test_three_parts_are_80_10_and_10_percent():
    classes = torch.tensor([0, 1] * 50)
    split = three_parts(classes, seed=0)
    assert [len(part) for part in (split.train, split.validation, split.test)] == [80, 10, 10]
    assert sorted(torch.cat([split.train, split.validation, split.test]).tolist()) == list(
        range(100)
    )
    assert int(classes[split.test].sum()) == int(classes[split.validation].sum()) == 5


def test_a_cut_has_a_seed_and_leaves_the_random_state():
    before = torch.get_rng_state()
    first = fold_numbers(CLASSES, 5, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(fold_numbers(CLASSES, 5, 0), first)
    assert not torch.equal(fold_numbers(CLASSES, 5, 1), first)


def test_too_few_folds_or_graphs_are_refused():
    with pytest.raises(ValueError, match="folds=2 leaves nothing to train on"):
        folds(CLASSES, 2, seed=0)
    with pytest.raises(ValueError, match="folds=40 is more than the 35 graphs"):
        folds(CLASSES, 40, seed=0)
    with pytest.raises(ValueError, match="9 graphs cannot be cut into 80, 10 and 10"):
        three_parts(CLASSES[:9], seed=0)


def test_a_last_batch_of_one_graph_is_left_out_of_training_only():
    dataset = SimpleNamespace(graphs=[graph(5, seed=seed) for seed in range(10)])
    split = SimpleNamespace(
        train=torch.arange(9), validation=torch.tensor([9]), test=torch.arange(9)
    )
    loaders = loaders_of(dataset, split, 4, train=True)
    assert [batch.num_graphs for batch in loaders.train] == [4, 4]
    assert [batch.num_graphs for batch in loaders.test] == [4, 4, 1]
    assert [batch.num_graphs for batch in loaders_of(dataset, split, 3, train=True).train] == [
        3
    ] * 3
    assert loaders_of(dataset, split, 4, train=False).train is None


# --- steps and durations -------------------------------------------------------------------------


class Constant(torch.nn.Module):
    """Says of every graph what it has learnt of the classes."""

    def __init__(self, logits: tuple[float, ...]) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(logits))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, size: int) -> torch.Tensor:
        self.calls += 1
        return self.logits.log_softmax(dim=0).expand(size, -1)


CPU = torch.device("cpu")


def constant(logits: tuple[float, ...] = (0.0, 0.0), **flags: bool) -> Classifier:
    net = Constant(logits)
    return Classifier(net, lambda model, batch: model(batch.num_graphs), CPU, **flags)


def labelled(*labels: int) -> list[Data]:
    return [graph(4, label) for label in labels]


def test_a_score_is_the_mean_loss_and_the_share_of_graphs_that_are_right():
    score = constant((0.0, torch.tensor(3.0).log().item())).evaluate(
        DataLoader(labelled(1, 1, 0, 1, 0), batch_size=2)
    )
    three, one = torch.tensor([0.75, 0.25]).log().neg().tolist()
    assert score.loss == pytest.approx((3 * three + 2 * one) / 5)
    assert score.accuracy == 0.6


def test_the_loss_of_an_epoch_is_the_mean_over_the_graphs_not_over_the_batches():
    still = constant((0.0, torch.tensor(3.0).log().item()))
    optimizer = torch.optim.SGD(still.net.parameters(), lr=0.0)
    loss = still.train_epoch(optimizer, DataLoader(labelled(1, 1, 1, 0), batch_size=3))
    three, one = torch.tensor([0.75, 0.25]).log().neg().tolist()
    assert loss == pytest.approx((3 * three + one) / 4)


def test_training_learns_and_inference_does_not():
    learner = constant()
    loader = DataLoader(labelled(1, 1, 1, 1), batch_size=2)
    optimizer = Plan(1, lr=0.1).optimizer(learner.net)
    learner.infer(loader)
    assert learner.net.logits.tolist() == [0.0, 0.0]
    assert not learner.net.training
    learner.train_epoch(optimizer, loader)
    assert learner.net.training
    assert learner.net.logits[1] > 0 > learner.net.logits[0]


def test_waiting_is_what_the_loader_takes(fake_clock):
    def slow_loader():
        for one in labelled(0, 1):
            fake_clock.advance(2)
            yield Batch.from_data_list([one])
        fake_clock.advance(1)  # to find out that there is no more

    batches = Waiting(slow_loader(), CPU)
    for _ in batches:
        fake_clock.advance(10)
    assert batches.seconds == 5


class Scripted:
    """A classifier whose durations and scores are known: 2 s to train, 1 s for each evaluation."""

    device = CPU

    def __init__(self, clock, curve: list[Score], loss: float = 0.5) -> None:
        self.net = Constant((0.0, 0.0))
        self.clock, self.loss = clock, loss
        self.curve = iter(curve)
        self.rates: list[float] = []

    def train_epoch(self, optimizer, batches) -> float:
        self.clock.advance(2)
        self.rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        return self.loss

    def evaluate(self, batches) -> Score:
        self.clock.advance(1)
        return next(self.curve)

    def infer(self, batches) -> None:
        self.clock.advance(4)


VALIDATION, TEST = Score(0.7, 0.6), Score(0.9, 0.5)


def test_an_epoch_tells_training_from_evaluation(fake_clock):
    scripted = Scripted(fake_clock, [VALIDATION, TEST] * 2)
    seen: list[int] = []
    epochs = fit(
        scripted, Loaders([], [], []), Plan(2, lr=0.1), lambda number, epoch: seen.append(number)
    )
    assert epochs == (Epoch(0.5, VALIDATION, TEST, 2.0, 0.0, 2.0),) * 2
    assert epochs[0].seconds == 4.0
    assert seen == [1, 2]
    assert fit(Scripted(fake_clock, [TEST]), Loaders([], None, []), Plan(1, lr=0.1)) == (
        Epoch(0.5, None, TEST, 2.0, 0.0, 1.0),
    )


def test_passes_of_inference_are_timed_one_by_one(fake_clock):
    ticks: list[None] = []
    seconds = time_inference(Scripted(fake_clock, []), [], 3, lambda: ticks.append(None))
    assert seconds == (4.0,) * 3
    assert len(ticks) == 3


def test_the_step_size_decays_after_so_many_epochs(fake_clock):
    scripted = Scripted(fake_clock, [TEST] * 5)
    fit(scripted, Loaders([], None, []), Plan(5, 0.8, lr_decay_factor=0.5, lr_decay_step_size=2))
    assert scripted.rates == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2])
    steady = Scripted(fake_clock, [TEST] * 3)
    fit(steady, Loaders([], None, []), Plan(3, 0.8))
    assert steady.rates == [0.8] * 3


@pytest.mark.parametrize(
    ("goal", "epochs", "reached"), [(0.8, 2, 2), (0.95, 4, None), (None, 4, None)]
)
def test_a_training_ends_at_its_goal(fake_clock, goal, epochs, reached):
    curve = [Score(1.0, accuracy) for accuracy in (0.5, 0.8, 0.9, 0.7)]
    plan = Plan(4, lr=0.1, goal_accuracy=goal)
    found = fit(Scripted(fake_clock, curve), Loaders([], None, []), plan)
    assert len(found) == epochs
    assert epochs_to_goal(found, goal) == reached


def test_a_loss_that_is_not_finite_is_an_error(fake_clock):
    broken = Scripted(fake_clock, [TEST] * 2, loss=float("nan"))
    with pytest.raises(FloatingPointError, match=r"lr=0\.1: the training loss is nan in epoch 1"):
        fit(broken, Loaders([], None, []), Plan(2, lr=0.1))


@pytest.mark.parametrize(("whole", "batches"), [(True, 16), (False, 4)])
def test_the_warm_up_sees_the_batches_and_undoes_what_it_learnt(whole, batches):
    learner = constant()
    before = {key: value.clone() for key, value in learner.net.state_dict().items()}
    seen = []
    forward = learner._forward
    learner._forward = lambda model, batch: (seen.append(batch.num_graphs), forward(model, batch))[
        1
    ]
    loader = DataLoader(labelled(1, 1, 1, 0), batch_size=1)
    assert warm_up(learner, Loaders(loader, None, loader), Plan(1, lr=0.1), whole=whole) > 0
    assert len(seen) == batches
    after = learner.net.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert learner.net.logits.grad is None


def test_the_peak_is_that_of_the_largest_batch(monkeypatch):
    graphs = [graph(4), graph(40), graph(6)]
    seen = []
    learner = constant()
    forward = learner._forward
    learner._forward = lambda model, batch: (seen.append(batch.num_nodes), forward(model, batch))[1]
    loaders = Loaders(DataLoader(graphs, batch_size=1), None, [])
    stats = training.peak_memory(learner, loaders, Plan(1, lr=0.1))
    assert set(seen) == {40}
    assert stats.max_allocated_cpu > 0


def test_bf16_computes_in_bfloat16_and_scores_in_single_precision():
    net = network("GCN")
    seen: list[torch.dtype] = []
    net.convs[0].lin.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    half = Classifier(net, call_on_graphs, CPU, bf16=True)
    assert half.predict(Batch.from_data_list([graph(12)])).dtype == torch.float32
    assert seen == [torch.bfloat16]


def test_training_tells_rings_by_their_features_from_others():
    graphs = [graph(8, label=seed % 2, seed=seed) for seed in range(40)]
    for one in graphs:
        one.x[:, 0] += float(one.y)
    torch.manual_seed(0)
    learner = Classifier(NETWORKS["GIN"](GraphShape(4, 2, (8,)), 2, 8), call_on_graphs, CPU)
    loaders = Loaders(DataLoader(graphs[:30], 10, shuffle=True), None, DataLoader(graphs[30:], 10))
    assert fit(learner, loaders, Plan(40, lr=0.01))[-1].test.accuracy >= 0.9


# --- statistics ----------------------------------------------------------------------------------


def epoch(validation: float, accuracy: float, seconds: float = 1.0) -> Epoch:
    return Epoch(0.0, Score(validation, 0.0), Score(9.9, accuracy), seconds, 0.0, 1.0)


def test_a_fold_reports_the_test_accuracy_at_its_lowest_validation_loss():
    epochs = [epoch(0.9, 0.1), epoch(0.4, 0.6, 3.0), epoch(0.5, 1.0), epoch(0.4, 0.9)]
    assert fold_of(epochs) == Fold(0.4, 0.6, 2, 2.0)
    with pytest.raises(ValueError, match="without a validation score"):
        fold_of([replace(epochs[0], validation=None)])


def test_an_epoch_whose_loss_is_nan_is_not_chosen():
    nan = float("nan")
    assert fold_of([epoch(nan, 0.9), epoch(0.7, 0.6), epoch(0.8, 0.7)]) == Fold(0.7, 0.6, 2, 2.0)
    assert math.isnan(fold_of([epoch(nan, 0.9), epoch(nan, 0.8)]).validation_loss)


def test_folds_are_put_together_by_means():
    found = summary_of([Fold(0.4, 0.8, 1, 1.0), Fold(0.6, 0.9, 3, 2.0), Fold(0.5, 1.0, 2, 9.0)])
    assert found == {
        "validation_loss": pytest.approx(0.5),
        "test_accuracy": pytest.approx(0.9),
        "test_accuracy_std": pytest.approx(0.1),
        "epoch_seconds": 2.0,
    }
    assert summary_of([Fold(0.4, 0.8, 1, 1.0)])["test_accuracy_std"] is None


def record(dataset: str, model: str, layers: int, loss: float, outcome: str = "ok") -> dict:
    case = {"dataset": dataset, "model": model, "layers": layers, "hidden": 8}
    return {"case": case, "outcome": outcome, "summary": {"validation_loss": loss}}


def test_the_best_size_has_the_lowest_validation_loss():
    records = [
        record("a", "GCN", 1, 0.5),
        record("a", "GCN", 2, 0.3),
        record("a", "GCN", 3, 0.4),
        record("a", "GIN", 1, 0.9),
        record("b", "GCN", 1, 0.8),
        {"case": record("b", "GCN", 2, 0.0)["case"], "outcome": "error", "reason": "?"},
    ]
    assert best_sizes(records) == [records[1], records[3], records[4]]


def test_a_loss_that_is_nan_never_wins():
    nan = float("nan")
    records = [record("a", "GCN", 1, nan), record("a", "GCN", 2, 0.3), record("a", "GCN", 3, nan)]
    assert best_sizes(records) == [records[1]]
    assert best_sizes(records[:1]) == []


def test_a_spread_is_a_median_and_its_interval():
    assert spread([]) is None
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "interval_95": None}
    assert spread([float(i) for i in range(1, 7)])["interval_95"] == (1.0, 6.0)


# --- records -------------------------------------------------------------------------------------

IDENTITY = {
    "benchmark": "kernel",
    "case": {"model": "GCN", "layers": 2, "root": None},
    "dataset": {"name": "mutag-like", "fingerprint": {"sha256": "ab"}},
    "environment": {"torch": "2"},
}


def lines(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_records_are_appended_and_found_again():
    log = CaseLog(Path("log.jsonl"))
    log.append({**IDENTITY, "outcome": "ok", "seconds": 1.5})
    log.append({**IDENTITY, "case": {"model": "GIN"}, "outcome": "error", "reason": "?"})
    assert lines("log.jsonl")[0] == {"schema": SCHEMA, **IDENTITY, "outcome": "ok", "seconds": 1.5}
    again = CaseLog(Path("log.jsonl"), resume=True)
    assert again.finished(IDENTITY) == lines("log.jsonl")[0]
    assert again.finished({**IDENTITY, "case": {"model": "GIN"}}) is None  # it failed
    again.append({**IDENTITY, "case": {"model": "SAGE"}, "outcome": "ok"})
    assert len(lines("log.jsonl")) == 3


def test_a_record_without_a_trace_does_not_do_where_a_profile_is_wanted():
    log = CaseLog(Path("log.jsonl"))
    log.append({**IDENTITY, "outcome": "ok", "trace": None})
    again = CaseLog(Path("log.jsonl"), resume=True)
    assert again.finished(IDENTITY) == lines("log.jsonl")[0]
    assert again.finished(IDENTITY, with_trace=True) is None
    again.append({**IDENTITY, "outcome": "ok", "trace": "profile.json"})
    third = CaseLog(Path("log.jsonl"), resume=True)
    assert third.finished(IDENTITY, with_trace=True) == lines("log.jsonl")[1]


@pytest.mark.parametrize("key", ["benchmark", "case", "dataset", "environment"])
def test_what_was_measured_otherwise_is_measured_again(key):
    CaseLog(Path("log.jsonl")).append({**IDENTITY, "outcome": "ok"})
    again = CaseLog(Path("log.jsonl"), resume=True)
    assert again.finished({**IDENTITY, key: {"other": 1}}) is None
    assert CaseLog(Path("log.jsonl")).finished(IDENTITY) is None  # nobody asked to resume


def test_a_record_that_a_crash_has_cut_off_costs_only_itself():
    log = CaseLog(Path("log.jsonl"))
    log.append({**IDENTITY, "outcome": "ok"})
    with Path("log.jsonl").open("a") as file:
        file.write(f'{{"schema": "{SCHEMA}", "benchm')
    again = CaseLog(Path("log.jsonl"), resume=True)
    assert again.finished(IDENTITY) is not None
    again.append({**IDENTITY, "case": {"model": "GIN"}, "outcome": "ok"})
    third = CaseLog(Path("log.jsonl"), resume=True)
    assert third.finished({**IDENTITY, "case": {"model": "GIN"}}) is not None
    assert third.finished(IDENTITY) is not None


@pytest.mark.parametrize(
    "text", ['{"a": 1}\n', "notes\n", "[1, 2]\n", '{"a": 1}', '{"schema": "x"}\n']
)
def test_a_file_of_something_else_is_refused_and_kept(text):
    Path("notes").write_text(text)
    with pytest.raises(ValueError, match="--json=notes"):
        CaseLog(Path("notes"))
    assert Path("notes").read_text() == text


def test_a_record_is_checked_before_it_is_written():
    log = CaseLog(Path("log.jsonl"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.append({"a": float("nan")})
    assert not Path("log.jsonl").exists()
    CaseLog(None).append({"a": 1})  # nothing is kept, nothing happens


def test_a_file_that_cannot_be_appended_to_is_refused_before_the_work(monkeypatch):
    refuse = PermissionError(13, "Permission denied", "log.jsonl")

    def no_file(*args):
        raise refuse

    monkeypatch.setattr(case_log.os, "open", no_file)
    with pytest.raises(PermissionError, match=r"log\.jsonl"):
        CaseLog(Path("log.jsonl"))


def test_the_check_at_the_door_leaves_the_folder_as_it_was():
    CaseLog(Path("log.jsonl"))
    assert not Path("log.jsonl").exists()
    log = CaseLog(Path("log.jsonl"))
    log.append({**IDENTITY, "outcome": "ok"})
    before = Path("log.jsonl").read_text()
    CaseLog(Path("log.jsonl"))
    assert Path("log.jsonl").read_text() == before
    Path("folder").mkdir()
    with pytest.raises(IsADirectoryError):
        CaseLog(Path("folder"))


def test_a_record_is_written_in_one_piece(monkeypatch):
    written = []
    write = case_log.os.write
    monkeypatch.setattr(
        case_log.os, "write", lambda file, data: (written.append(data), write(file, data))[1]
    )
    CaseLog(Path("log.jsonl")).append({**IDENTITY, "outcome": "ok", "samples": [0.1] * 5000})
    assert len(written) == 1
    assert written[0].endswith(b"\n")


# --- scripts -------------------------------------------------------------------------------------


def test_every_script_of_the_folder_is_run_here():
    mains = {path.stem for path in KERNEL.glob("*.py") if "def main(" in path.read_text()}
    assert mains == {"main", "main_performance"}


def test_performance_trains_each_network(capsys):
    random_state = torch.get_rng_state()
    records = script("main_performance").main([*SMOKE, "--json", "log.jsonl"])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [one["case"]["model"] for one in records] == ["GCN", "GraphSAGE", "GIN"]
    assert {one["outcome"] for one in records} == {"ok"}
    assert lines("log.jsonl") == json.loads(
        json.dumps([{"schema": SCHEMA, **one} for one in records], default=str)
    )
    first = records[0]
    assert first["majority"] == pytest.approx(25 / 38)
    assert len(first["epochs"]) == 2
    # The first epoch is the warm-up.
    assert first["train_seconds"]["median"] == first["epochs"][1]["train_seconds"]
    out, err = capsys.readouterr()
    assert out.startswith("mutag-like (a generated stand-in, 0.658 of it in the largest class): ")
    assert "mutag-like - GIN - 3 - 16: Test Accuracy: " in out
    assert "Training [ms]" in out
    assert "Pass [ms]" not in out
    assert err == ""


def test_performance_infers_and_leaves_a_trace_for_each_case(capsys):
    flags = [*SMOKE, "--inference", "--profile", "--bf16", "--models", "gcn", "gin"]
    records = script("main_performance").main(flags)
    assert [one["trace"] for one in records] == [
        "profile-GCN-mutag-like-3-16-inference.json",
        "profile-GIN-mutag-like-3-16-inference.json",
    ]
    assert all("aten::" in Path(one["trace"]).read_text() for one in records)
    assert all(len(one["pass_seconds_samples"]) == 2 for one in records)
    out = capsys.readouterr().out
    assert "Pass [ms]" in out
    assert "convs" in out  # the layer table


def test_a_profile_is_taken_of_a_case_that_was_finished_without_one(capsys):
    flags = [*SMOKE, "--models", "GCN", "--epochs", "1", "--inference", "--json", "log.jsonl"]
    (first,) = script("main_performance").main(flags)
    for _ in range(2):  # once taken, it is on record
        (second,) = script("main_performance").main([*flags, "--resume", "--profile"])
    assert [one["trace"] for one in lines("log.jsonl")] == [first["trace"], second["trace"]]
    assert first["trace"] is None
    assert Path(second["trace"]).is_file()
    capsys.readouterr()


# Dynamo looks at .grad of every tensor that it meets where a graph breaks.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_performance_compiles_before_it_measures(monkeypatch):
    class Tiny(torch.nn.Module):
        def __init__(self, shape: GraphShape, layers: int, hidden: int) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(shape.num_features, shape.num_classes)

        def forward(self, x, edge_index, batch, size):
            return self.lin(global_mean_pool(x, batch, size)).log_softmax(dim=1)

    monkeypatch.setitem(NETWORKS, "GraphSAGE", Tiny)
    compile_fully = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_fully(model, backend="eager"))
    settings = importlib.import_module("benchmark.kernel.settings")
    performance = script("main_performance")
    dataset = load_graph_set("mutag-like", scale=0.2)

    def measure(compile: bool) -> dict:
        asked = settings.Settings.from_args(
            settings.kernel_parser(None, performance.DEFAULTS).parse_args(["--epochs", "2"])
        )
        context = sweep.Context(replace(asked, compile=compile), dataset, CPU, lambda: None)
        with torch.random.fork_rng(devices=[]), cpu_threads(1):
            case = Case("mutag-like", "GraphSAGE", layers=1, hidden=8)
            return performance.Performance().run(case, context)

    torch._dynamo.reset()
    try:
        compiled = measure(compile=True)
    finally:
        torch._dynamo.reset()
    assert compiled["recompiled"] == 0
    assert compiled["compile_seconds"] > compiled["train_seconds"]["median"]
    eager = measure(compile=False)
    assert eager["compile_seconds"] is None
    assert compiled["epochs"][1]["train_loss"] == pytest.approx(
        eager["epochs"][1]["train_loss"], abs=1e-4
    )


def test_cross_validation_runs_the_whole_family(capsys):
    records = script("main").main([*SMOKE, "--epochs", "1"])
    outcome = {one["case"]["model"]: one["outcome"] for one in records}
    assert outcome == {
        name: "ok" if unsupported(name) is None else "unsupported" for name in NETWORKS
    }
    done = [one for one in records if one["outcome"] == "ok"]
    assert all(len(one["folds"]) == 3 for one in done)
    out = capsys.readouterr().out
    assert out.count(" ± ") == 2 * len(done)  # a line of the case and one of the table


def test_each_fold_starts_from_parameters_of_its_own():
    flags = [*SMOKE, "--epochs", "1", "--models", "GCN"]
    (first,) = script("main").main(flags)
    (same,) = script("main").main(flags)
    assert [fold["validation_loss"] for fold in first["folds"]] == [
        fold["validation_loss"] for fold in same["folds"]
    ]
    (other,) = script("main").main([*flags, "--seed", "5"])
    assert first["folds"][0]["validation_loss"] != other["folds"][0]["validation_loss"]


class Numbered:
    """Measures nothing; the second case fails or is interrupted."""

    benchmark = "numbered"

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.ran: list[Case] = []

    def epochs(self, settings) -> int:
        return 1

    def run(self, case: Case, context: sweep.Context) -> dict[str, object]:
        self.ran.append(case)
        if self.error is not None and case.layers == 2:
            raise self.error
        context.tick()
        return {"value": case.layers}

    def line(self, one) -> str:
        return f"value {one['value']}"

    def table(self, records) -> str:
        return f"table of {len(records)}"


def run_numbered(measure: Numbered, *flags: str) -> list:
    settings = importlib.import_module("benchmark.kernel.settings")
    performance = script("main_performance")
    parser = settings.kernel_parser(None, performance.DEFAULTS)
    axes = ["--models", "GCN", "--layers", "1", "2", "3", "--hiddens", "8", "--scale", "0.2"]
    datasets = ["--datasets", "mutag-like"]
    return sweep.run_sweep(measure, parser, [*datasets, *axes, "--json", "log.jsonl", *flags])


def test_an_interruption_loses_no_finished_case_and_resume_goes_on(capsys):
    with pytest.raises(SystemExit) as caught:
        run_numbered(Numbered(KeyboardInterrupt()))
    assert caught.value.code == 130
    out, err = capsys.readouterr()
    assert "mutag-like - GCN - 1 - 8: value 1\ntable of 1\n" in out
    assert err == "Interrupted: the table holds the cases that had finished.\n"
    assert [one["value"] for one in lines("log.jsonl")] == [1]
    later = Numbered()
    records = run_numbered(later, "--resume")
    assert [case.layers for case in later.ran] == [2, 3]
    assert [one["value"] for one in records] == [1, 2, 3]
    assert [one["value"] for one in lines("log.jsonl")] == [1, 2, 3]


def test_a_case_that_fails_is_a_record_and_the_others_go_on(capsys):
    with pytest.raises(SystemExit) as caught:
        run_numbered(Numbered(ZeroDivisionError("by nothing")))
    assert caught.value.code == 1
    assert [one["outcome"] for one in lines("log.jsonl")] == ["ok", "error", "ok"]
    assert lines("log.jsonl")[1]["reason"] == "ZeroDivisionError: by nothing"
    out = capsys.readouterr().out
    assert "mutag-like - GCN - 2 - 8: error: ZeroDivisionError: by nothing" in out
    later = Numbered()
    run_numbered(later, "--resume")
    assert [case.layers for case in later.ran] == [2]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_fails_only_its_case(value):
    class Diverging(Numbered):
        def run(self, case: Case, context: sweep.Context) -> dict[str, object]:
            found = super().run(case, context)
            return {**found, "loss": value if case.layers == 2 else 0.5}

    with pytest.raises(SystemExit) as caught:
        run_numbered(Diverging())
    assert caught.value.code == 1
    assert [one["outcome"] for one in lines("log.jsonl")] == ["ok", "error", "ok"]
    assert "not JSON compliant" in lines("log.jsonl")[1]["reason"]


def test_the_same_case_twice_is_run_once():
    measure = Numbered()
    run_numbered(measure, "--layers", "3", "3", "1")
    assert [case.layers for case in measure.ran] == [3, 1]


def test_the_flags_of_the_reference_are_accepted(monkeypatch):
    seen: list[object] = []

    def stop_there(measure, parser, argv) -> list:
        settings = importlib.import_module("benchmark.kernel.settings").Settings
        seen.append(settings.from_args(parser.parse_args(argv)))
        return []

    for name in ("main", "main_performance"):
        monkeypatch.setattr(script(name), "run_sweep", stop_there)
    common = ["--epochs", "100", "--batch_size", "128", "--lr", "0.01"]
    script("main").main([*common, "--lr_decay_factor", "0.5", "--lr_decay_step_size", "50"])
    script("main_performance").main(
        [*common, "--warmup_profile", "3", "--goal_accuracy", "1", "--profile", "--bf16"]
        + ["--inference", "--compile"]
    )
    whole, performance = seen
    assert whole.models == tuple(NETWORKS)
    assert whole.plan() == Plan(100, 0.01, lr_decay_factor=0.5, lr_decay_step_size=50)
    assert performance.plan() == Plan(100, 0.01, goal_accuracy=1.0)
    assert performance.warmup_profile == 3


@pytest.mark.parametrize("name", ["main", "main_performance"])
def test_a_data_set_is_named_as_in_every_script(name):
    settings = importlib.import_module("benchmark.kernel.settings")
    parser = settings.kernel_parser(None, script(name).DEFAULTS)
    for flag in ("--dataset", "--datasets"):
        assert parser.parse_args([flag, "mutag-like"]).datasets == ["mutag-like"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--datasets", "MUTAK"], "'MUTAK' is none of the datasets: "),
        (["--models", "GCM"], "'GCM' is none of the models: GCNWithJK, "),
        (["--warmup_profile", "5", "--epochs", "5"], "--warmup_profile=5 leaves none of the 5"),
        (["--goal_accuracy", "1.5"], "1.5 is not allowed"),
        (["--resume"], "--resume needs --json FILE"),
        (["--json", "no/log.jsonl"], "--json=no/log.jsonl: there is no folder no"),
        (["--datasets", "MUTAG"], "dataset=MUTAG is real data that is not on this machine"),
        (["--device", "mps"], "device='mps' is not usable on this machine; give cpu"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_work(flags, sentence, capsys):
    with pytest.raises(SystemExit) as caught:
        script("main_performance").main(flags)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err.splitlines()[-1]


def test_smoke_is_one_size_of_each_network_on_few_graphs():
    settings = importlib.import_module("benchmark.kernel.settings")
    parser = settings.kernel_parser(None, script("main").DEFAULTS)
    asked = settings.Settings.from_args(parser.parse_args(["--smoke", "--scale", "0.05"]))
    assert (asked.epochs, asked.scale, asked.layers) == (2, 0.05, (3,))
    assert asked.scale_of("MUTAG") is None
    assert asked.scale_of("mutag-like") == 0.05
    assert len(list(asked.cases())) == len(NETWORKS)


@pytest.fixture
def run_sh(tmp_path, monkeypatch) -> Callable[..., tuple[int, str, list[str]]]:
    """Run the shell script with a Python that notes its arguments, and may fail for main.py."""
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/sh\nscript=${1##*/}\nshift\necho "$script $*" >> "$CALLS"\n'
        'case "$script" in main.py) exit ${FAIL:-0} ;; esac\n'
    )
    fake.chmod(0o755)
    calls = tmp_path / "calls"
    monkeypatch.setenv("PYTHON", str(fake))
    monkeypatch.setenv("CALLS", str(calls))

    def run(*arguments: str) -> tuple[int, str, list[str]]:
        command = ["sh", str(KERNEL / "run.sh"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, calls.read_text().splitlines()

    return run


def test_run_sh_has_the_sizes_of_the_reference(run_sh, monkeypatch):
    code, out, calls = run_sh("--root", "data")
    assert (code, out) == (0, "All 3 runs ended well.\n")
    sets = "--datasets MUTAG PROTEINS IMDB-BINARY REDDIT-BINARY"
    assert calls == [
        f"main_performance.py {sets} --epochs 100 --batch_size 128 --root data",
        f"main_performance.py {sets} --epochs 100 --batch_size 128 --inference --root data",
        f"main.py {sets} --layers 1 2 3 4 5 --hiddens 16 32 64 128 --folds 10 --epochs 100 "
        "--batch_size 128 --root data",
    ]
    for call in calls:
        name, *flags = call.split()
        seen = []
        module = script(name.removesuffix(".py"))
        monkeypatch.setattr(
            module,
            "run_sweep",
            lambda _, parser, argv, seen=seen: seen.append(parser.parse_args(argv)),
        )
        module.main(flags)
        assert seen[0].epochs == 100


def test_run_sh_takes_the_stand_ins_where_no_data_is_named_and_tells_what_failed(
    run_sh, monkeypatch
):
    monkeypatch.setenv("FAIL", "3")
    code, out, calls = run_sh("--smoke")
    assert code == 1
    assert all("--datasets mutag-like proteins-like" in call for call in calls)
    assert out.splitlines()[0] == "Of 3 runs these failed:"
    assert out.splitlines()[1].split()[0] == "main.py"


@pytest.mark.parametrize(
    ("memory", "sentence"),
    [
        ({"time": 1.0, "max_allocated_cpu": 2.0}, "Peak: memory of new tensors alive at once, in "),
        ({"time": 1.0, "max_allocated_gpu": 2.0}, "Peak: memory of all tensors alive at once, "),
        ({"time": 1.0, "driver_allocated_mps": 2.0}, "Peak: memory held from Metal after the step"),
    ],
)
def test_the_table_says_what_the_peak_is_on_the_device(memory, sentence):
    performance = script("main_performance")
    case = {"dataset": "mutag-like", "model": "GCN", "layers": 1, "hidden": 8}
    one = {"outcome": "ok", "case": case, "compile_seconds": None, "memory": memory}
    table = performance.Performance().table([one])
    assert f"{performance.NOTE}\n{sentence}" in table
    assert "2.000" in table


def test_a_column_of_the_table_is_read_from_every_kind_of_record():
    training_record = {
        "case": {"dataset": "a", "model": "GCN", "layers": 1, "hidden": 2},
        "train_seconds": {"median": 0.25},
        "evaluation_seconds": None,
        "loading_seconds": {"median": 0.125},
        "compile_seconds": None,
        "memory": {"max_allocated_cpu": 3.5, "max_rss": 100.0},
        "test_accuracy": 0.75,
    }
    row = [read(training_record) for _, read in COLUMNS]
    assert row == ["a", "GCN", 1, 2, 250.0, 125.0, None, None, None, 3.5, 0.75]


def test_help_tells_what_this_json_does_and_each_default_once(capsys):
    for name in ("main", "main_performance"):
        with pytest.raises(SystemExit):
            script(name).main(["--help"])
        out = " ".join(capsys.readouterr().out.split())
        assert "--json FILE append a line of JSON per finished case to this file (def" in out
        assert "widths of the hidden layers (default: " in out
        assert "(default: the accelerator) --threads" in out
        assert "(default: none) (default" not in out
        assert "==SUPPRESS==" not in out
