"""Flags that the scripts of the study share, and the types of their values."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.arguments import COUNT, NON_NEGATIVE_INT, POSITIVE, PROBABILITY, add_switch
from benchmark.compile import registry
from benchmark.compile.attempt import CHILD, Options, with_absolute_paths
from benchmark.compile.case import DYNAMIC, VARIANTS
from benchmark.compile.store import OUTCOMES


def listed(kind: Callable[[str], Any] = str) -> Callable[[str], list[Any]]:
    """Make the type of a flag that takes values between commas."""

    def parse(text: str) -> list[Any]:
        return [kind(item.strip()) for item in text.split(",") if item.strip()]

    return parse


def _threads(text: str) -> Any:
    return text if text == "all" else COUNT(text)


def _fan_outs(text: str) -> list[int]:
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 15,10,5") from None


def outcomes(text: str) -> tuple[str, ...]:
    """Read outcomes between commas."""
    chosen: list[str] = listed()(text)
    for outcome in chosen:
        if outcome not in OUTCOMES:
            raise argparse.ArgumentTypeError(
                f"{outcome!r} is no outcome; give some of {', '.join(OUTCOMES)}"
            )
    return tuple(chosen)


def shard(text: str) -> tuple[int, int]:
    """Read a part such as '1/4', the first of four."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part such as 1/4 (the first of four)")
    return int(index), int(count)


@dataclass(frozen=True)
class CaseFlag:
    """A flag for one field of a case.

    Attributes:
        field: Of `Case`.
        several: Its name where it takes a list.
        kind: Reads one value.
        meaning: For `--help`.
    """

    field: str
    several: str
    kind: Callable[[str], Any]
    meaning: str

    @property
    def single(self) -> str:
        """Its name where it takes one value."""
        return f"--{self.field.replace('_', '-')}"


CASE_FLAGS = (
    CaseFlag("framework", "--frameworks", str, f"of {', '.join(registry.FRAMEWORKS)}"),
    CaseFlag("model", "--models", str, f"of {', '.join(registry.model_names())}"),
    CaseFlag("dataset", "--datasets", str, "see benchmark/compile/README.md"),
    CaseFlag("mode", "--modes", str, f"of {', '.join(registry.mode_names())}"),
    CaseFlag("dynamic", "--dynamic", str, f"of {', '.join(DYNAMIC)}"),
    CaseFlag("variant", "--variants", str, f"of {', '.join(VARIANTS)}"),
    CaseFlag("scale", "--scale", POSITIVE, "factor on the size of a stand-in"),
    CaseFlag("layers", "--layers", COUNT, "layers of the model"),
    CaseFlag("hidden", "--hidden", COUNT, "width of the hidden layers"),
    CaseFlag("heads", "--heads", COUNT, "attention heads of GAT"),
    CaseFlag("dropout", "--dropout", PROBABILITY, "share of activations set to zero"),
    CaseFlag("threads", "--threads", _threads, "CPU threads of a process, 'all' for every CPU"),
    CaseFlag("rounds", "--rounds", COUNT, "samples of each timed phase"),
    CaseFlag("epochs", "--epochs", NON_NEGATIVE_INT, "epochs to train for accuracy; 0: none"),
    CaseFlag("sizes", "--sizes", NON_NEGATIVE_INT, "graphs of other sizes fed afterwards"),
    CaseFlag("seed", "--seed", NON_NEGATIVE_INT, "of data, parameters and training"),
    CaseFlag("device", "--device", str, "cpu, cuda, cuda:1, xpu, mps"),
    CaseFlag("batch_size", "--batch-size", COUNT, "seeds, pairs, triples or graphs of a batch"),
)


def add_case_flags(group: Any, *, several: bool) -> None:
    """Add a flag for each field of a case, all of them None by default.

    Args:
        group: A parser, or a group of one.
        several: Whether they take values between commas, or only `--modes` does.
    """
    for flag in CASE_FLAGS:
        takes_list = several or flag.field == "mode"
        group.add_argument(
            flag.several if takes_list else flag.single,
            dest=flag.field,
            type=listed(flag.kind) if takes_list else flag.kind,
            metavar="LIST" if takes_list else "VALUE",
            help=flag.meaning,
        )
    group.add_argument("--replicates", type=COUNT, metavar="N", help="processes that run each case")
    group.add_argument(
        "--num-neighbors",
        type=_fan_outs,
        metavar="LIST",
        help="neighbours drawn per layer where batches are sampled, e.g. 15,10,5",
    )
    for switch, meaning in (("--amp", "bf16 autocast"), ("--sampled", "sampled batches")):
        add_switch(group, switch, meaning)


def given_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a case for which there was a flag."""
    names = [*(flag.field for flag in CASE_FLAGS), "replicates", "num_neighbors"]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {**given, **{name: True for name in ("amp", "sampled") if getattr(args, name)}}


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how cases are run, and where their records go."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--out", type=Path, default=Path("out/compile"), help="folder of the records (%(default)s)"
    )
    group.add_argument(
        "--timeout", type=POSITIVE, default=1800.0, help="seconds for one case (%(default)s)"
    )
    group.add_argument("--root", type=Path, help="folder with the raw files of real data sets")
    group.add_argument(
        "--cache", type=Path, help="folder for generated stand-ins (default: inside --out)"
    )
    group.add_argument(
        "--retry",
        type=outcomes,
        default=(),
        metavar="LIST",
        help="run cases of these outcomes again, e.g. crash,timeout",
    )
    group.add_argument(
        "--child",
        type=lambda text: tuple(shlex.split(text)),
        default=CHILD,
        metavar="COMMAND",
        help="measures one case, e.g. 'numactl -N0 python .../child.py' (default: child.py)",
    )
    add_switch(parser, "--download", "fetch real data into --root when it is not there")


def read_options(args: argparse.Namespace) -> Options:
    """Return how cases are run."""
    return with_absolute_paths(
        Options(args.timeout, args.root, args.cache, args.download, args.child)
    )
