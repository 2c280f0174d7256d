"""Counts against formulas done by hand, and proof that the counting pass leaves nothing behind."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
from collections import Counter, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import module_state
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from gnnprof import _counting, _formulas
from gnnprof._counting import CallSettings, CannotCount, OpCounter, counting_pass

# torch's own words about sparse tensors, once per process.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """Spare the tests the wait for a core that others use."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


FLOAT, INDEX = 4, 8  # bytes of a float32 and of an int64


def ops_of(function, *args):
    """Return the counts of everything that moved data or computed."""
    counts = []
    with OpCounter(counts.append):
        function(*args)
    return [op for op in counts if op.nbytes or op.flops != 0]


def only_op(function, *args):
    (op,) = ops_of(function, *args)
    return op


def counted(function, *args):
    op = only_op(function, *args)
    return op.flops, op.nbytes


def totals(model, *args):
    """Return FLOPs and bytes of a forward by op name, and the number of calls of each."""
    flops, nbytes, calls = Counter(), Counter(), Counter()

    def add(op):
        flops[op.name] += op.flops
        nbytes[op.name] += op.nbytes
        calls[op.name] += 1

    assert counting_pass(model, args, {}, add) == {}
    return flops, nbytes, calls


# -- one op ----------------------------------------------------------------------------------------

N, E, F = 50, 400, 16


@pytest.fixture
def x():
    return torch.rand(N, F)


@pytest.fixture
def index():
    return torch.randint(N, (E,))


GATHERED = N * F * FLOAT + E * INDEX + E * F * FLOAT
SCATTERED = N * F * FLOAT + E * INDEX + E * F * FLOAT + N * F * FLOAT


def test_gathers_read_the_source_the_index_and_write_the_rows(x, index):
    rows = index.view(-1, 1).expand(-1, F)
    assert counted(torch.index_select, x, 0, index) == (0, GATHERED)
    assert counted(lambda: x[index]) == (0, GATHERED)
    assert counted(torch.nn.functional.embedding, index, x) == (0, GATHERED)
    assert counted(torch.gather, x, 0, rows) == (0, GATHERED)


def test_a_gather_of_few_rows_reads_no_more_than_it_returns():
    table = torch.rand(10_000, F)
    moved = 3 * F * FLOAT + 3 * INDEX + 3 * F * FLOAT
    assert counted(torch.index_select, table, 0, torch.tensor([5, 5, 9])) == (0, moved)


def test_scatters_in_place_read_and_write_what_they_touch(x, index):
    source, rows = torch.rand(E, F), index.view(-1, 1).expand(-1, F)
    assert counted(x.scatter_add_, 0, rows, source) == (E * F, SCATTERED)
    assert counted(x.index_add_, 0, index, source) == (E * F, SCATTERED)
    assert counted(x.scatter_reduce_, 0, rows, source, "amax") == (E * F, SCATTERED)
    assert counted(x.scatter_reduce_, 0, rows, source, "mean") == (E * F + N * F, SCATTERED)
    added = counted(lambda: x.index_put_((index,), source, accumulate=True))
    assert added == (E * F, SCATTERED)


def test_scatters_that_replace_do_not_read_their_target(x, index):
    source, rows = torch.rand(E, F), index.view(-1, 1).expand(-1, F)
    replaced = SCATTERED - N * F * FLOAT
    assert counted(x.scatter_, 0, rows, source) == (0, replaced)
    assert counted(x.index_copy_, 0, index, source) == (0, replaced)
    assert counted(lambda: x.index_put_((index,), source)) == (0, replaced)


def test_a_scatter_of_few_rows_touches_no_more_than_these():
    target, source, index = torch.rand(10_000, F), torch.rand(3, F), torch.tensor([5, 5, 9])
    moved = 3 * (3 * F * FLOAT) + 3 * INDEX  # target read, source read, target written
    assert counted(target.index_add_, 0, index, source) == (3 * F, moved)
    added = counted(lambda: target.index_put_((index,), source, accumulate=True))
    assert added == (3 * F, moved)
    ones = torch.ones(3)
    one_each = counted(lambda: target.index_put_((index, index), ones, accumulate=True))
    assert one_each == (3, 3 * (3 * FLOAT) + 3 * INDEX)


