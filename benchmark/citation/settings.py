"""What a citation script is asked to do: its flags, and the one object that they become."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.arguments import (
    COUNT,
    NON_NEGATIVE,
    NON_NEGATIVE_INT,
    POSITIVE,
    add_data_flags,
    add_run_flags,
    add_switch,
)

SMOKE_EPOCHS = 4
SMOKE_SCALE = 0.05

EARLY_STOPPING = (
    "in the second half of the epochs, stop a run when the validation loss is above its mean over "
    "so many epochs before; 0: never"
)

MODEL_FLAGS = {
    "hidden": "width of the hidden layer; of one head in a GAT",
    "dropout": "share of the features that dropout sets to zero",
    "skip_dropout": "share of the features that dropout sets to zero on the skip connections",
    "heads": "attention heads of the first layer",
    "output_heads": "attention heads of the last layer",
    "num_hops": "order of the Chebyshev polynomials",
    "num_stacks": "parallel stacks of each layer",
    "num_layers": "ARMA iterations in each layer",
    "K": "propagation steps",
    "alpha": "teleport probability of personalised PageRank",
}
"""What the flags mean that a script adds: the sizes of its network."""


class CitationHelp(argparse.HelpFormatter):
    """Adds to `--help` what the flags in `MODEL_FLAGS` mean, with their defaults."""

    def add_argument(self, action: argparse.Action) -> None:
        """List one flag."""
        if action.help is None and action.dest in MODEL_FLAGS:
            action.help = f"{MODEL_FLAGS[action.dest]} (default: %(default)s)"
        super().add_argument(action)


@dataclass(frozen=True)
class Settings:
    """What was asked for, read once from the command line.

    The fields are the flags of `citation_parser`; `model` holds the flags that a script adds, which
    are the keyword arguments of its network.
    """

    dataset: str
    root: Path | None
    download: bool
    scale: float | None
    cache: Path | None
    random_splits: bool
    no_normalize_features: bool
    runs: int
    epochs: int
    lr: float
    weight_decay: float
    early_stopping: int
    inference: bool
    profile: bool
    bf16: bool
    compile: bool
    seed: int
    device: str | None
    threads: int | None
    json: Path | None
    smoke: bool
    model: Mapping[str, Any]

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Settings:
        """Return the settings, cut down to a few steps on a small graph under `--smoke`."""
        common = {field.name for field in dataclasses.fields(cls)} - {"model"}
        flags = vars(args)
        settings = cls(
            **{name: flags[name] for name in common},
            model={name: value for name, value in flags.items() if name not in common},
        )
        if not settings.smoke:
            return settings
        shrinks = settings.dataset.lower().endswith("-like")
        return dataclasses.replace(
            settings,
            runs=1,
            epochs=min(settings.epochs, SMOKE_EPOCHS),
            scale=min(settings.scale or 1.0, SMOKE_SCALE) if shrinks else settings.scale,
        )


def citation_parser(
    description: str | None,
    *,
    runs: int,
    epochs: int,
    lr: float,
    weight_decay: float,
    early_stopping: int,
) -> argparse.ArgumentParser:
    """Return a parser with the flags of every citation script.

    Args:
        description: What the script does, for `--help`.
        runs: Default number of runs: as many as end within three minutes on two cores.
        epochs: Default number of epochs; the other arguments are defaults likewise.
        lr: Step size of Adam.
        weight_decay: L2 penalty on all parameters.
        early_stopping: How many epochs back the validation loss is compared with; 0 is off.
    """
    parser = argparse.ArgumentParser(
        description=description, allow_abbrev=False, formatter_class=CitationHelp
    )
    add_data_flags(parser)
    add_switch(parser, "--random_splits", "draw another public-style split in each run")
    add_switch(parser, "--no_normalize_features", "do not divide feature rows by their sum")
    group = parser.add_argument_group("training")
    flags: tuple[tuple[str, Callable[[str], float], float, str], ...] = (
        ("--runs", COUNT, runs, "trainings of a fresh network"),
        ("--epochs", COUNT, epochs, "training steps per run, at most"),
        ("--lr", POSITIVE, lr, "step size of Adam"),
        ("--weight_decay", NON_NEGATIVE, weight_decay, "L2 penalty on all parameters"),
        ("--early_stopping", NON_NEGATIVE_INT, early_stopping, EARLY_STOPPING),
    )
    for flag, kind, default, meaning in flags:
        group.add_argument(
            flag, type=kind, default=default, help=f"{meaning} (default: %(default)s)"
        )
    add_switch(parser, "--inference", "time forward passes of the untrained network only")
    add_switch(parser, "--profile", "then profile one step: trace file and layer table")
    add_switch(parser, "--bf16", "autocast to bfloat16")
    add_switch(parser, "--compile", "torch.compile the network")
    add_run_flags(parser)
    return parser
