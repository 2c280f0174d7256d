"""`benchmark`: the reference's table, right times, any output, and nothing left behind."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import json
import random
import types
import warnings
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnnprof import _device
from gnnprof._records import BenchmarkResult, Timing
from gnnprof.benchmark import benchmark, get_func_name, require_grad

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric scripts functions
    REFERENCE = importlib.import_module("torch_geometric.profile.benchmark")

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Output:
    loss: Tensor
    extra: Any = None


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    label: str


class SlowBackward(torch.autograd.Function):
    """Identity whose backward pass takes given seconds on a fake clock."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Any, seconds: float) -> Tensor:
        ctx.wait = functools.partial(clock.advance, seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.wait()
        return grad, None, None


def slow(clock: Any, forward: float, backward: float) -> Callable[[Tensor], Tensor]:
    def func(x: Tensor) -> Tensor:
        clock.advance(forward)
        result: Tensor = SlowBackward.apply(x, clock, backward)
        return result

    return func


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch, fake_clock: Any) -> Any:
    """Torch_geometric's `benchmark` on the same fake clock."""
    monkeypatch.setattr(REFERENCE, "time", types.SimpleNamespace(perf_counter=fake_clock))
    return REFERENCE


# -- the table and the times -----------------------------------------------------------------------


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_table_equals_the_reference(
    reference: Any,
    fake_clock: Any,
    capsys: pytest.CaptureFixture[str],
    backward: bool,
    per_step: bool,
) -> None:
    funcs = [slow(fake_clock, 0.25, 0.5), slow(fake_clock, 1 / 3, 2.0)]
    settings: dict[str, Any] = {
        "args": (torch.randn(4),),
        "num_steps": 3,
        "num_warmups": 2,
        "func_names": ["quick", "a much longer name"],
        "backward": backward,
        "per_step": per_step,
    }
    assert reference.benchmark(funcs, **settings) is None
    expected = capsys.readouterr().out
    results = benchmark(funcs, **settings)
    assert capsys.readouterr().out == expected
    assert "0.7500s" in expected or "0.250000s" in expected
    assert [result.name for result in results] == ["quick", "a much longer name"]