def test_a_mask_may_name_every_element(x):
    mask, value = x[:, 0] > 0.5, torch.tensor(0.0)
    moved = N * F * FLOAT + N + FLOAT  # all written, the mask and one value read
    assert counted(lambda: x.index_put_((mask,), value)) == (0, moved)


def test_scatters_out_of_place_write_a_whole_copy(x, index):
    source = torch.rand(E, F)
    assert counted(torch.index_add, x, 0, index, source) == (E * F, SCATTERED)
    few = torch.index_add, x, 0, index[:1], source[:1]
    assert counted(*few) == (F, 2 * N * F * FLOAT + INDEX + F * FLOAT)


def test_segments(x):
    lengths = torch.tensor([20, 30])
    moved = N * F * FLOAT + 2 * INDEX + 2 * F * FLOAT
    assert counted(lambda: torch.segment_reduce(x, "sum", lengths=lengths)) == (N * F, moved)


def test_elementwise_ops_count_shared_input_once(x):
    size = N * F * FLOAT
    assert counted(torch.add, x, x) == (N * F, 2 * size)
    assert counted(torch.mul, x, torch.rand(N, F)) == (N * F, 3 * size)
    assert counted(torch.mul, x, torch.rand(N, 1).expand(N, F)) == (N * F, 2 * size + N * FLOAT)
    assert counted(torch.exp, x[:, 0]) == (N, 2 * N * FLOAT)
    assert counted(torch.addcmul, x, x, x) == (3 * N * F, 2 * size)


def test_what_is_overwritten_is_not_read(x):
    size, other = N * F * FLOAT, torch.rand(N, F)
    assert counted(x.add_, other) == (N * F, 3 * size)
    assert counted(x.relu_) == (N * F, 2 * size)
    assert counted(x.copy_, other) == (0, 2 * size)
    assert counted(x.zero_) == (0, size)
    assert counted(x.uniform_) == (0, size)
    assert counted(torch.zeros_like, x) == (0, size)
    assert counted(x.new_ones, 7) == (0, 7 * FLOAT)
    assert counted(lambda: torch.mul(other, 2, out=x)) == (N * F, 2 * size)


def test_views_and_reserved_memory_are_free(x):
    def views():
        x.view(F, N).t()[:3].unsqueeze(0).expand(5, 3, F).detach()
        torch.empty(5)
        torch.empty_like(x)

    counts = []
    with OpCounter(counts.append):
        views()
    assert {(op.flops, op.nbytes) for op in counts} == {(0, 0)}
    assert len(counts) == 8


def test_reductions_count_their_input(x):
    size = N * F * FLOAT
    assert counted(torch.sum, x) == (N * F, size + FLOAT)
    assert counted(torch.mean, x, 0) == (N * F, size + F * FLOAT)
    assert counted(torch.amax, x, 1) == (N * F, size + N * FLOAT)
    assert counted(torch.var, x) == (4 * N * F, size + FLOAT)
    assert counted(torch.softmax, x, 1) == (5 * N * F, 2 * size)


def test_integers_are_no_floating_point_operations(index):
    assert counted(torch.add, index, 1) == (0, 2 * E * INDEX)
    assert counted(torch.ne, index, 1) == (0, E * INDEX + E)
    assert only_op(torch.add, index, 1).dtype is None


def test_a_value_read_by_the_host_is_moved(x):
    one = x[0, 0]
    assert [(op.name, op.flops, op.nbytes) for op in ops_of(float, one)] == [
        ("aten::_local_scalar_dense", 0, FLOAT)
    ]


