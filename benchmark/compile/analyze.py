"""Turn the records of the torch.compile study into a workbook, LaTeX tables and one HTML page.

    python benchmark/compile/analyze.py RESULTS_DIR

Everything that is written is computed from the records in RESULTS_DIR/records. Records of different
machines or versions never stand in one table: where there are several, one is chosen by name, or
each gets a folder of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size

from tqdm import tqdm

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.compile.analysis.latex import latex
from benchmark.compile.analysis.load import (
    MixedRecordsError,
    by_environment,
    read_records,
    record_files,
)
from benchmark.compile.analysis.overview import overview
from benchmark.compile.analysis.page import page
from benchmark.compile.analysis.questions import answers
from benchmark.compile.analysis.records import Environment, Skipped
from benchmark.compile.analysis.sheets import sheets
from benchmark.compile.analysis.study import Study, is_stand_in
from benchmark.compile.analysis.wording import listed, some
from benchmark.compile.analysis.workbook import write_workbook
from gnnprof._files import write_text

WORKBOOK, TABLES, PAGE = "study.xlsx", "tables.tex", "study.html"
"""The files written, by name."""

EACH = "each"


@dataclass(frozen=True)
class Settings:
    """What the command line asks for.

    Attributes:
        results: Folder of the sweep.
        out: Folder of what is written.
        force: Whether to replace earlier files.
        environment: Name of the environment to report, 'each', or None for the only one.
    """

    results: Path
    out: Path
    force: bool
    environment: str | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the analysis and print the answers.

    Returns:
        The exit status: 0, or 1 where nothing could be written, which is said on stderr.
    """
    try:
        for line in analyze(parse(argv)):
            print(line)
    except (OSError, MixedRecordsError, ModuleNotFoundError) as error:
        print(f"analyze.py: {error}", file=sys.stderr)
        return 1
    return 0


def parse(argv: Sequence[str] | None) -> Settings:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "results", type=Path, metavar="RESULTS_DIR", help="folder that sweep.py wrote to"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: RESULTS_DIR/analysis)"
    )
    parser.add_argument("--force", action="store_true", help="replace files of an earlier analysis")
    parser.add_argument(
        "--environment",
        metavar="NAME",
        help=f"which environment to report, where the records have several; '{EACH}' writes all, "
        "each into its own folder",
    )
    options = parser.parse_args(argv)
    out = options.out or options.results / "analysis"
    return Settings(options.results, out, options.force, options.environment)


def analyze(settings: Settings) -> Iterator[str]:
    """Write what was asked for; yields the lines to print.

    Raises:
        FileNotFoundError: If there are no records.
        FileExistsError: If an earlier analysis is in the way and `force` is not set.
        MixedRecordsError: If the records have several environments and none was chosen.
        ModuleNotFoundError: If XlsxWriter is not installed.
    """
    files = record_files(settings.results)
    records, skipped = read_records(tqdm(files, "reading", unit="record", disable=None))
    if not records:
        raise FileNotFoundError(
            f"RESULTS_DIR={settings.results}: none of {some(len(files), 'file')} is a record of "
            f"the study; {skipped[0].file}: {skipped[0].reason}"
        )
    environments = by_environment(records)
    chosen = choose(environments, settings.environment)
    folders = {
        e.name: settings.out / e.name if settings.environment == EACH else settings.out
        for e in chosen
    }
    check_free(folders.values(), settings.force)
    for environment in chosen:
        study = Study(environment, skipped, tuple(notes(environment, environments, skipped)))
        yield from write(study, folders[environment.name], settings.force)


def choose(environments: Sequence[Environment], name: str | None) -> Sequence[Environment]:
    """Return the environments to report.

    Raises:
        MixedRecordsError: If the choice is not clear.
    """
    if name == EACH or (name is None and len(environments) == 1):
        return environments
    found = [environment for environment in environments if environment.name == name]
    if found:
        return found
    several = "\n".join(f"  {e.name}: {_told_apart(e)}" for e in environments)
    what = "several environments, which are never mixed" if name is None else f"none named {name!r}"
    raise MixedRecordsError(
        f"the records have {what}; choose one with --environment=NAME, or write each into its own "
        f"folder with --environment={EACH}:\n{several}"
    )


def _told_apart(environment: Environment) -> str:
    differs = ", ".join(f"{name} {value or 'n/a'}" for name, value in environment.differs.items())
    return f"{some(len(environment.records), 'record')}, {differs or 'the only one'}"


def notes(
    environment: Environment, environments: Sequence[Environment], skipped: Sequence[Skipped]
) -> Iterator[str]:
    """What a reader has to know besides the figures."""
    if len(environments) > 1:
        others = sum(len(e.records) for e in environments) - len(environment.records)
        yield (
            f"Environment {environment.name} ({_told_apart(environment)}); "
            f"{some(others, 'record')} of other environments left out."
        )
    if skipped:
        yield f"{some(len(skipped), 'file')} could not be read: see the error summary."
    hosts = {record.environment.get("hostname") for record in environment.records} - {None}
    if len(hosts) > 1:
        yield (
            f"Measured on {some(len(hosts), 'machine')} of one kind; a speedup always comes from "
            "one process on one of them."
        )
    stand_ins = {r.case.dataset for r in environment.records if is_stand_in(r)}
    if stand_ins:
        yield (
            "Generated stand-ins, which share no more than the shape of the real data: "
            f"{listed(sorted(stand_ins))}."
        )


def check_free(folders: Iterable[Path], force: bool) -> None:
    """Refuse before the work what writing would refuse after it.

    Raises:
        FileExistsError: If there is an earlier file and `force` is not set.
    """
    for folder in folders:
        for name in (WORKBOOK, TABLES, PAGE):
            if (folder / name).exists() and not force:
                raise FileExistsError(
                    f"{folder / name} already exists; give another --out, or --force to replace it."
                )


def write(study: Study, folder: Path, force: bool) -> Iterator[str]:
    """Write workbook, tables and page of one environment; yields the lines to print."""
    folder.mkdir(parents=True, exist_ok=True)
    made = sheets(study)
    found = answers(study)
    yield from overview(study, found, min(max(get_terminal_size((120, 0)).columns, 60), 120))
    yield ""
    yield f"Workbook: {write_workbook(folder / WORKBOOK, made, overwrite=force)}"
    yield f"LaTeX:    {write_text(folder / TABLES, latex(found, made), overwrite=force)}"
    yield f"Page:     {write_text(folder / PAGE, page(study), overwrite=force)}"


if __name__ == "__main__":
    sys.exit(main())
