"""The drivers' profiles, their tables and traces, and the CPUs that workers are bound to."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmark.drivers import profiling
from benchmark.drivers.affinity import bound_workers, cores_for
from benchmark.drivers.batches import make_loader
from benchmark.drivers.journal import Journal
from benchmark.drivers.profiling import NOT_IN_OPS, shares_of
from benchmark.drivers.tables import PROF, write_prof
from benchmark.drivers.timing import PartClock
from benchmark.drivers.training import Training, measure_training
from tests import driver_cases
from tests.driver_cases import CPU, FAST, HEADER, SMALL, case, record, script
from torch_geometric.data import Data

from gnnprof import ProfileRow

in_a_folder_of_its_own = driver_cases.in_a_folder_of_its_own
cora = driver_cases.cora
pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


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
