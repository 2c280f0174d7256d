"""One experiment: one model on one data set in all modes of torch.compile, compared with eager.

    python benchmark/compile/experiment.py --framework pyg --model GCN --dataset cora-like

Writes config.json, results.json, tables.tex, run.log and recommendations.txt into a folder of its
own below --out, beside the records of the single cases. It is a small sweep: each mode is measured
in a process of its own, and what is on record is not measured again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import add_switch
from benchmark.compile import registry
from benchmark.compile.attempt import stopped_by_signals
from benchmark.compile.case import expand
from benchmark.compile.experiment_files import (
    recommendations,
    table,
    write_experiments,
)
from benchmark.compile.flags import add_case_flags, add_run_flags, given_fields, read_options
from benchmark.compile.machine import identity, noise_warning
from benchmark.compile.store import Store
from benchmark.compile.sweep import INTERRUPTED, SMOKE_BLOCK, named
from benchmark.compile.worker import entries_of, run_cases

DEFAULT: dict[str, Any] = {
    "framework": "pyg",
    "model": "GCN",
    "dataset": "cora-like",
    "mode": list(registry.mode_names()),
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_case_flags(parser.add_argument_group("experiment"), several=False)
    add_switch(parser, "--smoke", "eager and default on a small stand-in, to see that it runs")
    add_run_flags(parser)
    return parser


def run_experiment(args: argparse.Namespace) -> int:
    """Measure what is not on record, write the files, and return the exit code.

    Raises:
        ValueError: For a case that makes no sense.
    """
    block = {**(SMOKE_BLOCK if args.smoke else DEFAULT), **given_fields(args)}
    cases = tuple(dict.fromkeys(named(case) for case in expand([block])))
    entries = entries_of(cases, identity)
    store, code = Store(args.out), 0
    warning = noise_warning()
    if warning:
        print(f"Warning: {warning}", file=sys.stderr)
    try:
        with stopped_by_signals():
            run_cases(store, entries, read_options(args), args.retry)
    except KeyboardInterrupt:
        print("Ended on request; the same command goes on.", file=sys.stderr)
        code = INTERRUPTED
    found = [store.read(entry.key) for entry in entries]
    records = [record for record in found if record is not None]
    for name, members in write_experiments(store, records).items():
        heads, rows = table(members)
        print(tabulate(rows, headers=heads, disable_numparse=True))
        print(recommendations(members), end="")
        print(f"Files: {store.folder / 'experiments' / name}")
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script with the given arguments, by default those of the process."""
    args = make_parser().parse_args(argv)
    try:
        return run_experiment(args)
    except (ValueError, OSError) as error:
        print(f"experiment.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
