"""Named NVTX ranges around functions, for Nsight Systems and other NVTX readers.

``torch.cuda`` is looked up at every call, so that a function decorated on one machine, or under a
patched ``torch.cuda``, does what the moment of the call asks for.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

import torch
from torch.cuda import is_available as _torch_is_available

__all__ = ["nvtxit"]

# A build of torch without CUDA never has it, and torch takes most of a microsecond to say so at
# every call. So its own function is not asked there; one put in its place is.
_NEVER_AVAILABLE = (
    _torch_is_available if torch.version.cuda is None and torch.version.hip is None else None
)

Decorated = TypeVar("Decorated")


def nvtxit(
    name: str | None = None, n_warmups: int = 0, n_iters: int | None = None
) -> Callable[[Decorated], Decorated]:
    """Makes a decorator that puts an NVTX range around every call of a function.

    Call number ``i`` of the function, warm-ups included, is shown as ``f"{name}_{i}"``. While at
    least one recorded call runs, in any thread, the CUDA profiler captures, so that ``nsys profile
    --capture-range=cudaProfilerApi`` records these calls and nothing else. Without CUDA the
    function is called as it is, and the call is not counted.

    Range and capture end with the call, however it ends. A coroutine, generator or asynchronous
    generator has its range open whenever its code runs and closed while it is suspended: NVTX
    keeps one stack of ranges per thread, on which whatever runs meanwhile opens its own, and the
    kernels launched in a range are then those of the function. The capture stays on from the first
    step to the last, because Nsight Systems ends its report when a capture ends.

    What ``torch.compile`` traces runs without a range, which would break the graph; decorate the
    compiled function instead to see its calls.

    Args:
        name: Label of the range; by default each function's own name.
        n_warmups: Number of first calls that are not recorded.
        n_iters: Number of calls that are recorded after the warm-ups; by default all.

    Returns:
        The decorator. It takes any callable (function, method, ``classmethod``, ``staticmethod``,
        partial, module), and each function it decorates is labelled and counted by itself.

    Raises:
        TypeError: If an argument has the wrong type, or what is decorated cannot be called.
        ValueError: If ``n_warmups`` or ``n_iters`` is negative.

    Example:
        >>> @nvtxit(n_warmups=2, n_iters=10)
        ... def train_step(batch): ...
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(
            f"nvtxit(name={name!r}): name must be a string or None; to decorate a function "
            "without arguments, write @nvtxit() with parentheses."
        )
    first = _checked_count("n_warmups", n_warmups)
    end = None if n_iters is None else first + _checked_count("n_iters", n_iters)

    def decorate(func: Any) -> Any:
        if isinstance(func, classmethod | staticmethod):
            return type(func)(decorate(func.__func__))
        if not callable(func):
            raise TypeError(
                f"nvtxit() decorates callables, and {func!r} is a {type(func).__name__}; "
                "decorate the function that does the work."
            )
        calls = _Calls(_name_of(func) if name is None else name, first, end)
        return _wrapped(func, calls)

    return cast("Callable[[Decorated], Decorated]", decorate)


