"""Let every run of a callable happen within a context of its own, whatever kind it is.

A run of a coroutine function lasts until its coroutine has returned, one of a generator function
until its generator is exhausted or closed; the wrapper is a function of the same kind.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, aclosing
from typing import Any, TypeAlias

#: Makes the context of one run from the arguments of the call.
Begin: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]]
#: Makes the result of one run from what the callable returned and what the context yielded.
Finish: TypeAlias = Callable[[Any, Any], Any]


def wrap(func: Any, begin: Begin, finish: Finish) -> Any:
    """Wrap a callable so that each of its runs lies within the context that `begin` makes.

    Args:
        func: A function, method, classmethod, staticmethod, partial or callable object; plain,
            generator, coroutine or asynchronous generator function.
        begin: Called when a run starts, which is at the first step of a generator.
        finish: Called after the context has been left, unless the run raised. An asynchronous
            generator has no result and so no use for it.

    Raises:
        TypeError: If `func` cannot be called.
    """
    if isinstance(func, (classmethod, staticmethod)):
        return type(func)(wrap(func.__func__, begin, finish))
    if not callable(func):
        raise TypeError(f"only a callable can be decorated (got {func!r}, {_kind_name(func)})")
    code = code_of(func)
    if inspect.iscoroutinefunction(code):
        wrapper: Any = _wrap_coroutine(func, begin, finish)
    elif inspect.isgeneratorfunction(code):
        wrapper = _wrap_generator(func, begin, finish)
    elif inspect.isasyncgenfunction(code):
        wrapper = _wrap_async_generator(func, begin)
    else:
        wrapper = _wrap_function(func, begin, finish)
    # The attributes of a callable object are its state, not to be copied.
    updated = functools.WRAPPER_UPDATES if inspect.isroutine(func) else ()
    return functools.update_wrapper(wrapper, func, updated=updated)


def code_of(func: Any) -> Any:
    """Give the function whose code runs when `func` is called."""
    while isinstance(func, functools.partial):
        func = func.func
    return func if inspect.isroutine(func) else type(func).__call__


def _kind_name(value: object) -> str:
    return f"a {type(value).__name__}"


def _wrap_function(func: Any, begin: Begin, finish: Finish) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with begin(args, kwargs) as state:
            out = func(*args, **kwargs)
        return finish(out, state)

    return wrapper


def _wrap_coroutine(func: Any, begin: Begin, finish: Finish) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with begin(args, kwargs) as state:
            out = await func(*args, **kwargs)
        return finish(out, state)

    return wrapper


def _wrap_generator(func: Any, begin: Begin, finish: Finish) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with begin(args, kwargs) as state:
            out = yield from func(*args, **kwargs)
        return finish(out, state)

    return wrapper


def _wrap_async_generator(func: Any, begin: Begin) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with begin(args, kwargs):
            async with aclosing(func(*args, **kwargs)) as items:
                step = items.asend(None)
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    try:
                        step = items.asend((yield item))
                    except GeneratorExit:
                        raise
                    except BaseException as thrown:  # noqa: BLE001  # it is for `func` to handle
                        step = items.athrow(thrown)

    return wrapper
