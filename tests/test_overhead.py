"""The cost of profiling: ratios within rounds, and every contestant once."""

from __future__ import annotations

import json

import pytest
from benchmark import overhead

pytest.importorskip("torch_geometric.profile.profiler")  # the first import adds warning filters


def test_a_ratio_is_taken_within_its_round():
    # The machine is three times slower in the second round: for both.
    assert overhead.paired_ratio((1.2, 3.6, 1.1), (1.0, 3.0, 1.0)) == pytest.approx(1.2)


def test_the_time_of_the_table_is_in_the_whole_block_only(monkeypatch, fake_clock):
    class Slow:
        def __enter__(self):
            fake_clock.advance(1)
            return self

        def __exit__(self, *_):
            fake_clock.advance(10)

        def __str__(self):
            fake_clock.advance(100)
            return ""

    inside, whole = overhead.timed(Slow, lambda: fake_clock.advance(1000))
    assert (inside, whole) == (1000, 1111)


def test_a_smoke_run_measures_every_contestant_on_every_model(tmp_path, capsys):
    file = tmp_path / "overhead.json"
    results = overhead.main(["--smoke", "--models", "GCN", "GIN", "--json", str(file)])
    measured = {(one.model, one.profiler) for one in results}
    names = ("plain", "torch.profiler", "gnnprof", "gnnprof, memory", "torch_geometric.profile")
    assert measured == {(model, name) for model in ("GCN", "GIN") for name in names}
    assert {one.all_ratio for one in results if one.profiler == "plain"} == {1.0}
    assert all(len(one.all_seconds) == 1 for one in results)  # the first of two rounds is left out
    printed = capsys.readouterr().out
    assert "2 x forward per block" in printed
    assert [line.split()[0] for line in printed.splitlines()[-2:]] == ["GCN", "GIN"]
    assert len(json.loads(file.read_text())["rows"]) == len(results)
