"""Every example of README.md and of the documentation runs, and prints what the page says.

`GNNPROF_RECORD=1 python -m pytest tests/test_examples.py` writes what was printed into the pages.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from benchmark.reporting import cpu_threads
from tests.examples import (
    PAGES,
    ROOT,
    available,
    blocks_of,
    examples_of,
    record,
    run_page,
    shape,
)

WITH_EXAMPLES = [page for page in PAGES if examples_of(page)]
LANGUAGES = {"python", "text", "console"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_examples_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Threads that wait for each other on a busy machine make figures nobody wants to print.
    with torch.random.fork_rng(devices=[]), cpu_threads(1):
        printed = {e.output: output for e, output in run_page(page) if e.output is not None}
    if os.environ.get("GNNPROF_RECORD"):
        record(page, printed)
    else:
        for block, output in printed.items():
            assert shape(output) == shape(block.text), f"{name_of(page)}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_code_block_is_found_and_says_what_it_is(page):
    text, blocks = page.read_text(encoding="utf-8"), blocks_of(page)
    markers = re.findall(r"^ *```\w+|^ *\.\. (?:code-block|code|sourcecode)::", text, re.MULTILINE)
    assert len(blocks) == len(markers)
    assert {block.language for block in blocks} <= LANGUAGES
    for block in blocks:
        if block.language == "python":
            compile(block.text, str(page), "exec")
            assert block.needs is None or available(block.needs) in (True, False)


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".rst"], ids=name_of)
def test_no_example_hides_in_an_unmarked_block(page):
    text = page.read_text(encoding="utf-8")
    endings = re.findall(r"^(?!\.\. ).*::$|^ *>>>.*", text, re.MULTILINE)  # not `.. directive::`
    assert endings == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_in_text_blocks_is_output_or_said_to_be_something_else(page):
    outputs = [example.output for example in examples_of(page)]
    assert [b for b in blocks_of(page) if b.language == "text" and b not in outputs] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_name_scripts_and_targets_that_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in blocks_of(page):
        if block.language != "console":
            continue
        for script in re.findall(r"\b(?:benchmark|docs|tests)/[\w/]+\.(?:py|sh)\b", block.text):
            assert (ROOT / script).is_file(), script
        for target in re.findall(r"^(?:\$ )?make (\w+)", block.text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("GCN   |  7.1 | 191.861us |  2.558ms", ["GCN | # | # | #"]),
        ("------|------", ["|"]),
        ("Total: 2.7ms, covers 100.00%\n\n", ["Total: #, covers #%"]),
        ("  0 (GCNConv)", ["# (GCNConv)"]),
    ],
)
def test_shape_drops_figures_and_spacing_only(output, expected):
    assert shape(output) == expected
