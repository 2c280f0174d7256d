"""Pure statistics on samples: what a measured series is worth.

Every function takes any non-empty sequence of numbers, never changes it, and returns values in
the unit of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np


def mean(samples: Sequence[float]) -> float:
    """Arithmetic mean, summed without rounding loss.

    Args:
        samples: At least one number.

    Returns:
        The mean, in the unit of the samples.

    Raises:
        ValueError: If ``samples`` is empty.
    """
    _refuse_empty(samples)
    return math.fsum(samples) / len(samples)


def sample_std(samples: Sequence[float]) -> float | None:
    """Standard deviation with Bessel's correction (divisor ``n - 1``).

    Args:
        samples: At least one number.

    Returns:
        The standard deviation in the unit of the samples, or None for a single sample, whose
        spread is unknown.

    Raises:
        ValueError: If ``samples`` is empty.
    """
    centre = mean(samples)
    if len(samples) == 1:
        return None
    return math.sqrt(math.fsum((x - centre) ** 2 for x in samples) / (len(samples) - 1))


def median(samples: Sequence[float]) -> float:
    """Middle value: half of the samples lie at or below it.

    Args:
        samples: At least one number; NaN has no rank and is refused.

    Returns:
        The middle sample, or the mean of the two middle ones, in the unit of the samples.

    Raises:
        ValueError: If ``samples`` is empty or holds a NaN.
    """
    return quantile(samples, 0.5)


def quantile(samples: Sequence[float], probability: float) -> float:
    """Value below which a fraction ``probability`` of the samples lies.

    Interpolates linearly between neighbouring samples: definition 7 of Hyndman and Fan, "Sample
    Quantiles in Statistical Packages", The American Statistician 50 (1996), and numpy's default.

    Args:
        samples: At least one number; NaN has no rank and is refused.
        probability: From 0 (the minimum) to 1 (the maximum).

    Returns:
        The quantile, in the unit of the samples.

    Raises:
        ValueError: If ``samples`` is empty or holds a NaN, or ``probability`` is outside [0, 1].
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"'probability' must lie between 0 and 1 (got {probability})")
    ordered = _in_order(samples)
    position = probability * (len(ordered) - 1)
    below = math.floor(position)
    above = math.ceil(position)
    if below == above:  # also keeps an infinite sample from becoming inf - inf
        return ordered[below]
    weight = position - below
    return ordered[below] * (1 - weight) + ordered[above] * weight


