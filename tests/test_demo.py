"""`make demo`: what it prints is what it measured."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from benchmark import demo

from gnnprof import CPUStats, CUDAStats, MPSStats


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> tuple[demo.Demo, str]:
    """One demo in smoke size, and what it printed."""
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *parts: printed.append(" ".join(map(str, parts))))
        result = demo.main(["--smoke", "--out", str(tmp_path_factory.mktemp("demo") / "out")])
    return result, "\n".join(printed)


def test_it_trains_and_measures(shown):
    result, _ = shown
    assert len(result.step_seconds) == 4
    assert 0 < result.majority < 1
    assert 0 <= result.accuracy <= 1
    # One step holds at least the gradient of the first weight, 16 x 1,433 floats.
    assert result.peak_mib > 16 * 1433 * 4 / 2**20
    assert result.coverage >= 0.995


def test_it_prints_each_figure_with_what_it_is(shown):
    result, printed = shown
    assert "cora-like, a stand-in for Cora" in printed
    assert f"Accuracy     {result.accuracy:.1%} of the test nodes" in printed
    assert "Step time    " in printed
    assert f"Peak memory  {result.peak_mib:.1f} MiB " in printed
    assert f"Coverage     {result.coverage:.2%}" in printed
    assert f"Trace        {result.trace}" in printed
    for part in ("conv1 (GCNConv)", "message", "aggregate", "outside"):
        assert part in printed


def test_it_writes_a_chrome_trace_and_writes_it_again(shown):
    result, _ = shown
    names = {event.get("name") for event in json.loads(result.trace.read_text())["traceEvents"]}
    assert "Optimizer.step#Adam.step" in names
    again = demo.main(["--smoke", "--out", str(result.trace.parent)])
    assert again.trace == result.trace
    files = sorted(file.name for file in result.trace.parent.iterdir())
    assert files == ["demo-trace.json", "demo.html"]


@pytest.mark.parametrize(
    ("stats", "shown"),
    [
        (CPUStats(1.0, 2.0, 3.0), "2.0 MiB of new tensors alive at once"),
        (
            CUDAStats(1.0, 4.0, 5.0, 6.0, 7.0, 8.0),
            "4.0 MiB of all tensors alive at once, those from before the step included",
        ),
        (
            MPSStats(1.0, 2.0, 9.0),
            "9.0 MiB held from Metal after the step, where nothing counts the peak itself",
        ),
        (CPUStats(1.0, None, 3.0), "n/a of new tensors alive at once"),
        (SimpleNamespace(time=1.0), "n/a of a device whose memory is not known"),
    ],
)
def test_it_says_what_the_peak_is_on_any_device(stats, shown):
    assert demo.shown_peak(vars(stats)) == shown


def test_it_leaves_the_random_state_and_the_threads(shown, tmp_path):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    demo.main(["--smoke", "--out", str(tmp_path)])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
