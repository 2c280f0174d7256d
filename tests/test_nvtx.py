from __future__ import annotations

import asyncio
import functools
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any
from unittest.mock import MagicMock, call, patch

import pytest
import torch
import torch_geometric.profile.nvtx as reference_module

import gnnprof.nvtx as nvtx_module
from gnnprof.nvtx import nvtxit


class Recorder:
    """Stands in for torch.cuda: notes every call, keeps one stack of ranges per thread."""

    def __init__(self) -> None:
        self.available = True
        self.log: list[str] = []
        self.captures = 0
        self._stacks = threading.local()
        self.nvtx = self

    def is_available(self) -> bool:
        return self.available

    def cudart(self) -> Recorder:
        return self

    def cudaProfilerStart(self) -> None:
        assert self.captures == 0, "the capture is on already"
        self.captures += 1
        self.log.append("start")

    def cudaProfilerStop(self) -> None:
        assert self.captures == 1, "the capture is off already"
        self.captures -= 1
        self.log.append("stop")

    @property
    def open_ranges(self) -> list[str]:
        if not hasattr(self._stacks, "ranges"):
            self._stacks.ranges = []
        return self._stacks.ranges

    def range_push(self, label: str) -> None:
        self.open_ranges.append(label)
        self.log.append(f"push {label}")

    def range_pop(self) -> None:
        self.log.append(f"pop {self.open_ranges.pop()}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    monkeypatch.setattr("gnnprof.nvtx.torch.cuda", recorder)
    yield recorder
    assert recorder.captures == 0
    assert recorder.open_ranges == []


# -- the contract ----------------------------------------------------------------------------------


def test_patched_torch_cuda_sees_one_capture_around_nested_calls() -> None:
    with patch("gnnprof.nvtx.torch.cuda") as cuda:
        cuda.is_available.return_value = True

        @nvtxit()
        def call_b(value: int) -> int:
            return value + 1

        @nvtxit()
        def call_a() -> int:
            return call_b(41)

        assert call_a() == 42
        assert cuda.cudart.return_value.cudaProfilerStart.call_count == 1
        assert cuda.cudart.return_value.cudaProfilerStop.call_count == 1
        assert cuda.nvtx.range_push.call_args_list == [call("call_a_0"), call("call_b_0")]
        assert cuda.nvtx.range_pop.call_count == 2


def test_order_of_capture_and_ranges(cuda: Recorder) -> None:
    @nvtxit("inner")
    def b() -> None: ...

    @nvtxit("outer")
    def a() -> None:
        b()
        b()

    a()
    assert cuda.log == [
        *("start", "push outer_0"),
        *("push inner_0", "pop inner_0", "push inner_1", "pop inner_1"),
        *("pop outer_0", "stop"),
    ]


@pytest.mark.parametrize(
    ("n_warmups", "n_iters", "recorded"),
    [
        (0, None, [0, 1, 2, 3, 4, 5]),
        (2, None, [2, 3, 4, 5]),
        (2, 3, [2, 3, 4]),
        (0, 1, [0]),
        (0, 0, []),
        (9, 1, []),
    ],
)
def test_same_ranges_and_captures_as_the_reference(
    n_warmups: int, n_iters: int | None, recorded: list[int]
) -> None:
    def record(decorator: Callable[..., Any]) -> list[Any]:
        with patch("torch.cuda") as cuda:
            cuda.is_available.return_value = True
            inner = decorator(None, n_warmups, n_iters)(named("inner"))
            outer = decorator("outer", n_iters=4)(inner)
            results = [outer(i) for i in range(6)]
        return [*cuda.mock_calls, *results]

    def named(name: str) -> Callable[[int], int]:
        def function(value: int) -> int:
            return 2 * value

        function.__name__ = name
        return function

    def effects(calls: list[Any]) -> list[Any]:
        return [c for c in calls if not (isinstance(c, tuple) and c[0] == "is_available")]

    ours = effects(record(nvtxit))
    assert ours == effects(record(reference_module.nvtxit))
    pushed = [c.args[0] for c in ours if isinstance(c, tuple) and c[0] == "nvtx.range_push"]
    assert [label for label in pushed if "inner" in label] == [f"inner_{i}" for i in recorded]


def test_passes_through_without_cuda(cuda: Recorder) -> None:
    cuda.available = False
    function = nvtxit(n_warmups=1)(lambda value: value)
    assert [function(i) for i in range(3)] == [0, 1, 2]
    assert cuda.log == []
    cuda.available = True
    function(3)  # calls without CUDA were not counted: this is the warm-up
    assert cuda.log == []


def test_torchs_own_answer_counts_on_a_build_without_cuda() -> None:
    never = nvtx_module._NEVER_AVAILABLE
    assert never is (None if torch.backends.cuda.is_built() else torch.cuda.is_available)


def test_recursive_calls_are_counted_as_they_start(cuda: Recorder) -> None:
    @nvtxit()
    def countdown(n: int) -> int:
        return countdown(n - 1) if n else 0

    countdown(2)
    assert cuda.log == [
        *("start", "push countdown_0", "push countdown_1", "push countdown_2"),
        *("pop countdown_2", "pop countdown_1", "pop countdown_0", "stop"),
    ]


# -- however a call ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
def test_exceptions_close_range_and_capture(cuda: Recorder, error: type[BaseException]) -> None:
    @nvtxit()
    def step(fail: bool) -> str:
        if fail:
            raise error
        return "done"

    with pytest.raises(error):
        step(True)
    assert step(False) == "done"
    once = ["start", "push step_{0}", "pop step_{0}", "stop"]
    assert cuda.log == [line.format(i) for i in range(2) for line in once]


def test_failed_push_leaves_nothing_open(cuda: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "range_push", MagicMock(side_effect=RuntimeError("no NVTX")))
    with pytest.raises(RuntimeError, match="no NVTX"):
        nvtxit()(print)()
    assert cuda.log == ["start", "stop"]


def test_failed_start_leaves_nothing_open(cuda: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    function = nvtxit("f")(lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(cuda, "cudaProfilerStart", MagicMock(side_effect=RuntimeError("busy")))
        with pytest.raises(RuntimeError, match="busy"):
            function()
    function()
    assert cuda.log == ["start", "push f_1", "pop f_1", "stop"]


# -- threads ---------------------------------------------------------------------------------------


def test_capture_lasts_until_the_last_of_overlapping_threads_ends(cuda: Recorder) -> None:
    second_started, first_ended = threading.Event(), threading.Event()

    @nvtxit()
    def first() -> None:
        second.start()
        assert second_started.wait(10)

    @nvtxit()
    def other() -> None:
        assert cuda.open_ranges == ["other_0"]
        second_started.set()
        assert first_ended.wait(10)

    second = threading.Thread(target=other)
    first()
    assert cuda.captures == 1
    first_ended.set()
    second.join()
    assert cuda.log == [
        *("start", "push first_0", "push other_0", "pop first_0", "pop other_0", "stop"),
    ]


def test_many_threads_get_distinct_numbers(cuda: Recorder) -> None:
    function = nvtxit("f")(lambda: None)

    def work() -> None:
        for _ in range(200):
            function()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pushed = [line for line in cuda.log if line.startswith("push")]
    assert sorted(pushed) == sorted(f"push f_{i}" for i in range(1600))
    assert cuda.log.count("start") == cuda.log.count("stop") > 0


# -- every callable --------------------------------------------------------------------------------


def test_one_decorator_labels_and_counts_each_function_by_itself(cuda: Recorder) -> None:
    decorator = nvtxit(n_warmups=1)

    @decorator
    def one() -> None: ...

    @decorator
    def two() -> None: ...

    one(), one(), two(), two()
    pushed = [line for line in cuda.log if line.startswith("push")]
    assert pushed == ["push one_1", "push two_1"]


class Model:
    @nvtxit()
    def method(self) -> Model:
        return self

    @nvtxit()
    @classmethod
    def inner_class_method(cls) -> type[Model]:
        return cls

    @classmethod
    @nvtxit()
    def outer_class_method(cls) -> type[Model]:
        return cls

    @nvtxit()
    @staticmethod
    def inner_static_method(value: int) -> int:
        return value

    def __call__(self) -> str:
        return "called"


def test_methods(cuda: Recorder) -> None:
    model = Model()
    assert model.method() is model
    assert model.inner_class_method() is Model
    assert Model.outer_class_method() is Model
    assert Model.inner_static_method(3) == model.inner_static_method(3) == 3
    names = [line.split()[1].rsplit("_", 1)[0] for line in cuda.log if line.startswith("push")]
    assert names == [
        *("method", "inner_class_method", "outer_class_method"),
        *("inner_static_method", "inner_static_method"),
    ]


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (Model, "Model_0"),
        (lambda: functools.partial(functools.partial(divmod, 7), 2), "divmod_0"),
        (lambda: functools.partial(Model()), "Model_0"),
        (lambda: lambda: None, "<lambda>_0"),
        (lambda: Model().method.__func__.__get__(Model()), "method_0"),
        (lambda: functools.lru_cache(lambda: None), "<lambda>_0"),
    ],
    ids=["object", "partial", "partial of object", "lambda", "bound method", "cached"],
)
def test_labels_of_callables(
    cuda: Recorder, make: Callable[[], Callable[[], Any]], label: str
) -> None:
    func = make()
    expected = func()
    cuda.log.clear()
    assert type(nvtxit()(func)()) is type(expected)
    assert f"push {label}" in cuda.log


def test_modules_compiled_or_not_are_labelled_by_their_class(cuda: Recorder) -> None:
    module = torch.nn.Linear(2, 2)
    compiled = MagicMock(spec=["_orig_mod"], side_effect=lambda: "out")
    compiled._orig_mod = module
    decorated = nvtxit()(module)
    x = torch.ones(1, 2)
    assert torch.equal(decorated(x), module(x))
    assert nvtxit()(compiled)() == "out"
    pushed = [line for line in cuda.log if line.startswith("push")]
    assert pushed == ["push Linear_0", "push Linear_0"]
    assert "weight" not in vars(decorated), "the state of the module was copied"
    assert "_parameters" not in vars(decorated)


def test_metadata_is_kept() -> None:
    def function(x: int, *, y: str = "z") -> None:
        """What it does."""

    function.tag = "mine"  # type: ignore[attr-defined]
    decorated = nvtxit()(function)
    assert decorated.__name__ == "function"
    assert decorated.__doc__ == "What it does."
    assert decorated.__wrapped__ is function  # type: ignore[attr-defined]
    assert decorated.tag == "mine"  # type: ignore[attr-defined]
    assert inspect.signature(decorated) == inspect.signature(function)


# -- coroutines and generators ---------------------------------------------------------------------


def test_coroutine_has_its_range_open_while_it_runs(cuda: Recorder) -> None:
    seen: list[list[str]] = []

    @nvtxit()
    async def load(value: int) -> int:
        seen.append(list(cuda.open_ranges))
        await asyncio.sleep(0)
        seen.append(list(cuda.open_ranges))
        return value

    assert inspect.iscoroutinefunction(load)
    assert asyncio.run(load(7)) == 7
    assert seen == [["load_0"], ["load_0"]]
    step = ["push load_0", "pop load_0"]
    assert cuda.log == ["start", *step, *step, "stop"]


def test_interleaved_coroutines_do_not_take_each_others_ranges(cuda: Recorder) -> None:
    @nvtxit()
    async def task(name: str) -> list[list[str]]:
        seen = []
        for _ in range(3):
            seen.append(list(cuda.open_ranges))
            await asyncio.sleep(0)
        return seen

    async def both() -> list[list[list[str]]]:
        return await asyncio.gather(task("a"), task("b"))

    assert asyncio.run(both()) == [[["task_0"]] * 3, [["task_1"]] * 3]
    assert cuda.log.count("start") == cuda.log.count("stop") == 1


def test_cancelled_coroutine_cleans_up_and_closes_the_capture(cuda: Recorder) -> None:
    cleaned: list[list[str]] = []

    @nvtxit()
    async def forever() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(list(cuda.open_ranges))

    async def cancel() -> None:
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert cleaned == [["forever_0"]]
    assert cuda.log[-1] == "stop"


@pytest.mark.parametrize("available", [True, False])
def test_generator_behaves_as_if_undecorated(cuda: Recorder, available: bool) -> None:
    cuda.available = available

    def talk(start: int) -> Iterator[Any]:
        received = []
        value = start
        while True:
            try:
                received.append((yield value))
            except KeyError as error:
                received.append(str(error))
            except GeneratorExit:
                received.append("closed")
                return received
            if len(received) == 4:
                return received
            value += 1

    def converse(generator: Any) -> list[Any]:
        answers = [next(generator), generator.send("a"), generator.throw(KeyError("b"))]
        answers.append(next(generator))
        with pytest.raises(StopIteration) as end:
            generator.send("c")
        return [*answers, end.value.value]

    decorated = nvtxit()(talk)
    assert inspect.isgeneratorfunction(decorated)
    assert converse(decorated(5)) == converse(talk(5)) == [5, 6, 7, 8, ["a", "'b'", None, "c"]]
    generator = decorated(0)
    next(generator)
    generator.close()
    step = ["push talk_{0}", "pop talk_{0}"]
    expected = ["start", *step * 5, "stop"], ["start", *step * 2, "stop"]
    log = [line.format(i) for i, lines in enumerate(expected) for line in lines]
    assert cuda.log == (log if available else [])


def test_generator_has_its_range_closed_while_it_waits(cuda: Recorder) -> None:
    @nvtxit()
    def batches(n: int) -> Iterator[list[str]]:
        for _ in range(n):
            yield list(cuda.open_ranges)

    @nvtxit()
    def step(open_in_loader: list[str]) -> None:
        assert open_in_loader == ["batches_0"]
        assert cuda.open_ranges == ["step_0"] or cuda.open_ranges == ["step_1"]

    for batch in batches(2):
        step(batch)
    assert (cuda.log.count("start"), cuda.log.count("stop")) == (1, 1)


def test_abandoned_generator_ends_the_capture(cuda: Recorder) -> None:
    generator = nvtxit("g")(lambda: (yield 1))()
    assert next(generator) == 1
    assert cuda.captures == 1
    del generator
    assert cuda.log == ["start", "push g_0", "pop g_0", "push g_0", "pop g_0", "stop"]


def test_context_manager_of_a_decorated_generator(cuda: Recorder) -> None:
    @contextmanager
    @nvtxit()
    def resource() -> Iterator[str]:
        try:
            yield "open"
        except ValueError:
            cuda.log.append(f"handled in {cuda.open_ranges}")

    with resource() as state:
        assert state == "open"
        raise ValueError
    assert "handled in ['resource_0']" in cuda.log


@pytest.mark.parametrize("available", [True, False])
def test_asynchronous_generator_behaves_as_if_undecorated(cuda: Recorder, available: bool) -> None:
    cuda.available = available
    cleaned: list[list[str]] = []

    async def talk(start: int) -> Any:
        try:
            for i in range(start, start + 3):
                await asyncio.sleep(0)
                try:
                    got = yield i, list(cuda.open_ranges)
                    cleaned.append(got)
                except KeyError:
                    yield "caught", list(cuda.open_ranges)
        finally:
            await asyncio.sleep(0)
            cleaned.append(list(cuda.open_ranges))

    decorated = nvtxit()(talk)
    assert inspect.isasyncgenfunction(decorated)

    async def converse() -> list[Any]:
        values = [value async for value in decorated(0)]
        generator = decorated(5)
        values += [await generator.__anext__(), await generator.asend("sent")]
        values.append(await generator.athrow(KeyError()))
        await generator.aclose()
        async with aclosing(decorated(7)) as generator:
            async for value in generator:
                values.append(value)
                break
        return values

    values = asyncio.run(converse())
    assert [value for value, _ in values] == [0, 1, 2, 5, 6, "caught", 7]
    calls = [0, 0, 0, 1, 1, 1, 2] if available else []
    assert [ranges for _, ranges in values] == ([[f"talk_{i}"] for i in calls] or [[]] * 7)
    finals = [["talk_0"], ["talk_1"], ["talk_2"]] if available else [[]] * 3
    assert cleaned == [None, None, None, finals[0], "sent", finals[1], finals[2]]
    assert cuda.log.count("start") == cuda.log.count("stop") == (3 if available else 0)


def test_warm_up_coroutines_are_counted_but_not_recorded(cuda: Recorder) -> None:
    @nvtxit(n_warmups=1, n_iters=1)
    async def load() -> str:
        return "loaded"

    async def thrice() -> list[str]:
        return [await load() for _ in range(3)]

    assert asyncio.run(thrice()) == ["loaded"] * 3
    assert cuda.log == ["start", "push load_1", "pop load_1", "stop"]


def test_kind_of_callable_objects_and_partials_is_kept(cuda: Recorder) -> None:
    class Loader:
        async def __call__(self, value: int) -> list[str]:
            return list(cuda.open_ranges) * value

    decorated = nvtxit()(functools.partial(Loader(), 2))
    assert inspect.iscoroutinefunction(decorated)
    assert asyncio.run(decorated()) == ["Loader_0", "Loader_0"]


# -- torch.compile ---------------------------------------------------------------------------------


WHOLE_GRAPH = """
import subprocess
import sys, torch
from gnnprof import nvtxit

if sys.argv[1] == "True":
    torch.cuda.is_available = lambda: True
    # torch.compile keeps the device's random state as soon as there seems to be a device.
    torch.cuda.get_rng_state = lambda: None
    torch.cuda.set_rng_state = lambda state: None
    torch.cuda.nvtx.range_push = lambda name: 1 / 0

@nvtxit()
def double(x):
    return 2 * x

@torch.compile(backend="eager", fullgraph=True)
def function(x):
    return double(x) + 1

assert torch.equal(function(torch.ones(3)), torch.full((3,), 3.0))
"""


@pytest.mark.parametrize("available", [True, False])
def test_compiled_graph_stays_whole(available: bool) -> None:
    # In a process of its own: what Dynamo takes for a function of torch, such as a fake of
    # `is_available`, depends on what the process compiled before.
    command = [sys.executable, "-c", WHOLE_GRAPH, str(available)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_warmups": -1}, ValueError, r"nvtxit\(n_warmups=-1\): n_warmups must be 0 or more"),
        ({"n_iters": -2}, ValueError, r"nvtxit\(n_iters=-2\): n_iters must be 0 or more"),
        ({"n_warmups": 1.5}, TypeError, r"nvtxit\(n_warmups=1.5\): .* must be an integer"),
        ({"n_warmups": None}, TypeError, r"nvtxit\(n_warmups=None\): .* must be an integer"),
        ({"n_iters": "3"}, TypeError, r"nvtxit\(n_iters='3'\): .* must be an integer"),
        ({"name": 3}, TypeError, r"nvtxit\(name=3\): name must be a string or None"),
        ({"name": print}, TypeError, r"write @nvtxit\(\) with parentheses"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        nvtxit(**arguments)


def test_what_cannot_be_called_cannot_be_decorated() -> None:
    with pytest.raises(TypeError, match="3 is a int; decorate the function"):
        nvtxit()(3)


@pytest.mark.cuda
def test_on_a_device() -> None:
    x = torch.ones(4, device="cuda")
    function = nvtxit()(lambda: x.sum().item())
    assert [function(), function()] == [4.0, 4.0]
