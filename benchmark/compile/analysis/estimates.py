"""Figures with their intervals, and what may be made of several of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gnnprof._statistics import geometric_mean, mean


@dataclass(frozen=True)
class Estimate:
    """A positive figure with its 95 % interval.

    Attributes:
        value: The figure.
        low: Lower end of the interval; None where there are too few samples for one.
        high: Upper end.
        count: How many figures it averages.
        verdict: The verdict of the measurement itself, which also minds the noise floor; None for
            an average and for what has no verdict.
    """

    value: float
    low: float | None = None
    high: float | None = None
    count: int = 1
    verdict: str | None = None

    @property
    def decided(self) -> str | None:
        """'faster' above 1 or 'slower' below it; None where the interval holds 1."""
        if self.low is None or self.high is None or self.verdict == "undecided":
            return None
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else None


def average(ratios: Sequence[Estimate]) -> Estimate:
    """Geometric mean of ratios of different cases, at least one.

    The interval is that of the mean of the logarithms, the wider of two: Student's, from the spread
    between the cases, and what their own intervals leave open; so cases that agree by chance do not
    look certain. A single ratio keeps its own interval and verdict.
    """
    if len(ratios) == 1:
        return dataclasses.replace(ratios[0], count=1)
    count = len(ratios)
    logs = [math.log(ratio.value) for ratio in ratios]
    centre = mean(logs)
    spread = math.sqrt(math.fsum((x - centre) ** 2 for x in logs) / (count - 1) / count)
    half = max(student_quantile(count - 1) * spread, _half_width(ratios))
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), count)


@lru_cache(maxsize=256)
def student_quantile(freedom: int, inside: float = 0.95) -> float:
    """Value that a variable of Student's distribution stays within, in either direction.

    Bisects the finite series for the probability in `atan(t / sqrt(freedom))`. Source: Abramowitz
    and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4.

    Args:
        freedom: Degrees of freedom, at least 1.
        inside: Probability to stay within.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_probability(middle, freedom) < inside:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _student_probability(angle: float, freedom: int) -> float:
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def pool(ratios: Sequence[Estimate]) -> Estimate:
    """Geometric mean of ratios that together stand for one case, at least one.

    Unlike that of `average` its interval knows nothing of their spread: it holds what their own
    intervals leave open, and is unknown where one of them is.
    """
    if len(ratios) == 1:
        return ratios[0]
    value = geometric_mean([ratio.value for ratio in ratios])
    if any(ratio.low is None or ratio.high is None for ratio in ratios):
        return Estimate(value, count=len(ratios))
    factor = math.exp(_half_width(ratios))
    return Estimate(value, value / factor, value * factor, len(ratios))


def _half_width(ratios: Sequence[Estimate]) -> float:
    """Half width, in logs, that their own intervals give the mean: errors add in squares."""
    halves = [
        (math.log(ratio.high) - math.log(ratio.low)) / 2
        for ratio in ratios
        if ratio.low is not None and ratio.high is not None
    ]
    return math.sqrt(math.fsum(half**2 for half in halves)) / len(ratios)


def hull(replicates: Sequence[Estimate]) -> Estimate | None:
    """Combine processes that measured the same case; None of none.

    The value is their geometric mean. The interval reaches from the lowest low to the highest high,
    because processes differ by more than the rounds of one process show. The verdict is the one
    they agree on, else 'undecided'.
    """
    if len(replicates) <= 1:
        return replicates[0] if replicates else None
    lows = [r.low for r in replicates if r.low is not None]
    highs = [r.high for r in replicates if r.high is not None]
    whole = len(lows) == len(highs) == len(replicates)
    verdicts = {r.verdict for r in replicates}
    return Estimate(
        geometric_mean([r.value for r in replicates]),
        min(lows) if whole else None,
        max(highs) if whole else None,
        sum(r.count for r in replicates),
        verdicts.pop() if len(verdicts) == 1 else "undecided",
    )


def quotient(above: Estimate, below: Estimate) -> Estimate:
    """Ratio of two figures that were not measured in turns.

    Its interval takes the worst ends of both, which is wider than 95 % needs.
    """
    low = high = None
    if above.low is not None and below.high is not None:
        low = above.low / below.high
    if above.high is not None and below.low is not None:
        high = above.high / below.low
    return Estimate(above.value / below.value, low, high, min(above.count, below.count))


def widened(estimate: Estimate, by: Estimate) -> Estimate:
    """Widen an interval by the relative interval of another figure; both are then unsure of it."""
    low = high = None
    if estimate.low is not None and by.low is not None:
        low = estimate.low * by.low / by.value
    if estimate.high is not None and by.high is not None:
        high = estimate.high * by.high / by.value
    return Estimate(estimate.value, low, high, by.count)
