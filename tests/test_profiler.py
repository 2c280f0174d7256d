"""The layer profiler: contract, sums, attribution, and that it leaves nothing behind."""

from __future__ import annotations

import copy
import csv
import gzip
import json
import pickle
import threading
import time

import pytest
import torch
from torch import nn
from torch.profiler import profile
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, GraphSAGE, MessagePassing, SimpleConv
from torch_geometric.profile.profiler import Profiler as ReferenceProfiler

from conftest import module_state
from gnnprof import Profiler, ProfileRow, _device
from gnnprof._time_line import TimeLine
from gnnprof.profiler import Measure, Trace, format_memory, format_time

NODES, EDGES, FEATURES = 60, 240, 8


@pytest.fixture
def graph() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, FEATURES, generator=generator)
    return x, torch.randint(NODES, (2, EDGES), generator=generator)


def profiled(model: nn.Module, *args: object, forwards: int = 1, **options: object) -> Profiler:
    """Profile some forwards and check what must hold of every profile."""
    before = module_state(model)
    with torch.no_grad(), Profiler(model, **options) as prof:
        for _ in range(forwards):
            model(*args)
    assert module_state(model) == before
    check_sums(prof)
    return prof


def check_sums(prof: Profiler) -> None:
    """The rows add up to the whole, and op rows to no more than the row they are under."""
    owners = {(r.path, r.phase): r for r in prof.rows if r.op is None}
    own = sum(both(row, "self_cpu_time") for row in owners.values())
    assert own == pytest.approx(prof.total_time, abs=1e-8)
    assert prof.coverage == pytest.approx(1)
    for key, owner in owners.items():
        ops = [row for row in prof.rows if (row.path, row.phase) == key and row.op is not None]
        assert sum(row.self_cpu_time for row in ops) <= owner.self_cpu_time + 1e-9
        assert owner.self_cpu_time <= owner.cpu_time + 1e-9
        assert all(row.self_cpu_time >= 0 for row in ops)
        assert all((row.self_backward_cpu_time or 0) >= 0 for row in (owner, *ops))


def both(row: ProfileRow, figure: str) -> float:
    """A forward figure and its backward counterpart together."""
    backward = figure.replace("cpu", "backward_cpu")
    return getattr(row, figure) + (getattr(row, backward) or 0.0)


def row_of(prof: Profiler, path: str | None, phase: str | None = None, op: str | None = None):
    (row,) = [r for r in prof.rows if (r.path, r.phase, r.op) == (path, phase, op)]
    return row


# --- against the reference -------------------------------------------------------------------


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GAT, GIN])
def test_has_every_layer_and_op_of_the_reference_with_as_many_calls(kind, layers, graph):
    model = kind(FEATURES, 16, layers, 3).eval()
    prof = profiled(model, *graph, forwards=2)
    with torch.no_grad(), ReferenceProfiler(model) as reference:
        for _ in range(2):
            model(*graph)
    expected: dict[tuple[str, str], int] = {}
    for path, calls in reference.trace_profile_events.items():
        for event in (event for events in calls for event in events):
            key = ".".join(path[1:]), event.name
            expected[key] = expected.get(key, 0) + 1
    ours = {(row.path, row.op): row.calls for row in prof.rows if row.op and row.phase is None}
    assert expected
    assert {key: ours.get(key) for key in expected} == expected


def test_get_trace_keeps_the_contract(graph):
    model = GraphSAGE(FEATURES, 16, 2, 3).eval()
    prof = profiled(model, *graph, profile_memory=True)
    display, headings, raw, names, stats = prof.get_trace()
    assert headings == [
        "Module",
        "Self CPU total",
        "CPU total",
        "Self CUDA total",
        "CUDA total",
        "Self CPU Mem",
        "CPU Mem",
        "Self CUDA Mem",
        "CUDA Mem",
        "Number of Calls",
    ]
    assert display == str(prof)
    assert "aten::relu" in raw
    assert "-act--aten::relu" in names
    assert len(names) == len(stats) == len(prof.rows)
    assert {len(row) for row in stats} == {len(figures) for figures in raw.values()} == {9}
    relu = row_of(prof, "act", op="aten::relu")
    assert raw["-act--aten::relu"] == [
        pytest.approx(relu.self_cpu_time * 1e6),
        pytest.approx(relu.cpu_time * 1e6),
        None,
        None,
        relu.self_cpu_memory,
        relu.cpu_memory,
        None,
        None,
        1,
    ]
    assert stats[names.index("-act--aten::relu")][-1] == "1"


