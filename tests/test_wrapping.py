"""Any kind of callable can be decorated; `timeit` shows when each run began and ended."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest
import torch

from gnnprof.profile import timeit


def test_coroutine_functions_side_by_side(fake_clock: Any) -> None:
    timer = timeit(log=False)

    @timer
    async def fetch(turns: int) -> int:
        for _ in range(turns):
            fake_clock.advance(1.0)
            await asyncio.sleep(0)
        return turns

    async def both() -> list[int]:
        return await asyncio.gather(fetch(3), fetch(1))

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(both()) == [3, 1]
    # Turns: A B A A. The second began after one second and ended after the first's second turn.
    assert timer.laps == (2.0, 4.0)


def test_generator_function(fake_clock: Any) -> None:
    timer = timeit(log=False)

    @timer
    def batches() -> Any:
        fake_clock.advance(1.0)
        got = yield "a"
        fake_clock.advance(2.0)
        yield got
        return "end"

    assert inspect.isgeneratorfunction(batches)
    iterator = batches()
    assert timer.laps == ()
    assert next(iterator) == "a"
    assert iterator.send("b") == "b"
    with pytest.raises(StopIteration, match="end"):
        next(iterator)
    assert timer.laps == (3.0,)


def test_generators_that_interleave(fake_clock: Any) -> None:
    timer = timeit(log=False)

    @timer
    def steps(n: int) -> Any:
        for i in range(n):
            fake_clock.advance(1.0)
            yield i

    first, second = steps(1), steps(2)
    next(first), next(second)
    assert list(first) == []
    assert list(second) == [1]
    assert timer.laps == (2.0, 2.0)


def test_a_closed_generator_is_finished(fake_clock: Any) -> None:
    timer = timeit(log=False)

    @timer
    def batches() -> Any:
        yield 1

    iterator = batches()
    next(iterator)
    fake_clock.advance(1.0)
    iterator.close()
    assert timer.laps == (1.0,)


def test_async_generator_function(fake_clock: Any) -> None:
    timer = timeit(log=False)
    events: list[Any] = []

    @timer
    async def batches() -> Any:
        try:
            fake_clock.advance(1.0)
            events.append((yield "a"))
            try:
                yield "b"
            except KeyError as error:
                events.append(type(error))
                yield "c"
            yield "d"
        finally:
            events.append("closed")

    async def consume() -> list[Any]:
        iterator = batches()
        items = [await iterator.asend(None), await iterator.asend("sent")]
        items.append(await iterator.athrow(KeyError("thrown")))
        await iterator.aclose()
        return items

    async def everything() -> list[Any]:
        return [item async for item in batches()]

    assert asyncio.run(consume()) == ["a", "b", "c"]
    assert events == ["sent", KeyError, "closed"]
    assert timer.laps == (1.0,)
    assert asyncio.run(everything()) == ["a", "b", "d"]
    assert timer.laps == (1.0, 1.0)


class Callee:
    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def __call__(self, seconds: float) -> str:
        self.clock.advance(seconds)
        return "called"

    async def wait(self, seconds: float) -> str:
        self.clock.advance(seconds)
        await asyncio.sleep(0)
        return "awaited"


def test_any_callable(fake_clock: Any) -> None:
    timer = timeit(log=False)
    callee = Callee(fake_clock)
    assert timer(callee)(1.0) == "called"
    assert timer(functools.partial(callee, 2.0))() == "called"
    assert timer(lambda: callee(3.0))() == "called"
    assert asyncio.run(timer(callee.wait)(4.0)) == "awaited"
    assert asyncio.run(timer(functools.partial(callee.wait, 5.0))()) == "awaited"
    assert timer(torch.nn.Identity())(1) == 1
    assert timer.laps == (1.0, 2.0, 3.0, 4.0, 5.0, 0.0)


def test_an_object_with_a_coroutine_call(fake_clock: Any) -> None:
    class Service:
        async def __call__(self) -> None:
            await asyncio.sleep(0)
            fake_clock.advance(1.0)

    timer = timeit(log=False)
    asyncio.run(timer(Service())())
    assert timer.laps == (1.0,)


def test_methods_of_any_kind(fake_clock: Any) -> None:
    timer = timeit(log=False)

    class Trainer:
        @timer
        def step(self) -> str:
            return type(self).__name__

        @timer
        @classmethod
        def made(cls) -> str:
            return cls.__name__

        @timer
        @staticmethod
        def lone(x: int) -> int:
            return x

    assert (Trainer().step(), Trainer.made(), Trainer.lone(3)) == ("Trainer", "Trainer", 3)
    assert len(timer.laps) == 3


def test_what_cannot_be_decorated() -> None:
    with pytest.raises(TypeError, match=r"only a callable can be decorated \(got 3, a int\)"):
        timeit()(3)