def test_dense_products_agree_with_torchs_registry(x):
    weight, batch = torch.rand(F, 8), torch.rand(3, N, F)
    mm, addmm = flop_registry[torch.ops.aten.mm], flop_registry[torch.ops.aten.addmm]
    moved = (N * F + F * 8 + N * 8) * FLOAT
    assert counted(torch.mm, x, weight) == (mm(x, weight, out_val=None), moved)
    bias = torch.rand(8)
    assert counted(torch.addmm, bias, x, weight) == (addmm(bias, x, weight), moved + 8 * FLOAT)
    assert counted(torch.mv, x, x[0])[0] == 2 * N * F
    assert counted(torch.dot, x[0], x[1])[0] == 2 * F
    assert counted(torch.mm, x[:F], x[:F])[0] == 2 * F**3
    square = x[:F]
    assert counted(torch.mm, square, square) == (2 * F**3, 2 * F * F * FLOAT)
    assert counted(torch.bmm, batch, batch.mT.contiguous())[0] == 2 * 3 * N * F * N


def test_convolution_comes_from_torchs_registry():
    convolution = nn.Conv1d(4, 8, 3, bias=False)
    with torch.no_grad():
        assert counted(convolution, torch.rand(2, 4, 10))[0] == 2 * (2 * 8 * 8) * 4 * 3


def test_sparse_products_count_stored_elements(x):
    nonzero = 3 * N
    pattern = torch.stack([torch.arange(N).repeat(3), torch.arange(3).repeat_interleave(N)])
    coo = torch.sparse_coo_tensor(
        pattern, torch.rand(nonzero), (N, N), check_invariants=False
    ).coalesce()
    dense = 2 * N * F * FLOAT
    assert counted(torch.mm, coo, x) == (
        2 * nonzero * F,
        2 * nonzero * INDEX + nonzero * FLOAT + dense,
    )
    csr = coo.to_sparse_csr()
    moved = (N + 1 + nonzero) * INDEX + nonzero * FLOAT + dense
    assert counted(torch.mm, csr, x) == (2 * nonzero * F, moved)
    zeros, product = ops_of(torch.sparse.mm, csr, x)
    assert (zeros.name, zeros.nbytes) == ("aten::zeros", N * F * FLOAT)
    # The zeros are multiplied by beta = 0: they are written, not read.
    assert (product.flops, product.nbytes) == (2 * nonzero * F, moved)
    mean = only_op(torch.sparse.mm, csr, x, "mean")
    assert (mean.name, mean.flops) == ("aten::_sparse_mm_reduce_impl", 2 * nonzero * F)


def test_batch_norm_writes_its_running_statistics(x):
    norm = nn.BatchNorm1d(F)
    (_, op) = ops_of(norm, x)  # the first counts batches
    saved = 2 * F * FLOAT  # mean and inverse deviation, for the backward
    read = (N * F + 4 * F) * FLOAT  # input, weight, bias, running mean and variance
    assert (op.name, op.flops) == ("aten::native_batch_norm", 8 * N * F)
    assert op.nbytes == read + N * F * FLOAT + saved + 2 * F * FLOAT
    norm.eval()
    assert counted(norm, x) == (4 * N * F, read + N * F * FLOAT)


def test_layer_norm_without_weights(x):
    assert counted(nn.LayerNorm(F, elementwise_affine=False), x)[0] == 6 * N * F


def test_attention_counts_both_products():
    query, key = torch.rand(1, 2, 5, 8), torch.rand(1, 2, 7, 8)
    attention = nn.functional.scaled_dot_product_attention
    assert counted(attention, query, key, key)[0] == 2 * (2 * 5 * 7) * (8 + 8)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_higher_order_ops_come_from_torchs_registry():
    class Attention(nn.Module):
        def forward(self, x):
            from torch.nn.attention.flex_attention import flex_attention

            return flex_attention(x, x, x)

    flops, _, _ = totals(Attention(), torch.rand(1, 2, 16, 8))
    assert flops["higher_order::flex_attention"] == 2 * (2 * 16 * 16) * (8 + 8)


def test_a_product_of_two_sparse_matrices_is_reported():
    sparse = torch.eye(3).to_sparse_coo()

    class Square(nn.Module):
        def forward(self, adj):
            return adj @ adj

    assert counting_pass(Square(), (sparse,), {}, lambda op: None) == {"aten::mm": 1}


