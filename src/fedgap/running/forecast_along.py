"""The forecast of a run's final accuracy, corrected by its validation accuracies during training."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from fedgap.running.job import Job
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import PlanFeatures
from fedgap.theory.forecast_correction import SeenAccuracy, corrected


def with_forecast(job: Job, plan: PlanFeatures, fitted: FittedForecast) -> Job:
    """The job with its plan's forecast, which :func:`expected` corrects during the run."""
    known = {"plan": asdict(plan), "fitted": fitted.to_dict()}
    return replace(job, extra={**job.extra, "forecast": known})


def expected(job: Job, rounds: int, validation_accuracy: float, validation_samples: int) -> dict[str, Any] | None:
    """The accuracy with which the run will probably end, in the form of a plan's ``forecast``; None for a job without a
    forecast.

    :param rounds: number of rounds after which the validation accuracy was measured."""
    known = job.extra.get("forecast")
    if known is None:
        return None
    seen = [SeenAccuracy(rounds, validation_accuracy)]
    return corrected(FittedForecast.from_dict(known["fitted"]), PlanFeatures(**known["plan"]), seen,
                     validation_samples).to_dict()
