"""What the loader benchmark is asked to do, and the cases that this makes."""

from __future__ import annotations

import argparse
import ast
import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from benchmark.arguments import COUNT, add_switch
from benchmark.drivers.cases import key_of
from benchmark.drivers.flags import (
    Numbers,
    add_place_flags,
    add_profiling_flags,
    add_worker_flags,
    steps,
)
from benchmark.drivers.graphs import canonical_name, is_heterogeneous_set
from benchmark.drivers.settings import (
    CommonSettings,
    filled,
    refuse_bad_loading,
    refuse_bad_neighbors,
)

Hops = tuple[int, ...]

DATASETS = ("arxiv-like", "products-like", "mag-like")
BATCH_SIZES = (1024,)
EVAL_BATCH_SIZES = (2048,)
HOMOGENEOUS_HOPS: tuple[Hops, ...] = ((10, 5), (15, 10, 5))
HETEROGENEOUS_HOPS: tuple[Hops, ...] = ((5,), (10, 5))

SMOKE: dict[str, Any] = {
    "batch_sizes": (32,),
    "eval_batch_sizes": (32,),
    "homogeneous_hops": ((3, 2),),
    "heterogeneous_hops": ((3, 2),),
    "num_steps": 2,
    "runs": 1,
    "profile_steps": 1,
}


@dataclass(frozen=True, kw_only=True)
class LoaderSettings(CommonSettings):
    """What to load, how often and with which processes.

    Attributes:
        eval_batch_sizes: Batch sizes for all nodes with all their neighbours, one hop.
        homogeneous_hops: Fan-outs for graphs with one type of nodes.
        heterogeneous_hops: Fan-outs for graphs with several.
        runs: How often each case goes through the data, each time timed by itself.
        warmup: How often before, in no timing.
    """

    AXES: ClassVar[tuple[str, ...]] = (
        *("datasets", "batch_sizes", "eval_batch_sizes"),
        *("homogeneous_hops", "heterogeneous_hops"),
    )

    eval_batch_sizes: tuple[int, ...]
    homogeneous_hops: tuple[Hops, ...]
    heterogeneous_hops: tuple[Hops, ...]
    runs: int
    warmup: int