def test_an_op_without_a_formula_is_reported():
    lstm = nn.LSTM(4, 4)
    counts = []
    unsupported = counting_pass(lstm, (torch.rand(3, 2, 4),), {}, counts.append)
    (name,) = unsupported
    assert name.startswith("aten::mkldnn_rnn_layer")
    assert [op.flops for op in counts if op.name == name] == [None]


def test_ranges_of_a_profiler_are_no_ops(x):
    def marked():
        with torch.profiler.record_function("mine"):
            return x.relu()

    assert only_op(marked).name == "aten::relu"


def test_devices_and_types(x):
    op = only_op(torch.mm, x.bfloat16(), torch.rand(F, 2, dtype=torch.bfloat16))
    assert (op.device, op.dtype) == (torch.device("cpu"), torch.bfloat16)
    meta = torch.empty(N, F, device="meta")
    op = only_op(torch.add, meta, 1)
    assert (op.device.type, op.flops, op.nbytes) == ("meta", N * F, 2 * N * F * FLOAT)


def test_fake_tensors_count_like_real_ones(index):
    with FakeTensorMode() as mode:
        fake, fake_index = torch.rand(N, F), mode.from_tensor(index)
        assert counted(torch.index_select, fake, 0, fake_index) == (0, GATHERED)
        assert counted(torch.add, fake, fake) == (N * F, 2 * N * F * FLOAT)


def test_an_edge_index_counts_by_what_it_wraps(x, index):
    edges = torch.stack([index.sort().values, index])
    sparse = EdgeIndex(edges, sparse_size=(N, N), is_undirected=False, sort_order="row")
    assert counted(lambda: x.index_select(0, sparse[0])) == (0, GATHERED)
    product = next(op for op in ops_of(sparse.matmul, x) if op.name.startswith("aten::_sparse_mm"))
    assert product.flops == 2 * E * F


def test_backward_is_counted_too(x):
    weight = torch.rand(F, 8, requires_grad=True)
    flops = Counter()
    with OpCounter(lambda op: flops.update({op.name: op.flops})):
        (x @ weight).sum().backward()
    assert flops["aten::mm"] == 2 * (2 * N * F * 8)


# -- layers ----------------------------------------------------------------------------------------

NODES, EDGES, IN, OUT, HEADS = 10_000, 200_000, 16, 8, 2


@pytest.fixture(scope="module")
def graph():
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(NODES, (EDGES,), generator=generator)
    step = torch.randint(1, NODES, (EDGES,), generator=generator)
    edge_index = torch.stack([source, (source + step) % NODES])  # no loops of its own
    return torch.rand(NODES, IN), edge_index


def gather(rows, width, source_rows=NODES):
    return (source_rows * width + rows * width) * FLOAT + rows * INDEX


def scatter(rows, width):
    return (2 * NODES * width + rows * width) * FLOAT + rows * INDEX


def test_gcn_layer(graph):
    flops, nbytes, calls = totals(GCNConv(IN, OUT), *graph)
    edges = EDGES + NODES  # self loops
    assert nbytes["aten::index_select"] == gather(edges, OUT)
    assert nbytes["aten::scatter_add_"] == scatter(edges, OUT) + scatter(edges, 1)
    assert calls["aten::scatter_add_"] == 2  # degrees, messages
    assert flops == {
        **dict.fromkeys(flops, 0),
        "aten::mm": 2 * NODES * IN * OUT,
        "aten::scatter_add_": edges + edges * OUT,
        "aten::pow_": NODES,
        "aten::mul": 2 * edges + edges * OUT,  # the norm from both ends; the messages
        "aten::add": NODES * OUT,
    }


