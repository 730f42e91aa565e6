"""What a run will end with: its plan's forecast, corrected by the validation accuracies on the way."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from fedgap.running.job import Job
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import PlanFeatures
from fedgap.theory.forecast_correction import SeenAccuracy, corrected


def with_forecast(job: Job, plan: PlanFeatures, fitted: FittedForecast) -> Job:
    """The job with its plan's forecast, which :func:`expected` corrects as the run goes on."""
    known = {"plan": asdict(plan), "fitted": fitted.to_dict()}
    return replace(job, extra={**job.extra, "forecast": known})


def expected(job: Job, rounds: int, validation_accuracy: float, validation_samples: int) -> dict[str, Any] | None:
    """The accuracy that the run will end with, as in a plan's ``forecast``; None for a job without a forecast.

    :param rounds: the rounds that the run has behind it, after which its validation accuracy was taken.
    """
    known = job.extra.get("forecast")
    if known is None:
        return None
    seen = [SeenAccuracy(rounds, validation_accuracy)]
    return corrected(FittedForecast.from_dict(known["fitted"]), PlanFeatures(**known["plan"]), seen,
                     validation_samples).to_dict()
