"""Reads what Dynamo and Inductor did, from their own records of the very run that is asked about.

* Seconds, recompiles and skipped frames come from the compilation metrics: a record for each frame
  compiled, each backward compiled late, each autotuning or recording at run time.
* Graph breaks come from the list of break reasons, whose length is torch's `graph_break` counter.
* Graphs, skipped CUDA graphs and autotuned kernels come from the counters.
* Kernels come from the Python modules that Inductor generated and loaded.

`_dynamo` changes the state of the compiler; this module only looks at it.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from traceback import FrameSummary
from types import ModuleType
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import utils

from gnnprof._compile_records import PARTLY_EAGER, GraphBreak, Recompile

INDUCTOR = "inductor"

_TORCH = os.path.dirname(torch.__file__) + os.sep
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep

_LIMIT = re.compile(r"(recompile|cache.?size).?limit", re.IGNORECASE)
_CONTEXT = re.compile(r"Developer debug context: *(.*)")
_KERNEL = re.compile(r"(cpp|triton|cuda|cutlass|xpu)_\w+_\d+")
_LONGEST = 160  # characters of a reason


# -- what a compilation did ------------------------------------------------------------------------


@dataclass(frozen=True)
class Compilation:
    """What Dynamo did during one stretch of time.

    Attributes:
        seconds: Time that Dynamo's own timers say it took; what overlaps counts once.
        graphs: Graphs handed to the backend.
        breaks: Distinct places at which graphs were broken.
        recompiles: Reasons for compiling code objects once more.
        skipped: Frames that Dynamo gave up: they run eagerly, what they call is tried anew.
        limited: Functions that reached the recompile limit: new inputs run eagerly in them.
        cudagraph_skips: Graphs for which CUDA graphs were skipped.
        cudagraph_reason: Why, where Inductor tells.
        autotuned: Kernels for which Inductor tried several algorithms.
        kernels: Kernel functions in the code that Inductor generated; None without such code.
    """

    seconds: float
    graphs: int
    breaks: tuple[GraphBreak, ...]
    recompiles: tuple[Recompile, ...]
    skipped: tuple[str, ...]
    limited: tuple[str, ...]
    cudagraph_skips: int
    cudagraph_reason: str | None
    autotuned: int
    kernels: int | None

    @property
    def happened(self) -> bool:
        """Whether anything was compiled, or tried."""
        return self.seconds > 0

    @property
    def break_count(self) -> int:
        """How often a graph was broken."""
        return sum(place.count for place in self.breaks)

    @property
    def recompile_count(self) -> int:
        """How often a code object was compiled once more."""
        return sum(reason.count for reason in self.recompiles)


class Watch:
    """Reads what Dynamo has done since the watch was made. `start_afresh` ends its use."""

    def __init__(self) -> None:
        self._metrics = len(utils.get_compilation_metrics())
        self._breaks = len(utils.graph_break_reasons)
        self._stats = Counter(utils.counters["stats"])
        self._inductor = Counter(utils.counters["inductor"])
        self._modules = len(generated_modules())

    def read(self) -> Compilation:
        """Return what was done so far."""
        every = utils.get_compilation_metrics()
        new = every[self._metrics :]
        limited = [one for one in new if _hit_limit(one)]
        skipped = [one for one in new if one.fail_type and one not in limited]
        modules = generated_modules()[self._modules :]
        reason = next(
            filter(None, (getattr(one, "cudagraph_skip_reason", None) for one in new)), None
        )
        inductor = utils.counters["inductor"]
        return Compilation(
            seconds=_covered_seconds(new),
            graphs=utils.counters["stats"]["unique_graphs"] - self._stats["unique_graphs"],
            breaks=_breaks(utils.graph_break_reasons[self._breaks :], skipped),
            recompiles=_recompiles(new),
            skipped=tuple(dict.fromkeys(_skipped_frame(one) for one in skipped)),
            limited=tuple(dict.fromkeys(_function(one, every) for one in limited)),
            cudagraph_skips=inductor["cudagraph_skips"] - self._inductor["cudagraph_skips"],
            cudagraph_reason=None if reason is None else _first_line(reason),
            autotuned=sum(
                inductor[name] - self._inductor[name]
                for name in list(inductor)
                if name.startswith("select_algorithm_autotune")
            ),
            kernels=len(kernels_in(modules)) if modules else None,
        )


def _covered_seconds(metrics: Iterable[Any]) -> float:
    """Length of the union of the intervals: a record may lie inside another."""
    spans = sorted((one.start_time_us, one.end_time_us) for one in metrics if one.end_time_us)
    covered = end = 0
    for start, stop in spans:
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return covered / 1e6


def _hit_limit(metric: Any) -> bool:
    return bool(metric.fail_type) and bool(_LIMIT.search(metric.fail_reason or ""))


def _recompiles(metrics: Iterable[Any]) -> tuple[Recompile, ...]:
    """Count the frames that have been compiled before: `12/3` is the fourth time of frame 12."""
    again: Counter[tuple[str, str]] = Counter()
    for one in metrics:
        is_frame = getattr(one, "is_forward", True) is not False and one.co_name is not None
        if is_frame and not one.fail_type and _times_before(one):
            guard = getattr(one, "recompile_reason", None) or "not told by this version of torch"
            again[_guard_text(guard), _place(one)] += 1
    return tuple(Recompile(guard, function, n) for (guard, function), n in again.items())


def _times_before(metric: Any) -> int:
    numbers = re.match(r"(?:!\d+/)?\d+/(\d+)", str(metric.compile_id or ""))
    return int(numbers[1]) if numbers else 0


def _frame_number(metric: Any) -> str:
    return str(metric.compile_id or "").rpartition("/")[0]


def _guard_text(reason: str) -> str:
    """Leave out the number of the compilation whose guard it was, and the comment after it."""
    text = re.sub(r"^\d+/\d+: *", "", reason.strip().split("\n", 1)[0])
    return shortened(re.sub(r" {2,}#.*$", "", text).strip())


def _function(metric: Any, every: Sequence[Any]) -> str:
    """Name the function of a record; one that hit the limit does not tell, its frame does."""
    if metric.co_name is None:
        for one in every:
            if one.co_name is not None and _frame_number(one) == _frame_number(metric):
                return _place(one)
        return "a function that this version of torch does not name"
    return _place(metric)


def _place(metric: Any) -> str:
    return f"{metric.co_name} ({_short(metric.co_filename)}:{metric.co_firstlineno})"


def _skipped_frame(metric: Any) -> str:
    name = _place(metric) if metric.co_name else "a frame"
    return f"{name}: {_first_line(metric.fail_reason or metric.fail_type)}"


# -- graph breaks ----------------------------------------------------------------------------------


def _breaks(reasons: Iterable[Any], skipped: Iterable[Any]) -> tuple[GraphBreak, ...]:
    """Group breaks by reason and place; a skipped frame counts where its break is not listed."""
    places: Counter[tuple[str, str | None]] = Counter()
    innermost: set[tuple[str, int | None]] = set()
    for reason in reasons:
        places[_reason_text(reason.reason), location_of(reason.user_stack)] += 1
        innermost.update((frame.filename, frame.lineno) for frame in reason.user_stack[-1:])
    for one in skipped:
        at = (one.fail_user_frame_filename, one.fail_user_frame_lineno)
        if None not in at and at not in innermost:
            frame = FrameSummary(str(at[0]), int(at[1] or 0), "", lookup_line=False)
            places[_reason_text(one.fail_reason or one.fail_type), location_of([frame])] += 1
    return tuple(GraphBreak(reason, place, n) for (reason, place), n in places.items())


def location_of(stack: Sequence[FrameSummary]) -> str | None:
    """Give `file:line` of the innermost frame of the user's, else of a library's, never torch's."""
    frames = [frame for frame in stack if not frame.filename.startswith((_TORCH, "<"))]
    own = [frame for frame in frames if not _is_library(frame.filename)]
    best = (own or frames)[-1:]
    return f"{_short(best[0].filename)}:{best[0].lineno}" if best else None


