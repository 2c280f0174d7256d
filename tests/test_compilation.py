"""compile_benchmark on models, backends and clocks whose answer is known."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch._dynamo
from tests.conftest import module_state
from torch import nn
from torch._dynamo import utils

import gnnprof
from gnnprof import CompileReport, _dynamo, compile_benchmark
from gnnprof._compile_compare import Tolerance
from gnnprof._compile_study import Plan, Study
from gnnprof._compile_workload import Candidate, Workload


class Net(nn.Module):
    """Two layers with BatchNorm: parameters, buffers, a backward."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = dropout

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.second(nn.functional.dropout(x, self.dropout, self.training))


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One call a sample, and no search for garbage: these tests know what the clock says."""
    monkeypatch.setattr("gnnprof._compile_workload._LEAST_SAMPLE", 0.0)
    monkeypatch.setattr("gnnprof._compile_workload.gc.collect", lambda *generation: 0)


def bench(model, args=(X,), **settings) -> CompileReport:
    settings = {"modes": "default", "backend": "eager", "rounds": 6, **settings}
    return compile_benchmark(model, args, **settings)


def only(report: CompileReport):
    """The row of the one mode that was measured."""
    eager, row = report.rows
    assert eager.mode == "eager"
    return row


# -- right or wrong --------------------------------------------------------------------------------


def test_a_right_model_gets_every_figure():
    report = bench(Net())
    row = only(report)
    assert (row.status, row.effective_mode, row.phase) == ("ok", "default", "step")
    assert (row.graphs, row.graph_breaks, row.recompiles) == (1, 0, 0)
    assert row.max_abs_error == row.max_abs_error_grad == 0.0
    assert row.compared_in == "as timed"
    assert len(row.samples) == len(row.eager_samples) == 6
    assert row.speedup_low <= row.speedup <= row.speedup_high
    for timing in (row.forward, row.backward, row.step):
        assert len(timing.samples) == 6
    pairs = zip(row.forward.samples, row.backward.samples, row.step.samples, strict=True)
    assert all(forward + backward == step for forward, backward, step in pairs)
    assert 0 < row.compile_seconds_cold <= row.first_call_seconds * 1.5 + 0.1
    assert row.compile_seconds_warm is None  # this backend keeps nothing on disk
    assert row.kernels is row.kernel_launches is None
    json.dumps(report.to_dict(), allow_nan=False)
    assert CompileReport.from_dict(report.to_dict()) == report


def after(change):
    """A backend that changes what the right graph returns."""

    def backend(graph, inputs):
        return lambda *args: tuple(change(value) for value in graph(*args))

    return backend


def test_a_wrong_output_is_no_speedup():
    row = only(bench(Net(), backend=after(lambda value: value + 0.01)))
    assert row.status == "wrong_result"
    assert "outputs[0] differs by 0.01" in row.reason
    assert row.max_abs_error == pytest.approx(0.01, rel=1e-3)
    assert row.samples == ()
    assert row.speedup is row.verdict is row.break_even_calls is row.step is None
    assert row.graphs == 1  # what was seen of the compilation stays


class GradientOff(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.01


def test_a_wrong_gradient_under_a_right_output_is_found():
    row = only(bench(Net(), backend=after(GradientOff.apply)))
    assert row.status == "wrong_result"
    assert "gradients[" in row.reason
    assert "in float64: gradients[" in row.reason  # no kink: 1 % is small enough to be one
    assert row.samples == ()
    assert row.max_abs_error == 0.0
    assert row.max_rel_error_grad == pytest.approx(0.01, rel=1e-2)


class Kink(nn.Module):
    """The first of 5,000 activations is a rounding error below 0: ReLU lets no gradient through."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.relu(x * self.weight - 1)


BESIDE_A_KINK = torch.full((5000, 1), 2.0)
BESIDE_A_KINK[0] = 1 - 2**-24


def rounds_otherwise(graph, inputs):
    """A right backend whose first result lies some units in the last place higher."""

    def run(*args):
        return graph(*(nudged(one) for one in args))

    def nudged(one):
        is_input = isinstance(one, torch.Tensor) and one.ndim == 2
        return one * (1 + 4 * torch.finfo(one.dtype).eps) if is_input else one

    return run