def test_raw_results_by_op_are_sums_over_the_model(graph):
    prof = profiled(GCN(FEATURES, 16, 3, 3).eval(), *graph)
    raw = prof.get_trace()[2]
    expected = sum(
        row.calls for row in prof.rows if row.op == "aten::addmm" or row.op == "aten::mm"
    )
    assert raw["aten::mm"][-1] == expected == 3


def test_an_op_in_the_model_and_the_same_outside_have_labels_of_their_own():
    class Adds(nn.Module):
        def forward(self, x):
            return x + x + x

    x = torch.ones(3)
    model = Adds()
    with Profiler(model) as prof:
        model(x) + x
    _, _, raw, names, _ = prof.get_trace()
    assert (raw["-aten::add"][-1], raw["-outside--aten::add"][-1]) == (2, 1)
    assert len(names) == len(set(names))
    assert raw["aten::add"][-1] == 3


def test_names_of_the_reference_module_exist():
    assert Measure._fields[0] == "self_cpu_total"
    assert Trace(("GCN",), True, nn.Identity()).leaf
    assert (format_time(1.5), format_time(2500), format_time(3e6)) == (
        "1.500us",
        "2.500ms",
        "3.000s",
    )
    assert [format_memory(n) for n in (5, 2048, -3 << 20, 1 << 30)] == [
        "5 b",
        "2.00 Kb",
        "-3.00 Mb",
        "1.00 Gb",
    ]


# --- attribution -----------------------------------------------------------------------------


class SlowMessage(MessagePassing):
    """A layer whose phases take a planted time."""

    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__(aggr="sum")
        self.seconds = seconds

    def forward(self, x, edge_index):
        time.sleep(self.seconds.get("forward", 0))
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        time.sleep(self.seconds.get("message", 0))
        return x_j

    def aggregate(self, inputs, index, dim_size=None):
        time.sleep(self.seconds.get("aggregate", 0))
        return super().aggregate(inputs, index, dim_size=dim_size)

    def update(self, inputs):
        time.sleep(self.seconds.get("propagate", 0))
        return inputs


def test_planted_slow_phases_are_found_with_their_share(graph):
    planted = {"forward": 0.02, "message": 0.08, "aggregate": 0.06, "propagate": 0.04}
    model = SlowMessage(planted)
    model(*graph)
    prof = profiled(model, *graph)
    for phase, seconds in planted.items():
        row = row_of(prof, "", None if phase == "forward" else phase)
        assert 100 * row.self_cpu_time / prof.total_time == pytest.approx(
            100 * seconds / 0.2, abs=3
        )
    assert row_of(prof, "", "propagate").cpu_time == pytest.approx(0.18, abs=0.02)


def test_what_runs_outside_the_model_has_its_own_row(graph):
    model = GCN(FEATURES, 16, 2, 3).eval()
    with Profiler(model) as prof:
        model(*graph)
        time.sleep(0.05)
        torch.ones(10)
    check_sums(prof)
    assert row_of(prof, None, "outside").self_cpu_time == pytest.approx(0.05, abs=0.02)
    assert row_of(prof, None, "outside", "aten::ones").calls == 1


def test_every_phase_of_a_layer_is_a_row(graph):
    prof = profiled(GAT(FEATURES, 16, 2, 3).eval(), *graph, forwards=3)
    phases = {row.phase: row.calls for row in prof.rows if row.path == "convs.0" and not row.op}
    assert phases == {None: 3, "propagate": 3, "message": 3, "aggregate": 3, "edge_update": 3}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fused_message_and_aggregate_is_a_row(graph):
    x, edge_index = graph
    adjacency = torch.sparse_coo_tensor(edge_index, torch.ones(EDGES), (NODES, NODES)).coalesce()
    prof = profiled(SimpleConv(), x, adjacency)
    assert row_of(prof, "", "message_and_aggregate").calls == 1
    assert not [row for row in prof.rows if row.phase == "message"]


def test_calls_are_those_of_the_module_and_modules_without_ops_are_counted(graph):
    model = nn.Sequential(nn.Identity(), nn.Linear(FEATURES, 4))
    prof = profiled(model, graph[0], forwards=4)
    assert [row_of(prof, path).calls for path in ("", "0", "1")] == [4, 4, 4]


