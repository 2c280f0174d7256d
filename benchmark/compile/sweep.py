"""The torch.compile study: a matrix of cases, one process each, one record each.

    python benchmark/compile/sweep.py --out out/study --matrix benchmark/compile/matrix.toml
    python benchmark/compile/sweep.py --out out/study --models GCN,GAT --modes eager,default

Started again with the same folder it skips what is finished. A case is known by its content, the
versions of the packages and the device, so that figures of two environments are never mixed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import add_switch
from benchmark.compile import launchers, registry
from benchmark.compile.attempt import Options, stopped_by_signals
from benchmark.compile.case import AllCpus, Case, expand, in_shard
from benchmark.compile.experiment_files import write_experiments
from benchmark.compile.flags import (
    add_case_flags,
    add_run_flags,
    given_fields,
    read_options,
    shard,
)
from benchmark.compile.machine import identity, noise_warning
from benchmark.compile.matrix import read_matrix
from benchmark.compile.store import OUTCOMES, Store
from benchmark.compile.worker import Entry, Progress, entries_of, is_finished, run_cases

DEFAULT_BLOCK: dict[str, Any] = {
    "framework": ["pyg"],
    "model": ["GCN", "GraphSAGE", "GAT", "GIN"],
    "dataset": ["cora-like"],
    "mode": list(registry.mode_names()),
    "dynamic": ["auto"],
    "variant": ["fixes", "no-fixes"],
}
SMOKE_BLOCK: dict[str, Any] = {
    "framework": ["pyg"],
    "model": ["GCN"],
    "dataset": ["cora-like"],
    "mode": ["eager", "default"],
    "variant": ["fixes"],
    "scale": 0.05,
    "layers": 2,
    "hidden": 16,
    "dropout": 0.0,  # otherwise a second compilation compares with eager
    "rounds": 6,
    "epochs": 2,
}
INTERRUPTED = 130
"""Exit code of a sweep that was asked to end, as shells have it for Ctrl-C."""


@dataclass(frozen=True)
class Settings:
    """What a sweep is asked to do, read once from the command line.

    Attributes:
        cases: What to run, those of this shard only.
        of_all_cpus: Those of them that were written with threads 'all', here with one thread: only
            the machine that runs them knows the number.
        entries: The cases with their keys; none where other machines run them, which decide on the
            keys themselves.
        out: The sweep's folder.
        options: How a case is run.
        retry: Outcomes whose cases run again.
        launcher: Who runs them.
        dry_run: Whether the cases are only listed.
        argv: The command line, to be repeated in a message.
    """

    cases: tuple[Case, ...]
    of_all_cpus: frozenset[Case]
    entries: tuple[Entry, ...]
    out: Path
    options: Options
    retry: tuple[str, ...]
    launcher: launchers.Launcher
    dry_run: bool
    argv: tuple[str, ...]


# -- flags -----------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the sweep's command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("cases", "Values between commas; all combinations are run.")
    group.add_argument(
        "--matrix", type=Path, metavar="FILE", help="TOML file of the cases; flags override it"
    )
    add_case_flags(group, several=True)
    add_switch(parser, "--smoke", "two cases on a small stand-in, to see that it runs")
    add_run_flags(parser)
    group = parser.add_argument_group("which of them")
    group.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="run the I-th part of N"
    )
    for flag, meaning in (
        ("--dry-run", "list the cases and what is finished, run nothing"),
        ("--resume", "go on with a sweep, which any call does; an error if --out has none"),
    ):
        add_switch(parser, flag, meaning)
    launchers.add_flags(parser)
    return parser


# -- settings --------------------------------------------------------------------------------------


def read_settings(argv: Sequence[str]) -> Settings:
    """Return what a command line asks for; every mistake is named before anything runs.

    Raises:
        ValueError: For a case that makes no sense, or a matrix file that cannot be read.
        FileNotFoundError: If there is nothing to resume, or no matrix file.
        SystemExit: For a wrong flag.
    """
    args = make_parser().parse_args(argv)
    if args.resume and not (args.out / "records").is_dir():
        raise FileNotFoundError(
            f"--resume: there is no sweep in --out={args.out}; leave --resume out to start one."
        )
    index, count = args.shard
    written = map(named, expand(_blocks(args)))
    ours = [case for case in written if in_shard(case, index - 1, count)]
    cases = tuple(dict.fromkeys(ours))
    launcher = launchers.from_args(args)
    runs_here = launcher.name == "local" or args.dry_run
    return Settings(
        cases=cases,
        of_all_cpus=frozenset(
            _with_one_thread(case) for case in ours if isinstance(case.threads, AllCpus)
        ),
        entries=entries_of(cases, identity) if runs_here else (),
        out=args.out,
        options=read_options(args),
        retry=args.retry,
        launcher=launcher,
        dry_run=args.dry_run,
        argv=tuple(argv),
    )


def _blocks(args: argparse.Namespace) -> list[Mapping[str, Any]]:
    blocks: list[Mapping[str, Any]] = [SMOKE_BLOCK if args.smoke else DEFAULT_BLOCK]
    if args.matrix is not None:
        blocks = [dict(block) for block in read_matrix(args.matrix)]
    given = given_fields(args)
    return [{**block, **given} for block in blocks]


def named(case: Case) -> Case:
    """Return the case with the names as they are registered, whatever their case was.

    Raises:
        ValueError: For a name that is not registered.
    """
    if case.framework not in registry.FRAMEWORKS:
        choices = ", ".join(registry.FRAMEWORKS)
        raise ValueError(f"framework={case.framework!r} is unknown; give one of {choices}.")
    data = registry.get_dataset(case.dataset)
    if case.scale is not None and not data.is_stand_in:
        raise ValueError(
            f"scale={case.scale} with {data.name}: only the '-like' stand-ins can be scaled."
        )
    return dataclasses.replace(
        case,
        model=registry.get_model(case.model).name,
        dataset=data.name,
        mode=registry.get_mode(case.mode).name,
    )


# -- run -------------------------------------------------------------------------------------------


def run_sweep(settings: Settings) -> int:
    """Run, list or hand out the cases, and return the exit code of the script."""
    if settings.dry_run:
        _list(settings)
        return 0
    store = Store(settings.out)
    warning = noise_warning()
    if warning:
        print(f"Warning: {warning}", file=sys.stderr)
    if settings.launcher.name != "local":
        launchers.submit(settings.launcher, Path(__file__).resolve(), settings.argv, settings.out)
        _report(store, settings, None)
        return 0
    try:
        with stopped_by_signals():
            progress = run_cases(store, settings.entries, settings.options, settings.retry)
    except KeyboardInterrupt:
        _report(store, settings, None)
        print(f"Ended on request. To go on: {_command(settings)}", file=sys.stderr)
        return INTERRUPTED
    _report(store, settings, progress)
    return 0


def _list(settings: Settings) -> None:
    """Print every case with what is on record, without making the sweep's folder."""
    store = Store(settings.out) if (settings.out / "records").is_dir() else None
    missing = 0
    for entry in settings.entries:
        outcome = None if store is None else store.outcome(entry.key)
        if store is None or not is_finished(store, entry.key, settings.retry):
            missing += 1
        print(f"{entry.key}  {outcome or 'to run':13}  {entry.case.label}")
    print(f"{len(settings.entries)} cases, {missing} to run; records go to {settings.out}.")


