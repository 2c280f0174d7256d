"""Several processes: what is merged from their profiles, and the command that does it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.examples import shape
from tests.profiles import BACKWARD_TIME, FORWARD, FORWARD_TIME, MS, row, with_backward, with_work
from tests.test_html import HOSTILE, Document

from gnnprof import __version__
from gnnprof.__main__ import main
from gnnprof._html import page
from gnnprof._layer_table import self_time
from gnnprof._merge import (
    DifferentRunsError,
    RankProfile,
    Spread,
    caveats,
    check_together,
    key_of,
    keys_in_tree_order,
    median_rows,
    merge_rows,
    merged_facts,
    name_ranks,
    spread_of,
)
from gnnprof._rank_files import UnreadableProfileError, read_folder, read_profile
from gnnprof._rank_views import MergedRun, merged_summary, merged_text, notes_on
from gnnprof._records import ProfileRow

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs" / "source" / "two_ranks.txt"
MESSAGE = ("convs.0", "message", None)
PLANTED = 30
"""Milliseconds that the slow rank loses in the message phase."""


def slow(rows=FORWARD):
    """The same profile with a message phase that takes longer, and so do all around it."""
    around = {("", None), ("convs.0", None), ("convs.0", "propagate"), ("convs.0", "message")}
    more = PLANTED * MS
    return tuple(
        replace(
            entry,
            self_cpu_time=entry.self_cpu_time + more * (key_of(entry) == MESSAGE),
            cpu_time=entry.cpu_time + more * ((entry.path, entry.phase) in around),
        )
        if entry.op is None
        else entry
        for entry in rows
    )


def profile(rank, rows=FORWARD, world_size=3, **summary):
    header = {
        "schema": "gnnprof.profile/1",
        "model": "Net",
        "rank": rank,
        "world_size": world_size,
        "accelerator": None,
        "steps": 2,
        "total_time": sum(self_time(entry) for entry in rows if entry.op is None),
        "coverage": 1.0,
        "environment": {"torch": "2.13.0", "threads": "1"},
        "overhead": {"markers": 30, "start_time": 0.002, "stop_time": 0.001},
        "peaks": {},
        "limits": {},
        "notes": [],
        **summary,
    }
    return RankProfile(f"net-rank{rank}.json", rank, world_size, header["model"], header, rows)


def three_ranks():
    """Rank 2 is slow in the message phase."""
    return [profile(0), profile(1), profile(2, slow())]


def merged(profiles):
    return {key_of(entry): entry for entry in merge_rows(profiles)}


def run_of(profiles):
    return MergedRun(profiles, merge_rows(profiles), median_rows(profiles))


def in_ms(spread):
    """Minimum, median and maximum in milliseconds, and the rank that is highest."""
    figures = (spread.min, spread.median, spread.max)
    return (*(round(figure / MS, 6) for figure in figures), spread.highest)


# --- merging ---------------------------------------------------------------------------------


def test_the_slow_rank_is_found_in_the_row_where_it_is_slow():
    rows = merged(three_ranks())
    message = rows[MESSAGE]
    assert in_ms(message.own_time) == (6, 6, 36, 2)
    assert message.slowest_rank == 2
    assert message.own_time.imbalance == pytest.approx(6)
    assert message.own_time.excess == pytest.approx(PLANTED * MS)
    assert in_ms(rows["", None, None].cpu_time) == (20, 20, 50, 2)
    assert in_ms(rows["convs.0", "propagate", None].cpu_time) == (10, 10, 40, 2)
    assert [key for key, entry in rows.items() if entry.slowest_rank is not None] == [MESSAGE]
    assert rows["convs", None, None].own_time.imbalance is None  # 0 of 0 seconds
    assert message.ranks == (0, 1, 2)
    assert message.calls == Spread(2, 2, 2, None)


def test_forward_and_backward_are_merged_apart_and_compared_together():
    slow_forward, slow_backward = slow(with_backward()), with_backward()
    slow_backward = tuple(
        replace(entry, self_backward_cpu_time=50 * MS) if key_of(entry) == MESSAGE else entry
        for entry in slow_backward
    )
    profiles = [profile(0, with_backward()), profile(1, slow_forward), profile(2, slow_backward)]
    message = merged(profiles)[MESSAGE]
    assert in_ms(message.self_cpu_time) == (6, 6, 36, 1)
    assert in_ms(message.self_backward_cpu_time) == (12, 12, 50, 2)
    assert in_ms(message.backward_cpu_time) == (12, 12, 12, None)
    assert in_ms(message.own_time) == (18, 48, 56, 2)


def test_what_a_rank_did_not_measure_is_not_zero():
    profiles = [profile(0, with_work(with_backward())), profile(1), profile(2)]
    message = merged(profiles)[MESSAGE]
    assert in_ms(message.self_backward_cpu_time) == (12, 12, 12, None)  # of rank 0 alone
    assert message.peak_memory == Spread(2**20, 2**20, 2**20, None)
    assert message.self_device_time is None
    assert message.own_device_time is None
    assert median_rows(profiles[1:])[0].self_backward_cpu_time is None


def test_a_row_that_a_rank_lacks_never_ran_there():
    exp = ("convs.0", "message", "aten::exp")
    rows = with_work(with_backward())
    fewer = tuple(entry for entry in rows if key_of(entry) != exp)
    entry = merged([profile(0, rows), profile(1, fewer), profile(2, rows)])[exp]
    assert entry.ranks == (0, 2)
    assert in_ms(entry.self_cpu_time) == (0, 1, 1, 0)
    assert in_ms(entry.backward_cpu_time) == (0, 2, 2, 0)
    assert entry.calls == Spread(0, 2, 2, 0)
    assert entry.peak_memory == Spread(2**20, 2**20, 2**20, None)  # there is none of what never ran
    assert entry.self_device_time is None


def test_device_times_have_their_own_slowest_rank():
    def on_device(seconds):
        return [row("lin", "Linear", self_ms=1, self_device_time=seconds, device_time=seconds)]

    profiles = [profile(rank, tuple(on_device(ms * MS))) for rank, ms in enumerate((5, 2, 3))]
    (entry,) = merge_rows(profiles)
    assert in_ms(entry.own_device_time) == (2, 3, 5, 0)
    assert entry.slowest_rank is None  # the host is balanced
    assert "Slowest rank, device" in merged_text(run_of(profiles), ops=False)


def test_rows_stay_in_the_order_of_the_tree_whoever_has_them():
    keys = [key_of(entry) for entry in FORWARD]
    parts = [profile(r, FORWARD[:1] + FORWARD[1 + r :: 3]) for r in range(3)]
    assert set(keys_in_tree_order(parts)) == set(keys)
    without_head = tuple(entry for entry in FORWARD if entry.path != "lin")
    assert keys_in_tree_order([profile(0, without_head), profile(1)]) == keys
    assert keys_in_tree_order([profile(0), profile(1, without_head)]) == keys


def test_medians_are_a_profile_of_their_own():
    rows = median_rows([profile(0, with_work(FORWARD)), profile(1, with_work(slow()))])
    assert [key_of(entry) for entry in rows] == [key_of(entry) for entry in FORWARD]
    by_key = {key_of(entry): entry for entry in rows}
    message = by_key[MESSAGE]
    assert message.self_cpu_time == pytest.approx(21 * MS)
    assert message.flops == round((6 + 36) / 2 * MS * 4e9)
    assert type(message.flops) is int
    assert message.percent_of_limit == 40
    assert message.bound == "memory"
    assert by_key["head", None, None].shared_with == "lin"
    found = sum(self_time(entry) for entry in rows if entry.op is None)
    assert found == pytest.approx(FORWARD_TIME + PLANTED / 2 * MS)  # of two ranks: the mean


def test_a_bound_that_ranks_disagree_about_is_unknown():
    rows = tuple(replace(entry, bound="compute") for entry in with_work(FORWARD))
    first, *_ = median_rows([profile(0, with_work(FORWARD)), profile(1, rows)])
    assert first.bound is None


def test_one_rank_is_merged_with_itself():
    (message,) = (entry for entry in merge_rows([profile(0)]) if key_of(entry) == MESSAGE)
    assert in_ms(message.own_time) == (6, 6, 6, None)
    assert median_rows([profile(0, with_backward())]) == with_backward()


def test_spread_names_the_first_of_equals():
    assert spread_of({3: 1.0, 1: 4.0, 2: 4.0}) == Spread(1.0, 4.0, 4.0, 1)
    assert spread_of({5: 2.0}) == Spread(2.0, 2.0, 2.0, None)


def test_a_merged_row_goes_to_json_with_its_verdict():
    entry = json.loads(json.dumps(merged(three_ranks())[MESSAGE].to_dict()))
    assert entry["slowest_rank"] == 2
    assert entry["imbalance"] == pytest.approx(6)
    assert entry["own_time"]["highest"] == 2
    assert entry["self_backward_cpu_time"] is None
    assert entry["ranks"] == [0, 1, 2]


# --- the run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        (
            [profile(0), profile(1, model="GAT")],
            "model is 'Net' in net-rank0.json and 'GAT' in net-rank1.json",
        ),
        ([profile(0), profile(1, world_size=4)], "world_size is 3 in net-rank0.json and 4"),
        (
            [profile(0), replace(profile(0), file="old.json")],
            "both net-rank0.json and old.json are of rank 0",
        ),
    ],
)
def test_profiles_of_different_runs_are_refused(profiles, message):
    with pytest.raises(DifferentRunsError, match=message):
        check_together(profiles)


def test_what_a_reader_must_know_is_said():
    other = {"torch": "2.12.0", "threads": "1", "torch_geometric": "2.8.1"}
    profiles = [
        profile(0, world_size=5),
        profile(2, world_size=5, environment=other, notes=["2 calls not measured"]),
        profile(3, world_size=5, steps=7),
    ]
    assert list(caveats(profiles)) == [
        "No profile of ranks 1, 4 of 5",
        "The ranks differ in torch: 2.13.0 on ranks 0, 3; 2.12.0 on rank 2",
        "The ranks differ in torch_geometric: None on ranks 0, 3; 2.8.1 on rank 2",
        "The ranks differ in number of steps: 2 on ranks 0, 2; 7 on rank 3",
        "Rank 2: 2 calls not measured",
    ]
    assert list(caveats(three_ranks())) == []


def test_notes_name_the_row_of_the_model_that_is_farthest_apart():
    waiting = tuple(
        replace(entry, self_cpu_time=99 * MS) if entry.phase == "outside" else entry
        for entry in FORWARD[1:]  # no row for the model itself
    )
    profiles = [profile(0, waiting), profile(1, waiting), profile(2, slow())]
    assert list(notes_on(run_of(profiles))) == [
        "Farthest apart in the model: convs.0 / message, 36.000 ms on rank 2, "
        "6.000 ms in the median",
        "1 rows are not on all ranks; where one never ran it counts as 0",
    ]
    assert list(notes_on(run_of([profile(r) for r in range(3)]))) == []


def test_facts_of_all_ranks_become_one():
    facts = {
        0: {"torch": "2.13.0", "start": 1.0, "ratio": None, "device": "a"},
        1: {"torch": "2.13.0", "start": 2.0, "ratio": None, "device": "b"},
        2: {"torch": "2.13.0", "start": 9.0, "ratio": 1.5, "device": "a"},
    }
    assert merged_facts(facts) == {
        "torch": "2.13.0",
        "start": 2.0,
        "ratio": 1.5,
        "device": "a on ranks 0, 2; b on rank 1",
    }
    assert merged_facts({0: {"ratio": None}, 1: {}}) == {"ratio": None}


@pytest.mark.parametrize(
    ("ranks", "name"),
    [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([1, 3, 4], "ranks 1, 3-4")],
)
def test_ranks_are_named_in_runs(ranks, name):
    assert name_ranks(ranks) == name


# --- text and page ---------------------------------------------------------------------------

TABLE = """\
Net, ranks 0-2 of 3

