"""Times training on sampled mini-batches: models x data sets x batch sizes x layers x widths."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import add_switch
from benchmark.drivers.flags import driver_parser
from benchmark.drivers.journal import Record
from benchmark.drivers.loop import exit_status
from benchmark.drivers.models import MODELS
from benchmark.drivers.script import run_driver, run_or_exit
from benchmark.drivers.settings import settings_from
from benchmark.drivers.training import measure_training

DEFAULTS = {
    "datasets": ("products-like", "mag-like"),
    "models": MODELS,
    "batch_sizes": (512,),
    "num_layers": (2,),
    "hidden_channels": (64,),
    "num_neighbors": (10,),
    "num_steps": 4,
    "num_epochs": 6,
    "warmup": 1,
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the script's flags."""
    made = driver_parser(__doc__, DEFAULTS)
    add_switch(made, "--save-model", "write the trained parameters of each case into --out")
    return made


def main(argv: Sequence[str] | None = None) -> list[Record]:
    """Run the script with the given arguments, by default those of the process."""
    flags = parser()
    args = flags.parse_args(argv)
    return run_or_exit(flags, lambda: run_driver(settings_from("training", args), measure_training))


if __name__ == "__main__":
    raise SystemExit(exit_status(main()))