def test_records_hold_every_measured_step(
    fake_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    durations = iter([9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])  # the first two are warm-up

    def func(x: Tensor) -> Tensor:
        fake_clock.advance(next(durations))
        return x

    (result,) = benchmark([func], (torch.ones(1),), num_steps=6, num_warmups=2)
    assert result == BenchmarkResult("func", Timing((1.0, 2.0, 3.0, 4.0, 5.0, 6.0)))
    forward = result.forward
    assert forward is not None
    assert (forward.total, forward.mean, forward.median) == (21.0, 3.5, 3.5)
    assert forward.std == pytest.approx(3.5**0.5)
    assert forward.interval == (1.0, 6.0)
    assert result.total == 21.0
    assert "21.0000s" in capsys.readouterr().out


def test_results_go_to_json() -> None:
    result = BenchmarkResult("f", Timing((1.0, 3.0)), Timing((0.5, 0.5)))
    entry = json.loads(json.dumps(result.to_dict()))
    assert (entry["name"], entry["error"], entry["total"]) == ("f", None, 5.0)
    assert (entry["forward_median"], entry["forward_median_low"]) == (2.0, None)
    assert (entry["backward_samples"], entry["backward_total"]) == ([0.5, 0.5], 1.0)
    failed = BenchmarkResult("g", None, None, "ValueError: no")
    assert failed.to_dict() == {"name": "g", "error": "ValueError: no", "total": None}


def test_only_the_calls_are_timed(fake_clock: Any) -> None:
    """Making arguments and gradients, and waiting for the device before a stamp, cost nothing."""

    def make_arguments() -> tuple[Tensor]:
        fake_clock.advance(100.0)
        return (torch.ones(2),)

    (result,) = benchmark(
        [slow(fake_clock, 1.0, 2.0)], make_arguments, num_steps=2, num_warmups=1, backward=True
    )
    assert (result.forward, result.backward) == (Timing((1.0, 1.0)), Timing((2.0, 2.0)))


def test_device_is_synchronised_before_every_stamp(
    fake_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued kernels: forward queues 1 s, the gradient's making 10 s, backward 2 s."""
    queued = 0.0

    def synchronize(device: torch.device | None = None) -> None:
        nonlocal queued
        fake_clock.advance(queued)
        queued = 0.0

    def queue(seconds: float) -> None:
        nonlocal queued
        queued += seconds

    def randn_like(tensor: Tensor) -> Tensor:
        queue(10.0)
        return torch.ones_like(tensor)

    monkeypatch.setattr(_device, "synchronize", synchronize)
    monkeypatch.setattr(torch, "randn_like", randn_like)
    device = types.SimpleNamespace(advance=queue)

    def func(x: Tensor) -> Tensor:
        queue(1.0)
        result: Tensor = SlowBackward.apply(x, device, 2.0)
        return result

    (result,) = benchmark([func], (torch.ones(2),), num_steps=2, num_warmups=1, backward=True)
    assert (result.forward, result.backward) == (Timing((1.0, 1.0)), Timing((2.0, 2.0)))


def test_output_of_a_step_is_freed_before_the_next() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def func(x: Tensor) -> Tensor:
        assert not [ref for ref in alive if ref() is not None]
        out = x * 2
        alive.append(weakref.ref(out))
        return out

    gc.disable()
    try:
        benchmark([func], (torch.ones(2),), num_steps=3, num_warmups=1, backward=True)
    finally:
        gc.enable()
    assert len(alive) == 4


# -- arguments -------------------------------------------------------------------------------------


def test_arguments_for_each_function_and_made_at_each_step() -> None:
    seen: list[float] = []

    def remember(x: Tensor, factor: float) -> Tensor:
        seen.append(float(x) * factor)
        return x

    counter = iter(range(100))
    args = [(torch.tensor(1.0), 10.0), lambda: (torch.tensor(float(next(counter))), 1.0)]
    benchmark([remember, remember], args, num_steps=2, num_warmups=1)
    assert seen == [10.0, 10.0, 10.0, 0.0, 1.0, 2.0]


def test_inputs_require_grad_at_any_depth_and_the_originals_stay() -> None:
    from torch_geometric.data import Data

    x, own = torch.ones(3), torch.ones(3, requires_grad=True)
    index = torch.tensor([[0], [1]])
    sparse = torch.eye(2).to_sparse()
    graph = Data(x=x, edge_index=index)
    cyclic: list[Any] = [x]
    cyclic.append(cyclic)
    original = {
        "list": [x, index],
        "named": Pair(own, "text"),
        "frozen": Frozen(x, "label"),
        "ordered": OrderedDict(a=x),
        "graph": graph,
        "cyclic": cyclic,
        "sparse": sparse,
        "number": 2.0,
    }
    made = require_grad(original)
    x2 = made["list"][0]
    assert x2.requires_grad
    assert x2.is_leaf
    assert x2.data_ptr() == x.data_ptr()
    assert not x.requires_grad
    assert graph.x is x
    assert original["frozen"].x is x
    # One tensor stays one tensor wherever it appears.
    places = [made["frozen"].x, made["ordered"]["a"], made["graph"].x, made["cyclic"][0]]
    assert all(place is x2 for place in places)
    assert made["cyclic"][1] is made["cyclic"]
    assert isinstance(made["named"], Pair)
    assert made["named"].first is not own
    assert made["named"].first.grad_fn is None
    assert (made["list"][1], made["sparse"], made["number"]) == (index, sparse, 2.0)
    assert isinstance(made["ordered"], OrderedDict)
    assert isinstance(made["graph"], Data)
    assert made["frozen"].label == "label"
    assert made["graph"].edge_index is index
    assert not require_grad((own,), False)[0].requires_grad
    assert own.requires_grad


@pytest.mark.parametrize(
    "value", [torch.ones(2), torch.arange(2), [torch.ones(1)], {"a": (torch.ones(1), None)}, "text"]
)
def test_require_grad_equals_the_reference(reference: Any, value: Any) -> None:
    for requires_grad in (True, False):
        assert str(require_grad(value, requires_grad)) == str(
            reference.require_grad(value, requires_grad)
        )


# -- backward --------------------------------------------------------------------------------------

SPARSE_INDEX = torch.tensor([[0, 1], [1, 0]])


def graph_output(y: Tensor) -> Any:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["paper"].x = y
    data["paper", "author"].edge_index = SPARSE_INDEX
    return data


def cycle_of(y: Tensor) -> list[Any]:
    out: list[Any] = [y]
    out.append(out)
    return out


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda y: y,
    "scalar": lambda y: y.sum(),
    "tuple with None and int": lambda y: (y, None, 3, "text"),
    "nested": lambda y: [{"a": [y, (None, y * 2)]}, 1.5],
    "dict of lists": lambda y: {"a": [y], "b": []},
    "named tuple": lambda y: Pair(None, y),
    "data class": lambda y: Output(y, [None, y.detach()]),
    "namespace": lambda y: types.SimpleNamespace(y=y),
    "set": lambda y: {y},
    "PyG data": graph_output,
    "cycle": cycle_of,
    "integer beside": lambda y: (y, y.argmax()),
    "COO": lambda y: torch.sparse_coo_tensor(SPARSE_INDEX, y, (2, 2), check_invariants=True),
    "CSR": lambda y: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2]), torch.tensor([1, 0]), y, (2, 2), check_invariants=True
    ),
    "complex": lambda y: torch.complex(y, y),
    "same tensor twice": lambda y: [y, y],
    "input itself": lambda y: y,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", OUTPUTS)
