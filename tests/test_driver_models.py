"""What the training driver trains: batches, models, and the timings of their training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark import datasets, hetero_data, sampling
from benchmark.drivers import training as training_module
from benchmark.drivers.batches import Feeder, Kept, csr, limited, make_loader, sampler_of
from benchmark.drivers.experiment import WarmUp, measuring
from benchmark.drivers.graphs import Graph, load_graph
from benchmark.drivers.models import MODELS, Shape, build_model, degree_histogram
from benchmark.drivers.timing import EpochCounts, Measured, PartClock
from benchmark.drivers.training import Training, measure_training
from benchmark.sampling import TORCH_SAMPLER
from tests import driver_cases
from tests.driver_cases import CPU, SMALL, case
from torch_geometric.data import Data
from torch_geometric.transforms import ToUndirected

from gnnprof import Timing

in_a_folder_of_its_own = driver_cases.in_a_folder_of_its_own
cora = driver_cases.cora
mag = driver_cases.mag
fast_compiler = driver_cases.fast_compiler
pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


# --- batches -------------------------------------------------------------------------------------


def test_a_number_of_steps_begins_anew_when_the_data_end():
    assert list(limited([1, 2, 3], None)) == [1, 2, 3]
    assert list(limited([1, 2, 3], 2)) == [1, 2]
    assert list(limited([1, 2, 3], 7)) == [1, 2, 3, 1, 2, 3, 1]
    with pytest.raises(ValueError, match="the split has no nodes"):
        list(limited([], 1))


def test_csr_is_the_transposed_adjacency():
    edge_index = torch.tensor([[2, 0, 1, 2], [0, 3, 0, 3]])
    matrix = csr(edge_index, (3, 4))
    dense = torch.zeros(4, 3)
    dense[edge_index[1], edge_index[0]] = 1
    assert matrix.layout == torch.sparse_csr
    assert torch.equal(matrix.to_dense(), dense)
    matrix = torch.sparse_csr_tensor(
        matrix.crow_indices(), matrix.col_indices(), matrix.values(), check_invariants=True
    )


def test_kept_batches_are_sampled_once_and_not_changed_by_their_user():
    loads: list[int] = []

    def load() -> Iterator[Data]:
        loads.append(1)
        yield Data(x=torch.ones(2, 1), n_id=torch.tensor([0, 1]))

    class Loader:
        def __iter__(self) -> Iterator[Data]:
            return load()

    kept = Kept(Loader())
    for _ in range(3):
        for batch in kept:
            assert torch.equal(batch.x, torch.ones(2, 1))
            batch.x = torch.zeros(2, 1)
    assert loads == [1]


def first_batch(graph: Graph, *, sparse: bool = False, trim: bool = False) -> Any:
    how = dataclasses.replace(SMALL, trim=trim)
    loader = make_loader(graph, how, graph.split("train"), batch_size=8, num_neighbors=(3, 3))
    feeder = Feeder(graph, CPU, sparse=sparse, trim=trim)
    return feeder.transfer(feeder.prepare(next(iter(loader))))


@pytest.mark.parametrize(
    ("name", "way"),
    # Not trimmed GCN: it normalises by the degrees among the edges that it is given.
    [(n, w) for n in MODELS for w in ("sparse", "trim") if (n, w) != ("gcn", "trim")],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_a_sparse_matrix_and_trimming_change_no_score_and_no_gradient(name, way, cora, mag):
    graph = mag if name in ("rgcn", "rgat") else cora
    torch.manual_seed(0)
    net = build_model(name, graph, Shape(8, 2, largest_fan_out=3)).double().eval()
    results = []
    for options in ({}, {way: True}):
        batch = first_batch(graph, **options)
        scores = net(*doubled(batch.inputs), **batch.options)[: batch.num_seeds]
        net.zero_grad()
        torch.nn.functional.cross_entropy(scores, batch.labels).backward()
        results.append([scores, *(p.grad for p in net.parameters())])
    assert results[0][0].shape == (8, graph.num_classes)
    for plain, other in zip(*results, strict=True):
        assert torch.allclose(plain, other, atol=1e-9)


def doubled(value: Any) -> Any:
    """The inputs of a model with every floating tensor in double precision."""
    if isinstance(value, tuple):
        return tuple(map(doubled, value))
    if isinstance(value, dict):
        return {key: doubled(inner) for key, inner in value.items()}
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize(
    ("name", "module", "generator", "scale"),
    [
        ("cora-like", datasets, "take_fingerprint", 0.05),
        ("mag-like", hetero_data, "take_hetero_fingerprint", 0.004),
    ],
)
def test_loading_takes_as_long_as_without_the_fingerprint(
    name, module, generator, scale, fake_clock, monkeypatch
):
    take = getattr(module, generator)

    def slow(data: Any) -> Any:
        fake_clock.advance(50)
        return take(data)

    class Slow(ToUndirected):
        def forward(self, data: Any) -> Any:
            fake_clock.advance(3)
            return super().forward(data)

    monkeypatch.setattr(module, generator, slow)
    monkeypatch.setattr(hetero_data, "ToUndirected", Slow)
    assert load_graph(name, scale=scale).load_seconds == (3 if name == "mag-like" else 0)


# --- models --------------------------------------------------------------------------------------


def test_rgcn_is_the_sum_over_relations_of_the_mean_of_the_neighbours(mag):
    torch.manual_seed(0)
    net = build_model("rgcn", mag, Shape(4, 2))
    ids = {t: torch.arange(mag.data[t].num_nodes) for t in mag.data.node_types}
    hidden = {t: net.inputs[t](mag.data[t].x if "x" in mag.data[t] else ids[t]) for t in net.inputs}
    for step in range(2):
        hidden = {t: h.relu() for t, h in hidden.items()}
        out = {t: root(hidden[t]) for t, root in net.roots[step].items()}
        for (source, relation, goal), edge_index in mag.data.edge_index_dict.items():
            name = f"{source}__{relation}__{goal}"
            if name not in net.convs[step]:
                continue
            weight = net.convs[step][name].lin_l.weight
            for node in range(mag.data[goal].num_nodes):
                neighbours = edge_index[0, edge_index[1] == node]
                if len(neighbours):
                    term = weight @ hidden[source][neighbours].mean(dim=0)
                    out[goal] = out[goal].index_add(0, torch.tensor([node]), term[None])
        hidden = out
    scores = net(mag.data.x_dict, mag.data.edge_index_dict, ids)
    assert scores.shape == (40, 3)
    assert torch.allclose(scores, hidden["paper"], atol=1e-6)


@pytest.mark.parametrize("name", ["rgcn", "rgat"])
@pytest.mark.parametrize("layers", [1, 2])
def test_every_parameter_of_a_relational_net_has_a_gradient(name, layers, mag):
    net = build_model(name, mag, Shape(8, layers))
    ids = {t: torch.arange(mag.data[t].num_nodes) for t in mag.data.node_types}
    net(mag.data.x_dict, mag.data.edge_index_dict, ids).square().sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    relations = {name for step in net.convs for name in step}
    assert "paper__appears_in__venue" not in relations  # the papers never hear of it
    assert ("paper__rev_writes__author" in relations) == (layers == 2)


def test_the_degree_histogram_is_cut_off_at_the_fan_out():
    edge_index = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 1, 1, 2]])
    data = Data(edge_index=edge_index, num_nodes=4, x=torch.ones(4, 1))
    graph = Graph("tiny", data, None, 1, 2, {}, 0.0)
    assert degree_histogram(graph, -1).tolist() == [2, 0, 1, 1]
    assert degree_histogram(graph, 2).tolist() == [2, 0, 2]


# --- training ------------------------------------------------------------------------------------


def test_training_learns_on_both_kinds_of_graphs(mag):
    cora = load_graph("cora-like", scale=0.1)
    sage = case("sage", hidden_channels=64, num_neighbors=(5, 5))
    rgcn = case("rgcn", "mag-tiny", hidden_channels=32)
    with measuring(SMALL, CPU):
        training = Training(sage, SMALL, cora, CPU, lambda: None)
        for _ in range(12):
            training.epoch(PartClock(CPU))
        assert training.accuracy("test") > 0.4  # the largest of seven classes has 0.24
        training = Training(rgcn, SMALL, mag, CPU, lambda: None)
        for _ in range(30):
            training.epoch(PartClock(CPU))
        assert float(training.loss) < 0.6  # ln 3 = 1.1 without learning


def test_timings_hold_training_and_nothing_else(fake_clock, monkeypatch, cora):
    def step(self: Training, batch: Any, clock: PartClock) -> None:
        fake_clock.advance(2)
        clock.lap("forward")

    def accuracy(self: Training, split: str) -> float:
        fake_clock.advance(100)
        return 0.25

    monkeypatch.setattr(Training, "_step", step)
    monkeypatch.setattr(Training, "accuracy", accuracy)
    made = dataclasses.replace(SMALL, num_epochs=3, warmup=2, evaluate=True, num_steps=4)
    measured = measure_training(case("gcn"), made, cora, CPU, Path())
    assert measured.warm_up_seconds == 2 * 4 * 2
    assert measured.seconds.samples == (8.0, 8.0, 8.0)
    assert measured.parts["forward"].samples == (2.0,) * 12
    assert measured.parts["load"].total == measured.parts["transfer"].total == 0
    assert measured.counts.batches == 4
    assert measured.throughput == measured.counts.seeds / 8
    assert measured.latency == 8 / measured.counts.seeds
    assert measured.quality == {"train_loss": 0.0, "val_accuracy": 0.25, "test_accuracy": 0.25}
    assert measured.compile_seconds is None
    assert measured.recompiled is None


def test_parts_are_read_in_their_order(fake_clock):
    clock = PartClock(CPU)
    for _ in range(2):
        clock.start()
        for part, seconds in (("load", 3), ("forward", 5)):
            fake_clock.advance(seconds)
            clock.lap(part)
        fake_clock.advance(50)  # between two epochs
    assert {part: timing.samples for part, timing in clock.timings().items()} == {
        "load": (3.0, 3.0),
        "forward": (5.0, 5.0),
    }


def test_the_counts_of_a_record_are_per_batch():
    counts = EpochCounts().plus(4, 10, 30).plus(2, 6, 10)
    measured = Measured("epoch", counts, Timing((1.0, 3.0, 2.0)), {}, "the timed epochs")
    entry = measured.to_dict()
    assert (entry["seeds"], entry["batches"]) == (6, 2)
    assert (entry["nodes_per_batch"], entry["edges_per_batch"]) == (8, 20)
    assert (entry["throughput"], entry["latency"]) == (3.0, 2 / 6)
    assert entry["seconds"]["samples"] == [1.0, 3.0, 2.0]


def test_one_seed_gives_one_training_and_leaves_the_random_state(cora):
    made = dataclasses.replace(SMALL, num_epochs=1)
    before = torch.get_rng_state()
    losses = [
        measure_training(case("sage"), changed, cora, CPU, Path()).quality["train_loss"]
        for changed in (made, made, dataclasses.replace(made, seed=1))
    ]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(before, torch.get_rng_state())


def test_a_full_batch_trains_on_the_training_nodes_only(cora):
    made = dataclasses.replace(SMALL, full_batch=True, num_epochs=2, evaluate=True, warmup=0)
    whole = case("gcn", batch_size=None, num_neighbors=())
    with measuring(made, CPU):
        training = Training(whole, made, cora, CPU, lambda: None)
        net = training.setup.net
        mask = cora.data.train_mask
        out = net(cora.data.x, cora.data.edge_index)
        expected = torch.nn.functional.cross_entropy(out[mask], cora.data.y[mask])
        training.epoch(PartClock(CPU))
    assert torch.allclose(training.loss, expected.detach())
    measured = measure_training(whole, made, cora, CPU, Path())
    assert (measured.counts.batches, measured.counts.seeds) == (1, int(mask.sum()))
    assert measured.sampler is None


@pytest.mark.parametrize("full_batch", [False, True])
def test_a_profile_changes_neither_the_quality_nor_the_saved_parameters(full_batch, cora):
    one = case("sage")
    if full_batch:
        one = dataclasses.replace(one, batch_size=None, num_neighbors=())
    made = dataclasses.replace(
        SMALL, num_epochs=2, evaluate=True, save_model=True, full_batch=full_batch
    )
    results, states = [], []
    for kind in (None, "prof"):
        out = Path(str(kind))
        out.mkdir()
        how = dataclasses.replace(made, write_csv=kind)
        results.append(measure_training(one, how, cora, CPU, out))
        (file,) = out.glob("model-*.pt")
        states.append(torch.load(file, weights_only=True))
    plain, profiled = results
    assert plain.profile is None
    assert profiled.profile
    assert plain.quality == profiled.quality
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])


def test_the_peak_is_that_of_the_epochs_and_not_of_what_lies_between(monkeypatch, cora):
    peaks = {"now": 0}
    of_epochs = iter([5, 7, 6])

    def step(self: Training, batch: Any, clock: PartClock) -> None:
        peaks["now"] = max(peaks["now"], next(of_epochs))

    def accuracy(self: Training, split: str) -> float:
        peaks["now"] = max(peaks["now"], 100)
        return 0.25

    monkeypatch.setattr(Training, "_step", step)
    monkeypatch.setattr(Training, "accuracy", accuracy)
    monkeypatch.setattr("gnnprof._device.reset_peak_memory", lambda _: peaks.update(now=1))
    monkeypatch.setattr(training_module, "peak_bytes", lambda _: peaks["now"])
    made = dataclasses.replace(SMALL, num_epochs=3, num_steps=1, warmup=0, evaluate=True)
    measured = measure_training(case("gcn"), made, cora, CPU, Path())
    assert measured.peak_memory == 7


def test_trimming_takes_a_sampler_that_tells_the_hops(monkeypatch, cora):
    monkeypatch.setattr(sampling, "SAMPLER", "torch_sparse 0.6.18")
    monkeypatch.setattr(sampling.torch_geometric.typing, "WITH_PYG_LIB", False)
    made = dataclasses.replace(SMALL, num_epochs=1, num_steps=1, warmup=0, trim=True)
    measured = measure_training(case("sage"), made, cora, CPU, Path())
    assert measured.sampler == TORCH_SAMPLER
    assert sampler_of(made) == TORCH_SAMPLER
    assert sampler_of(dataclasses.replace(made, trim=False)) == "torch_sparse 0.6.18"
    monkeypatch.setattr(sampling, "SAMPLER", "pyg_lib 0.4.0")
    monkeypatch.setattr(sampling.torch_geometric.typing, "WITH_PYG_LIB", True)
    assert sampler_of(made) == "pyg_lib 0.4.0"


def test_bf16_computes_in_bfloat16_and_the_loss_in_single_precision(cora):
    seen: list[torch.dtype] = []
    made = dataclasses.replace(SMALL, bf16=True)
    with measuring(made, CPU):
        training = Training(case("gcn"), made, cora, CPU, lambda: None)
        training.setup.net.convs[0].lin.register_forward_hook(
            lambda module, args, out: seen.append(out.dtype)
        )
        training.epoch(PartClock(CPU), 1)
    assert seen == [torch.bfloat16]
    assert training.loss.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_batches_of_any_size_are_compiled_once_in_the_warm_up(fast_compiler, cora):
    made = dataclasses.replace(SMALL, compile=True, num_epochs=2)
    compiled = measure_training(case("sage"), made, cora, CPU, Path())
    assert compiled.compile_seconds is not None
    assert 0 < compiled.compile_seconds < compiled.warm_up_seconds
    assert compiled.recompiled == 0
    eager = measure_training(
        case("sage"), dataclasses.replace(made, compile=False), cora, CPU, Path()
    )
    assert compiled.quality["train_loss"] == pytest.approx(eager.quality["train_loss"], abs=1e-5)


def test_the_models_of_many_cases_are_all_compiled(fast_compiler, cora):
    made = dataclasses.replace(SMALL, compile=True, num_epochs=1, num_steps=1)
    # Dynamo gives up on a function that it has compiled for so many models.
    with measuring(made, CPU), torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(4):
            training = Training(case("sage"), made, cora, CPU, lambda: None)
            warm_up = WarmUp(made, CPU)
            warm_up.run(lambda: training.epoch(PartClock(CPU)), 1)  # noqa: B023  # run right here
            assert warm_up.compile_seconds > 0
