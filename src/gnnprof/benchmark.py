"""Times functions side by side: forward, and backward from whatever they return."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import os
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gnnprof import _device
from gnnprof._isolation import (
    grads_set_aside,
    leaves_held_by,
    random_like,
    random_state_kept,
    require_grad,
)
from gnnprof._records import BenchmarkResult, Timing
from gnnprof._tensors import iter_tensors

__all__ = ["BenchmarkResult", "Timing", "benchmark", "get_func_name", "require_grad"]

Arguments: TypeAlias = "tuple[Any, ...] | list[Any] | Callable[[], tuple[Any, ...]]"

_LONGEST_ERROR = 60  # characters of an error in the table


def benchmark(
    funcs: Sequence[Callable[..., Any]],
    args: Arguments,
    num_steps: int,
    func_names: Iterable[object] | None = None,
    num_warmups: int = 10,
    backward: bool = False,
    per_step: bool = False,
    progress_bar: bool = False,
) -> tuple[BenchmarkResult, ...]:
    """Time functions one after another, print a table and return what was measured.

    The forward time of a step is the call of the function. The backward time is one
    `torch.autograd.backward` from every tensor in the function's output that requires grad,
    however deep it lies, with gradients drawn beforehand. The accelerator is synchronised before
    each reading of the clock. Making the arguments and the gradients, and freeing the outputs,
    is in neither time.

    Every function starts from the same random state. That state and every `.grad` are
    afterwards as they were before; a backward pass never adds to the gradients of an earlier one.

    A function that raises gets a row with its error, and the others still run.

    Args:
        funcs: The functions.
        args: A tuple of arguments for all functions; or a callable that makes the tuple before
            each step; or a list with one such tuple or callable for each function. Floating
            tensors among them, at any depth, reach the function detached, and under `backward`
            requiring grad.
        num_steps: Measured steps of each function.
        func_names: Names for the table, taken as text; by default from `get_func_name`, made
            distinct.
        num_warmups: Steps before those, not measured. They take in compilation and first-use
            costs.
        backward: Time the backward pass as well.
        per_step: Print the mean of a step instead of the total of all steps.
        progress_bar: Show on stderr how many functions are done.

    Returns:
        One record for each function, in order, with the seconds of every step.

    Raises:
        ValueError: If `num_steps` or `num_warmups` is no positive integer, or if `args` or
            `func_names` has another length than `funcs`.
        TypeError: If one of `funcs` cannot be called, or is a coroutine or generator function,
            whose call would not run its body; or if `args` is of another kind.
        Exception: The error of the first function if every function failed, after the table was
            printed. Errors of some of the functions are a `RuntimeWarning`.

    Example:
        >>> x = torch.randn(1000, 16)
        >>> results = benchmark([torch.relu, torch.sigmoid], (x,), num_steps=50)  # doctest: +SKIP
        +---------+-----------+
        | Name    | Forward   |
        |---------+-----------|
        | relu    | 0.0002s   |
        | sigmoid | 0.0009s   |
        +---------+-----------+
        >>> results[0].forward.median, results[0].forward.interval  # doctest: +SKIP
        (4.1e-06, (4.0e-06, 4.2e-06))
    """
    steps = _Steps(
        _positive("num_steps", num_steps), _positive("num_warmups", num_warmups), backward
    )
    candidates = _candidates(funcs, args, func_names)
    results: list[BenchmarkResult] = []
    errors: list[Exception | None] = []
    try:
        for candidate in _with_progress(candidates, progress_bar):
            _free_frames(errors)
            result, error = _measure(candidate, steps)
            results.append(result)
            errors.append(error)
    finally:  # an interrupt, too, leaves the table of what was measured
        if results or not candidates:
            print(_table(results, backward, per_step))
    _report(candidates, errors)
    return tuple(results)


def get_func_name(func: Callable[..., Any]) -> str:
    """Name a function for a table.

    Args:
        func: Any callable.

    Returns:
        The name of a function, method or class; the class name of a module or another callable
        object. Compiled ones are named after what was compiled, as in `GCN (compiled)`, partials
        after their function and arguments, as in `scatter(reduce='mean')`.
    """
    if isinstance(func, functools.partial):
        bound = [_argument_text(value) for value in func.args]
        bound += [f"{key}={_argument_text(value)}" for key, value in func.keywords.items()]
        return f"{get_func_name(func.func)}({', '.join(bound)})"
    if isinstance(func, torch.jit.ScriptModule):
        return f"{func.original_name} (scripted)"
    compiled = _compiled_callable(func)
    if compiled is not None:
        return f"{get_func_name(compiled)} (compiled)"
    name = getattr(func, "__name__", None)
    name = name if isinstance(name, str) else type(func).__name__
    in_place = isinstance(func, torch.nn.Module) and func._compiled_call_impl is not None
    return f"{name} (compiled)" if in_place else name


# -- what to run -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Steps:
    measured: int
    warmups: int
    backward: bool


@dataclasses.dataclass(frozen=True)
class _Candidate:
    name: str
    func: Callable[..., Any]
    args: Arguments

    def arguments(self) -> Sequence[Any]:
        """Make the arguments of one step."""
        made = self.args() if callable(self.args) else self.args
        if not isinstance(made, (tuple, list)):
            raise TypeError(
                f"the callable in 'args' returned a {type(made).__name__}; "
                "let it return a tuple of arguments"
            )
        return made


def _candidates(
    funcs: Iterable[Callable[..., Any]], args: Arguments, func_names: Iterable[object] | None
) -> list[_Candidate]:
    """Pair functions with names and arguments, and refuse what cannot be measured."""
    if not isinstance(funcs, Iterable):
        raise TypeError(
            f"'funcs' must be a list of functions (got {type(funcs).__name__}); "
            "put a single function in a list"
        )
    funcs = list(funcs)
    for func in funcs:
        _refuse_unmeasurable(func)
    if func_names is None:
        names = _distinct_names(funcs)
    elif isinstance(func_names, str) or not isinstance(func_names, Iterable):
        raise TypeError(f"func_names={func_names!r}; give a list of names, one for each function")
    else:
        names = [str(name) for name in func_names]
    if len(funcs) != len(names):
        raise ValueError(
            f"Length of 'funcs' (got {len(funcs)}) and 'func_names' (got {len(names)}) must be "
            "equal"
        )
    every_args = _arguments_per_function(args, len(funcs))
    return [_Candidate(*parts) for parts in zip(names, funcs, every_args, strict=True)]


def _arguments_per_function(args: Arguments, count: int) -> list[Arguments]:
    every_args = args if isinstance(args, list) else [args] * count
    if len(every_args) != count:
        raise ValueError(
            f"Length of 'funcs' (got {count}) and of the list 'args' (got {len(every_args)}) must "
            "be equal; for the same arguments everywhere pass a tuple"
        )
    for entry in every_args:
        if not isinstance(entry, (tuple, list)) and not callable(entry):
            raise TypeError(
                f"'args' must be a tuple of arguments, a callable that makes one, or a list of "
                f"these (got {type(entry).__name__}); a single argument x goes in as (x,)"
            )
    return every_args


def _refuse_unmeasurable(func: Callable[..., Any]) -> None:
    if not callable(func):
        raise TypeError(f"'funcs' must hold functions (got {type(func).__name__})")
    bodies = (func, type(func).__call__, getattr(func, "forward", None))
    if any(
        inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body) for body in bodies
    ):
        raise TypeError(
            f"'funcs' holds the coroutine function {get_func_name(func)!r}, whose call does not "
            "run its body; pass a function that runs it, such as lambda *args: "
            "asyncio.run(func(*args))"
        )
    if any(inspect.isgeneratorfunction(body) for body in bodies):
        raise TypeError(
            f"'funcs' holds the generator function {get_func_name(func)!r}, whose call does not "
            "run its body; pass a function that exhausts it, such as lambda *args: "
            "list(func(*args))"
        )


def _positive(argument: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number <= 0 or isinstance(value, bool):
        raise ValueError(f"'{argument}' must be a positive integer (got {value!r})")
    return number


def _with_progress(candidates: list[_Candidate], progress_bar: bool) -> Iterable[_Candidate]:
    if not progress_bar:
        return candidates
    from tqdm import tqdm

    shown: Iterable[_Candidate] = tqdm(candidates, desc="benchmark", unit="function")
    return shown


# -- names -----------------------------------------------------------------------------------------


def _compiled_callable(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return what `torch.compile` made `func` from, None for anything else."""
    inner: Callable[..., Any] | None
    if isinstance(func, torch.nn.Module):
        inner = func._modules.get("_orig_mod")
    else:
        # Looked up in the instance: a mock would make up the attribute.
        attributes = getattr(func, "__dict__", {})
        inner = attributes.get("_torchdynamo_orig_callable")
        if attributes.get("_torchdynamo_disable"):  # torch.compiler.disable leaves it as well
            return None
    return inner


