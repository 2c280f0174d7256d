"""The one module that changes the state of torch's compiler: resets, caches, settings, versions.

`_dynamo_records` reads what a compilation did; nobody else in the package imports Dynamo.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import callback, utils
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.exc import TorchDynamoException

from gnnprof._dynamo_records import INDUCTOR, generated_modules, kernels_in, shortened

_CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

_MANY = 1 << 20  # records of compilations; torch keeps 64 by itself


# -- the state of the compiler ---------------------------------------------------------------------


@contextmanager
def compiler_state_kept() -> Iterator[None]:
    """Put back what measuring changes in torch's compiler, and forget what was compiled inside.

    Compiled code of the user cannot be kept: `torch._dynamo.reset` is the only way to a cold start,
    and it drops the compiled code of every function. They compile again when called next.
    """
    counters = {name: Counter(values) for name, values in utils.counters.items()}
    metrics = utils.get_compilation_metrics()
    handler = callback.callback_handler
    callbacks = list(handler.start_callbacks), list(handler.end_callbacks)
    limit = utils._compilation_metrics.maxlen or len(metrics)
    environment = {name: os.environ.get(name) for name in _CACHE_VARIABLES}
    utils.set_compilation_metrics_limit(_MANY)
    try:
        yield
    finally:
        start_afresh()
        utils.counters.clear()
        utils.counters.update(counters)
        utils.set_compilation_metrics_limit(limit)
        utils._compilation_metrics.extend(metrics)
        handler.start_callbacks[:], handler.end_callbacks[:] = callbacks
        _set_environment(environment)


def start_afresh() -> None:
    """Forget all compiled code, counters and records in memory; files on disk stay."""
    torch._dynamo.reset()
    utils.counters.clear()
    utils.clear_compilation_metrics()


@contextmanager
def private_cache(folder: Path | None = None) -> Iterator[Path]:
    """Let Inductor and Triton keep their files in one folder, and forget those in memory.

    Inductor looks the folder up in the environment each time, but remembers what it has loaded.

    Args:
        folder: The folder to use and to keep; None for an empty one that is removed at the end.
    """
    before = {name: os.environ.get(name) for name in _CACHE_VARIABLES}
    used = Path(tempfile.mkdtemp(prefix="gnnprof-compile-")) if folder is None else folder
    _forget_loaded_files()
    _set_environment({_CACHE_VARIABLES[0]: str(used), _CACHE_VARIABLES[1]: str(used / "triton")})
    try:
        yield used
    finally:
        _set_environment(before)
        _forget_loaded_files()
        if folder is None:
            shutil.rmtree(used, ignore_errors=True)  # a library in use cannot go on some systems


def _forget_loaded_files() -> None:
    inductor = sys.modules.get("torch._inductor.utils")
    if inductor is not None:  # otherwise there is nothing to forget
        name = "clear_caches" if hasattr(inductor, "clear_caches") else "clear_inductor_caches"
        getattr(inductor, name)()  # the second is torch 2.6


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def compilers_warnings_ignored() -> Iterator[None]:
    """Keep what the compiler warns itself of from ending a compilation.

    Dynamo looks at the `.grad` of every input, for one, which warns where that is no leaf, and a
    caller may have made warnings errors. What a model warns of is shown when it runs eagerly.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", module=r"torch\.(_dynamo|_inductor|_functorch|_subclasses|_guards|fx|utils)"
        )
        yield


def start_compiler(device: torch.device, with_backward: bool) -> bool:
    """Compile something tiny, so that what the process pays once is not charged to the first mode.

    That is importing Inductor, asking the C++ compiler what it can do, starting worker processes.

    Returns:
        Whether that was possible; if not, whoever compiles next is told why.
    """
    layer = torch.nn.Linear(4, 4).to(device)
    try:
        with (
            compilers_warnings_ignored(),
            private_cache(),
            torch.set_grad_enabled(with_backward),
        ):
            start_afresh()
            output = torch.compile(layer)(torch.ones(2, 4, device=device))
            if with_backward:
                output.sum().backward()
    except Exception:  # noqa: BLE001  # no compiler, no Triton: each mode fails with that reason
        return False
    finally:
        start_afresh()
    return True


