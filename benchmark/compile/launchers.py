"""Who runs a sweep: this process, or jobs of a scheduler that share its folder.

Only paths and arguments cross: a job is the sweep's own command with ``--shard``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.arguments import COUNT

NAMES = ("local", "submitit")
_OWN_FLAGS = ("--launcher", "--jobs", "--cluster", "--slurm", "--shard")


@dataclass(frozen=True)
class Launcher:
    """Who runs the cases.

    Attributes:
        name: One of `NAMES`.
        jobs: Among how many jobs submitit shares the cases.
        cluster: 'slurm', 'local' (processes of this machine), or None for what submitit finds.
        parameters: Of submitit's executor, such as `slurm_partition`.
    """

    name: str = "local"
    jobs: int = 1
    cluster: str | None = None
    parameters: tuple[tuple[str, Any], ...] = ()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a launcher."""
    group = parser.add_argument_group("launcher")
    group.add_argument("--launcher", choices=NAMES, default="local", help="who runs the cases")
    group.add_argument(
        "--jobs", type=COUNT, default=1, help="submitit: jobs that share the cases (%(default)s)"
    )
    group.add_argument(
        "--cluster", choices=("slurm", "local"), help="submitit: where (default: what it finds)"
    )
    group.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=_parameter,
        help="submitit: a parameter such as slurm_partition=gpu or timeout_min=600; repeatable",
    )


def from_args(args: argparse.Namespace) -> Launcher:
    """Return the launcher that the flags choose.

    Raises:
        ValueError: If a flag of submitit is given without it.
    """
    launcher = Launcher(args.launcher, args.jobs, args.cluster, tuple(args.slurm))
    if launcher.name == "local" and launcher != Launcher():
        raise ValueError("--jobs, --cluster and --slurm need --launcher submitit.")
    if launcher.name == "submitit" and args.shard != (1, 1):
        raise ValueError("--shard with --launcher submitit: its jobs are the shards; give --jobs.")
    return launcher


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name, int(value) if value.isdecimal() else value


def job_commands(launcher: Launcher, script: Path, argv: Sequence[str]) -> list[list[str]]:
    """Return the command of each job: the sweep's own, cut to one shard.

    Args:
        launcher: How many jobs there are.
        script: The sweep's script.
        argv: The arguments that the sweep was started with.
    """
    kept = _without_own_flags(argv)
    shards = [f"--shard={index}/{launcher.jobs}" for index in range(1, launcher.jobs + 1)]
    return [[sys.executable, str(script), *kept, shard] for shard in shards]


def _without_own_flags(argv: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word in _OWN_FLAGS:
            next(words, None)  # its value
        elif word.partition("=")[0] not in _OWN_FLAGS:
            kept.append(word)
    return kept


def submit(launcher: Launcher, script: Path, argv: Sequence[str], out: Path) -> None:
    """Share a sweep among jobs of submitit and wait for them.

    Ctrl-C ends the waiting, not the jobs, which the message names.

    Raises:
        ModuleNotFoundError: If submitit is not installed.
        RuntimeError: If jobs failed; their output is named.
    """
    try:
        submitit: Any = importlib.import_module("submitit")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            '--launcher submitit needs submitit: pip install "gnnprof[bench]"'
        ) from None
    executor = submitit.AutoExecutor(folder=out.absolute() / "jobs", cluster=launcher.cluster)
    executor.update_parameters(name="gnnprof-compile", **dict(launcher.parameters))
    commands = job_commands(launcher, script, argv)
    # The job stands in this folder, so that relative paths among the arguments hold.
    functions = [submitit.helpers.CommandFunction(command, cwd=os.getcwd()) for command in commands]
    with executor.batch():
        jobs = [executor.submit(function) for function in functions]
    print(f"Jobs: {', '.join(str(job.job_id) for job in jobs)}", file=sys.stderr)
    failed = [job for job in jobs if job.exception() is not None]
    if failed:
        raise RuntimeError(
            f"{len(failed)} of {len(jobs)} jobs failed, the first one {failed[0].job_id}: "
            f"see {failed[0].paths.stderr}. What they finished is on record."
        )
