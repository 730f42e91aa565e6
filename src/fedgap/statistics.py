"""Statistics over seeds: Student's interval, paired comparisons and Holm's correction.

Every interval and every comparison in fedgap comes from here. scipy is imported inside the functions, so that importing
this module costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["higher", "lower", "tie", "identical", "too few seeds"]
"""Result of comparing a first scheme with a second. ``higher`` and ``lower`` are significant differences of the
first, ``tie`` is a difference that is not significant, and ``identical`` means equal values for every seed."""
LEVEL = 0.05
"""Significance level of a family of comparisons, after Holm's correction."""
POWER = 0.8
"""Probability with which a difference of the smallest detectable size is found."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and the half-width of its 95 % confidence interval, t₀.₉₇₅(n − 1)·s/√n (None for one seed).

    >>> from fedgap.statistics import interval
    >>> interval([0.95, 0.96, 0.97]).signed(100)  # t = 4.303, s = 1 point
    '+96.00 ± 2.48'
    """

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + (self.half or 0.0)

    def signed(self, scale: float = 1.0, digits: int = 2) -> str:
        """Format the interval of a difference, multiplied by ``scale``, with its sign: ``+1.23 ± 0.45``."""
        half = "" if self.half is None else f" ± {scale * self.half:.{digits}f}"
        return f"{scale * self.mean:+.{digits}f}{half}"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with Student's 95 % confidence interval."""
    from scipy.special import stdtrit

    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, 1)
    return Interval(mean, float(stdtrit(n - 1, 0.975)) * deviation(values) / math.sqrt(n), n)


def lower_bound(values: Sequence[float], confidence: float = 0.95) -> float | None:
    """Return the lower one-sided confidence bound of the mean, mean − t(n − 1)·s/√n; None for a single value."""
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        return None
    return math.fsum(values) / n - float(stdtrit(n - 1, confidence)) * deviation(values) / math.sqrt(n)


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation s of at least two values."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))


@dataclass(frozen=True)
class PairedComparison:
    """The difference between two schemes, first minus second, paired over seeds."""

    difference: Interval
    p: float
    """p-value of the two-sided paired t-test; 1 if all differences are exactly 0."""
    adjusted: float
    """p-value after Holm's correction over the comparisons of the family."""
    detectable: float | None
    """The smallest difference that would have been significant with a probability of 80 %."""
    verdict: Verdict


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> PairedComparison:
    """Compare two schemes over the seeds that both have. The verdict is uncorrected; :func:`holm` corrects a family.

    >>> from fedgap.statistics import paired
    >>> found = paired({0: 0.95, 1: 0.96, 2: 0.97}, {0: 0.94, 1: 0.94, 2: 0.96})
    >>> found.difference.signed(100), found.verdict
    ('+1.33 ± 1.43', 'tie')

    Smallest detectable difference at a level of 5 %: (t₀.₉₇₅(n − 1) + t₀.₈(n − 1))·s/√n.
    """
    from scipy.special import stdtr

    seeds = sorted(first.keys() & second.keys())
    differences = [first[seed] - second[seed] for seed in seeds]
    if not differences:
        raise ValueError("the two schemes have no seed in common")
    difference = interval(differences)
    if len(differences) < 2:
        return PairedComparison(difference, 1.0, 1.0, None, "too few seeds")
    spread, n = deviation(differences), len(differences)
    if spread == 0.0:
        if difference.mean == 0.0:
            return PairedComparison(difference, 1.0, 1.0, 0.0, "identical")
        return PairedComparison(difference, 0.0, 0.0, 0.0, _verdict(difference.mean, 0.0))
    p = 2.0 * float(stdtr(n - 1, -abs(difference.mean) / (spread / math.sqrt(n))))
    return PairedComparison(difference, p, p, _detectable(difference, LEVEL), _verdict(difference.mean, p))


def _detectable(difference: Interval, level: float) -> float:
    """Return the smallest difference that would be significant at ``level`` with probability :data:`POWER`."""
    from scipy.special import stdtrit

    dof = difference.n - 1
    error = (difference.half or 0.0) / float(stdtrit(dof, 0.975))  # s/√n
    return float(stdtrit(dof, 1 - level / 2) + stdtrit(dof, POWER)) * error


def _verdict(mean: float, p: float) -> Verdict:
    return "tie" if p > LEVEL else "higher" if mean > 0 else "lower"


def holm(family: Sequence[PairedComparison]) -> list[PairedComparison]:
    """Return the comparisons of a family with p-values and verdicts corrected by Holm's method.

    With the p-values in rising order, p₍₀₎ ≤ p₍₁₎ ≤ …, p₍ᵢ₎ becomes the maximum over j ≤ i of min(1, (m − j)·p₍ⱼ₎).

    >>> from fedgap.statistics import holm, paired
    >>> first, other = {0: 0.95, 1: 0.96, 2: 0.98}, {0: 0.91, 1: 0.93, 2: 0.94}
    >>> [round(c.adjusted / c.p) for c in holm([paired(first, other), paired(first, {0: 0.94, 1: 0.96, 2: 0.96})])]
    [2, 1]

    m is the number of tests. Comparisons of identical runs do not count, and comparisons with equal differences (two
    baselines that trained the same models) count once. The detectable difference is that of the strictest step, at
    the level 5 %/m.
    """
    tests: dict[tuple[float, Interval], list[int]] = {}
    for i, c in enumerate(family):
        if c.verdict not in ("identical", "too few seeds"):
            tests.setdefault((c.p, c.difference), []).append(i)
    result, worst = list(family), 0.0
    for rank, (p, difference) in enumerate(sorted(tests, key=lambda test: test[0])):
        worst = max(worst, min(1.0, (len(tests) - rank) * p))
        detectable = _detectable(difference, LEVEL / len(tests)) if difference.half else 0.0
        for i in tests[p, difference]:
            result[i] = replace(family[i], adjusted=worst, detectable=detectable,
                                verdict=_verdict(difference.mean, worst))
    return result
