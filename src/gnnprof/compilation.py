"""Compares a model run eagerly with the same model under the modes of torch.compile."""

from __future__ import annotations

import copy
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gnnprof import _device, _dynamo, _statistics
from gnnprof._compile_compare import Tolerance
from gnnprof._compile_own_model import refuse_bound_forward, refuse_own_model
from gnnprof._compile_records import (
    EAGER,
    MODES,
    CompileRow,
    GraphBreak,
    NoiseFloor,
    PhaseTiming,
    Recompile,
    SizeTiming,
)
from gnnprof._compile_report import CompileReport
from gnnprof._compile_run import measure_mode
from gnnprof._compile_study import Plan, Study
from gnnprof._compile_workload import Workload, own_inputs
from gnnprof._dynamo_records import INDUCTOR
from gnnprof._isolation import random_state_kept
from gnnprof._tensors import iter_tensors
from gnnprof._version import __version__

__all__ = [
    "MODES",
    "CompileReport",
    "CompileRow",
    "GraphBreak",
    "NoiseFloor",
    "PhaseTiming",
    "Recompile",
    "SizeTiming",
    "compile_benchmark",
]

Shape: TypeAlias = "tuple[Any, ...] | tuple[str, tuple[Any, ...]] | Tensor"


def compile_benchmark(
    model: nn.Module,
    args: tuple[Any, ...] | Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    modes: Sequence[str] | str = MODES,
    dynamic: bool | Sequence[bool | None] | None = None,
    fullgraph: bool = False,
    train_step: Callable[..., Any] | None = None,
    shapes: Sequence[Shape] | None = None,
    rounds: int = 20,
    warmup: int = 3,
    progress_bar: bool = False,
    backward: bool = True,
    backend: str | Callable[..., Any] = INDUCTOR,
    rtol: float | None = None,
    atol: float | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    warm: bool = True,
    seed: int = 0,
    prime: bool = True,
) -> CompileReport:
    """Tell whether torch.compile pays for a model: right, how much faster, from when on, and why.

    First eager is timed against itself, which shows what this machine cannot tell apart. Then, for
    each mode, a copy of the model is compiled with an empty cache, its outputs and gradients are
    compared with eager's, and compiled and eager calls are timed in turn, round by round. A speedup
    is the median over the rounds of eager / compiled with its 95 % bootstrap interval; it is called
    only if that interval lies further from 1 than eager against eager, and than 2 %.

    What is timed: with `backward`, a forward that records gradients, a backward from all outputs
    with gradients drawn beforehand, and the step, which is both; without it, the forward under
    `torch.no_grad`. With `train_step`, the step is a call of that function; forward and backward
    are then timed beside it only if `backward` is true as well. The device is synchronised before
    every reading of the clock.

    Everything runs on copies of the model: its weights, buffers, gradients and flags, the random
    state, torch's settings and the environment are as before afterwards, also after an error or
    Ctrl-C. Two things cannot be kept: code that was compiled earlier in this process is dropped
    (`torch._dynamo.reset` is the only cold start) and compiles again at its next call; and the peak
    counters of CUDA's allocator start anew.

    Args:
        model: Any module that is not compiled yet, in the training or eval mode it shall run in.
            A model that draws random numbers (dropout in training) is timed as it is and compared
            with eager in eval mode, because compiled code draws other numbers.
        args: Its positional arguments, or a single tensor. Floating tensors are detached; a
            backward gives gradients to those that require them.
        kwargs: Its keyword arguments.
        modes: Modes of torch.compile, of `MODES`; 'eager' alone measures eager against itself.
        dynamic: As torch.compile takes it; of a sequence, each with each mode.
        fullgraph: As torch.compile takes it. Where that fails only for an operator whose output
            shape depends on data, the mode is compiled with
            `torch._dynamo.config.capture_dynamic_output_shape_ops`, and the row says so.
        train_step: Called as `train_step(model, *args, **kwargs)` with copies of the model, or the
            compiled wrapper of one. An optimizer must belong to that very model: make it inside,
            once for each model, for example by a function under `functools.cache`. What it returns
            and the gradients it leaves are compared with eager's.
        shapes: Arguments of other sizes, each a tuple like `args` or `(label, args)`; every mode
            then runs each in turn. Recompilations are counted and every size is timed and compared.
        rounds: Samples of each phase; at least 6, below which there is no 95 % interval. A sample
            is the median of as many calls as take 20 ms.
        warmup: Calls before the timed ones, the first included; more follow while calls compile.
        progress_bar: Show on stderr which mode runs.
        backward: Whether gradients are recorded and the backward is timed and compared.
        backend: As torch.compile takes it; only 'inductor' has modes.
        rtol: Tolerance of the comparison relative to the largest element of the eager tensor; by
            default 1e-9, 1e-4, 5e-3 and 3e-2 for float64, float32, float16 and bfloat16 (and the
            parts of complex numbers of that precision), beyond which a float64 run of eager
            decides: ten times eager's own error is allowed.
        atol: Absolute tolerance added to it; by default a tenth of `rtol` times the largest
            element among all outputs, or all gradients.
        cache_dir: Folder for the compiler's files, which is kept (one folder below it for each row
            if there are several). If it holds files already, what is measured is a warm compile.
            By default each row has an empty folder that is removed.
        warm: Compile once more from the files of the first compile, in the same process.
        seed: Of the random state that compared calls start from, and of the bootstrap.
        prime: Compile something tiny first, so that starting the compiler (once per process) is not
            in the compile seconds of the first mode.

    Returns:
        A report with a row for eager against eager and one for each mode; a mode that fails is a
        row with its status and reason.

    Raises:
        TypeError: If `model`, `args`, `kwargs`, `shapes` or `train_step` is of another kind, or the
            model cannot be copied.
        ValueError: If a mode or backend is unknown, nothing is to be measured, the model is
            compiled already, changes its inputs or has nothing that requires grad, or `train_step`
            (or a forward put into the model as a function) uses the caller's model or an optimizer
            of it. Weights and gradients that it had changed by then are put back.
        Exception: Whatever the model raises when it runs eagerly.

    Example:
        >>> report = compile_benchmark(model, (x, edge_index), rounds=20)  # doctest: +SKIP
        >>> print(report.recommendation)  # doctest: +SKIP
        Use torch.compile(mode='default'): 1.49x [1.46, 1.51] against eager. Compiling takes 10.3 s,
        which 607 steps win back.
    """
    _check_model(model)
    modes = _checked_modes(modes)
    _check_backend(backend)
    settings = _every(dynamic)
    workload = _workload(model, args, kwargs, backward=backward, train_step=train_step)
    plan = Plan(
        fullgraph=bool(fullgraph),
        backend=backend,
        rounds=_at_least("rounds", rounds, _statistics.min_samples()),
        warmup=_at_least("warmup", warmup, 1),
        tolerance=Tolerance(_tolerance("rtol", rtol), _tolerance("atol", atol)),
        cache_dir=None if cache_dir is None else Path(cache_dir),
        warm=warm,
        seed=_at_least("seed", seed, 0),
        sizes=_checked_shapes(shapes),
    )
    rows, floor, primed = _measure(model, workload, plan, modes, settings, progress_bar, prime)
    return CompileReport(
        rows=tuple(rows),
        noise_floor=floor,
        environment=_environment(workload.device),
        settings=_settings_record(plan, workload, modes, settings, primed),
    )


