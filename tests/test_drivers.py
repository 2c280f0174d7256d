"""The training and inference drivers: flags, cases, records, models, timings, profiles."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmark.drivers import profiling
from benchmark.drivers.affinity import bound_workers, cores_for
from benchmark.drivers.batches import Feeder, Kept, csr, limited, make_loader
from benchmark.drivers.cases import Case, cases_of
from benchmark.drivers.experiment import WarmUp, measuring
from benchmark.drivers.flags import driver_parser
from benchmark.drivers.graphs import Graph, canonical_name, load_graph
from benchmark.drivers.inference import Inference, measure_inference
from benchmark.drivers.journal import FolderTakenError, Journal, differences
from benchmark.drivers.loop import CaseFailedError, exit_status, run_cases
from benchmark.drivers.models import HOMOGENEOUS, MODELS, Shape, build_model, degree_histogram
from benchmark.drivers.profiling import NOT_IN_OPS, shares_of
from benchmark.drivers.settings import Settings, hops_for, settings_from
from benchmark.drivers.tables import BENCH, PROF, write_prof
from benchmark.drivers.timing import EpochCounts, Measured, PartClock
from benchmark.drivers.training import Training, measure_training
from torch_geometric.data import Data, HeteroData

from gnnprof import ProfileRow, Timing

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
FAST = ["--threads", "1", "--no-progress-bar"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(driver: str) -> Any:
    return importlib.import_module(f"benchmark.{driver}.{driver}_benchmark")


def settings(*flags: str, driver: str = "training") -> Settings:
    return settings_from(driver, script(driver).parser().parse_args(flags))


SMALL = settings(
    "--threads", "1", "--hidden-channels", "8", "--num-neighbors", "3", "--num-steps", "-1"
)


@pytest.fixture(scope="module")
def cora() -> Graph:
    return load_graph("cora-like", scale=0.05)


@pytest.fixture(scope="module")
def mag() -> Graph:
    """Papers with features, authors and fields without, and a venue that no paper hears of."""
    generator = torch.Generator().manual_seed(1)
    data = HeteroData()
    data["paper"].x = torch.randn(40, 6, generator=generator)
    data["paper"].y = torch.arange(40) % 3
    data["paper"].train_mask = torch.arange(40) < 24
    data["paper"].val_mask = (torch.arange(40) >= 24) & (torch.arange(40) < 32)
    data["paper"].test_mask = torch.arange(40) >= 32
    sizes = {"paper": 40, "author": 30, "field": 5, "venue": 4}
    for name, count in sizes.items():
        data[name].num_nodes = count
    for source, relation, goal, count in (
        ("author", "writes", "paper", 90),
        ("paper", "cites", "paper", 80),
        ("field", "rev_has", "paper", 50),
        ("paper", "rev_writes", "author", 70),
        ("paper", "appears_in", "venue", 40),
    ):
        ends = [torch.randint(sizes[t], (count,), generator=generator) for t in (source, goal)]
        data[source, relation, goal].edge_index = torch.unique(torch.stack(ends), dim=1)
    return Graph("mag-tiny", data, "paper", 6, 3, {"is_stand_in": True, "fingerprint": "tiny"}, 0.5)


def case(model: str, dataset: str = "cora-like", **changes: Any) -> Case:
    fields = {"batch_size": 8, "num_layers": 2, "hidden_channels": 8, "num_neighbors": (3, 3)}
    return Case(dataset, model, **{**fields, **changes})


# --- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "line"),
    [  # the command lines of the README files of PyG's drivers, and flags their scripts have
        (
            "training",
            "--models=gcn --datasets=Reddit --num-workers=0 --batch-sizes=512 --num-layers=2 "
            "--num-hidden-channels=64 --num-steps=50",
        ),
        (
            "training",
            "--models=sage --datasets=ogbn-products --num-workers=0 --batch-sizes=512 "
            "--num-layers=2 --num-hidden-channels=64 --num-steps=50 --use-sparse-tensor",
        ),
        (
            "training",
            "--models rgat rgcn --datasets ogbn-mag --num-heads 2 --num-neighbors [10,10] "
            "--warmup 1 --profile --vtune-profile --bf16 --no-progress-bar --num-epochs 1 "
            "--cpu-affinity --loader-cores 0 1 --num-workers 2 --filter-per-worker "
            "--measure-load-time --evaluate --write-csv --root ../../data --num-layers 2",
        ),
        (
            "inference",
            "--datasets=Reddit --models=gcn --eval-batch-sizes=512 --num-layers=2 "
            "--num-hidden-channels=64",
        ),
        (
            "inference",
            "--datasets=ogbn-products --models=sage --eval-batch-sizes=512 --num-layers=2 "
            "--num-hidden-channels=64 --use-sparse-tensor",
        ),
        (
            "inference",
            "--datasets ogbn-mag --models rgcn --hetero-num-neighbors 10 --device cuda --write-csv "
            "prof --export-chrome-trace False --cached-loader --reuse-device-for-embeddings "
            "--ckpt_path model.pt --compile --trim",
        ),
        ("inference", "--datasets Reddit --models gat --full-batch --evaluate --num-steps -1"),
    ],
)
def test_the_command_lines_of_the_reference_are_accepted(driver, line):
    made = settings(*line.split(), driver=driver)
    cases, left_out = cases_of(made)
    assert cases
    assert not left_out
    assert {one.dataset for one in cases} == set(made.datasets)


def test_flags_become_the_fields_of_one_frozen_object():
    made = settings(
        *[
            "--models",
            "gcn",
            "sage",
            "--datasets",
            "cora-like",
            "--batch-sizes",
            "16",
            "32",
            "--num-layers",
            "2",
            "3",
        ],
        *[
            "--hidden-channels",
            "8",
            "--num-neighbors",
            "10",
            "--num-steps",
            "-1",
            "--warmup",
            "0",
            "--seed",
            "3",
        ],
    )
    assert (made.models, made.batch_sizes, made.num_layers) == (("gcn", "sage"), (16, 32), (2, 3))
    assert (made.num_steps, made.warmup, made.seed, made.driver) == (None, 0, 3, "training")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.seed = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], True),
        (["--export-chrome-trace"], True),
        (["--export-chrome-trace", "False"], False),
        (["--export-chrome-trace=0"], False),
        (["--export-chrome-trace=true"], True),
    ],
)
def test_export_chrome_trace_is_a_real_boolean(flags, expected):
    assert settings(*flags).export_chrome_trace is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10", (10,)), ("[10,5]", (10, 5)), ("10 5", (10, 5)), ("-1", (-1,)), ("[15, 10]", (15, 10))],
)
def test_num_neighbors_takes_every_spelling(text, expected):
    parts = [text] if "," in text else text.split()
    layers = str(max(2, len(expected)))
    assert settings("--num-layers", layers, "--num-neighbors", *parts).num_neighbors == expected


@pytest.mark.parametrize("text", ["ten", "1.5", "[1,'a']", "True"])
def test_other_neighbors_are_refused(text, capsys):
    with pytest.raises(SystemExit):
        settings("--num-neighbors", text)
    assert "is neither a whole number nor a list of them" in capsys.readouterr().err


def test_write_csv_alone_is_the_table_of_durations():
    assert settings("--write-csv").write_csv == "bench"
    assert settings("--write-csv", "prof").is_profiled
    assert not settings("--write-csv", "bench").is_profiled
    assert settings().write_csv is None


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--cpu-affinity", "--num-workers=0 has none; give --num-workers of at least 1"),
        ("--loader-cores 0 --num-workers 1", "no effect without --cpu-affinity"),
        ("--cpu-affinity --num-workers 2 --loader-cores 0", "names 1 CPUs for 2 workers"),
        ("--compile --warmup 0", "would time the compilation"),
        ("--trim --full-batch", "--full-batch samples none"),
        ("--trim --use-sparse-tensor", "--use-sparse-tensor has none"),
        ("--full-batch --num-workers 1", "leave it out"),
        ("--num-neighbors 0", "--num-neighbors=0: give counts of at least 1, or -1 for all"),
        ("--num-neighbors []", r"--num-neighbors=\[\] has 0 hops"),
        ("--num-neighbors 3 2 1 --num-layers 2", "has 3 hops for a model of 2 layers"),
    ],
)
def test_flags_that_cannot_hold_together_are_refused(flags, sentence):
    with pytest.raises(ValueError, match=sentence):
        settings(*flags.split())


def test_one_number_of_neighbors_holds_for_all_layers():
    assert hops_for((10,), 3) == (10, 10, 10)
    assert hops_for((15, 10), 2) == (15, 10)


# --- cases ---------------------------------------------------------------------------------------


def test_the_cases_are_every_combination_that_fits():
    made = settings(
        *[
            "--datasets",
            "cora-like",
            "mag-like",
            "--models",
            "gcn",
            "rgcn",
            "--batch-sizes",
            "4",
            "8",
        ],
        *["--num-layers", "1", "2", "--hidden-channels", "16", "--num-neighbors", "7"],
    )
    cases, left_out = cases_of(made)
    assert [(c.dataset, c.model, c.batch_size, c.num_neighbors) for c in cases] == [
        (dataset, model, size, hops)
        for dataset, model in (("cora-like", "gcn"), ("mag-like", "rgcn"))
        for size in (4, 8)
        for hops in ((7,), (7, 7))
    ]
    assert left_out == [
        "rgcn on cora-like: the model is for heterogeneous graphs.",
        "gcn on mag-like: the model is for homogeneous graphs.",
    ]
    assert len({c.key for c in cases}) == len(cases)


def test_sizes_that_do_not_matter_make_no_further_cases():
    flags = [
        "--datasets",
        "cora-like",
        "--models",
        "gcn",
        "--batch-sizes",
        "4",
        "8",
        "--num-layers",
        "2",
    ]
    whole, _ = cases_of(settings(*flags, "--full-batch"))
    assert [(c.batch_size, c.num_neighbors) for c in whole] == [(None, ())]
    layers, _ = cases_of(settings(*flags, "--num-neighbors", "3", driver="inference"))
    assert [(c.batch_size, c.num_neighbors) for c in layers] == [(4, (-1,)), (8, (-1,))]
    sampled, _ = cases_of(
        settings(*flags, "--num-neighbors", "3", "--batch-wise", driver="inference")
    )
    assert [c.num_neighbors for c in sampled] == [(3, 3), (3, 3)]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--models gnc", "--models='gnc' is unknown; give some of edge_cnn, gat"),
        ("--datasets Core", "--datasets='Core' is unknown; give some of KarateClub, Cora"),
        ("--models rgcn --datasets cora-like", "no model given fits a data set given"),
        ("--models gat --hidden-channels 9", "--hidden-channels=9 cannot be shared out among"),
    ],
)
def test_cases_that_cannot_be_are_refused(flags, sentence):
    with pytest.raises(ValueError, match=sentence):
        cases_of(settings(*flags.split()))


def test_inference_layer_by_layer_is_not_cut_short():
    flags = ["--datasets", "cora-like", "--models", "gcn", "--num-steps", "3"]
    with pytest.raises(ValueError, match="needs all nodes; leave it out, or add --batch-wise"):
        cases_of(settings(*flags, driver="inference"))
    assert cases_of(settings(*flags, "--batch-wise", driver="inference"))[0]


def test_short_and_differently_written_names_are_known():
    assert canonical_name("mag") == canonical_name("OGBN-MAG") == "ogbn-mag"
    assert canonical_name("products") == "ogbn-products"
    assert canonical_name("PRODUCTS-like") == "products-like"


# --- records -------------------------------------------------------------------------------------

HEADER = {"driver": "training", "settings": {"warmup": 1}, "environment": {"torch": "2.13"}}


def record(key: str, status: str = "ok") -> dict[str, Any]:
    return {"key": key, "status": status, "case": {}, "error": None}


def test_records_are_lines_of_json_and_the_next_run_reads_them(tmp_path):
    with Journal(tmp_path / "out", HEADER) as journal:
        journal.append(record("a"))
        journal.append(record("b", "error"))
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["a", "b"]
    with Journal(tmp_path / "out", HEADER) as journal:
        assert list(journal.finished) == ["a"]  # what failed is tried again


def test_a_line_that_was_never_finished_is_cut_off(tmp_path):
    with Journal(tmp_path, HEADER) as journal:
        journal.append(record("a"))
        journal.append(record("b"))
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-9])  # the machine went down in the middle of the second
    with Journal(tmp_path, HEADER) as journal:
        assert list(journal.finished) == ["a"]
        journal.append(record("c"))
    assert [json.loads(line)["key"] for line in journal.path.read_text().splitlines()] == ["a", "c"]


def test_a_folder_of_another_run_is_refused_with_what_differs(tmp_path):
    with Journal(tmp_path, HEADER):
        pass
    other = {**HEADER, "settings": {"warmup": 2}, "environment": {"torch": "2.12"}}
    with (
        pytest.raises(FolderTakenError, match=r"settings\.warmup was 1, is 2") as caught,
        Journal(tmp_path, other),
    ):
        pass
    assert "environment.torch was 2.13, is 2.12" in str(caught.value)


def test_differences_reach_into_mappings():
    found = list(differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}))
    assert found == ["a.c was 2, is 4", "d was 3, is None", "e was None, is 5"]


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path):
    with (
        Journal(tmp_path, HEADER),
        pytest.raises(FolderTakenError, match="another process writes its records there"),
        Journal(tmp_path, HEADER),
    ):
        pass
    with Journal(tmp_path, HEADER):  # free again
        pass


def test_records_that_nobody_says_how_they_were_made_are_refused(tmp_path):
    (tmp_path / "records.jsonl").write_text("{}\n")
    with (
        pytest.raises(FolderTakenError, match=r"records without the run\.json"),
        Journal(tmp_path, HEADER),
    ):
        pass


def test_a_record_holds_no_nan(tmp_path):
    with Journal(tmp_path, HEADER) as journal:
        with pytest.raises(ValueError, match="not JSON compliant"):
            journal.append({**record("a"), "value": float("nan")})
        assert not journal.path.exists()


@dataclasses.dataclass(frozen=True)
class FakeCase:
    """A case that is only a name."""

    key: str

    def to_dict(self) -> dict[str, object]:
        return {"name": self.key}


CASES = [FakeCase(key) for key in "abcd"]


def run_fakes(folder: Path, measure: Any, **options: Any) -> list[Any]:
    with Journal(folder, HEADER) as journal:
        return run_cases(
            CASES,
            measure,
            journal,
            describe=lambda record: str(record.get("value")),
            progress_bar=False,
            **options,
        )


def test_an_interruption_loses_no_finished_case(tmp_path, capsys):
    measured: list[str] = []

    def interrupted(one: FakeCase, tick: Any) -> dict[str, object]:
        if one.key == "c":
            raise KeyboardInterrupt
        measured.append(one.key)
        return {"value": one.key.upper()}

    with pytest.raises(KeyboardInterrupt):
        run_fakes(tmp_path, interrupted)
    assert f"--out {tmp_path} goes on with the others" in capsys.readouterr().err

    def rest(one: FakeCase, tick: Any) -> dict[str, object]:
        measured.append(one.key)
        return {"value": one.key.upper()}

    records = run_fakes(tmp_path, rest)
    assert measured == ["a", "b", "c", "d"]
    assert [entry["value"] for entry in records] == ["A", "B", "C", "D"]
    assert "2 of 4 cases are in" in capsys.readouterr().out


KILLED = """
import os, signal, sys
from benchmark.drivers.journal import Journal
from benchmark.drivers.loop import run_cases
from pathlib import Path
sys.path.insert(0, "tests")

