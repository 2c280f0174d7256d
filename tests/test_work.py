"""FLOPs, bytes and the share of the limit, as the Profiler shows them with `counts=True`."""

from __future__ import annotations

import copy
import io
import json
import threading

import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

from conftest import module_state
from gnnprof import Profiler, _limits
from gnnprof._attribution import RowKey
from gnnprof._work import CountedForward, Work, with_work
from test_profiler import check_sums, row_of

NODES, EDGES, WIDTH = 200, 1000, 16


@pytest.fixture
def graph() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, WIDTH, generator=generator)
    return x, torch.randint(NODES, (2, EDGES), generator=generator)


def test_a_forward_on_other_threads_is_not_counted(graph):
    class Threaded(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(WIDTH, 2)

        def forward(self, x):
            thread = threading.Thread(target=self.lin, args=(x,))
            thread.start()
            thread.join()
            return x + 1

    with Profiler(Threaded(), counts=True) as prof:
        prof(graph[0])
    assert "Not counted: the forward calls modules on other threads" in str(prof)
    assert row_of(prof, "").flops is None


def counted(model: nn.Module, *args: object, forwards: int = 1, **options: object) -> Profiler:
    before = module_state(model)
    random_state = torch.get_rng_state()
    with torch.no_grad(), Profiler(model, counts=True, **options) as prof:
        for _ in range(forwards):
            model(*args)
    assert module_state(model) == before
    if not model.training:
        assert torch.equal(torch.get_rng_state(), random_state)
    check_sums(prof)
    return prof


def test_a_linear_layer_by_hand():
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.ReLU())
    prof = counted(model, torch.ones(10, 8), forwards=3)
    matmul, relu = 2 * 10 * 8 * 4, 10 * 4
    assert row_of(prof, "0").flops == 3 * matmul
    assert row_of(prof, "1").flops == 3 * relu
    assert row_of(prof, "").flops == 3 * (matmul + relu)
    moved = 4 * (10 * 8 + 8 * 4 + 10 * 4)
    assert row_of(prof, "0", op="aten::mm").bytes_moved == 3 * moved
    assert row_of(prof, "0").bytes_moved == 3 * moved
    assert row_of(prof, None, "outside").flops is None


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GAT, GIN])
def test_gather_and_scatter_of_a_layer_by_hand(kind, graph):
    prof = counted(kind(WIDTH, WIDTH, 2, WIDTH).eval(), *graph, forwards=2)
    loops = NODES if kind in (GCN, GAT) else 0  # these two add self-loops
    edges = EDGES + loops - (int((graph[1][0] == graph[1][1]).sum()) if loops else 0)
    node_bytes, edge_bytes, index_bytes = 4 * NODES * WIDTH, 4 * edges * WIDTH, 8 * edges
    gather = row_of(prof, "convs.0", "propagate", "aten::index_select")
    if kind is not GAT:  # which also gathers its attention, of another width, elsewhere
        assert gather.bytes_moved == 2 * (node_bytes + index_bytes + edge_bytes)
    scatter = row_of(prof, "convs.0.aggr_module", op="aten::scatter_add_")
    # A mean also scatters a one per edge, to count them.
    ones = (2 * 4 * NODES + index_bytes + 4 * edges) if kind is GraphSAGE else 0
    assert scatter.bytes_moved == 2 * (2 * node_bytes + index_bytes + edge_bytes + ones)
    assert scatter.flops == 2 * edges * (WIDTH + (kind is GraphSAGE))
    for row in prof.rows:
        assert row.percent_of_limit is None or 0 < row.percent_of_limit <= 105
        assert row.bound in (None, "memory", "compute", "overhead")
    assert row_of(prof, "").flops == sum(
        row_of(prof, path).flops
        for path in ("act", "convs.0", "convs.1", "dropout")
        if row_of(prof, path).shared_with is None
        and not (kind is GIN and path == "act")  # counted inside the layers, too
    ) + (2 * NODES * WIDTH if kind is GIN else 0)


def test_tiny_layers_are_bound_by_overhead():
    prof = counted(nn.Sequential(*[nn.Linear(2, 2) for _ in range(5)]), torch.ones(1, 2))
    assert row_of(prof, "").bound == "overhead"


def test_running_statistics_and_dropout_stay_as_after_the_block(graph):
    model = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.5))
    reference = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.5))
    torch.manual_seed(1)
    expected = [reference(graph[0]), reference(graph[0])]
    torch.manual_seed(1)
    first = []
    with Profiler(model, counts=True) as prof:
        first.append(model(graph[0]))
    first.append(model(graph[0]))
    assert all(torch.equal(a, b) for a, b in zip(first, expected, strict=True))
    assert torch.equal(model[0].running_mean, reference[0].running_mean)
    assert row_of(prof, "0").calls == 1