# -- measuring -------------------------------------------------------------------------------------


def _measure(
    model: nn.Module,
    workload: Workload,
    plan: Plan,
    modes: Sequence[str],
    settings: Sequence[bool | None],
    progress_bar: bool,
    prime: bool,
) -> tuple[list[CompileRow], NoiseFloor, bool]:
    """Return the rows, the noise floor, and whether the compiler was started beforehand."""
    jobs = [(mode, dynamic) for mode in modes if mode != EAGER for dynamic in settings]
    with ExitStack() as stack:
        stack.enter_context(random_state_kept())
        stack.enter_context(_dynamo.compiler_state_kept())
        bar = stack.enter_context(_progress(len(jobs) + 1, progress_bar))
        bar.set_postfix_str(EAGER)
        study = Study(model, workload, plan)
        row, floor = study.eager_row()
        bar.update()
        primed = False
        if prime and jobs and plan.backend == INDUCTOR:
            bar.set_postfix_str("starting the compiler")
            primed = _dynamo.start_compiler(workload.device, workload.main_phase == "step")
        rows = [row]
        for mode, dynamic in jobs:
            bar.set_postfix_str(mode if dynamic is None else f"{mode}, dynamic={dynamic}")
            folder = _folder(plan.cache_dir, mode, dynamic, len(jobs))
            rows.append(measure_mode(study, mode, dynamic, folder))
            bar.update()
        return rows, floor, primed


