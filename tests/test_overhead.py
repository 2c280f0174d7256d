"""The cost of profiling: ratios within rounds, and every contestant once."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

import pytest
from benchmark import overhead

pytest.importorskip("torch_geometric.profile.profiler")  # the first import adds warning filters


def test_a_ratio_is_taken_within_its_round():
    # The machine is three times slower in the second round: for both.
    assert overhead.paired_ratio((1.2, 3.6, 1.1), (1.0, 3.0, 1.0)) == pytest.approx(1.2)


def test_every_block_is_compared_with_its_plain_neighbours(monkeypatch, fake_clock):
    class Slow:
        def __enter__(self):
            fake_clock.advance(0.1)

        def __exit__(self, *_):
            fake_clock.advance(0.4)

    pace = iter(range(1, 100))  # every block takes a second longer than the one before

    def run():
        fake_clock.advance(next(pace))

    monkeypatch.setattr(overhead, "body", lambda *_: (run, None))
    monkeypatch.setattr(overhead, "contestants", lambda _: {"plain": nullcontext, "slow": Slow})
    plain, slow = overhead.measure("GCN", "tiny", "forward", overhead.Settings(rounds=3))
    assert plain.all_ratio == plain.inside_ratio == 1  # a linear drift cancels
    assert slow.inside_ratio == 1
    assert slow.all_seconds == pytest.approx([s + 0.5 for s in slow.plain_seconds])
    assert slow.plain_seconds == (6.0, 12.0)  # first in the second round, last in the third


def test_the_added_cost_is_in_percent_of_what_the_reference_adds():
    assert overhead.share_of_reference(1.2, 1.8) == "25 %"
    assert overhead.share_of_reference(1.2, 0.9) == "-"  # lost in the noise


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


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--json", "there.json"], "--json=there.json already exists"),
        (["--json", "no/such.json"], "--json=no/such.json: there is no folder no"),
        (["--rounds", "1"], "1 is not allowed; give a whole number at least 2"),
        (["--steps", "0"], "0 is not allowed; give a whole number at least 1"),
    ],
)
def test_what_cannot_be_done_is_said_before_measuring(
    flags, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.json").touch()
    monkeypatch.setattr(overhead, "measure", None)
    with pytest.raises(SystemExit) as caught:
        overhead.main(flags)
    assert caught.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert sentence in said[-1]


def test_a_terminal_sees_the_rounds_and_a_file_does_not(monkeypatch, capsys, fake_clock):
    monkeypatch.setattr(overhead, "body", lambda *_: (lambda: fake_clock.advance(1), None))
    monkeypatch.setattr(overhead, "contestants", lambda _: {"plain": nullcontext})
    list(overhead.measure("GCN", "tiny", "forward", overhead.Settings(rounds=3)))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    list(overhead.measure("GCN", "tiny", "forward", overhead.Settings(rounds=3)))
    shown = capsys.readouterr().err
    assert "GCN, tiny, forward" in shown
    assert "0/3" in shown


def test_a_smoke_run_measures_every_contestant_on_every_model(tmp_path, capsys):
    file = tmp_path / "overhead.json"
    results = overhead.main(["--smoke", "--models", "GCN", "GIN", "--json", str(file)])
    measured = {(one.model, one.profiler) for one in results}
    names = ("plain", "torch.profiler", "gnnprof", "gnnprof, memory", "torch_geometric.profile")
    assert measured == {(model, name) for model in ("GCN", "GIN") for name in names}
    assert all(len(one.all_seconds) == 1 for one in results)  # the first of two rounds is left out
    printed = capsys.readouterr().out
    assert "2 x forward per block" in printed
    assert [line.split()[0] for line in printed.splitlines()[-2:]] == ["GCN", "GIN"]
    assert len(json.loads(file.read_text())["rows"]) == len(results)
