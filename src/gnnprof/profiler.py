"""Layer by layer profiling: which module, and which phase of message passing, costs what."""

from __future__ import annotations

import difflib
import json
import operator
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from torch import nn

from gnnprof import _device, _tables
from gnnprof._events import refuse_nested_session
from gnnprof._files import write_text
from gnnprof._interrupts import interrupts_deferred
from gnnprof._layer_table import (
    SORTS,
    Line,
    costliest_first,
    layer_table,
    lines_of,
    selected,
    self_time,
    terminal_width,
    total_time,
)
from gnnprof._markers import class_name, walk_modules
from gnnprof._recorder import Recorder, Schedule
from gnnprof._records import ProfileRow
from gnnprof._rows import rows_of
from gnnprof._statistics import median
from gnnprof._summary import footer_of, summary_of
from gnnprof._tables import format_memory, format_time

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Measure", "Profiler", "Trace", "format_memory", "format_time"]


class Trace(NamedTuple):
    """A module of the model: its path from the class name down, whether it has no children."""

    path: tuple[str, ...]
    leaf: bool
    module: nn.Module


class Measure(NamedTuple):
    """The figures of one row in the units of `Profiler.get_trace`: microseconds and bytes."""

    self_cpu_total: float
    cpu_total: float
    self_cuda_total: float | None
    cuda_total: float | None
    self_cpu_memory: int | None
    cpu_memory: int | None
    self_cuda_memory: int | None
    cuda_memory: int | None
    occurrences: int


