"""What a case's record holds, whoever writes it: its own process, or the sweep in its place."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.compile.case import SCHEMA, Case, Identity

STDERR_BYTES = 4096
HARNESS_SHARE = 0.25
HARNESS_SECONDS = 8.0

PHASES = ("inference", "training", "quality", "warm")
"""What a case measures, in the order in which it does."""


@dataclass(frozen=True)
class Job:
    """What the process of a case is told, in one file.

    Attributes:
        case: What to measure.
        key: The case's content key.
        identity: The environment that the key speaks of.
        record: Where the record goes.
        scratch: The case's own folder, gone after it.
        root: Folder with the raw files of real data sets.
        cache: Folder with generated stand-ins, shared by all cases.
        download: Whether real data may be fetched into `root`.
        parent: Process with which to end; None for nobody.
        started: When the process was started, in seconds since the epoch.
    """

    case: Case
    key: str
    identity: Identity
    record: Path
    scratch: Path
    root: Path | None = None
    cache: Path | None = None
    download: bool = False
    parent: int | None = None
    started: float = 0.0

    @property
    def partial(self) -> Path:
        """Where the process keeps what it has found so far, in case it does not reach its end."""
        return self.scratch / "partial.json"

    @property
    def inductor_cache(self) -> Path:
        """The case's private cache of compiled code, empty at the start."""
        return self.scratch / "inductor"

    @property
    def stderr(self) -> Path:
        """What the process writes to stderr."""
        return self.scratch / "stderr.txt"

    @property
    def stdout(self) -> Path:
        """What the process writes to stdout."""
        return self.scratch / "stdout.txt"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        paths = {name: value and str(value) for name, value in self._paths().items()}
        entry = {"case": self.case.to_dict(), "identity": self.identity.to_dict(), **paths}
        rest = ("key", "download", "parent", "started")
        return {**entry, **{name: getattr(self, name) for name in rest}}

    def _paths(self) -> dict[str, Path | None]:
        return {name: getattr(self, name) for name in ("record", "scratch", "root", "cache")}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Job:
        """Return the job that `to_dict` describes."""
        values = {name: entry[name] for name in ("key", "download", "parent", "started")}
        for name in ("record", "scratch", "root", "cache"):
            values[name] = entry[name] and Path(entry[name])
        case, identity = Case.from_dict(entry["case"]), Identity(**entry["identity"])
        return cls(case=case, identity=identity, **values)


@dataclass(frozen=True)
class Ending:
    """How a case ended.

    Attributes:
        outcome: One of `store.OUTCOMES`.
        reason: In words; None for 'ok'.
        exit_code: Of the process; negative for a signal, None while it runs.
        wall_seconds: From the start of the process, imports included.
        stderr: The last `STDERR_BYTES` that the process wrote.
    """

    outcome: str
    reason: str | None
    exit_code: int | None
    wall_seconds: float
    stderr: str


def make_record(
    job: Job, findings: Mapping[str, Any], ending: Ending, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of a case.

    Args:
        job: The case and its key.
        findings: What was measured; see `no_findings` for its entries.
        ending: How the case ended.
        environment: Where it was measured.
    """
    measured = findings["measured_seconds"]
    started = datetime.datetime.fromtimestamp(job.started, tz=datetime.timezone.utc)
    return {
        "schema": SCHEMA,
        "key": job.key,
        "case": job.case.to_dict(),
        **dataclasses.asdict(ending),
        "started": started.isoformat(timespec="seconds"),
        "harness_seconds": ending.wall_seconds - measured,
        "harness_allowed": HARNESS_SHARE * measured + HARNESS_SECONDS,
        "environment": dict(environment),
        **findings,
    }


def no_findings() -> dict[str, Any]:
    """Return the entries that the phases fill, all unknown.

    `measured_seconds` is what the case is run for: samples, compilation with the start of the
    compiler, training of the quality, and work of the loader. `inference` and `training` are rows
    of `gnnprof.compile_benchmark` or `{"error": ...}`; `errors` names the phases that failed.
    `cpu_utilisation` is the share of the time of the case's CPUs that repeated forward passes use.
    """
    return {
        "measured_seconds": 0.0,
        "compiler_start_seconds": None,
        "phase_seconds": {},
        "errors": {},
        "data": None,
        "inference": None,
        "training": None,
        "noise_floor": None,
        "noise_floor_training": None,
        "warm": None,
        "quality": None,
        "throughput": None,
        "loader": None,
        "cpu_utilisation": None,
        "recommendations": {},
        "dynamo_settings": {},
    }


def tail(path: Path) -> str:
    """Return the last `STDERR_BYTES` of a file as text; nothing if there is no such file."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - STDERR_BYTES))
        return file.read().decode("utf-8", errors="replace")


def first_line(error: BaseException) -> str:
    """Return the type of an exception and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
