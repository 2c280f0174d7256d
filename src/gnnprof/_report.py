"""`gnnprof report`: the profiles of all ranks of a run as one table and one page."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gnnprof._files import write_text
from gnnprof._html import PageSummary, page
from gnnprof._layer_table import layer_table, lines_of, terminal_width
from gnnprof._merge import (
    DifferentRunsError,
    RankProfile,
    check_together,
    median_rows,
    merge_rows,
)
from gnnprof._rank_files import Skipped, UnreadableProfileError, read_folder, read_profile
from gnnprof._rank_views import MergedRun, merged_json, merged_summary, merged_text

_MOST_NAMES = 5


@dataclass(frozen=True)
class ReportSettings:
    """What the command line asks for.

    Attributes:
        source: Folder of the profiles, or one profile.
        out: Where the page shall be.
        json: Where the merged rows shall be; None for nowhere.
        ops: Whether to list ops.
        overwrite: Whether to replace earlier files.
    """

    source: Path
    out: Path
    json: Path | None
    ops: bool
    overwrite: bool


def main(arguments: Sequence[str]) -> int:
    """Run `gnnprof report`.

    Args:
        arguments: What follows `report` on the command line.

    Returns:
        The exit status: 0, or 1 if there is nothing to report, which is said on stderr.
    """
    settings, texts = _settings(arguments), list[str]()
    try:
        try:
            texts.extend(report(settings))  # a reader that stops early loses no file
        finally:  # nor does a file that cannot be written lose the table
            sys.stdout.writelines(texts)
            sys.stdout.flush()
    except BrokenPipeError:  # `gnnprof report DIR | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
    except (UnreadableProfileError, DifferentRunsError, OSError) as error:
        sys.stderr.write(f"gnnprof report: {error}\n")
        return 1
    return 0


def _settings(arguments: Sequence[str]) -> ReportSettings:
    parser = argparse.ArgumentParser(
        prog="gnnprof report",
        description="Merge what Profiler.to_json wrote on every rank of a run: minimum, median and "
        "maximum over the ranks and the slowest rank of every row, as a table and as a page.",
    )
    parser.add_argument("source", type=Path, metavar="DIR", help="folder of the files, or one file")
    parser.add_argument(
        "--out", type=Path, metavar="PAGE", help="the page (default: report.html in DIR)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the merged rows")
    parser.add_argument("--ops", action="store_true", help="list the ops under every row")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier files")
    options = parser.parse_args(arguments)
    folder = options.source if options.source.is_dir() else options.source.parent
    options.out = options.out or folder / "report.html"
    return ReportSettings(**vars(options))


def report(settings: ReportSettings) -> Iterator[str]:
    """Write what was asked for; yields what to print.

    Raises:
        UnreadableProfileError: If a profile cannot be read, or there is none.
        DifferentRunsError: If the profiles do not belong together.
        OSError: If a file cannot be read or written, or is there already.
    """
    _check_free(settings)
    profiles, skipped = _read(settings.source)
    check_together(profiles)
    run = MergedRun(profiles, merge_rows(profiles), median_rows(profiles))
    if profiles[0].world_size == 1 or settings.source.is_file():
        yield single_text(profiles[0], ops=settings.ops, width=terminal_width())
        summary = single_summary(profiles[0])
    else:
        yield merged_text(run, ops=settings.ops, width=terminal_width())
        summary = merged_summary(run, ops=settings.ops)
    yield from _skipped_lines(skipped)
    html = page(run.medians, summary)  # of one rank, the medians are its own rows
    yield f"Page: {write_text(settings.out, html, overwrite=settings.overwrite)}\n"
    if settings.json is not None:
        written = write_text(settings.json, merged_json(run), overwrite=settings.overwrite)
        yield f"Merged rows: {written}\n"


def _check_free(settings: ReportSettings) -> None:
    """Refuse before the work what writing would refuse after it."""
    for path in (settings.out, settings.json):
        if path is not None and path.exists() and not settings.overwrite:
            raise FileExistsError(f"{path} already exists; give another name, or --overwrite")


def _read(source: Path) -> tuple[list[RankProfile], list[Skipped]]:
    if not source.is_dir():
        return [read_profile(source)], []
    profiles, skipped = read_folder(source)
    if not profiles:
        raise UnreadableProfileError(
            f"{source} has no profile of gnnprof; write one on every rank by "
            "Profiler.to_json. " + " ".join(line.strip() for line in _skipped_lines(skipped))
        )
    return profiles, skipped


def _skipped_lines(skipped: Sequence[Skipped]) -> Iterator[str]:
    """Name what was skipped by reason, a few names each."""
    for reason in dict.fromkeys(file.reason for file in skipped):
        names = [file.file for file in skipped if file.reason == reason]
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        yield f"Skipped ({reason}): {', '.join(names[:_MOST_NAMES])}{more}\n"


# --- one profile -----------------------------------------------------------------------------


def single_text(profile: RankProfile, *, ops: bool, width: int | None = None) -> str:
    """Draw one profile as `Profiler.table` does.

    Args:
        profile: What one process wrote.
        ops: Whether to list the ops under modules and phases.
        width: Characters that a line may have.
    """
    summary = profile.summary
    needs = {
        "device": "self_device_time",
        "memory": "self_cpu_memory",
        "backward": "self_backward_cpu_time",
        "work": "bytes_moved",
    }
    measured = frozenset(need for need, name in needs.items() if name in profile.measured)
    lines = [line for line in lines_of(profile.rows, profile.model) if ops or line.row.op is None]
    whole = summary["total_time"]
    table = layer_table(lines, measured, whole, summary.get("accelerator"), width)
    notes = "".join(f"{note}\n" for note in summary["notes"])
    return f"{table}Rows cover {summary['coverage']:.2%} of {whole:.6f} s\n{notes}"


def single_summary(profile: RankProfile) -> PageSummary:
    """What holds for the page of one profile.

    Args:
        profile: What one process wrote.
    """
    summary = cast(PageSummary, dict(profile.summary))
    if profile.world_size > 1:
        summary["title"] = f"{profile.model}, rank {profile.rank} of {profile.world_size}"
    return summary
