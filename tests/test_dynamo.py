"""What Dynamo did, read from runs of models whose breaks and recompiles are known."""

from __future__ import annotations

import os
import time
from pathlib import Path
from traceback import FrameSummary
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo import callback, utils

from gnnprof import _dynamo
from gnnprof import _dynamo_records as records
from gnnprof._dynamo_records import Compilation, Watch, effective_mode

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def compiler_as_found():
    with _dynamo.compiler_state_kept():
        _dynamo.start_afresh()
        yield


class Straight(nn.Module):
    def forward(self, x):
        return (x * 2).relu()


class Breaking(nn.Module):
    def forward(self, x):
        x = x * 2
        torch._dynamo.graph_break()  # the break of the tests
        return x + 1


BREAK_LINE = next(
    number
    for number, line in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1)
    if line.endswith("# the break of the tests")
)


class BreakingInLoop(nn.Module):
    def forward(self, x):
        for _ in range(2):
            x = x * 2
            torch._dynamo.graph_break()
        return x


def run(model: nn.Module, *sizes: int, dynamic: bool | None = None) -> Compilation:
    watch = Watch()
    wrapped = _dynamo.compiled(model, "default", dynamic=dynamic, fullgraph=False, backend="eager")
    with torch.no_grad():
        for size in sizes:
            wrapped(torch.ones(size, 3))
    return watch.read()


# -- reading a run ---------------------------------------------------------------------------------


def test_a_straight_model_is_one_graph():
    did = run(Straight(), 2)
    assert (did.graphs, did.break_count, did.recompile_count) == (1, 0, 0)
    assert did.happened
    assert did.skipped == did.limited == ()
    assert did.kernels is None  # this backend generates none


def test_nothing_new_is_nothing_done():
    run(Straight(), 2)
    assert not Watch().read().happened


def test_a_break_is_told_with_the_users_line():
    did = run(Breaking(), 2)
    assert did.graphs == 2
    (place,) = did.breaks
    assert place.location == f"{os.path.relpath(__file__)}:{BREAK_LINE}"
    assert "graph_break" in place.reason
    assert place.count == did.break_count == 1


def test_a_skipped_frame_is_told_and_its_break_counted_once():
    did = run(BreakingInLoop(), 2)
    assert did.graphs == 0
    assert len(did.skipped) == 1
    assert did.skipped[0].startswith("forward (")
    assert did.break_count == 1


def test_a_new_size_is_compiled_again_and_the_guard_told():
    did = run(Straight(), 2, 3, dynamic=False)
    assert (did.graphs, did.recompile_count) == (2, 1)
    (again,) = did.recompiles
    assert "expected 2, actual 3" in again.guard
    assert again.function.startswith("forward (")


def test_the_recompile_limit_names_the_function():
    did = run(Straight(), *range(2, 14), dynamic=False)
    limit = _dynamo_limit()
    assert did.graphs == limit
    assert did.recompile_count == limit - 1
    (function,) = did.limited
    assert function.startswith("forward (")
    mode, reasons = effective_mode("default", "eager", CPU, did)
    assert mode == "partly eager"
    assert f"recompile limit ({limit}) reached by forward" in reasons[-1]


def _dynamo_limit() -> int:
    assert records.recompile_limit() == torch._dynamo.config.recompile_limit
    return records.recompile_limit()


def test_overlapping_records_count_once():
    spans = [(0, 10), (2, 4), (8, 12), (20, 21)]
    metrics = [SimpleNamespace(start_time_us=a * 10**6, end_time_us=b * 10**6) for a, b in spans]
    assert records._covered_seconds(metrics) == 13.0


def test_the_seconds_are_those_of_the_wall_clock():
    start = time.perf_counter()
    did = run(Straight(), 2)
    wall = time.perf_counter() - start
    # On an idle machine the two agree within some percent.
    assert 0.2 * wall < did.seconds <= wall


def frame(filename: str, line: int) -> FrameSummary:
    return FrameSummary(filename, line, "forward", lookup_line=False)


def test_the_users_own_frame_comes_before_a_librarys():
    mine, library = frame("/home/me/net.py", 3), frame("/v/lib/site-packages/pyg/loop.py", 9)
    inner = frame(f"{os.path.dirname(torch.__file__)}/nn/modules/linear.py", 5)
    assert records.location_of([mine, library, inner]) == "/home/me/net.py:3"
    assert records.location_of([library, inner]) == "pyg/loop.py:9"
    assert records.location_of([inner]) is None


