"""The forecast of a run's final accuracy, corrected during the run by its validation accuracy so far.

Let δ = ln(final error) − ln(forecast). Before the run, δ is normal with mean 0 and the forecast's variance v². After r
of R rounds the validation error is e. It differs from that of a finished run of r rounds, whose learning rate would
have fallen already:

    ln e = ln(forecast for r rounds) + v·g(r/R) + δ + noise,      noise ~ N(0, v²·s(r/R)² + (1 − e)/(e·n))

with n validation samples. g and s were measured on the runs of ``fedgap reproduce forecast``; in units of v they hardly
differ between tasks. Given e, δ is again normal, with the mean and the variance of a scalar Kalman step. Only the
last evaluation is used: it has the most information, and its noise is not independent of that of earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from fedgap.theory.fitted_forecast import FittedForecast, Prediction
from fedgap.theory.forecast import PlanFeatures

SHARES = (0.0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0)
"""Shares r/R of the rounds at which g and s are known; in between they are interpolated."""
EXCESS = (-6.0, -4.0, -1.8, -1.0, -0.7, -0.4, 0.0)
"""g: mean of ln(error) during a run minus ln(error) of a finished run of as many rounds, in units of v."""
NOISE = (20.0, 8.0, 5.0, 2.5, 1.5, 0.7, 0.0)
"""s: standard deviation of ln(error) during a run around this mean, in units of v."""
LEAST_ERROR = 1e-4
"""Smaller validation errors are replaced by this."""


@dataclass(frozen=True)
class SeenAccuracy:
    """The validation accuracy of a run after some of its rounds."""

    rounds: int
    accuracy: float


def corrected(fitted: FittedForecast, plan: PlanFeatures, seen: Sequence[SeenAccuracy],
              validation_samples: int) -> Prediction:
    """Predict the final accuracy of a run of the plan, given its validation accuracies so far, in order of rounds."""
    if not seen:
        return fitted.predict(plan)
    last = seen[-1]
    share = min(1.0, last.rounds / plan.rounds)
    error = max(1.0 - last.accuracy, LEAST_ERROR)
    deviation = fitted.deviation(plan)
    variance = deviation**2
    expected = (np.log(min(fitted.forecast.error(replace(plan, rounds=last.rounds)), 1.0))
                + deviation * np.interp(share, SHARES, EXCESS))
    noise = variance * float(np.interp(share, SHARES, NOISE)) ** 2 + (1.0 - error) / (error * validation_samples)
    gain = variance / (variance + noise) if variance > 0.0 else 0.0
    shift = gain * (np.log(error) - expected)
    final = min(min(fitted.forecast.error(plan), 1.0) * float(np.exp(shift)), 1.0)
    wide = NormalDist().inv_cdf(0.5 + 0.5 * fitted.confidence) * float(np.sqrt((1.0 - gain) * variance))
    return Prediction(1.0 - final, 1.0 - min(final * float(np.exp(wide)), 1.0), 1.0 - final * float(np.exp(-wide)),
                      fitted.confidence)
