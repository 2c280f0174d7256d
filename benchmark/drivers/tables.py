"""The tables of `--write-csv`, each column defined once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmark.drivers.journal import Column, Journal, Record

BENCH_FILE, PROF_FILE = "{driver}_benchmark.csv", "prof_{driver}_benchmark.csv"


def config_of(record: Record) -> str:
    """Return the sizes of a case in one cell."""
    case = record["case"]
    size = "full" if case["batch_size"] is None else case["batch_size"]
    return (
        f"Batch size={size}, #Layers={case['num_layers']}, "
        f"#Neighbors={case['num_neighbors'] or 'all'}, #Hidden features={case['hidden_channels']}"
    )


def _of_seconds(name: str) -> Any:
    return lambda record: record["seconds"][name]


def _of_part(part: str) -> Any:
    def read(record: Record) -> object:
        timing = record["parts"].get(part)
        return None if timing is None else timing["median"]

    return read


def _of_quality(split: str) -> Any:
    return lambda record: (record["quality"] or {}).get(f"{split}_accuracy")


IDENTITY: tuple[Column, ...] = (
    ("MODEL", lambda record: record["case"]["model"]),
    ("DATASET", lambda record: record["case"]["dataset"]),
    ("CONFIG", config_of),
    ("SPARSE", lambda record: record["sparse"]),
)
"""Whose figures a row holds."""

BENCH: tuple[Column, ...] = (
    ("DATE", lambda record: record["started"][:10]),
    ("TIME (s)", _of_seconds("mean")),
    *IDENTITY,
    ("MEDIAN (s)", _of_seconds("median")),
    ("MEDIAN LOW (s)", _of_seconds("median_low")),
    ("MEDIAN HIGH (s)", _of_seconds("median_high")),
    ("SAMPLES", lambda record: len(record["seconds"]["samples"])),
    ("THROUGHPUT (nodes/s)", lambda record: record["throughput"]),
    ("LATENCY (ms/node)", lambda record: record["latency"] * 1000),
    ("LOAD (s/batch)", _of_part("load")),
    ("TRANSFER (s/batch)", _of_part("transfer")),
    ("FORWARD (s/batch)", _of_part("forward")),
    ("BACKWARD (s/batch)", _of_part("backward")),
    ("OPTIMIZER (s/batch)", _of_part("optimizer")),
    ("WARM-UP (s)", lambda record: record["warm_up_seconds"]),
    ("COMPILE (s)", lambda record: record["compile_seconds"]),
    ("VAL ACCURACY", _of_quality("val")),
    ("TEST ACCURACY", _of_quality("test")),
)
"""Durations: one row per case. TIME is the mean of the timed epochs, the others say what they are;
an empty cell was not measured."""

PROF: tuple[tuple[str, str], ...] = (
    ("LEVEL", "level"),
    ("NAME", "name"),
    ("SELF CPU %", "self_cpu_percent"),
    ("SELF CPU", "self_cpu"),
    ("CPU TOTAL %", "cpu_percent"),
    ("CPU TOTAL", "cpu"),
    ("CPU TIME AVG", "cpu_average"),
    ("SELF CUDA %", "self_device_percent"),
    ("SELF CUDA", "self_device"),
    ("CUDA TOTAL", "device"),
    ("CUDA TIME AVG", "device_average"),
    ("# OF CALLS", "calls"),
)
"""Profiles: headings, and the fields of `benchmark.drivers.profiling.Share`; seconds. The columns
named CUDA are of the accelerator, whichever it is, and empty without one."""


def write_bench(journal: Journal, driver: str) -> None:
    """Write the table of durations."""
    columns = ("TEST_ID", *(heading for heading, _ in BENCH))
    rows = (
        (number, *(read(record) for _, read in BENCH))
        for number, record in enumerate(journal.finished.values())
    )
    journal.write_table(BENCH_FILE.format(driver=driver), columns, rows)


def write_prof(journal: Journal, driver: str) -> None:
    """Write the table of profiles."""
    identity = [heading for heading, _ in IDENTITY]
    columns = ("ID", *identity, *(heading for heading, _ in PROF))
    rows = (
        (number, *row) for number, row in enumerate(_prof_rows(list(journal.finished.values())))
    )
    journal.write_table(PROF_FILE.format(driver=driver), columns, rows)


def _prof_rows(records: Sequence[Record]) -> Iterator[tuple[object, ...]]:
    for record in records:
        identity = tuple(read(record) for _, read in IDENTITY)
        for share in record["profile"] or ():
            yield (*identity, *(share[field] for _, field in PROF))