Rank |           File | Steps | Total [ms] | Forward [ms] | Backward [ms] | Outside the model [ms] | In rows | Peak memory
-----|----------------|-------|------------|--------------|---------------|------------------------|---------|------------
0    | net-rank0.json |     2 |     25.000 |       20.000 |           n/a |                  5.000 | 100.00% |         n/a
1    | net-rank1.json |     2 |     25.000 |       20.000 |           n/a |                  5.000 | 100.00% |         n/a
2    | net-rank2.json |     2 |     55.000 |       50.000 |           n/a |                  5.000 | 100.00% |         n/a

Minimum / median / maximum over the ranks:

Module                 | Slowest rank | Max/median | Calls |     Self forward [ms] |        Total forward [ms]
-----------------------|--------------|------------|-------|-----------------------|--------------------------
Net                    |            - |       1.00 |     2 |                 1.000 |  20.000 / 20.000 / 50.000
  convs (ModuleList)   |            - |        n/a |     0 |                 0.000 |                     0.000
    0 (GATConv)        |            - |       1.00 |     2 |                 3.000 |  13.000 / 13.000 / 43.000
      [propagate]      |            - |       1.00 |     2 |                 2.000 |  10.000 / 10.000 / 40.000
        [message]      |            2 |       6.00 |     2 | 6.000 / 6.000 / 36.000 |    6.000 / 6.000 / 36.000
        [aggregate]    |            - |       1.00 |     2 |                 2.000 |                     2.000
  lin (Linear)         |            - |       1.00 |     2 |                 6.000 |                     6.000
  head (Linear) = lin  |            - |        n/a |     2 |                 0.000 |                     6.000