def test_backward_through_any_output(kind: str) -> None:
    """The gradient reaches the weight once per step, and no gradient is added to an earlier one."""
    weight = nn.Parameter(torch.ones(2))
    reached: list[bool] = []
    weight.register_post_accumulate_grad_hook(
        lambda p: reached.append(bool(p.grad is not None and p.grad.abs().sum() > 0))
    )

    def func(x: Tensor) -> Any:
        assert weight.grad is None
        return OUTPUTS[kind](x * weight)

    (result,) = benchmark([func], (torch.ones(2),), num_steps=2, num_warmups=1, backward=True)
    assert result.error is None
    assert reached == [True, True, True]
    assert result.backward is not None
    assert len(result.backward.samples) == 2


def test_output_without_gradient_is_an_error_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(RuntimeWarning, match="1 of 2 functions failed: flat: RuntimeError: the out"):
        good, bad = benchmark(
            [torch.relu, lambda x: {"a": x.argmax()}],
            (torch.ones(2),),
            num_steps=1,
            func_names=["good", "flat"],
            backward=True,
        )
    assert good.error is None
    assert bad.error == (
        "RuntimeError: the output (dict) holds no tensor that requires grad; benchmark it with "
        "backward=False"
    )
    row = next(line for line in capsys.readouterr().out.splitlines() if "flat" in line)
    assert row.split("|")[2:5] == [" n/a       ", " n/a        ", " n/a     "]