def _is_library(filename: str) -> bool:
    return filename.startswith(_STANDARD_LIBRARY) or any(part in filename for part in _LIBRARIES)


def _short(filename: str | None) -> str:
    """Shorten a path to what names it: within the packages, or within the working folder."""
    if filename is None:
        return "?"
    for part in _LIBRARIES:
        if part in filename:
            return filename.rpartition(part)[2]
    here = os.getcwd() + os.sep
    return filename.removeprefix(here)


def _reason_text(reason: str) -> str:
    """Join the first line of a reason with the operator or call that it is about."""
    context = _CONTEXT.search(reason)
    first = _first_line(reason)
    if context is None or not context[1].strip() or context[1].strip() in first:
        return first
    return shortened(f"{first}: {context[1].strip()}")


def _first_line(text: str) -> str:
    return shortened(text.strip().split("\n", 1)[0])


def shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


# -- generated code --------------------------------------------------------------------------------


def generated_modules() -> list[ModuleType]:
    """Python modules that Inductor has generated and loaded; none before it is imported."""
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is None:
        return []
    modules: list[ModuleType] = list(codecache.PyCodeCache.modules)
    return modules


def kernels_in(modules: Iterable[ModuleType]) -> list[tuple[ModuleType, str]]:
    """Each kernel with the module whose graph calls it.

    Triton's kernels have modules of their own as well, and so has each one that autotuning tried;
    only the module of a graph imports what compiles kernels.
    """
    return [
        (module, name)
        for module in {id(module): module for module in modules}.values()
        if hasattr(module, "AsyncCompile")
        for name, value in vars(module).items()
        if _KERNEL.fullmatch(name) and (callable(value) or hasattr(value, "run"))
    ]