def test_gat_layer(graph):
    flops, nbytes, _ = totals(GATConv(IN, OUT, heads=HEADS), *graph)
    edges, width = EDGES + NODES, HEADS * OUT
    # Scores of source and target, the maximum and the sum of the softmax; the messages.
    assert nbytes["aten::index_select"] == 4 * gather(edges, HEADS) + gather(edges, width)
    assert nbytes["aten::scatter_reduce_"] == scatter(edges, HEADS)
    assert nbytes["aten::scatter_add_"] == scatter(edges, HEADS) + scatter(edges, width)
    assert flops == {
        **dict.fromkeys(flops, 0),
        "aten::mm": 2 * NODES * IN * width,
        "aten::mul": 2 * NODES * width + edges * width,
        "aten::sum": 2 * NODES * width,
        "aten::add": edges * HEADS + NODES * HEADS + NODES * width,
        "aten::leaky_relu": edges * HEADS,
        "aten::scatter_reduce_": edges * HEADS,
        "aten::sub": edges * HEADS,
        "aten::exp": edges * HEADS,
        "aten::div": edges * HEADS,
        "aten::scatter_add_": edges * HEADS + edges * width,
    }


def test_sage_layer(graph):
    flops, nbytes, _ = totals(SAGEConv(IN, OUT), *graph)
    assert nbytes["aten::index_select"] == gather(EDGES, IN)
    assert nbytes["aten::scatter_add_"] == scatter(EDGES, 1) + scatter(EDGES, IN)
    assert flops == {
        **dict.fromkeys(flops, 0),
        "aten::scatter_add_": EDGES + EDGES * IN,
        "aten::clamp": NODES,
        "aten::div": NODES * IN,
        "aten::addmm": 2 * NODES * IN * OUT,
        "aten::mm": 2 * NODES * IN * OUT,
        "aten::add": NODES * OUT,
    }


def test_gin_layer(graph):
    flops, nbytes, _ = totals(GINConv(nn.Linear(IN, OUT)), *graph)
    assert nbytes["aten::index_select"] == gather(EDGES, IN)
    assert nbytes["aten::scatter_add_"] == scatter(EDGES, IN)
    assert flops == {
        **dict.fromkeys(flops, 0),
        "aten::scatter_add_": EDGES * IN,
        "aten::mul": NODES * IN,
        "aten::add": 1 + NODES * IN,  # 1 + eps; its product with x, added
        "aten::addmm": 2 * NODES * IN * OUT,
    }


@pytest.mark.parametrize("layer", [GCNConv, GATConv, SAGEConv])
def test_inference_mode_counts_the_same(graph, layer):
    conv = layer(IN, OUT)
    with_grad, inference = [], []
    counting_pass(conv, graph, {}, with_grad.append, CallSettings(True, False, ()))
    counting_pass(conv, graph, {}, inference.append, CallSettings(False, True, ()))
    moving = [[op for op in ops if op.nbytes] for ops in (with_grad, inference)]
    assert moving[0] == moving[1]


# -- the pass leaves no trace ----------------------------------------------------------------------


