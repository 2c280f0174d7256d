"""The point cloud scripts: neighbours against brute force, layers against formulas, and runs."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch_geometric.typing
from benchmark.classification.case_log import CaseLog
from benchmark.points import spatial
from benchmark.points.layers import BallQuery, DynamicEdgeConv, FarthestPoints, XConv
from benchmark.points.results import PointsResult
from benchmark.points.settings import Settings, points_parser
from benchmark.points.spline import SplineConv, spline_basis
from benchmark.points.train_eval import at_most, run_script
from torch_geometric.nn import DynamicEdgeConv as ReferenceEdgeConv
from torch_geometric.nn import XConv as ReferenceXConv

ROOT = Path(__file__).resolve().parents[1]
POINTS = ROOT / "benchmark" / "points"
SCRIPTS = ("point_cnn", "point_net", "edge_cnn", "mpnn", "spline_cnn")
SMOKE = ["--smoke", "--threads", "1", "--max_clouds", "4"]

FIND = spatial.spatial_library

SIZES = (7, 1, 12, 12, 5)
BATCH = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def own_search(monkeypatch) -> None:
    """Test what is here also where a library would do it."""
    own = spatial.SpatialLibrary("gnnprof (torch)", None)
    monkeypatch.setattr(spatial, "spatial_library", lambda: own)


@pytest.fixture(params=["trees", "distances", "distances in pieces"])
def way(request, monkeypatch) -> None:
    if request.param == "trees":
        pytest.importorskip("scipy")
        return
    monkeypatch.setattr(spatial, "_has_scipy", lambda: False)
    if request.param == "distances in pieces":
        monkeypatch.setattr(spatial, "PAIRS_AT_ONCE", 20)


def points(dimensions: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(BATCH), dimensions, generator=generator)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return math.dist(a.tolist(), b.tolist())


def nearest(x, y, batch_x, batch_y, k=None, r=math.inf) -> list[tuple[int, int]]:
    """By brute force: the pairs that `knn` or `radius` has to give, in their order."""
    pairs = []
    for i in range(len(y)):
        others = [j for j in range(len(x)) if batch_x[j] == batch_y[i]]
        ranked = sorted((distance(x[j], y[i]), j) for j in others)
        pairs += [(i, j) for d, j in ranked[:k] if d < r]
    return pairs


def as_pairs(index: torch.Tensor) -> list[tuple[int, int]]:
    return list(zip(*index.tolist(), strict=True))


# --- neighbours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.usefixtures("way")
def test_knn_is_that_of_brute_force(k):
    x, y = points(), points(seed=1)[::2]
    found = spatial.knn(x, y, k, BATCH, BATCH[::2])
    assert as_pairs(found) == nearest(x, y, BATCH, BATCH[::2], k=k)


@pytest.mark.parametrize("most", [2, 40])
@pytest.mark.usefixtures("way")
def test_radius_takes_the_nearest_below_it(most):
    x, y = points(), points(seed=1)[::2]
    found = spatial.radius(x, y, 0.5, BATCH, BATCH[::2], max_num_neighbors=most)
    assert as_pairs(found) == nearest(x, y, BATCH, BATCH[::2], k=most, r=0.5)


@pytest.mark.usefixtures("way")
def test_a_point_at_the_radius_is_not_within_it():
    x = torch.tensor([[0.0], [1.0], [2.0]])
    assert as_pairs(spatial.radius(x, x[:1], 1.0)) == [(0, 0)]
    assert as_pairs(spatial.radius(x, x[:1], 1.5)) == [(0, 0), (0, 1)]


@pytest.mark.usefixtures("way")
def test_graphs_lead_from_the_neighbours_to_the_point():
    x = points()
    with_loops = [(j, i) for i, j in nearest(x, x, BATCH, BATCH, k=4)]
    without = [(j, i) for i, j in nearest(x, x, BATCH, BATCH, k=5) if i != j]
    assert as_pairs(spatial.knn_graph(x, 4, BATCH, loop=True)) == with_loops
    assert as_pairs(spatial.knn_graph(x, 4, BATCH)) == without
    near = [(j, i) for i, j in nearest(x, x, BATCH, BATCH, k=4, r=0.4) if i != j]
    assert as_pairs(spatial.radius_graph(x, 0.4, BATCH, max_num_neighbors=3)) == near


@pytest.mark.usefixtures("way")
def test_points_that_coincide_have_k_others_all_the_same():
    edge_index = spatial.knn_graph(torch.zeros(6, 2), 2)
    source, target = edge_index
    assert torch.bincount(target).tolist() == [2] * 6
    assert not bool((source == target).any())


def test_many_dimensions_are_searched_by_distances(monkeypatch):
    monkeypatch.setattr(spatial, "_by_tree", None)
    x = points(20)
    assert as_pairs(spatial.knn(x, x, 3, BATCH, BATCH)) == nearest(x, x, BATCH, BATCH, k=3)


@pytest.mark.usefixtures("way")
def test_a_cloud_without_points_or_without_questions_gives_nothing():
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.1], [0.2]])
    batch_x, batch_y = torch.tensor([0, 3]), torch.tensor([1, 3])
    assert as_pairs(spatial.knn(x, y, 2, batch_x, batch_y)) == [(1, 1)]
    assert spatial.knn(x[:0], y[:0], 2, batch_x[:0], batch_y[:0]).shape == (2, 0)


@pytest.mark.usefixtures("way")
def test_no_gradient_is_needed_and_none_is_recorded():
    x = points().requires_grad_()
    assert not spatial.knn_graph(x, 2, BATCH).requires_grad
    assert not spatial.fps(x, BATCH).requires_grad


# --- farthest points -----------------------------------------------------------------------------


def farthest(x: torch.Tensor, count: int) -> list[int]:
    """By brute force: begin with the first point, and always take the one farthest from all."""
    taken = [0]
    while len(taken) < count:
        rest = [i for i in range(len(x)) if i not in taken]
        taken.append(max(rest, key=lambda i: min(distance(x[i], x[j]) for j in taken)))
    return taken


@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
def test_fps_is_that_of_brute_force(ratio):
    x, expected, first = points(), [], 0
    for size in SIZES:
        chosen = farthest(x[first : first + size], math.ceil(ratio * size))
        expected += [first + index for index in chosen]
        first += size
    assert spatial.fps(x, BATCH, ratio, random_start=False).tolist() == expected


def test_fps_of_points_in_a_row():
    x = torch.tensor([[0.0], [1.0], [2.0], [10.0]])
    assert spatial.fps(x, ratio=0.75, random_start=False).tolist() == [0, 3, 2]


def test_fps_rounds_up_but_not_because_of_rounding():
    x = torch.rand(100, 2, generator=torch.Generator().manual_seed(0))
    assert len(spatial.fps(x, ratio=0.07)) == 7  # 0.07 * 100 is 7.000000000000001
    assert len(spatial.fps(x, ratio=0.071)) == 8


def test_fps_never_takes_a_point_twice():
    taken = spatial.fps(torch.zeros(5, 3), ratio=1.0)
    assert sorted(taken.tolist()) == [0, 1, 2, 3, 4]


def test_fps_starts_anywhere_if_asked():
    x, batch = torch.rand(400, 2), torch.arange(4).repeat_interleave(100)
    torch.manual_seed(0)
    starts = torch.cat([spatial.fps(x, batch, 0.01) % 100 for _ in range(20)])
    assert len(starts.unique()) > 30
    torch.manual_seed(0)
    again = torch.cat([spatial.fps(x, batch, 0.01) % 100 for _ in range(20)])
    assert torch.equal(starts, again)


def test_fps_of_no_points_and_of_clouds_without_points():
    assert spatial.fps(torch.empty(0, 3)).tolist() == []
    batch = torch.tensor([1, 1, 3])
    assert spatial.fps(torch.rand(3, 2), batch, 0.5, random_start=False).tolist() == [0, 2]


# --- the door ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x: spatial.fps(x, ratio=0.0), "ratio=0.0 is not a share of the points"),
        (lambda x: spatial.fps(x, ratio=1.5), "ratio=1.5 is not a share of the points"),
        (lambda x: spatial.knn(x, x, 0), "k=0 is not positive"),
        (lambda x: spatial.radius(x, x, -1.0), "r=-1.0 is not positive"),
        (lambda x: spatial.radius(x, x, 1.0, max_num_neighbors=0), "max_num_neighbors=0 is not"),
        (lambda x: spatial.knn(x, x[:, :2], 1), "x has 3 dimensions and y has 2"),
        (lambda x: spatial.fps(x[0]), r"pos has shape \(3,\); give points as \[N, D\]"),
        (lambda x: spatial.knn_graph(x, 1, torch.zeros(2).long()), "give the cloud of each of the"),
        (lambda x: spatial.fps(x, torch.tensor([0, 1, 0, 1])), "the batch of pos is not sorted"),
    ],
)
def test_what_cannot_be_searched_is_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(torch.rand(4, 3))


# --- who searches --------------------------------------------------------------------------------


@pytest.fixture
def which(monkeypatch) -> Iterator[None]:
    """The real `spatial_library`, asked anew."""
    monkeypatch.setattr(spatial, "spatial_library", FIND)
    FIND.cache_clear()
    yield
    FIND.cache_clear()


def fake_library() -> SimpleNamespace:
    calls = []

    def noting(name):
        def function(*args):
            calls.append((name, *args[-2:]))
            return torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]])

        return function

    names = ("fps", "knn", "radius")
    return SimpleNamespace(calls=calls, **{name: noting(name) for name in names})


def test_the_search_can_be_imported_under_torch_2_6(monkeypatch):
    def disable(fn: object, recursive: bool = True) -> object:  # the signature of torch 2.6 and 2.7
        return fn

    monkeypatch.setattr(torch.compiler, "disable", disable)
    spec = importlib.util.spec_from_file_location(spatial.__name__, spatial.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert as_pairs(again.knn(torch.zeros(1, 2), torch.zeros(1, 2), 1)) == [(0, 0)]


@pytest.mark.usefixtures("which")
def test_without_a_library_the_search_is_here(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_cluster", None)
    monkeypatch.setattr(torch_geometric.typing, "WITH_KNN", False, raising=False)
    assert spatial.spatial_library().functions is None
    assert spatial.spatial_library().name.startswith("gnnprof (")


@pytest.mark.usefixtures("which")
def test_torch_cluster_searches_where_it_is_installed(monkeypatch):
    library = fake_library()
    monkeypatch.setitem(sys.modules, "torch_cluster", library)
    monkeypatch.setattr(torch_geometric.typing, "WITH_KNN", False, raising=False)
    assert spatial.spatial_library() == ("torch_cluster", library)
    x = torch.rand(2, 3)
    batch = torch.zeros(2, dtype=torch.long)
    assert spatial.fps(x, batch, 0.5, False) is not None
    # Pairs of target and source: the graph leads from source to target, loops are left out.
    assert as_pairs(spatial.knn_graph(x, 1, batch)) == [(1, 0), (0, 1)]
    spatial.radius_graph(x, 0.1, batch, loop=True, max_num_neighbors=5)
    assert library.calls == [
        ("fps", 0.5, False),
        ("knn", batch, batch),
        ("radius", batch, 5),
    ]


@pytest.mark.parametrize(
    ("given", "searched"),
    [(torch.bfloat16, torch.float), (torch.float, torch.float), (torch.double, torch.double)],
)
def test_a_library_gets_points_that_it_has_kernels_for(given, searched, monkeypatch):
    found: list[torch.dtype] = []

    def function(*args):
        found.extend(arg.dtype for arg in args if torch.is_tensor(arg) and arg.dim() == 2)
        return torch.empty(2, 0, dtype=torch.long)

    library = SimpleNamespace(fps=function, knn=function, radius=function)
    monkeypatch.setattr(spatial, "spatial_library", lambda: spatial.SpatialLibrary("some", library))
    x = torch.rand(4, 3).to(given)
    spatial.fps(x)
    spatial.knn(x, x, 2)
    spatial.radius(x, x, 0.5)
    assert found == [searched] * 5


@pytest.mark.usefixtures("which")
def test_a_library_built_for_another_torch_is_none(monkeypatch):
    def broken(name):
        raise OSError("undefined symbol")

    monkeypatch.setattr(torch_geometric.typing, "WITH_KNN", False, raising=False)
    monkeypatch.setattr(spatial.importlib, "import_module", broken)
    assert spatial.spatial_library().functions is None


@pytest.mark.usefixtures("which")
def test_pyg_lib_is_asked_through_torch_geometric(monkeypatch):
    for what in ("FPS", "KNN", "RADIUS"):
        monkeypatch.setattr(torch_geometric.typing, f"WITH_{what}", True, raising=False)
    assert spatial.spatial_library() == ("pyg_lib", torch_geometric.nn.pool)


# --- layers --------------------------------------------------------------------------------------


@pytest.fixture
def with_knn(monkeypatch) -> None:
    """Give torch_geometric's own layers the search that they lack here."""

    def search(x, y, ptr_x, ptr_y, k, cosine, num_workers):
        batch = torch.arange(len(ptr_x) - 1).repeat_interleave(ptr_x.diff())
        return spatial.knn(x, y, k, batch, batch)

    monkeypatch.setattr(torch_geometric.typing, "WITH_KNN", True, raising=False)
    monkeypatch.setattr(torch.ops, "pyg", SimpleNamespace(knn=search), raising=False)