def test_uncalled_modules_are_rows():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    with Profiler(model) as prof:
        model["used"](torch.ones(1, 2))
    assert (row_of(prof, "used").calls, row_of(prof, "unused").calls) == (1, 0)


def test_a_shared_module_is_shown_under_each_name():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = nn.Linear(4, 4)

        def forward(self, x):
            return self.second(self.first(x))

    prof = profiled(Net(), torch.ones(3, 4))
    assert (row_of(prof, "first").calls, row_of(prof, "second").calls) == (2, 2)
    assert row_of(prof, "second").shared_with == "first"
    assert row_of(prof, "second").self_cpu_time == 0
    assert "second (Linear) = first" in prof.table()


def test_names_with_dashes_and_cyclic_modules():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("my-layer", nn.Linear(4, 4))
            self.me = self

        def forward(self, x):
            return getattr(self, "my-layer")(x)

    prof = profiled(Net(), torch.ones(3, 4))
    assert row_of(prof, "my-layer", op="aten::linear").calls == 1
    assert "-my-layer--aten::linear" in prof.get_trace()[3]


def test_memory_of_a_layer_is_its_output():
    prof = profiled(nn.Linear(4, 8, bias=False), torch.ones(100, 4), profile_memory=True)
    assert row_of(prof, "").cpu_memory == 100 * 8 * 4
    assert row_of(prof, None, "outside").self_cpu_memory == -100 * 8 * 4
    assert "CPU Mem" in str(prof)
    assert row_of(profiled(nn.Linear(4, 8), torch.ones(1, 4)), "").cpu_memory is None


# --- selected paths --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["convs.0", "convs/0", "GCN/convs/0", "GCN.convs.0", ("convs", "0"), ("GCN", "convs", "0")],
)
def test_paths_in_every_form(path, graph):
    prof = profiled(GCN(FEATURES, 16, 2, 3).eval(), *graph, paths=[path])
    assert {row.path for row in prof.rows} == {"convs.0", None}
    assert row_of(prof, "convs.0", op="aten::linear").calls == 1


@pytest.mark.parametrize("root", ["", "GCN", ("GCN",), ()])
def test_the_root_can_be_selected(root, graph):
    prof = profiled(GCN(FEATURES, 16, 2, 3).eval(), *graph, paths=[root])
    assert {row.path for row in prof.rows} == {"", None}


def test_an_unknown_path_lists_the_closest_and_leaves_the_model_alone(graph):
    model = GCN(FEATURES, 16, 2, 3)
    before = module_state(model)
    with pytest.raises(ValueError, match=r"'GCN/conv/0', which is no module of GCN.*'convs\.0'"):
        Profiler(model, paths=["GCN/conv/0"])
    assert module_state(model) == before


# --- any way to end --------------------------------------------------------------------------