loss                   |            - |       1.00 |     2 |                 2.000 |                     2.000
outside                |            - |       1.00 |     1 |                 3.000 |                     3.000
Farthest apart in the model: convs.0 / message, 36.000 ms on rank 2, 6.000 ms in the median
"""  # noqa: E501


def cells(text):
    return [[cell.strip(" -") for cell in line.split("|")] for line in text.splitlines()]


def test_the_table_stands_in_tree_order():
    text = merged_text(run_of(three_ranks()), ops=False)
    assert cells(text) == cells(TABLE)
    assert "aten::exp" in merged_text(run_of(three_ranks()), ops=True)


def test_calls_and_memory_have_their_spread():
    rows = with_work(FORWARD)
    more = tuple(replace(entry, calls=1001, peak_memory=2**22) for entry in rows)
    text = merged_text(run_of([profile(0, rows), profile(1, more)]), ops=False)
    assert "| 2 / 501.5 / 1,001 |" in text
    assert "Peak [MiB]" in text
    assert "1.00 / 2.50 / 4.00" in text


def test_the_page_shows_medians_ranks_and_spread():
    profiles = [
        profile(rank, rows, peaks={"memory": (rank + 1) * 2**20, "memory_row": "lin"})
        for rank, rows in enumerate((with_backward(), with_backward(), slow(with_backward())))
    ]
    run = run_of(profiles)
    document = Document(page(run.medians, merged_summary(run, ops=False)))
    assert document.data["total"] == pytest.approx(FORWARD_TIME + BACKWARD_TIME)
    for words in (
        "Net, ranks 0-2 of 3",
        "Total time 56.000 ms 100.00% of it is in the rows",
        "Peak memory 3.00 MiB of live tensors, reached in lin on rank 2",
        "is the median over the ranks",
        "Farthest apart in the model: convs.0 / message, 48.000 ms on rank 2, 18.000 ms",
        "Markers placed 30",
        "2 net-rank2.json 2 86.000 50.000 31.000 5.000 100.00% 3.00 MiB",
        # The first row of the table: where one rank loses most.
        "Total backward [ms] convs.0 / message 2 2.67 2 6.000 / 6.000 / 36.000 12.000",
    ):
        assert words in document.text, words


def test_hostile_names_are_inert_in_the_tables():
    rows = tuple(row(f"a{i}", name, op=None, self_ms=1) for i, name in enumerate(HOSTILE))
    rows += tuple(row(name, "Linear", self_ms=2) for name in HOSTILE)
    profiles = [
        replace(profile(rank, rows, model=HOSTILE[0], notes=HOSTILE), file=HOSTILE[1])
        for rank in range(2)
    ]
    run = run_of(profiles)
    document = Document(page(run.medians, merged_summary(run, ops=True)))
    assert len(document.all("script")) == 2
    assert document.all("img") == []
    assert HOSTILE[1] in document.text


def test_a_huge_table_of_the_spread_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr("gnnprof._rank_views.MOST_ROWS", 3)
    _, spread = merged_summary(run_of(three_ranks()), ops=True)["tables"]
    assert len(spread.rows) == 3
    assert "The 14 rows with the smallest one are left out." in spread.about


# --- files -----------------------------------------------------------------------------------


LEFT_OUT = object()


def write(folder, *profiles, **changes):
    """Write profiles as `Profiler.to_json` does, with changes in the header."""
    for entry in profiles:
        content = {**entry.summary, "rows": [asdict(line) for line in entry.rows], **changes}
        content = {name: value for name, value in content.items() if value is not LEFT_OUT}
        (folder / entry.file).write_text(json.dumps(content, indent=1))


def test_what_was_written_is_read_again(tmp_path):
    profiles = [profile(0, with_work(with_backward()), 2), profile(1, FORWARD, 2)]
    write(tmp_path, *profiles)
    read, skipped = read_folder(tmp_path)
    assert [entry.rows for entry in read] == [entry.rows for entry in profiles]
    assert [entry.file for entry in read] == ["net-rank0.json", "net-rank1.json"]
    assert [entry.summary for entry in read] == [entry.summary for entry in profiles]
    assert skipped == []


def test_other_files_are_skipped_with_the_reason(tmp_path):
    write(tmp_path, *three_ranks())
    inner = {"schema": "gnnprof.ranks/1", "ranks": [{"schema": "gnnprof.profile/1"}]}
    (tmp_path / "merged.json").write_text(json.dumps(inner))
    (tmp_path / "trace.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": [\xff')
    (tmp_path / "report.html").touch()
    (tmp_path / "folder.json").mkdir()
    (tmp_path / ".3fa9.json").write_text('{"schema": "gnnprof.profile/1", "mod')  # being written
    read, skipped = read_folder(tmp_path)
    assert [entry.rank for entry in read] == [0, 1, 2]
    assert {entry.file: entry.reason for entry in skipped} == {
        "merged.json": "not written by Profiler.to_json",
        "trace.json": "not written by Profiler.to_json",
        "folder.json": "not written by Profiler.to_json",
        "report.html": "no .json file",
    }


def without(name, index=0):
    rows = [asdict(entry) for entry in FORWARD]
    del rows[index][name]
    return rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"schema": "gnnprof.profile/2"},
            rf"has the schema 'gnnprof.profile/2', and gnnprof {__version__} reads "
            "'gnnprof.profile/1'; install the version",
        ),
        ({"rank": LEFT_OUT}, "no complete profile: it lacks 'rank'"),
        ({"rank": True}, "'rank' is a bool"),
        ({"rank": 3}, "there is no rank 3 among 3"),
        ({"total_time": "long"}, "'total_time' is a str"),
        ({"total_time": float("nan")}, "damaged: NaN is no JSON number"),
        ({"rows": {}}, "'rows' is a dict"),
        ({"rows": [[]]}, "row 0: no object"),
        ({"rows": without("calls", 2)}, "row 2: it lacks 'calls'"),
        ({"rows": [{**asdict(FORWARD[0]), "cpu_time": None}]}, "row 0: 'cpu_time' is a NoneType"),
        ({"rows": [asdict(FORWARD[0])] * 2}, r"row 1: a second row of \('', None, None\)"),
    ],
)
def test_a_profile_that_cannot_be_read_is_an_error_not_skipped(tmp_path, changes, message):
    write(tmp_path, profile(0), **changes)
    with pytest.raises(UnreadableProfileError, match=message):
        read_folder(tmp_path)


def test_a_damaged_profile_is_an_error(tmp_path):
    write(tmp_path, profile(0))
    file = tmp_path / "net-rank0.json"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UnreadableProfileError, match=r"net-rank0\.json is damaged: .*copy it"):
        read_folder(tmp_path)


def test_figures_of_a_later_version_do_not_matter(tmp_path):
    rows = [{**asdict(FORWARD[0]), "watts": 3}, without("bound")[0]]
    rows[1]["path"] = "lin"
    write(tmp_path, profile(0), rows=rows, watts=5)
    entry = read_profile(tmp_path / "net-rank0.json")
    assert entry.rows[0] == FORWARD[0]
    assert entry.rows[1].bound is None


# --- the command -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", *three_ranks())
    return tmp_path / "run"


def test_the_command_prints_the_table_and_writes_page_and_rows(folder, capsys):
    (folder / "trace.json").write_text("{}")
    assert main(["report", "run", "--json", "merged.json"]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert out == (
        merged_text(run_of(three_ranks()), ops=False)
        + "Skipped (not written by Profiler.to_json): trace.json\n"
        + f"Page: {Path('run', 'report.html')}\nMerged rows: merged.json\n"
    )
    content = json.loads(Path("merged.json").read_text())
    assert content["schema"] == "gnnprof.ranks/1"
    assert [rank["total_time"] for rank in content["ranks"]] == pytest.approx([0.025, 0.025, 0.055])
    assert content["rows"] == json.loads(
        json.dumps([entry.to_dict() for entry in merge_rows(three_ranks())])
    )
    assert "Spread over the ranks" in (folder / "report.html").read_text()


def test_a_reader_that_stops_early_loses_no_file(folder):
    words = [sys.executable, "-m", "gnnprof", "report", "run", "--json", "merged.json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        command.stdout.close()  # before anything was printed
        assert command.stderr.read() == b""
        assert command.wait(60) == 0
    assert Path("merged.json").exists()
    assert (folder / "report.html").exists()


def test_a_page_that_cannot_be_written_does_not_lose_the_table(folder, capsys):
    assert main(["report", "run", "--out", "nowhere/page.html"]) == 1
    out, error = capsys.readouterr()
    assert out == merged_text(run_of(three_ranks()), ops=False)
    assert error.startswith("gnnprof report: ")
    assert "page.html" in error


def test_an_earlier_page_is_kept_unless_told(folder, capsys):
    (folder / "report.html").write_text("earlier")
    assert main(["report", "run"]) == 1
    assert capsys.readouterr() == (
        "",
        f"gnnprof report: {Path('run', 'report.html')} already exists; "
        "give another name, or --overwrite\n",
    )
    assert main(["report", "run", "--out", "other.html"]) == 0
    assert (folder / "report.html").read_text() == "earlier"
    assert main(["report", "run", "--overwrite", "--ops"]) == 0
    assert "aten::exp" in capsys.readouterr().out
    assert "Net, ranks 0-2 of 3" in (folder / "report.html").read_text()


def test_a_missing_rank_is_said(folder, capsys):
    (folder / "net-rank1.json").unlink()
    assert main(["report", "run"]) == 0
    assert "No profile of rank 1 of 3\n" in capsys.readouterr().out
    assert "No profile of rank 1 of 3" in (folder / "report.html").read_text()


def test_one_file_is_shown_alone(folder, capsys):
    assert main(["report", "run/net-rank2.json"]) == 0
    out = capsys.readouterr().out
    assert ["[message]", "65.5", "36.000ms", "36.000ms", "2"] in cells(out)
    assert "Rows cover 100.00% of 0.055000 s\n" in out
    text = Document((folder / "report.html").read_text()).text
    assert "Net, rank 2 of 3" in text
    assert "Spread over the ranks" not in text


def test_a_folder_of_one_process_needs_no_ranks(tmp_path, capsys):
    write(tmp_path, profile(0, with_work(with_backward()), world_size=1))
    assert main(["report", str(tmp_path), "--ops"]) == 0
    out = capsys.readouterr().out
    assert "aten::exp" in out
    for heading in ("Self CPU backward", "CPU Mem peak", "FLOPs"):
        assert heading in out
    assert "Slowest" not in out


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "No such file or directory: 'nowhere'"),
        ("notes.txt", "notes.txt was not written by Profiler.to_json"),
        ("empty", "empty has no profile of gnnprof; write one on every rank by Profiler.to_json"),
        ("mixed", "both net-rank0.json and old.json are of rank 0"),
    ],
)
def test_what_cannot_be_reported_is_one_line(folder, capsys, path, message):
    Path("notes.txt").write_text("notes")
    Path("empty").mkdir()
    shutil.copytree("run", "mixed")
    shutil.copy("run/net-rank0.json", "mixed/old.json")
    assert main(["report", path]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("gnnprof report: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(Path().rglob("*.html"))


def test_help_names_the_options(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["report", "--help"])
    out = capsys.readouterr().out
    for option in ("DIR", "--out PAGE", "--json FILE", "--ops", "--overwrite"):
        assert option in out


def test_a_script_called_report_can_still_be_run(tmp_path):
    """In a stand-in of gnnprof: the real one imports torch."""
    package = tmp_path / "packages" / "gnnprof"
    package.mkdir(parents=True)
    for name in ("__main__", "_runner", "_version"):
        shutil.copy(ROOT / "src" / "gnnprof" / f"{name}.py", package)
    (package / "__init__.py").touch()
    (package / "_report.py").write_text("def main(words):\n    print('command', words)\n")
    (tmp_path / "report").write_text("import sys\nprint('script', sys.argv[1:])\n")

    def printed(*words):
        return subprocess.run(
            [sys.executable, "-m", "gnnprof", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    assert printed("report", "x") == "command ['x']\n"
    assert printed("./report", "x") == "script ['x']\n"
    assert printed("run", "report", "x") == "script ['x']\n"


# --- two real processes ----------------------------------------------------------------------


# Imports PyG once and forks, which takes half the time of two processes from scratch. Like
# torchrun, it sets the variables, and ends the other process when one fails.
LAUNCH = """
import os, runpy, sys
import torch.multiprocessing
import torch_geometric.nn

