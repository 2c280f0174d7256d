"""Times inference of all nodes: layer by layer, on sampled batches, or of the whole graph.

Homogeneous models go layer by layer unless --batch-wise or --full-batch is given; heterogeneous
ones take sampled batches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import add_switch
from benchmark.drivers.flags import driver_parser
from benchmark.drivers.inference import measure_inference
from benchmark.drivers.journal import Record
from benchmark.drivers.loop import exit_status
from benchmark.drivers.models import MODELS
from benchmark.drivers.script import run_driver, run_or_exit
from benchmark.drivers.settings import settings_from

DEFAULTS = {
    "datasets": ("products-like", "mag-like"),
    "models": MODELS,
    "batch_sizes": (4096,),
    "num_layers": (2,),
    "hidden_channels": (64,),
    "num_neighbors": (10,),
    "num_epochs": 6,
    "warmup": 1,
}

SCALES = {"products-like": 0.005}
"""A pass goes over all edges once per layer; half of the set's own default keeps it short."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the script's flags."""
    made = driver_parser(__doc__, DEFAULTS)
    add_switch(made, "--batch-wise", "sampled batches instead of layer by layer")
    add_switch(made, "--cached-loader", "sample once, before the timing, and keep the batches")
    add_switch(
        made, "--reuse-device-for-embeddings", "keep embeddings on the device between layers"
    )
    made.add_argument(
        "--checkpoint",
        "--ckpt_path",
        type=Path,
        dest="checkpoint",
        metavar="FILE",
        help="parameters to load, as training_benchmark.py --save-model writes them",
    )
    return made


def main(argv: Sequence[str] | None = None) -> list[Record]:
    """Run the script with the given arguments, by default those of the process."""
    flags = parser()
    args = flags.parse_args(argv)
    return run_or_exit(
        flags, lambda: run_driver(settings_from("inference", args), measure_inference, SCALES)
    )


if __name__ == "__main__":
    raise SystemExit(exit_status(main()))
