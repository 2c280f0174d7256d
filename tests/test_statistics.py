"""Statistics against values done by hand, published ones and numpy's."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from gnnprof import _statistics as statistics

# Mean 5 and squared deviations 9+1+1+1+0+0+4+16 = 32: the usual textbook example.
TEXTBOOK = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]


def test_mean_and_sample_std_by_hand() -> None:
    assert statistics.mean(TEXTBOOK) == 5.0
    assert statistics.sample_std(TEXTBOOK) == pytest.approx(math.sqrt(32 / 7))


def test_mean_loses_nothing_to_rounding() -> None:
    assert statistics.mean([1e16, 1.0, -1e16, 1.0]) == 0.5


def test_spread_of_one_sample_is_unknown() -> None:
    assert statistics.sample_std([3.0]) is None
    assert statistics.sample_std([3.0, 3.0]) == 0.0


def test_median_by_hand() -> None:
    assert statistics.median([3.0]) == 3.0
    assert statistics.median([9.0, 1.0, 2.0]) == 2.0
    assert statistics.median([9.0, 1.0, 2.0, 4.0]) == 3.0


@pytest.mark.parametrize("count", [1, 2, 3, 10, 37])
def test_agreement_with_numpy(count: int) -> None:
    samples = np.random.default_rng(count).lognormal(size=count)
    before = samples.copy()
    for probability in (0.0, 0.05, 0.25, 0.5, 0.9, 1.0):
        expected = np.quantile(samples, probability)
        assert statistics.quantile(samples, probability) == pytest.approx(expected, rel=1e-14)
    assert statistics.median(list(samples)) == pytest.approx(np.median(samples), rel=1e-14)
    if count > 1:
        assert statistics.sample_std(samples) == pytest.approx(samples.std(ddof=1), rel=1e-13)
    assert (samples == before).all()


def test_quantile_of_an_infinite_sample() -> None:
    assert statistics.quantile([1.0, math.inf], 1.0) == math.inf
    assert statistics.quantile([1.0, 2.0, math.inf], 0.5) == 2.0


@pytest.mark.parametrize(
    ("count", "rank"),
    # Two-sided 5 % points of the sign test plus one, as printed in tables of it.
    [(6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (25, 8), (30, 10), (50, 18), (100, 40)],
)
def test_median_interval_ranks_of_published_tables(count: int, rank: int) -> None:
    samples = [float(i) for i in range(count, 0, -1)]
    assert statistics.median_interval(samples) == (rank, count + 1 - rank)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_median_interval_is_the_narrowest_that_reaches_the_confidence(confidence: float) -> None:
    for count in range(1, 80):
        interval = statistics.median_interval(range(1, count + 1), confidence)
        rank = 0 if interval is None else round(interval[0])
        assert rank == 0 or coverage(count, rank) >= Fraction(str(confidence))
        narrower_exists = rank < count // 2
        assert not narrower_exists or coverage(count, rank + 1) < Fraction(str(confidence))


def coverage(count: int, rank: int) -> Fraction:
    """Exact probability that the rank-th smallest and largest enclose the median."""
    outside = sum(math.comb(count, successes) for successes in range(rank))
    return 1 - Fraction(2 * outside, 2**count)


def test_median_interval_of_many_samples() -> None:
    # Normal approximation of the binomial: (n - 1.96 sqrt(n)) / 2.
    low, high = statistics.median_interval(range(1, 10_001)) or (0, 0)
    assert low == pytest.approx(5000 - 98, abs=1)
    assert low + high == 10_001


@pytest.mark.parametrize(("confidence", "count"), [(0.5, 2), (0.9, 5), (0.95, 6), (0.99, 8)])
def test_fewest_samples_with_an_interval(confidence: float, count: int) -> None:
    assert statistics.min_samples(confidence) == count
    samples = [float(i) for i in range(count)]
    assert statistics.median_interval(samples, confidence) == (0.0, count - 1.0)
    assert statistics.median_interval(samples[1:], confidence) is None


def test_geometric_mean_by_hand() -> None:
    assert statistics.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert statistics.geometric_mean([1.0, 2.0, 4.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"positive samples \(got 0\.0\)"):
        statistics.geometric_mean([1.0, 0.0])


@pytest.mark.parametrize(
    "function",
    [
        statistics.mean,
        statistics.sample_std,
        statistics.median,
        statistics.median_interval,
        statistics.geometric_mean,
    ],
)
@pytest.mark.parametrize("samples", [[], (), np.array([])])
def test_no_samples_are_refused(function: object, samples: object) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        function(samples)  # type: ignore[operator]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        statistics.median([1.0, math.nan])
    with pytest.raises(ValueError, match=r"'probability' must lie between 0 and 1 \(got 50\)"):
        statistics.quantile([1.0], 50)
    for confidence in (0.0, 1.0, 95):
        with pytest.raises(ValueError, match="'confidence' must lie between 0 and 1"):
            statistics.median_interval([1.0], confidence)
        with pytest.raises(ValueError, match="'confidence'"):
            statistics.min_samples(confidence)
