"""The documentation names everything, and what it reports of both packages is what they do."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch_geometric.nn  # here: the first import sets warning filters
from benchmark.reporting import cpu_threads

import gnnprof

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "source"
DIFFERENCES = (SOURCE / "differences.rst").read_text(encoding="utf-8")

RECORDED_WITH = {"torch": "2.13.0", "torch_geometric": "2.8.1"}
VARYING = {"share-in-rows"}
"""Cases whose figures differ from run to run."""
SLOW = {"compiled-model", "share-in-rows"}


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("side_by_side", ROOT / "docs/side_by_side.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SIDE_BY_SIDE = load_script()


def recorded() -> dict[str, str]:
    text = (SOURCE / "side_by_side.txt").read_text(encoding="utf-8")
    return {case.partition(":")[0]: case for case in text.strip().split("\n\n")}


def recorded_answers(name: str) -> dict[str, str]:
    """What each package did, as the record has it."""
    both = recorded()[name].partition("\n  torch_geometric.profile:")[2]
    reference, ours = both.split("\n  gnnprof:")
    return {SIDE_BY_SIDE.REFERENCE: reference, "gnnprof": ours}


def comparable(answer: str, name: str, package: str) -> str:
    """An answer without its line breaks, and without what may differ."""
    answer = " ".join(answer.split())
    if package == SIDE_BY_SIDE.REFERENCE:  # its messages come from torch and Python
        answer = re.sub(r"^([A-Z]\w*Error): .*", r"\1", answer)
    return re.sub(r"\d+", "#", answer) if name in VARYING else answer


def test_the_reference_page_lists_every_public_name():
    page = (SOURCE / "modules" / "profile.rst").read_text(encoding="utf-8")
    listed = re.findall(r"^(?:   |\.\. py:data:: gnnprof\.)(\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(gnnprof.__all__)


def test_every_page_is_in_a_table_of_contents():
    entries = re.findall(
        r"^   ([\w/]+)$", (SOURCE / "index.rst").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = {
        page.relative_to(SOURCE).with_suffix("").as_posix()
        for page in SOURCE.rglob("*.rst")
        if not {"generated", "_templates"} & set(page.parts)
    }
    assert set(entries) >= pages - {"index"}


def test_every_difference_was_recorded_and_is_on_the_page():
    shown = re.findall(r"^\.\. seen:: (.*)$", DIFFERENCES, re.MULTILINE)
    names = [name for line in shown for name in line.split()]
    assert sorted(names) == sorted(SIDE_BY_SIDE.CASES) == sorted(recorded())


def test_the_versions_on_the_page_are_those_of_the_record():
    for version in RECORDED_WITH.values():
        assert version in DIFFERENCES


def test_the_cases_that_the_readme_names_exist():
    table = re.findall(r"^\|.*\| ([^|]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    names = {name for cell in table[1:] for name in re.findall(r"`([\w-]+)`", cell)}
    assert names
    assert names <= set(SIDE_BY_SIDE.CASES)


def test_the_readme_quotes_the_recorded_shares():
    shares = re.findall(r"(\d+)%", recorded_answers("share-in-rows")[SIDE_BY_SIDE.REFERENCE])
    assert f"{', '.join(shares)} %" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in SIDE_BY_SIDE.CASES
    ],
)
def test_both_packages_still_do_what_was_recorded(name):
    installed = {
        "torch": torch.__version__.partition("+")[0],
        "torch_geometric": torch_geometric.__version__,
    }
    if installed != RECORDED_WITH:
        pytest.skip(f"recorded with {RECORDED_WITH}")
    before = recorded_answers(name)
    # What crashes is not done again: it would take the test with it.
    for package in ("gnnprof",) if name in SIDE_BY_SIDE.CRASHING else SIDE_BY_SIDE.PACKAGES:
        # The reference counts what other tests left compiled in the process, and fails on it.
        see = SIDE_BY_SIDE.seen_apart if name == "gc-views" else SIDE_BY_SIDE.seen
        with cpu_threads(1):
            now = see(name, package)
        assert comparable(now, name, package) == comparable(before[package], name, package)


def test_the_readme_quotes_the_study_as_it_is_recorded():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    study = " ".join((SOURCE / "study.txt").read_text(encoding="utf-8").split())
    quoted = re.search(
        r"inference (\S+) \((.*?)\) and training (\S+) \((.*?)\) as fast .*?"
        r"over (\d+) cases, and DGL's inference (\S+) \((.*?)\), over (\d+):",
        readme,
    )
    assert quoted is not None
    pyg, interval, training, its_interval, cases, dgl, dgl_interval, dgl_cases = quoted.groups()
    setting = r"\(cpu, 1 thread, float32, full graph\): default"
    for library, phase, figure, ends, count in (
        ("PyG", "inference", pyg, interval.removeprefix("95 % interval "), cases),
        ("PyG", "training", training, its_interval, cases),
        ("DGL", "inference", dgl, dgl_interval, dgl_cases),
    ):
        said = rf"{library}, {phase} {setting} {figure} \(95 % interval {ends}\): .*? over {count} "
        assert re.search(said + "cases", study), (library, phase)
