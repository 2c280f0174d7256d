"""Golden tables from hand-made records, and that their figures add up."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from gnnprof._layer_table import Line, costliest_first, layer_table, lines_of, selected, self_time
from gnnprof._layer_table import titles as titles_of
from gnnprof._records import ProfileRow
from gnnprof._tables import (
    COLUMNS,
    field_names,
    format_memory,
    format_time,
    records_to_csv,
    records_to_json,
    records_to_pandas,
)


def row(path, module, phase, op, calls, own, total, **more) -> ProfileRow:
    return ProfileRow(path, module, phase, op, calls, own / 1e6, total / 1e6, **more)


ROWS = (
    row("", "GCN", None, None, 2, 100, 900),
    row("", "GCN", None, "aten::relu", 2, 60, 60),
    row("conv", "GCNConv", None, None, 2, 50, 800),
    row("conv", "GCNConv", "propagate", None, 2, 250, 700),
    row("conv", "GCNConv", "message", None, 2, 450, 450),
    row("conv", "GCNConv", "message", "aten::mul", 2, 440, 440),
    row("conv.lin", "Linear", None, None, 2, 50, 50),
    row("same", "GCNConv", None, None, 2, 0, 800, shared_with="conv"),
    row(None, None, "outside", None, 1, 100, 100),
)

WITH_BACKWARD = (
    row("", "Net", None, None, 1, 100, 100, self_backward_cpu_time=3e-4, backward_cpu_time=3e-4),
    row(None, None, "loss", None, 1, 50, 50, self_backward_cpu_time=5e-5, backward_cpu_time=5e-5),
    row(None, None, "outside", None, 1, 500, 500, self_backward_cpu_time=0, backward_cpu_time=0),
)

GOLDEN = """\
Module               | Self CPU % | Self CPU total | CPU total | Number of Calls
---------------------|------------|----------------|-----------|----------------
GCN                  |       10.0 |      100.000us | 900.000us |               2
  aten::relu         |        6.0 |       60.000us |  60.000us |               2
  conv (GCNConv)     |        5.0 |       50.000us | 800.000us |               2
    [propagate]      |       25.0 |      250.000us | 700.000us |               2
      [message]      |       45.0 |      450.000us | 450.000us |               2
        aten::mul    |       44.0 |      440.000us | 440.000us |               2
    lin (Linear)     |        5.0 |       50.000us |  50.000us |               2
  same (GCNConv) = conv |     0.0 |        0.000us | 800.000us |               2
