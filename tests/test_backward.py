"""The training step: backward, loss, optimizer, data loading, recomputation and memory by row."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    GraphSAGE,
    HeteroConv,
    SAGEConv,
    to_hetero,
)

from conftest import module_state
from gnnprof import Profiler
from gnnprof._attribution import SESSION_MARKER, Attribution, Site
from gnnprof._events import BACKWARD_PREFIX, Events, HostEvent, MemoryEvent
from gnnprof._rows import rows_of
from test_profiler import check_sums, row_of

NODES, EDGES, FEATURES, CLASSES = 60, 240, 8, 3


@pytest.fixture
def graph() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, FEATURES, generator=generator)
    edge_index = torch.randint(NODES, (2, EDGES), generator=generator)
    return x, edge_index, torch.randint(CLASSES, (NODES,), generator=generator)


def profiled_step(model: nn.Module, forward, y: Tensor, steps: int = 1, **options) -> Profiler:
    """Profile whole training steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    F.cross_entropy(forward(), y).backward()
    optimizer.step()  # its first call imports half of torch
    before = [state[:3] for state in module_state(model)]
    with Profiler(model, **options) as prof:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(forward(), y).backward()
            optimizer.step()
    assert [s[:2] for s in module_state(model)] == [s[:2] for s in before]
    check_sums(prof)
    return prof


# --- by hand ---------------------------------------------------------------------------------

CONV, LIN = Site(("conv",), "Conv"), Site(("conv.lin",), "Linear")


def event(name: str, start: int, end: int, sequence=-1, forward_thread=0, thread=1) -> HostEvent:
    return HostEvent(thread, start, start - end, start, name, 0, sequence, forward_thread)


def node(name: str, start: int, end: int, sequence: int, thread: int = 1) -> HostEvent:
    return event(f"{BACKWARD_PREFIX}{name}", start, end, sequence, 1, thread)


def by_hand(*host: HostEvent, memory=(), sites=(CONV, LIN)):
    events = Events(sorted([event(SESSION_MARKER, 0, 1000), *host]), sorted(memory), {}, 0, True)
    attribution = Attribution(sites)
    attribution.add(events)
    layout = [(path, site) for site in sites for path in site.paths]
    rows = rows_of(attribution, layout, with_device=False, with_memory=bool(memory))
    whole = attribution.session_ns + attribution.other_threads_ns
    own = [r.self_cpu_time + r.self_backward_cpu_time for r in rows if r.op is None]
    assert round(sum(own) * 1e9) == whole
    return {(row.path, row.phase, row.op): row for row in rows}


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


FORWARD = (
    event(CONV.marker, 100, 300),
    event("aten::mul", 110, 120, 4),  # shows 4, and creates nothing
    event(LIN.marker, 150, 250),
    event("aten::linear", 160, 240, 4),
    event("aten::addmm", 170, 230, 4),  # the last to start with 4: it creates node 4
    event("aten::relu", 260, 270, 5),
    event("aten::nll_loss", 320, 340, 6),
)


def test_a_node_belongs_to_the_last_op_that_started_with_its_number():
    table = by_hand(
        *FORWARD,
        node("NllLossBackward0", 400, 430, 6),
        node("ReluBackward0", 440, 460, 5),
        node("AddmmBackward0", 470, 570, 4),
        event("AddmmBackward0", 480, 560, 4, 1),  # shows its own node's number
        event("aten::mm", 490, 550),
        node("torch::autograd::AccumulateGrad", 580, 590, -1),
    )
    figures = {
        key: (ns(row.self_backward_cpu_time), ns(row.backward_cpu_time), row.backward_calls)
        for key, row in table.items()
        if key[2] is None
    }
    assert figures == {
        ("conv", None, None): (20, 120, 1),
        ("conv.lin", None, None): (100, 100, 1),
        (None, "loss", None): (30, 30, 1),
        (None, "gradient accumulation", None): (10, 10, 1),
        (None, "outside", None): (0, 0, 0),
    }
    assert ns(table[None, "loss", None].self_cpu_time) == 20
    mm = table["conv.lin", None, "aten::mm"]
    assert (mm.calls, ns(mm.self_cpu_time), ns(mm.self_backward_cpu_time)) == (0, 0, 60)
    assert mm.backward_calls == 1


