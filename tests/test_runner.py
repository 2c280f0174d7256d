"""The runner beside plain `python`: same surroundings and endings, another profile package.

Most tests run the real runner in a stand-in package: real gnnprof imports torch, which takes
seconds per process; the last test uses the real ones.
"""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gnnprof
from gnnprof.__main__ import main

SUBMODULES = ("profile", "profiler", "benchmark", "nvtx", "utils")

PROBE = '''\
"""A script that tells about its surroundings."""
import atexit, json, pickle, sys

class Thing:
    pass

def function(x: int):
    """Its annotation is a string if the runner's own `from __future__` leaks into the script."""

seen = {
    "argv": sys.argv,
    "path": sys.path,
    "name": __name__,
    "doc": __doc__,
    "file": globals().get("__file__"),
    "cached": globals().get("__cached__"),
    "package": __package__,
    "spec": __spec__ and __spec__.name,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "pickle": type(pickle.loads(pickle.dumps(Thing()))) is Thing,
    "annotation": function.__annotations__["x"] is int,
}
print(json.dumps(seen))
atexit.register(lambda: print("at exit", Thing.__name__))
'''

ENDINGS = {
    "error": "def f():\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError as e:\n"
    "    raise ValueError('chained') from e\n",
    "syntax": "x = (\n",
    "status": "import sys\nsys.exit(3)\n",
    "words": "import sys\nsys.exit('some words')\n",
    "exit": "raise SystemExit\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "hook": "import sys, traceback\n"
    "def hook(kind, error, tb):\n    print(kind, error, len(traceback.extract_tb(tb)))\n"
    "sys.excepthook = hook\n1 / 0\n",
    "threads": "import threading, time, warnings\n"
    "def work():\n    time.sleep(0.1)\n    print(later(), __name__)\n"
    "threading.Thread(target=work).start()\ndef later():\n    return 5\n"
    "warnings.warn('shown in __main__', DeprecationWarning)\nprint('end')\n",
    "missing import": "import no_such_module\n",
}

FORMS = """\
import importlib, json, sys
assert "torch_geometric.profile.nvtx" not in sys.modules or EARLY
import torch_geometric
whole = torch_geometric.profile
from torch_geometric.profile import timeit
from torch_geometric import profile
import torch_geometric.profile as alias
import torch_geometric.profile.profiler
import torch_geometric.profile.benchmark
from torch_geometric.profile import utils
from torch_geometric.profile.nvtx import WHO
import gnnprof
print(json.dumps({
    "timeit": timeit(),
    "function kept": torch_geometric.profile.benchmark(),
    "one package": whole is profile is alias is gnnprof is sys.modules["torch_geometric.profile"],
    "submodules": [sys.modules[f"torch_geometric.profile.{n}"].WHO for n in NAMES],
    "same submodules": all(sys.modules[f"torch_geometric.profile.{n}"]
                           is sys.modules[f"gnnprof.{n}"] for n in NAMES),
    "attribute": torch_geometric.profile.profiler.WHO,
    "from": [utils.WHO, WHO],
    "specs": [gnnprof.__spec__.name, gnnprof.profiler.__spec__.name],
    "names": [gnnprof.__name__, gnnprof.profiler.__name__],
}))
"""

SPAWN = """\
import multiprocessing
from torch_geometric.profile import timeit

class Job:
    def __call__(self):
        return timeit()

def work(job, queue):
    queue.put((job(), __name__))

if __name__ == "__main__":
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(Job(), queue))
        process.start()
        print(queue.get(timeout=30))
        process.join()
"""


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stand-ins of gnnprof (but its own runner) and of torch_geometric."""
    folder = tmp_path_factory.mktemp("packages")
    tell = "WHO = '{0}.{1}'\ndef timeit():\n    return '{0}'\nbenchmark = timeit\n"
    for package, inside in (("gnnprof", "gnnprof"), ("reference", "torch_geometric/profile")):
        modules = {name: tell.format(package, name) for name in SUBMODULES}
        dotted = inside.replace("/", ".")
        names = f"from {dotted} import nvtx, profiler, utils\n" if package == "gnnprof" else ""
        names += f"from {dotted}.benchmark import benchmark\nfrom {dotted}.profile import timeit\n"
        write(folder / inside, __init__=names, **modules)
    write(folder / "torch_geometric", __init__="import torch_geometric.profile\n")
    source = Path(gnnprof.__file__).parent
    for name in ("__main__", "_runner", "_version"):
        shutil.copy(source / f"{name}.py", folder / "gnnprof")
    return folder


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scripts in every form that python runs."""
    folder = tmp_path_factory.mktemp("scripts")
    write(folder / "inner", probe=PROBE)
    write(folder / "package", __init__="", __main__=PROBE, module=PROBE)
    write(folder / "bare", __main__=PROBE)
    write(folder, spawn=SPAWN, **ENDINGS)
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", PROBE)
    py_compile.compile(str(folder / "inner/probe.py"), str(folder / "compiled.pyc"))
    return folder


