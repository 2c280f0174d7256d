"""The training and inference drivers as scripts: smoke runs, resuming, refusals, any folder."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmark import sampling
from benchmark.drivers.flags import driver_parser
from benchmark.drivers.models import MODELS
from benchmark.drivers.tables import BENCH
from benchmark.sampling import SAMPLER
from tests import driver_cases
from tests.driver_cases import FAST, ROOT, script

in_a_folder_of_its_own = driver_cases.in_a_folder_of_its_own
pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


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


def test_a_table_can_be_asked_for_when_all_cases_are_finished(capsys):
    flags = ["--smoke", "--datasets", "KarateClub", "--models", "gcn", *FAST, "--out", "out"]
    (entry,) = script("training").main(flags)
    table = Path("out/training_benchmark.csv")
    assert not table.exists()
    assert script("training").main([*flags, "--write-csv"]) == [entry]
    with table.open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert float(line["MEDIAN (s)"]) == entry["seconds"]["median"]


def test_a_new_folder_is_made_for_every_run():
    flags = ["--smoke", "--datasets", "KarateClub", "--models", "gcn"]
    for _ in range(2):
        script("training").main([*flags, *FAST])
    assert len(list(Path("out").glob("training-*/records.jsonl"))) == 2


def test_another_sampler_is_another_environment(monkeypatch, capsys):
    flags = ["--smoke", "--datasets", "KarateClub", "--models", "gcn", *FAST, "--out", "out"]
    script("training").main(flags)
    header = json.loads(Path("out/run.json").read_text())
    assert header["environment"]["sampler"] == SAMPLER
    monkeypatch.setattr(sampling, "SAMPLER", "pyg_lib 9")
    with pytest.raises(SystemExit) as caught:
        script("training").main(flags)
    assert caught.value.code == 2
    assert f"environment.sampler was {SAMPLER}, is pyg_lib 9" in capsys.readouterr().err


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