class Case:
    def __init__(self, key): self.key = key
    def to_dict(self): return {{"name": self.key}}

def measure(case, tick):
    if case.key == "c":
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"value": case.key.upper()}}

with Journal(Path({folder!r}), {header!r}) as journal:
    run_cases([Case(k) for k in "abcd"], measure, journal, describe=str, progress_bar=False)
"""


def test_a_killed_process_loses_only_the_running_case(tmp_path):
    code = KILLED.format(folder=str(tmp_path), header=HEADER)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr
    measured: list[str] = []

    def rest(one: FakeCase, tick: Any) -> dict[str, object]:
        measured.append(one.key)
        return {"value": one.key.upper()}

    records = run_fakes(tmp_path, rest)
    assert measured == ["c", "d"]
    assert [entry["value"] for entry in records] == ["A", "B", "C", "D"]


def test_a_case_that_fails_is_recorded_and_the_others_run(tmp_path, capsys):
    def measure(one: FakeCase, tick: Any) -> dict[str, object]:
        if one.key == "b":
            raise MemoryError("no more")
        return {"value": float("nan") if one.key == "c" else one.key}

    records = run_fakes(tmp_path, measure)
    assert [entry["status"] for entry in records] == ["ok", "error", "error", "ok"]
    assert records[1]["error"] == "MemoryError: no more"
    assert "not JSON compliant" in records[2]["error"]
    assert exit_status(records) == 1
    assert exit_status(records[3:]) == 0
    assert "Failed: {'name': 'b'}: MemoryError: no more" in capsys.readouterr().err


def test_a_case_that_others_depend_on_ends_the_run(tmp_path, capsys):
    def measure(one: FakeCase, tick: Any) -> dict[str, object]:
        raise ValueError("broken")

    with pytest.raises(CaseFailedError, match="ValueError: broken"):
        run_fakes(tmp_path, measure, go_on=False)
    assert "broken" in capsys.readouterr().err


# --- batches -------------------------------------------------------------------------------------


def test_a_number_of_steps_begins_anew_when_the_data_end():
    assert list(limited([1, 2, 3], None)) == [1, 2, 3]
    assert list(limited([1, 2, 3], 2)) == [1, 2]
    assert list(limited([1, 2, 3], 7)) == [1, 2, 3, 1, 2, 3, 1]
    with pytest.raises(ValueError, match="the split has no nodes"):
        list(limited([], 1))


def test_csr_is_the_transposed_adjacency():
    edge_index = torch.tensor([[2, 0, 1, 2], [0, 3, 0, 3]])
    matrix = csr(edge_index, (3, 4))
    dense = torch.zeros(4, 3)
    dense[edge_index[1], edge_index[0]] = 1
    assert matrix.layout == torch.sparse_csr
    assert torch.equal(matrix.to_dense(), dense)
    matrix = torch.sparse_csr_tensor(
        matrix.crow_indices(), matrix.col_indices(), matrix.values(), check_invariants=True
    )


def test_kept_batches_are_sampled_once_and_not_changed_by_their_user():
    loads: list[int] = []

    def load() -> Iterator[Data]:
        loads.append(1)
        yield Data(x=torch.ones(2, 1), n_id=torch.tensor([0, 1]))

    class Loader:
        def __iter__(self) -> Iterator[Data]:
            return load()

    kept = Kept(Loader())
    for _ in range(3):
        for batch in kept:
            assert torch.equal(batch.x, torch.ones(2, 1))
            batch.x = torch.zeros(2, 1)
    assert loads == [1]


def first_batch(graph: Graph, *, sparse: bool = False, trim: bool = False) -> Any:
    loader = make_loader(graph, SMALL, graph.split("train"), batch_size=8, num_neighbors=(3, 3))
    feeder = Feeder(graph, CPU, sparse=sparse, trim=trim)
    return feeder.transfer(feeder.prepare(next(iter(loader))))


@pytest.mark.parametrize(
    ("name", "way"),
    # Not trimmed GCN: it normalises by the degrees among the edges that it is given.
    [(n, w) for n in MODELS for w in ("sparse", "trim") if (n, w) != ("gcn", "trim")],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_a_sparse_matrix_and_trimming_change_no_score_and_no_gradient(name, way, cora, mag):
    graph = mag if name in ("rgcn", "rgat") else cora
    torch.manual_seed(0)
    net = build_model(name, graph, Shape(8, 2, largest_fan_out=3)).double().eval()
    results = []
    for options in ({}, {way: True}):
        batch = first_batch(graph, **options)
        scores = net(*doubled(batch.inputs), **batch.options)[: batch.num_seeds]
        net.zero_grad()
        torch.nn.functional.cross_entropy(scores, batch.labels).backward()
        results.append([scores, *(p.grad for p in net.parameters())])
    assert results[0][0].shape == (8, graph.num_classes)
    for plain, other in zip(*results, strict=True):
        assert torch.allclose(plain, other, atol=1e-9)


def doubled(value: Any) -> Any:
    """The inputs of a model with every floating tensor in double precision."""
    if isinstance(value, tuple):
        return tuple(map(doubled, value))
    if isinstance(value, dict):
        return {key: doubled(inner) for key, inner in value.items()}
    return value.double() if value.is_floating_point() else value


# --- models --------------------------------------------------------------------------------------


def test_rgcn_is_the_sum_over_relations_of_the_mean_of_the_neighbours(mag):
    torch.manual_seed(0)
    net = build_model("rgcn", mag, Shape(4, 2))
    ids = {t: torch.arange(mag.data[t].num_nodes) for t in mag.data.node_types}
    hidden = {t: net.inputs[t](mag.data[t].x if "x" in mag.data[t] else ids[t]) for t in net.inputs}
    for step in range(2):
        hidden = {t: h.relu() for t, h in hidden.items()}
        out = {t: root(hidden[t]) for t, root in net.roots[step].items()}
        for (source, relation, goal), edge_index in mag.data.edge_index_dict.items():
            name = f"{source}__{relation}__{goal}"
            if name not in net.convs[step]:
                continue
            weight = net.convs[step][name].lin_l.weight
            for node in range(mag.data[goal].num_nodes):
                neighbours = edge_index[0, edge_index[1] == node]
                if len(neighbours):
                    term = weight @ hidden[source][neighbours].mean(dim=0)
                    out[goal] = out[goal].index_add(0, torch.tensor([node]), term[None])
        hidden = out
    scores = net(mag.data.x_dict, mag.data.edge_index_dict, ids)
    assert scores.shape == (40, 3)
    assert torch.allclose(scores, hidden["paper"], atol=1e-6)


@pytest.mark.parametrize("name", ["rgcn", "rgat"])
@pytest.mark.parametrize("layers", [1, 2])
def test_every_parameter_of_a_relational_net_has_a_gradient(name, layers, mag):
    net = build_model(name, mag, Shape(8, layers))
    ids = {t: torch.arange(mag.data[t].num_nodes) for t in mag.data.node_types}
    net(mag.data.x_dict, mag.data.edge_index_dict, ids).square().sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    relations = {name for step in net.convs for name in step}
    assert "paper__appears_in__venue" not in relations  # the papers never hear of it
    assert ("paper__rev_writes__author" in relations) == (layers == 2)


def test_the_degree_histogram_is_cut_off_at_the_fan_out():
    edge_index = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 1, 1, 2]])
    data = Data(edge_index=edge_index, num_nodes=4, x=torch.ones(4, 1))
    graph = Graph("tiny", data, None, 1, 2, {}, 0.0)
    assert degree_histogram(graph, -1).tolist() == [2, 0, 1, 1]
    assert degree_histogram(graph, 2).tolist() == [2, 0, 2]


# --- training ------------------------------------------------------------------------------------


def test_training_learns_on_both_kinds_of_graphs(mag):
    cora = load_graph("cora-like", scale=0.1)
    sage = case("sage", hidden_channels=64, num_neighbors=(5, 5))
    rgcn = case("rgcn", "mag-tiny", hidden_channels=32)
    with measuring(SMALL, CPU):
        training = Training(sage, SMALL, cora, CPU, lambda: None)
        for _ in range(12):
            training.epoch(PartClock(CPU))
        assert training.accuracy("test") > 0.4  # the largest of seven classes has 0.24
        training = Training(rgcn, SMALL, mag, CPU, lambda: None)
        for _ in range(30):
            training.epoch(PartClock(CPU))
        assert float(training.loss) < 0.6  # ln 3 = 1.1 without learning


def test_timings_hold_training_and_nothing_else(fake_clock, monkeypatch, cora):
    def step(self: Training, batch: Any, clock: PartClock) -> None:
        fake_clock.advance(2)
        clock.lap("forward")

    def accuracy(self: Training, split: str) -> float:
        fake_clock.advance(100)
        return 0.25

    monkeypatch.setattr(Training, "_step", step)
    monkeypatch.setattr(Training, "accuracy", accuracy)
    made = dataclasses.replace(SMALL, num_epochs=3, warmup=2, evaluate=True, num_steps=4)
    measured = measure_training(case("gcn"), made, cora, CPU, Path())
    assert measured.warm_up_seconds == 2 * 4 * 2
    assert measured.seconds.samples == (8.0, 8.0, 8.0)
    assert measured.parts["forward"].samples == (2.0,) * 12
    assert measured.parts["load"].total == measured.parts["transfer"].total == 0
    assert measured.counts.batches == 4
    assert measured.throughput == measured.counts.seeds / 8
    assert measured.latency == 8 / measured.counts.seeds
    assert measured.quality == {"train_loss": 0.0, "val_accuracy": 0.25, "test_accuracy": 0.25}
    assert measured.compile_seconds is None
    assert measured.recompiled is None


def test_parts_are_read_in_their_order(fake_clock):
    clock = PartClock(CPU)
    for _ in range(2):
        clock.start()
        for part, seconds in (("load", 3), ("forward", 5)):
            fake_clock.advance(seconds)
            clock.lap(part)
        fake_clock.advance(50)  # between two epochs
    assert {part: timing.samples for part, timing in clock.timings().items()} == {
        "load": (3.0, 3.0),
        "forward": (5.0, 5.0),
    }


def test_the_counts_of_a_record_are_per_batch():
    counts = EpochCounts().plus(4, 10, 30).plus(2, 6, 10)
    measured = Measured("epoch", counts, Timing((1.0, 3.0, 2.0)), {}, "the timed epochs")
    entry = measured.to_dict()
    assert (entry["seeds"], entry["batches"]) == (6, 2)
    assert (entry["nodes_per_batch"], entry["edges_per_batch"]) == (8, 20)
    assert (entry["throughput"], entry["latency"]) == (3.0, 2 / 6)
    assert entry["seconds"]["samples"] == [1.0, 3.0, 2.0]


def test_one_seed_gives_one_training_and_leaves_the_random_state(cora):
    made = dataclasses.replace(SMALL, num_epochs=1)
    before = torch.get_rng_state()
    losses = [
        measure_training(case("sage"), changed, cora, CPU, Path()).quality["train_loss"]
        for changed in (made, made, dataclasses.replace(made, seed=1))
    ]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(before, torch.get_rng_state())


def test_a_full_batch_trains_on_the_training_nodes_only(cora):
    made = dataclasses.replace(SMALL, full_batch=True, num_epochs=2, evaluate=True, warmup=0)
    whole = case("gcn", batch_size=None, num_neighbors=())
    with measuring(made, CPU):
        training = Training(whole, made, cora, CPU, lambda: None)
        net = training.setup.net
        mask = cora.data.train_mask
        out = net(cora.data.x, cora.data.edge_index)
        expected = torch.nn.functional.cross_entropy(out[mask], cora.data.y[mask])
        training.epoch(PartClock(CPU))
    assert torch.allclose(training.loss, expected.detach())
    measured = measure_training(whole, made, cora, CPU, Path())
    assert (measured.counts.batches, measured.counts.seeds) == (1, cora.num_nodes)
    assert measured.sampler is None


def test_bf16_computes_in_bfloat16_and_the_loss_in_single_precision(cora):
    seen: list[torch.dtype] = []
    made = dataclasses.replace(SMALL, bf16=True)
    with measuring(made, CPU):
        training = Training(case("gcn"), made, cora, CPU, lambda: None)
        training.setup.net.convs[0].lin.register_forward_hook(
            lambda module, args, out: seen.append(out.dtype)
        )
        training.epoch(PartClock(CPU), 1)
    assert seen == [torch.bfloat16]
    assert training.loss.dtype == torch.float32


@pytest.fixture
def fast_compiler(monkeypatch) -> Iterator[None]:
    """Dynamo without Inductor: the same graphs and recompilations in a tenth of the time."""
    compile_fully = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda model, dynamic: compile_fully(model, backend="eager", dynamic=dynamic),
    )
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_batches_of_any_size_are_compiled_once_in_the_warm_up(fast_compiler, cora):
    made = dataclasses.replace(SMALL, compile=True, num_epochs=2)
    compiled = measure_training(case("sage"), made, cora, CPU, Path())
    assert compiled.compile_seconds is not None
    assert 0 < compiled.compile_seconds < compiled.warm_up_seconds
    assert compiled.recompiled == 0
    eager = measure_training(
        case("sage"), dataclasses.replace(made, compile=False), cora, CPU, Path()
    )
    assert compiled.quality["train_loss"] == pytest.approx(eager.quality["train_loss"], abs=1e-5)


def test_the_models_of_many_cases_are_all_compiled(fast_compiler, cora):
    made = dataclasses.replace(SMALL, compile=True, num_epochs=1, num_steps=1)
    # Dynamo gives up on a function that it has compiled for so many models.
    with measuring(made, CPU), torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(4):
            training = Training(case("sage"), made, cora, CPU, lambda: None)
            warm_up = WarmUp(made, CPU)
            warm_up.run(lambda: training.epoch(PartClock(CPU)), 1)  # noqa: B023  # run right here
            assert warm_up.compile_seconds > 0


# --- inference -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_all_ways_of_inference_give_the_same_scores(name, cora):
    made = settings("--threads", "1", driver="inference")
    ways = {
        "layer by layer": (made, case(name, num_neighbors=(-1,))),
        "sampled batches": (
            dataclasses.replace(made, batch_wise=True),
            case(name, num_neighbors=(-1, -1)),
        ),
        "full batch": (
            dataclasses.replace(made, full_batch=True),
            case(name, batch_size=None, num_neighbors=()),
        ),
    }
    if name == "gcn":  # in a sampled batch, it normalises by the degrees within
        del ways["sampled batches"]
    scores = {}
    for way, (how, one) in ways.items():
        with measuring(how, CPU), torch.no_grad():
            inference = Inference(one, how, cora, CPU, lambda: None)
            assert inference.way == way
            counts, scores[way] = inference.run(PartClock(CPU))
        assert counts.seeds == cora.num_nodes
    assert scores["full batch"].shape == (cora.num_nodes, cora.num_classes)
    for way in ways:
        assert torch.allclose(scores[way], scores["full batch"], atol=1e-5), way


def test_sparse_gcn_layer_by_layer_has_the_weights_of_the_whole_graph(cora):
    made = settings("--threads", "1", driver="inference")
    scores = []
    for sparse in (False, True):
        how = dataclasses.replace(made, use_sparse_tensor=sparse)
        with measuring(how, CPU), torch.no_grad():
            inference = Inference(case("gcn", num_neighbors=(-1,)), how, cora, CPU, lambda: None)
            scores.append(inference.run(PartClock(CPU))[1])
    assert torch.allclose(*scores, atol=1e-5)


def test_heterogeneous_inference_agrees_with_the_whole_graph(mag):
    made = settings("--threads", "1", driver="inference")
    results = []
    for how, one in (
        (made, case("rgat", "mag", num_neighbors=(-1, -1))),
        (
            dataclasses.replace(made, full_batch=True),
            case("rgat", "mag", batch_size=None, num_neighbors=()),
        ),
    ):
        with measuring(how, CPU), torch.no_grad():
            results.append(Inference(one, how, mag, CPU, lambda: None).run(PartClock(CPU))[1])
    assert torch.allclose(*results, atol=1e-5)


def test_a_cached_loader_samples_in_the_warm_up_only(cora, monkeypatch):
    made = settings("--threads", "1", "--cached-loader", "--num-epochs", "2", driver="inference")
    with measuring(made, CPU), torch.no_grad():
        inference = Inference(case("sage", num_neighbors=(-1,)), made, cora, CPU, lambda: None)
        loads: list[int] = []
        iterate = type(inference.loader).__iter__

        def counted(self: Any) -> Any:
            loads.append(1)
            return iterate(self)

        monkeypatch.setattr(type(inference.loader), "__iter__", counted)
        first = inference.run(PartClock(CPU))[1]
        second = inference.run(PartClock(CPU))[1]
    assert loads == [1]
    assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_inference_layer_by_layer_is_compiled_too(fast_compiler, cora):
    made = settings("--threads", "1", "--compile", driver="inference")
    measured = measure_inference(case("sage", num_neighbors=(-1,)), made, cora, CPU, Path())
    assert measured.compile_seconds is not None
    assert measured.compile_seconds > 0
    assert measured.recompiled == 0


def test_saved_parameters_give_the_accuracy_of_the_training(capsys):
    flags = [
        "--datasets",
        "cora-like",
        "--models",
        "gcn",
        "--scale",
        "0.1",
        "--full-batch",
        "--num-epochs",
        "30",
    ]
    flags += ["--evaluate", "--hidden-channels", "64", *FAST]
    trained = script("training").main([*flags, "--save-model", "--out", "train"])
    parameters = Path("train/model-gcn-cora-like-full-2-64-all.pt")
    scored = script("inference").main([*flags, "--ckpt_path", str(parameters), "--out", "infer"])
    accuracy = trained[0]["quality"]["test_accuracy"]
    assert accuracy > 0.4
    assert scored[0]["quality"]["test_accuracy"] == accuracy
    flags[flags.index("64")] = "32"
    wrong = script("inference").main([*flags, "--ckpt_path", str(parameters), "--out", "other"])
    assert wrong[0]["error"].startswith("ValueError: --ckpt_path=train/model-gcn")
    assert "does not fit the model" in capsys.readouterr().err


# --- profiles ------------------------------------------------------------------------------------


def row(path: str | None, op: str | None, calls: int, own: float, total: float, **more: Any) -> Any:
    module = None if path is None else "Linear"
    return ProfileRow(path, module, more.pop("phase", None), op, calls, own, total, **more)


ROWS = [
    row("", None, 2, 0.1, 1.0, self_backward_cpu_time=0.0, backward_cpu_time=0.6),
    row("lin", None, 4, 0.5, 0.9, self_backward_cpu_time=0.6, backward_cpu_time=0.6),
    row("lin", "aten::mm", 4, 0.2, 0.2,
        self_backward_cpu_time=0.4, backward_cpu_time=0.4, backward_calls=8),
    row("lin", "aten::add", 4, 0.1, 0.3, self_backward_cpu_time=0.0, backward_cpu_time=0.0),
    row("act", None, 2, 0.4, 0.4),
    row("act", "aten::add", 2, 0.3, 0.3),
    row(None, None, 1, 0.4, 0.4, phase="outside"),
]  # fmt: skip
"""Two seconds: 0.1 + (0.5 + 0.6) + 0.4 + 0.4."""


def by_name(level: str) -> dict[str, Any]:
    return {share.name: share for share in shares_of(ROWS, "Net") if share.level == level}


def test_layers_account_for_the_whole_with_right_averages():
    layers = by_name("layer")
    assert {name: share.self_cpu_percent for name, share in layers.items()} == pytest.approx(
        {"Net / lin": 55, "Net / act": 20, "outside": 20, "Net": 5}
    )
    lin = layers["Net / lin"]
    assert (lin.calls, lin.self_cpu, lin.cpu) == (4, pytest.approx(1.1), pytest.approx(1.5))
    assert lin.cpu_percent == pytest.approx(75)
    assert lin.cpu_average == pytest.approx(1.5 / 4)
    assert lin.self_device is lin.self_device_percent is lin.device_average is None
    assert list(layers) == ["Net / lin", "Net / act", "outside", "Net"]  # the costliest first


def test_ops_are_summed_over_the_layers_and_account_for_the_whole():
    ops = by_name("op")
    assert {name: share.self_cpu_percent for name, share in ops.items()} == pytest.approx(
        {"aten::mm": 30, "aten::add": 20, NOT_IN_OPS: 50}
    )
    assert (ops["aten::mm"].calls, ops["aten::add"].calls) == (12, 6)
    assert ops["aten::mm"].cpu_average == pytest.approx(0.6 / 12)
    assert ops["aten::add"].cpu == pytest.approx(0.6)
    assert ops["aten::add"].cpu_average == pytest.approx(0.1)
    assert ops[NOT_IN_OPS].cpu_average is None


def test_device_columns_have_percentages_of_the_device_time():
    rows = [
        row("", None, 1, 1.0, 2.0, self_device_time=1.0, device_time=4.0),
        row("lin", None, 2, 1.0, 1.0, self_device_time=2.0, device_time=3.0,
            self_backward_device_time=1.0, backward_device_time=1.0),
        row("lin", "aten::mm", 2, 1.0, 1.0, self_device_time=4.0, device_time=4.0),
    ]  # fmt: skip
    shares = {(share.level, share.name): share for share in shares_of(rows, "Net")}
    lin = shares["layer", "Net / lin"]
    assert (lin.self_device, lin.device, lin.device_average) == (3.0, 4.0, 2.0)
    assert lin.self_device_percent == 75
    assert shares["op", "aten::mm"].self_device_percent == 100
    assert shares["op", NOT_IN_OPS].self_device == 0.0


def test_the_table_of_profiles_has_those_figures(tmp_path):
    entry = {
        **record("a"),
        "case": case("gcn").to_dict(),
        "sparse": False,
        "profile": [dataclasses.asdict(share) for share in shares_of(ROWS, "Net")],
    }
    with Journal(tmp_path, HEADER) as journal:
        journal.append(entry)
        write_prof(journal, "training")
    with (tmp_path / "prof_training_benchmark.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0])[:5] == ["ID", "MODEL", "DATASET", "CONFIG", "SPARSE"]
    assert list(table[0])[5:] == [heading for heading, _ in PROF]
    for level in ("layer", "op"):
        lines = [line for line in table if line["LEVEL"] == level]
        assert sum(float(line["SELF CPU %"]) for line in lines) == pytest.approx(100)
        assert sum(float(line["SELF CPU"]) for line in lines) == pytest.approx(2)
    mm = next(line for line in table if line["NAME"] == "aten::mm")
    assert float(mm["CPU TIME AVG"]) * int(mm["# OF CALLS"]) == pytest.approx(
        float(mm["CPU TOTAL"])
    )
    assert mm["SELF CUDA"] == ""  # not measured
    assert mm["CONFIG"] == ("Batch size=8, #Layers=2, #Neighbors=[3, 3], #Hidden features=8")


def test_profiles_leave_one_trace_per_case_and_sum_up(capsys):
    flags = [
        "--smoke",
        "--datasets",
        "cora-like",
        "--models",
        "gcn",
        "sage",
        "--profile",
        "--write-csv",
        "prof",
    ]
    records = script("training").main([*flags, *FAST, "--out", "out"])
    traces = sorted(path.name for path in Path("out").glob("profile-*.json"))
    assert traces == [f"profile-{m}-cora-like-32-2-8-3_3.json" for m in ("gcn", "sage")]
    assert sorted(entry["trace"] for entry in records) == traces
    names = {
        e.get("name") for e in json.loads((Path("out") / traces[0]).read_text())["traceEvents"]
    }
    assert {"aten::mm", "Optimizer.step#Adam.step"} <= names
    for entry in records:
        for level in ("layer", "op"):
            shares = [share for share in entry["profile"] if share["level"] == level]
            assert sum(share["self_cpu_percent"] for share in shares) == pytest.approx(100)
    assert "data loading" in capsys.readouterr().out


def test_no_trace_is_left_where_none_is_wanted():
    flags = "--smoke --datasets cora-like --models gcn --profile --export-chrome-trace False"
    records = script("inference").main([*flags.split(), *FAST, "--out", "out"])
    assert records[0]["trace"] is None
    assert records[0]["profile"]
    assert not list(Path("out").glob("profile-*"))


def test_vtune_ranges_stand_around_the_timed_epochs_only(monkeypatch, cora):
    events: list[str] = []

    class Ranges:
        def __enter__(self) -> None:
            events.append("on")

        def __exit__(self, *exc: object) -> None:
            events.append("off")

    def step(self: Training, batch: Any, clock: PartClock) -> None:
        events.append("step")

    monkeypatch.setattr(torch.autograd.profiler, "emit_itt", Ranges)
    monkeypatch.setattr(torch.profiler.itt, "is_available", lambda: True)
    monkeypatch.setattr(Training, "_step", step)
    made = dataclasses.replace(SMALL, vtune_profile=True, num_epochs=2, num_steps=1)
    measure_training(case("gcn"), made, cora, CPU, Path())
    assert events == ["step", "on", "step", "off", "on", "step", "off"]


@pytest.mark.skipif(not torch.profiler.itt.is_available(), reason="torch without ITT")
def test_ranges_for_vtune_are_emitted_while_training(cora, monkeypatch):
    states: list[bool] = []
    plain = Training._step

    def step(self: Training, batch: Any, clock: PartClock) -> None:
        states.append(torch.autograd._profiler_enabled())
        plain(self, batch, clock)

    monkeypatch.setattr(Training, "_step", step)
    made = dataclasses.replace(SMALL, vtune_profile=True, num_epochs=1, num_steps=1)
    measure_training(case("gcn"), made, cora, CPU, Path())
    assert states == [False, True]


def test_vtune_without_itt_is_refused(monkeypatch):
    monkeypatch.setattr(torch.profiler.itt, "is_available", lambda: False)
    with pytest.raises(ValueError, match="this torch is built without ITT"):
        profiling.refuse_without_itt()


# --- affinity ------------------------------------------------------------------------------------

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")


class Where(torch.utils.data.Dataset):
    """Tells the CPUs of the process that reads it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[int]:
        return sorted(os.sched_getaffinity(0))