# -- compiling -------------------------------------------------------------------------------------


def compiled(
    model: torch.nn.Module,
    mode: str,
    *,
    dynamic: bool | None,
    fullgraph: bool,
    backend: str | Callable[..., Any],
) -> torch.nn.Module:
    """Wrap a model by torch.compile; only Inductor is told the mode, others have none."""
    own_mode = mode if backend == INDUCTOR else None
    wrapped: Any = torch.compile(
        model, dynamic=dynamic, fullgraph=fullgraph, backend=backend, mode=own_mode
    )
    assert isinstance(wrapped, torch.nn.Module)
    return wrapped


def is_compiled(model: torch.nn.Module) -> bool:
    """Tell whether a model, or a part of it, is compiled already."""
    return any(
        isinstance(module, OptimizedModule)
        or module._compiled_call_impl is not None
        or _is_compiled_function(_forward_of(module))
        for module in model.modules()
    )


def _forward_of(module: torch.nn.Module) -> Any:
    """The forward of a module; None for a scripted one, which makes it when it is asked for it."""
    if isinstance(module, torch.jit.ScriptModule):
        return None
    return getattr(module, "forward", None)


def _is_compiled_function(function: Any) -> bool:
    """Tell a function that torch.compile made; torch.compiler.disable leaves the same mark."""
    is_wrapped = hasattr(function, "_torchdynamo_orig_callable")
    return is_wrapped and not getattr(function, "_torchdynamo_disable", False)


def known_backends() -> list[str]:
    """Names that torch.compile takes as `backend`."""
    return list(torch._dynamo.list_backends(exclude_tags=()))


def begin_step() -> None:
    """Tell CUDA graphs that the outputs of the step before may be overwritten."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


@contextmanager
def dynamic_output_shapes() -> Iterator[None]:
    """Let Dynamo capture operators whose output shape depends on data, such as nonzero."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


DYNAMIC_OUTPUT_SHAPES = "torch._dynamo.config.capture_dynamic_output_shape_ops=True"
"""The setting that `dynamic_output_shapes` makes."""


def wants_dynamic_output_shapes(error: BaseException) -> bool:
    """Tell whether compiling failed for want of `dynamic_output_shapes`."""
    if torch._dynamo.config.capture_dynamic_output_shape_ops:
        return False
    return any("capture_dynamic_output_shape_ops" in str(one) for one in _chain(error))


# -- generated code --------------------------------------------------------------------------------


@contextmanager
def launches_counted() -> Iterator[Counter[str]]:
    """Count the calls of Inductor's C++ kernels in the block, by the kernel's name.

    A generated module looks its kernels up among its global names at each call, so that counting
    ones can stand there for a while.
    """
    counts: Counter[str] = Counter()
    kept = [
        (module, name, getattr(module, name))
        for module, name in kernels_in(generated_modules())
        if callable(getattr(module, name))
    ]

    def counting(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return kernel(*args, **kwargs)

        return count

    try:
        for module, name, kernel in kept:
            setattr(module, name, counting(name, kernel))
        yield counts
    finally:
        for module, name, kernel in kept:
            setattr(module, name, kernel)


# -- what went wrong -------------------------------------------------------------------------------


def failure(error: BaseException) -> tuple[str, str]:
    """Give the status of a row for an exception, and its type with its first line."""
    chain = list(_chain(error))
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    if lines and lines[0].endswith(":"):  # "backend='x' raised:", the next line says what
        lines[0] += f" {lines[1]}" if len(lines) > 1 else ""
    reason = shortened(f"{type(error).__name__}: {lines[0] if lines else ''}".removesuffix(": "))
    if any(_is_out_of_memory(one) for one in chain):
        return "oom", reason
    return ("compile_error" if any(_is_the_compilers(one) for one in chain) else "error"), reason


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Go from an exception to those behind it: its cause, or what the compiler wrapped."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "not enough memory" in text
    )


def _is_the_compilers(error: BaseException) -> bool:
    module = type(error).__module__
    return isinstance(error, TorchDynamoException) or module.startswith(
        ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx")
    )
