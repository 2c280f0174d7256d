"""Runs a script as `python` would, with `torch_geometric.profile` answered by `gnnprof`.

Two jobs. `answer_imports` puts a finder in front of the import system that gives `gnnprof` and its
modules under the reference's names. `run` makes the script's surroundings (`sys.argv`, `sys.path`,
`__main__`) what the interpreter would have made them and executes it.

`runpy` is not used: it restores `__main__` and `sys.argv` as soon as the script's last line has
run, too early for its threads and exit handlers, and shows its own frames in tracebacks.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import multiprocessing.spawn
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

REFERENCE = "torch_geometric.profile"
PACKAGE = "gnnprof"

# -- imports ---------------------------------------------------------------------------------------


class ReferenceFinder(MetaPathFinder, Loader):
    """Finds `gnnprof` where `torch_geometric.profile` is asked for, and likewise its submodules.

    The same module objects go under both names, so that there is one `timeit`, and a patch of one
    name is seen through the other.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Answer for the reference's names only."""
        if fullname == REFERENCE or fullname.startswith(f"{REFERENCE}."):
            return ModuleSpec(fullname, self, is_package=fullname == REFERENCE)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Give the module of gnnprof; its own spec waits in `loader_state` for `exec_module`."""
        module = importlib.import_module(PACKAGE + spec.name.removeprefix(REFERENCE))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Undo what the import system did to the module, which has long been executed."""
        assumed = module.__spec__
        if assumed is None:
            return
        module.__spec__ = assumed.loader_state
        if assumed.name == REFERENCE:
            # Known before anyone asks: importing them one by one would set them as attributes of
            # the package, and so put the module `benchmark` over the function.
            sys.modules.update(
                {
                    REFERENCE + name.removeprefix(PACKAGE): sys.modules[name]
                    for name in _submodules()
                }
            )


def _submodules(package: str = PACKAGE) -> list[str]:
    return [name for name in sys.modules if name.startswith(f"{package}.")]


def answer_imports() -> None:
    """Let every later import of the reference, here and in spawned processes, give gnnprof."""
    if any(isinstance(finder, ReferenceFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, ReferenceFinder())
    if "torch_geometric" in sys.modules:  # imported before us, by a sitecustomize for one
        for name in (REFERENCE, *_submodules(REFERENCE)):
            sys.modules.pop(name, None)
        importlib.import_module(REFERENCE)
    _answer_imports_of_spawned_processes()


class _AnswerImports:
    """Calls `answer_imports` in the process that unpickles it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return answer_imports, ()


def _answer_imports_of_spawned_processes() -> None:
    """Let `multiprocessing` send the finder along.

    A spawned process unpickles this data before it imports the script, whose functions it is to
    run. There is no official place to hook in.
    """
    prepare = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {PACKAGE: _AnswerImports()} | prepare(name)

    multiprocessing.spawn.get_preparation_data = get_preparation_data


# -- execution -------------------------------------------------------------------------------------


class CannotRun(Exception):
    """There is nothing to run: the message says why, `status` is python's exit status for it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Run a file, a folder or zip archive with a `__main__.py`, or `-` for standard input.

    Args:
        path: As on the command line.
        arguments: What the script finds in `sys.argv[1:]`.

    Raises:
        CannotRun: If there is no such file.
    """
    sys.argv[:] = [path, *arguments]
    absolute = os.path.join(os.getcwd(), path)  # as python, which leaves `..` in the path
    if path == "-":
        _set_script_folder("")
        _execute_source(sys.stdin.buffer.read(), "<stdin>")
    elif os.path.isdir(path) or zipfile.is_zipfile(path):
        _set_script_folder(absolute)
        spec = PathFinder.find_spec("__main__", [absolute])
        if spec is None:
            raise CannotRun(f"can't find '__main__' module in {absolute!r}", status=1)
        _execute_spec(spec)
    else:
        content = _read(absolute)
        _set_script_folder(os.path.dirname(os.path.realpath(path)))
        if path.endswith(".pyc"):
            loader = SourcelessFileLoader("__main__", absolute)
            _execute(_new_main(absolute, loader), lambda: loader.get_code("__main__"))
        else:
            _execute_source(content, absolute)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        raise CannotRun(f"can't open file {path!r}: {reason}", status=2) from None


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Run a module, or the `__main__` of a package, as `python -m` does.

    Args:
        name: Dotted name.
        arguments: What the module finds in `sys.argv[1:]`.

    Raises:
        CannotRun: If there is no such module.
    """
    sys.argv[:] = ["-m", *arguments]
    _set_script_folder(os.getcwd())
    spec = _find_module(name)
    sys.argv[0] = spec.origin or name
    _execute_spec(spec)


def _find_module(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the package exists, and what it imports does not
        spec = None
    if spec is None:
        raise CannotRun(f"No module named {name}", status=1)
    if spec.submodule_search_locations is not None:
        if name.endswith(".__main__"):
            raise CannotRun(f"{name!r} is a package and cannot be run", status=1)
        return _find_module(f"{name}.__main__")
    return spec


def _set_script_folder(folder: str) -> None:
    """Put the script's folder where the interpreter put that of gnnprof's own start."""
    # python -P and -I put none there
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = folder


def _new_main(file: str | None, loader: object) -> ModuleType:
    """Make the module `__main__` of a script, with the attributes that python gives it."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=file, __cached__=None, __loader__=loader)
    return main


def _execute_source(content: bytes, file: str) -> None:
    main = _new_main(file, SourceFileLoader("__main__", file))
    _execute(main, lambda: compile(content, file, "exec", dont_inherit=True))


def _execute_spec(spec: ModuleSpec) -> None:
    loader: Any = spec.loader
    main = _new_main(spec.origin, loader)
    main.__dict__.update(__spec__=spec, __package__=spec.parent, __cached__=spec.cached)
    _execute(main, lambda: loader.get_code(spec.name))


def _execute(main: ModuleType, load: Callable[[], CodeType | None]) -> None:
    """Execute code as `__main__`; an exception that ends it is shown without our frames."""
    sys.modules["__main__"] = main
    try:
        code = load()
        if code is None:
            raise CannotRun(f"No code object available for {main.__dict__['__file__']}", status=1)
        exec(code, main.__dict__)
    except (SystemExit, CannotRun):
        raise
    except BaseException:
        sys.excepthook = _shown_from_script(sys.excepthook)
        raise


def _shown_from_script(show: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the script's exception hook: it gets the traceback that it would get from python."""

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        trace = _script_traceback(trace)
        show(kind, error.with_traceback(trace), trace)

    return excepthook


def _script_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Cut off the frames up to and including our own."""
    ours = [frame.tb_frame.f_code.co_filename == __file__ for frame in _frames(trace)]
    skipped = ours.index(True) if True in ours else len(ours)
    while skipped < len(ours) and ours[skipped]:
        skipped += 1
    for _ in range(skipped):
        trace = trace.tb_next if trace is not None else None
    return trace


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