def _report(store: Store, settings: Settings, progress: Progress | None) -> None:
    """Write the files of each experiment, and print how many cases ended how."""
    records = _on_record(store, settings)
    write_experiments(store, records)
    counts = Counter(record["outcome"] for record in records)
    said = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name]) or "none"
    done, total = len({_case_of(record) for record in records}), len(settings.cases)
    print(f"{done} of {total} cases are on record in {store.folder}: {said}.")
    if progress is not None and progress.elsewhere:
        print(f"{progress.elsewhere} cases were left to other workers, who were running them.")


def _on_record(store: Store, settings: Settings) -> list[dict[str, Any]]:
    """Return the records of the cases; where other machines ran them, whatever those were."""
    if settings.launcher.name != "local":
        return [record for record in store.records() if _asked_for(_case_of(record), settings)]
    found = (store.read(entry.key) for entry in settings.entries)
    return [record for record in found if record is not None]


def _asked_for(case: Case, settings: Settings) -> bool:
    """Tell whether a case of another machine, which may have other CPUs, belongs to the sweep."""
    return case in settings.cases or _with_one_thread(case) in settings.of_all_cpus


def _with_one_thread(case: Case) -> Case:
    return dataclasses.replace(case, threads=1)


def _case_of(record: Mapping[str, Any]) -> Case:
    return Case.from_dict(record["case"])


def _command(settings: Settings) -> str:
    return f"python {shlex.quote(sys.argv[0])} {shlex.join(settings.argv)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script with the given arguments, by default those of the process."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        settings = read_settings(argv)
    except (ValueError, OSError) as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        return 2
    with contextlib.suppress(BrokenPipeError):  # `| head` has seen enough
        return run_sweep(settings)
    return 1


if __name__ == "__main__":
    sys.exit(main())