def run(rank, port, *words):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")

torch.multiprocessing.start_processes(run, sys.argv[1:], nprocs=2, start_method="fork")
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Folder with what two processes under DistributedDataParallel wrote; rank 1 is slow."""
    folder = tmp_path_factory.mktemp("run") / "profiles"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, port, ROOT / "docs" / "two_ranks.py", folder],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_each_rank_writes_its_own_file(two_ranks):
    profiles, skipped = read_folder(two_ranks)
    assert [entry.file for entry in profiles] == ["prof-rank0.json", "prof-rank1.json"]
    assert [(entry.rank, entry.world_size) for entry in profiles] == [(0, 2), (1, 2)]
    assert skipped == []


def test_every_rank_is_covered_forward_and_backward(two_ranks):
    for entry in read_folder(two_ranks)[0]:
        found = sum(self_time(line) for line in entry.rows if line.op is None)
        assert found == pytest.approx(entry.summary["total_time"], rel=0.01)
        assert entry.summary["coverage"] >= 0.99
        for layer in (0, 1):
            message = entry.by_key[f"module.convs.{layer}", "message", None]
            assert (message.calls, message.backward_calls) == (5, 5)
            assert message.self_backward_cpu_time > 0


def test_the_slow_rank_is_named(two_ranks):
    profiles, _ = read_folder(two_ranks)
    rows = {key_of(entry): entry for entry in merge_rows(profiles)}
    slow_row = rows["module.convs.0", "message", None]
    assert slow_row.slowest_rank == 1
    planted = 5 * 0.05
    assert planted <= slow_row.self_cpu_time.max < 2 * planted
    inside = [entry for entry in rows.values() if entry.path is not None and entry.op is None]
    assert max(inside, key=lambda entry: entry.own_time.excess) == slow_row
    found = sum(self_time(entry) for entry in median_rows(profiles) if entry.op is None)
    total = sum(entry.summary["total_time"] for entry in profiles) / 2
    assert found == pytest.approx(total, rel=0.01)


def test_the_command_prints_what_the_documentation_shows(two_ranks, monkeypatch, capsys):
    monkeypatch.chdir(two_ranks.parent)
    assert main(["report", two_ranks.name]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    if os.environ.get("GNNPROF_RECORD"):
        RECORDED.write_text(out, encoding="utf-8")
    assert shape(out) == shape(RECORDED.read_text(encoding="utf-8"))
    assert "Farthest apart in the model: module.convs.0 / message" in out
    assert "Spread over the ranks" in (two_ranks / "report.html").read_text(encoding="utf-8")


def test_a_single_process_says_so(tmp_path):
    import torch

    from gnnprof import Profiler

    model = torch.nn.Linear(2, 2)
    with Profiler(model) as prof:
        model(torch.ones(1, 2))
    entry = read_profile(prof.to_json(tmp_path / "prof.json"))
    assert (entry.rank, entry.world_size) == (0, 1)
    assert entry.rows == prof.rows
    assert all(isinstance(line, ProfileRow) for line in entry.rows)