class Stateful(nn.Module):
    """Keeps state in every way that a forward may."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(F)
        self.norm_again = self.norm
        self.dropout = nn.Dropout()
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.history = []
        self.recent = deque([1, 2], maxlen=2)
        self.hits = np.zeros(2)
        self.cache = {"kept": 1}
        self.torch_generator = torch.Generator()
        self.numpy_generator = np.random.default_rng(0)
        self.numpy_state = np.random.RandomState(0)
        self.python_generator = random.Random(0)
        self.system_generator = random.SystemRandom()  # has no state

    def forward(self, x):
        self.calls += 1
        self.history.append(x)
        self.recent.append(3)
        self.hits += 1
        self.draw()
        self.cache["last"] = x
        self.new = x
        self.seen += 1
        self.norm.running_mean = self.norm.running_mean * 2
        random.random()
        return self.dropout(self.norm_again(self.norm(x)))

    def draw(self):
        """One number of each generator."""
        return [
            torch.rand((), generator=self.torch_generator).item(),
            self.numpy_generator.random(),
            self.numpy_state.random(),
            self.python_generator.random(),
        ]


def test_a_pass_leaves_the_model_as_found(x):
    model = Stateful()
    before, state = module_state(model), {k: v.clone() for k, v in model.state_dict().items()}
    buffers = {name: id(buffer) for name, buffer in model.named_buffers()}
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    random_state, torch_state = random.getstate(), torch.get_rng_state()

    counting_pass(model, (x,), {}, lambda op: None)

    assert module_state(model) == before
    assert (model.calls, model.history, model.cache) == (0, [], {"kept": 1})
    assert (list(model.recent), model.hits.tolist()) == ([1, 2], [0.0, 0.0])
    assert model.draw() == Stateful().draw()
    assert not hasattr(model, "new")
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == buffers
    assert {name: buffer._version for name, buffer in model.named_buffers()} == versions
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert random.getstate() == random_state
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_a_failing_forward_leaves_the_model_as_found(x):
    model = Stateful()
    model.dropout.register_forward_hook(lambda *_: 1 / 0)
    before, state = module_state(model), {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ZeroDivisionError):
        counting_pass(model, (x,), {}, lambda op: None)
    assert module_state(model) == before
    assert model.history == []
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_cached_layer_keeps_its_cache_as_it_was(graph):
    conv = GCNConv(IN, OUT, cached=True)
    _, _, without_cache = totals(conv, *graph)
    assert conv._cached_edge_index is None
    conv(*graph)
    cached = conv._cached_edge_index
    _, _, with_cache = totals(conv, *graph)
    assert conv._cached_edge_index is cached
    assert (without_cache["aten::scatter_add_"], with_cache["aten::scatter_add_"]) == (2, 1)


def test_the_graph_of_an_earlier_forward_survives(x):
    model = nn.Sequential(nn.Linear(F, F), nn.BatchNorm1d(F)).eval()
    out = model(x)
    model.train()
    counting_pass(model, (x,), {}, lambda op: None)
    out.sum().backward()  # would raise if a saved buffer had been written


@pytest.mark.parametrize(
    "write",
    [
        lambda module, x: x.relu_(),
        lambda module, x: x[:, 0].zero_(),
        lambda module, x: module.plain.add_(1),
        lambda module, x: nn.functional.batch_norm(x, module.plain, module.plain, training=True),
    ],
    ids=["input", "view of the input", "plain attribute", "undeclared write"],
)
def test_a_write_to_foreign_memory_is_refused_before_it_happens(x, write):
    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = torch.ones(F)

        def forward(self, x):
            return write(self, x.detach())

    model, kept = Writer(), x.clone()
    with pytest.raises(CannotCount, match=r"in place .* not its own"):
        counting_pass(model, (x,), {}, lambda op: None)
    assert torch.equal(x, kept)
    assert torch.equal(model.plain, torch.ones(F))


def test_writes_to_own_memory_are_fine(x):
    class Writer(nn.Module):
        def forward(self, x):
            y = (x + 1)[:, :3].relu_()
            torch.tensor([1.0, 2.0]).add_(1)
            return torch.mul(y, 2, out=torch.empty(0))

    counting_pass(Writer(), (x,), {}, lambda op: None)


def test_a_sparse_input_is_guarded_by_its_values():
    sparse = torch.eye(3).to_sparse_coo()

    class Writer(nn.Module):
        def forward(self, adj):
            return adj.mul_(2)

    with pytest.raises(CannotCount):
        counting_pass(Writer(), (sparse,), {}, lambda op: None)
    assert torch.equal(sparse.to_dense(), torch.eye(3))


def test_a_forward_that_swallows_the_refusal_is_refused_all_the_same(x):
    class Writer(nn.Module):
        def forward(self, x):
            with contextlib.suppress(RuntimeError):
                x.relu_()

    with pytest.raises(CannotCount):
        counting_pass(Writer(), (x,), {}, lambda op: None)


ONE_RANK_COUNTS = """
import sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from gnnprof._counting import CannotCount, counting_pass

class Sum(nn.Module):
    def forward(self, x):
        x = x * 1
        dist.all_reduce(x)
        return x

