"""The flags of the drivers, in groups that each script puts together."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.arguments import COUNT, NON_NEGATIVE_INT, POSITIVE, add_switch, strict_bool
from benchmark.drivers.settings import CSV_KINDS

DEVICES = "cpu, cuda, cuda:1, xpu, mps"
"""What `--device` takes, for `--help`."""


class Numbers(argparse.Action):
    """Collects `10`, `10 5`, `[10,5]` and `[[10,5]]`-like text into one flat list of integers."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the numbers of one flag."""
        numbers: list[int] = []
        for text in values:
            numbers += _numbers_in(parser, option_string, text)
        setattr(namespace, self.dest, numbers)


def _numbers_in(parser: argparse.ArgumentParser, flag: str | None, text: str) -> list[int]:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    if any(type(number) is not int for number in found):
        parser.error(f"argument {flag}: {text!r} is neither a whole number nor a list of them")
    return found


def steps(text: str) -> int | None:
    """Read `--num-steps`: -1 is all of the data."""
    return None if text.strip() == "-1" else int(COUNT(text))


def driver_parser(
    description: str | None, defaults: Mapping[str, Any], *, devices: str = DEVICES
) -> argparse.ArgumentParser:
    """Return a parser with the flags that every driver shares.

    Args:
        description: What the script does, for `--help`.
        defaults: Default of `Settings` fields, for what differs between drivers: the axes,
            `num_neighbors`, `num_epochs` and `warmup`.
        devices: What `--device` takes, for `--help`.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    _add_axes(parser, defaults)
    _add_sampling(parser, defaults)
    _add_way(parser, defaults)
    add_profiling_flags(parser)
    _add_tables(parser)
    add_place_flags(parser, devices=devices)
    return parser


def _add_axes(parser: argparse.ArgumentParser, defaults: Mapping[str, Any]) -> None:
    group = parser.add_argument_group("cases: every combination of")
    words = {
        "--datasets --dataset": "data sets; '-like' is a generated stand-in",
        "--models --model": "edge_cnn, gat, gcn, pna, sage; rgat, rgcn for heterogeneous graphs",
    }
    numbers = {
        "--batch-sizes --eval-batch-sizes --batch-size": "seed nodes per batch",
        "--num-layers": "layers of the model",
        "--hidden-channels --num-hidden-channels": "width of the hidden layers",
    }
    for flags, meaning in words.items():
        _add_list(group, flags, str, meaning, defaults)
    for flags, meaning in numbers.items():
        _add_list(group, flags, COUNT, meaning, defaults)


def _add_list(group: Any, flags: str, kind: Any, meaning: str, defaults: Mapping[str, Any]) -> None:
    names = flags.split()
    dest = names[0].removeprefix("--").replace("-", "_")
    default = defaults[dest]
    shown = " ".join(map(str, default))
    group.add_argument(
        *names,
        nargs="+",
        type=kind,
        dest=dest,
        default=tuple(default),
        metavar="NAME" if kind is str else "N",
        help=f"{meaning} (default: {shown})",
    )


def _add_sampling(parser: argparse.ArgumentParser, defaults: Mapping[str, Any]) -> None:
    group = parser.add_argument_group("sampling and loading")
    group.add_argument(
        "--num-neighbors",
        "--hetero-num-neighbors",
        nargs="+",
        action=Numbers,
        dest="num_neighbors",
        default=tuple(defaults["num_neighbors"]),
        metavar="N",
        help="neighbours per hop: 10, or one per layer (15 10 or [15,10]); -1: all "
        f"(default: {' '.join(map(str, defaults['num_neighbors']))})",
    )
    group.add_argument(
        "--num-steps",
        type=steps,
        default=defaults.get("num_steps"),
        metavar="N",
        help=f"batches per epoch; -1: all of the data (default: {defaults.get('num_steps') or -1})",
    )
    add_worker_flags(parser)


def add_worker_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the loader's processes."""
    group = parser.add_argument_group("loader processes")
    group.add_argument(
        "--num-workers", type=NON_NEGATIVE_INT, default=0, help="loader processes (default: 0)"
    )
    add_switch(
        parser, "--filter-per-worker", "let the workers gather the features, too, not only sample"
    )
    add_switch(parser, "--cpu-affinity", "bind each loader worker to a CPU of its own")
    group.add_argument(
        "--loader-cores",
        nargs="+",
        type=NON_NEGATIVE_INT,
        default=(),
        metavar="CPU",
        help="those CPUs, one per worker (default: the first that this process may use)",
    )