class Profiler:
    """Context manager that finds out where the time of a model goes, layer by layer.

    Every call of every module, and of the message-passing phases of PyG layers, becomes a row with
    the ops under it. The self times of the module and phase rows and of one row for what ran
    outside the model add up to the duration of the block.

    .. code-block:: python

        with Profiler(model) as prof:
            model(x, edge_index)
        print(prof.table(ops=False))

    The model is marked by hooks on its instances, which are gone after the block, however it
    ends. A model compiled by `torch.compile` is one row, with its compiled regions and kernels
    under it: pass the compiled model, as it is called. Calls on other threads are recorded too,
    except with `profile_memory=True`, where torch records one thread only.

    A profiler can be entered again; it then starts clean. Several models that are called in one
    block are profiled together as `Profiler(nn.ModuleDict({"a": a, "b": b}))`. A block may be of
    any length: every few hundred module calls what was recorded is folded into the sums.

    Args:
        model: The model to profile.
        enabled: If False, the block runs as if there were no profiler.
        use_cuda: Also record the time of the kernels on the accelerator (CUDA, or XPU where that is
            the one at hand).
        profile_memory: Also record bytes allocated and freed.
        paths: The modules that get rows, by dotted name (`'convs.0'`), by name with slashes with
            or without the model's class name (`'GCN/convs/0'`), or as a tuple of names. A module
            that is not selected counts to the row it is called from. By default all.
        skip: Steps at the start of the block that run without the profiler. A step begins with a
            forward of the model and lasts until the next one: backward, optimizer and the next
            batch included.
        warmup: Steps after them that run with the profiler and are thrown away.
        active: Steps after them that are recorded; by default all that follow.
        counts: Also count the FLOPs and bytes of every forward, and compare the time with what
            this machine can do. The first recorded forward is repeated after the block, untimed,
            with the same arguments; parameters, buffers, gradients and random state stay as they
            are, but the model's own hooks run once more. See :doc:`/counting`.

    Raises:
        TypeError: If `model` is not an `nn.Module`, or a number of steps not an integer.
        ValueError: If a path names no module (the message lists the closest names), or a number
            of steps is negative.
        RuntimeError: If `use_cuda` is set and there is no CUDA or XPU device.
    """

    def __init__(
        self,
        model: nn.Module,
        enabled: bool = True,
        use_cuda: bool = False,
        profile_memory: bool = False,
        paths: Iterable[str | Sequence[str]] | None = None,
        *,
        skip: int = 0,
        warmup: int = 0,
        active: int | None = None,
        counts: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model is a {type(model).__name__}; Profiler needs a torch.nn.Module "
                "(pass the model itself, not its output or its class)"
            )
        self._model = model
        self.enabled = enabled
        self.use_cuda = use_cuda
        self.profile_memory = profile_memory
        self.paths = paths
        self.counts = counts
        self._selected = None if paths is None else _select(model, paths)
        self._accelerator = _accelerator_for(use_cuda) if enabled else None
        self._schedule = _checked_schedule(skip, warmup, active)
        self._recording = False
        self._recorder: Recorder | None = None
        self._rows: tuple[ProfileRow, ...] | None = None
        self._overhead_ratio: float | None = None

    # --- capture -----------------------------------------------------------------------------

    def __enter__(self) -> Profiler:
        if not self.enabled:
            return self
        if self._recording:
            raise RuntimeError(
                "this Profiler is already recording; leave its `with` block before entering again"
            )
        refuse_nested_session("Profiler")  # before the hooks and the earlier rows are touched
        self._rows = None
        self._recorder = Recorder(
            self._model,
            self._selected,
            self._accelerator,
            self.profile_memory,
            self._schedule,
            count=self.counts,
        )
        self._thread = threading.get_ident()
        try:
            with interrupts_deferred():
                self._recorder.start()
                self._recording = True
        except KeyboardInterrupt:  # python leaves a block that it has not entered alone
            if self._recording:
                self._recording = False
                self._recorder.stop(failed=True)
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._recording or self._recorder is None:
            if not self.enabled:
                return
            raise RuntimeError("this Profiler is not recording; use it as `with Profiler(model):`")
        if self._recorder.memory and self._thread != threading.get_ident():
            raise RuntimeError(
                "with profile_memory=True the block must be left by the thread that entered it: "
                "torch's session belongs to that thread; leave it there"
            )
        with interrupts_deferred():
            self._recording = False
            self._recorder.stop(failed=exc_type is not None)
        self._recorder.count()  # a forward of the model, which Ctrl-C may end

    def measure_overhead(self, step: Callable[[], object], *, rounds: int = 5) -> float:
        """Measure how much longer a step takes under this profiler, with the same options.

        The step runs without and with the profiler in turn, once more each to warm up. The figure
        is printed under the table and on the page from then on.

        Args:
            step: What is profiled: a forward or a training step, without arguments.
            rounds: How often it runs each way.

        Returns:
            Median over the rounds of its time inside the block by its time without one; starting
            and stopping the profiler, and its table, are not in it.

        Raises:
            RuntimeError: While a profiler session is running.
        """
        refuse_nested_session("measure_overhead")
        options = {"use_cuda": self.use_cuda, "profile_memory": self.profile_memory}
        probe = Profiler(self._model, paths=self.paths, **options)
        ratios = []
        for _ in range(rounds + 1):
            plain = _seconds_of(step)
            with probe:
                ratios.append(_seconds_of(step) / plain)
        self._overhead_ratio = median(ratios[1:])
        return self._overhead_ratio

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self._model(*args, **kwargs)

    # --- results -----------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[ProfileRow, ...]:
        """The records, in the order of the module tree; the row for the rest comes last.

        Raises:
            RuntimeError: While the block is still running, or if another profiler session was
                started inside it, which ends ours.
        """
        if self._recording:
            raise RuntimeError("the profile is still recording; read it after the `with` block")
        if self._recorder is None:
            return ()
        if self._rows is None:
            rows = rows_of(
                self._recorder.settle(),
                self._recorder.markers.layout,
                with_device=self._recorder.accelerator is not None,
                with_memory=self._recorder.memory,
            )
            self._rows = self._with_work(rows)
        return self._rows

    def _with_work(self, rows: tuple[ProfileRow, ...]) -> tuple[ProfileRow, ...]:
        counted = self._recorder.counted if self._recorder else None
        if counted is None:
            return rows
        from gnnprof._work import with_work

        return with_work(rows, counted, self._model)

    @property
    def total_time(self) -> float:
        """Seconds that the rows should account for.

        The duration of the recorded part of the block on its own thread, and the time of the
        outermost recorded ranges on other threads, both by the profiler's clock.
        """
        if not self.rows or self._recorder is None:
            return 0.0
        return self._recorder.attribution.whole_ns * 1e-9

    @property
    def coverage(self) -> float:
        """Share of `total_time` that is found in the self times of the rows: 1 if nothing is lost.

        0 if nothing was recorded.
        """
        found = sum(self_time(row) for row in self.rows if row.op is None)
        return round(found / self.total_time, 9) if self.total_time else 0.0

    @property
    def steps(self) -> int:
        """Recorded steps: outermost forwards of the model on the thread of the block."""
        return self._recorder.steps if self._recorder else 0

    # --- renderings --------------------------------------------------------------------------

    def table(
        self,
        *,
        ops: bool = True,
        depth: int | None = None,
        sort: str | None = None,
        min_percent: float = 0.0,
        width: int | None = None,
    ) -> str:
        """Draw the rows as a tree.

        Args:
            ops: Whether to list the ops under every module and phase.
            depth: How many levels below the model to list; by default all.
            sort: Order of the rows below one parent: None for the order of the model, 'self' or
                'total' for the costliest first, by time without or with nested rows.
            min_percent: Leave out rows that have, with all below them, less than this share of the
                total time, in percent.
            width: Characters that a line may have; by default those of the terminal that is
                written to, and any number elsewhere.

        Returns:
            The table and, below it, how much of the block it accounts for. The column
            "Self CPU %" adds up to 100 over the rows of modules, phases and those outside.

        Raises:
            ValueError: If `sort` is something else.
        """
        if not self.enabled and self._recorder is None:
            return "Profiler(enabled=False): nothing was recorded"
        if sort not in (None, *SORTS):
            raise ValueError(
                f"sort={sort!r}; give 'self' or 'total', or None for the model's order"
            )
        least = min_percent / 100 * self.total_time
        every = list(self._lines())
        lines = selected(every, depth=depth, least=least, ops=ops)
        left_out = sum(ops or line.row.op is None for line in every) - len(lines)
        if sort is not None:
            lines = costliest_first(lines, self_time if sort == "self" else total_time)
        if width is None:
            width = terminal_width()
        table = layer_table(lines, self._measured(), self.total_time, self._accelerator, width)
        if self._recorder is None:
            return table
        if left_out:
            table += f"({left_out} rows are not listed)\n"
        footer = footer_of(
            self._recorder, class_name(self._model), self.coverage, self._overhead_ratio
        )
        return table + "\n".join(footer)

    def __str__(self) -> str:
        if self._recording:
            return "Profiler: still recording; leave the `with` block to read the table"
        return self.table()

    def __repr__(self) -> str:
        state = (
            "recording" if self._recording else "recorded" if self._recorder else "not entered yet"
        )
        return f"<Profiler of {class_name(self._model)}: {state if self.enabled else 'disabled'}>"

    def get_trace(
        self,
    ) -> tuple[str, list[str], dict[str, list[Any]], list[str], list[list[str]]]:
        """Return what `torch_geometric.profile.Profiler.get_trace` returns.

        `rows` holds the same with names, types and units.

        Returns:
            The printed table; the headings of all columns; the raw figures (microseconds and
            bytes, in the order of the headings) by op name, summed over the model, and by the
            label of every row; the labels (`'-act--aten::relu'`); the formatted figures of
            every label.
        """
        lines = list(self._lines())
        raw: dict[str, list[Any]] = {}
        for line in lines:
            figures = [column.read(line.row) for column in _tables.TRACE_COLUMNS]
            raw[line.label] = figures
            if line.row.op is not None:
                so_far = raw.get(line.row.op)
                raw[line.row.op] = figures if so_far is None else _added(so_far, figures)
        stats = [
            [column.text(column.read(line.row)) for column in _tables.TRACE_COLUMNS]
            for line in lines
        ]
        headings = list(_tables.HEADINGS)
        return self.table(), headings, raw, [line.label for line in lines], stats

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries; seconds and bytes, None where not measured."""
        return [asdict(row) for row in self.rows]

    def to_json(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the rows, the total time and the coverage.

        Args:
            path: The file; where several processes run, the rank is put into its name.
            overwrite: Whether to replace an earlier file.

        Returns:
            The path written.

        Raises:
            FileExistsError: If there is a file and `overwrite` is False.
        """
        header = self._summary()
        return _tables.records_to_json(path, self.rows, header, overwrite=overwrite)

    def to_csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the rows, one line each; otherwise as `to_json`."""
        names = _tables.field_names(ProfileRow)
        return _tables.records_to_csv(path, self.rows, names, overwrite=overwrite)

    def to_pandas(self) -> DataFrame:
        """Return the rows as a data frame.

        Raises:
            ImportError: If pandas is not installed.
        """
        return _tables.records_to_pandas(self.rows, _tables.field_names(ProfileRow))

    def to_speedscope(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the tree of rows for https://www.speedscope.app; otherwise as `to_json`.

        Forward and backward are two profiles; the weights are seconds of self time.
        """
        from gnnprof._speedscope import speedscope

        text = json.dumps(speedscope(self.rows, class_name(self._model)))
        return write_text(path, text, overwrite=overwrite)

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        trace: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write one page that shows everything and needs no network; otherwise as `to_json`.

        It has the layer tree as an icicle (forward, backward or both), all rows in a table to
        sort and search, and how it was measured.

        Args:
            path: The file.
            trace: A Chrome trace of the same run to link to.
            overwrite: Whether to replace an earlier file.
        """
        from gnnprof._html import page

        text = page(self.rows, {**self._summary(), "trace_path": trace})  # type: ignore[typeddict-item]
        return write_text(path, text, overwrite=overwrite)

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the costliest rows."""
        from gnnprof._html import notebook_html

        if self._recording or not self.rows:
            return None
        return notebook_html(self.rows, self._summary())  # type: ignore[arg-type]

    def export_chrome_trace(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the time line, with a range for every module and phase, in Chrome's trace format.

        Open it in `chrome://tracing` or https://ui.perfetto.dev. ``trace.json.gz`` is compressed.
        torch gives a trace once: a second file is a copy of the one written last. Otherwise as
        `to_json`.

        Raises:
            RuntimeError: If nothing was recorded yet.
            FileNotFoundError: If there is no such folder, or the file to copy is gone or
                was changed.
        """
        recorder = self._recorder
        if recorder is None or self._recording:
            raise RuntimeError(
                "nothing to export yet; leave the `with` block of the Profiler first"
            )
        return recorder.export_chrome_trace(path, overwrite=overwrite)

    def _lines(self) -> Iterable[Line]:
        return lines_of(self.rows, class_name(self._model))

    def _measured(self) -> frozenset[str]:
        measured = {
            "device": self._recorder is not None and self._recorder.accelerator is not None,
            "memory": self._recorder is not None and self._recorder.memory,
            "backward": any(row.self_backward_cpu_time is not None for row in self.rows),
            "work": self._recorder is not None and self._recorder.counted is not None,
        }
        return frozenset(name for name, present in measured.items() if present)

    def _summary(self) -> dict[str, Any]:
        if self._recorder is None:
            raise RuntimeError("nothing was recorded yet; use the Profiler as `with` block first")
        return summary_of(
            self._recorder, class_name(self._model), self.coverage, self._overhead_ratio
        )


def _added(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Add two rows of figures; what was not measured stays None."""
    return [None if a is None else a + b for a, b in zip(first, second, strict=True)]


def _accelerator_for(use_cuda: bool) -> str | None:
    """The accelerator to record; raises where it was asked for and there is none."""
    if not use_cuda:
        return None
    accelerator = _device.accelerator()
    if accelerator not in _device.EVENT_BACKENDS:
        raise RuntimeError(
            f"use_cuda=True needs a CUDA or XPU device, and torch sees {accelerator or 'none'} "
            "here; leave it out to profile the host, or pass use_cuda=torch.cuda.is_available()"
        )
    return accelerator


def _seconds_of(step: Callable[[], object]) -> float:
    _device.synchronize()
    began = _device.clock()
    step()
    _device.synchronize()
    return _device.clock() - began


def _checked_schedule(skip: int, warmup: int, active: int | None) -> Schedule:
    for name, steps, least in (("skip", skip, 0), ("warmup", warmup, 0), ("active", active, 1)):
        if steps is None and name == "active":
            continue
        if isinstance(steps, bool) or not isinstance(steps, SupportsIndex):
            raise TypeError(f"{name}={steps!r} is no number of steps; give an integer")
        if operator.index(steps) < least:
            raise ValueError(f"{name}={steps} must be at least {least}: it counts steps")
    last = None if active is None else operator.index(active)
    return Schedule(operator.index(skip), operator.index(warmup), last)


def _select(model: nn.Module, paths: Iterable[str | Sequence[str]]) -> frozenset[str]:
    """Translate the user's paths to dotted names.

    Raises:
        ValueError: If a path names no module.
    """
    if isinstance(paths, str):
        paths = (paths,)
    if not isinstance(paths, Iterable) or isinstance(paths, (bytes, nn.Module)):
        raise TypeError(f"paths={paths!r}; give a list of module names such as ['convs.0']")
    known = {path for path, _ in walk_modules(model)}
    roots = {type(model).__name__, class_name(model)}
    selected = set()
    for path in paths:
        if not isinstance(path, str) and not _is_names(path):
            raise TypeError(
                f"paths contains {path!r}; give a name such as 'convs.0' or a tuple of str"
            )
        names = path.replace("/", ".").split(".") if isinstance(path, str) else list(path)
        dotted = ".".join(names)
        without_root = ".".join(names[1:]) if names and names[0] in roots else dotted
        if dotted not in known and without_root not in known:
            raise ValueError(_unknown_path(path, dotted, known, class_name(model)))
        selected.add(dotted if dotted in known else without_root)
    return frozenset(selected)


def _is_names(path: Any) -> bool:
    return isinstance(path, (tuple, list)) and all(isinstance(name, str) for name in path)


def _unknown_path(path: Any, dotted: str, known: set[str], root: str) -> str:
    closest = difflib.get_close_matches(dotted, known, n=5, cutoff=0.3) or sorted(known)[:5]
    names = ", ".join(repr(name or root) for name in closest)
    return (
        f"paths contains {path!r}, which is no module of {root}; the closest are {names} "
        "(dotted names as in model.named_modules(); parts of compiled modules have none)"
    )