def test_an_activation_on_a_kink_is_no_wrong_gradient():
    row = only(bench(Kink(), (BESIDE_A_KINK,), backend=rounds_otherwise))
    assert row.max_abs_error < 1e-5
    assert row.max_rel_error_grad > 1e-3  # one of 5,000 came in as a whole
    assert row.status == "ok"
    assert "gradients[0] differs by" in row.reason
    assert "in float64 all agree" in row.reason
    assert row.speedup is not None
    # That took one more compile, which is told apart; far from a kink there is none.
    assert row.compile_seconds_comparison is not None
    far_from_it = only(bench(Kink(), (BESIDE_A_KINK[1:],), backend=rounds_otherwise))
    assert far_from_it.compile_seconds_comparison is None


def test_an_activation_on_a_kink_at_another_size_is_no_wrong_gradient():
    far_from_it = torch.full((20, 1), 2.0)
    row = only(
        bench(
            Kink(),
            (far_from_it,),
            backend=rounds_otherwise,
            dynamic=True,
            shapes=[("larger", (BESIDE_A_KINK,))],
        )
    )
    assert row.status == "ok"
    assert "size 'larger': gradients[0] differs by" in row.reason
    assert row.sizes[0].timing is not None


def test_a_doubt_that_float64_cannot_settle_is_wrong():
    class SingleOnly(Kink):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise ValueError("single precision only")
            return super().forward(x)

    row = only(bench(SingleOnly(), (BESIDE_A_KINK,), backend=rounds_otherwise))
    assert row.status == "wrong_result"
    assert "no comparison was possible" in row.reason
    assert "single precision only" in row.reason
    assert row.speedup is row.verdict is None


def test_eager_against_itself_shows_what_is_no_error_of_the_compiler():
    assert bench(Net(), modes="eager").rows[0].max_abs_error == 0.0
    calls = itertools.count()

    class Drifts(nn.Module):
        def forward(self, x):
            return x + next(calls)

    (row,) = bench(Drifts(), modes="eager", backward=False).rows
    assert row.max_abs_error >= 1
    assert row.reason.startswith("two eager runs differ: outputs[0] differs by")


def test_a_buffer_updated_twice_is_found():
    def twice(graph, inputs):
        def run(*args):
            graph(*args)
            return graph(*args)

        return run

    row = only(bench(Net(), backend=twice))
    assert row.status == "wrong_result"
    assert "buffers[" in row.reason


def test_nan_is_wrong_and_still_json():
    report = bench(Net(), backend=after(lambda value: value * float("nan")))
    assert only(report).status == "wrong_result"
    assert "NaN" in only(report).reason
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_users_tolerance_replaces_ours():
    off = after(lambda value: value + 0.01)
    assert only(bench(Net(), backend=off, backward=False, rtol=0, atol=0.02)).status == "ok"
    row = only(bench(Net(), backend=after(lambda value: value + 1e-6), rtol=0, atol=1e-8))
    assert row.status == "wrong_result"


class Low(nn.Module):
    """The compiled graph keeps bfloat16 products in float32: closer to the truth than eager."""

    def forward(self, x):
        if torch.compiler.is_compiling():
            return x @ x.T
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ x.T).to(x.dtype)


def test_rounding_of_a_low_precision_is_judged_by_float64():
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(1))
    row = only(bench(Low(), (x,), backward=False))
    assert row.max_rel_error > 1e-4  # beyond the tolerance of float32
    assert row.status == "ok"


def test_low_precision_is_judged_by_float64_at_every_size_as_well():
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(1))
    row = only(bench(Low(), (x,), backward=False, shapes=[("same", (x.clone(),))]))
    assert row.status == "ok"
    assert row.sizes[0].timing is not None


