"""What a script on point clouds is asked to do: its flags, and the one object that they become."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmark.arguments import (
    COUNT,
    NON_NEGATIVE,
    POSITIVE,
    add_run_flags,
    add_switch,
    number,
)
from benchmark.classification.case_help import CaseHelp
from benchmark.classification.training import Plan
from benchmark.point_sets import POINT_SET_NAMES

SMOKE_EPOCHS = 2
SMOKE_CLOUDS = 12
SMOKE_SCALE = 0.023  # the least there is
SMOKE_POINTS = 256  # PointCNN looks at 32 neighbours after sampling twice


@dataclass(frozen=True)
class Settings:
    """What was asked for, read once from the command line; the fields are the flags.

    Attributes:
        scale: Factor on the number of clouds of a stand-in; None for real data.
        max_clouds: How many clouds to train on, and to test on, at most; None takes all.
    """

    dataset: str
    root: Path | None
    download: bool
    scale: float | None
    num_points: int
    max_clouds: int | None
    epochs: int
    batch_size: int
    lr: float
    lr_decay_factor: float
    lr_decay_step_size: int
    weight_decay: float
    inference: bool
    profile: bool
    bf16: bool
    compile: bool
    seed: int
    device: str | None
    threads: int | None
    json: Path | None
    smoke: bool

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Settings:
        """Return the settings, cut down to a few small clouds under `--smoke`."""
        flags = {field.name: vars(args)[field.name] for field in dataclasses.fields(cls)}
        shrinks = args.dataset.lower().endswith("-like")
        if shrinks and args.scale is None:
            flags["scale"] = args.default_scale
        settings = cls(**flags)
        if not settings.smoke:
            return settings
        return dataclasses.replace(
            settings,
            epochs=min(settings.epochs, SMOKE_EPOCHS),
            batch_size=min(settings.batch_size, 8),
            num_points=min(settings.num_points, SMOKE_POINTS),
            max_clouds=min(settings.max_clouds or SMOKE_CLOUDS, SMOKE_CLOUDS),
            scale=min(settings.scale or 1.0, SMOKE_SCALE) if shrinks else settings.scale,
        )

    def plan(self) -> Plan:
        """Return how to train."""
        return Plan(
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            lr_decay_factor=self.lr_decay_factor,
            lr_decay_step_size=self.lr_decay_step_size,
        )

    @property
    def task(self) -> str:
        """'training' or 'inference'."""
        return "inference" if self.inference else "training"


def points_parser(
    description: str | None,
    *,
    epochs: int,
    batch_size: int,
    scale: float,
    num_points: int = 256,
    least_points: int = 1,
    lr: float = 0.001,
) -> argparse.ArgumentParser:
    """Return a parser with the flags of every script on point clouds.

    Args:
        description: What the script does, for `--help`.
        epochs: Default number of epochs; the other arguments are defaults likewise.
        batch_size: Clouds per step.
        scale: Factor on the number of clouds of a stand-in.
        num_points: Points of each cloud.
        least_points: The fewest of them that the network can work with.
        lr: Step size of Adam.
    """
    parser = argparse.ArgumentParser(
        description=description,
        allow_abbrev=False,
        formatter_class=CaseHelp,
    )
    parser.set_defaults(default_scale=scale)
    _add_data_flags(parser, scale, num_points, least_points)
    group = parser.add_argument_group("training")
    flags: tuple[tuple[str, Callable[[str], float], float, str], ...] = (
        ("--epochs", COUNT, epochs, "epochs, or passes with --inference"),
        ("--batch_size", COUNT, batch_size, "clouds per step"),
        ("--lr", POSITIVE, lr, "step size of Adam"),
        ("--lr_decay_factor", POSITIVE, 0.5, "factor on the step size now and then"),
        ("--lr_decay_step_size", COUNT, 50, "epochs between two such factors"),
        ("--weight_decay", NON_NEGATIVE, 0.0, "L2 penalty on all parameters"),
    )
    for flag, kind, default, meaning in flags:
        group.add_argument(flag, type=kind, default=default, help=meaning)
    add_switch(parser, "--inference", "time forward passes of the untrained network only")
    add_switch(parser, "--profile", "then profile one step: trace file and layer table")
    add_switch(parser, "--bf16", "autocast to bfloat16")
    add_switch(parser, "--compile", "torch.compile the network")
    add_run_flags(parser)
    return parser


def _add_data_flags(
    parser: argparse.ArgumentParser, scale: float, num_points: int, least_points: int
) -> None:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--dataset",
        default="modelnet-like",
        help=f"one of {', '.join(POINT_SET_NAMES)}; '-like' is a generated stand-in",
    )
    group.add_argument("--root", type=Path, help="folder with the files of real data sets")
    add_switch(parser, "--download", "fetch real data into --root when it is not there")
    group.add_argument(
        "--scale",
        type=POSITIVE,
        default=argparse.SUPPRESS,
        help=f"factor on the number of clouds of a stand-in (default: {scale:g})",
    )
    parser.set_defaults(scale=None)
    group.add_argument(
        "--num_points",
        type=number(int, least=least_points),
        default=num_points,
        help="points of each cloud; 1024 in PyG's",
    )
    group.add_argument(
        "--max_clouds", type=COUNT, help="take no more clouds than these to train on, and to test"
    )