def test_a_forward_that_writes_to_its_input_is_not_repeated():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.add_(1)

    x = torch.zeros(3)
    model = InPlace()
    with Profiler(model, counts=True) as prof:
        model(x)
    assert torch.equal(x, torch.ones(3))
    assert row_of(prof, "").flops is None
    assert "Not counted: the forward changes a tensor" in str(prof)


@pytest.mark.parametrize(
    ("error", "said"),
    [(IndexError("pop from empty list"), "IndexError: pop"), (StopIteration(), "StopIteration")],
)
def test_a_forward_that_cannot_be_repeated_is_a_note(error, said):
    class Once(nn.Linear):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            if self.calls > 1:
                raise error
            return super().forward(x)

    model = Once(4, 4)
    with Profiler(model, counts=True) as prof:
        model(torch.ones(2, 4))
    assert f"Not counted: repeating a forward raised {said}" in str(prof)
    assert row_of(prof, "").flops is None
    check_sums(prof)


def test_the_forward_is_repeated_in_the_mode_in_which_it_ran():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x = torch.ones(2, 4)
    with Profiler(model, counts=True) as prof:
        model(x)
        model.eval()
        model.train()[1].eval()
    assert [part.training for part in model.modules()] == [True, True, False]
    assert row_of(prof, "1").flops > 0  # none in eval mode


def test_a_model_that_is_saved_or_copied_while_it_is_counted_keeps_nothing():
    model = nn.Sequential(nn.Linear(4, 4))
    x = torch.ones(2, 4)
    with Profiler(model, counts=True):
        copied = copy.deepcopy(model)
        saved = io.BytesIO()
        torch.save(model, saved)
        model(x)
    copied(x)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    loaded(x)
    for other in (copied, loaded):
        for part in other.modules():
            assert not part._forward_pre_hooks
            assert not part._forward_pre_hooks_with_kwargs
            assert not part._forward_hooks


def test_an_op_has_the_work_of_the_calls_that_were_counted():
    class Sums(nn.Module):
        def forward(self, x):
            return x.sum()

    class Copies(nn.Module):
        def forward(self, x):
            part = torch.empty(2, 2)
            part.copy_(x[:2, :2])
            return x.clone()

    x = torch.ones(1000, 64)
    prof = counted(Sums(), x, forwards=3)
    assert row_of(prof, "").flops == 3 * 64_000
    assert row_of(prof, "", op="aten::sum").flops in (3 * 64_000, None)
    prof = counted(Copies(), x)
    copies = row_of(prof, "", op="aten::copy_")
    assert copies.calls == 2  # one of them inside clone, whose work is clone's
    assert copies.bytes_moved is None


def test_a_launch_is_not_compared_with_the_limit_of_the_device():
    work = Work(calls=1, flops=10, nbytes=20)
    work.ops[10, 20, torch.device("cuda"), torch.float32] += 1
    key = RowKey("", None)
    model = nn.Linear(4, 4)
    with Profiler(model) as prof:
        model(torch.ones(2, 4))
    (launched,) = with_work([row_of(prof, "")], CountedForward(rows={key: work}), model)
    assert (launched.flops, launched.bytes_moved) == (10, 20)
    assert launched.percent_of_limit is launched.bound is None


def test_the_machine_is_measured_again_once_at_most(monkeypatch):
    again = []
    monkeypatch.setattr(_limits, "measure_again", lambda: again.append(1))
    monkeypatch.setattr(_limits, "percent_of_limit", lambda *_: 1000.0)
    prof = counted(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))), torch.ones(2, 4))
    assert row_of(prof, "3").flops
    assert again == [1]


def test_a_block_that_raises_or_calls_nothing_counts_nothing():
    model = nn.Linear(2, 2)
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        raise ValueError("boom")

    handle = model.register_forward_hook(fail)
    with pytest.raises(ValueError, match="boom"), Profiler(model, counts=True):
        model(torch.ones(1, 2))
    assert len(calls) == 1
    handle.remove()
    with Profiler(model, counts=True) as prof:
        pass
    assert "Not counted: no forward was recorded" in str(prof)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_has_flops_but_no_bytes():
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(8, 4, bias=False), backend="eager")
    model(torch.ones(10, 8))
    with Profiler(model, counts=True) as prof:
        model(torch.ones(10, 8))
    root = row_of(prof, "")
    assert prof.steps == 1
    assert (root.flops, root.bytes_moved, root.percent_of_limit) == (2 * 10 * 8 * 4, None, None)
    torch._dynamo.reset()


def test_columns_limits_and_the_page(graph, tmp_path):
    prof = counted(GCN(WIDTH, 8, 2, 3).eval(), *graph)
    heading = str(prof).splitlines()[0]
    assert all(word in heading for word in ("FLOPs", "Bytes moved", "% of limit", "Bound by"))
    assert "Limits: copy" in str(prof)
    saved = json.loads(prof.to_json(tmp_path / "prof.json").read_text())
    assert saved["limits"]["dtype"] == "float32"
    assert saved["limits"]["bandwidth"] > 1e6
    assert "roofline" in prof.to_html(tmp_path / "page.html").read_text().lower()