def _folder(root: Path | None, mode: str, dynamic: bool | None, jobs: int) -> Path | None:
    """The folder of one row; rows that shared one would find each other's files."""
    if root is None or jobs == 1:
        return root
    return root / (mode if dynamic is None else f"{mode}-dynamic-{dynamic}")


def _progress(total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="compile_benchmark", unit="mode", disable=not shown)


# -- the door --------------------------------------------------------------------------------------


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"'model' must be a torch.nn.Module (got {type(model).__name__}); put a function into "
            "a module whose forward calls it"
        )
    if _dynamo.is_compiled(model):
        raise ValueError(
            "'model' is compiled already, in whole or in part; pass the module that torch.compile "
            "was given (compiled._orig_mod), and leave compiling to compile_benchmark"
        )
    refuse_bound_forward(model)
    if any(is_lazy(one) for one in iter_tensors(model)):
        raise ValueError(
            "'model' has lazy parameters that are not initialised, and each copy would initialise "
            "its own; run one forward pass first"
        )
    try:
        copy.deepcopy(model)
    except Exception as error:
        raise TypeError(
            f"'model' cannot be copied ({type(error).__name__}: {error}), and compile_benchmark "
            "works on copies to leave it as it is; remove from the module what copy.deepcopy "
            "refuses, such as a tensor that a graph of autograd produced, a lock or an open file"
        ) from error


def _checked_modes(modes: Sequence[str] | str) -> list[str]:
    names = [modes] if isinstance(modes, str) else list(modes)
    if not names:
        raise ValueError(f"'modes' is empty; name at least one of {', '.join((EAGER, *MODES))}")
    for name in names:
        if name not in (EAGER, *MODES):
            raise ValueError(
                f"modes={names!r} holds {name!r}; allowed are {', '.join((EAGER, *MODES))}"
            )
    return list(dict.fromkeys(names))


def _check_backend(backend: Any) -> None:
    if callable(backend) or backend == INDUCTOR:  # listing the others imports half a second
        return
    known = _dynamo.known_backends()
    if backend not in known:
        raise ValueError(
            f"backend={backend!r} is unknown; give a callable or one of {', '.join(sorted(known))}"
        )


def _every(dynamic: Any) -> list[bool | None]:
    values = list(dynamic) if isinstance(dynamic, (list, tuple)) else [dynamic]
    for value in values:
        if value is not None and not isinstance(value, bool):
            raise TypeError(
                f"dynamic={dynamic!r} holds a {type(value).__name__}; give None, True or False, or "
                "a list of these"
            )
    if not values:
        raise ValueError("'dynamic' is empty; give None, True or False, or a list of these")
    return list(dict.fromkeys(values))


