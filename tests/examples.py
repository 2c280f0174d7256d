"""Finds the code blocks of README.md and of the documentation, and runs them.

The blocks of a page share one namespace and run in order, in an empty folder. A block of `text`
right after one of `python` is what that block prints; it is compared by its shape, that is without
the figures and the spacing.

A python block that cannot run everywhere says so in its first line: `# needs CUDA`, `# needs XPU`.
"""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
import torch_geometric.datasets  # here: the first import sets warning filters
import torch_geometric.nn  # noqa: F401

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "source"
PAGES = (
    ROOT / "README.md",
    *(
        page
        for page in sorted(SOURCE.rglob("*.rst"))
        if not {"generated", "_templates"} & {*page.parts}
    ),
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(
    r"^\.\. code-block:: *(\S*)\n((?:   :.*\n)*)\n((?:(?:   .*)?\n)+)", re.MULTILINE
)
_FIGURE = re.compile(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?( ?(us|ms|s|b|Kb|Mb|Gb)\b)?")


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
        language: As written.
        text: The content, not indented.
        start: Offset of the content in the page.
        end: Offset of the end of the content.
        line: Line of the page on which the content starts.
    """

    language: str
    text: str
    start: int
    end: int
    line: int

    @property
    def needs(self) -> str | None:
        """The device that the block says it needs."""
        found = re.match(r"# needs (\w+)\n", self.text)
        return found[1] if found else None


@dataclass(frozen=True)
class Example:
    """A python block, and the block with what it prints, if the page shows that."""

    code: Block
    output: Block | None


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    pattern, group = (_FENCE, 2) if page.suffix == ".md" else (_DIRECTIVE, 3)
    return [
        Block(
            found[1],
            textwrap.dedent(found[group]).strip("\n") + "\n",
            found.start(group),
            found.end(group),
            text.count("\n", 0, found.start(group)) + 1,
        )
        for found in pattern.finditer(text)
    ]


def examples_of(page: Path) -> list[Example]:
    """The python blocks of a page, each with the output that follows it."""
    text, blocks = page.read_text(encoding="utf-8"), blocks_of(page)
    examples = []
    for block, following in zip_longest(blocks, blocks[1:]):
        if block.language != "python":
            continue
        between = text[block.end : following.start] if following else ""
        is_output = re.fullmatch(r"(```)?\s*(```text|\.\. code-block:: text)\s*", between)
        examples.append(Example(block, following if is_output else None))
    return examples


def run_page(page: Path) -> Iterator[tuple[Example, str]]:
    """Run the examples of a page; yields each with what it printed."""
    namespace: dict[str, object] = {"__name__": "example"}
    for example in examples_of(page):
        if example.code.needs and not available(example.code.needs):
            continue
        padding = "\n" * (example.code.line - 1)  # a traceback then names the line of the page
        code = compile(padding + example.code.text, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        yield example, printed.getvalue()


def available(device: str) -> bool:
    """Whether this machine has what a block needs; an unknown device is an error."""
    return {"CUDA": torch.cuda.is_available, "XPU": torch.xpu.is_available}[device]()


def shape(output: str) -> list[str]:
    """The lines of an output without figures and spacing."""
    lines = (re.sub(r"[ -]+", " ", _FIGURE.sub("#", line)).strip() for line in output.splitlines())
    return [line for line in lines if line]


def record(page: Path, printed: dict[Block, str]) -> None:
    """Write what was printed into the page."""
    text = page.read_text(encoding="utf-8")
    for block, output in sorted(printed.items(), key=lambda item: -item[0].start):
        content = "\n".join(line.rstrip() for line in output.strip("\n").splitlines()) + "\n"
        if page.suffix == ".rst":
            content = textwrap.indent(content, "   ") + "\n"
        text = text[: block.start] + content + text[block.end :]
    page.write_text(text, encoding="utf-8")
