"""The loader benchmark: flags, cases, the parts of a batch, records and traces."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark import sampling
from benchmark.drivers.graphs import Graph, load_graph
from benchmark.loader import measure, neighbor_loader
from benchmark.loader.measure import TABLE, LoaderRun, measure_loader
from benchmark.loader.settings import (
    LoaderCase,
    LoaderSettings,
    cases_of,
    fan_outs,
    loader_parser,
    settings_from,
)
from benchmark.sampling import SAMPLER, TORCH_SAMPLER, LoaderTimes

CPU = torch.device("cpu")
FAST = ["--threads", "1", "--no-progress-bar"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def cora() -> Graph:
    return load_graph("cora-like", scale=0.05)


def settings(*flags: str) -> LoaderSettings:
    return settings_from(loader_parser(None).parse_args(flags))


# --- flags and cases -----------------------------------------------------------------------------


def test_the_flags_of_the_reference_are_accepted():
    line = (
        "--device cpu --datasets arxiv products mag --root data --batch-sizes [8192,4096] "
        "--eval-batch-sizes [16384] --homo-neighbor_sizes [[10,5],[15,10,5]] "
        "--hetero-neighbor_sizes [[5],[10]] --use-sparse-tensor --num-workers 2 --runs 3 --profile "
        "--cpu-affinity --loader-cores 0 1"
    )
    made = settings(*line.split())
    assert (made.batch_sizes, made.eval_batch_sizes) == ((8192, 4096), (16384,))
    assert made.homogeneous_hops == ((10, 5), (15, 10, 5))
    assert (made.runs, made.profile, made.loader_cores) == (3, True, (0, 1))
    cases = cases_of(made)
    assert {one.dataset for one in cases} == {"ogbn-arxiv", "ogbn-products", "ogbn-mag"}
    hops = {one.num_neighbors for one in cases if one.dataset == "ogbn-mag"}
    assert hops == {(5,), (10,), (-1,)}


def test_the_cases_are_fan_outs_by_batch_sizes_and_then_all_nodes():
    made = settings(
        *["--datasets", "cora-like", "--batch-sizes", "4", "8", "--eval-batch-sizes", "16"],
        *["--homo-neighbor-sizes", "[[3,2],[-1]]"],
    )
    assert cases_of(made) == [
        LoaderCase("cora-like", "train", 4, (3, 2)),
        LoaderCase("cora-like", "train", 8, (3, 2)),
        LoaderCase("cora-like", "train", 4, (-1,)),
        LoaderCase("cora-like", "train", 8, (-1,)),
        LoaderCase("cora-like", "all", 16, (-1,)),
    ]
    assert len({one.key for one in cases_of(made)}) == 5


@pytest.mark.parametrize("spelling", [["--eval-batch-sizes"], ["--eval-batch-sizes", "[]"]])
def test_one_of_the_two_kinds_can_be_left_out(spelling):
    flags = ["--datasets", "cora-like", "--batch-sizes", "4"]
    assert {one.split for one in cases_of(settings(*flags, *spelling))} == {"train"}
    with pytest.raises(ValueError, match="no batch size is given"):
        cases_of(settings("--batch-sizes", "--eval-batch-sizes"))


def test_a_data_set_is_named_as_in_every_script():
    assert settings("--dataset", "cora-like").datasets == ("cora-like",)


@pytest.mark.parametrize("text", ["[10,5]", "10", "[[1.5]]", "[[]]", "[['a']]", "x"])
def test_other_fan_outs_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no list of lists of whole numbers"):
        fan_outs(text)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--cpu-affinity", "--num-workers=0 has none"),
        ("--homo-neighbor-sizes [[0]]", "give counts of at least 1, or -1 for all"),
        ("--warmup -1", "--warmup=-1: give a number of at least 0"),
        ("--batch-sizes 0", "--batch-sizes=0: give numbers of at least 1"),
    ],
)
def test_flags_that_mean_nothing_are_refused(flags, sentence):
    with pytest.raises(ValueError, match=sentence):
        settings(*flags.split())


# --- measuring -----------------------------------------------------------------------------------

SMALL = settings("--threads", "1", "--runs", "2", "--warmup", "1")


class Loader:
    """Two batches, each of which took seven seconds to come."""

    def __init__(self, clock: Any, batches: list[Any]) -> None:
        self.clock = clock
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.clock.advance(7)
            yield batch
        self.clock.advance(0.5)  # workers are told to stop


def test_parts_and_runs_have_their_own_times(fake_clock, cora, monkeypatch):
    one = LoaderCase("cora-like", "train", 4, (3,))
    run = LoaderRun(one, SMALL, cora, CPU, lambda: None)
    batches = list(run.loader)[:2]
    monkeypatch.setattr(run, "loader", Loader(fake_clock, batches))
    monkeypatch.setattr(measure, "take_times", lambda batch: LoaderTimes(1.0, 2.0, 3.0))
    transfer = run.feeder.transfer

    def slow_transfer(raw: Any) -> Any:
        fake_clock.advance(0.25)
        return transfer(raw)

    monkeypatch.setattr(run.feeder, "transfer", slow_transfer)
    result = run.measure(Path())
    assert result["warm_up_seconds"] == 15
    assert result["seconds"]["samples"] == [15.0, 15.0]  # two batches, and the end
    expected = {"sampling": 1, "gather": 2, "collate": 3, "wait": 7, "transfer": 0.25}
    assert {name: part["samples"] for name, part in result["parts"].items()} == {
        name: [value] * 4 for name, value in expected.items()
    }
    assert (result["seeds"], result["batches"]) == (8, 2)
    assert result["throughput"] == 8 / 15
    assert result["edge_throughput"] == sum(b.edge_index.size(1) for b in batches) / 15
    assert result["nodes_per_batch"] == sum(b.num_nodes for b in batches) / 2


@pytest.mark.parametrize(
    ("workers", "filters", "beside"),
    [
        (0, False, []),
        (0, True, []),
        (1, False, ["sampling"]),
        (1, True, ["sampling", "gather", "collate"]),
    ],
)
def test_the_parts_that_no_worker_does_are_inside_the_wait(workers, filters, beside, cora):
    how = dataclasses.replace(SMALL, num_workers=workers, runs=1, filter_per_worker=filters)
    one = LoaderCase("cora-like", "all", 50, (-1,))
    result = measure_loader(one, how, cora, CPU, Path(), lambda: None)
    parts = {name: part["samples"] for name, part in result["parts"].items()}
    assert {len(samples) for samples in parts.values()} == {3}
    assert set(parts) == {"sampling", "gather", "collate", "wait", "transfer"}
    assert (result["seeds"], result["batches"]) == (cora.num_nodes, 3)
    assert result["sampler"] == SAMPLER
    assert result["beside_wait"] == beside
    # The collation begins where the seeds are looked up: in the worker, if there is one.
    at_home = {"gather"} if workers else {"sampling", "gather", "collate"}
    for wait, *made in zip(
        parts["wait"], *(parts[name] for name in at_home - {*beside}), strict=True
    ):
        assert sum(made) <= wait


def test_the_features_are_gathered_in_this_process_unless_the_workers_filter(cora, monkeypatch):
    here = os.getpid()
    gatherers: list[int] = []
    gather = sampling._gather_rows

    def noting(data: Any, batch: Any) -> None:
        gather(data, batch)
        batch.gathered_by = os.getpid()

    monkeypatch.setattr(sampling, "_gather_rows", noting)
    for filters in (False, True):
        how = dataclasses.replace(SMALL, num_workers=1, filter_per_worker=filters)
        run = LoaderRun(LoaderCase("cora-like", "all", 200, (-1,)), how, cora, CPU, lambda: None)
        gatherers += [batch.gathered_by for batch in run.loader]
    assert [pid == here for pid in gatherers] == [True, False]


@pytest.mark.parametrize(
    ("beside", "lines"),
    [
        ([], ["In this process, within the wait: sampling 1.000 ms, gather 2.000 ms"]),
        (
            ["sampling"],
            [
                "In the workers, beside the wait: sampling 1.000 ms",
                "In this process, within the wait: gather 2.000 ms",
            ],
        ),
        (
            ["sampling", "gather", "collate"],
            ["In the workers, beside the wait: sampling 1.000 ms, gather 2.000 ms"],
        ),
    ],
)
def test_the_output_says_which_parts_the_wait_holds(beside, lines):
    parts = {"sampling": {"median": 0.001}, "gather": {"median": 0.002}}
    assert list(measure._making({"parts": parts, "beside_wait": beside})) == lines


def test_all_neighbours_of_one_hop_are_all_edges(cora):
    one = LoaderCase("cora-like", "all", 50, (-1,))
    counts = LoaderRun(one, SMALL, cora, CPU, lambda: None).run({})
    assert counts.edges == cora.data.num_edges
    assert counts.seeds == cora.num_nodes


def test_steps_are_counted_over_the_end_of_the_data(cora):
    one = LoaderCase("cora-like", "all", 50, (-1,))
    ticks: list[int] = []
    how = dataclasses.replace(SMALL, num_steps=4)
    counts = LoaderRun(one, how, cora, CPU, lambda: ticks.append(1)).run({})
    assert (counts.batches, len(ticks)) == (4, 4)
    assert counts.seeds == cora.num_nodes + 50


def test_measuring_leaves_the_random_state(cora):
    before = torch.get_rng_state()
    measure_loader(
        LoaderCase("cora-like", "train", 16, (2,)), SMALL, cora, CPU, Path(), lambda: None
    )
    assert torch.equal(before, torch.get_rng_state())


# --- the script ----------------------------------------------------------------------------------


def test_a_smoke_run_records_every_case_and_resumes(capsys):
    flags = ["--smoke", *FAST, "--out", "out"]
    records = neighbor_loader.main(flags)
    assert [(r["case"]["dataset"], r["case"]["split"]) for r in records] == [
        (name, split)
        for name in ("arxiv-like", "products-like", "mag-like")
        for split in ("train", "all")
    ]
    assert all(record["status"] == "ok" for record in records), records
    with Path("out/loader_benchmark.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == [heading for heading, _ in TABLE]
    for line, record in zip(table, records, strict=True):
        assert float(line["MEDIAN (s)"]) == record["seconds"]["median"]
        assert float(line["SAMPLING (s/batch)"]) == record["parts"]["sampling"]["median"]
        assert line["LAYOUT (s/batch)"] == ""  # no matrix was made
    out, err = capsys.readouterr()
    assert err == ""
    assert f"Sampler: {SAMPLER}" in out
    Path("out/loader_benchmark.csv").unlink()  # it is made of the records again
    assert neighbor_loader.main(flags) == records
    with Path("out/loader_benchmark.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == table
    assert "6 of 6 cases are in out already." in capsys.readouterr().out


def test_the_header_tells_which_sampler_runs(monkeypatch):
    monkeypatch.setattr(sampling, "SAMPLER", "pyg_lib 9")
    monkeypatch.setattr(neighbor_loader, "run_cases", lambda *args, **kwargs: [])
    flags = ["--smoke", "--datasets", "cora-like", *FAST]
    for choice, expected in (("auto", "pyg_lib 9"), ("torch", TORCH_SAMPLER)):
        neighbor_loader.main([*flags, "--sampler", choice, "--out", choice])
        header = json.loads(Path(choice, "run.json").read_text())
        assert header["environment"]["sampler"] == expected
        assert header["settings"]["sampler"] == choice


def test_the_help_tells_the_device_that_is_taken():
    text = " ".join(loader_parser(None).format_help().split())
    assert "cpu, cuda, cuda:1, xpu, mps (default: cpu)" in text
    assert settings().device == "cpu"


def test_a_profile_leaves_one_trace_per_case(capsys):
    flags = ["--smoke", "--datasets", "cora-like", "--profile", "--use-sparse-tensor"]
    records = neighbor_loader.main([*flags, *FAST, "--out", "out"])
    traces = sorted(path.name for path in Path("out").glob("profile-*.json"))
    assert traces == [
        "profile-loader-cora-like-all-32--1.json",
        "profile-loader-cora-like-train-32-3_2.json",
    ]
    assert sorted(record["trace"] for record in records) == traces
    names = {
        event.get("name") for event in json.loads(Path("out", traces[1]).read_text())["traceEvents"]
    }
    assert any("enumerate(DataLoader)" in str(name) for name in names)
    assert all("layout" in record["parts"] for record in records)
    assert "Self CPU" in capsys.readouterr().out


def test_a_sampler_that_is_not_there_is_recorded_as_the_failure(capsys):
    if SAMPLER != "gnnprof (torch)":
        pytest.skip("PyG can sample here")
    flags = ["--smoke", "--datasets", "cora-like", "--sampler", "pyg", "--eval-batch-sizes"]
    records = neighbor_loader.main([*flags, *FAST, "--out", "out"])
    assert records[0]["error"].startswith("ModuleNotFoundError: sampler='pyg' needs pyg_lib")
    assert "ModuleNotFoundError" in capsys.readouterr().err