outside              |       10.0 |      100.000us | 100.000us |               1
"""


def table(rows=ROWS, measured=frozenset(), whole=1e-3, accelerator=None) -> str:
    return layer_table(list(lines_of(rows, "GCN")), measured, whole, accelerator)


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]


def test_golden_table():
    assert cells(table())[0] == cells(GOLDEN)[0]
    assert cells(table())[2:] == cells(GOLDEN)[2:]
    assert len({len(line) for line in table().splitlines()}) == 1


def test_the_golden_table_adds_up():
    shares = [float(line[1]) for line, r in zip(cells(GOLDEN)[2:], ROWS, strict=True) if not r.op]
    assert sum(shares) == 100.0


def test_shares_count_forward_and_backward():
    lines = cells(table(WITH_BACKWARD, frozenset({"backward"})))
    assert [(line[0], line[1], line[4]) for line in lines[2:]] == [
        ("GCN", "40.0", "300.000us"),
        ("loss", "10.0", "50.000us"),
        ("outside", "50.0", "0.000us"),
    ]


def test_labels_are_those_of_the_reference():
    assert [line.label for line in lines_of(ROWS, "GCN")] == [
        "-GCN",
        "-aten::relu",
        "-conv",
        "-conv--propagate",
        "-conv--propagate---message",
        "-conv--propagate---message----aten::mul",
        "-conv--lin",
        "-same",
        "-outside",
    ]


@pytest.mark.parametrize(
    ("measured", "hidden"),
    [
        (set(), {"CUDA", "Mem", "backward"}),
        ({"device"}, {"Mem", "backward"}),
        ({"memory"}, {"CUDA", "backward"}),
        ({"backward"}, {"CUDA", "Mem"}),
        ({"device", "memory", "backward"}, set()),
        ({"work"}, {"CUDA", "Mem", "backward"}),
    ],
)
def test_a_column_that_was_asked_for_is_shown(measured, hidden):
    heading = cells(table(measured=frozenset(measured)))[0]
    shown = [c for c in COLUMNS if "work" not in c.needs or "work" in measured]
    expected = [c.heading for c in shown if not any(word in c.heading for word in hidden)]
    assert heading == ["Module", "Self CPU %", *expected]


def titles(lines) -> list[str]:
    return [title.strip() for title in titles_of(lines)]


def test_a_depth_a_least_share_and_no_ops():
    lines = list(lines_of(ROWS, "GCN"))
    assert titles(selected(lines, depth=0)) == ["GCN", "outside"]
    assert titles(selected(lines, depth=1, ops=False)) == [
        "GCN",
        "conv (GCNConv)",
        "same (GCNConv) = conv",
        "outside",
    ]
    # conv itself has 50 us, but all below it 800 us
    assert titles(selected(lines, least=2e-4)) == [
        "GCN",
        "conv (GCNConv)",
        "[propagate]",
        "[message]",
        "aten::mul",
    ]


def test_the_costliest_comes_first_and_keeps_what_is_below_it():
    lines = list(lines_of(ROWS, "GCN"))
    assert titles(costliest_first(lines, self_time))[:4] == [
        "GCN",
        "aten::relu",
        "conv (GCNConv)",
        "[propagate]",
    ]
    by_total = costliest_first(lines, lambda row: row.cpu_time)
    assert titles(by_total)[1] == "conv (GCNConv)"
    assert sorted(titles(by_total)) == sorted(titles(lines))


def selected_row(path: str, seconds: float, op: str | None = None) -> ProfileRow:
    return ProfileRow(path, "Conv", None, op, 1, seconds, seconds)


def test_rows_without_their_parents_keep_together_and_say_where_they_are():
    rows = [
        selected_row("convs.0", 2.0),
        selected_row("convs.0", 1.5, "aten::mm"),
        selected_row("convs.0", 0.5, "aten::add"),
        selected_row("convs.1", 3.0),
        selected_row("convs.1", 1.0, "aten::mm"),
        selected_row("lin", 2.5),
    ]
    lines = list(lines_of(rows, "Net"))
    assert titles(costliest_first(lines, self_time)) == [
        "convs.1 (Conv)",
        "aten::mm",
        "convs.0 (Conv)",
        "aten::mm",
        "aten::add",
        "lin (Conv)",
    ]
    assert titles([*lines, Line(selected_row("convs", 0.0), ("Net", "convs"))])[:1] == ["0 (Conv)"]
    by_layer = list(lines_of([selected_row(f"convs.{i}.lin", 1.0) for i in range(2)], "Net"))
    assert titles(by_layer) == ["convs.0.lin (Conv)", "convs.1.lin (Conv)"]


def test_a_range_may_have_the_name_of_a_module():
    rows = [
        selected_row("", 1.0),
        selected_row("", 0.2, "encoder"),  # record_function("encoder") in the model's forward
        selected_row("encoder", 3.0),
        selected_row("encoder", 2.0, "aten::mm"),
        selected_row("head", 4.0),
    ]
    assert titles(costliest_first(list(lines_of(rows, "Net")), self_time)) == [
        "Net",
        "head (Conv)",
        "encoder",
        "encoder (Conv)",
        "aten::mm",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_table_fits_its_width(width):
    text = layer_table(list(lines_of(ROWS, "GCN")), frozenset(), 1e-3, None, width)
    assert max(map(len, text.splitlines())) <= width
    assert "Self CPU %" in text
    if width < 60:
        assert "Number of Calls" not in text


def test_headings_name_the_accelerator_that_was_profiled():
    assert "Self XPU total" in table(measured=frozenset({"device"}), accelerator="xpu")


def test_unknown_prints_as_not_measured():
    line = cells(table(measured=frozenset({"memory"})))[2]
    assert line[4:7] == ["n/a", "n/a", "n/a"]


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0.000us"), (999.9994, "999.999us"), (1000, "1.000ms"), (2.5e6, "2.500s"), (None, "n/a")],
)
def test_format_time(us, text):
    assert format_time(us) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 b"), (1023, "1023 b"), (1536, "1.50 Kb"), (-(3 << 20), "-3.00 Mb"), (None, "n/a")],
)
def test_format_memory(nbytes, text):
    assert format_memory(nbytes) == text


def test_json_keeps_every_field_and_the_header(tmp_path):
    path = records_to_json(tmp_path / "rows.json", ROWS, {"schema": "x/1"})
    saved = json.loads(path.read_text())
    assert saved["schema"] == "x/1"
    assert [ProfileRow(**fields) for fields in saved["rows"]] == list(ROWS)


def test_csv_has_no_formulas_and_leaves_unknown_empty(tmp_path):
    rows = (ROWS[0], replace(ROWS[1], op="=HYPERLINK(1)"), replace(ROWS[1], op="-x"))
    path = records_to_csv(tmp_path / "rows.csv", rows, field_names(ProfileRow))
    with path.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert [line["op"] for line in lines] == ["", "'=HYPERLINK(1)", "'-x"]
    assert lines[0]["device_time"] == ""
    assert float(lines[0]["cpu_time"]) == ROWS[0].cpu_time


def test_pandas_frame_has_the_fields_as_columns():
    frame = records_to_pandas(ROWS, field_names(ProfileRow))
    assert tuple(frame.columns) == field_names(ProfileRow)
    assert list(frame["calls"]) == [row.calls for row in ROWS]


def test_a_missing_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pip install "gnnprof\[report\]"'):
        records_to_pandas(ROWS, field_names(ProfileRow))


def test_rendering_grows_linearly_and_is_fast():
    from gnnprof import _device

    many = tuple(replace(ROWS[2], path=f"layers.{i}") for i in range(8000))
    seconds = []
    for _ in range(3):  # one may meet a busy machine, or a collection of all other tests' garbage
        start = _device.clock()
        text = table(many)
        seconds.append(_device.clock() - start)
    assert min(seconds) < 1.5  # 800 layers with ten rows each
    assert text.count("\n") == 8002