def copy_in_order(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Copy parameters and buffers of networks that are the same but for names."""
    values = source.state_dict().values()
    state = target.state_dict()
    assert [value.shape for value in values] == [value.shape for value in state.values()]
    target.load_state_dict(dict(zip(state, values, strict=True)))


@pytest.mark.parametrize("features", [0, 5])
@pytest.mark.usefixtures("with_knn")
def test_xconv_computes_what_torch_geometrics_layer_does(features):
    torch.manual_seed(0)
    sizes = {"dim": 3, "kernel_size": 4, "hidden_channels": 8, "dilation": 2}
    reference = ReferenceXConv(features, 48, **sizes)
    own = XConv(features, 48, **sizes)
    copy_in_order(reference, own)
    pos, batch = torch.rand(40, 3), torch.arange(2).repeat_interleave(20)
    x = torch.rand(40, features) if features else None
    assert torch.allclose(own(x, pos, batch), reference(x, pos, batch), atol=1e-5)
    reference.eval(), own.eval()  # the running statistics are the same by now
    assert torch.allclose(own(x, pos, batch), reference(x, pos, batch), atol=1e-5)


def test_xconv_refuses_a_cloud_that_is_too_small():
    conv = XConv(0, 8, dim=3, kernel_size=4, hidden_channels=8, dilation=2)
    with pytest.raises(ValueError, match="fewer than the 8 points that kernel_size=4 with dil"):
        conv(None, torch.rand(10, 3), torch.tensor([0] * 7 + [1] * 3))


@pytest.mark.usefixtures("with_knn")
def test_dynamic_edge_convolution_computes_what_torch_geometrics_does():
    torch.manual_seed(0)
    network = torch.nn.Linear(2 * 10, 7)
    x, batch = torch.rand(40, 10), torch.arange(2).repeat_interleave(20)
    # Both draw the parameters of the network anew when they are made.
    own, reference = DynamicEdgeConv(network, k=6), ReferenceEdgeConv(network, k=6, aggr="max")
    assert torch.allclose(own(x, batch), reference(x, batch), atol=1e-6)


def test_a_ball_query_leads_from_the_points_to_the_numbered_centres():
    pos = torch.tensor([[0.0], [1.0], [5.0], [5.5]])
    batch = torch.tensor([0, 0, 0, 1])
    edge_index = BallQuery(2.0)(pos, batch, torch.tensor([1, 2, 3]))
    assert sorted(as_pairs(edge_index)) == [(0, 0), (1, 0), (2, 1), (3, 2)]


def test_evaluation_samples_the_same_points_each_time():
    sample, x = FarthestPoints(0.2).eval(), torch.rand(len(BATCH), 3)
    assert torch.equal(sample(x, BATCH), sample(x, BATCH))
    first = sample(x, BATCH)
    assert torch.equal(first, spatial.fps(x, BATCH, 0.2, random_start=False).sort().values)
    assert any(not torch.equal(sample.train()(x, BATCH), first) for _ in range(10))


# --- splines -------------------------------------------------------------------------------------


def by_point(pseudo: list[float], kernel_size: int, degree: int) -> dict[int, float]:
    basis, index = spline_basis(torch.tensor([pseudo]), kernel_size, degree)
    return {
        point: value
        for point, value in zip(index[0].tolist(), basis[0].tolist(), strict=True)
        if value
    }


@pytest.mark.parametrize(
    ("pseudo", "kernel_size", "degree", "expected"),
    [
        ([0.0], 5, 1, {0: 1.0}),
        ([1.0], 5, 1, {4: 1.0}),  # the end belongs to the last control point
        ([0.5], 5, 1, {2: 1.0}),
        ([0.3125], 5, 1, {1: 0.75, 2: 0.25}),  # 0.3125 * 4 = 1.25
        ([0.25, 0.875], 3, 1, {3: 0.125, 4: 0.125, 6: 0.375, 7: 0.375}),  # 0.5 and 1.75
        ([0.5], 4, 2, {1: 0.5, 2: 0.5}),  # 1.0: between two pieces
        ([0.75], 4, 2, {1: 0.125, 2: 0.75, 3: 0.125}),  # 1.5: (1-v)^2/2, 1/2+v-v^2, v^2/2
        ([0.0], 5, 3, {0: 1 / 6, 1: 4 / 6, 2: 1 / 6}),
        ([0.25], 5, 3, {0: 1 / 48, 1: 23 / 48, 2: 23 / 48, 3: 1 / 48}),  # 0.5
    ],
)
def test_the_basis_has_the_values_done_by_hand(pseudo, kernel_size, degree, expected):
    assert by_point(pseudo, kernel_size, degree) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_the_basis_adds_up_to_one_and_stays_inside(degree):
    basis, index = spline_basis(torch.rand(200, 3), 5, degree)
    assert basis.shape == index.shape == (200, (degree + 1) ** 3)
    assert torch.allclose(basis.sum(dim=1), torch.ones(200))
    assert int(index.min()) >= 0
    assert int(index.max()) < 5**3


def test_a_basis_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="degree=4 is not offered; give 1, 2 or 3"):
        spline_basis(torch.rand(1, 1), 9, 4)
    with pytest.raises(ValueError, match="kernel_size=3 must be above the degree, 3"):
        spline_basis(torch.rand(1, 1), 3, 3)


def test_the_spline_layer_is_the_mean_over_the_edges_of_their_matrices():
    torch.manual_seed(0)
    conv = SplineConv(3, 4, dim=2, kernel_size=3)
    x = torch.rand(5, 3)
    edge_index = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 1, 1, 3]])  # nothing leads to 0 and 4
    pseudo = torch.rand(5, 2)
    expected = conv.lin(x)
    for node in range(5):
        messages = []
        for edge in (edge_index[1] == node).nonzero().view(-1):
            basis, point = spline_basis(pseudo[edge : edge + 1], 3)
            matrix = (basis.view(-1, 1, 1) * conv.weight[point.view(-1)]).sum(dim=0)
            messages.append(x[edge_index[0, edge]] @ matrix)
        if messages:
            expected[node] = expected[node] + torch.stack(messages).mean(dim=0)
    assert torch.allclose(conv(x, edge_index, pseudo), expected, atol=1e-6)


# --- scripts -------------------------------------------------------------------------------------


def script(name: str) -> ModuleType:
    return importlib.import_module(f"benchmark.points.{name}")


def test_every_script_of_the_folder_is_run_here():
    mains = {path.stem for path in POINTS.glob("*.py") if "def main(" in path.read_text()}
    assert mains == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains(name, capsys):
    random_state = torch.get_rng_state()
    # PointCNN looks at 32 neighbours after it has sampled twice; the others need fewer points.
    size = ["--num_points", "256" if name == "point_cnn" else "64"]
    result = script(name).main([*SMOKE, *size, "--epochs", "1", "--json", "records.jsonl"])
    assert torch.equal(torch.get_rng_state(), random_state)
    (epoch,) = result.epochs
    assert 0 < epoch.loading_seconds < epoch.train_seconds
    assert math.isfinite(epoch.train_loss)
    out, err = capsys.readouterr()
    assert out.startswith(f"{result.network} on modelnet-like (a generated stand-in): ")
    assert "\nNeighbours and samples by gnnprof (torch)\nEpoch: 001, Loss: " in out
    assert err == ""
    (record,) = map(json.loads, Path("records.jsonl").read_text().splitlines())
    assert record["case"]["network"] == result.network
    assert record["test_accuracy"] == epoch.test.accuracy
    assert record["environment"]["spatial"] == "gnnprof (torch)"
    assert record["dataset"]["name"] == "modelnet-like"


def test_the_result_is_told_even_if_it_cannot_be_recorded(monkeypatch, capsys):
    def full(self: CaseLog, record: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CaseLog, "append", full)
    with pytest.raises(OSError, match="No space left"):
        script("mpnn").main([*SMOKE, "--num_points", "64", "--epochs", "1", "--json", "a.jsonl"])
    assert "Test Accuracy: " in capsys.readouterr().out


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_evaluation_does_not_depend_on_what_else_is_in_the_batch(name):
    torch.manual_seed(0)
    net = script(name).Net(10).eval()
    pos = torch.rand(2, 256, 3) * 2 - 1
    zeros = torch.zeros(256, dtype=torch.long)
    with torch.no_grad():
        both = net(pos.flatten(0, 1), torch.cat([zeros, zeros + 1]), 2)
        alone = torch.cat([net(cloud, zeros, 1) for cloud in pos])
    assert torch.allclose(both, alone, atol=1e-4)
    assert torch.allclose(both.exp().sum(dim=1), torch.ones(2))
    assert not torch.allclose(both[0], both[1], atol=1e-6)


# The sizes of the layers of PyG's benchmark/points, in their order: [out, in] of each matrix.
EDGE_CNN = [
    *[(64, 6), (64, 64), (64, 64)],
    *[(128, 128), (128, 128), (256, 128)],
    *[(512, 256), (256, 512), (256, 256), (10, 256)],
]
MPNN = [(25, 3), (64, 25), (64, 1), (25, 3), (64 * 64, 25), (64, 64), (25, 3), (64 * 128, 25)]
MPNN += [(128, 64), (256, 128), (256, 256), (10, 256)]


@pytest.mark.parametrize(("name", "sizes"), [("edge_cnn", EDGE_CNN), ("mpnn", MPNN)])
def test_the_layers_have_the_sizes_of_torch_geometrics_benchmark(name, sizes):
    net = script(name).Net(10)
    found = [tuple(layer.weight.shape) for layer in net.modules() if hasattr(layer, "weight")]
    assert found == sizes


def test_point_cnn_refuses_clouds_that_it_would_run_out_of_points_of(capsys):
    point_cnn = script("point_cnn")
    net = point_cnn.Net(10).eval()
    cloud = torch.rand(point_cnn.LEAST_POINTS, 3)
    zeros = torch.zeros(len(cloud), dtype=torch.long)
    assert net(cloud, zeros, 1).shape == (1, 10)
    with pytest.raises(ValueError, match="fewer than the 32 points"):
        net(cloud[1:], zeros[1:], 1)
    with pytest.raises(SystemExit) as caught:
        point_cnn.main([*SMOKE, "--num_points", "128"])
    assert caught.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(
        "argument --num_points: 128 is not allowed; give a whole number at least 246"
    )


def test_inference_is_timed_and_profiled(capsys):
    result = script("edge_cnn").main([*SMOKE, "--inference", "--profile", "--num_points", "64"])
    assert result.epochs == ()
    assert len(result.pass_seconds) == 2
    assert result.to_record()["pass_seconds"]["interval_95"] is None  # two are too few for one
    trace = Path("profile-points-EdgeCNN-modelnet-like-inference.json")
    assert "aten::mm" in trace.read_text() or "aten::addmm" in trace.read_text()
    assert result.trace == trace.name
    out = capsys.readouterr().out
    assert "graph (KNNGraph)" in out  # the search has a row of its own
    assert "last pass over the test clouds; median of 2: " in out


def test_a_profile_of_training_holds_the_optimizer():
    script("point_net").main([*SMOKE, "--epochs", "1", "--profile=True", "--num_points", "64"])
    trace = Path("profile-points-PointNet++-modelnet-like-training.json")
    assert "Optimizer.step#Adam.step" in trace.read_text()
    assert not Path("timeline.json").exists()


class Tiny(torch.nn.Module):
    """Samples, searches, and looks at the sampled positions of each cloud."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.sample, self.query = FarthestPoints(0.5), BallQuery(0.5)
        self.lin = torch.nn.Linear(3, num_classes)

    def forward(self, pos, batch, size):
        centres = self.sample(pos, batch)
        source, _ = self.query(pos, batch, centres)
        x = self.lin(pos.view(size, -1, 3).mean(dim=1) + pos[source].mean(dim=0))
        return x.log_softmax(dim=1)


def run_tiny(*flags: str) -> PointsResult:
    parser = points_parser(None, epochs=2, batch_size=4, scale=0.05)
    return run_script("Tiny", Tiny, parser, [*SMOKE, *flags])


# Dynamo looks at .grad of every tensor that it meets where a graph breaks.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiling_leaves_the_search_out_and_happens_before_the_durations(monkeypatch):
    graphs = []

    def noting(graph, inputs):
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    compile_fully = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_fully(model, backend=noting))
    torch._dynamo.reset()
    try:
        compiled = run_tiny("--compile")
    finally:
        torch._dynamo.reset()
    assert compiled.recompiled == 0
    assert compiled.compile_seconds > 0
    assert graphs
    assert max(graphs) < 30  # sampling 128 points, unrolled, would be thousands
    eager = run_tiny()
    assert eager.compile_seconds is None
    losses = [[epoch.train_loss for epoch in result.epochs] for result in (compiled, eager)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_bf16_leaves_the_positions_in_single_precision(monkeypatch):
    seen = []

    class Noting(Tiny):
        def forward(self, pos, batch, size):
            seen.append((pos.dtype, self.lin(pos).dtype))
            return super().forward(pos, batch, size)

    parser = points_parser(None, epochs=1, batch_size=4, scale=0.05)
    run_script("Tiny", Noting, parser, [*SMOKE, "--bf16"])
    assert set(seen) == {(torch.float32, torch.bfloat16)}


def settings(*flags: str) -> Settings:
    parser = points_parser(None, epochs=6, batch_size=16, scale=0.05)
    return Settings.from_args(parser.parse_args(flags))


def test_smoke_shrinks_the_clouds_of_stand_ins_only():
    small = settings("--smoke")
    assert (small.epochs, small.num_points, small.batch_size) == (2, 256, 8)
    assert (small.scale, small.max_clouds) == (0.023, 12)
    assert (settings().scale, settings().num_points) == (0.05, 256)
    assert settings("--scale", "0.5").scale == 0.5
    assert settings("--smoke", "--max_clouds", "3").max_clouds == 3
    real = settings("--smoke", "--dataset", "ModelNet10")
    assert (real.scale, real.max_clouds) == (None, 12)


def test_fewer_clouds_are_taken_from_all_over_the_set():
    assert at_most(3, list("aabbbbcccc")) == ["a", "b", "c"]
    assert at_most(None, "abc") == at_most(3, "abc") == at_most(9, "abc") == ["a", "b", "c"]


def test_the_flags_of_the_reference_are_accepted():
    asked = settings(
        *("--epochs=200", "--batch_size=32", "--lr=0.001", "--lr_decay_factor=0.5"),
        *("--lr_decay_step_size=50", "--weight_decay=0", "--inference", "--profile"),
        *("--bf16", "--compile"),
    )
    assert (asked.plan().epochs, asked.plan().lr_decay_step_size) == (200, 50)
    assert asked.task == "inference"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--dataset", "ModelNet10"], "ModelNet10"),
        (["--dataset", "ModelNet1"], "'ModelNet1' is unknown"),
        (["--device", "mps"], "device='mps' is not usable on this machine; give cpu"),
        (["--json", "no/where.jsonl"], "--json=no/where.jsonl: there is no folder no"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_before_any_work(flags, sentence, capsys):
    with pytest.raises(SystemExit) as caught:
        script("point_net").main(flags)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


@pytest.fixture
def calls(tmp_path, monkeypatch) -> Path:
    """A Python that notes its arguments and fails for one script."""
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/sh\nscript=${1##*/}\nshift\necho "$script $*" >> "$CALLS"\n'
        'case "$script" in mpnn.py) exit ${FAIL:-0} ;; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PYTHON", str(fake))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_run_sh_runs_all_and_tells_what_failed(calls, monkeypatch):
    def run() -> subprocess.CompletedProcess[str]:
        command = ["sh", str(POINTS / "run.sh"), "--smoke", "--json", "a b"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = run()
    assert (done.returncode, done.stdout) == (0, "All 5 scripts ended well.\n")
    assert {line.split()[0] for line in calls.read_text().splitlines()} == {
        f"{name}.py" for name in SCRIPTS
    }
    assert all(line.endswith(" --smoke --json a b") for line in calls.read_text().splitlines())
    monkeypatch.setenv("FAIL", "3")
    done = run()
    assert (done.returncode, done.stdout) == (1, "Of 5 scripts these failed: mpnn.py\n")


def test_brute_force_itself_is_right():
    x = torch.tensor([[0.0], [3.0], [1.0], [9.0]])
    batch = torch.tensor([0, 0, 0, 1])
    assert nearest(x, x[:1], batch, batch[:1], k=2) == [(0, 0), (0, 2)]
    assert farthest(x, 3) == [0, 3, 1]
