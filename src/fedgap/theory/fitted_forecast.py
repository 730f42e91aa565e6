"""A forecast with its origin, its uncertainty, and the range of plans for which it holds.

The runs to which a forecast was fitted are called its pilot. ln(error) of a run is assumed to be normal around the
forecast. Its variance has two parts. The first is the uncertainty of the fitted weights, by their covariance. The
second is the spread of runs around the forecast, which comes from the seeds and from the imperfect formula. It is
spread² + (learning_spread·s)², because runs that would improve with more training have a larger spread. s is the part
of the forecast error that more training would remove, K·exp(d·λ̄ + (c·KL(A) + g/k)·τ^q), divided by the whole forecast
error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from fedgap.theory.forecast import WEIGHTS, Forecast, PlanFeatures

CONFIDENCE = 0.9
"""Probability with which a forecast interval is meant to contain the accuracy."""
_JUST_OUTSIDE = 1e-9
"""A value that is outside a range by less than this share counts as inside, because it may have been rounded."""
_STEP = 1e-4
"""Step of ln(weight) for numerical derivatives."""
FIRST_WEIGHTS = 10
"""Number of weights of the first forecasts, which could not tell clients that take turns from others."""


@dataclass(frozen=True)
class Prediction:
    """A forecast accuracy, and the interval that contains the true accuracy with probability ``confidence``."""

    accuracy: float
    low: float
    high: float
    confidence: float

    def to_dict(self) -> dict[str, float]:
        """Return the values as they are in a plan's JSON, rounded to four decimals."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class FittedForecast:
    """A forecast with what is known about its weights; see the module docstring."""

    forecast: Forecast
    origin: str
    """Where the weights come from, in words."""
    spread: float | None = None
    """Standard deviation of ln(error) around the forecast, for runs that more training would not improve; None if it is
    unknown. 0.1 means that the error deviates by about 10 % of itself."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Least and largest value of each feature (a field of :class:`PlanFeatures`) in the pilot's plans."""
    confidence: float = CONFIDENCE
    runs: int = 0
    """How many runs the weights were fitted to."""
    learning_spread: float = 0.0
    """Additional spread of runs that more training would improve; see the module docstring."""
    seed_spread: float = 0.0
    """The part of ``spread`` that is between seeds of one plan; the rest comes from the imperfect formula."""
    covariance: tuple[tuple[float, ...], ...] = ()
    """Covariance matrix of the logarithms of the weights, in the order of :data:`fedgap.theory.forecast.WEIGHTS`; empty
    if unknown."""
    unlike: tuple[str, ...] = ()
    """How the scenario itself differs from that of the pilot: ``learner`` (how it trains), ``samples`` (how many
    samples a client has), both or neither."""

    def interval(self, error: float) -> tuple[float, float] | None:
        """Return the interval around a forecast error, error·exp(∓z·spread); None if the spread is unknown.

        If the plan is known, :meth:`predict` returns a more precise interval.
        """
        return None if self.spread is None else self._around(error, self.spread)

    def _around(self, error: float, deviation: float) -> tuple[float, float]:
        wide = NormalDist().inv_cdf(0.5 + 0.5 * self.confidence) * deviation
        return error * float(np.exp(-wide)), min(error * float(np.exp(wide)), 1.0)

    def deviation(self, plan: PlanFeatures, *, of_mean: bool = False) -> float:
        """Return the standard deviation of ln(error) around the forecast of a plan.

        It is that of a single run or, with ``of_mean``, that of the mean over many seeds.
        """
        around = (self.spread or 0.0) ** 2 + (self.learning_spread * self._learning_share(plan)) ** 2
        around -= self.seed_spread**2 if of_mean else 0.0
        if not self.covariance:
            return float(np.sqrt(max(0.0, around)))
        slope = self._slope(plan)
        return float(np.sqrt(max(0.0, around) + max(0.0, slope @ np.array(self.covariance) @ slope)))

    def _learning_share(self, plan: PlanFeatures) -> float:
        """Return s of the module docstring: the share of the forecast error that more training would remove."""
        fixed = self.forecast.at(plan.rounds, plan.local_steps, plan.upload_bits)
        return 1.0 - fixed.lasting(plan) / fixed.error(plan)

    def _slope(self, plan: PlanFeatures) -> np.ndarray:
        """Return ∂ln(error)/∂ln(weight) for each weight, by central differences."""
        def error(name: str, factor: float) -> float:
            return replace(self.forecast, **{name: getattr(self.forecast, name) * factor}).error(plan)

        up, down = float(np.exp(_STEP)), float(np.exp(-_STEP))
        return np.array([np.log(error(name, up) / error(name, down)) for name in WEIGHTS]) / (2.0 * _STEP)

    def predict(self, plan: PlanFeatures, *, of_mean: bool = False) -> Prediction:
        """Return the accuracy of a plan with its interval for one run or, with ``of_mean``, for the mean of many
        seeds."""
        error = min(self.forecast.error(plan), 1.0)
        least, most = self._around(error, self.deviation(plan, of_mean=of_mean))
        return Prediction(1.0 - error, 1.0 - most, 1.0 - least, self.confidence)

    def surely(self, plan: PlanFeatures, confidence: float) -> float:
        """Return the accuracy that a run of the plan reaches with probability ``confidence``.

        It is 1 − error·exp(z·deviation), the lower end of the one-sided prediction interval.
        """
        deviation = self.deviation(plan)
        return 1.0 - self.forecast.error(plan) * float(np.exp(NormalDist().inv_cdf(confidence) * deviation))

    def outside(self, plan: PlanFeatures) -> tuple[str, ...]:
        """Return the names of a plan's features that are outside the pilot's ranges, followed by :attr:`unlike`."""
        return (*(name for name in self.ranges if not self._inside(name, getattr(plan, name))), *self.unlike)

    def seen(self, name: str, choices: Sequence[int]) -> tuple[int, ...]:
        """Return those ``choices`` for the feature ``name`` that are in the pilot's range, or all if none is."""
        return tuple(choice for choice in choices if self._inside(name, choice)) or tuple(choices)

    def _inside(self, name: str, value: float) -> bool:
        least, most = self.ranges.get(name, (-np.inf, np.inf))
        return bool(least * (1.0 - _JUST_OUTSIDE) <= value <= most * (1.0 + _JUST_OUTSIDE))

    def to_dict(self) -> dict[str, Any]:
        """Return the section ``forecast`` of a scenario, with rounded numbers and without unknown values."""
        section: dict[str, Any] = {name: _short(getattr(self.forecast, name)) for name in WEIGHTS}
        section |= {"origin": self.origin, "spread": None if self.spread is None else _short(self.spread),
                    "learning_spread": _short(self.learning_spread), "seed_spread": _short(self.seed_spread),
                    "runs": self.runs,
                    "ranges": {name: [_short(ends[0], -1), _short(ends[1], 1)] for name, ends in self.ranges.items()},
                    "covariance": [[_short(value) for value in row] for row in self.covariance]}
        return {name: value for name, value in section.items() if name in WEIGHTS or value not in (None, 0, "", {}, [])}

    @classmethod
    def from_dict(cls, section: Mapping[str, Any]) -> "FittedForecast":
        """Read the result of :meth:`to_dict`. Scenarios of users are read and checked by ``fedgap.config``."""
        ranges = {name: (ends[0], ends[1]) for name, ends in section.get("ranges", {}).items()}
        return cls(Forecast(**{name: section[name] for name in WEIGHTS if name in section}), section.get("origin", ""),
                   section.get("spread"), ranges, runs=section.get("runs", 0),
                   learning_spread=section.get("learning_spread", 0.0), seed_spread=section.get("seed_spread", 0.0),
                   covariance=complete_covariance(section.get("covariance", ())))


def complete_covariance(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """Return a covariance matrix of all weights: one of the :data:`FIRST_WEIGHTS` gets zeros for the others."""
    more = len(WEIGHTS) - len(rows)
    if not rows or more <= 0:
        return tuple(tuple(row) for row in rows)
    return (*((*row, *[0.0] * more) for row in rows), *[(0.0,) * len(WEIGHTS)] * more)


def _short(value: float, towards: int = 0) -> float:
    """Round to four significant digits: to the nearest value, or upwards (``towards`` = 1) or downwards (−1)."""
    short = float(f"{value:.4g}") + 0.0  # adding 0 turns −0 into 0
    while towards * (short - value) < 0.0:
        short = float(f"{short + towards * 10.0 ** (np.floor(np.log10(abs(value))) - 3):.4g}")
    return short
