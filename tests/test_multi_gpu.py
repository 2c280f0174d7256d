"""Data-parallel training: shares of the data, processes that meet, two gloo processes on a CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmark.cpus import usable_cpus
from benchmark.drivers.cases import Case
from benchmark.drivers.experiment import measuring
from benchmark.drivers.graphs import Graph, load_graph
from benchmark.drivers.settings import Settings, settings_from
from benchmark.drivers.timing import PartClock
from benchmark.drivers.training import Training
from benchmark.multi_gpu import ranks, training_benchmark
from benchmark.multi_gpu.ranks import (
    Rank,
    device_type_of,
    launched_rank,
    meeting_place,
    process_count,
    process_group,
)
from benchmark.multi_gpu.training import (
    checksum,
    measure_rank,
    share_of,
    together,
)
from torch.multiprocessing.spawn import start_processes
from torch_geometric.data import Data

from gnnprof import _device

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)


def settings(*flags: str) -> Settings:
    return settings_from("multi_gpu", training_benchmark.parser().parse_args(flags))


# --- shares of the data --------------------------------------------------------------------------


def test_every_process_gets_as_many_nodes_and_no_node_twice():
    nodes = torch.arange(100, 111)
    shares = [share_of(nodes, rank, 3, seed=0) for rank in range(3)]
    assert [len(share) for share in shares] == [3, 3, 3]
    drawn = torch.cat(shares)
    assert len(drawn.unique()) == 9
    assert set(drawn.tolist()) <= set(nodes.tolist())
    assert not torch.equal(drawn, nodes[:9])  # shuffled: a split may be sorted by class
    assert torch.equal(shares[0], share_of(nodes, 0, 3, seed=0))
    assert not torch.equal(shares[0], share_of(nodes, 0, 3, seed=1))


def test_more_processes_than_nodes_are_refused():
    with pytest.raises(ValueError, match="2 training nodes cannot be shared out among 3 processes"):
        share_of(torch.arange(2), 0, 3, seed=0)


def test_counts_of_all_processes_are_their_sums_and_common_steps():
    one = {"seeds": 10, "nodes": 100, "edges": 300, "batches": 2}
    other = {"seeds": 10, "nodes": 50, "edges": 100, "batches": 2}
    counts = together([one, other])
    assert (counts.seeds, counts.nodes, counts.edges, counts.batches) == (20, 150, 400, 2)


# --- who starts the processes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 1)),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"}, (5, 8, 1)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            },
            (2, 4, 0),
        ),
    ],
)
def test_launchers_tell_who_a_process_is(environment, expected):
    rank = launched_rank("cpu", environment)
    if expected is None:
        assert rank is None
        assert environment == {}
        return
    assert (rank.rank, rank.world_size, rank.local_rank) == expected
    assert rank.init_method == "env://"
    if "PMI_RANK" in environment:
        assert environment["MASTER_PORT"] == "29500"


def test_the_device_of_a_process_is_that_of_its_number_on_the_machine():
    assert Rank(5, 8, 1, "cuda", "env://").device == torch.device("cuda", 1)
    assert Rank(5, 8, 1, "cpu", "env://").device == CPU


def test_as_many_processes_as_devices(monkeypatch):
    assert process_count(None, "cpu") == 2
    assert process_count(3, "cpu") == 3
    monkeypatch.setattr(_device, "backend", lambda kind: SimpleNamespace(device_count=lambda: 4))
    assert process_count(None, "cuda") == 4
    assert process_count(2, "cuda") == 2
    with pytest.raises(ValueError, match="--n-gpus=5: this machine has 4 of type cuda"):
        process_count(5, "cuda")


def test_devices_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(_device, "accelerator", lambda: None)
    assert device_type_of(None) == device_type_of("cpu") == "cpu"
    with pytest.raises(ValueError, match="--device=cuda is not usable on this machine; give cpu"):
        device_type_of("cuda")
    with pytest.raises(ValueError, match="processes cannot share work there"):
        device_type_of("mps")
    monkeypatch.setattr(_device, "accelerator", lambda: "cuda")
    assert device_type_of(None) == device_type_of("cuda") == "cuda"
    with pytest.raises(
        ValueError, match=r"--device=cuda:1 names one device, .* give --device=cuda"
    ):
        device_type_of("cuda:1")
    assert set(ranks.BACKENDS) == {"cpu", "cuda", "xpu"}


def test_the_help_tells_which_devices_there_can_be():
    text = " ".join(training_benchmark.parser().format_help().split())
    assert "--device DEVICE cpu, cuda, xpu (default: the accelerator)" in text


def test_accelerators_get_processes_that_start_from_nothing():
    assert training_benchmark.start_method("cuda") == "spawn"
    assert training_benchmark.start_method("cpu") in ("forkserver", "spawn")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--full-batch", "--full-batch has nothing to share out"),
        (
            "--num-workers 1 --cpu-affinity --loader-cores 0",
            "--loader-cores names the CPUs of one process",
        ),
        ("--device mps", "processes cannot share work there"),
    ],
)
def test_what_keeps_the_script_from_starting_is_one_line(flags, sentence, capsys):
    with pytest.raises(SystemExit) as caught:
        training_benchmark.main(flags.split())
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_flags_of_the_reference_are_accepted():
    made = settings(
        *["--dataset", "ogbn-products", "--model", "edge_cnn", "--num-epochs", "3"],
        *["--device", "cuda", "--n_gpus", "2", "--batch-size", "4096", "--num-layers", "3"],
        *["--num-hidden-channels", "128", "--num-heads", "2", "--num-neighbors", "[10]"],
        *["--num-workers", "0", "--evaluate", "--root", "data"],
    )
    assert (made.datasets, made.models) == (("ogbn-products",), ("edge_cnn",))
    assert (made.processes, made.batch_sizes, made.evaluate) == (2, (4096,), True)


@pytest.mark.parametrize(("flags", "expected"), [([], 3), (["--threads", "1"], 1)])
def test_processes_share_the_cpus_that_this_one_may_use(flags, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(2, 9)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    started: list[Settings] = []

    def start(process: object, arguments: tuple, nprocs: int, start_method: str) -> None:
        started.append(arguments[0])
        (arguments[5] / "record.json").write_text("{}")

    monkeypatch.setattr(training_benchmark, "start_processes", start)
    monkeypatch.setattr(training_benchmark, "_describe", str)
    flags = [*flags, "--smoke", "--datasets", "KarateClub", "--models", "gcn", "--n-gpus", "2"]
    training_benchmark.main([*flags, "--device", "cpu", "--no-progress-bar", "--out", "out"])
    header = json.loads(Path("out/run.json").read_text())
    assert header["environment"]["threads"] == str(expected)
    assert [one.threads for one in started] == [expected]


def test_a_system_that_cannot_tell_the_usable_cpus_has_all(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cpus() == [0, 1, 2]


# --- one process ---------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path) -> Iterator[Rank]:
    rank = Rank(0, 1, 0, "cpu", meeting_place(tmp_path))
    with process_group(rank):
        yield rank


ONE = settings(
    *["--threads", "1", "--num-neighbors", "3", "--num-epochs", "2", "--warmup", "0"],
    *["--num-steps", "-1"],
)


def test_a_process_alone_trains_as_without_the_others(alone):
    graph = load_graph("cora-like", scale=0.05)
    case = Case("cora-like", "sage", 8, 2, 8, (3, 3))
    with measuring(ONE, CPU):
        plain = Training(
            case, ONE, graph, CPU, lambda: None, share_of(graph.split("train"), 0, 1, ONE.seed)
        )
        for _ in range(2):
            plain.epoch(PartClock(CPU))
    measured = measure_rank(case, ONE, graph, alone, Path())
    assert measured.extra["ranks"][0]["parameters"] == checksum(plain.setup.net)
    assert measured.extra["processes"] == 1
    assert measured.extra["seeds_left_out"] == 0


def test_an_epoch_lasts_until_the_slowest_process_is_done(alone, fake_clock, monkeypatch):
    graph = load_graph("cora-like", scale=0.05)
    case = Case("cora-like", "sage", 8, 2, 8, (3, 3))

    def step(self: Training, batch: object, clock: PartClock) -> None:
        fake_clock.advance(1)

    monkeypatch.setattr(Training, "_step", step)
    barriers: list[float] = []

    def barrier() -> None:
        if len(barriers) % 2:
            fake_clock.advance(5)  # another process takes five seconds longer
        barriers.append(fake_clock.now)

    monkeypatch.setattr(torch.distributed, "barrier", barrier)
    how = dataclasses.replace(ONE, num_steps=3)
    measured = measure_rank(case, how, graph, alone, Path())
    assert measured.seconds.samples == (8.0, 8.0)
    assert measured.extra["ranks"][0]["seconds"] == [3.0, 3.0]
    assert len(barriers) == 4


def test_trimmed_relations_may_have_no_gradient(alone):
    graph = load_graph("mag-like", scale=0.004)
    case = Case("mag-like", "rgcn", 8, 2, 8, (1, 1))
    how = dataclasses.replace(ONE, trim=True, num_steps=1, num_epochs=1)
    measured = measure_rank(case, how, graph, alone, Path())
    assert measured.counts.batches == 1


class Loading:
    """Data sets by name, which note when they are loaded."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def __getitem__(self, name: str) -> Graph:
        self.events.append(f"load {name}")
        return Graph(name, Data(), None, 1, 1, {}, 0.0)