def test_a_backward_on_another_thread_is_found_whatever_the_order_of_the_threads():
    for thread in (0, 2):
        table = by_hand(*FORWARD, node("AddmmBackward0", 470, 570, 4, thread))
        assert ns(table["conv.lin", None, None].self_backward_cpu_time) == 100


def test_ops_outside_without_a_backward_stay_outside():
    table = by_hand(*FORWARD, node("ReluBackward0", 440, 460, 5))
    assert (None, "loss", None) not in table
    assert table[None, "outside", "aten::nll_loss"].calls == 1
    assert table[None, "outside", None].calls == 1


def test_recomputation_is_no_second_call_and_its_time_is_backward():
    root = Site(("",), "Net")
    table = by_hand(
        event(root.marker, 50, 350),
        *FORWARD,
        node("AddmmBackward0", 400, 700, 4),
        event(LIN.marker, 450, 550),
        event("aten::addmm", 460, 540, 9),
        node("InnerBackward0", 560, 600, 9),
        sites=(root, CONV, LIN),
    )
    lin = table["conv.lin", None, None]
    assert (lin.calls, lin.recomputed_calls) == (1, 1)
    assert ns(lin.cpu_time) == 100
    assert ns(lin.self_backward_cpu_time) == 300 - 100 - 40 + 100 + 40
    assert ns(table["", None, None].backward_cpu_time) == 300
    assert ns(table["conv", None, None].backward_cpu_time) == 300


def test_a_second_backward_goes_to_the_first_creator():
    table = by_hand(
        *FORWARD,
        node("AddmmBackward0", 400, 500, 4),
        event("aten::mul", 410, 450, 8),  # in the backward, under create_graph
        node("MulBackward0", 600, 700, 8),
    )
    assert ns(table["conv.lin", None, None].self_backward_cpu_time) == 200


def test_a_node_whose_forward_was_before_the_block_is_outside():
    table = by_hand(*FORWARD, node("OldBackward0", 600, 700, 1))
    assert ns(table[None, "outside", None].self_backward_cpu_time) == 100


def test_peaks_allocations_and_frees():
    memory = [
        MemoryEvent(1, 170, 4000, False),
        MemoryEvent(1, 265, 1000, False),
        MemoryEvent(1, 480, 2000, False),
        MemoryEvent(1, 490, -4000, False),
        MemoryEvent(1, 900, -3000, False),
    ]
    table = by_hand(*FORWARD, node("AddmmBackward0", 470, 570, 4), memory=memory)
    figures = {
        key: (row.allocated_memory, row.freed_memory, row.peak_memory)
        for key, row in table.items()
        if key[2] is None
    }
    assert figures == {
        ("conv", None, None): (1000, 0, 7000),
        ("conv.lin", None, None): (4000 + 2000, 4000, 7000),
        (None, "outside", None): (0, 3000, 7000),
    }
    net = {
        key[0]: (row.self_cpu_memory, row.cpu_memory) for key, row in table.items() if not key[2]
    }
    assert net == {"conv": (1000, 3000), "conv.lin": (2000, 2000), None: (-3000, -3000)}


# --- real steps ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GAT, GIN])
def test_a_training_step_is_covered(kind, graph):
    x, edge_index, y = graph
    model = kind(FEATURES, 16, 2, CLASSES)
    prof = profiled_step(model, lambda: model(x, edge_index), y, steps=2)
    assert prof.coverage >= 0.99
    root = row_of(prof, "")
    assert root.calls == 2
    inside = [row for row in prof.rows if row.op is None and row.path is not None]
    own = sum(row.self_backward_cpu_time for row in inside)
    assert root.backward_cpu_time == pytest.approx(own)
    assert row_of(prof, None, "optimizer").calls == 4  # step and zero_grad
    assert row_of(prof, None, "loss", "aten::cross_entropy_loss").calls == 2
    accumulated = row_of(prof, None, "gradient accumulation").backward_calls
    assert accumulated == 2 * len(list(model.parameters()))


def test_to_hetero_and_hetero_conv_are_covered(graph):
    x, edge_index, y = graph
    features = {"a": x, "b": x}
    edges = {("a", "to", "b"): edge_index, ("b", "to", "a"): edge_index}
    traced = to_hetero(GraphSAGE(FEATURES, 8, 2, CLASSES), (list(features), list(edges)))
    convs = HeteroConv({e: SAGEConv(FEATURES, CLASSES) for e in edges})
    for model in (traced, convs):
        prof = profiled_step(model, lambda model=model: model(features, edges)["a"], y)
        assert prof.coverage >= 0.99
        layers = [r for r in prof.rows if r.module == "SAGEConv" and r.phase == "message"]
        assert len(layers) == (4 if model is traced else 2)
        assert all(row.calls == 1 for row in layers)