def _argument_text(value: Any) -> str:
    if value is None or isinstance(value, (str, bool, int, float, complex)):
        return repr(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return get_func_name(value)
    return type(value).__name__


def _distinct_names(funcs: Sequence[Callable[..., Any]]) -> list[str]:
    """Name functions; say more, and at last a number, where several have the same name."""
    names = [get_func_name(func) for func in funcs]
    shared = Counter(names)
    names = [
        _longer_name(func, name) if shared[name] > 1 else name
        for func, name in zip(funcs, names, strict=True)
    ]
    shared = Counter(names)
    seen: Counter[str] = Counter()
    for position, name in enumerate(names):
        if shared[name] > 1:
            seen[name] += 1
            names[position] = f"{name} #{seen[name]}"
    return names


def _longer_name(func: Callable[..., Any], name: str) -> str:
    owner = getattr(func, "__self__", None)
    if isinstance(func, types.MethodType):
        return f"{owner.__name__ if isinstance(owner, type) else type(owner).__name__}.{name}"
    if isinstance(func, types.FunctionType) and name == "<lambda>":
        code = func.__code__
        return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    return name


# -- measuring -------------------------------------------------------------------------------------


def _measure(candidate: _Candidate, steps: _Steps) -> tuple[BenchmarkResult, Exception | None]:
    laps: list[tuple[float, float]] = []
    error: Exception | None = None
    with random_state_kept():
        try:
            leaves = leaves_held_by(candidate.func) if steps.backward else None
            for step in range(steps.warmups + steps.measured):
                lap = _time_step(candidate, leaves)
                if step >= steps.warmups:
                    laps.append(lap)
        except Exception as raised:  # noqa: BLE001  # whatever the user's function raises is its row
            error = raised
    result = BenchmarkResult(
        name=candidate.name,
        forward=Timing(tuple(forward for forward, _ in laps)) if laps else None,
        backward=Timing(tuple(back for _, back in laps)) if laps and steps.backward else None,
        error=None if error is None else _error_text(error),
    )
    return result, error


def _time_step(candidate: _Candidate, leaves: Sequence[Tensor] | None) -> tuple[float, float]:
    """Time one step.

    Args:
        candidate: What to call.
        leaves: Known tensors whose `.grad` a backward pass may change; None for no such pass.

    Returns:
        Seconds of the forward and of the backward pass (0 if there is none).
    """
    arguments = require_grad(candidate.arguments(), leaves is not None)
    _device.synchronize()
    start = _device.clock()
    output = candidate.func(*arguments)
    _device.synchronize()
    forward = _device.clock() - start
    _refuse_unrun(output)
    return forward, 0.0 if leaves is None else _time_backward(output, leaves)


def _refuse_unrun(output: object) -> None:
    """Refuse an output that is still to be run; a wrapper can hide that from the door."""
    if isinstance(output, (types.CoroutineType, types.GeneratorType)):
        output.close()
        raise TypeError(f"the function returned a {type(output).__name__}, which has not run yet")


def _time_backward(output: object, leaves: Sequence[Tensor]) -> float:
    tensors = [tensor for tensor in iter_tensors(output) if tensor.requires_grad]
    if not tensors:
        raise RuntimeError(
            f"the output ({type(output).__name__}) holds no tensor that requires grad; "
            "benchmark it with backward=False"
        )
    gradients = [random_like(tensor) for tensor in tensors]
    with grads_set_aside(tensors, leaves):
        _device.synchronize()
        start = _device.clock()
        torch.autograd.backward(tensors, gradients)
        _device.synchronize()
        return _device.clock() - start


# -- reporting -------------------------------------------------------------------------------------


def _table(results: Sequence[BenchmarkResult], backward: bool, per_step: bool) -> str:
    """Lay the results out as the reference does, with a column for errors if there are any."""
    from tabulate import tabulate

    headings = ["Name", "Forward"] + (["Backward", "Total"] if backward else [])
    rows = [[result.name, *_seconds(result, backward, per_step)] for result in results]
    if any(result.error for result in results):
        headings.append("Error")
        rows = [row + [_one_line(result.error)] for row, result in zip(rows, results, strict=True)]
    table: str = tabulate(rows, headers=headings, tablefmt="psql", disable_numparse=True)
    return table


def _seconds(result: BenchmarkResult, backward: bool, per_step: bool) -> list[str]:
    if result.error is not None or result.forward is None:  # a partial total would compare wrongly
        return ["n/a"] * (3 if backward else 1)
    timings = [result.forward, result.backward] if backward else [result.forward]
    if per_step:
        seconds = [timing.mean for timing in timings if timing is not None]
        style = "{:.6f}s"
    else:
        seconds = [timing.total for timing in timings if timing is not None]
        style = "{:.4f}s"
    if backward:
        seconds.append(sum(seconds))
    return [style.format(value) for value in seconds]


def _one_line(error: str | None) -> str:
    line = (error or "").split("\n", 1)[0]
    return line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR - 3]}..."


def _free_frames(errors: Sequence[Exception | None]) -> None:
    """Let go of the tensors that the last error's frames hold, before the next function runs."""
    if errors and errors[-1] is not None:
        traceback.clear_frames(errors[-1].__traceback__)


def _report(candidates: Sequence[_Candidate], errors: Sequence[Exception | None]) -> None:
    """Warn of the functions that failed; raise if that leaves no result at all."""
    failed = [(c.name, e) for c, e in zip(candidates, errors, strict=True) if e is not None]
    if failed and len(failed) == len(candidates):
        raise failed[0][1]
    if failed:
        reasons = "; ".join(f"{name}: {_error_text(error)}" for name, error in failed)
        warnings.warn(
            f"{len(failed)} of {len(candidates)} functions failed: {reasons}",
            RuntimeWarning,
            stacklevel=3,
        )


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
