"""Flags that the benchmark scripts share, and the strict types of their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from benchmark.datasets import NAMES

TRUE_WORDS = ("true", "1", "yes")
FALSE_WORDS = ("false", "0", "no")


def strict_bool(text: str) -> bool:
    """Read the value of a switch; unlike `bool`, 'False' is false and other words are errors."""
    word = text.lower()
    if word not in TRUE_WORDS + FALSE_WORDS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return word in TRUE_WORDS


def number(
    kind: type[int] | type[float], *, least: float, below: float = math.inf, open_end: bool = False
) -> Callable[[str], float]:
    """Make the type of a flag whose value lies in a range.

    Args:
        kind: `int` or `float`.
        least: The smallest value allowed.
        below: The first value too large.
        open_end: Whether `least` itself is already too small.
    """
    lower = f"above {least}" if open_end else f"at least {least}"
    allowed = lower if below == math.inf else f"{lower} and below {below}"
    noun = "a whole number" if kind is int else "a number"

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {noun}") from None
        if not (least < value if open_end else least <= value) or not value < below:
            raise argparse.ArgumentTypeError(f"{text} is not allowed; give {noun} {allowed}")
        return value

    return parse


COUNT = number(int, least=1)
NON_NEGATIVE_INT = number(int, least=0)
POSITIVE = number(float, least=0, open_end=True)
NON_NEGATIVE = number(float, least=0)
PROBABILITY = number(float, least=0, below=1)


def add_switch(parser: argparse.ArgumentParser, flag: str, help_text: str) -> None:
    """Add a switch that takes `--flag` as well as `--flag=True`, which older scripts wrote."""
    parser.add_argument(
        flag,
        nargs="?",
        type=strict_bool,
        const=True,
        default=False,
        metavar="BOOL",
        help=f"{help_text} (default: %(default)s)",
    )


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a data set; they are the arguments of `load_dataset`."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--dataset",
        default="cora-like",
        help=f"one of {', '.join(NAMES)}; '-like' is a generated stand-in (default: %(default)s)",
    )
    group.add_argument(
        "--root", type=Path, help="folder with the raw files of real data sets (default: none)"
    )
    add_switch(parser, "--download", "fetch real data into --root when it is not there")
    group.add_argument(
        "--scale",
        type=POSITIVE,
        help="factor on the size of a stand-in (default: each one's own, 1 for most)",
    )
    group.add_argument(
        "--cache", type=Path, help="folder to keep generated stand-ins in (default: none)"
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where and how to run, and where the record goes."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--seed",
        type=NON_NEGATIVE_INT,
        default=0,
        help="run i is seeded with this plus i (default: %(default)s)",
    )
    group.add_argument("--device", help="cpu, cuda, cuda:1, xpu, mps (default: the accelerator)")
    group.add_argument("--threads", type=COUNT, help="CPU threads (default: torch's own choice)")
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write the record to a new file (default: none)"
    )
    add_switch(parser, "--smoke", "a small stand-in and a few steps, to see that it runs")
