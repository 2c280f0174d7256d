"""Neighbour sampling: its distribution, its correctness by brute force, and PyG's batch layout."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from benchmark import neighbor_draws, sampling
from benchmark.neighbor_draws import pick_neighbors
from benchmark.neighbor_sampler import TorchNeighborSampler
from benchmark.sampling import LoaderTimes, neighbor_loader, take_times
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.utils import coalesce

CITES = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")
WRITTEN = ("paper", "written_by", "author")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_graph(num_nodes: int = 60, num_edges: int = 500) -> Data:
    """A directed graph without repeated edges, whose rows tell where they come from."""
    edge_index = coalesce(torch.randint(num_nodes, (2, num_edges), generator=generator()))
    edge_index = edge_index[:, edge_index[1] >= 3]  # nothing points to the first three nodes
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=generator(1))]
    return Data(
        x=torch.arange(num_nodes).float()[:, None].repeat(1, 2),
        y=torch.arange(num_nodes) * 10,
        edge_index=edge_index,
        edge_attr=torch.arange(edge_index.size(1)).float(),
    )


def hetero_graph() -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.arange(40).float()[:, None]
    data["author"].num_nodes = 25
    for seed, (edge_type, rows, cols) in enumerate(
        ((CITES, 40, 40), (WRITES, 25, 40), (WRITTEN, 40, 25))
    ):
        ends = torch.rand(2, 200, generator=generator(seed))
        edge_index = (ends * torch.tensor([[rows], [cols]])).long()
        data[edge_type].edge_index = coalesce(edge_index)
    return data


# --- the draws -----------------------------------------------------------------------------------


@pytest.fixture(params=["rejection", "sorting"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sorting":
        monkeypatch.setattr(neighbor_draws, "MOST_BY_REJECTION", 0)
    return request.param


def chi_square(counts: Counter[tuple[int, ...]], kinds: int, draws: int) -> float:
    """Squared distance from equally many of each kind; kinds that were never drawn count too."""
    expected = draws / kinds
    seen = sum((count - expected) ** 2 / expected for count in counts.values())
    return seen + (kinds - len(counts)) * expected


def test_every_set_of_neighbours_is_equally_likely(method):
    draws = 20_000
    node, offset = pick_neighbors(torch.full((draws,), 6), 3, False, generator())
    assert torch.equal(node, torch.arange(draws).repeat_interleave(3))
    sets = Counter(tuple(sorted(drawn)) for drawn in offset.view(-1, 3).tolist())
    assert all(len(set(drawn)) == 3 for drawn in sets)
    assert len(sets) == 20  # 6 over 3
    assert chi_square(sets, 20, draws) < 43.8  # 0.1 % of fair draws exceed it (19 degrees)


def test_with_replacement_every_tuple_is_equally_likely():
    draws = 20_000
    node, offset = pick_neighbors(torch.full((draws,), 5), 2, True, generator())
    assert torch.equal(node, torch.arange(draws).repeat_interleave(2))
    pairs = Counter(tuple(pair) for pair in offset.view(-1, 2).tolist())
    assert chi_square(pairs, 25, draws) < 51.2  # 24 degrees of freedom


def test_a_node_with_few_neighbours_gives_all_of_them_and_one_with_many_its_share(method):
    degree = torch.tensor([0, 2, 7, 3, 0, 100])
    node, offset = pick_neighbors(degree, 3, False, generator())
    assert node.tolist() == [1] * 2 + [2] * 3 + [3] * 3 + [5] * 3
    drawn = {i: offset[node == i].tolist() for i in range(6)}
    assert drawn[1] == [0, 1]
    assert drawn[3] == [0, 1, 2]
    assert all(len(set(drawn[i])) == 3 and max(drawn[i]) < degree[i] for i in (2, 5))


@pytest.mark.parametrize(
    ("fan_out", "replace", "nodes"),
    [
        (-1, False, [1, 1, 2, 2, 2]),
        (-1, True, [1, 1, 2, 2, 2]),
        (0, False, []),
        (0, True, []),
        (4, True, [1] * 4 + [2] * 4),
        (4, False, [1, 1, 2, 2, 2]),
    ],
)
def test_how_many_are_drawn(fan_out, replace, nodes):
    node, offset = pick_neighbors(torch.tensor([0, 2, 3]), fan_out, replace, generator())
    assert node.tolist() == nodes
    assert bool((offset < torch.tensor([0, 2, 3])[node]).all())


# --- correctness, by brute force -----------------------------------------------------------------


def check_edges(batch: Data, data: Data) -> None:
    """Each edge of the batch is the edge of the graph that its id names, with its rows."""
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.y, data.y[batch.n_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


@pytest.mark.parametrize("replace", [False, True])
def test_a_batch_holds_edges_of_the_graph_within_the_fan_out(replace):
    data = random_graph()
    for batch in neighbor_loader(data, [4, 2], 8, sampler="torch", replace=replace):
        check_edges(batch, data)
        seeds = batch.n_id[: batch.batch_size]
        assert torch.equal(seeds, batch.input_id)
        assert len(batch.n_id.unique()) == batch.num_nodes == sum(batch.num_sampled_nodes)
        assert batch.num_edges == sum(batch.num_sampled_edges)
        assert replace or len(batch.e_id.unique()) == batch.num_edges
        fan_out_holds(batch, data, (4, 2), replace)


def fan_out_holds(batch: Data, data: Data, fan_outs: tuple[int, ...], replace: bool) -> None:
    """Hop by hop, the nodes found in the hop before have drawn as many edges as they may."""
    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    nodes = [0, *torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()]
    edges = [0, *torch.tensor(batch.num_sampled_edges).cumsum(0).tolist()]
    for hop, fan_out in enumerate(fan_outs):
        source, target = batch.edge_index[:, edges[hop] : edges[hop + 1]]
        assert bool((target >= nodes[hop]).all())
        assert bool((target < nodes[hop + 1]).all())
        assert bool((source < nodes[hop + 2]).all())
        drawn = torch.bincount(target, minlength=nodes[hop + 1])[nodes[hop] :]
        of_frontier = degree[batch.n_id[nodes[hop] : nodes[hop + 1]]]
        allowed = fan_out * (of_frontier > 0) if replace else of_frontier.clamp(max=fan_out)
        assert torch.equal(drawn, allowed)


def reachable(data: Data, seeds: Tensor, hops: int) -> tuple[set[int], set[int]]:
    """Nodes and edges on the paths of at most so many edges into the seeds."""
    nodes, edges, frontier = set(seeds.tolist()), set(), set(seeds.tolist())
    for _ in range(hops):
        new = set()
        for number, (source, target) in enumerate(data.edge_index.t().tolist()):
            if target in frontier:
                edges.add(number)
                new.add(source)
        frontier = new - nodes
        nodes |= new
    return nodes, edges


def test_a_full_fan_out_is_the_whole_neighbourhood():
    data = random_graph(num_edges=150)
    for batch in neighbor_loader(data, [-1, -1], 5, sampler="torch"):
        nodes, edges = reachable(data, batch.n_id[: batch.batch_size], 2)
        assert set(batch.n_id.tolist()) == nodes
        assert sorted(batch.e_id.tolist()) == sorted(edges)
        check_edges(batch, data)


def test_new_nodes_are_numbered_in_the_order_of_their_first_edge():
    data = random_graph()
    batch = next(iter(neighbor_loader(data, [3, 3], 6, sampler="torch")))
    first_seen = list(dict.fromkeys([*range(6), *batch.edge_index[0].tolist()]))
    assert first_seen == list(range(batch.num_nodes))


def test_isolated_seeds_are_alone():
    data = random_graph()
    batch = next(iter(neighbor_loader(data, [5, 5], 3, torch.tensor([0, 1, 2]), sampler="torch")))
    assert batch.n_id.tolist() == [0, 1, 2]
    assert batch.edge_index.shape == (2, 0)
    assert batch.num_sampled_nodes == [3, 0, 0]
    assert batch.num_sampled_edges == [0, 0]


def test_seeds_are_given_as_ids_or_as_a_mask():
    data = random_graph()
    mask = torch.zeros(60, dtype=torch.bool)
    mask[[7, 30]] = True
    (by_mask,) = neighbor_loader(data, [2], 2, mask, sampler="torch")
    (by_ids,) = neighbor_loader(data, [2], 2, torch.tensor([7, 30]), sampler="torch")
    assert by_mask.n_id[:2].tolist() == by_ids.n_id[:2].tolist() == [7, 30]
    assert torch.equal(by_mask.e_id, by_ids.e_id)


def test_a_seed_that_is_given_twice_has_two_places():
    data = random_graph()
    (batch,) = neighbor_loader(data, [-1], 3, torch.tensor([9, 5, 9]), sampler="torch")
    assert batch.n_id[:3].tolist() == [9, 5, 9]
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    degree = torch.bincount(data.edge_index[1])
    assert torch.bincount(batch.edge_index[1]).tolist() == degree[[9, 5, 9]].tolist()


def test_induced_subgraphs_hold_every_edge_between_their_nodes():
    data = random_graph()
    loader = neighbor_loader(data, [3, 2], 4, sampler="torch", subgraph_type="induced")
    for batch in loader:
        check_edges(batch, data)
        inside = torch.isin(data.edge_index, batch.n_id).all(dim=0)
        assert sorted(batch.e_id.tolist()) == inside.nonzero().view(-1).tolist()
        assert "num_sampled_edges" not in batch  # as with PyG, which sets None


def test_bidirectional_subgraphs_hold_the_reverse_of_every_drawn_edge():
    data = random_graph()
    drawn = next(iter(neighbor_loader(data, [3, 2], 4, sampler="torch")))
    both = next(
        iter(neighbor_loader(data, [3, 2], 4, sampler="torch", subgraph_type="bidirectional"))
    )
    expected = torch.cat([drawn.edge_index, drawn.edge_index.flip(0)], dim=1)
    assert torch.equal(coalesce(both.edge_index), coalesce(expected))


def test_an_interrupted_batch_leaves_no_ids_behind(monkeypatch):
    data = random_graph()
    sampler = TorchNeighborSampler(data, [3, 3])
    seeds = NodeSamplerInput(None, torch.arange(10))
    expected = sampler.sample_from_nodes(seeds)
    with monkeypatch.context() as patch:
        patch.setattr("benchmark.neighbor_sampler.pick_neighbors", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(20, 30)))
    again = sampler.sample_from_nodes(seeds)
    assert torch.equal(again.node, expected.node)
    assert torch.equal(again.row, expected.row)


# --- heterogeneous graphs ------------------------------------------------------------------------


def test_each_edge_type_has_its_fan_out_and_its_own_numbers():
    data = hetero_graph()
    fan_outs = {CITES: [3, 1], WRITES: [2, 2], WRITTEN: [0, 4]}
    loader = neighbor_loader(data, fan_outs, 8, "paper", sampler="torch")
    for batch in loader:
        assert batch["paper"].batch_size == len(batch["paper"].input_id)
        assert torch.equal(batch["paper"].x, data["paper"].x[batch["paper"].n_id])
        assert batch["author"].num_nodes == len(batch["author"].n_id)
        for edge_type in data.edge_types:
            source, _, target = edge_type
            store = batch[edge_type]
            row, col = store.edge_index
            ends = torch.stack([batch[source].n_id[row], batch[target].n_id[col]])
            assert torch.equal(ends, data[edge_type].edge_index[:, store.e_id])
            assert sum(store.num_sampled_edges) == store.num_edges
            assert len(store.num_sampled_edges) == 2
        for node_type in data.node_types:
            ids = batch[node_type].n_id
            assert len(ids.unique()) == len(ids) == sum(batch[node_type].num_sampled_nodes)


def test_the_first_hop_of_each_type_draws_from_the_seeds_only():
    data = hetero_graph()
    fan_outs = {CITES: [3, 1], WRITES: [2, 2], WRITTEN: [4, 4]}
    batch = next(iter(neighbor_loader(data, fan_outs, 8, "paper", sampler="torch")))
    degree = torch.bincount(data[WRITES].edge_index[1], minlength=40)[:8]
    assert batch[WRITES].num_sampled_edges[0] == int(degree.clamp(max=2).sum())
    assert batch[WRITTEN].num_sampled_edges[0] == 0  # no author is a seed
    assert batch[WRITTEN].num_sampled_edges[1] > 0  # but some were found
    assert batch["author"].num_sampled_nodes[0] == 0


def test_a_full_heterogeneous_hop_finds_every_neighbour():
    data = hetero_graph()
    (batch,) = neighbor_loader(data, [-1], 3, ("paper", torch.tensor([4, 8, 2])), sampler="torch")
    assert batch["paper"].n_id[:3].tolist() == [4, 8, 2]
    row, col = data[WRITES].edge_index
    authors = row[torch.isin(col, torch.tensor([4, 8, 2]))]
    assert set(batch["author"].n_id.tolist()) == set(authors.tolist())


def test_one_node_and_edge_type_is_sampled_like_a_homogeneous_graph():
    data = random_graph()
    typed = HeteroData()
    typed["paper"].x = data.x
    typed[CITES].edge_index = data.edge_index
    (plain,) = neighbor_loader(data, [-1, -1], 5, torch.arange(5), sampler="torch")
    (hetero,) = neighbor_loader(typed, [-1, -1], 5, ("paper", torch.arange(5)), sampler="torch")
    assert torch.equal(hetero["paper"].n_id, plain.n_id)
    assert torch.equal(hetero[CITES].edge_index, plain.edge_index)
    assert torch.equal(hetero[CITES].e_id, plain.e_id)
    assert hetero["paper"].num_sampled_nodes == plain.num_sampled_nodes


# --- randomness and workers ----------------------------------------------------------------------


def edges_of(loader: NeighborLoader) -> list[list[int]]:
    return [batch.e_id.tolist() for batch in loader]


def test_workers_epochs_and_seeds():
    data = random_graph()

    def make(**kwargs: object) -> NeighborLoader:
        return neighbor_loader(data, [3, 2], 16, shuffle=True, sampler="torch", **kwargs)

    loader = make()
    first, second = edges_of(loader), edges_of(loader)
    assert first != second
    workers = make(num_workers=2, persistent_workers=True)
    assert [edges_of(workers), edges_of(workers)] == [first, second]
    del workers
    assert edges_of(make()) == first
    assert edges_of(make(seed=1)) != first


def test_a_spawned_worker_gets_no_generators_and_samples_the_same(monkeypatch):
    """What torch pickles for a spawned worker; starting one would import torch anew."""
    loader = neighbor_loader(random_graph(), [3, 2], 60, shuffle=True, sampler="torch")
    assert loader.__getstate__() == vars(loader)  # a copy within the process is whole
    seeds = list(range(60))
    expected = loader.collate_fn(seeds)
    monkeypatch.setattr(sampling, "get_spawning_popen", object)
    there = pickle.loads(pickle.dumps(loader))
    assert (there.generator, there.sampler, there.batch_sampler) == (None, None, None)
    assert torch.equal(there.collate_fn(seeds).e_id, expected.e_id)


def test_a_second_epoch_draws_anew_even_without_shuffling():
    loader = neighbor_loader(random_graph(), [2, 2], 60, sampler="torch")
    assert edges_of(loader) != edges_of(loader)


def test_torchs_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    list(neighbor_loader(random_graph(), [2, 2], 16, shuffle=True, sampler="torch"))
    assert torch.equal(torch.random.get_rng_state(), before)


# --- the loader ----------------------------------------------------------------------------------


def test_recording_times_changes_nothing_else_in_a_batch():
    for data, seeds in ((random_graph(), None), (hetero_graph(), "paper")):
        plain = neighbor_loader(data, [3, 2], 16, seeds, sampler="torch")
        timed = neighbor_loader(data, [3, 2], 16, seeds, sampler="torch", record_times=True)
        for expected, batch in zip(plain, timed, strict=True):
            assert take_times(batch).total > 0
            for store, expected_store in zip(batch.stores, expected.stores, strict=True):
                assert set(store.keys()) == set(expected_store.keys())
                for key, value in expected_store.items():
                    same = torch.equal if isinstance(value, Tensor) else lambda a, b: a == b
                    assert same(store[key], value), key


@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_times_are_those_of_sampling_gathering_and_the_rest(
    filter_per_worker, fake_clock, monkeypatch
):
    def slow(seconds, function):
        def wrapper(*args, **kwargs):
            fake_clock.advance(seconds)
            return function(*args, **kwargs)

        return wrapper

    sample = TorchNeighborSampler.sample_from_nodes
    monkeypatch.setattr(TorchNeighborSampler, "sample_from_nodes", slow(10, sample))
    monkeypatch.setattr(sampling, "index_select", slow(100, sampling.index_select))
    monkeypatch.setattr(NeighborLoader, "filter_fn", slow(1, NeighborLoader.filter_fn))
    loader = neighbor_loader(
        random_graph(),
        [3],
        60,
        sampler="torch",
        record_times=True,
        filter_per_worker=filter_per_worker,
        transform=slow(5, lambda batch: batch),
    )
    (batch,) = loader
    times = take_times(batch)  # three tensors are gathered: x, y and edge_attr
    assert times == LoaderTimes(sampling=10, gather=300, collate=6)
    assert times.total == 316
    assert "times" not in batch
    with pytest.raises(ValueError, match="record_times=True"):
        take_times(batch)


def test_times_travel_from_workers_and_to_another_device():
    loader = neighbor_loader(
        random_graph(), [3], 30, sampler="torch", record_times=True, num_workers=1
    )
    for batch in loader:
        times = take_times(batch.to("cpu"))
        assert isinstance(times, LoaderTimes)
        assert min(times) >= 0
        assert times.sampling > 0


def test_the_transform_sees_the_whole_batch_with_and_without_times():
    def double(batch: Data) -> Data:
        batch.x = batch.x * 2
        return batch

    data = random_graph()
    for record_times in (False, True):
        loader = neighbor_loader(
            data, [3], 60, sampler="torch", record_times=record_times, transform=double
        )
        (batch,) = loader
        assert torch.equal(batch.x, data.x[batch.n_id] * 2)


def test_it_says_which_sampler_runs(monkeypatch):
    monkeypatch.setattr(sampling.torch_geometric.typing, "WITH_PYG_LIB", False)
    monkeypatch.setattr(sampling.torch_geometric.typing, "WITH_TORCH_SPARSE", False)
    assert sampling._installed_sampler() is None
    with pytest.raises(ModuleNotFoundError, match="needs pyg_lib or torch_sparse"):
        neighbor_loader(random_graph(), [2], sampler="pyg")
    monkeypatch.setattr(sampling.torch_geometric.typing, "WITH_TORCH_SPARSE", True)
    monkeypatch.setattr(sampling.importlib.metadata, "version", {"torch_sparse": "0.6.18"}.get)
    assert sampling._installed_sampler() == "torch_sparse 0.6.18"
    assert sampling._chooses_pyg("auto")
    assert not sampling._chooses_pyg("torch")
    assert sampling.sampler_by_hop() == "torch"  # torch_sparse does not tell the hops
    monkeypatch.setattr(sampling.torch_geometric.typing, "WITH_PYG_LIB", True)
    assert sampling.sampler_by_hop() == "auto"


@pytest.mark.skipif(sampling._installed_sampler() is None, reason="no pyg_lib, no torch_sparse")
def test_pygs_own_sampler_finds_the_same_full_neighbourhood():
    data = random_graph()
    ours = neighbor_loader(data, [-1, -1], 8, sampler="torch")
    theirs = neighbor_loader(data, [-1, -1], 8, sampler="pyg")
    for mine, batch in zip(ours, theirs, strict=True):
        assert sorted(batch.e_id.tolist()) == sorted(mine.e_id.tolist())
        assert sorted(batch.n_id.tolist()) == sorted(mine.n_id.tolist())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_neighbors": []}, "one number per hop"),
        ({"num_neighbors": [3, -2]}, r"give -1 \(all\) or numbers from 0 on"),
        ({"num_neighbors": [3], "sampler": "dgl"}, "sampler='dgl' is unknown; give one of auto"),
        ({"num_neighbors": [3], "subgraph_type": "all"}, "subgraph_type='all' is unknown"),
        ({"num_neighbors": [3], "input_nodes": torch.tensor([60])}, "from 60 to 60; there are 60"),
        ({"num_neighbors": [3], "input_nodes": torch.tensor([-1])}, "from -1 to -1"),
    ],
)
def test_a_bad_argument_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        neighbor_loader(random_graph(), **{"sampler": "torch", **arguments})


def test_a_heterogeneous_graph_needs_every_edge_type_and_the_type_of_the_seeds():
    data = hetero_graph()
    with pytest.raises(ValueError, match=r"missing or unknown: \('author', 'writes', 'paper'\)"):
        neighbor_loader(data, {CITES: [3], WRITTEN: [3]}, input_nodes="paper", sampler="torch")
    fan_outs = {CITES: [3], WRITES: [3, 3], WRITTEN: [3]}
    with pytest.raises(ValueError, match="as many for each edge type"):
        neighbor_loader(data, fan_outs, input_nodes="paper", sampler="torch")
    with pytest.raises(ValueError, match="needs the type of the seeds, one of paper, author"):
        neighbor_loader(data, [3], sampler="torch")


def test_a_graph_without_edges_is_refused():
    with pytest.raises(ValueError, match="no edge_index"):
        neighbor_loader(Data(x=torch.ones(3, 1)), [3], sampler="torch")