class Failing(nn.Module):
    """Raises in its inner layer as long as `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.inner[0].register_forward_hook(self.fail)
        self.error: BaseException | None = None

    def fail(self, *_: object) -> None:
        if self.error is not None:
            raise self.error

    def forward(self, x):
        return self.outer(self.inner(x))


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_an_exception_passes_through_and_the_rows_are_there(error):
    model = Failing()
    before = module_state(model)
    model.error = error
    prof = Profiler(model)
    with pytest.raises(type(error)), prof:
        model(torch.ones(2, 4))
    assert module_state(model) == before
    check_sums(prof)
    assert (row_of(prof, "inner.0").calls, row_of(prof, "outer").calls) == (1, 0)


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_a_caught_exception_does_not_disturb_the_next_forward(error):
    model = Failing()
    with Profiler(model) as prof:
        model.error = error
        with pytest.raises(type(error)):
            model(torch.ones(2, 4))
        model.error = None
        model(torch.ones(2, 4))
    check_sums(prof)
    assert [row_of(prof, path).calls for path in ("", "inner", "inner.0", "outer")] == [2, 2, 2, 1]
    assert row_of(prof, "inner").cpu_time < row_of(prof, "").cpu_time


def test_an_exception_in_a_phase_closes_it(graph):
    class Bad(SlowMessage):
        def message(self, x_j):
            raise ValueError("boom")

    model = nn.Sequential(nn.Identity())
    model.conv = Bad({})
    with Profiler(model) as prof:
        with pytest.raises(ValueError, match="boom"):
            model.conv(*graph)
        time.sleep(0.05)
    check_sums(prof)
    assert row_of(prof, "conv", "message").self_cpu_time < 0.04


# --- sessions --------------------------------------------------------------------------------


def test_a_second_session_is_refused_before_harm(graph):
    model = GCN(FEATURES, 16, 2, 3).eval()
    before = module_state(model)
    with Profiler(model) as outer:
        inner = Profiler(model)
        with pytest.raises(RuntimeError, match="another torch profiler session"), inner:
            pytest.fail("the body must not run")
        with pytest.raises(RuntimeError, match="already recording"):
            outer.__enter__()
        model(*graph)
    assert module_state(model) == before
    assert row_of(outer, "").calls == 1


def test_is_refused_inside_torch_profiler(graph):
    model = GCN(FEATURES, 16, 2, 3).eval()
    with profile() as foreign:
        with pytest.raises(RuntimeError, match="Leave the other"), Profiler(model):
            pytest.fail("the body must not run")
        model(*graph)
    assert any(event.key == "aten::mm" for event in foreign.key_averages())


def test_can_be_entered_again_and_starts_clean(graph):
    model = GCN(FEATURES, 16, 2, 3).eval()
    prof = Profiler(model)
    for forwards in (1, 3):
        with prof:
            for _ in range(forwards):
                model(*graph)
        assert row_of(prof, "").calls == forwards


def test_exit_without_enter_is_a_clear_error():
    with pytest.raises(RuntimeError, match="not recording"):
        Profiler(nn.Identity()).__exit__(None, None, None)


def test_nothing_can_be_read_while_recording():
    with Profiler(nn.Identity()) as prof:
        assert "still recording" in str(prof)
        with pytest.raises(RuntimeError, match="after the `with` block"):
            _ = prof.rows


def test_disabled_does_nothing(graph):
    model = GCN(FEATURES, 16, 2, 3).eval()
    with Profiler(model, enabled=False, use_cuda=True) as prof:
        hooks = model._forward_hooks
        assert prof(*graph).shape == (NODES, 3)
        assert not hooks
    assert prof.rows == ()
    assert "disabled" in repr(prof)


def test_calling_it_calls_the_model(graph):
    model = GCN(FEATURES, 16, 2, 3).eval()
    with Profiler(model) as prof:
        out = prof(*graph)
    assert torch.equal(out, model(*graph))


def test_bad_arguments_give_one_clear_sentence():
    with pytest.raises(TypeError, match="model is a type; Profiler needs a"):
        Profiler(GCN)
    if _device.accelerator() is None:
        with pytest.raises(RuntimeError, match="use_cuda=True needs a CUDA or XPU device"):
            Profiler(nn.Identity(), use_cuda=True)


# --- threads and replicas --------------------------------------------------------------------


def test_calls_on_other_threads_are_attributed(graph):
    model = GCN(FEATURES, 16, 2, 3).eval()

    def work() -> None:
        for _ in range(5):
            model(*graph)

    with Profiler(model) as prof:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    assert row_of(prof, "").calls == 20
    assert row_of(prof, "convs.1", "message").calls == 20
    assert prof.coverage >= 0.995


def test_with_memory_calls_on_other_threads_are_reported_as_not_measured(graph):
    model = nn.Sequential(nn.Linear(FEATURES, 2))
    with Profiler(model, profile_memory=True) as prof:
        thread = threading.Thread(target=model, args=(graph[0],))
        thread.start()
        thread.join()
        model(graph[0])
    assert row_of(prof, "").calls == 1
    assert "Not measured: 2 module calls on other threads" in str(prof)


def test_replicas_made_in_the_block_compute_with_their_own_weights():
    model = nn.Sequential(nn.Linear(4, 4))
    with Profiler(model):
        model(torch.ones(1, 4))
        replica = copy.deepcopy(model)
    with torch.no_grad():
        replica[0].weight.zero_()
        replica[0].bias.zero_()
    assert torch.equal(replica(torch.ones(1, 4)), torch.zeros(1, 4))
    assert "forward" not in vars(model[0])


def test_scripting_in_the_block_is_refused_by_one_clear_sentence():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with Profiler(model), pytest.raises(AttributeError, match="script the model before or after"):
        torch.jit.script(model)
    assert torch.jit.script(model)(torch.ones(1, 4)).shape == (1, 4)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_made_in_the_block_lose_the_hooks_when_first_called(duplicate, graph):
    model = GCN(FEATURES, 16, 2, 3).eval()
    clean = [state[:3] for state in module_state(duplicate(model)) if isinstance(state[1], bool)]
    with Profiler(model) as prof:
        replica = duplicate(model)
        replica(*graph)
    assert row_of(prof, "").calls == 0
    assert [s[:3] for s in module_state(replica) if isinstance(s[1], bool)] == clean


class HooksInLists(nn.Module):
    """As GraphModule and DistributedDataParallel have them."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(FEATURES, 2)
        self._replace_hooks = []
        self._comm_hooks = [("hook", None)]

    def forward(self, x):
        return self.lin(x)


