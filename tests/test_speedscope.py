"""The speedscope profile has the layer tree's stacks and weighs what was measured."""

from __future__ import annotations

import json
import math

import pytest
from tests.profiles import BACKWARD_TIME, FORWARD, FORWARD_TIME, MS, row, with_backward

from gnnprof._speedscope import speedscope


def stacks(result, index=0):
    """The samples of a profile by name: ('Net', 'lin (Linear)', 'aten::addmm') -> ms."""
    frames = [frame["name"] for frame in result["shared"]["frames"]]
    profile = result["profiles"][index]
    return {
        tuple(frames[number] for number in sample): round(weight / MS, 9)
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    }


def test_the_weights_are_the_block_and_its_backward():
    forward, backward = speedscope(with_backward(), "Net")["profiles"]
    assert math.fsum(forward["weights"]) == pytest.approx(FORWARD_TIME, rel=1e-12)
    assert math.fsum(backward["weights"]) == pytest.approx(BACKWARD_TIME, rel=1e-12)


def test_every_own_time_is_a_sample_with_its_stack():
    conv = ("Net", "convs (ModuleList)", "convs.0 (GATConv)")
    assert stacks(speedscope(FORWARD, "Net")) == {
        ("Net",): 0.5,
        ("Net", "aten::relu"): 0.5,
        conv: 2,
        (*conv, "aten::mul"): 1,
        (*conv, "propagate"): 0.5,
        (*conv, "propagate", "aten::index_select"): 1.5,
        (*conv, "propagate", "message"): 1,
        (*conv, "propagate", "message", "aten::mul"): 4,
        (*conv, "propagate", "message", "aten::exp"): 1,
        (*conv, "propagate", "aggregate"): 2,
        ("Net", "lin (Linear)"): 1,
        ("Net", "lin (Linear)", "aten::addmm"): 5,
        ("loss",): 1,
        ("loss", "aten::nll_loss"): 1,
        ("outside",): 3,
    }


def test_an_op_is_one_frame_in_all_layers():
    names = [frame["name"] for frame in speedscope(FORWARD, "Net")["shared"]["frames"]]
    assert names.count("aten::mul") == 1
    assert len(names) == len(set(names))


def test_backward_is_left_out_where_none_ran():
    assert [p["name"] for p in speedscope(FORWARD, "Net")["profiles"]] == ["forward"]
    assert [p["name"] for p in speedscope(with_backward(), "Net")["profiles"]] == [
        "forward",
        "backward",
    ]


def test_the_file_has_what_the_format_asks_for():
    result = speedscope(with_backward(), "Net")
    assert result["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    for profile in result["profiles"]:
        assert (profile["type"], profile["unit"]) == ("sampled", "seconds")
        assert profile["startValue"] == 0
        assert profile["endValue"] == math.fsum(profile["weights"])
        assert len(profile["samples"]) == len(profile["weights"])
        used = {number for sample in profile["samples"] for number in sample}
        assert used <= set(range(len(result["shared"]["frames"])))


def test_modules_that_were_not_selected_are_frames_too():
    rows = (row("block.conv", "GCNConv", self_ms=4), row(None, None, "outside", self_ms=1))
    assert stacks(speedscope(rows, "Net")) == {
        ("Net", "block", "block.conv (GCNConv)"): 4,
        ("outside",): 1,
    }


def test_no_rows_make_an_empty_profile():
    (profile,) = speedscope((), "Net")["profiles"]
    assert (profile["samples"], profile["weights"], profile["endValue"]) == ([], [], 0)
