"""A forecast with what is known about it: where its weights come from, how far it errs, and what its pilot has seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from fedgap.theory.forecast import Forecast, PlanFeatures

CONFIDENCE = 0.9
"""Probability with which a forecast interval is meant to contain the accuracy."""
_JUST_OUTSIDE = 1e-9
"""Relative excess of a range that is rounding."""


@dataclass(frozen=True)
class FittedForecast:
    """A forecast and its origin."""

    forecast: Forecast
    origin: str
    """Where the weights come from, in words."""
    spread: float | None = None
    """Standard deviation of ln(error) around its forecast: a relative deviation of the error."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Least and most of each feature (a field of :class:`PlanFeatures`) in the pilot's plans."""
    confidence: float = CONFIDENCE

    def interval(self, error: float) -> tuple[float, float] | None:
        """The least and the largest error at the confidence, error·exp(∓z·spread); None where the spread is unknown."""
        if self.spread is None:
            return None
        wide = NormalDist().inv_cdf(0.5 + 0.5 * self.confidence) * self.spread
        return error * float(np.exp(-wide)), min(error * float(np.exp(wide)), 1.0)

    def outside(self, plan: PlanFeatures) -> tuple[str, ...]:
        """The features of a plan that lie outside of what the pilot has seen."""
        return tuple(name for name in self.ranges if not self._inside(name, getattr(plan, name)))

    def seen(self, name: str, choices: Sequence[int]) -> tuple[int, ...]:
        """Those of several values of a feature that the pilot has seen; all of them where it has seen none."""
        return tuple(choice for choice in choices if self._inside(name, choice)) or tuple(choices)

    def _inside(self, name: str, value: float) -> bool:
        least, most = self.ranges.get(name, (-np.inf, np.inf))
        return bool(least * (1.0 - _JUST_OUTSIDE) <= value <= most * (1.0 + _JUST_OUTSIDE))


BUILT_IN = FittedForecast(
    Forecast(start=1.7, rounds_power=0.84, steps_power=0.76, slowed_by_pruning=0.25, slowed_by_divergence=0.9,
             few_clients=0.06, divergence=0.12, coarse_uploads=1.0, floor=0.007),
    origin="built in: LeNet-5 on MNIST over the city fleet (40 clients, σ = 1), rate 0.03 with server momentum 0.9; "
           "`fedgap calibrate` fits it to other models and data",
    spread=0.15,
    ranges={"rounds": (10.0, 330.0), "local_steps": (1.0, 32.0), "few_clients": (1.0 / 40.0, 1.0 / 4.0),
            "pruning": (0.0, 0.5), "divergence": (0.0, 0.3), "upload_bits": (32.0, 32.0)},
)
"""What is used where a scenario has no ``forecast``: weights for one model, data set and fleet."""