class Interpreter:
    """Starts python in a folder, where the stand-ins are found first."""

    def __init__(self, cwd: Path, *path: Path) -> None:
        self.cwd = cwd
        self.environment = {key: value for key, value in os.environ.items() if "PYTHON" not in key}
        self.environment["PYTHONPATH"] = os.pathsep.join(map(str, path))

    def __call__(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.cwd,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def python(scripts: Path, packages: Path) -> Interpreter:
    return Interpreter(scripts, packages)


# -- surroundings and endings ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "inner/probe.py a -m --help",
        "./inner/../inner/probe.py",
        "-m package x -h",
        "-m package.module",
        "bare y",
        "./bare/",
        "app.pyz",
        "compiled.pyc z",
        "- from stdin",
    ],
)
def test_surroundings_are_those_of_python(python: Interpreter, command: str) -> None:
    words = command.split()
    stdin = PROBE if words[0] == "-" else ""
    plain = python(*words, stdin=stdin)
    assert plain[0] == 0, plain
    seen = json.loads(plain[1].splitlines()[0])
    assert (seen["main"], seen["pickle"], seen["annotation"]) == (True, True, True)
    assert python("-m", "gnnprof", *words, stdin=stdin) == plain


def test_surroundings_by_the_console_script(python: Interpreter, tmp_path: Path) -> None:
    write(
        tmp_path, gnnprof_script="import sys\nfrom gnnprof.__main__ import main\nsys.exit(main())"
    )
    launcher = str(tmp_path / "gnnprof_script.py")
    for words in (["inner/probe.py", "a"], ["-m", "package", "b"], ["error.py"]):
        plain = python(*words)
        assert python(launcher, "run", *words) == plain
        assert python("-m", "gnnprof", "run", *words) == plain


def test_isolated_paths_stay_isolated(python: Interpreter) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("python -P is new in 3.11")
    assert python("-P", "-m", "gnnprof", "inner/probe.py") == python("-P", "inner/probe.py")


@pytest.mark.parametrize("name", ENDINGS)
def test_endings_are_those_of_python(python: Interpreter, name: str) -> None:
    plain = python(f"{name}.py")
    assert python("-m", "gnnprof", f"{name}.py") == plain
    expected = {"status": 3, "exit": 0, "threads": 0, "interrupt": -2}
    assert plain[0] == expected.get(name, 1)


