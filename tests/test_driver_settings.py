"""The flags of the training and inference drivers, and the cases that they ask for."""

from __future__ import annotations

import dataclasses

import pytest
from benchmark.drivers.cases import cases_of
from benchmark.drivers.graphs import canonical_name
from benchmark.drivers.settings import hops_for
from tests import driver_cases
from tests.driver_cases import settings

in_a_folder_of_its_own = driver_cases.in_a_folder_of_its_own
pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


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


def test_inference_layer_by_layer_is_not_trimmed():
    flags = ["--datasets", "cora-like", "mag-like", "--models", "gcn", "rgcn", "--trim"]
    with pytest.raises(ValueError, match="inference of gcn goes layer by layer; add --batch-wise"):
        cases_of(settings(*flags, driver="inference"))
    assert cases_of(settings(*flags, "--batch-wise", driver="inference"))[0]
    assert cases_of(settings(*flags))[0]


def test_short_and_differently_written_names_are_known():
    assert canonical_name("mag") == canonical_name("OGBN-MAG") == "ogbn-mag"
    assert canonical_name("products") == "ogbn-products"
    assert canonical_name("PRODUCTS-like") == "products-like"