def test_a_reason_names_the_operator():
    text = (
        "Dynamic shape operator\n  Explanation: long\n\n  Developer debug context: aten.nonzero\n"
    )
    assert records._reason_text(text) == "Dynamic shape operator: aten.nonzero"
    assert records._reason_text("call to print\nmore") == "call to print"


# -- what the mode became --------------------------------------------------------------------------


def compilation(**changes) -> Compilation:
    values = {"seconds": 1.0, "graphs": 2, "breaks": (), "recompiles": (), "skipped": ()}
    values |= {"limited": (), "cudagraph_skips": 0, "cudagraph_reason": None, "autotuned": 0}
    values |= {"kernels": 3}
    return Compilation(**(values | changes))


@pytest.mark.parametrize(
    ("mode", "device", "changes", "expected", "reason"),
    [
        ("default", CPU, {}, "default", None),
        ("reduce-overhead", CPU, {"cudagraph_skips": 2}, "default", "cudagraph_skips is 2"),
        ("max-autotune", CPU, {"cudagraph_skips": 2}, "default", "no GEMM was autotuned"),
        ("max-autotune-no-cudagraphs", CPU, {}, "default", "no GEMM was autotuned"),
        (
            "max-autotune-no-cudagraphs",
            CPU,
            {"autotuned": 1},
            "max-autotune-no-cudagraphs",
            None,
        ),
        ("reduce-overhead", CUDA, {}, "reduce-overhead", None),
        ("reduce-overhead", CUDA, {"cudagraph_skips": 2}, "default", "2 of 2 graphs"),
        ("reduce-overhead", CUDA, {"cudagraph_skips": 1}, "reduce-overhead", "1 of 2 graphs"),
        ("max-autotune", CUDA, {"autotuned": 4}, "max-autotune", None),
        (
            "max-autotune",
            CUDA,
            {"autotuned": 4, "cudagraph_skips": 2, "cudagraph_reason": "mutated inputs"},
            "max-autotune-no-cudagraphs",
            "mutated inputs",
        ),
        ("default", CPU, {"graphs": 0}, "eager", "nothing was compiled"),
        ("default", CPU, {"skipped": ("forward (a.py:1): why",)}, "default", "a.py:1"),
        ("default", CPU, {"limited": ("forward (a.py:1)",)}, "partly eager", "recompile limit"),
        ("max-autotune", CPU, {"limited": ("forward (a.py:1)",)}, "default", "recompile limit"),
        ("reduce-overhead", CPU, {"limited": ("forward (a.py:1)",)}, "default", "no CUDA device"),
        (
            "reduce-overhead",
            CUDA,
            {"limited": ("forward (a.py:1)",)},
            "partly eager",
            "recompile limit",
        ),
    ],
)
def test_the_effective_mode_is_what_ran(mode, device, changes, expected, reason):
    effective, reasons = effective_mode(mode, "inductor", device, compilation(**changes))
    assert effective == expected
    if reason is None:
        assert reasons == []
    else:
        assert reason in "; ".join(reasons)


def test_a_backend_without_modes_runs_its_default():
    effective, reasons = effective_mode("max-autotune", "aot_eager", CPU, compilation())
    assert (effective, reasons) == ("default", ["backend 'aot_eager' has no modes"])


# -- what went wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (MemoryError(), "oom", "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory.\nmore"), "oom", "CUDA out of memory."),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "oom",
            "can't allocate",
        ),
        (torch._dynamo.exc.Unsupported("Call to print\nmore"), "compile_error", "Call to print"),
        (ValueError("x is wrong"), "error", "ValueError: x is wrong"),
    ],
)
def test_errors_are_told_apart(error, status, text):
    found, reason = _dynamo.failure(error)
    assert found == status
    assert text in reason
    assert "more" not in reason


def test_the_cause_decides():
    outer = RuntimeError("backend='x' raised:\n MemoryError")
    outer.__cause__ = MemoryError()
    assert _dynamo.failure(outer) == ("oom", "RuntimeError: backend='x' raised: MemoryError")


