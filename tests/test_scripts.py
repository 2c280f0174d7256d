"""Every benchmark script has a smoke size, and a test file that runs it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from benchmark import reporting

TESTS = Path(__file__).parent
BENCHMARK = TESTS.parent / "benchmark"

RUN_IN = {
    "": {"demo": "test_demo", "overhead": "test_overhead"},
    "citation": {"accuracy": "test_accuracy", "*": "test_citation"},
    "points": {"*": "test_points"},
    "kernel": {"*": "test_kernel"},
    "loader": {"*": "test_loader"},
    "training": {"*": "test_drivers"},
    "inference": {"*": "test_drivers"},
    "multi_gpu": {"*": "test_multi_gpu"},
    "compile": {
        "experiment": "test_compile_study",
        "sweep": "test_compile_study",
        "table": "test_compile_table",
    },
}
"""Folder -> script -> the test file that runs it in smoke size; '*' is all others of the folder."""

NOT_BENCHMARKS = {
    "compile/analyze.py": "reads records; test_analyze runs it on made ones",
    "compile/child.py": "a process of the sweep; test_experiment runs it",
    "compile/warm.py": "a process of the sweep; test_experiment runs it",
}


def scripts() -> list[Path]:
    return [
        file
        for file in sorted(BENCHMARK.rglob("*.py"))
        if '__name__ == "__main__"' in file.read_text(encoding="utf-8")
        and str(file.relative_to(BENCHMARK)) not in NOT_BENCHMARKS
    ]


def name_of(file: Path) -> str:
    return str(file.relative_to(BENCHMARK).with_suffix("")).replace("/", ".")


def test_what_is_no_benchmark_exists():
    assert all((BENCHMARK / name).is_file() for name in NOT_BENCHMARKS)


@pytest.mark.parametrize("file", scripts(), ids=name_of)
def test_a_test_file_runs_the_script(file):
    folder = str(file.parent.relative_to(BENCHMARK)).removeprefix(".")
    assert folder in RUN_IN, "name the test file that runs the scripts of the new folder"
    of_folder = RUN_IN[folder]
    test_file = of_folder.get(file.stem) or of_folder.get("*")
    assert test_file, "name the test file that runs the new script"
    text = (TESTS / f"{test_file}.py").read_text(encoding="utf-8")
    assert "--smoke" in text
    assert file.stem in text or "glob(" in text, f"{test_file}.py never names {file.name}"


# Imported here, because the first import of some libraries adds warning filters.
MODULES = {
    name_of(file): importlib.import_module(f"benchmark.{name_of(file)}") for file in scripts()
}


@pytest.mark.parametrize("name", MODULES)
def test_the_script_has_a_smoke_size(name, capsys):
    with pytest.raises(SystemExit) as done:
        MODULES[name].main(["--help"])
    assert done.value.code == 0
    assert "--smoke" in capsys.readouterr().out


MAKES_ITS_OWN = ("demo", "overhead", "compile.table")
SPANS_SETS_ONLY = ("compile.sweep",)  # which has --datasets


@pytest.mark.parametrize("name", MODULES)
def test_the_script_takes_a_data_set_or_is_named_as_an_exception(name, capsys):
    with pytest.raises(SystemExit):
        MODULES[name].main(["--help"])
    flags = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert ("--dataset" in flags) == (name not in (*MAKES_ITS_OWN, *SPANS_SETS_ONLY))
    assert ("--datasets" in flags) >= (name in SPANS_SETS_ONLY)
    for file in ("benchmark/README.md", "docs/source/data.rst"):
        text = (BENCHMARK.parent / file).read_text(encoding="utf-8")
        exceptions = " ".join(text.split()).split("takes `")[1].split(" own")[0]
        if name in MAKES_ITS_OWN:
            assert f"{name.replace('.', '/')}.py`" in exceptions, f"{file} does not name it"


@pytest.mark.parametrize("name", ["citation.gcn", "kernel.main_performance", "points.point_net"])
def test_a_profile_needs_a_folder_for_its_trace(monkeypatch, capsys, name):
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reporting.tempfile, "TemporaryFile", refuse)
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(f"benchmark.{name}").main(["--smoke", "--profile"])
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--profile leaves its trace in the current folder, which cannot be written to" in err