def plain_loader(**options: Any) -> Any:
    loader = torch.utils.data.DataLoader(
        Where(), batch_size=1, collate_fn=lambda items: items[0], num_workers=1, **options
    )
    loader.data = None
    return loader


@linux
def test_workers_are_bound_for_the_body_only():
    started: list[int] = []
    loader = plain_loader(worker_init_fn=started.append)
    everywhere = sorted(os.sched_getaffinity(0))
    with bound_workers(loader, everywhere[-1:]) as by:
        assert list(loader) == [everywhere[-1:]] * 2
    assert by == {"cores": everywhere[-1:], "by": "os.sched_setaffinity"}
    assert loader.worker_init_fn == started.append
    assert list(loader) == [everywhere] * 2
    assert sorted(os.sched_getaffinity(0)) == everywhere
    with pytest.raises(RuntimeError), bound_workers(loader, everywhere[-1:]):
        raise RuntimeError
    assert loader.worker_init_fn == started.append


def tell_cpus(batch: Data) -> Data:
    batch.cpus = sorted(os.sched_getaffinity(0))
    return batch


@linux
def test_pygs_own_binding_is_used_where_the_loader_has_it(cora):
    made = dataclasses.replace(SMALL, num_workers=1, cpu_affinity=True, filter_per_worker=True)
    loader = make_loader(
        cora,
        made,
        cora.split("train"),
        batch_size=16,
        num_neighbors=(2,),
        transform=tell_cpus,
    )
    before = loader.worker_init_fn
    with bound_workers(loader, cores_for(made)) as by:
        seen = [batch.cpus for batch in loader]
    assert by == {"cores": sorted(os.sched_getaffinity(0))[:1], "by": "torch_geometric"}
    assert seen
    assert all(cpus == sorted(os.sched_getaffinity(0))[:1] for cpus in seen)
    assert loader.worker_init_fn is before