def _workload(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    *,
    backward: bool,
    train_step: Callable[..., Any] | None,
) -> Workload:
    arguments = _checked_args("args", args)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(
            f"'kwargs' must be a mapping of names to values (got {type(kwargs).__name__})"
        )
    if train_step is not None:
        _check_train_step(train_step, model)
    own_args, own_kwargs = own_inputs((arguments, dict(kwargs or {})))
    workload = Workload(own_args, own_kwargs, _device_of(model, arguments), backward, train_step)
    learns = any(parameter.requires_grad for parameter in model.parameters())
    if workload.main_phase == "step" and not learns and not workload.input_leaves:
        raise ValueError(
            "neither a parameter of 'model' nor an input requires grad, so that there is no "
            "backward; measure inference with backward=False"
        )
    return workload


def _checked_args(name: str, args: Any) -> tuple[Any, ...]:
    if isinstance(args, Tensor):
        return (args,)
    if not isinstance(args, tuple):
        raise TypeError(
            f"'{name}' must be a tuple of arguments or a single tensor "
            f"(got {type(args).__name__}); put a single argument into a tuple: (data,)"
        )
    return args


def _checked_shapes(shapes: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if shapes is None:
        return ()
    if not isinstance(shapes, (list, tuple)):
        raise TypeError(
            f"'shapes' must be a list of argument tuples or of (label, arguments) "
            f"(got {type(shapes).__name__})"
        )
    sizes: list[tuple[str, tuple[Any, ...]]] = []
    for number, entry in enumerate(shapes, 1):
        if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str):
            sizes.append((entry[0], _checked_args(f"shapes[{number - 1}]", entry[1])))
        else:
            sizes.append((f"#{number}", _checked_args(f"shapes[{number - 1}]", entry)))
    labels = [label for label, _ in sizes]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"'shapes' has two entries labelled {twice!r}; give each its own label")
    return tuple(sizes)


def _check_train_step(train_step: Any, model: nn.Module) -> None:
    if not callable(train_step):
        raise TypeError(f"'train_step' must be callable (got {type(train_step).__name__})")
    refuse_own_model(train_step, model)


def _device_of(model: nn.Module, args: tuple[Any, ...]) -> torch.device:
    first = next(iter_tensors((model, args)), None)
    return torch.device("cpu") if first is None else _device.resolve_device(first.device)


def _at_least(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        why = "; fewer have no 95 % interval" if name == "rounds" else ""
        raise ValueError(f"'{name}' must be an integer of at least {least} (got {value!r}){why}")
    return number


def _tolerance(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"'{name}' must be a number (got {type(value).__name__})")
    if not 0 <= value < math.inf:
        raise ValueError(f"'{name}' must be a finite number of at least 0 (got {value!r})")
    return float(value)


# -- what the figures depend on --------------------------------------------------------------------


def _environment(device: torch.device) -> dict[str, str]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found = {
        **_device.environment(device),
        "gnnprof": __version__,
        "cpus": os.cpu_count(),
        "interop_threads": torch.get_num_interop_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "load_average": None if load is None else f"{load:.2f}",
    }
    return {key: str(value) for key, value in found.items() if value is not None}


def _settings_record(
    plan: Plan,
    workload: Workload,
    modes: Sequence[str],
    dynamic: Sequence[bool | None],
    primed: bool,
) -> dict[str, Any]:
    backend = plan.backend
    return {
        "modes": list(modes),
        "dynamic": list(dynamic),
        "fullgraph": plan.fullgraph,
        "backend": backend if isinstance(backend, str) else getattr(backend, "__name__", "given"),
        "backward": workload.backward,
        "train_step": workload.train_step is not None,
        "rounds": plan.rounds,
        "warmup": plan.warmup,
        "rtol": plan.tolerance.rtol,
        "atol": plan.tolerance.atol,
        "sizes": [label for label, _ in plan.sizes],
        "seed": plan.seed,
        "warm": plan.warm,
        "primed": primed,
    }