@dataclass(frozen=True)
class LoaderCase:
    """One loader.

    Attributes:
        dataset: Name of the data set.
        split: 'train' for the training nodes in random order, 'all' for all nodes in order.
        batch_size: Seed nodes per batch.
        num_neighbors: Neighbours per hop, -1 for all.
    """

    dataset: str
    split: str
    batch_size: int
    num_neighbors: Hops

    @property
    def key(self) -> str:
        """What tells this case from every other: 16 hexadecimal digits."""
        return key_of(self.to_dict())

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them."""
        return {**asdict(self), "num_neighbors": list(self.num_neighbors)}

    def file_parts(self) -> tuple[str, ...]:
        """Return the parts of the name of a file that belongs to this case."""
        hops = "_".join(map(str, self.num_neighbors))
        return ("loader", self.dataset, self.split, str(self.batch_size), hops)

    def __str__(self) -> str:
        nodes = "training nodes" if self.split == "train" else "all nodes"
        return (
            f"{self.dataset}: {nodes}, batch size {self.batch_size}, neighbours "
            f"{list(self.num_neighbors)}"
        )


def cases_of(settings: LoaderSettings) -> list[LoaderCase]:
    """Return the cases in the order to run them.

    Raises:
        ValueError: If a data set is unknown, or there is nothing to do.
    """
    cases: dict[LoaderCase, None] = {}  # as an ordered set
    for name in map(canonical_name, settings.datasets):
        of_both = (settings.homogeneous_hops, settings.heterogeneous_hops)
        for hops in of_both[is_heterogeneous_set(name)]:
            for batch_size in settings.batch_sizes:
                cases[LoaderCase(name, "train", batch_size, hops)] = None
        for batch_size in settings.eval_batch_sizes:
            cases[LoaderCase(name, "all", batch_size, (-1,))] = None
    if not cases:
        raise ValueError("no batch size is given; give --batch-sizes or --eval-batch-sizes.")
    return list(cases)


def loader_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the loader benchmark."""
    parser = argparse.ArgumentParser(
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("cases")
    group.add_argument(
        "--datasets",
        "--dataset",
        nargs="+",
        default=DATASETS,
        metavar="NAME",
        help=f"data sets; '-like' is a generated stand-in (default: {' '.join(DATASETS)})",
    )
    for flag, default, meaning in (
        ("--batch-sizes", BATCH_SIZES, "of training nodes"),
        ("--eval-batch-sizes", EVAL_BATCH_SIZES, "of all nodes, with all neighbours of one hop"),
    ):
        group.add_argument(
            flag,
            nargs="*",
            action=Numbers,
            default=default,
            metavar="N",
            help=f"seed nodes per batch {meaning}: 512 1024 or [512,1024]; nothing or []: none "
            f"(default: {' '.join(map(str, default))})",
        )
    for kind, hops in (("homo", HOMOGENEOUS_HOPS), ("hetero", HETEROGENEOUS_HOPS)):
        shown = str([list(h) for h in hops]).replace(" ", "")
        group.add_argument(
            f"--{kind}-neighbor-sizes",
            f"--{kind}-neighbor_sizes",
            type=fan_outs,
            dest=f"{kind}geneous_hops",
            default=hops,
            metavar="LISTS",
            help=f"neighbours per hop, one list per case (default: {shown})",
        )
    group.add_argument("--runs", type=COUNT, default=6, help="timed runs (default: %(default)s)")
    group.add_argument("--warmup", type=int, default=1, help="runs before (default: %(default)s)")
    group.add_argument(
        "--num-steps", type=steps, metavar="N", help="batches per run; -1: all (default: -1)"
    )
    group.add_argument(
        "--sampler",
        choices=("auto", "pyg", "torch"),
        default="auto",
        help="PyG's own needs pyg_lib or torch_sparse; 'auto' takes it where it is (default: auto)",
    )
    add_switch(parser, "--use-sparse-tensor", "make a sparse CSR matrix of each batch's edges")
    add_worker_flags(parser)
    add_profiling_flags(parser)
    add_place_flags(parser, device="cpu")
    return parser


def fan_outs(text: str) -> tuple[Hops, ...]:
    """Read `[[10,5],[15,10,5]]`: one list of neighbours per hop for each case."""
    try:
        value = ast.literal_eval(text)
        found = tuple(tuple(hops) for hops in value)
    except (SyntaxError, TypeError, ValueError):
        found = ((),)
    if not all(hops and all(type(number) is int for number in hops) for hops in found):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of lists of whole numbers; give one such as [[10,5],[15,10,5]]"
        )
    return found


def settings_from(args: argparse.Namespace) -> LoaderSettings:
    """Turn parsed flags into settings, cut down to a few seconds under `--smoke`.

    Raises:
        ValueError: If flags contradict each other or mean nothing.
    """
    settings = filled(LoaderSettings, "loader", args)
    if settings.smoke:
        settings = dataclasses.replace(settings, **_small(settings))
    refuse_bad_loading(settings)
    for flag in ("batch_sizes", "eval_batch_sizes"):
        for wrong in (size for size in getattr(settings, flag) if size < 1):
            name = flag.replace("_", "-")
            raise ValueError(f"--{name}={wrong}: give numbers of at least 1.")
    if settings.warmup < 0:
        raise ValueError(f"--warmup={settings.warmup}: give a number of at least 0.")
    for hops in (*settings.homogeneous_hops, *settings.heterogeneous_hops):
        refuse_bad_neighbors(hops)
    return settings


def _small(settings: LoaderSettings) -> dict[str, Any]:
    """Return the smoke values for what is not empty."""

    def wanted(name: str) -> bool:
        value: Sequence[object] | int | None = getattr(settings, name)
        return value is None or isinstance(value, int) or bool(value)

    return {name: value for name, value in SMOKE.items() if wanted(name)}