def test_nobody_is_bound_unless_asked():
    loader = SimpleNamespace(worker_init_fn=None)
    assert cores_for(SMALL) == ()
    with bound_workers(loader, ()) as by:
        assert by is None


def test_cpus_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: None, raising=False)
    two = dataclasses.replace(SMALL, cpu_affinity=True, num_workers=2)
    assert cores_for(two) == (3, 5)
    assert cores_for(dataclasses.replace(two, loader_cores=(7, 5))) == (7, 5)
    one = dataclasses.replace(two, num_workers=1)
    assert [cores_for(one, process) for process in range(3)] == [(3,), (5,), (7,)]
    with pytest.raises(
        ValueError, match=r"--loader-cores=4 is not usable; give some of \[3, 5, 7\]"
    ):
        cores_for(dataclasses.replace(two, loader_cores=(3, 4)))
    with pytest.raises(ValueError, match="4 workers for the 3 CPUs"):
        cores_for(two, process=1)
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ValueError, match="cannot bind processes to CPUs"):
        cores_for(two)


# --- the scripts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["training", "inference"])
def test_a_smoke_run_covers_every_model_and_resumes(driver, capsys):
    flags = ["--smoke", "--write-csv", "--evaluate", *FAST, "--out", "out"]
    random_state = torch.get_rng_state()
    records = script(driver).main(flags)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert {entry["case"]["model"] for entry in records} == set(MODELS)
    assert all(entry["status"] == "ok" for entry in records), records
    assert all(entry["seconds"]["median"] > 0 for entry in records)
    assert {entry["dataset"]["is_stand_in"] for entry in records} == {True}
    with Path(f"out/{driver}_benchmark.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["TEST_ID", *(heading for heading, _ in BENCH)]
    assert [line["MODEL"] for line in table] == [entry["case"]["model"] for entry in records]
    for line, entry in zip(table, records, strict=True):
        assert float(line["MEDIAN (s)"]) == entry["seconds"]["median"]
        assert (line["BACKWARD (s/batch)"] == "") == (driver == "inference")
    out, err = capsys.readouterr()
    assert err == ""
    assert "Sampler: " in out
    assert script(driver).main(flags) == records  # nothing is measured again
    assert f"{len(records)} of {len(records)} cases are in out already." in capsys.readouterr().out


def test_a_new_folder_is_made_for_every_run():
    flags = ["--smoke", "--datasets", "KarateClub", "--models", "gcn"]
    for _ in range(2):
        script("training").main([*flags, *FAST])
    assert len(list(Path("out").glob("training-*/records.jsonl"))) == 2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--datasets PubMed", "dataset=PubMed is real data that is not on this machine"),
        ("--device xpu", "device='xpu' is not usable on this machine"),
        ("--models gnc", "--models='gnc' is unknown"),
        ("--cpu-affinity", "--num-workers=0 has none"),
    ],
)
def test_what_keeps_a_script_from_starting_is_one_line(flags, sentence, capsys):
    models = [] if "--models" in flags else ["--models", "gcn"]
    with pytest.raises(SystemExit) as caught:
        script("training").main([*flags.split(), *models, *FAST])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err
    assert not Path("out").exists()


