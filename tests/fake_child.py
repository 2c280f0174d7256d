"""Stands in for a case's process: needs no torch, and does what the case's data set is named.

Environment: FAKE_LOG names a file to which each run adds `start KEY PID` and `end KEY PID`,
FAKE_SECONDS is how long a case takes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmark.compile.lifeline import end_with_parent


def log(word: str, key: str) -> None:
    with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as file:
        file.write(f"{word} {key} {os.getpid()}\n")


def write_record(job: dict, outcome: str) -> None:
    threads = os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]
    record = {
        "schema": "gnnprof.compile-case/1",
        "key": job["key"],
        "case": job["case"],
        "outcome": outcome,
        "reason": None,
        "stderr": "",
        "wall_seconds": 0.0,
        "environment": {**job["identity"], "omp": threads, "cache": cache_folder()},
        "data": None,
        "inference": None,
        "training": None,
        "written_by": "child",
    }
    draft = Path(job["scratch"]) / "record.draft"
    draft.write_text(json.dumps(record))
    draft.replace(job["record"])


def cache_folder() -> str:
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert not folder.exists(), "the cache is not empty"
    folder.mkdir()
    return str(folder)


def behave(job: dict, name: str) -> None:
    if name == "hang":
        # A process of the group that outlives the one that the sweep started.
        subprocess.Popen(["sleep", "60"])
        keep_partial(job)
        print("hanging now", file=sys.stderr, flush=True)
        time.sleep(60)
    elif name == "crash":
        raise ValueError("planted\nmany\nlines")
    elif name == "memory":
        raise MemoryError
    elif name == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    elif name == "late":
        write_record(job, "ok")
        raise SystemExit(3)
    elif name == "talkative":
        print("x" * 10_000 + "the end", file=sys.stderr)
        raise SystemExit(1)
    else:
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        write_record(job, "ok" if name not in ("unsupported", "wrong_result") else name)


def keep_partial(job: dict) -> None:
    findings = {
        "measured_seconds": 2.0,
        "inference": {"status": "ok", "speedup": None},
        "training": None,
        "data": {"name": "hang"},
    }
    content = {"findings": findings, "environment": {"torch": "as measured"}}
    (Path(job["scratch"]) / "partial.json").write_text(json.dumps(content))


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    end_with_parent(job["parent"])
    log("start", job["key"])
    behave(job, job["case"]["dataset"])
    log("end", job["key"])


if __name__ == "__main__":
    main()
