"""The inference driver: every way gives the same scores, cached, compiled or loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark.drivers.batches import Feeder
from benchmark.drivers.experiment import measuring
from benchmark.drivers.inference import Inference, measure_inference
from benchmark.drivers.models import HOMOGENEOUS
from benchmark.drivers.timing import PartClock
from benchmark.sampling import _Loader
from tests import driver_cases
from tests.driver_cases import CPU, FAST, case, script, settings

in_a_folder_of_its_own = driver_cases.in_a_folder_of_its_own
cora = driver_cases.cora
mag = driver_cases.mag
fast_compiler = driver_cases.fast_compiler
pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


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


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--batch-wise --num-steps 2", 2),
        ("--batch-wise --num-steps 2 --profile --profile-steps 3", 3),
        ("--batch-wise --num-steps 99", 17),  # 135 nodes in batches of 8
        ("--batch-wise --num-steps -1", 17),
        ("--num-steps 2", 17),  # layer by layer takes all of them
    ],
)
def test_a_cached_loader_samples_and_keeps_what_is_used(flags, expected, cora, monkeypatch):
    sampled: list[int] = []
    collate = _Loader.collate_fn

    def counted(self: Any, index: Any) -> Any:
        sampled.append(1)
        return collate(self, index)

    monkeypatch.setattr(_Loader, "collate_fn", counted)
    made = settings("--threads", "1", "--cached-loader", *flags.split(), driver="inference")
    with measuring(made, CPU), torch.no_grad():
        inference = Inference(case("sage"), made, cora, CPU, lambda: None)
        assert len(inference.batches.fill()) == len(sampled) == expected


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_cached_loader_is_full_before_the_timing(warmup, cora, fake_clock, monkeypatch):
    made = settings(
        *["--threads", "1", "--cached-loader", "--num-epochs", "2", "--warmup", str(warmup)],
        driver="inference",
    )
    iterate = _Loader.__iter__

    def slow(self: Any) -> Any:
        fake_clock.advance(100)
        return iterate(self)

    monkeypatch.setattr(_Loader, "__iter__", slow)
    measured = measure_inference(case("sage", num_neighbors=(-1,)), made, cora, CPU, Path())
    assert measured.seconds.samples == (0.0, 0.0)
    assert measured.parts["load"].total == 0
    assert measured.warm_up_seconds == (100 if warmup else None)


def test_gathering_the_features_of_a_layer_is_loading(cora, monkeypatch):
    given: list[Any] = []
    widths: list[int] = []
    prepare = Feeder.prepare

    def noting(self: Feeder, raw: Any) -> Any:
        given.append(prepare(self, raw))
        return given[-1]

    def lap(self: PartClock, part: str) -> None:
        if part == "load":
            widths.append(given[-1].x.size(1))

    monkeypatch.setattr(Feeder, "prepare", noting)
    monkeypatch.setattr(PartClock, "lap", lap)
    made = settings("--threads", "1", driver="inference")
    with measuring(made, CPU), torch.no_grad():
        one = case("sage", batch_size=500, num_neighbors=(-1,))
        Inference(one, made, cora, CPU, lambda: None).run(PartClock(CPU))
    assert widths == [cora.num_features, 8]


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