def run(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    layers = nn.Linear(4, 3), nn.BatchNorm1d(3)
    model, x = DistributedDataParallel(nn.Sequential(*layers)), torch.rand(5, 4)
    model(x).sum().backward()
    if rank == 0:
        counts = []
        counting_pass(model, (x,), {}, counts.append)
        print("linear", sum(op.flops for op in counts if op.name == "aten::addmm"))
        try:
            counting_pass(nn.Sequential(*layers, Sum()), (x,), {}, counts.append)
        except CannotCount as error:
            print(error)
        print("forward" in vars(model))
    model(x).sum().backward()  # waits for ever where a rank has called one collective more
    dist.destroy_process_group()

torch.multiprocessing.start_processes(run, sys.argv[1:], nprocs=2, start_method="fork")
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch has no gloo")
def test_a_rank_counts_alone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ONE_RANK_COUNTS, tmp_path / "store"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    linear, refused, is_changed = done.stdout.splitlines()
    assert linear == f"linear {2 * 5 * 4 * 3}"
    assert re.match(r"the forward calls c10d::allreduce_, in which other ranks take part", refused)
    assert is_changed == "False"


def test_lazy_models_are_refused():
    with pytest.raises(ValueError, match="lazy parameter 'weight'"):
        counting_pass(nn.LazyLinear(3), (torch.rand(2, 2),), {}, lambda op: None)


def test_a_data_parallel_module_still_moves_its_inputs(x, monkeypatch):
    class Parallel:
        module, device_ids = nn.Linear(F, 2), [3]

    def scatter(args, kwargs, devices):
        return [tuple(x * devices[0] for x in args)], [kwargs]

    monkeypatch.setattr(_counting, "scatter_kwargs", scatter)
    assert torch.equal(_counting._call_alone(Parallel, x), Parallel.module(x * 3))
    Parallel.device_ids = None
    assert torch.equal(_counting._call_alone(Parallel, input=x), Parallel.module(x))


def test_replicas_on_threads_are_refused(x):
    replicated = nn.DataParallel(nn.Linear(F, 2))  # without GPUs it only calls its module
    flops, _, _ = totals(replicated, x)
    assert flops["aten::addmm"] == 2 * N * F * 2
    replicated.device_ids = [0, 1]
    with pytest.raises(CannotCount, match="a thread for each device"):
        counting_pass(replicated, (x,), {}, lambda op: None)


def test_scripted_modules_are_counted(x):
    scripted = torch.jit.script(nn.Sequential(nn.Linear(F, 8), nn.ReLU()))
    flops, _, _ = totals(scripted, x)
    assert flops["aten::addmm"] == 2 * N * F * 8
    with pytest.raises(CannotCount):  # its buffers cannot be exchanged
        counting_pass(torch.jit.script(nn.BatchNorm1d(F)), (x,), {}, lambda op: None)


def test_compiled_parts_run_as_the_original_program(x):
    compiled = []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    model = nn.Sequential(nn.Linear(F, 8), nn.ReLU())
    faster = torch.compile(model, backend=backend)
    flops, _, _ = totals(faster, x)
    assert compiled == []
    faster(x)
    assert len(compiled) == 1
    assert totals(faster, x)[0] == flops
    assert flops == {"aten::t": 0, "aten::addmm": 2 * N * F * 8, "aten::relu": N * 8} | {
        "aten::detach": 0
    }


def test_settings_of_the_call_are_repeated(x):
    model = nn.Linear(F, 8, bias=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        settings = CallSettings.current()
    counts, modes = [], []
    model.register_forward_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    counting_pass(model, (x,), {}, counts.append, settings)
    assert modes == [False]
    assert {op.dtype for op in counts if op.name == "aten::mm"} == {torch.bfloat16}
    with torch.autocast("cpu", torch.bfloat16):
        plain = []
        counting_pass(
            model,
            (x,),
            {},
            plain.append,
            CallSettings(True, False, (("cpu", False, torch.bfloat16),)),
        )
    assert {op.dtype for op in plain if op.name == "aten::mm"} == {torch.float32}
    assert CallSettings.current().grad


# -- the docs --------------------------------------------------------------------------------------


def test_the_docs_name_every_op_of_the_tables():
    page = Path(__file__).parent.parent / "docs" / "source" / "counting.rst"
    named = set(re.findall(r"[a-z_0-9]+", page.read_text(encoding="utf-8")))
    tables = [*_formulas.FORMULAS, *_formulas.GATHERS, *_formulas.SCATTERS, *_formulas.OVERWRITES]
    missing = {name.removeprefix("aten::") for name in tables} - named
    assert not missing