class Checkpointed(nn.Module):
    """A reentrant checkpoint: the graph of the output does not show the weight inside."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.lin, x, use_reentrant=True)
        return out


GLOBAL_MODEL = Checkpointed()


@pytest.mark.parametrize("way", ["module", "method", "partial", "closure", "global"])
def test_gradients_are_as_they_were(way: str) -> None:
    model = Checkpointed()
    funcs: dict[str, Callable[..., Any]] = {
        "module": model,
        "method": model.forward,
        "partial": functools.partial(Checkpointed.forward, model),
        "closure": lambda x: model(x),
        "global": lambda x: GLOBAL_MODEL(x),
    }
    target = GLOBAL_MODEL if way == "global" else model
    kept = torch.full((2, 2), 7.0)
    target.lin.weight.grad = kept
    x = torch.ones(3, 2, requires_grad=True)
    try:
        benchmark([funcs[way]], (x,), num_steps=2, num_warmups=1, backward=True)
        assert target.lin.weight.grad is kept
        assert (kept == 7.0).all()
        assert target.lin.bias.grad is None
        assert x.grad is None
    finally:
        target.lin.weight.grad = None


def test_gradients_are_put_back_when_backward_raises() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = kept = torch.ones(2)

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        benchmark(
            [lambda x: weight * Broken.apply(x)], (torch.ones(2),), num_steps=1, backward=True
        )
    assert weight.grad is kept
    assert (kept == 1.0).all()


def test_random_state_is_kept_and_the_same_for_every_function() -> None:
    def state() -> list[Any]:
        return [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]  # noqa: NPY002

    drawn: list[tuple[float, float, float]] = []

    def draw(x: Tensor) -> Tensor:
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))  # noqa: NPY002
        return x + 1

    before = state()
    benchmark([draw, draw], (torch.ones(2),), num_steps=1, num_warmups=1, backward=True)
    assert state() == before
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


# -- failures --------------------------------------------------------------------------------------


def fail(x: Tensor) -> Tensor:
    raise KeyError("edge_index")


def test_one_failing_function_loses_no_result(
    fake_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = slow(fake_clock, 1.0, 0.0), slow(fake_clock, 2.0, 0.0)
    with pytest.warns(
        RuntimeWarning, match="1 of 3 functions failed: fail: KeyError: 'edge_index'"
    ):
        results = benchmark(
            [first, fail, last], (torch.ones(1),), num_steps=1, func_names=["a", "fail", "b"]
        )
    assert results == (
        BenchmarkResult("a", Timing((1.0,))),
        BenchmarkResult("fail", None, None, "KeyError: 'edge_index'"),
        BenchmarkResult("b", Timing((2.0,))),
    )
    assert capsys.readouterr().out.splitlines() == [
        "+--------+-----------+------------------------+",
        "| Name   | Forward   | Error                  |",
        "|--------+-----------+------------------------|",
        "| a      | 1.0000s   |                        |",
        "| fail   | n/a       | KeyError: 'edge_index' |",
        "| b      | 2.0000s   |                        |",
        "+--------+-----------+------------------------+",
    ]


def test_the_error_is_raised_when_nothing_could_be_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyError, match="edge_index"):
        benchmark([fail], (torch.ones(1),), num_steps=1)
    assert "KeyError: 'edge_index'" in capsys.readouterr().out


def test_steps_before_a_failure_are_kept(
    fake_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    countdown = iter([1.0, 2.0, 3.0])

    def func(x: Tensor) -> Tensor:
        fake_clock.advance(next(countdown))
        return x

    with pytest.warns(RuntimeWarning, match="func: StopIteration$"):
        result, _ = benchmark([func, torch.relu], (torch.ones(1),), num_steps=5, num_warmups=1)
    assert (result.forward, result.error) == (Timing((2.0, 3.0)), "StopIteration")
    assert "2.0000s" not in capsys.readouterr().out


def test_a_failed_function_holds_no_memory_while_the_next_runs() -> None:
    held: list[weakref.ref[Tensor]] = []

    def out_of_memory(x: Tensor) -> Tensor:
        big = x + 1
        held.append(weakref.ref(big))
        raise torch.cuda.OutOfMemoryError("out of memory\nwith details")

    def check(x: Tensor) -> Tensor:
        assert held[0]() is None
        return x

    with pytest.warns(RuntimeWarning, match="OutOfMemoryError"):
        results = benchmark([out_of_memory, check], (torch.ones(1),), num_steps=1)
    assert results[1].error is None


def test_interrupt_prints_what_was_measured(
    fake_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        benchmark(
            [slow(fake_clock, 1.0, 0.0), interrupt, fail],
            (torch.ones(1),),
            num_steps=1,
            func_names=["done", "interrupted", "never"],
        )
    out = capsys.readouterr().out
    assert "| done   | 1.0000s   |" in out
    assert "interrupted" not in out


def test_arguments_of_the_wrong_kind_made_at_a_step_are_an_error() -> None:
    with pytest.raises(
        TypeError, match="callable in 'args' returned a Tensor; let it return a tup"
    ):
        benchmark([torch.relu], lambda: torch.ones(2), num_steps=1)


def test_a_hidden_coroutine_is_an_error() -> None:
    async def inner(x: Tensor) -> Tensor:
        return x

    with pytest.raises(TypeError, match="returned a coroutine, which has not run yet"):
        benchmark([lambda x: inner(x)], (torch.ones(1),), num_steps=1)


# -- the door --------------------------------------------------------------------------------------


async def coroutine_function(x: Tensor) -> Tensor:
    await asyncio.sleep(0)
    return x


def generator_function(x: Tensor) -> Iterator[Tensor]:
    yield x


class AsyncCall:
    async def __call__(self, x: Tensor) -> Tensor:
        return x


X = (torch.ones(1),)


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", None, True])
@pytest.mark.parametrize("argument", ["num_steps", "num_warmups"])
def test_counts_must_be_positive_integers(argument: str, value: Any) -> None:
    settings = {"num_steps": 1, "num_warmups": 1} | {argument: value}
    with pytest.raises(ValueError, match=f"'{argument}' must be a positive integer") as caught:
        benchmark([fail], X, **settings)
    assert str(caught.value) == f"'{argument}' must be a positive integer (got {value!r})"


@pytest.mark.parametrize(
    ("funcs", "settings", "error", "message"),
    [
        ([fail], {"func_names": ["a", "b"]}, ValueError, r"\(got 1\) and 'func_names' \(got 2\)"),
        ([fail, fail], {"args": [X]}, ValueError, r"\(got 2\) and of the list 'args' \(got 1\)"),
        ([fail], {"args": [X, X]}, ValueError, "for the same arguments everywhere pass a tuple"),
        ([fail], {"func_names": "f"}, TypeError, "func_names='f'; give a list of names"),
        ([fail], {"func_names": 3}, TypeError, "func_names=3; give a list of names"),
        ([fail], {"args": torch.ones(3)}, TypeError, r"got Tensor\); a single argument x goes in"),
        ([fail], {"args": [torch.ones(3)]}, TypeError, r"\(got Tensor\)"),
        (fail, {}, TypeError, r"'funcs' must be a list of functions \(got function\)"),
        ([fail, 3], {}, TypeError, r"'funcs' must hold functions \(got int\)"),
        ([coroutine_function], {}, TypeError, "the coroutine function 'coroutine_function', whose"),
        ([functools.partial(coroutine_function)], {}, TypeError, "the coroutine function"),
        ([AsyncCall()], {}, TypeError, "the coroutine function 'AsyncCall'"),
        ([generator_function], {}, TypeError, "the generator function 'generator_function'"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(
    funcs: Any, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        benchmark(funcs, **({"args": X, "num_steps": 1} | settings))


def test_messages_of_the_reference(reference: Any) -> None:
    for settings in ({"num_steps": 0}, {"num_warmups": -3}, {"func_names": ["a", "b"]}):
        messages = []
        for function in (benchmark, reference.benchmark):
            with pytest.raises(ValueError, match="got") as caught:
                function([fail], X, **({"num_steps": 1} | settings))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_nothing_to_do_prints_an_empty_table(
    reference: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    reference.benchmark([], (), num_steps=1)
    expected = capsys.readouterr().out
    assert benchmark([], (), num_steps=1) == ()
    assert capsys.readouterr().out == expected


def test_progress_bar_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark([torch.relu, torch.tanh], X, num_steps=1, progress_bar=True)
    captured = capsys.readouterr()
    assert "2/2" in captured.err
    assert "2/2" not in captured.out


# -- names -----------------------------------------------------------------------------------------


class GCN(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class GAT(GCN):
    pass


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (fail, "fail"),
        (torch.relu, "relu"),
        (GCN, "GCN"),
        (GCN(), "GCN"),
        (GCN().forward, "forward"),
        (lambda: None, "<lambda>"),
        (AsyncCall(), "AsyncCall"),
        (functools.partial(torch.sum, torch.ones(2), dim=0), "sum(Tensor, dim=0)"),
        (functools.partial(functools.partial(fail), GCN(), act=torch.relu), "fail(GCN, act=relu)"),
    ],
)
def test_names(func: Callable[..., Any], name: str) -> None:
    assert get_func_name(func) == name


def test_names_of_what_is_compiled() -> None:
    in_place = GCN()
    in_place.compile(backend="eager")
    compiled = torch.compile(fail, backend="eager")
    assert get_func_name(in_place) == "GCN (compiled)"
    assert get_func_name(torch.compile(GCN(), backend="eager")) == "GCN (compiled)"
    assert get_func_name(compiled) == "fail (compiled)"
    assert get_func_name(functools.partial(compiled, 1)) == "fail (compiled)(1)"
    assert get_func_name(torch.compiler.disable(fail)) == "fail"


def test_names_equal_the_reference_where_it_tells_them_apart(reference: Any) -> None:
    for func in (fail, torch.relu, GCN, GCN(), GCN().forward, AsyncCall()):
        assert get_func_name(func) == reference.get_func_name(func)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_name_of_a_scripted_module() -> None:
    assert get_func_name(torch.jit.script(GCN())) == "GCN (scripted)"


def test_names_are_distinct(capsys: pytest.CaptureFixture[str]) -> None:
    first = lambda x: x  # noqa: E731
    second = lambda x: x  # noqa: E731
    line = first.__code__.co_firstlineno
    funcs = [first, second, GCN().forward, GAT().forward, GCN(), GCN(), torch.relu]
    results = benchmark(funcs, X, num_steps=1, num_warmups=1)
    assert [result.name for result in results] == [
        f"<lambda> (test_benchmark.py:{line})",
        f"<lambda> (test_benchmark.py:{line + 1})",
        "GCN.forward",
        "GAT.forward",
        "GCN #1",
        "GCN #2",
        "relu",
    ]


def test_given_names_are_kept_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    results = benchmark([fail_not, fail_not], X, num_steps=1, func_names=["007", "007"])
    assert [result.name for result in results] == ["007", "007"]
    assert capsys.readouterr().out.count("| 007    |") == 2
    by_size = {16: fail_not, 32: fail_not}
    results = benchmark(by_size.values(), X, num_steps=1, func_names=by_size.keys())
    assert [result.name for result in results] == ["16", "32"]


def fail_not(x: Tensor) -> Tensor:
    return x
