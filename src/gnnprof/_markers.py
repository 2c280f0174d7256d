"""Marks every call of a module, and of its message-passing phases, in the running profiler session.

Only hooks on the instances are used, and every one is taken away again: neither `forward` nor the
class is touched. A compiled module is marked from the outside, because a hook inside it would make
Dynamo compile it anew.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gnnprof._attribution import Site
from gnnprof._events import Marker
from gnnprof._records import PHASES


def is_compiled(module: nn.Module) -> bool:
    """Whether calling this module runs code compiled by `torch.compile` or `module.compile()`."""
    return _wrapped_module(module) is not None or module._compiled_call_impl is not None


def _wrapped_module(module: nn.Module) -> nn.Module | None:
    """The module inside of `torch.compile(module)`; None for any other module."""
    dynamo = sys.modules.get("torch._dynamo")  # not loaded: nothing can be compiled
    if dynamo is None or not isinstance(module, dynamo.OptimizedModule):
        return None
    wrapped: nn.Module = module._orig_mod
    return wrapped


def class_name(module: nn.Module) -> str:
    """Class name of a module; for a compiled one that of the module inside."""
    return type(_wrapped_module(module) or module).__name__


def walk_modules(
    module: nn.Module, path: str = "", above: tuple[nn.Module, ...] = ()
) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module with its dotted name, parents first, a shared one under each name.

    The inside of a compiled or scripted module is left out: its parts are not called one by one.
    """
    yield path, module
    if is_compiled(module) or isinstance(module, torch.jit.ScriptModule):
        return
    above = (*above, module)
    for name, child in module._modules.items():  # named_children() drops a shared child's names
        if child is not None and not any(child is parent for parent in above):
            yield from walk_modules(child, f"{path}.{name}" if path else name, above)


class _Hook:
    """A hook that does not follow the module into a copy.

    `copy.deepcopy(model)` and `torch.save(model)` inside the block would take the hooks along, and
    nobody would remove them from the copy. In a copy this hook is one that removes all of its kind
    when the copy is called for the first time.
    """

    def __init__(self, act: Callable[..., None]) -> None:
        self._act = act

    def __call__(self, module: nn.Module, *_: Any) -> None:
        self._act(module)

    def __reduce__(self) -> tuple[type[_Hook], tuple[Callable[[nn.Module], None]]]:
        return _Hook, (remove_copied_hooks,)

    @property
    def __name__(self) -> str:
        """What `torch.jit.script` asks a hook for, to compile it."""
        raise AttributeError(
            "torch.jit.script cannot compile the marks of a running gnnprof.Profiler; "
            "script the model before or after the block"
        )


class CallHook(_Hook):
    """Such a hook that is told the arguments of the call as well."""

    def __call__(self, module: nn.Module, *inputs: Any) -> None:
        self._act(module, *inputs)


def remove_copied_hooks(copied: nn.Module) -> None:
    """Take the hooks that a copied model brought along out of every module of it."""
    if torch.compiler.is_compiling():
        return
    for module in copied.modules():
        attributes = vars(module)
        # GraphModule and DistributedDataParallel have lists of such names.
        named = [value for name, value in attributes.items() if name.endswith("_hooks")]
        for hooks in [value for value in named if isinstance(value, dict)]:
            for number in [n for n, hook in hooks.items() if isinstance(hook, _Hook)]:
                del hooks[number]
                attributes["_forward_hooks_always_called"].pop(number, None)
                attributes["_forward_pre_hooks_with_kwargs"].pop(number, None)


def _before_forward(module: nn.Module, act: Callable[[nn.Module], None]) -> RemovableHandle:
    """Run `act(module)` before the forward and before the user's own hooks."""
    return nn.Module.register_forward_pre_hook(module, _Hook(act), prepend=True)


Stack = list[tuple[str, Marker | None]]
"""Names and markers; None for a call that began while nothing was recorded."""


