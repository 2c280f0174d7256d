"""Records of profileit and their summary, by hand and beside the reference."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields
from typing import Any

import pytest

from gnnprof import _stats
from gnnprof._stats import (
    CPUStats,
    CPUStatsSummary,
    CUDAStats,
    CUDAStatsSummary,
    GPUStats,
    GPUStatsSummary,
    MPSStats,
    MPSStatsSummary,
    get_stats_summary,
)

CUDA_STATS = [
    CUDAStats(0.1, 10.0, 20.0, 11.0, 500.0, 40.0),
    CUDAStats(0.2, 12.0, 18.0, 13.0, 480.0, 60.0),
    CUDAStats(0.6, 11.0, 19.0, 12.0, 490.0, 50.0),
]


def test_summary_by_hand() -> None:
    summary = get_stats_summary(CUDA_STATS)
    assert isinstance(summary, CUDAStatsSummary)
    assert summary.time_mean == pytest.approx(0.3, rel=1e-15)
    assert summary.time_std == pytest.approx(math.sqrt(0.07), rel=1e-12)  # (.04 + .01 + .09) / 2
    assert list(vars(summary).values())[2:] == [12.0, 20.0, 13.0, 480.0, 60.0]


def test_summary_equals_the_reference() -> None:
    reference = pytest.importorskip("torch_geometric.profile.profile")
    theirs = reference.get_stats_summary([reference.CUDAStats(**vars(s)) for s in CUDA_STATS])
    assert vars(get_stats_summary(CUDA_STATS)) == pytest.approx(vars(theirs), rel=1e-6)


def test_summary_keeps_microseconds() -> None:
    stats = [GPUStats(1e4 + i * 1e-6, 1.0, 1.0, 1.0) for i in range(3)]
    summary = get_stats_summary(stats)
    assert summary.time_mean == pytest.approx(1e4 + 1e-6, abs=1e-9)
    assert summary.time_std == pytest.approx(1e-6, rel=1e-3)


def test_summary_of_one_has_no_spread() -> None:
    summary = get_stats_summary(CUDA_STATS[:1])
    assert (summary.time_mean, summary.time_std) == (0.1, None)
    assert "time_std=n/a" in repr(summary)


def test_unknown_figures_are_skipped() -> None:
    stats = [
        CUDAStats(0.1, 1.0, None, 1.0, None, None),
        CUDAStats(0.1, 1.0, None, 3.0, 90.0, None),
        CUDAStats(0.1, 1.0, None, 2.0, 80.0, None),
    ]
    summary = get_stats_summary(stats)
    assert summary.min_nvidia_smi_free_cuda == 80.0
    assert summary.max_nvidia_smi_used_cuda is None
    assert summary.max_reserved_gpu is None
    assert summary.max_active_gpu == 3.0


def test_summary_of_mixed_kinds() -> None:
    gpu = GPUStats(0.3, 50.0, 1.0, 1.0)
    summary = get_stats_summary([*CUDA_STATS, gpu])
    assert type(summary) is GPUStatsSummary
    assert summary.max_allocated_gpu == 50.0
    cpu = get_stats_summary([CPUStats(1.0, 3.0, 100.0), CPUStats(2.0, None, 90.0)])
    assert cpu == CPUStatsSummary(1.5, pytest.approx(math.sqrt(0.5)), 3.0, 100.0)
    mps = get_stats_summary(iter([MPSStats(1.0, 3.0, 100.0), MPSStats(1.0, 2.0, 110.0)]))
    assert mps == MPSStatsSummary(1.0, 0.0, 3.0, 110.0)


@pytest.mark.parametrize(
    ("stats", "error", "message"),
    [
        ([], ValueError, "stats_list is empty; give the records"),
        ([GPUStats(1, 1, 1, 1), CPUStats(1, 1, 1)], TypeError, "holds CPUStats, GPUStats; give"),
        ([1.0], TypeError, "holds float"),
    ],
)
def test_no_summary(stats: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        get_stats_summary(stats)


def test_records_have_the_reference_fields_and_say_their_units() -> None:
    reference = pytest.importorskip("torch_geometric.profile.profile")
    for name in ("GPUStats", "CUDAStats", "GPUStatsSummary", "CUDAStatsSummary"):
        ours, theirs = getattr(_stats, name), getattr(reference, name)
        assert [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
    assert repr(CUDA_STATS[0]) == (
        "CUDAStats(time=0.1 s, max_allocated_gpu=10.0 MiB, max_reserved_gpu=20.0 MiB, "
        "max_active_gpu=11.0 MiB, nvidia_smi_free_cuda=500.0 MB, nvidia_smi_used_cuda=40.0 MB)"
    )
    assert repr(CPUStats(1.0, None, 2.0)) == (
        "CPUStats(time=1.0 s, max_allocated_cpu=n/a, max_rss=2.0 MiB)"
    )
    assert pickle.loads(pickle.dumps(CUDA_STATS)) == CUDA_STATS