def test_error_of_a_module_is_shown_without_our_frames(python: Interpreter) -> None:
    status, out, error = python("-m", "error")
    own_frames = re.compile(r'  File "<frozen runpy>".*\n')
    assert python("-m", "gnnprof", "-m", "error") == (status, out, own_frames.sub("", error))


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (
            "nowhere.py",
            2,
            "can't open file '{cwd}/nowhere.py': [Errno 2] No such file or directory",
        ),
        ("inner", 1, "can't find '__main__' module in '{cwd}/inner'"),
        ("-m nowhere", 1, "No module named nowhere"),
        ("-m nowhere.inside", 1, "No module named nowhere.inside"),
        ("-m inner", 1, "No module named inner.__main__"),
    ],
)
def test_what_cannot_be_started(
    python: Interpreter, command: str, status: int, message: str
) -> None:
    assert python(*command.split())[0] == status
    result = python("-m", "gnnprof", *command.split())
    assert result == (status, "", f"gnnprof: {message.format(cwd=python.cwd)}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no script given"),
        (["run"], "no script given"),
        (["-m"], "-m needs the name of a module"),
        (["--profile", "x.py"], "unknown option '--profile'; arguments of the script go after it"),
    ],
)
def test_wrong_command_lines(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr() == ("", f"gnnprof: {message}; see gnnprof --help\n")


@pytest.mark.parametrize("before", [[], ["run"]])
def test_help_and_version(before: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*before, "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: gnnprof [run] SCRIPT [ARGUMENT ...]\n")
    assert main([*before, "--version"]) == 0
    assert capsys.readouterr().out == f"gnnprof {gnnprof.__version__}\n"


# -- imports ---------------------------------------------------------------------------------------

EXPECTED_FORMS = {
    "timeit": "gnnprof",
    "function kept": "gnnprof",
    "one package": True,
    "submodules": [f"gnnprof.{name}" for name in SUBMODULES],
    "same submodules": True,
    "attribute": "gnnprof.profiler",
    "from": ["gnnprof.utils", "gnnprof.nvtx"],
    "specs": ["gnnprof", "gnnprof.profiler"],
    "names": ["gnnprof", "gnnprof.profiler"],
}


@pytest.mark.parametrize("early", [False, True])
def test_every_form_of_import_gives_gnnprof(
    scripts: Path, packages: Path, tmp_path: Path, early: bool
) -> None:
    """Also when something, here a sitecustomize, imported torch_geometric before the runner."""
    write(tmp_path, script=f"NAMES, EARLY = {SUBMODULES}, {early}\n" + FORMS)
    if early:
        write(tmp_path, sitecustomize="import torch_geometric.profile.nvtx\n")
    python = Interpreter(scripts, tmp_path, packages)
    status, out, error = python("-m", "gnnprof", str(tmp_path / "script.py"))
    assert (status, error) == (0, "")
    assert json.loads(out) == EXPECTED_FORMS


def test_plain_python_still_gives_the_reference(python: Interpreter) -> None:
    """The stand-ins would show it if the runner had no effect."""
    assert (
        python("-c", "import torch_geometric as t; print(t.profile.timeit())")[1] == "reference\n"
    )


def test_the_runner_does_not_import_the_reference(python: Interpreter, tmp_path: Path) -> None:
    write(tmp_path, quiet="import sys; print([m for m in sys.modules if 'torch_geometric' in m])")
    assert python("-m", "gnnprof", str(tmp_path / "quiet.py")) == (0, "[]\n", "")


def test_an_unknown_submodule_is_an_import_error(python: Interpreter, tmp_path: Path) -> None:
    write(tmp_path, unknown="import torch_geometric.profile.nothing")
    status, _, error = python("-m", "gnnprof", str(tmp_path / "unknown.py"))
    assert status == 1
    assert error.endswith("ModuleNotFoundError: No module named 'gnnprof.nothing'\n")


def test_without_torch_geometric(packages: Path, tmp_path: Path) -> None:
    """Scripts that do not use it run, and those that do get python's own error."""
    shutil.copytree(packages / "gnnprof", tmp_path / "only/gnnprof")
    write(tmp_path, plain="print('ran')", needing="from torch_geometric.profile import timeit")
    python = Interpreter(tmp_path, tmp_path / "only")
    assert python("-S", "-m", "gnnprof", "plain.py") == (0, "ran\n", "")
    assert python("-S", "-m", "gnnprof", "needing.py") == python("-S", "needing.py")


def test_spawned_processes_get_gnnprof_too(python: Interpreter) -> None:
    plain = python("spawn.py")
    expected = "('{0}', '__mp_main__')\n('{0}', '__main__')\n"
    assert plain == (0, expected.format("reference"), "")
    assert python("-m", "gnnprof", "spawn.py") == (0, expected.format("gnnprof"), "")


REAL = """\
import sys
from torch_geometric.profile import Profiler, benchmark, classes, timeit
import torch, torch_geometric, torch_geometric.profile.benchmark
from torch_geometric.profile.utils import count_parameters
from torch_geometric.profile.profiler import format_time

with timeit(log=False) as timer:
    torch_geometric.profile.benchmark([torch.relu], (torch.ones(2),), num_steps=1)
print(*{name.__module__.split(".")[0] for name in (Profiler, benchmark, timeit, count_parameters)})
print(len(classes), timer.duration > 0, torch_geometric.__file__ is not None)
sys.exit(5)
"""


def test_real_packages(tmp_path: Path) -> None:
    write(tmp_path, real=REAL)
    python = Interpreter(tmp_path)
    status, out, error = python("-m", "gnnprof", "real.py")
    assert (status, error) == (5, "")
    lines = out.splitlines()
    assert lines[1].split() == ["|", "Name", "|", "Forward", "|"]
    assert lines[-2:] == ["gnnprof", "17 True True"]