def test_a_copy_with_hooks_of_other_kinds_can_be_called(graph):
    model = nn.Sequential(HooksInLists(), torch.fx.symbolic_trace(nn.ReLU()))
    with Profiler(model):
        replica = copy.deepcopy(model)
    assert torch.equal(replica(graph[0]), model(graph[0]))
    assert replica[0]._comm_hooks == [("hook", None)]
    assert not any(module._forward_hooks for module in replica.modules())


# --- compiled models -------------------------------------------------------------------------


@pytest.fixture
def dynamo():
    """Dynamo's counters, from zero."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


def compiled_graphs(counters) -> tuple[int, int]:
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [GraphSAGE, GCN])
def test_a_compiled_model_runs_the_same_graphs(kind, graph, dynamo):
    model = torch.compile(kind(FEATURES, 16, 2, 3).eval(), backend="aot_eager")
    expected = model(*graph)
    graphs = compiled_graphs(dynamo)
    with torch.no_grad():
        model(*graph)
    graphs = compiled_graphs(dynamo)
    prof = profiled(model, *graph, forwards=2)
    assert compiled_graphs(dynamo) == graphs
    assert torch.allclose(model(*graph), expected)
    assert row_of(prof, "").calls == 2
    assert row_of(prof, "").module == kind.__name__
    assert any(row.op.startswith("Torch-Compiled Region") for row in prof.rows if row.op)
    assert {row.path for row in prof.rows} == {"", None}


@pytest.mark.filterwarnings("ignore")
def test_a_model_compiled_in_place(graph, dynamo):
    model = GraphSAGE(FEATURES, 16, 2, 3).eval()
    model.compile(backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        model(*graph)
    graphs = compiled_graphs(dynamo)
    prof = profiled(model, *graph, forwards=2)
    assert compiled_graphs(dynamo) == graphs == (1, 0)
    assert row_of(prof, "").calls == 2


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_layer_in_an_eager_model(graph, dynamo):
    model = GCN(FEATURES, 16, 2, 3).eval()
    model.convs[0] = torch.compile(model.convs[0], backend="aot_eager")
    with torch.no_grad():
        model(*graph)
    graphs = compiled_graphs(dynamo)
    prof = profiled(model, *graph)
    assert compiled_graphs(dynamo) == graphs
    assert (row_of(prof, "convs.0").module, row_of(prof, "convs.0").calls) == ("GCNConv", 1)
    assert row_of(prof, "convs.1", "message").calls == 1


@pytest.mark.filterwarnings("ignore")
def test_compiling_for_the_first_time_inside_the_block_adds_no_break(graph, dynamo):
    model = GraphSAGE(FEATURES, 16, 2, 3).eval()
    step = torch.compile(lambda: model(*graph), backend="aot_eager", fullgraph=True)
    with Profiler(model):
        step()
    assert compiled_graphs(dynamo) == (1, 0)


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_model_is_one_row():
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    prof = profiled(model, torch.ones(2, 4))
    assert row_of(prof, "").calls == 1
    assert row_of(prof, "", op="aten::relu").calls == 1


# --- results ---------------------------------------------------------------------------------


def test_results_go_to_json_csv_and_pandas(graph, tmp_path):
    prof = profiled(GCNConv(FEATURES, 3).eval(), *graph)
    saved = json.loads(prof.to_json(tmp_path / "prof.json").read_text())
    assert saved["schema"] == "gnnprof.profile/1"
    assert saved["rows"] == prof.to_dicts()
    assert (saved["total_time"], saved["coverage"]) == (prof.total_time, prof.coverage)
    with prof.to_csv(tmp_path / "prof.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [float(line["cpu_time"]) for line in lines] == [row.cpu_time for row in prof.rows]
    frame = prof.to_pandas()
    assert list(frame["calls"]) == [row.calls for row in prof.rows]
    with pytest.raises(FileExistsError, match=r"prof\.json"):
        prof.to_json(tmp_path / "prof.json")


def test_the_trace_has_a_range_for_every_module_and_phase(graph, tmp_path):
    prof = profiled(GCNConv(FEATURES, 3).eval(), *graph)
    trace = json.loads(prof.export_chrome_trace(tmp_path / "trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"gnnprof::forward", "gnnprof:lin:forward", "gnnprof::message"} <= names
    assert len(prof.rows) > 5


def test_a_trace_can_be_written_more_than_once(graph, tmp_path):
    prof = profiled(GCNConv(FEATURES, 3).eval(), *graph)
    first = prof.export_chrome_trace(tmp_path / "first.json.gz")
    second = prof.export_chrome_trace(tmp_path / "second.json")
    text = gzip.decompress(first.read_bytes())
    assert "gnnprof::message" in {event.get("name") for event in json.loads(text)["traceEvents"]}
    assert second.read_bytes() == text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["first.json.gz", "second.json"]
    with pytest.raises(FileExistsError):
        prof.export_chrome_trace(second)
    third = prof.export_chrome_trace(tmp_path / "third.json")
    third.unlink()
    with pytest.raises(FileNotFoundError, match=r"third\.json no longer holds it"):
        prof.export_chrome_trace(tmp_path / "fourth.json")


def test_a_trace_that_another_profile_has_replaced_is_not_taken_for_its_own(graph, tmp_path):
    first, second = (profiled(GCNConv(FEATURES, 3).eval(), *graph) for _ in range(2))
    path = first.export_chrome_trace(tmp_path / "trace.json")
    second.export_chrome_trace(path, overwrite=True)
    with pytest.raises(FileNotFoundError, match="no longer holds it"):
        first.export_chrome_trace(tmp_path / "first.json")
    copied = second.export_chrome_trace(tmp_path / "second.json")
    assert copied.read_bytes() == path.read_bytes()


def test_a_trace_that_could_not_be_written_is_told_from_one_that_is_gone(tmp_path):
    def fail(path: str) -> None:
        raise OSError(28, "No space left on device", path)

    line = TimeLine(fail)
    with pytest.raises(OSError, match="No space left"):
        line.write(tmp_path / "trace.json", overwrite=False)
    with pytest.raises(FileNotFoundError, match="could not write it: profile again"):
        line.write(tmp_path / "trace.json", overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_the_short_table_shows_layers_and_phases_that_add_up_to_100_percent(graph):
    prof = profiled(GAT(FEATURES, 16, 2, 3).eval(), *graph)
    lines = prof.table(ops=False).splitlines()
    assert lines[0].split(" | ")[1].strip() == "Self CPU %"
    shares = [float(line.split(" | ")[1]) for line in lines[2:] if " | " in line]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares) + 0.5)
    assert "aten::" not in prof.table(ops=False)
    assert any("of which rows cover 100.00%" in line for line in lines)
    assert "rows are not listed" not in prof.table(ops=False)
    assert "rows are not listed" in prof.table(depth=1)
    assert len(prof.table(sort="self", min_percent=5).splitlines()) < len(lines)
    with pytest.raises(ValueError, match="sort='time'; give 'self' or 'total'"):
        prof.table(sort="time")
    assert any(line.startswith("Profiler: ") and " markers, " in line for line in lines)


def test_the_page_speedscope_and_notebook_table_are_of_these_rows(graph, tmp_path):
    prof = profiled(GAT(FEATURES, 16, 2, 3).eval(), *graph, profile_memory=True)
    page = prof.to_html(tmp_path / "page.html", trace="trace.json").read_text(encoding="utf-8")
    assert "convs.1" in page
    assert "GATConv" in page
    speedscope = json.loads(prof.to_speedscope(tmp_path / "prof.json").read_text())
    weights = [sum(profile["weights"]) for profile in speedscope["profiles"]]
    assert sum(weights) == pytest.approx(prof.total_time)
    assert "<script" not in prof._repr_html_()
    with pytest.raises(FileExistsError):
        prof.to_html(tmp_path / "page.html")
    assert Profiler(nn.Identity())._repr_html_() is None
