"""Imports run one way, and the package costs little to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "gnnprof"

LEAVES = {
    "_version",
    "_files",
    "_process",
    "_time_line",
    "_statistics",
    "_records",
    "_tables",
    "_nvidia_smi",
    "_tensors",
    "_wrapping",
    "_formulas",
    "_interrupts",
    "_layer_table",
    "_tree",
    "_figures",
    "_html",
    "_merge",
    "_rank_views",
    "_speedscope",
    "_compile_records",
    "_compile_tables",
    "_compile_report",
}
CAPTURE = {
    "_device",
    "_events",
    "_attribution",
    "_tallies",
    "_rows",
    "_open_ranges",
    "_recorder",
    "_summary",
    "_work",
    "_counting",
    "_limits",
    "_markers",
    "_traces",
    "_timing",
    "_stats",
    "_isolation",
    "_dynamo",
    "_dynamo_records",
    "_compile_compare",
    "_compile_own_model",
    "_compile_workload",
    "_compile_study",
    "_compile_run",
}
DOORS = {"profile", "profiler", "benchmark", "nvtx", "utils", "compilation"}
TOP = {"__init__", "__main__", "_runner", "_report", "_rank_files"}
ALLOWED_BETWEEN_DOORS = {("profile", "utils")}
RANK = {**dict.fromkeys(LEAVES, 0), **dict.fromkeys(CAPTURE, 1), **dict.fromkeys(DOORS, 2)}
RANK |= dict.fromkeys(TOP, 3)


def imports_of(file: Path) -> set[str]:
    """Names of the gnnprof modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "gnnprof":
            found |= {alias.name for alias in node.names if (SOURCE / f"{alias.name}.py").exists()}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gnnprof."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("gnnprof.")}
    return found


@pytest.mark.parametrize("file", sorted(SOURCE.glob("*.py")), ids=lambda file: file.stem)
def test_imports_run_one_way(file):
    assert file.stem in RANK, "give the new module its place in this test"
    for imported in imports_of(file):
        lower = RANK[imported] < RANK[file.stem]
        same = RANK[imported] == RANK[file.stem] and imported not in DOORS
        assert lower or same or (file.stem, imported) in ALLOWED_BETWEEN_DOORS, imported


def test_no_import_goes_in_circles():
    graph = {file.stem: imports_of(file) - {file.stem} for file in SOURCE.glob("*.py")}
    while leaves := {name for name, needs in graph.items() if not needs & set(graph)}:
        graph = {name: needs for name, needs in graph.items() if name not in leaves}
    assert not graph, f"circular imports among {sorted(graph)}"


def test_only_the_device_module_asks_for_devices():
    offenders = [
        file.stem
        for file in SOURCE.glob("*.py")
        if file.stem not in {"_device", "nvtx"} and "torch.cuda." in _code(file)
    ]
    assert not offenders


def _code(file: Path) -> str:
    """A file's code without its strings and comments."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return "\n".join(ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute))


PROBE = """
import sys, time
import torch
start = time.perf_counter()
import gnnprof
spent = time.perf_counter() - start
heavy = {"torch_geometric", "pandas", "matplotlib", "plotly", "scipy", "dgl", "torch._dynamo"}
heavy.add("gnnprof._work")
print(spent, sorted(heavy & set(sys.modules)))
"""


def test_importing_is_cheap_and_pulls_in_nothing_heavy():
    command = [sys.executable, "-c", PROBE]
    for _ in range(3):  # a busy machine spoils single runs
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        spent, heavy = out.split(maxsplit=1)
        assert heavy.strip() == "[]"
        if float(spent) < 0.15:
            return
    assert float(spent) < 0.4


def test_only_two_modules_know_dynamo():
    users = {file.stem for file in SOURCE.glob("*.py") if "torch._dynamo" in _imported(file)}
    assert users == {"_dynamo", "_dynamo_records"}


def _imported(file: Path) -> set[str]:
    """Names of all modules that a file imports, with the packages they are in."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name[: len("torch._dynamo")] for name in names if name}


def test_the_compiler_is_imported_at_the_first_use():
    probe = (
        "import sys, gnnprof; before = 'gnnprof.compilation' in sys.modules; "
        "print(before, callable(gnnprof.compile_benchmark), 'compile_benchmark' in dir(gnnprof))"
    )
    out = subprocess.run(
        [sys.executable, "-c", probe], check=True, capture_output=True, text=True
    ).stdout
    assert out.split() == ["False", "True", "True"]