def test_a_wish_for_dynamic_output_shapes_is_understood():
    wish = RuntimeError("set torch._dynamo.config.capture_dynamic_output_shape_ops = True")
    assert _dynamo.wants_dynamic_output_shapes(wish)
    assert not _dynamo.wants_dynamic_output_shapes(RuntimeError("no"))
    with _dynamo.dynamic_output_shapes():
        assert torch._dynamo.config.capture_dynamic_output_shape_ops
        assert not _dynamo.wants_dynamic_output_shapes(wish)
    assert not torch._dynamo.config.capture_dynamic_output_shape_ops


# -- leaving no trace ------------------------------------------------------------------------------


def test_the_state_of_the_compiler_is_put_back(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    utils.counters["stats"]["unique_graphs"] = 7

    def told(*args):
        raise AssertionError("not for these compilations")

    callback.callback_handler.register_end_callback(told)
    try:
        length = utils._compilation_metrics.maxlen
        with _dynamo.compiler_state_kept():
            _dynamo.start_afresh()
            assert run(Breaking(), 2).graphs == 2
            os.environ["TRITON_CACHE_DIR"] = "/elsewhere"
        assert callback.callback_handler.end_callbacks == [told]
        assert utils.counters["stats"]["unique_graphs"] == 7
        assert utils.get_compilation_metrics() == []
        assert utils._compilation_metrics.maxlen == length
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
        assert "TRITON_CACHE_DIR" not in os.environ
    finally:
        callback.callback_handler.clear()


def test_the_private_folder_is_empty_and_goes_whatever_happens(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    seen = []

    def compiles_and_fails():
        with _dynamo.private_cache() as folder:
            seen.append((folder, os.environ["TORCHINDUCTOR_CACHE_DIR"], list(folder.iterdir())))
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        compiles_and_fails()
    ((folder, told, files),) = seen
    assert told == str(folder)
    assert files == []
    assert not folder.exists()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


def test_a_given_folder_stays(tmp_path):
    with _dynamo.private_cache(tmp_path) as folder:
        (folder / "file").touch()
    assert (tmp_path / "file").exists()


def test_compiled_models_are_recognised_in_any_depth():
    assert not _dynamo.is_compiled(nn.Sequential(Straight()))
    assert _dynamo.is_compiled(nn.Sequential(torch.compile(Straight(), backend="eager")))
    inside = Straight()
    inside.compile(backend="eager")
    assert _dynamo.is_compiled(nn.Sequential(inside))


def test_a_forward_that_is_compiled_is_recognised_and_one_that_is_kept_from_it_is_not():
    class InTheClass(nn.Module):
        @torch.compile(backend="eager")
        def forward(self, x):
            return x + 1

    on_the_object = Straight()
    on_the_object.forward = torch.compile(on_the_object.forward, backend="eager")
    disabled = Straight()
    disabled.forward = torch.compiler.disable(disabled.forward)
    assert _dynamo.is_compiled(nn.Sequential(InTheClass()))
    assert _dynamo.is_compiled(nn.Sequential(on_the_object))
    assert not _dynamo.is_compiled(nn.Sequential(disabled))


# -- kernels ---------------------------------------------------------------------------------------


def test_launches_are_counted_and_the_kernels_put_back(monkeypatch):
    calls = []
    kernel = calls.append
    module = SimpleNamespace(
        AsyncCompile=None, cpp_fused_add_0=kernel, cpp_helper=kernel, call=None
    )
    monkeypatch.setattr(_dynamo, "generated_modules", lambda: [module, module])
    with _dynamo.launches_counted() as counts:
        module.cpp_fused_add_0(1)
        module.cpp_fused_add_0(2)
        module.cpp_helper(3)
    assert counts == {"cpp_fused_add_0": 2}
    assert calls == [1, 2, 3]
    assert module.cpp_fused_add_0 is kernel


def test_a_kernel_of_triton_counts_once_and_one_that_was_only_tried_not_at_all():
    """Inductor loads a module for each kernel of Triton beside the one of the graph."""
    kernel = SimpleNamespace(run=None)
    own = SimpleNamespace(triton_poi_fused_add_0=kernel, triton=None)
    tried = SimpleNamespace(triton_mm_7=kernel)
    graph = SimpleNamespace(AsyncCompile=None, triton_poi_fused_add_0=kernel, call=None)
    assert records.kernels_in([own, tried, graph, graph]) == [(graph, "triton_poi_fused_add_0")]