def median_interval(
    samples: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Confidence interval of the median that assumes no distribution.

    The ``k``-th smallest and the ``k``-th largest of ``n`` independent samples enclose the true
    median with probability at least ``1 - 2 P(B <= k - 1)``, where ``B`` is binomial with ``n``
    trials of probability 1/2; ``k`` is the largest rank that reaches ``confidence``. Source: David
    and Nagaraja, "Order Statistics", 3rd ed. (2003), section 7.1.

    Args:
        samples: At least one number; NaN has no rank and is refused.
        confidence: Least probability of enclosing the median, between 0 and 1 (exclusive).

    Returns:
        ``(low, high)`` in the unit of the samples, or None where even minimum and maximum do not
        reach the confidence: :func:`min_samples` says how many samples do (6 for 0.95).

    Raises:
        ValueError: If ``samples`` is empty or holds a NaN, or ``confidence`` is outside (0, 1).
    """
    _refuse_confidence(confidence)
    ordered = _in_order(samples)
    rank = _median_rank(len(ordered), confidence)
    if rank == 0:
        return None
    return ordered[rank - 1], ordered[-rank]


def min_samples(confidence: float = 0.95) -> int:
    """Smallest number of samples that has a :func:`median_interval`.

    Minimum and maximum of ``n`` samples miss the median with probability ``2 * 0.5**n``.

    Args:
        confidence: Least probability of enclosing the median, between 0 and 1 (exclusive).

    Returns:
        The number of samples: 6 for 0.95, 8 for 0.99.

    Raises:
        ValueError: If ``confidence`` is outside (0, 1).
    """
    _refuse_confidence(confidence)
    return math.ceil(1 - math.log2(1 - confidence))


def geometric_mean(samples: Sequence[float]) -> float:
    """Geometric mean: the average of ratios such as speedups.

    Args:
        samples: At least one number, all positive.

    Returns:
        The ``n``-th root of the product, in the unit of the samples.

    Raises:
        ValueError: If ``samples`` is empty or holds a number that is not positive.
    """
    _refuse_empty(samples)
    wrong = [x for x in samples if not x > 0]
    if wrong:
        raise ValueError(f"a geometric mean needs positive samples (got {wrong[0]})")
    return math.exp(mean([math.log(x) for x in samples]))


@lru_cache(maxsize=128)
def _median_rank(count: int, confidence: float) -> int:
    """Return the rank ``k`` of :func:`median_interval`, 0 where no rank reaches the confidence."""
    allowed = (1 - confidence) / 2 * (1 + 1e-9)  # a tie must not fall to rounding
    below = 0.0
    for rank in range(count // 2 + 1):
        below += math.exp(_log_binomial_half(count, rank))
        if below > allowed:
            return rank
    return count // 2


def _log_binomial_half(count: int, successes: int) -> float:
    """Return log P(B = successes) of a fair binomial; in logs, as 2**-count underflows."""
    ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return ways - count * math.log(2)


def _in_order(samples: Sequence[float]) -> list[float]:
    _refuse_empty(samples)
    if any(x != x for x in samples):
        raise ValueError("the samples hold a NaN, which has no rank; remove it first")
    return sorted(samples)


def _refuse_empty(samples: Sequence[float]) -> None:
    if len(samples) == 0:  # not `not samples`: numpy arrays are sequences too
        raise ValueError("statistics need at least one sample (got none)")


def _refuse_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"'confidence' must lie between 0 and 1, both excluded (got {confidence})")


# -- comparing two series --------------------------------------------------------------------------

LEAST_DIFFERENCE = 0.02
"""Ratios closer to 1 than this are never called a difference.

Where the linker, the allocator and the environment happen to put things moves a program's speed by
some percent, and does so in every round of a process alike: Mytkowicz et al., "Producing Wrong Data
Without Doing Anything Obviously Wrong!", ASPLOS 2009. No number of rounds shows it.
"""

_RESAMPLES = 2000
_LEAST_FOR_GROUPS = 10
_LEAST_SHARE = 0.15  # of the samples in the smaller of two groups
_LEAST_GAP = 6.0  # distance of two groups in units of their spread (Ashman's D)
_LEAST_APART = 1.2  # ratio of the centres of two groups


def paired_ratio_interval(
    numerators: Sequence[float],
    denominators: Sequence[float],
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Median of the ratios of paired samples, and its bootstrap interval.

    Pairs that were measured next to each other share the state of the machine, so that drift
    cancels in their ratio. The interval holds the middle `confidence` of the medians of 2,000
    resamples of the ratios with replacement: the percentile bootstrap of Efron and Tibshirani, "An
    Introduction to the Bootstrap" (1993), chapter 13. The same samples and seed give the same
    interval.

    Args:
        numerators: Positive samples, at least :func:`min_samples` of the confidence.
        denominators: As many positive samples, pair by pair.
        confidence: Probability of the interval, between 0 and 1 (exclusive).
        seed: Of the resampling.

    Returns:
        ``(median, low, high)`` of numerator / denominator.

    Raises:
        ValueError: If the series differ in length, are too short for the confidence, or hold a
            number that is not positive.
    """
    _refuse_confidence(confidence)
    if len(numerators) != len(denominators):
        raise ValueError(
            f"paired samples must be equally many (got {len(numerators)} and {len(denominators)})"
        )
    if len(numerators) < min_samples(confidence):
        raise ValueError(
            f"an interval of confidence {confidence} needs at least {min_samples(confidence)} "
            f"pairs of samples (got {len(numerators)})"
        )
    wrong = [x for x in (*numerators, *denominators) if not x > 0]
    if wrong:
        raise ValueError(f"a ratio needs positive samples (got {wrong[0]})")
    ratios = np.asarray(numerators, dtype=np.float64) / np.asarray(denominators, dtype=np.float64)
    draws = np.random.default_rng(seed).choice(ratios, size=(_RESAMPLES, len(ratios)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.median(draws, axis=1), [tail, 1 - tail])
    return float(np.median(ratios)), float(low), float(high)


def half_width(low: float, high: float) -> float:
    """How far an interval of ratios reaches from 1: 0.03 for (0.99, 1.03), and for (1/1.03, 1).

    Args:
        low: Positive lower end.
        high: Upper end.
    """
    return max(low, high, 1 / low, 1 / high) - 1


def verdict(low: float, high: float, floor: float = 0.0) -> str:
    """Say what an interval of the ratio old / new means against a noise floor.

    Args:
        low: Lower end of the interval.
        high: Upper end.
        floor: Relative difference that noise alone makes, as :func:`half_width` gives it;
            :data:`LEAST_DIFFERENCE` where that is more.

    Returns:
        'faster' if the whole interval lies above ``1 + floor``, 'slower' if it lies below
        ``1 / (1 + floor)``, otherwise 'undecided'.
    """
    bound = 1 + max(floor, LEAST_DIFFERENCE)
    if low > bound:
        return "faster"
    return "slower" if high < 1 / bound else "undecided"


def is_bimodal(samples: Sequence[float]) -> bool:
    """Tell whether samples fall into two groups that are clearly apart.

    The logarithms are split where the squared distances to the two means are least. The groups
    count as two if each holds 15 % of the samples, their centres are a factor of 1.2 apart, and
    Ashman's D, ``sqrt(2) |m1 - m2| / sqrt(s1**2 + s2**2)``, exceeds 6; Ashman, Bird and Zepf,
    "Detecting Bimodality in Astronomical Datasets" (1994), ask for 2 of groups known beforehand,
    which the best split of a uniform distribution exceeds with 3.5.

    Args:
        samples: Positive numbers; fewer than 10 are never called bimodal.
    """
    if len(samples) < _LEAST_FOR_GROUPS:
        return False
    ordered = np.sort(np.log(np.asarray(samples, dtype=np.float64)))
    least = max(2, math.ceil(_LEAST_SHARE * len(ordered)))

    def within(split: int) -> float:
        inside = split * ordered[:split].var() + (len(ordered) - split) * ordered[split:].var()
        return float(inside)

    where = min(range(least, len(ordered) - least + 1), key=within)
    left, right = ordered[:where], ordered[where:]
    apart = float(right.mean() - left.mean())
    spread = math.sqrt(float(left.var() + right.var()))
    return apart > math.log(_LEAST_APART) and math.sqrt(2) * apart > _LEAST_GAP * spread
