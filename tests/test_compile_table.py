"""The table of PyG's basic models: its lines, its notes, the models and the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
import torch
from benchmark.compile import table
from benchmark.compile.table import Settings, build_arguments, build_model, main, render

from gnnprof._compile_records import CompileRow, NoiseFloor, PhaseTiming
from gnnprof.compilation import CompileReport

SMOKE = ["--smoke", "--threads", "1", "--backend", "eager"]


@pytest.fixture(autouse=True)
def own_random_state() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield
    torch._dynamo.reset()


def settings(*flags: str) -> Settings:
    return Settings.from_args(table._parser().parse_args(flags))


def timing(
    seconds: float, eager: float, verdict: str | None = None, *, interval: bool = True
) -> PhaseTiming:
    ratio = eager / seconds
    return PhaseTiming(
        samples=(seconds,) * 6,
        eager_samples=(eager,) * 6,
        median=seconds,
        median_low=seconds,
        median_high=seconds,
        eager_median=eager,
        speedup=ratio if verdict else None,
        speedup_low=ratio - 0.1 if verdict and interval else None,
        speedup_high=ratio + 0.1 if verdict and interval else None,
        verdict=verdict,
    )


def row(mode: str, **changes: object) -> CompileRow:
    values = {
        "mode": mode,
        "effective_mode": mode,
        "dynamic": None,
        "fullgraph": False,
        "status": "ok",
        "reason": None,
        "phase": "step",
        "forward": timing(0.010, 0.020),
        "backward": timing(0.020, 0.040),
        "step": timing(0.030, 0.060, "faster"),
    }
    return CompileRow(**{**values, **changes})


def report(*rows: CompileRow, half_width: float = 0.043) -> CompileReport:
    floor = NoiseFloor((1.0,), (1.0,), 0.99, 0.957, 1.02, half_width)
    return CompileReport(rows=rows, noise_floor=floor, environment={}, settings={})


def test_every_line_is_what_its_record_says():
    failed = row(
        "max-autotune",
        effective_mode=None,
        status="compile_error",
        reason="Unsupported: nonzero",
        forward=None,
        backward=None,
        step=None,
    )
    cuda_only = row(
        "reduce-overhead",
        effective_mode="default",
        reason="CUDA graphs are skipped on CPU",
        step=timing(0.0312, 0.03, "undecided"),
    )
    text = render(
        {
            "GCN": report(
                row("eager", step=timing(0.06, 0.06, "undecided")), row("default"), cuda_only
            ),
            "GIN": report(row("eager", step=timing(0.0456789, 0.045)), failed, cuda_only),
        }
    )
    lines = [line.split() for line in text.splitlines()]
    head = "Model Mode Forward [ms] Backward [ms] Total [ms] Speedup [95 %]"
    assert lines[0] == head.split()
    assert lines[2] == ["GCN", "eager", "10.000", "20.000", "60.000"]
    assert lines[3] == [
        "GCN",
        "default",
        "10.000",
        "20.000",
        "30.000",
        "2.00x",
        "[1.90,",
        "2.10]",
        "faster",
    ]
    assert " ".join(lines[4]) == (
        "GCN reduce-overhead [1] 10.000 20.000 31.200 0.96x [0.86, 1.06] undecided"
    )
    assert lines[5] == ["GIN", "eager", "10.000", "20.000", "45.679"]
    assert lines[6] == ["GIN", "max-autotune", "[2]", "n/a", "n/a", "n/a", "n/a", "compile_error"]
    assert lines[7][2] == "[1]"  # one note for both
    assert text.splitlines()[-4:] == [
        "GCN: eager against eager 0.990 [0.957, 1.020]: what is closer to 1 than 4.3 % is noise.",
        "GIN: eager against eager 0.990 [0.957, 1.020]: what is closer to 1 than 4.3 % is noise.",
        "[1] ran as 'default': CUDA graphs are skipped on CPU",
        "[2] GIN: compile_error: Unsupported: nonzero",
    ]


def test_a_speedup_without_an_interval_says_so():
    text = render(
        {"GCN": report(row("default", step=timing(0.03, 0.06, "undecided", interval=False)))}
    )
    assert "2.00x [n/a]" in text.splitlines()[2]


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN", "GAT"])
def test_variants_of_a_model_give_equal_outputs(name):
    """On a random multigraph: with edges that occur twice, and self-loops."""
    outputs = []
    for variant in ("no-fixes", "fixes", "fullgraph"):
        chosen = settings("--variant", variant, "--nodes", "30", "--edges", "200", "--hidden", "16")
        torch.manual_seed(5)
        model = build_model(name, chosen)
        args, kwargs = build_arguments(name, chosen, torch.device("cpu"))
        outputs.append(model(*args, **kwargs))
    torch.testing.assert_close(outputs[1], outputs[0])
    assert torch.equal(outputs[2], outputs[0])
    assert outputs[0].shape == (30, 16)


def test_the_default_is_the_table_of_the_documentation():
    chosen = settings()
    assert (chosen.nodes, chosen.edges, chosen.hidden, chosen.layers) == (10_000, 200_000, 64, 3)
    assert chosen.models == ("GCN", "GraphSAGE", "GIN")
    assert (chosen.modes, chosen.variant, chosen.backend) == (("default",), "no-fixes", "inductor")
    (x, edge_index), kwargs = build_arguments("GCN", chosen, torch.device("cpu"))
    assert (x.shape, edge_index.shape, kwargs) == ((10_000, 64), (2, 200_000), {})
    assert int(edge_index.max()) == 9_999


def test_smoke_shrinks_and_keeps_what_is_smaller():
    chosen = settings("--smoke", "--nodes", "50")
    assert (chosen.nodes, chosen.edges, chosen.hidden, chosen.rounds) == (50, 1000, 16, 6)
    assert chosen.backend == "aot_eager"
    assert settings("--smoke", "--backend", "inductor").backend == "inductor"


def test_the_script_prints_a_table_and_writes_its_record(tmp_path, capsys):
    file = tmp_path / "table.json"
    result = main([*SMOKE, "--models", "GraphSAGE", "--json", str(file)])
    out = capsys.readouterr().out
    assert out.startswith("200 nodes, 1,000 directed edges (random), 2 layers of width 16")
    assert "GraphSAGE  eager" in out
    record = json.loads(file.read_text())
    assert record["schema"] == "gnnprof.compile-table/1"
    assert record["settings"]["models"] == ["GraphSAGE"]
    rows = record["models"]["GraphSAGE"]["rows"]
    assert [entry["mode"] for entry in rows] == ["eager", "default"]
    assert rows[1]["graph_breaks"] == 0
    assert rows[1]["status"] == "ok"
    assert len(rows[1]["samples"]) == 6
    shown = f"{1e3 * result.reports['GraphSAGE'].rows[1].median:.3f}"
    assert shown in out
    assert all(math.isfinite(value) for value in rows[1]["samples"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models", "GAT", "--hidden", "20", "--heads", "8"], "not a multiple of --heads=8"),
        (["--device", "cuda:77"], "device"),
        (["--json", "nowhere/table.json"], "there is no folder"),
        (["--rounds", "5"], "at least 6"),
        (["--modes", "fastest"], "invalid choice: 'fastest'"),
        (["--models", "GTN"], "invalid choice: 'GTN'"),
    ],
)
def test_bad_flags_are_one_clear_line(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        main(flags)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