class _OpenRanges(threading.local):
    """The markers that are open on the current thread, innermost last."""

    def __init__(self, stacks: list[Stack]) -> None:
        self.stack: Stack = []
        self.thread = threading.get_ident()
        stacks.append(self.stack)


class Markers:
    """The marked places of one model.

    Args:
        model: The model, as the user calls it.
        selected: Dotted names of the modules to mark; None for all.
        this_thread_only: The session records only the thread that calls `place`.
        before_forward: Called at the start of every outermost forward of the model on the thread
            that calls `place`, before its marker opens.

    Attributes:
        layout: Name and site of every marked place, in the order of the module tree: a module,
            its phases, its children. A shared module stands under each of its names.
        calls: How often each marker was opened so far, by its name.
        recorded: How many were opened while a session ran.
        recording: Whether a session runs: without one a marker must not be opened, because torch
            fails when it is closed in a session that began in between.
        unrecorded_calls: Marked calls on threads that the session does not record.
    """

    def __init__(
        self,
        model: nn.Module,
        selected: Collection[str] | None,
        this_thread_only: bool,
        before_forward: Callable[[], None] = lambda: None,
        between_calls: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self._stacks: list[Stack] = []
        self._open = _OpenRanges(self._stacks)
        self._thread = threading.get_ident()
        self._only_thread = self._thread if this_thread_only else None
        self._before_forward = before_forward
        self._between_calls = between_calls
        self.calls: Counter[str] = Counter()
        self.recorded = 0
        self.recording = False
        self.unrecorded_calls = 0
        names: dict[nn.Module, list[str]] = {}
        for path, module in walk_modules(model):
            if selected is None or path in selected:
                names.setdefault(module, []).append(path)
        self._sites = {module: _sites(module, tuple(paths)) for module, paths in names.items()}
        self.layout: list[tuple[str, Site]] = [
            (path, site)
            for path, module in walk_modules(model)
            if module in self._sites and path in names[module]
            for site in self._sites[module]
        ]

    def place(self) -> ExitStack:
        """Register the hooks; closing the returned stack takes them away."""
        with ExitStack() as undo:
            for module, (forward, *phases) in self._sites.items():
                if module._compiled_call_impl is not None:
                    self._mark_compiled_call(module, forward.marker, undo)
                else:
                    self._mark_call(module, forward.marker, undo)
                for site in phases:
                    self._mark_phase(module, site, undo)
            for top in outermost(self._model):
                if top._compiled_call_impl is None:
                    undo.callback(_before_forward(top, self._begin_forward).remove)
                elif top not in self._sites:
                    self._mark_compiled_call(top, None, undo)
            return undo.pop_all()

    @property
    def entered(self) -> int:
        """Markers opened so far, whether recorded or not."""
        return self.calls.total()

    @property
    def open_names(self) -> list[str]:
        """Names of the markers that are open on this thread, outermost first."""
        return [name for name, _ in self._open.stack]

    @property
    def any_open(self) -> bool:
        """Whether a marker is open on any thread."""
        return any(self._stacks)

    @property
    def on_own_thread(self) -> bool:
        """Whether the thread that asks is the one that made this."""
        return threading.get_ident() == self._thread

    def close_all(self) -> None:
        """Close what an interrupted forward left open on this thread."""
        while self._open.stack:
            _close(self._open.stack.pop()[1])

    def _mark_call(self, module: nn.Module, marker: str, undo: ExitStack) -> None:
        def enter(_module: nn.Module) -> None:
            if not torch.compiler.is_compiling():
                self._enter(marker)

        def leave(_module: nn.Module) -> None:
            if not torch.compiler.is_compiling():
                self._leave(marker)

        undo.callback(_before_forward(module, enter).remove)
        # Not module.register_...: a scripted module refuses it, and calls the hooks all the same.
        handle = nn.Module.register_forward_hook(module, _Hook(leave), always_call=True)
        undo.callback(handle.remove)

    def _mark_phase(self, module: nn.Module, site: Site, undo: ExitStack) -> None:
        before = _Hook(lambda _module: self._enter(site.marker))
        after = _Hook(lambda _module: self._leave(site.marker))
        undo.callback(getattr(module, f"register_{site.phase}_forward_pre_hook")(before).remove)
        undo.callback(getattr(module, f"register_{site.phase}_forward_hook")(after).remove)

    def _mark_compiled_call(self, module: nn.Module, marker: str | None, undo: ExitStack) -> None:
        """Wrap what `module.compile()` stored on the instance; hooks would be compiled in."""
        is_top = any(module is top for top in outermost(self._model))
        compiled: Callable[..., Any] | None = module._compiled_call_impl
        if compiled is None:
            raise ValueError("the module is not compiled in place")

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_top:
                self._begin_forward(module)
            if marker is None:
                return compiled(*args, **kwargs)
            self._enter(marker)
            try:
                return compiled(*args, **kwargs)
            finally:
                self._leave(marker)

        def restore() -> None:
            if module._compiled_call_impl is call:  # or it was compiled anew in the block
                module._compiled_call_impl = compiled

        module._compiled_call_impl = call
        undo.callback(restore)

    def _enter(self, name: str) -> None:
        ranges = self._open
        if self._only_thread not in (None, ranges.thread):
            self.unrecorded_calls += 1
            return
        if not ranges.stack and self.on_own_thread:
            self._between_calls()
        self.calls[name] += 1
        marker = None
        if self.recording:
            self.recorded += 1
            marker = Marker(name)
            marker.__enter__()
        ranges.stack.append((name, marker))

    def _leave(self, name: str) -> None:
        """Close this range, and those inside it whose end was skipped by an exception."""
        stack = self._open.stack
        if not any(name == open_name for open_name, _ in reversed(stack)):
            return  # a hook before ours raised: this range was never opened
        while True:
            open_name, marker = stack.pop()
            _close(marker)
            if open_name == name:
                return

    def _begin_forward(self, _model: nn.Module) -> None:
        """Before an outermost forward: close what a KeyboardInterrupt in an earlier one left.

        torch runs the hooks that close a range after an Exception, but not after a BaseException.
        """
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return  # the second: a forward that checkpointing repeats in the backward
        if self._open.stack:
            if _is_inside_call_of(outermost(self._model)):
                return
            self.close_all()
        if self._open.thread == self._thread:
            self._before_forward()


def outermost(model: nn.Module) -> tuple[nn.Module, ...]:
    """What the user calls: the model, or for a mere container of models these."""
    # A compiled module has its forward on the instance, a ModuleDict or ModuleList has none.
    has_own = "forward" in vars(model) or is_compiled(model)
    if not has_own and inspect.getattr_static(type(model), "forward") is nn.Module.forward:
        return tuple(dict.fromkeys(top for child in model.children() for top in outermost(child)))
    return (model,)


def _close(marker: Marker | None) -> None:
    if marker is None:
        return
    try:
        marker.__exit__(None, None, None)
    except RuntimeError:
        # Another thread ended the session between our look at `recording` and the opening, and a
        # new one runs now. The marker was never opened; the user's forward must not fail for it.
        return


def _is_inside_call_of(models: Collection[nn.Module]) -> bool:
    """Whether the forward that is about to run was called from another one of these models."""
    calls = 0
    frame = sys._getframe()
    while frame is not None and calls < 2:
        if frame.f_code is nn.Module._call_impl.__code__:
            calls += any(frame.f_locals["self"] is model for model in models)
        frame = frame.f_back  # type: ignore[assignment]
    return calls == 2


def _sites(module: nn.Module, paths: tuple[str, ...]) -> tuple[Site, ...]:
    """The module itself first, then the phases that its class lets one hook into."""
    phases = () if is_compiled(module) else PHASES
    return (
        Site(paths, class_name(module)),
        *(
            Site(paths, class_name(module), phase)
            for phase in phases
            if hasattr(type(module), f"register_{phase}_forward_pre_hook")
        ),
    )