AS_SCRIPTS = """
import runpy, sys
import torch_geometric
plain = list(sys.path)
for script in sys.argv[1:]:
    sys.path[:] = [path for path in plain if path not in ("", {root!r})]
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmark"]:
        del sys.modules[name]
    flags = "--smoke --datasets KarateClub --threads 1 --no-progress-bar --out".split()
    sys.argv = [script, *flags, script.replace("/", "_")]
    if "loader" not in script:
        sys.argv += ["--models", "gcn"]
    if "multi_gpu" in script:
        sys.argv += ["--full-batch"]  # refused at the door: the processes have a test of their own
    try:
        runpy.run_path({root!r} + "/benchmark/" + script, run_name="__main__")
    except SystemExit as end:
        print("ended", script, end.code)
"""


@pytest.mark.slow
def test_the_scripts_run_by_their_path_from_any_folder(tmp_path):
    scripts = {
        "training/training_benchmark.py": 0,
        "inference/inference_benchmark.py": 0,
        "loader/neighbor_loader.py": 0,
        "multi_gpu/training_benchmark.py": 2,
    }
    command = [sys.executable, "-c", AS_SCRIPTS.format(root=str(ROOT)), *scripts]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ended")]
    assert ended == [[name, str(code)] for name, code in scripts.items()], done.stderr
    assert "--full-batch has nothing to share out" in done.stderr
    assert len(list(tmp_path.glob("*/records.jsonl"))) == 3


def test_driver_parser_says_its_defaults():
    text = driver_parser("x", script("training").DEFAULTS).format_help()
    assert "products-like mag-like" in " ".join(text.split())