def _add_way(parser: argparse.ArgumentParser, defaults: Mapping[str, Any]) -> None:
    group = parser.add_argument_group("how to run")
    group.add_argument(
        "--num-epochs",
        type=COUNT,
        default=defaults["num_epochs"],
        help="epochs or passes to time, each by itself (default: %(default)s)",
    )
    group.add_argument(
        "--warmup",
        type=NON_NEGATIVE_INT,
        default=defaults["warmup"],
        help="epochs or passes before, in no timing (default: %(default)s)",
    )
    group.add_argument(
        "--num-heads", type=COUNT, default=2, help="heads of gat and rgat (default: %(default)s)"
    )
    add_switch(parser, "--full-batch", "the whole graph at once, without sampling")
    add_switch(parser, "--use-sparse-tensor", "edges as a sparse CSR matrix")
    add_switch(parser, "--trim", "leave out the nodes that later layers do not need")
    add_switch(parser, "--evaluate", "tell the accuracy, outside of the timings")
    add_switch(parser, "--bf16", "autocast to bfloat16")
    add_switch(parser, "--compile", "torch.compile the model")


def add_profiling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the profile that is taken after the timing."""
    group = parser.add_argument_group("profiling, after the timing")
    add_switch(parser, "--profile", "profile some batches: op table, layer table, trace")
    group.add_argument(
        "--profile-steps", type=COUNT, default=5, help="batches in it (default: %(default)s)"
    )
    group.add_argument(
        "--export-chrome-trace",
        nargs="?",
        type=strict_bool,
        const=True,
        default=True,
        metavar="BOOL",
        help="whether --profile leaves a trace per case in --out (default: %(default)s)",
    )


def _add_tables(parser: argparse.ArgumentParser) -> None:
    add_switch(parser, "--vtune-profile", "emit ITT ranges for VTune while the epochs are timed")
    parser.add_argument(
        "--write-csv",
        nargs="?",
        choices=CSV_KINDS,
        const="bench",
        help="also write a table: 'bench' of durations, 'prof' of layers and ops (default: none)",
    )


def add_place_flags(
    parser: argparse.ArgumentParser, *, devices: str = DEVICES, device: str | None = None
) -> None:
    """Add the flags of the data, the device and the records.

    Args:
        parser: Where to.
        devices: What `--device` takes, for `--help`.
        device: The script's default device; None is the accelerator.
    """
    group = parser.add_argument_group("data, device and records")
    group.add_argument("--root", type=Path, help="folder with real data sets (default: none)")
    add_switch(parser, "--download", "fetch real data into --root when it is not there")
    group.add_argument(
        "--scale", type=POSITIVE, help="factor on the size of stand-ins (default: each one's own)"
    )
    group.add_argument(
        "--cache", type=Path, help="folder to keep homogeneous stand-ins in (default: none)"
    )
    add_switch(parser, "--measure-load-time", "print how long the data took to load")
    group.add_argument(
        "--seed", type=NON_NEGATIVE_INT, default=0, help="seed of all draws (default: %(default)s)"
    )
    group.add_argument(
        "--device",
        default=device,
        help=f"{devices} (default: {device or 'the accelerator'})",
    )
    group.add_argument("--threads", type=COUNT, help="CPU threads (default: torch's own choice)")
    group.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder of the records; an earlier run's goes on with its missing cases (default: a "
        "new one in ./out)",
    )
    group.add_argument(
        "--no-progress-bar",
        action="store_false",
        dest="progress_bar",
        help="draw no progress bar",
    )
    add_switch(parser, "--smoke", "small stand-ins and a few steps, to see that it runs")
