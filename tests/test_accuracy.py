"""The table of accuracies: its records, its settings, and that it trains nothing twice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from benchmark.citation import accuracy, gcn

CITATION = Path(accuracy.__file__).parent


def record(*, stand_in: bool, std: float | None = 0.012) -> dict[str, object]:
    return {
        "dataset": {"name": "citeseer-like" if stand_in else "CiteSeer", "is_stand_in": stand_in},
        "test_accuracy": {"mean": 0.7104, "sample_std": std},
        "runs": [{}, {}, {}],
    }


def test_a_record_becomes_a_line_in_percent_beside_the_published_figure():
    line = accuracy.from_record("GCN", "CiteSeer", record(stand_in=False))
    assert (line.runs, line.published) == (3, "71.1 ± 0.7")
    assert line.mean == pytest.approx(71.04)
    assert line.std == pytest.approx(1.2)
    assert "71.0 ± 1.2" in accuracy.table([line])


def test_a_stand_in_is_never_put_beside_a_published_figure():
    line = accuracy.from_record("GCN", "CiteSeer", record(stand_in=True, std=None))
    assert line.published is None
    assert [cell.strip() for cell in accuracy.table([line]).splitlines()[-1].split("|")][1:-1] == [
        "GCN",
        "citeseer-like",
        "3",
        "71.0 ± n/a",
        "n/a",
    ]


def test_a_record_of_something_else_is_refused():
    with pytest.raises(ValueError, match="no record of a training"):
        accuracy.from_record("GCN", "CiteSeer", record(stand_in=False) | {"test_accuracy": None})


@pytest.mark.parametrize("model", accuracy.SCRIPTS)
@pytest.mark.parametrize("dataset", accuracy.DATASETS)
def test_the_settings_are_those_of_run_sh(model, dataset):
    name = accuracy.SCRIPTS[model]
    command = f'. "{CITATION}/sweep.sh"; settings {name} {dataset} fixed'
    out = subprocess.run(
        ["sh", "-c", command, str(CITATION / "run.sh")], check=True, capture_output=True, text=True
    ).stdout
    assert sorted(accuracy.SETTINGS.get((model, dataset), ())) == sorted(out.split())


def test_every_model_has_a_published_figure_for_every_graph():
    pairs = {(model, data) for model in accuracy.SCRIPTS for data in accuracy.DATASETS}
    assert set(accuracy.PUBLISHED) == pairs


def test_what_has_a_record_is_not_trained_again(tmp_path, monkeypatch, capsys):
    arguments = ["--models", "GCN", "--datasets", "CiteSeer", "--smoke", "--out", str(tmp_path)]
    (first,) = accuracy.main(arguments)
    stored = json.loads((tmp_path / "GCN-citeseer-like-1.json").read_text())
    assert first.mean == pytest.approx(100 * stored["runs"][0]["test_accuracy"])
    monkeypatch.setattr(gcn, "main", lambda _: pytest.fail("trained again"))
    assert accuracy.main(arguments) == [first]


def test_real_data_is_asked_for(tmp_path, capsys):
    with pytest.raises(SystemExit):
        accuracy.main(["--out", str(tmp_path / "out")])
    assert "--root FOLDER is needed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
