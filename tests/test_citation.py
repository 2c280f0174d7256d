"""The citation scripts: flags, training and its durations, records, profiles, and the sweeps."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from benchmark import reporting
from benchmark.arguments import PROBABILITY, number, strict_bool
from benchmark.citation import train_eval
from benchmark.citation.results import CitationResult, TrainingRun
from benchmark.citation.settings import Settings, citation_parser
from benchmark.citation.train_eval import Experiment, stops_early
from benchmark.datasets import load_dataset
from benchmark.reporting import pick_device, write_record

from gnnprof import _device

ROOT = Path(__file__).resolve().parents[1]
CITATION = ROOT / "benchmark" / "citation"
SCRIPTS = ("gcn", "sage", "gat", "gin", "cheb", "sgc", "arma", "appnp")
SMOKE = ["--smoke", "--threads", "1"]


def script(name: str) -> ModuleType:
    return importlib.import_module(f"benchmark.citation.{name}")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(*flags: str) -> Settings:
    parser = citation_parser(None, runs=2, epochs=6, lr=0.01, weight_decay=0.0, early_stopping=2)
    return Settings.from_args(parser.parse_args(flags))


def experiment(*flags: str) -> Experiment:
    """A small GCN on a small graph."""
    dataset = load_dataset("cora-like", scale=0.05, normalize_features=True)
    net = script("gcn").Net(dataset.num_features, dataset.num_classes, hidden=8, dropout=0.5)
    return Experiment("GCN", net, dataset, settings(*flags), torch.device("cpu"))


# --- every script --------------------------------------------------------------------------------


def test_every_script_of_the_folder_is_run_here():
    mains = {path.stem for path in CITATION.glob("*.py") if "def main(" in path.read_text()}
    assert mains == {*SCRIPTS, "accuracy"}  # the last: test_accuracy


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains(name, capsys):
    random_state = torch.get_rng_state()
    result = script(name).main([*SMOKE, "--json", "record.json"])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert len(result.runs) == 1
    assert result.runs[0].epochs == len(result.step_seconds) <= 4
    assert 0 <= result.runs[0].test_accuracy <= 1
    out, err = capsys.readouterr()
    assert out.startswith(
        f"{result.network} on cora-like (a generated stand-in, fixed split): 135 "
    )
    assert "Test Accuracy: " in out
    assert "± n/a" in out  # one run has no spread
    assert err == ""  # no progress bar outside a terminal
    assert json.loads(Path("record.json").read_text())["network"] == result.network


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_only_infers(name, capsys):
    result = script(name).main([*SMOKE, "--inference=True", "--dataset", "KarateClub"])
    assert result.runs == ()
    assert len(result.step_seconds) == 4
    assert "last forward pass; median of 4" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--inference"], []])
def test_a_terminal_sees_how_far_it_is(flags, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    script("gcn").main([*SMOKE, *flags, "--dataset", "KarateClub"])
    assert "GCN:   0%" in capsys.readouterr().err


def defaults(name: str) -> dict[str, object]:
    """The settings that a script makes of an empty command line."""
    seen: list[Settings] = []

    def stop_there(
        network: str, net_class: type, parser: argparse.ArgumentParser, argv: object
    ) -> None:
        seen.append(Settings.from_args(parser.parse_args([])))

    module = script(name)
    original, module.run_script = module.run_script, stop_there
    try:
        module.main()
    finally:
        module.run_script = original
    common = ("epochs", "lr", "weight_decay", "early_stopping")
    return {key: getattr(seen[0], key) for key in common} | dict(seen[0].model)


SHORT = {"epochs": 200, "lr": 0.01, "weight_decay": 5e-4, "early_stopping": 10}
LONG = {"epochs": 1000, "lr": 0.01, "weight_decay": 5e-4, "early_stopping": 100}


@pytest.mark.parametrize(
    ("name", "expected"),
    [  # those of PyG's benchmark/citation; GraphSAGE and GIN, which it lacks, follow GCN
        ("gcn", SHORT | {"hidden": 16, "dropout": 0.5}),
        ("sage", SHORT | {"hidden": 16, "dropout": 0.5}),
        ("gin", SHORT | {"hidden": 64, "dropout": 0.5}),
        ("gat", LONG | {"lr": 0.005, "hidden": 8, "dropout": 0.6, "heads": 8, "output_heads": 1}),
        ("cheb", SHORT | {"hidden": 16, "dropout": 0.5, "num_hops": 3}),
        ("sgc", SHORT | {"lr": 0.1, "K": 2}),
        ("appnp", SHORT | {"hidden": 64, "dropout": 0.5, "K": 10, "alpha": 0.1}),
        (
            "arma",
            LONG
            | {"hidden": 16, "dropout": 0.5, "num_stacks": 1, "num_layers": 1}
            | {"shared_weights": False, "skip_dropout": 0.75},
        ),
    ],
)
def test_the_defaults_are_the_references_but_for_the_runs(name, expected):
    assert defaults(name) == expected


@pytest.mark.slow
def test_a_script_runs_from_its_own_folder_and_compiles_before_it_measures(tmp_path):
    flags = ["--scale", "0.05", "--runs", "1", "--epochs", "3", "--threads", "1", "--dropout", "0"]
    record = tmp_path / "record.json"
    command = [sys.executable, "sage.py", *flags, "--compile", "--json", str(record)]
    done = subprocess.run(command, cwd=CITATION, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith("GraphSAGE on cora-like")
    assert "(warm-up, in no other figure)" in done.stdout
    compiled = json.loads(record.read_text())
    assert compiled["recompiled"] == 0
    assert compiled["compile_seconds"] > compiled["runs"][0]["seconds"]
    eager = script("sage").main(flags)
    assert compiled["runs"][0]["val_loss"] == pytest.approx(eager.runs[0].val_loss, abs=1e-5)


# --- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], False),
        (["--profile"], True),
        (["--profile=True"], True),
        (["--profile", "true"], True),
        (["--profile=False"], False),
        (["--profile=0"], False),
    ],
)
def test_a_switch_takes_the_old_spelling_too(flags, expected):
    assert settings(*flags).profile is expected


def test_other_words_than_true_and_false_are_refused():
    with pytest.raises(argparse.ArgumentTypeError, match="'Tru' is neither True nor False"):
        strict_bool("Tru")


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (number(int, least=1), "0", "0 is not allowed; give a whole number at least 1"),
        (number(int, least=1), "1.5", "'1.5' is not a whole number"),
        (number(float, least=0, open_end=True), "0", "0 is not allowed; give a number above 0"),
        (number(float, least=0), "nan", "nan is not allowed; give a number at least 0"),
        (number(float, least=0), "inf", "inf is not allowed; give a number at least 0"),
        (PROBABILITY, "1", "1 is not allowed; give a number at least 0 and below 1"),
    ],
)
def test_a_number_outside_its_range_is_refused(parse, text, sentence):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        parse(text)
    assert str(caught.value) == sentence


def test_smoke_shrinks_runs_epochs_and_stand_ins_only():
    small = settings("--smoke")
    assert (small.runs, small.epochs, small.scale) == (1, 4, 0.05)
    assert settings("--smoke", "--epochs", "2", "--scale", "0.01").scale == 0.01
    assert settings("--smoke", "--epochs", "2").epochs == 2
    assert settings("--smoke", "--dataset", "Cora").scale is None


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--dataset", "Cora"], "dataset=Cora is real data that is not on this machine"),
        (["--dataset", "Cor"], "dataset='Cor' is unknown"),
        (["--device", "gpu"], "device='gpu' names no device"),
        (["--device", "mps"], "device='mps' is not usable on this machine; give cpu"),
        (["--json", "there.json"], "--json=there.json already exists; give a new name"),
        (["--json", "no/where.json"], "--json=no/where.json: there is no folder no"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_before_any_work(flags, sentence, capsys):
    Path("there.json").touch()
    with pytest.raises(SystemExit) as caught:
        script("gcn").main(flags)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("val_losses", "expected"),
    [
        ([3.0, 1.0, 2.5], False),  # epoch 3 of 6: still the first half
        ([3.0, 1.0, 2.0, 1.6], True),  # above the mean 1.5 of the two before
        ([3.0, 1.0, 2.0, 1.5], False),  # not above it
        ([0.0, 1.0, 2.0, 1.6], True),  # the first loss is too long ago to count
    ],
)
def test_early_stopping_compares_with_the_mean_of_the_losses_before(val_losses, expected):
    assert stops_early(val_losses, settings()) is expected


def test_early_stopping_can_be_off_and_needs_an_earlier_loss():
    assert not stops_early([1.0, 1.0, 1.0, 9.0], settings("--early_stopping", "0"))
    assert not stops_early([9.0], settings("--epochs", "1"))


class Scripted(Experiment):
    """Training whose losses and durations are known: steps take 2 s, evaluations 1 s."""

    curve = ((0.9, 0.1), (0.7, 0.6), (0.8, 0.9), (0.7, 0.3), (0.9, 0.5), (0.2, 1.0))

    def __init__(self, clock) -> None:
        self.__dict__.update(vars(experiment("--runs", "2", "--seed", "7")))
        self.clock = clock
        self.epoch = 0

    def _restart(self, seed: int) -> torch.optim.Optimizer:
        self.epoch = 0
        self.clock.advance(100)
        return super()._restart(seed)

    def train_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.clock.advance(2)

    def evaluate(self) -> tuple[float, float]:
        self.clock.advance(1)
        self.epoch += 1
        return self.curve[self.epoch - 1]


def test_a_run_reports_the_accuracy_at_the_lowest_validation_loss_and_stops_early(fake_clock):
    result = Scripted(fake_clock).run()
    # Epoch 2 is the first with the lowest loss; epoch 5 (0.9 above the mean of 0.8 and 0.7) stops.
    one = TrainingRun(7, 5, 0.7, 0.6, 15.0, (2.0,) * 5)
    assert result.runs == (one, TrainingRun(8, 5, 0.7, 0.6, 15.0, (2.0,) * 5))
    assert result.step_seconds == (2.0,) * 5
    assert result.compile_seconds is None


def test_the_summary_and_the_record_of_known_runs(fake_clock):
    scripted = Scripted(fake_clock).run()
    runs = (
        TrainingRun(0, 2, 0.5, 0.8, 3.0, (1.0, 2.0)),
        TrainingRun(1, 2, 0.7, 0.9, 5.0, (1.5, 2.5)),
    )
    result = CitationResult(**{**vars(scripted), "runs": runs, "step_seconds": (1.5, 2.5)})
    assert result.summary().splitlines() == [
        "Val Loss: 0.6000, Test Accuracy: 0.850 ± 0.071, Duration: 4.000s",
        "Time: 2.50000000s (last training step; median of 2: 2.00000000s)",
    ]
    record = result.to_record()
    assert record["schema_version"] == 1
    assert record["task"] == "training"
    assert record["test_accuracy"] == {
        "mean": pytest.approx(0.85),
        "sample_std": pytest.approx(0.005**0.5),
    }
    assert record["run_seconds"] == {"median": 4.0, "interval_95": None}
    assert record["step_seconds_samples"] == [1.5, 2.5]
    assert record["runs"][1] == {
        "seed": 1,
        "epochs": 2,
        "val_loss": 0.7,
        "test_accuracy": 0.9,
        "seconds": 5.0,
        "median_step_seconds": 2.0,
    }
    assert record["dataset"]["name"] == "cora-like"
    assert record["dataset"]["is_stand_in"] is True
    assert record["settings"]["seed"] == 7
    assert record["environment"]["torch"] == torch.__version__


def test_each_run_has_its_own_seed():
    def losses(*flags: str) -> list[float]:
        result = script("gcn").main(["--scale", "0.05", "--epochs", "2", "--threads", "1", *flags])
        return [run.val_loss for run in result.runs]

    both = losses("--runs", "2", "--seed", "3")
    assert both[0] != both[1]
    assert losses("--runs", "1", "--seed", "4") == both[1:]


def test_random_splits_differ_between_runs_and_are_the_same_for_one_seed():
    random = experiment("--random_splits")
    random._restart(0)
    first = random.data.train_mask
    random._restart(1)
    second = random.data.train_mask
    random._restart(0)
    assert torch.equal(first, random.data.train_mask)
    assert not torch.equal(first, second)
    assert int(first.sum()) == int(second.sum())


def test_training_learns():
    flags = ["--scale", "0.2", "--runs", "1", "--epochs", "60", "--threads", "1", "--hidden", "32"]
    assert script("gcn").main(flags).runs[0].test_accuracy > 0.5  # the largest class has 0.24


def test_a_loss_that_is_never_finite_is_an_error(monkeypatch):
    broken = experiment("--runs", "1")
    monkeypatch.setattr(broken, "evaluate", lambda: (float("nan"), 0.0))
    with pytest.raises(FloatingPointError, match=r"lr=0\.01: the validation loss was never finite"):
        broken.run()


def test_bf16_computes_in_bfloat16_and_the_loss_in_single_precision():
    half = experiment("--bf16")
    seen: list[torch.dtype] = []
    half.net.conv1.lin.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    assert half._forward().dtype == torch.float32
    assert seen == [torch.bfloat16]
    whole = experiment()
    whole.net.load_state_dict(half.net.state_dict())
    half.net.eval(), whole.net.eval()
    assert torch.allclose(half._forward(), whole._forward(), atol=0.02)
    assert not torch.equal(half._forward(), whole._forward())


@pytest.mark.parametrize("name", SCRIPTS)
def test_bf16_trains(name):
    result = script(name).main([*SMOKE, "--bf16", "--epochs", "2"])
    assert result.runs[0].val_loss < 3


@pytest.fixture
def fast_compiler(monkeypatch) -> Iterator[None]:
    """Dynamo without Inductor: the same graphs and recompilations in a tenth of the time."""
    compile_fully = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_fully(model, backend="eager"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Dynamo looks at .grad of every tensor that it meets where a graph breaks.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_layer_that_caches_is_compiled_for_all_its_paths_in_the_warm_up(fast_compiler):
    flags = ["--scale", "0.05", "--runs", "2", "--epochs", "3", "--threads", "1", "--compile"]
    result = script("sgc").main(flags)
    assert result.compile_seconds > result.runs[0].step_seconds[0]
    assert result.recompiled == 0


def test_compile_seconds_are_the_warm_ups_and_in_no_duration(fake_clock, monkeypatch):
    monkeypatch.setattr(train_eval, "_compiled_graphs", lambda settings: 0)
    scripted = Scripted(fake_clock)
    scripted.settings = settings("--compile", "--runs", "2")
    result = scripted.run()
    assert result.compile_seconds == 3 * (2 + 1)  # three steps and evaluations
    assert [run.seconds for run in result.runs] == [15.0, 15.0]


def test_a_compilation_inside_the_durations_is_owned_up_to(fake_clock, monkeypatch):
    graphs = iter([5, 7])
    monkeypatch.setattr(train_eval, "_compiled_graphs", lambda settings: next(graphs))
    scripted = Scripted(fake_clock)
    scripted.settings = settings("--compile")
    result = scripted.run()
    assert result.recompiled == 2
    assert "Warning: 2 graphs were compiled inside the durations." in result.summary()


# --- profile, record, environment ----------------------------------------------------------------


def test_profile_writes_a_renamed_trace_and_prints_the_layer_table(capsys):
    script("gcn").main([*SMOKE, "--profile"])
    trace = Path("profile-citation-GCN-cora-like-public_split-training.json")
    assert {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]} >= {
        "aten::mm",
        "Optimizer.step#Adam.step",
    }
    assert not Path("timeline.json").exists()
    out = capsys.readouterr().out
    assert "conv1 (GCNConv)" in out
    assert "aggregate" in out
    assert str(trace) in out


def test_profile_of_inference_has_no_optimizer_and_another_name():
    script("sgc").main([*SMOKE, "--profile", "--inference", "--random_splits"])
    trace = Path("profile-citation-SGC-cora-like-random_splits-inference.json")
    assert "Adam" not in trace.read_text()


def test_a_record_replaces_nothing_and_holds_no_nan(tmp_path):
    record = tmp_path / "record.json"
    write_record(record, {"a": 1, "root": Path("x")})
    assert json.loads(record.read_text()) == {"a": 1, "root": "x"}
    with pytest.raises(FileExistsError):
        write_record(record, {"a": 2})
    with pytest.raises(ValueError, match="nan"):
        write_record(tmp_path / "nan.json", {"a": float("nan")})
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_the_check_for_a_trace_leaves_nothing(tmp_path):
    reporting.check_trace_folder(True)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_versions_device_and_threads():
    found = _device.environment(torch.device("cpu"))
    assert found["device"] == "cpu"
    assert found["threads"] == str(torch.get_num_threads())
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["device_name"] == _device.device_name(torch.device("cpu")) != ""


def test_the_device_named_is_taken_otherwise_the_accelerator(monkeypatch):
    monkeypatch.setattr("gnnprof._device.accelerator", lambda: "cuda")
    assert pick_device(None) == torch.device("cuda", 0)
    assert pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="device='xpu' is not usable on this machine; give cpu or"):
        pick_device("xpu")


# --- run.sh and inference.sh ---------------------------------------------------------------------


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Run a shell script with a Python that notes its arguments, and may fail for PubMed's GAT."""
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/sh\nscript=${1##*/}\nshift\necho "$script $*" >> "$CALLS"\n'
        'case "$script $*" in gat.py*[Mm]ed*) exit ${FAIL:-0} ;; esac\n'
    )
    fake.chmod(0o755)
    calls = tmp_path / "calls"
    monkeypatch.setenv("PYTHON", str(fake))
    monkeypatch.setenv("CALLS", str(calls))

    def run(name: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        command = ["sh", str(CITATION / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done, calls.read_text().splitlines()

    return run


def test_run_sh_has_the_settings_of_the_reference(sweep):
    done, calls = sweep("run.sh", "--root", "data")
    assert done.returncode == 0
    assert done.stdout == "All 48 runs ended well.\n"
    assert len(calls) == 3 * 8 * 2
    runs = " --runs=100"
    assert all(runs in call for call in calls)
    called = {
        " ".join(call.removesuffix(" --root data").replace(runs, "").split()) for call in calls
    }
    assert called >= {
        "gcn.py --dataset=Cora",
        "gcn.py --dataset=PubMed --random_splits",
        "sage.py --dataset=Cora",
        "gin.py --dataset=CiteSeer",
        "gat.py --dataset=CiteSeer",
        "gat.py --dataset=PubMed --lr=0.01 --weight_decay=0.001 --output_heads=8",
        "cheb.py --dataset=Cora --num_hops=3",
        "cheb.py --dataset=CiteSeer --num_hops=2",
        "cheb.py --dataset=CiteSeer --num_hops=3 --random_splits",
        "cheb.py --dataset=PubMed --num_hops=2 --random_splits",
        "sgc.py --dataset=Cora --K=3 --weight_decay=0.0005 --no_normalize_features",
        "sgc.py --dataset=CiteSeer --K=2 --weight_decay=0.005 --no_normalize_features",
        "sgc.py --dataset=PubMed --K=2 --weight_decay=0.0005 --no_normalize_features",
        "arma.py --dataset=Cora --num_stacks=2 --num_layers=1 --shared_weights",
        "arma.py --dataset=Cora --num_stacks=3 --num_layers=1 --shared_weights --random_splits",
        "arma.py --dataset=CiteSeer --num_stacks=3 --num_layers=1 --shared_weights",
        "arma.py --dataset=PubMed --num_stacks=2 --num_layers=1 --skip_dropout=0",
        "arma.py --dataset=PubMed --num_stacks=2 --num_layers=1 --skip_dropout=0.5 --random_splits",
        "appnp.py --dataset=Cora --alpha=0.1",
    }


def test_run_sh_takes_the_stand_ins_where_no_data_is_named(sweep):
    _, calls = sweep("run.sh", "--smoke")
    datasets = {call.split()[1] for call in calls}
    assert datasets == {
        "--dataset=cora-like",
        "--dataset=citeseer-like",
        "--dataset=pubmed-like",
    }
    assert all(call.endswith(" --smoke") for call in calls)


def test_run_sh_goes_on_after_a_failure_and_tells_in_the_end(sweep, monkeypatch):
    monkeypatch.setenv("FAIL", "3")
    done, calls = sweep("run.sh", "--smoke")
    assert done.returncode == 1
    assert len(calls) == 48
    lines = done.stdout.splitlines()
    assert lines[0] == "Of 48 runs these failed:"
    assert len(lines) == 3
    assert lines[2].split()[0] == "gat.py"


def test_inference_sh_times_all_then_profiles_all(sweep):
    done, calls = sweep("inference.sh", "--smoke")
    assert done.returncode == 0
    assert len(calls) == 2 * 48
    assert all("--inference" in call for call in calls)
    assert ["--profile" in call for call in calls] == [False] * 48 + [True] * 48


def test_the_scripts_accept_the_flags_that_the_sweeps_give_them(sweep, monkeypatch):
    _, calls = sweep("run.sh", "--smoke")
    for call in calls:
        name, *flags = call.replace(".py", "").split()
        module = script(name)
        monkeypatch.setattr(
            module, "run_script", lambda _, net, parser, argv: parser.parse_args(argv)
        )
        assert module.main(flags).smoke is True