class Waves(nn.Module):
    """Complex parameters, and the modulus of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j, 0.5j, 1 + 0j]))

    def forward(self, x):
        return x * self.weight


def test_complex_models_are_compared_and_their_inputs_left_alone():
    x = X.to(torch.complex64).requires_grad_()
    row = only(bench(Waves(), (x,)))
    assert (row.status, row.reason) == ("ok", None)
    assert x.grad is None
    rounded = only(bench(Waves(), (x,), backend=after(lambda value: value * (1 + 1e-6))))
    assert rounded.status == "ok"
    wrong = only(bench(Waves(), (x,), backend=after(lambda value: value * (1 + 1e-2))))
    assert wrong.status == "wrong_result"
    work = Workload((x,), {}, torch.device("cpu"), backward=False, train_step=None)
    plan = Plan(False, "eager", 6, 1, Tolerance(), None, warm=False, seed=0)
    (precise,) = Study(Waves(), work, plan).compared_in_float64()
    assert precise.outputs[0].dtype == torch.complex128


def test_a_frozen_part_of_a_training_model_stays_frozen_in_float64():
    model = Net()
    model.norm.eval()
    work = Workload((X,), {}, torch.device("cpu"), backward=False, train_step=None)
    plan = Plan(False, "eager", 6, 1, Tolerance(), None, warm=False, seed=0)
    module, _ = Study(model, work, plan).in_float64(work)
    assert module.training
    assert not module.norm.training


def test_a_compiler_that_is_missing_fails_the_modes_and_not_the_call(monkeypatch):
    def missing(*args, **settings):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", missing)
    report = bench(Net(), backend="inductor", modes=("default", "max-autotune"))
    eager, *rows = report.rows
    assert eager.status == "ok"
    assert [row.status for row in rows] == ["error", "error"]
    assert all("no C++ compiler" in row.reason for row in rows)
    assert report.settings["primed"] is False


def test_dropout_is_compared_in_eval_mode_and_timed_in_training():
    row = only(bench(Net(dropout=0.5)))
    assert (row.status, row.compared_in) == ("ok", "eval")
    # That takes one more compile, which is told apart; without dropout there is none.
    assert row.compile_seconds_comparison is not None
    assert only(bench(Net(dropout=0.0))).compile_seconds_comparison is None
    assert only(bench(Net(dropout=0.5).eval())).compared_in == "as timed"
    wrong = only(bench(Net(dropout=0.5), backend=after(lambda value: value + 0.01)))
    assert wrong.status == "wrong_result"


def test_a_model_that_is_always_random_is_said_not_to_be_compared():
    class Random(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    row = only(bench(Random(), backward=False))
    assert row.status == "ok"
    assert row.compared_in is row.max_abs_error is None
    assert "random in eval mode" in row.reason


def off_by_a_hundredth(value):
    return value + 0.01


def in_training(model, x):
    model.train()
    loss = model(x).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("backward", [True, False])
def test_a_step_that_turns_dropout_on_is_compared_with_dropout_off(backward):
    for model in (Net(dropout=0.5), Net(dropout=0.5).eval()):
        settings = {"train_step": in_training, "backward": backward}
        row = only(bench(model, **settings))
        assert (row.status, row.reason, row.compared_in) == ("ok", None, "eval")
        assert row.max_abs_error == row.max_abs_error_grad == 0.0
        wrong = only(bench(model, backend=after(off_by_a_hundredth), **settings))
        assert wrong.status == "wrong_result"


def test_a_step_that_draws_numbers_itself_leaves_forward_and_backward_compared():
    def with_random_targets(model, x):
        loss = (model(x) - torch.rand(6, 3)).square().mean()
        loss.backward()
        return loss

    row = only(bench(Net(), train_step=with_random_targets))
    assert (row.status, row.compared_in, row.max_abs_error_grad) == ("ok", "eval", 0.0)
    assert row.reason == (
        "the training step is not compared with eager: it is random in eval mode, too"
    )
    wrong = only(bench(Net(), train_step=with_random_targets, backend=after(off_by_a_hundredth)))
    assert wrong.status == "wrong_result"
    alone = only(bench(Net(), train_step=with_random_targets, backward=False))
    assert alone.reason == (
        "not compared with eager: the training step is random in eval mode, too"
    )


def replaying(after_calls):
    """A backend whose graph goes wrong at a later call, as a replayed CUDA graph may."""

    def backend(graph, inputs):
        calls = itertools.count()

        def run(*args):
            late = next(calls) >= after_calls
            return tuple(value + 0.01 * late for value in graph(*args))

        return run

    return backend


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_result_that_is_wrong_from_the_third_call_on_is_found(dropout):
    row = only(bench(Net(dropout=dropout), backend=replaying(2)))
    assert row.status == "wrong_result"
    assert row.reason.startswith("at a later call: outputs[0] differs by 0.01")
    assert row.max_abs_error == pytest.approx(0.01, rel=1e-3)
    assert row.speedup is None


def test_a_gradient_that_is_wrong_later_is_no_kink():
    def backend(graph, inputs):
        calls = itertools.count()

        def run(*args):
            off = GradientOff.apply if next(calls) >= 2 else torch.clone
            return tuple(off(value) for value in graph(*args))

        return run

    row = only(bench(Net(), backend=backend))
    assert row.status == "wrong_result"
    assert row.reason.startswith("at a later call: gradients[")
    assert "in float64: gradients[" in row.reason


def test_a_step_that_goes_through_batches_is_compared_at_its_first_call_only():
    batches_of = functools.cache(lambda model: (n * X.roll(n) for n in itertools.count(1)))

    def train_step(model, x):
        loss = model(next(batches_of(model))).square().mean()
        loss.backward()
        return loss

    row = only(bench(Net(), train_step=train_step, backward=False, warmup=2))
    assert row.status == "ok"
    assert row.reason == (
        "only the first call was compared with eager: a later one is another in eager, too"
    )
    assert row.max_abs_error == 0.0


# -- how fast --------------------------------------------------------------------------------------


class Clocked(nn.Module):
    """Takes as long as the fake clock is told; compiled code has its own idea of that."""

    def __init__(self, tick) -> None:
        super().__init__()
        self.tick = tick

    def __deepcopy__(self, memo):
        return Clocked(self.tick)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            self.tick(1.0)
        return x + 1


def ticking(clock, seed, sigma=0.05):
    """Ten milliseconds of a machine that drifts and is interrupted now and then."""
    random = np.random.default_rng(seed)
    speed = [1.0]

    def tick(factor):
        speed[0] *= np.exp(0.02 * random.standard_normal())
        clock.advance(0.01 * factor * speed[0] * (1 + sigma * abs(random.standard_t(1.5))))

    return tick


def taking(tick, factor):
    def backend(graph, inputs):
        def run(*args):
            tick(factor)
            return graph(*args)

        return run

    return backend


def test_eager_against_itself_is_undecided_in_36_of_40(fake_clock):
    verdicts = []
    for seed in range(40):
        model = Clocked(ticking(fake_clock, seed))
        (row,) = bench(model, backward=False, modes="eager", rounds=20).rows
        verdicts.append(row.verdict)
    assert verdicts.count("undecided") >= 36


@pytest.mark.parametrize(("factor", "verdict"), [(1.2, "slower"), (1 / 1.2, "faster")])
def test_twenty_percent_are_called_in_9_of_10(fake_clock, factor, verdict):
    found = []
    for seed in range(10):
        tick = ticking(fake_clock, seed)
        report = bench(Clocked(tick), backward=False, rounds=20, backend=taking(tick, factor))
        found.append(only(report).verdict)
    assert found.count(verdict) >= 9


def test_speedup_noise_floor_and_break_even_follow_from_the_clock(fake_clock, monkeypatch):
    monkeypatch.setattr("gnnprof._compile_workload._LEAST_SAMPLE", 0.018)

    def tick(factor):
        fake_clock.advance(0.010 * factor)

    report = bench(Clocked(tick), backward=False, backend=taking(tick, 0.5))
    row = only(report)
    assert row.median == pytest.approx(0.005)
    assert row.timing.eager_median == pytest.approx(0.010)
    assert row.speedup == row.speedup_low == row.speedup_high == pytest.approx(2.0)
    assert row.verdict == "faster"
    assert row.break_even_calls == int(np.ceil(row.compile_seconds_cold / 0.005))
    assert report.noise_floor.ratio == pytest.approx(1.0)
    assert report.noise_floor.half_width == pytest.approx(0.0, abs=1e-9)
    # Two eager and four compiled calls a sample: 20 ms of either in each round.
    seconds = [one.timed_seconds for one in report.rows]
    assert seconds == pytest.approx([0.04 * len(row.samples)] * 2)
    assert "Use torch.compile(mode='default'): 2.00x" in report.recommendation


@pytest.mark.parametrize("warmup", [1, 2, 5])
def test_the_calls_that_are_looked_at_belong_to_the_warm_up(fake_clock, warmup):
    calls = []

    def tick(factor):
        calls.append(factor)
        fake_clock.advance(0.03)  # a sample is one call

    bench(Clocked(tick), backward=False, modes="eager", rounds=6, warmup=warmup)
    before_anything, memory = 1, 1
    assert len(calls) == before_anything + 2 * max(warmup, 2) + 2 * 6 + memory


def test_rounds_alternate_who_goes_first(fake_clock):
    order = []

    def tick(factor):
        order.append(factor)
        fake_clock.advance(0.01)

    bench(Clocked(tick), backward=False, backend=taking(tick, 2.0))
    timed = order[order.index(2.0) :]
    # The last 12 ticks before the memory is looked at: 6 rounds of two.
    rounds = list(zip(timed[-13:-1:2], timed[-12::2], strict=False))
    assert rounds[:6] == [(2.0, 1.0), (1.0, 2.0)] * 3


def test_a_sleeping_backend_is_called_slower_by_the_real_clock():
    class Sleeping(nn.Module):
        def forward(self, x):
            if not torch.compiler.is_compiling():
                time.sleep(0.01)
            return x + 1

    def backend(graph, inputs):
        def run(*args):
            time.sleep(0.1)  # far beyond what a busy machine adds to a sleep
            return graph(*args)

        return run

    row = only(bench(Sleeping(), backward=False, rounds=8, warmup=1, backend=backend))
    assert row.verdict == "slower"
    assert row.median >= 0.1
    assert 0.01 <= row.timing.eager_median < row.median


# -- modes, settings, failures ---------------------------------------------------------------------


def test_every_mode_with_every_dynamic_is_a_row():
    report = bench(Net(), modes=["default", "max-autotune"], dynamic=[None, True], rounds=6)
    assert [(row.mode, row.dynamic) for row in report.rows] == [
        ("eager", None),
        ("default", None),
        ("default", True),
        ("max-autotune", None),
        ("max-autotune", True),
    ]
    assert report.rows[3].effective_mode == "default"
    assert "has no modes" in report.rows[3].reason
    assert report.rows[1].reason is None
    assert all(row.failed_after_seconds is None for row in report.rows)


def failing(error):
    def backend(graph, inputs):
        raise error

    return backend


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError("no more"), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (ValueError("not this graph"), "compile_error"),
    ],
)
def test_a_mode_that_fails_is_a_row(error, status):
    row = only(bench(Net(), backend=failing(error)))
    assert row.status == status
    assert str(error) in row.reason
    assert row.speedup is row.verdict is None


def test_a_compilation_that_fails_tells_after_how_many_seconds(fake_clock):
    def backend(graph, inputs):
        fake_clock.advance(7.0)
        raise ValueError("not this graph")

    model = Clocked(lambda factor: fake_clock.advance(0.01 * factor))
    row = only(bench(model, backward=False, backend=backend))
    assert (row.status, row.failed_after_seconds) == ("compile_error", pytest.approx(7.0))


def test_a_failure_while_running_keeps_what_was_known():
    calls = []

    def backend(graph, inputs):
        def run(*args):
            calls.append(1)
            if len(calls) > 5:
                raise ArithmeticError("the sixth call fails")
            return graph(*args)

        return run

    row = only(bench(Net(), backend=backend))
    assert row.status == "error"
    assert row.reason.startswith("ArithmeticError: the sixth call fails")
    assert row.graphs == 1
    assert row.max_abs_error == 0.0
    assert row.samples == ()


def test_an_error_of_eager_is_the_callers():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bench(Net(), (torch.ones(6, 5),))


class Masked(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()


def test_breaks_are_counted_and_gone_with_fullgraph():
    row = only(bench(Masked(), backward=False))
    assert row.graph_breaks == sum(place.count for place in row.breaks) == 1
    assert row.breaks[0].location.startswith("tests/test_compilation.py:")
    assert "aten.nonzero" in row.breaks[0].reason
    whole = only(bench(Masked(), backward=False, fullgraph=True))
    assert (whole.status, whole.graphs, whole.graph_breaks) == ("ok", 1, 0)
    assert whole.fullgraph


def test_where_fullgraph_needs_a_setting_it_is_made_and_said():
    tries = []

    def backend(graph, inputs):
        tries.append(torch._dynamo.config.capture_dynamic_output_shape_ops)
        if len(tries) == 1:
            raise RuntimeError("try torch._dynamo.config.capture_dynamic_output_shape_ops = True")
        return graph

    row = only(bench(Net(), backend=backend, fullgraph=True))
    assert row.status == "ok"
    assert "compiled with torch._dynamo.config.capture_dynamic_output_shape_ops=True" in row.reason
    assert tries[-1]
    assert not torch._dynamo.config.capture_dynamic_output_shape_ops


def test_a_break_under_fullgraph_is_a_compile_error():
    class Breaking(nn.Module):
        def forward(self, x):
            torch._dynamo.graph_break()
            return x + 1

    row = only(bench(Breaking(), backward=False, fullgraph=True))
    assert row.status == "compile_error"
    assert "Unsupported" in row.reason
    assert only(bench(Breaking(), backward=False)).graph_breaks == 1


def test_a_model_of_which_nothing_is_compiled_ran_eagerly():
    class InLoop(nn.Module):
        def forward(self, x):
            for _ in range(2):
                x = x * 2
                torch._dynamo.graph_break()
            return x

    row = only(bench(InLoop(), backward=False))
    assert (row.effective_mode, row.graphs) == ("eager", 0)
    assert "nothing was compiled" in row.reason


# -- other sizes -----------------------------------------------------------------------------------


class Plain(nn.Module):
    def forward(self, x):
        return (x * 2).relu()


def test_twelve_fixed_sizes_reach_the_limit_and_say_so():
    shapes = [(f"n={n}", (torch.ones(n, 4),)) for n in range(10, 22)]
    row = only(bench(Plain(), backward=False, dynamic=False, shapes=shapes))
    limit = torch._dynamo.config.recompile_limit
    assert row.status == "ok"
    assert [size.label for size in row.sizes] == [label for label, _ in shapes]
    assert [size.recompiles for size in row.sizes] == [1] * (limit - 1) + [0] * (13 - limit)
    assert [size.fell_back for size in row.sizes] == [False] * (limit - 1) + [True] * (13 - limit)
    assert row.recompiles == limit - 1
    assert row.graphs == limit
    assert row.effective_mode == "partly eager"
    assert f"from size 'n={10 + limit - 1}' on: recompile limit ({limit}) reached by forward" in (
        row.reason
    )
    assert all(size.compile_seconds > 0 for size in row.sizes[: limit - 1])
    assert row.sizes[-1].compile_seconds == 0.0
    assert all(len(size.timing.samples) == 6 for size in row.sizes)


def test_dynamic_sizes_compile_once_more_at_most():
    shapes = [(torch.randn(n, 4),) for n in (7, 8, 9)]
    auto, always = (only(bench(Net(), dynamic=dynamic, shapes=shapes)) for dynamic in (None, True))
    assert [size.recompiles for size in auto.sizes] == [1, 0, 0]
    assert [size.recompiles for size in always.sizes] == [0, 0, 0]
    assert [size.label for size in auto.sizes] == ["#1", "#2", "#3"]
    assert auto.effective_mode == always.effective_mode == "default"


def test_a_size_at_which_the_result_is_wrong_takes_the_speedup():
    def backend(graph, inputs):
        return lambda *args: tuple(value + (value.shape[0] == 9) * 1.0 for value in graph(*args))

    shapes = [("eight", X[:5]), ("nine", torch.ones(9, 4)), ("ten", torch.ones(10, 4))]
    row = only(bench(Plain(), backward=False, backend=backend, shapes=shapes))
    assert row.status == "wrong_result"
    assert row.reason.startswith("size 'nine': outputs[0] differs by 1")
    assert row.speedup is None
    assert len(row.sizes) == 2


def test_a_size_that_fails_is_told_and_the_others_go_on():
    shapes = [("bad", torch.ones(3, 5)), ("good", torch.randn(3, 4))]
    row = only(bench(Net(), shapes=shapes))
    assert row.status == "ok"
    assert "size 'bad' failed: RuntimeError" in row.reason
    assert row.sizes[0].timing is None
    assert row.sizes[1].timing is not None


# -- training steps --------------------------------------------------------------------------------


def test_a_training_step_is_timed_and_its_gradients_compared():
    optimizer_of = functools.cache(lambda model: torch.optim.Adam(model.parameters()))

    def train_step(model, x):
        optimizer = optimizer_of(model)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    model = Net()
    before = copy.deepcopy(model.state_dict())
    row = only(bench(model, train_step=train_step, backward=False))
    assert (row.status, row.phase) == ("ok", "step")
    assert row.forward is row.backward is None
    assert row.max_abs_error == row.max_abs_error_grad == 0.0
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    wrong = only(
        bench(model, train_step=train_step, backward=False, backend=after(GradientOff.apply))
    )
    assert wrong.status == "wrong_result"
    all_phases = only(bench(model, train_step=train_step))
    assert None not in (all_phases.forward, all_phases.backward, all_phases.step)


def test_a_training_step_is_compared_beside_forward_and_backward():
    def wrong_when_compiled(model, x):
        factor = 7.0 if hasattr(model, "_orig_mod") else 1.0
        loss = factor * model(x).square().mean()
        loss.backward()
        return loss

    def right(model, x):
        return model(x).square().mean().item()  # a number, and no gradient

    for backward in (True, False):
        row = only(bench(Net(), train_step=wrong_when_compiled, backward=backward))
        assert row.status == "wrong_result"
        assert row.speedup is None
    assert only(bench(Net(), train_step=right)).status == "ok"


def test_what_a_row_speaks_of_is_the_step_alone():
    calls = []

    class Counted(Net):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    def train_step(model, x):
        model(x).square().mean().backward()

    work = Workload((X,), {}, torch.device("cpu"), backward=True, train_step=train_step)
    candidate = Candidate(Counted(), work)
    assert candidate.workload.lap_phases == ("forward", "backward", "step")
    candidate = candidate.on(candidate.draw_cotangents(0))
    calls.clear()
    assert set(candidate.lap()) == {"forward", "backward", "step"}
    assert len(calls) == 2
    candidate.peak_memory()
    candidate.kernel_launches()
    assert len(calls) == 4


# -- containers ------------------------------------------------------------------------------------


def test_arguments_and_outputs_may_be_any_container():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, pair, *, scale):
            return {"out": [self.layer(pair["x"]) * scale["by"], pair["count"]]}

    x = X.clone().requires_grad_()
    pair = {"x": x, "count": torch.tensor(3)}
    row = only(bench(Nested(), (pair,), kwargs={"scale": {"by": torch.tensor(2.0)}}))
    assert row.status == "ok"
    assert row.max_abs_error_grad == 0.0
    assert x.grad is None
    wrong = only(
        bench(
            Nested(),
            (pair,),
            kwargs={"scale": {"by": torch.tensor(2.0)}},
            backend=after(GradientOff.apply),
        )
    )
    assert wrong.status == "wrong_result"


# -- nothing is left behind ------------------------------------------------------------------------


def stopped_by(error):
    calls = []

    def backend(graph, inputs):
        def run(*args):
            calls.append(1)
            if len(calls) > 4:
                raise error
            return graph(*args)

        return run

    return backend


@pytest.mark.parametrize("interrupted", [False, True])
def test_model_inputs_random_state_and_compiler_are_left_as_found(monkeypatch, interrupted):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    model = Net(dropout=0.5)
    model.second.eval()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    x = X.clone().requires_grad_()
    state, weights = module_state(model), copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    utils.counters["stats"]["unique_graphs"] = 3
    settings = dict(torch._dynamo.config.get_config_copy())
    try:
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                bench(model, (x,), backend=stopped_by(KeyboardInterrupt()))
        else:
            bench(model, (x,))
        assert utils.counters["stats"]["unique_graphs"] == 3
    finally:
        utils.counters.clear()
    assert torch.equal(torch.rand(3), expected)
    assert module_state(model) == state
    assert all(torch.equal(model.state_dict()[key], weights[key]) for key in weights)
    assert torch.equal(model.first.weight.grad, torch.ones_like(model.first.weight))
    assert x.grad is None
    assert torch._dynamo.config.get_config_copy() == settings
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
    assert gc.isenabled()


def test_warnings_of_the_compiler_itself_do_not_fail_a_mode():
    """Dynamo looks at the `.grad` of the tensor that comes out of the break, which warns."""

    class Breaking(Net):
        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    row = only(bench(Breaking()))
    assert row.status == "ok", row.reason
    assert row.graph_breaks == 1


def test_a_running_profiler_costs_the_memory_figure_only():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        row = only(bench(Net()))
    assert row.status == "ok"
    assert row.peak_memory is row.eager_peak_memory is None


def test_the_peak_is_that_of_the_tensors_of_one_call():
    class Doubling(nn.Module):
        def forward(self, x):
            y = x * 2  # 1 MB
            return (y + 1).sum()  # 1 MB more while y lives

    x = torch.ones(250_000)
    row = bench(Doubling(), (x,), backward=False, modes="eager").rows[0]
    assert 2_000_000 <= row.peak_memory < 2_010_000


# -- the door --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": lambda x: x}, TypeError, "must be a torch.nn.Module"),
        ({"args": [X]}, TypeError, r"tuple of arguments or a single tensor \(got list\)"),
        ({"kwargs": [("a", 1)]}, TypeError, "'kwargs' must be a mapping"),
        ({"modes": []}, ValueError, "'modes' is empty"),
        ({"modes": ["fast"]}, ValueError, "allowed are eager, default, reduce-overhead"),
        ({"backend": "tensorflow"}, ValueError, "backend='tensorflow' is unknown"),
        ({"dynamic": "yes"}, TypeError, "dynamic='yes' holds a str"),
        ({"dynamic": []}, ValueError, "'dynamic' is empty"),
        ({"rounds": 5}, ValueError, "'rounds' must be an integer of at least 6"),
        ({"warmup": 0}, ValueError, "'warmup' must be an integer of at least 1"),
        ({"rtol": -1.0}, ValueError, "'rtol' must be a finite number"),
        ({"atol": "small"}, TypeError, "'atol' must be a number"),
        ({"train_step": 3}, TypeError, "'train_step' must be callable"),
        ({"shapes": torch.ones(2)}, TypeError, "'shapes' must be a list"),
        ({"shapes": [("a", (X,)), ("a", (X,))]}, ValueError, "two entries labelled 'a'"),
        ({"model": nn.LazyLinear(3)}, ValueError, "lazy parameters"),
        ({"model": Plain()}, ValueError, "backward=False"),
    ],
)
def test_bad_input_is_one_clear_sentence(changes, error, message):
    values = {"model": Net(), "args": (X,), **changes}
    with pytest.raises(error, match=message):
        bench(values.pop("model"), values.pop("args"), **values)


def test_a_compiled_model_is_refused():
    with pytest.raises(ValueError, match="compiled already"):
        bench(torch.compile(Net(), backend="eager"))


def test_a_model_that_cannot_be_copied_is_refused():
    model = Net()
    model.kept = model.first(X)  # a tensor that autograd made
    with pytest.raises(TypeError, match="cannot be copied"):
        bench(model)


def test_a_model_that_changes_its_inputs_is_refused_and_they_stay():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.add_(1)

    x = torch.zeros(3)
    with pytest.raises(ValueError, match="changes its inputs in place"):
        bench(InPlace(), (x,), backward=False)
    assert torch.equal(x, torch.zeros(3))


@pytest.mark.parametrize("kind", [dict, "graph"])
def test_a_model_that_replaces_tensors_in_its_inputs_is_refused(kind):
    class Assigns(nn.Module):
        def forward(self, data):
            data["x"] = data["x"] + 1
            return data["x"]

    pyg = pytest.importorskip("torch_geometric.data")
    x = torch.zeros(3)
    data = pyg.Data(x=x) if kind == "graph" else {"x": x}
    with pytest.raises(ValueError, match="replaces tensors in its inputs"):
        bench(Assigns(), (data,), backward=False)
    assert data["x"] is x
    assert torch.equal(x, torch.zeros(3))


def test_a_model_that_keeps_something_with_its_inputs_is_measured():
    class Caches(nn.Module):
        def forward(self, data):
            if "norm" not in data:
                data["norm"] = data["x"].sum()
            return data["x"] / data["norm"]

    (row,) = bench(Caches(), ({"x": torch.ones(3)},), modes="eager", backward=False).rows
    assert row.status == "ok"


def test_scripted_parts_are_neither_compiled_nor_touched():
    scripted = torch.jit.script(nn.ModuleList([nn.Linear(2, 2)]))
    model = nn.Sequential(torch.jit.script(nn.ReLU()))
    before = dict(vars(model[0]))
    assert not _dynamo.is_compiled(scripted)
    assert not _dynamo.is_compiled(model)
    assert vars(model[0]) == before


def test_an_output_without_gradient_is_refused():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x).detach()

    with pytest.raises(ValueError, match="backward=False"):
        bench(Detached())


def test_the_progress_bar_goes_to_stderr(capsys):
    bench(Net(), progress_bar=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err


def test_the_environment_says_what_the_figures_depend_on(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    report = bench(Net(), modes="eager")
    assert {"torch", "python", "device", "threads", "gnnprof"} <= set(report.environment)
    assert report.environment["omp_wait_policy"] == "PASSIVE"
    assert report.settings["rounds"] == 6
    assert gnnprof.compile_benchmark is compile_benchmark


# -- Inductor --------------------------------------------------------------------------------------

INDUCTOR_PROBE = """
import json, sys
import torch
from torch_geometric.nn import GCNConv, SAGEConv
from gnnprof import compile_benchmark

torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.convs = torch.nn.ModuleList([layer(8, 16), layer(16, 3)])

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return x

x, edge_index = torch.randn(50, 8), torch.randint(50, (2, 200))
found = {}
for layer, backend in ((GCNConv, "eager"), (SAGEConv, "inductor")):
    report = compile_benchmark(
        Net(layer), (x, edge_index), modes="reduce-overhead", rounds=6, backend=backend,
        backward=False, prime=False, cache_dir=sys.argv[1],
    )
    found[layer.__name__] = report.rows[1].to_dict()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_gcn_breaks_and_sage_is_one_graph_of_inductors(tmp_path):
    """In a process of its own: Inductor's compile threads outlive the call."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INDUCTOR_PROBE, str(tmp_path / "cache")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    gcn, sage = found["GCNConv"], found["SAGEConv"]
    assert gcn["graph_breaks"] == 4
    assert {place["reason"] for place in gcn["breaks"]} == {
        "Dynamic shape operator: aten.nonzero.default"
    }
    assert (sage["status"], sage["graphs"], sage["graph_breaks"]) == ("ok", 1, 0)
    assert sage["effective_mode"] == "default"
    assert "cudagraph_skips is 1" in sage["reason"]
    assert sage["kernels"] >= 1
    assert sage["kernel_launches"] >= sage["kernels"]
    assert sage["compile_seconds_warm"] < sage["compile_seconds_cold"]
    assert sage["max_abs_error"] < 1e-4
    assert any((tmp_path / "cache").iterdir())
