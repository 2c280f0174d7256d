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


# -- comparing two series --------------------------------------------------------------------------


def noise(kind: str, sigma: float, count: int, random: np.random.Generator) -> np.ndarray:
    """Factors of at least about 1, as interruptions make them."""
    if kind == "lognormal":
        return np.exp(sigma * random.standard_normal(count))
    return 1 + sigma * np.abs(random.standard_t(1.5, count))  # no variance: heavy tails


def drift(count: int, random: np.random.Generator) -> np.ndarray:
    """How the machine's speed wanders, by 10 % a round, for both series of a pair alike."""
    return np.exp(np.cumsum(0.1 * random.standard_normal(count)))


def verdicts(slowdown: float, kind: str, sigma: float, seed: int, runs: int = 40) -> list[str]:
    """What the rule of compile_benchmark says in many runs of 20 rounds, noise floor first."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        pairs = []
        for factor in (1.0, slowdown):
            common = drift(20, random)
            first = common * noise(kind, sigma, 20, random)
            pairs.append((first, factor * common * noise(kind, sigma, 20, random)))
        floor = statistics.half_width(*statistics.paired_ratio_interval(*pairs[0])[1:])
        _, low, high = statistics.paired_ratio_interval(*pairs[1])
        found.append(statistics.verdict(low, high, floor))
    return found


@pytest.mark.parametrize("kind", ["lognormal", "heavy"])
@pytest.mark.parametrize("sigma", [0.005, 0.05, 0.2])
def test_equal_programs_are_undecided_in_36_of_40_runs(kind, sigma):
    assert verdicts(1.0, kind, sigma, seed=1).count("undecided") >= 36


@pytest.mark.parametrize("kind", ["lognormal", "heavy"])
@pytest.mark.parametrize("sigma", [0.005, 0.05])
def test_a_slowdown_of_20_percent_is_called_in_36_of_40_runs(kind, sigma):
    assert verdicts(1.2, kind, sigma, seed=2).count("slower") >= 36


def test_a_speedup_of_20_percent_is_called_too():
    assert verdicts(1 / 1.2, "lognormal", 0.05, seed=3).count("faster") >= 36


def test_drift_that_both_share_does_not_widen_the_interval():
    common = drift(20, np.random.default_rng(4))
    assert common.max() > 1.2 * common.min()
    assert statistics.paired_ratio_interval(common, 1.2 * common) == pytest.approx([1 / 1.2] * 3)


def test_the_interval_of_ratios_is_that_of_a_written_out_bootstrap():
    numerators, denominators = (
        [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0],
        [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0],
    )
    ratios = [2.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.5]
    draws = np.random.default_rng(5).choice(np.array(ratios), size=(2000, 7))
    medians = sorted(sorted(draw)[3] for draw in draws.tolist())
    expected = (2.5, *(np.quantile(medians, share) for share in (0.025, 0.975)))
    assert statistics.paired_ratio_interval(numerators, denominators, seed=5) == expected
    assert statistics.paired_ratio_interval(numerators, denominators, seed=6)[0] == 2.5


def test_a_wider_confidence_gives_a_wider_interval():
    random = np.random.default_rng(6)
    first, second = 1 + random.random(40), 1 + random.random(40)
    _, low, high = statistics.paired_ratio_interval(first, second, 0.5)
    _, lower, higher = statistics.paired_ratio_interval(first, second, 0.99)
    assert lower < low < high < higher


@pytest.mark.parametrize(
    ("numerators", "denominators", "message"),
    [
        ([1.0] * 6, [1.0] * 7, "equally many"),
        ([1.0] * 5, [1.0] * 5, "at least 6 pairs"),
        ([1.0] * 6, [1.0] * 5 + [0.0], "positive samples"),
        ([1.0] * 5 + [math.nan], [1.0] * 6, "positive samples"),
    ],
)
def test_ratios_of_bad_samples_are_refused(numerators, denominators, message):
    with pytest.raises(ValueError, match=message):
        statistics.paired_ratio_interval(numerators, denominators)


@pytest.mark.parametrize(
    ("low", "high", "floor", "expected"),
    [
        (1.03, 1.10, 0.0, "faster"),
        (1.01, 1.10, 0.0, "undecided"),  # within the 2 % that no process can tell
        (1.03, 1.10, 0.05, "undecided"),
        (0.90, 0.97, 0.0, "slower"),
        (0.90, 0.97, 0.05, "undecided"),
        (0.90, 1.10, 0.0, "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval_beyond_the_floor(low, high, floor, expected):
    assert statistics.verdict(low, high, floor) == expected


def test_the_half_width_is_the_farther_end_as_a_ratio():
    assert statistics.half_width(0.99, 1.03) == pytest.approx(0.03)
    assert statistics.half_width(1 / 1.25, 1.1) == pytest.approx(0.25)
    assert statistics.half_width(1.1, 1.2) == pytest.approx(0.2)


def test_two_groups_of_samples_are_noticed():
    random = np.random.default_rng(7)
    one = np.exp(0.05 * random.standard_normal(40))
    assert statistics.is_bimodal(np.where(np.arange(40) % 3 == 0, 2 * one, one).tolist())
    assert not statistics.is_bimodal([1.0, 2.0] * 4)  # too few to tell
    assert not statistics.is_bimodal([*one.tolist(), 3.0, 3.0])  # two outliers are no group


@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_one_group_is_hardly_ever_taken_for_two(sigma):
    random = np.random.default_rng(8)
    series = [np.exp(sigma * random.standard_normal(20)) for _ in range(100)]
    assert sum(statistics.is_bimodal(samples.tolist()) for samples in series) <= 2