def _checked_count(argument: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(
            f"nvtxit({argument}={value!r}): {argument} must be an integer, the number of calls."
        ) from None
    if count < 0:
        raise ValueError(f"nvtxit({argument}={value!r}): {argument} must be 0 or more.")
    return count


def _name_of(func: Any) -> str:
    """Returns what a user calls a function: partials and compiled modules by what they hold."""
    while isinstance(func, functools.partial):
        func = func.func
    func = getattr(func, "_orig_mod", func)  # of a module that torch.compile returned
    return str(getattr(func, "__name__", type(func).__name__))


# -- what is recorded ------------------------------------------------------------------------------


def _passes_through() -> bool:
    is_available = torch.cuda.is_available
    return is_available is _NEVER_AVAILABLE or not is_available() or torch.compiler.is_compiling()


class _Calls:
    """Numbers the calls of one function and labels those to record."""

    def __init__(self, name: str, first: int, end: int | None) -> None:
        self._name = name
        self._first = first
        self._end = end
        self._numbers = itertools.count()  # next() on it is atomic: threads get distinct numbers

    def next_label(self) -> str | None:
        """Counts one call; returns the label of its range, None if it is not recorded."""
        if _passes_through():
            return None
        number = next(self._numbers)
        if number < self._first or (self._end is not None and number >= self._end):
            return None
        return f"{self._name}_{number}"


def _cuda() -> Any:
    return torch.cuda  # as it is at this moment


class _Capture:
    """Keeps the CUDA profiler on while at least one ``with`` block is open in the process."""

    def __init__(self) -> None:
        # Re-entrant: a generator that the garbage collector closes leaves its block at any point,
        # also while this thread holds the lock.
        self._lock = threading.RLock()
        self._open_blocks = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._open_blocks == 0:
                _cuda().cudart().cudaProfilerStart()
            self._open_blocks += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._open_blocks -= 1
            if self._open_blocks == 0:
                _cuda().cudart().cudaProfilerStop()


_capture = _Capture()


@contextmanager
def _range(label: str) -> Iterator[None]:
    nvtx = _cuda().nvtx  # the range is popped where it was pushed
    nvtx.range_push(label)
    try:
        yield
    finally:
        nvtx.range_pop()


# -- one wrapper per kind of function, each of that kind itself ------------------------------------


def _wrapped(func: Any, calls: _Calls) -> Any:
    code = _code_of(func)
    if inspect.iscoroutinefunction(code):
        wrapper: Any = _wrapped_coroutine_function(func, calls)
    elif inspect.isgeneratorfunction(code):
        wrapper = _wrapped_generator_function(func, calls)
    elif inspect.isasyncgenfunction(code):
        wrapper = _wrapped_async_generator_function(func, calls)
    else:
        wrapper = _wrapped_function(func, calls)
    # The attributes of a callable object are its state, which must not be copied.
    updated = functools.WRAPPER_UPDATES if inspect.isroutine(func) else ()
    return functools.update_wrapper(wrapper, func, updated=updated)


def _code_of(func: Any) -> Any:
    """Returns the function whose code runs when ``func`` is called."""
    while isinstance(func, functools.partial):
        func = func.func
    return func if inspect.isroutine(func) else type(func).__call__


def _wrapped_function(func: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        label = calls.next_label()
        if label is None:
            return func(*args, **kwargs)
        with _capture, _range(label):
            return func(*args, **kwargs)

    return wrapper


def _wrapped_coroutine_function(func: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        label = calls.next_label()
        if label is None:
            return await func(*args, **kwargs)
        with _capture:
            return await _Awaited(func(*args, **kwargs), label)

    return wrapper


def _wrapped_generator_function(func: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        label = calls.next_label()
        if label is None:
            return (yield from func(*args, **kwargs))
        with _capture:
            return (yield from _step_by_step(func(*args, **kwargs), label))

    return wrapper


def _wrapped_async_generator_function(
    func: Callable[..., Any], calls: _Calls
) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        label = calls.next_label()
        source = func(*args, **kwargs)
        step = source.__anext__()
        with nullcontext() if label is None else _capture:
            while True:
                try:
                    item = await (step if label is None else _Awaited(step, label))
                except StopAsyncIteration:
                    return
                try:
                    step = source.asend((yield item))
                except BaseException as thrown:  # noqa: BLE001  # it is for the function to handle
                    step = source.athrow(thrown)

    return wrapper


class _Steps(Protocol):
    """What generators, coroutines and the awaitables of asynchronous generators share."""

    def send(self, value: Any, /) -> Any: ...

    def throw(self, error: BaseException, /) -> Any: ...


def _step_by_step(steps: _Steps, label: str) -> Generator[Any, Any, Any]:
    """Does what ``yield from steps`` does, with the range open only while ``steps`` runs."""
    resume: Callable[[Any], Any] = steps.send
    value: Any = None
    while True:
        with _range(label):
            try:
                item = resume(value)
            except StopIteration as end:
                return end.value
        try:
            value = yield item
            resume = steps.send
        except BaseException as thrown:  # noqa: BLE001  # it is for the function to handle
            value, resume = thrown, steps.throw


class _Awaited:
    """Awaits a coroutine step by step."""

    def __init__(self, steps: _Steps, label: str) -> None:
        self._steps = steps
        self._label = label

    def __await__(self) -> Generator[Any, Any, Any]:
        return _step_by_step(self._steps, self._label)