class _Sleep(torch.autograd.Function):
    """Identity whose forward and backward sleep."""

    @staticmethod
    def forward(ctx, x, forward_seconds, backward_seconds):
        ctx.seconds = backward_seconds
        time.sleep(forward_seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None, None


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GAT, GIN])
def test_a_planted_slow_phase_and_backward_are_found_with_their_share(kind, graph):
    x, edge_index, y = graph
    model = kind(FEATURES, 16, 2, CLASSES)
    handle = model.convs[1].register_message_forward_hook(
        lambda _module, _inputs, out: _Sleep.apply(out, 0.2, 0.4)
    )
    prof = profiled_step(model, lambda: model(x, edge_index), y)
    handle.remove()
    message = row_of(prof, "convs.1", "message")
    for seconds, planted in (
        (message.self_cpu_time, 0.2),
        (message.self_backward_cpu_time, 0.4),
    ):
        share, expected = seconds / prof.total_time, planted / prof.total_time
        assert 100 * share == pytest.approx(100 * expected, abs=3)
    assert row_of(prof, "convs.0", "message").self_backward_cpu_time < 0.05


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_counts_one_forward_call(reentrant, graph):
    x, edge_index, y = graph
    x = x.clone().requires_grad_()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = GCN(FEATURES, 8, 2, CLASSES)

        def forward(self, x, edge_index):
            return checkpoint(self.block, x, edge_index, use_reentrant=reentrant)

    model = Net()
    prof = profiled_step(model, lambda: model(x, edge_index), y)
    conv = row_of(prof, "block.convs.0")
    assert (conv.calls, conv.recomputed_calls) == (1, 1)
    assert row_of(prof, "").backward_cpu_time >= row_of(prof, "block").backward_cpu_time
    assert row_of(prof, "block.convs.0.lin").self_backward_cpu_time is not None


def test_in_place_work_on_a_view_has_its_backward_in_its_row():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            h = self.lin(x)
            out = torch.empty_like(h)
            out[:, :4] = h[:, :4]
            out[:, 4:].add_(h[:, 4:])
            return out.relu()

    model = nn.Sequential(Halves(), nn.Linear(8, 1))
    x = torch.ones(50, 8)
    before = torch.ones(3, requires_grad=True).exp().sum()  # of a graph that no op here has made
    with Profiler(model) as prof:
        model(x).sum().backward()
        before.backward()
    check_sums(prof)
    name = f"{BACKWARD_PREFIX}torch::autograd::CopySlices"
    found = {row.path: row.backward_calls for row in prof.rows if row.op == name}
    assert found == {"0": 2}
    outside = [row.op for row in prof.rows if row.path is None and row.backward_calls]
    assert f"{BACKWARD_PREFIX}ExpBackward0" in outside


def test_data_loading_is_a_row():
    model = nn.Linear(4, 2)

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Tensor:
            time.sleep(0.01)
            return torch.ones(4)

    with Profiler(model) as prof:
        for batch in DataLoader(Slow(), batch_size=2):
            model(batch)
    check_sums(prof)
    loading = row_of(prof, None, "data loading")
    assert loading.calls == 3  # two batches and the end
    assert loading.cpu_time == pytest.approx(0.04, abs=0.02)


def test_without_a_backward_its_columns_are_unknown(graph):
    model = GCN(FEATURES, 16, 2, CLASSES)
    with Profiler(model) as prof:
        model(*graph[:2])
    assert {row.self_backward_cpu_time for row in prof.rows} == {None}
    assert "backward" not in str(prof)


def test_the_peak_of_a_step_is_that_of_its_tensors():
    model = nn.Sequential(nn.Linear(100, 1000, bias=False), nn.Linear(1000, 10, bias=False))
    x = torch.ones(50, 100)
    with Profiler(model, profile_memory=True) as prof, torch.no_grad():
        model(x)
    hidden, out = 50 * 1000 * 4, 50 * 10 * 4
    assert row_of(prof, "").peak_memory == hidden + out
    assert row_of(prof, "0").peak_memory == hidden
    assert (row_of(prof, "1").allocated_memory, row_of(prof, "").freed_memory) == (out, hidden)
