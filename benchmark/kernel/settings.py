"""What a script on graph classification is asked to do: its flags, and the object they become."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmark.arguments import COUNT, POSITIVE, add_run_flags, add_switch
from benchmark.classification.case_help import CaseHelp
from benchmark.classification.training import Plan
from benchmark.graph_sets import GRAPH_SET_NAMES
from benchmark.kernel.networks import NETWORKS

SMOKE_EPOCHS = 2
SMOKE_SCALE = 0.2
SMOKE_FOLDS = 3

NOT_MEASURED = (
    *("datasets", "models", "layers", "hiddens"),  # of a case there is one each
    *("root", "download", "json", "resume", "profile", "smoke", "device", "threads"),
)
"""The settings that leave a case's figures alone; device and threads are in the environment."""


@dataclass(frozen=True)
class Case:
    """What is measured at once.

    Attributes:
        dataset: Name of the data set.
        model: Name of the network, out of `NETWORKS`.
        layers: Convolutions.
        hidden: Width of the hidden layers.
    """

    dataset: str
    model: str
    layers: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.dataset} - {self.model} - {self.layers} - {self.hidden}"


@dataclass(frozen=True)
class Settings:
    """What was asked for, read once from the command line; the fields are the flags.

    Attributes:
        folds: Of the cross-validation; None for `main_performance.py`, which has none.
        warmup_profile: Epochs at the start that are in no duration.
        goal_accuracy: See `Plan`.
    """

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    layers: tuple[int, ...]
    hiddens: tuple[int, ...]
    root: Path | None
    download: bool
    scale: float | None
    epochs: int
    batch_size: int
    lr: float
    seed: int
    device: str | None
    threads: int | None
    json: Path | None
    resume: bool
    smoke: bool
    lr_decay_factor: float = 1.0
    lr_decay_step_size: int | None = None
    folds: int | None = None
    warmup_profile: int = 0
    goal_accuracy: float | None = None
    inference: bool = False
    profile: bool = False
    bf16: bool = False
    compile: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Settings:
        """Return the settings, cut down to a few steps on a few graphs under `--smoke`.

        Raises:
            ValueError: If no epoch is left after the warm-up.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        flags: dict[str, Any] = {key: value for key, value in vars(args).items() if key in names}
        for axis in ("datasets", "models", "layers", "hiddens"):
            flags[axis] = tuple(dict.fromkeys(flags[axis]))  # each once, in the order given
        settings = cls(**flags)
        if settings.smoke:
            settings = settings.small()
        if settings.warmup_profile >= settings.epochs and not settings.inference:
            raise ValueError(
                f"--warmup_profile={settings.warmup_profile} leaves none of the "
                f"{settings.epochs} epochs to time; give less, or more --epochs."
            )
        return settings

    def small(self) -> Settings:
        """Return the settings with one size of network, few graphs and few epochs."""
        epochs = min(self.epochs, SMOKE_EPOCHS)
        return dataclasses.replace(
            self,
            datasets=self.datasets[:1],
            layers=(3,),
            hiddens=(min(self.hiddens),),
            epochs=epochs,
            warmup_profile=min(self.warmup_profile, epochs - 1),
            folds=None if self.folds is None else SMOKE_FOLDS,
            scale=SMOKE_SCALE if self.scale is None else min(self.scale, SMOKE_SCALE),
        )

    def cases(self) -> Iterator[Case]:
        """Return what is to be measured, in order."""
        for dataset, model in product(self.datasets, self.models):
            for layers, hidden in product(self.layers, self.hiddens):
                yield Case(dataset, model, layers, hidden)

    def scale_of(self, dataset: str) -> float | None:
        """Return the factor on a data set's number of graphs; real sets have none."""
        return self.scale if dataset.lower().endswith("-like") else None

    def plan(self) -> Plan:
        """Return how to train."""
        return Plan(
            epochs=self.epochs,
            lr=self.lr,
            lr_decay_factor=self.lr_decay_factor,
            lr_decay_step_size=self.lr_decay_step_size,
            goal_accuracy=self.goal_accuracy,
        )

    def describe(self, case: Case) -> dict[str, object]:
        """Return all that makes a case what it is, as JSON takes it."""
        flags = dataclasses.asdict(self)
        rest = {name: value for name, value in flags.items() if name not in NOT_MEASURED}
        task = "inference" if self.inference else "training"
        return {**dataclasses.asdict(case), "task": task, **rest}


@dataclass(frozen=True)
class Defaults:
    """The defaults in which the scripts differ."""

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    layers: tuple[int, ...]
    hiddens: tuple[int, ...]
    epochs: int


def kernel_parser(description: str | None, defaults: Defaults) -> argparse.ArgumentParser:
    """Return a parser with the flags of both scripts on graph classification.

    Args:
        description: What the script does, for `--help`.
        defaults: Defaults of this script.
    """
    parser = argparse.ArgumentParser(
        description=description,
        allow_abbrev=False,
        formatter_class=CaseHelp,
    )
    _add_axes(parser, defaults)
    group = parser.add_argument_group("data")
    group.add_argument("--root", type=Path, help="folder with the files of real data sets")
    add_switch(parser, "--download", "fetch real data into --root when it is not there")
    group.add_argument(
        "--scale", type=POSITIVE, help="factor on the number of graphs of a stand-in"
    )
    group = parser.add_argument_group("training")
    flags: tuple[tuple[str, Callable[[str], float], float, str], ...] = (
        ("--epochs", COUNT, defaults.epochs, "epochs of each training"),
        ("--batch_size", COUNT, 32, "graphs per step; 128 in PyG's scripts"),
        ("--lr", POSITIVE, 0.01, "step size of Adam"),
    )
    for flag, kind, default, meaning in flags:
        group.add_argument(flag, type=kind, default=default, help=meaning)
    add_run_flags(parser)
    add_switch(parser, "--resume", "do not run cases again that are in the file of --json")
    return parser


def _add_axes(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    group = parser.add_argument_group("cases (every combination is one)")
    sets = f"some of {', '.join(GRAPH_SET_NAMES)}; '-like' is a generated stand-in"
    group.add_argument(
        "--datasets",
        "--dataset",
        nargs="+",
        default=defaults.datasets,
        type=_choice("datasets", GRAPH_SET_NAMES),
        metavar="NAME",
        help=sets,
    )
    group.add_argument(
        "--models",
        nargs="+",
        default=defaults.models,
        type=_choice("models", tuple(NETWORKS)),
        metavar="NAME",
        help=f"some of {', '.join(NETWORKS)}",
    )
    for axis, default, meaning in (
        ("--layers", defaults.layers, "numbers of convolutions"),
        ("--hiddens", defaults.hiddens, "widths of the hidden layers"),
    ):
        group.add_argument(axis, nargs="+", type=COUNT, default=default, metavar="N", help=meaning)


def _choice(what: str, names: Sequence[str]) -> Callable[[str], str]:
    known = {name.lower(): name for name in names}

    def parse(text: str) -> str:
        if text.lower() not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of the {what}: {', '.join(names)}")
        return known[text.lower()]

    return parse