# -- what the mode became --------------------------------------------------------------------------


def effective_mode(
    mode: str, backend: str | Callable[..., Any], device: torch.device, did: Compilation
) -> tuple[str, list[str]]:
    """Name the mode that really ran, and every reason to say so.

    Args:
        mode: What torch.compile was asked for.
        backend: What compiled.
        device: Where the model runs.
        did: The compilation from the first call to the last.
    """
    reasons = [f"runs eagerly: {frame}" for frame in did.skipped]
    if did.graphs == 0:
        return "eager", ["nothing was compiled", *reasons]
    actual, lost = _without_lost_parts(mode, backend, device, did)
    reasons = lost + reasons
    if did.limited:
        reasons.append(
            f"recompile limit ({recompile_limit()}) reached by {', '.join(did.limited)}: "
            "other inputs run eagerly there"
        )
        if actual == mode:  # otherwise another mode ran, which is what counts
            actual = PARTLY_EAGER
    return actual, reasons


def recompile_limit() -> int:
    """How often Dynamo compiles one code object before it gives up."""
    config: Any = torch._dynamo.config
    limit: int = getattr(config, "recompile_limit", None) or config.cache_size_limit
    return limit


def _without_lost_parts(
    mode: str, backend: str | Callable[..., Any], device: torch.device, did: Compilation
) -> tuple[str, list[str]]:
    if mode == "default":
        return mode, []
    if backend != INDUCTOR:
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", "given")
        return "default", [f"backend {name!r} has no modes"]
    graphs_kept, lost = _cuda_graphs_kept(mode, device, did)
    tunes = mode.startswith("max-autotune")
    # On CUDA the mode also tunes the blocks of pointwise kernels, which no counter tells.
    tuned = tunes and (did.autotuned > 0 or device.type == "cuda")
    if tunes and not did.autotuned:
        lost.append("no GEMM was autotuned (counter select_algorithm_autotune is 0)")
    if graphs_kept:
        return (mode if tuned or not tunes else "reduce-overhead"), lost
    return ("max-autotune-no-cudagraphs" if tuned else "default"), lost


def _cuda_graphs_kept(mode: str, device: torch.device, did: Compilation) -> tuple[bool, list[str]]:
    if mode == "max-autotune-no-cudagraphs":
        return False, []
    why = f": {did.cudagraph_reason}" if did.cudagraph_reason else ""
    if device.type != "cuda":
        return False, [
            f"CUDA graphs were skipped (no CUDA device; counter cudagraph_skips is "
            f"{did.cudagraph_skips}){why}"
        ]
    if did.cudagraph_skips == 0:
        return True, []
    some = did.cudagraph_skips < did.graphs
    return some, [f"CUDA graphs were skipped for {did.cudagraph_skips} of {did.graphs} graphs{why}"]
