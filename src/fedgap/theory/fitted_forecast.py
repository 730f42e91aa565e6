"""A forecast with what is known about it: where its weights come from, how far it errs, and what its pilot has seen.

ln(error) of one run is taken to be normal around the forecast's. Its variance has two parts: that of the fitted
weights, by their covariance, and the spread of runs around the forecast, which is the noise between seeds and what the
form misses. Runs that still learn scatter more: with the share s of the forecast error that training longer takes away,
K·exp(d·λ̄ + c·KL), the spread's variance is spread² + (learning_spread·s)².
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
"""Relative excess of a range that is rounding."""
_STEP = 1e-4
"""Step of ln(weight) by which slopes are taken."""


@dataclass(frozen=True)
class Prediction:
    """A forecast accuracy with the interval that contains the true one with probability ``confidence``."""

    accuracy: float
    low: float
    high: float
    confidence: float

    def to_dict(self) -> dict[str, float]:
        """As in a plan's JSON, to four digits after the point."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class FittedForecast:
    """A forecast and its origin."""

    forecast: Forecast
    origin: str
    """Where the weights come from, in words."""
    spread: float | None = None
    """Standard deviation of ln(error) around its forecast, for runs that have learnt all they can: a relative
    deviation of the error."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Least and most of each feature (a field of :class:`PlanFeatures`) in the pilot's plans."""
    confidence: float = CONFIDENCE
    runs: int = 0
    """How many runs the weights were fitted to."""
    learning_spread: float = 0.0
    """How much more runs scatter that still learn."""
    seed_spread: float = 0.0
    """The part of the spread that lies between seeds of one plan; the rest is what the form misses."""
    covariance: tuple[tuple[float, ...], ...] = ()
    """Of the logarithms of the weights, in the order of :data:`fedgap.theory.forecast.WEIGHTS`; empty if unknown."""
    other_learner: bool = False
    """Whether the pilot's runs were trained by another kind of learner than the one whose plans are forecast."""

    def interval(self, error: float) -> tuple[float, float] | None:
        """The least and the largest error at the confidence, error·exp(∓z·spread); None where the spread is unknown.

        Where the plan is known, :meth:`predict` knows its interval better.
        """
        return None if self.spread is None else self._around(error, self.spread)

    def _around(self, error: float, deviation: float) -> tuple[float, float]:
        wide = NormalDist().inv_cdf(0.5 + 0.5 * self.confidence) * deviation
        return error * float(np.exp(-wide)), min(error * float(np.exp(wide)), 1.0)

    def deviation(self, plan: PlanFeatures, *, of_mean: bool = False) -> float:
        """Standard deviation of ln(error): of one run or, ``of_mean``, of the mean over many seeds."""
        around = (self.spread or 0.0) ** 2 + (self.learning_spread * self._learning_share(plan)) ** 2
        around -= self.seed_spread**2 if of_mean else 0.0
        if not self.covariance:
            return float(np.sqrt(max(0.0, around)))
        slope = self._slope(plan)
        return float(np.sqrt(max(0.0, around) + max(0.0, slope @ np.array(self.covariance) @ slope)))

    def _learning_share(self, plan: PlanFeatures) -> float:
        """The share of the forecast error that training longer takes away."""
        fixed = self.forecast.at(plan.rounds, plan.local_steps, plan.upload_bits)
        lasting = replace(fixed, scale=0.0).error(plan.few_clients, plan.pruning, plan.divergence)
        return 1.0 - lasting / fixed.error(plan.few_clients, plan.pruning, plan.divergence)

    def _slope(self, plan: PlanFeatures) -> np.ndarray:
        """∂ln(error)/∂ln(weight) of each weight, by central differences."""
        def error(name: str, factor: float) -> float:
            return replace(self.forecast, **{name: getattr(self.forecast, name) * factor}).error(plan)

        up, down = float(np.exp(_STEP)), float(np.exp(-_STEP))
        return np.array([np.log(error(name, up) / error(name, down)) for name in WEIGHTS]) / (2.0 * _STEP)

    def predict(self, plan: PlanFeatures, *, of_mean: bool = False) -> Prediction:
        """The accuracy of a plan with its interval: for one run or, ``of_mean``, for the mean over many seeds."""
        error = min(self.forecast.error(plan), 1.0)
        least, most = self._around(error, self.deviation(plan, of_mean=of_mean))
        return Prediction(1.0 - error, 1.0 - most, 1.0 - least, self.confidence)

    def surely(self, plan: PlanFeatures, confidence: float) -> float:
        """The accuracy that one run of the plan reaches with this probability: 1 − error·exp(z·deviation).

        It is the lower end of the one-sided prediction interval.
        """
        deviation = self.deviation(plan)
        return 1.0 - self.forecast.error(plan) * float(np.exp(NormalDist().inv_cdf(confidence) * deviation))

    def outside(self, plan: PlanFeatures) -> tuple[str, ...]:
        """The features of a plan that lie outside of what the pilot has seen, and ``learner`` where that differs."""
        features = tuple(name for name in self.ranges if not self._inside(name, getattr(plan, name)))
        return (*features, "learner") if self.other_learner else features

    def seen(self, name: str, choices: Sequence[int]) -> tuple[int, ...]:
        """Those of several values of a feature that the pilot has seen; all of them where it has seen none."""
        return tuple(choice for choice in choices if self._inside(name, choice)) or tuple(choices)

    def _inside(self, name: str, value: float) -> bool:
        least, most = self.ranges.get(name, (-np.inf, np.inf))
        return bool(least * (1.0 - _JUST_OUTSIDE) <= value <= most * (1.0 + _JUST_OUTSIDE))

    def to_dict(self) -> dict[str, Any]:
        """The section ``forecast`` of a scenario, with numbers of few digits; what is unknown is left out."""
        section: dict[str, Any] = {name: _short(getattr(self.forecast, name)) for name in WEIGHTS}
        section |= {"origin": self.origin, "spread": None if self.spread is None else _short(self.spread),
                    "learning_spread": _short(self.learning_spread), "seed_spread": _short(self.seed_spread),
                    "runs": self.runs,
                    "ranges": {name: [_short(ends[0], -1), _short(ends[1], 1)] for name, ends in self.ranges.items()},
                    "covariance": [[_short(value) for value in row] for row in self.covariance]}
        return {name: value for name, value in section.items() if name in WEIGHTS or value not in (None, 0, "", {}, [])}

    @classmethod
    def from_dict(cls, section: Mapping[str, Any]) -> "FittedForecast":
        """Read what :meth:`to_dict` gave. A person's scenario is read, and checked, by ``fedgap.config``."""
        ranges = {name: (ends[0], ends[1]) for name, ends in section.get("ranges", {}).items()}
        return cls(Forecast(**{name: section[name] for name in WEIGHTS}), section.get("origin", ""),
                   section.get("spread"), ranges, runs=section.get("runs", 0),
                   learning_spread=section.get("learning_spread", 0.0), seed_spread=section.get("seed_spread", 0.0),
                   covariance=tuple(map(tuple, section.get("covariance", ()))))


def _short(value: float, towards: int = 0) -> float:
    """The value with four digits: the nearest, or the next one above (``towards`` 1) or below (−1)."""
    short = float(f"{value:.4g}") + 0.0  # no −0
    while towards * (short - value) < 0.0:
        short = float(f"{short + towards * 10.0 ** (np.floor(np.log10(abs(value))) - 3):.4g}")
    return short