def test_the_first_process_has_loaded_before_the_others_do(alone, monkeypatch):
    events: list[str] = []
    case = Case("KarateClub", "gcn", 8, 2, 8, (3, 3))

    def measure(*arguments: object) -> SimpleNamespace:
        events.append("measure")
        return SimpleNamespace(to_dict=dict)

    def broadcast(message: list, src: int) -> None:
        if message == [None, None]:
            message[:] = [[case.key], "out"]

    monkeypatch.setattr(training_benchmark, "measure_rank", measure)
    monkeypatch.setattr(training_benchmark, "_describe", str)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: events.append("barrier"))
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    how = dataclasses.replace(ONE, out=Path("out"), progress_bar=False)
    training_benchmark._lead(how, alone, [case], Loading(events))
    assert events == ["load KarateClub", "barrier", "measure"]
    events.clear()
    training_benchmark._follow(how, alone, [case], Loading(events))
    assert events == ["barrier", "load KarateClub", "measure"]


# --- two processes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "model", "scale"), [("cora-like", "sage", 0.05), ("mag-like", "rgcn", 0.004)]
)
def test_two_processes_train_like_one_with_both_their_batches(dataset, model, scale, capsys):
    flags = ["--threads", "1", "--warmup", "0", "--batch-size", "2000", "--num-layers", "2"]
    flags += ["--hidden-channels", "8", "--num-neighbors", "-1", "--num-epochs", "2"]
    flags += ["--evaluate", "--no-progress-bar", "--scale", str(scale), "--num-steps", "-1"]
    flags += ["--dataset", dataset, "--model", model, "--device", "cpu", "--out", "out"]
    records = training_benchmark.main([*flags, "--n-gpus", "2"])
    assert [record["status"] for record in records] == ["ok"], records
    record = records[0]
    first, second = record["ranks"]
    assert first["parameters"] == second["parameters"]
    assert first["seeds"] == second["seeds"] == record["seeds"] / 2
    assert record["throughput"] == record["seeds"] / record["seconds"]["median"]
    longest = zip(first["seconds"], second["seconds"], strict=True)
    for epoch, own in zip(record["seconds"]["samples"], longest, strict=True):
        assert epoch >= max(own)
    assert "Processes: 2; the longest epoch of each took" in capsys.readouterr().out

    graph = load_graph(dataset, scale=scale)
    how = settings(*flags)
    seeds = torch.cat([share_of(graph.split("train"), rank, 2, how.seed) for rank in range(2)])
    with measuring(how, CPU):
        case = Case(dataset, model, 2000, 2, 8, (-1, -1))
        # The mean loss of equal halves, averaged, is the mean loss of the whole.
        alone = Training(dataclasses.replace(case, batch_size=4000), how, graph, CPU, int, seeds)
        start = checksum(alone.setup.net)
        for _ in range(2):
            assert alone.epoch(PartClock(CPU)).batches == 1
        expected = checksum(alone.setup.net)
        assert abs(expected - start) > 0.01
        assert first["parameters"] == pytest.approx(expected, abs=1e-4)
        assert record["quality"]["test_accuracy"] == pytest.approx(alone.accuracy("test"), abs=0.01)
    assert training_benchmark.main([*flags, "--n-gpus", "2"]) == records  # resumed


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_as_launched(rank: int, port: int, flags: list[str], folder: Path) -> None:
    """What torchrun does: say who the process is, and run the script; here, keep what it prints."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        records = training_benchmark.main(flags)
    assert len(records) == (1 if rank == 0 else 0)
    (folder / f"said{rank}.txt").write_text(said.getvalue())


def test_under_a_launcher_the_first_process_keeps_the_records(tmp_path):
    flags = ["--smoke", "--datasets", "cora-like", "--models", "sage", "rgcn", "--device", "cpu"]
    flags += ["--threads", "1", "--no-progress-bar", "--profile", "--write-csv"]
    flags += ["--out", str(tmp_path / "out")]
    method = training_benchmark.start_method("cpu")
    said = []
    for _ in range(2):  # the second run finds all cases finished
        arguments = (free_port(), flags, tmp_path)
        start_processes(run_as_launched, arguments, nprocs=2, start_method=method)
        said.append((tmp_path / "said0.txt").read_text())
        assert (tmp_path / "said1.txt").read_text() == ""
    assert "Left out: rgcn on cora-like: the model is for heterogeneous graphs." in said[0]
    assert said[0].count("cora-like (a generated stand-in)") == 1
    assert "1 of 1 cases" in said[1]
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    record = json.loads(lines[0])
    assert len(lines) == 1
    assert record["status"] == "ok"
    first, second = record["ranks"]
    assert first["parameters"] == second["parameters"]
    traces = {path.name for path in (tmp_path / "out").glob("profile-*.json")}
    assert traces == {f"profile-sage-cora-like-32-2-8-3_3-rank{rank}.json" for rank in (0, 1)}
    assert {first["trace"], second["trace"]} == traces
    assert (tmp_path / "out" / "multi_gpu_benchmark.csv").exists()
