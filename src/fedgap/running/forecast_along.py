"""What a run will end with: its plan's forecast, corrected by the validation accuracies on the way."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.arrays import Floats
from fedgap.running.job import Job
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import PlanFeatures
from fedgap.theory.forecast_correction import SeenAccuracy, corrected
from fedgap.theory.label_matching import label_divergence

if TYPE_CHECKING:  # a machine that only trains has no planner
    from fedgap.planning import Plan


def features_of(plan: Plan, job: Job, target: Floats) -> PlanFeatures:
    """What the forecast knows about a plan: means over its rounds, with the labels that its clients really draw.

    ``target`` is the target's label distribution, (C,).
    """
    natural = job.label_counts / np.maximum(job.label_counts.sum(axis=1, keepdims=True), 1)
    drawn = job.label_probabilities if job.label_probabilities.size else [natural] * len(plan.segments)

    def mean(values: list[float]) -> float:
        return float(np.average(values, weights=[segment.rounds for segment in plan.segments]))

    return PlanFeatures(
        rounds=plan.rounds, local_steps=job.local_steps,
        few_clients=mean([1.0 / int(segment.selected.sum()) for segment in plan.segments]),
        pruning=mean([float(segment.pruning_ratio[segment.selected].mean()) for segment in plan.segments]),
        divergence=mean([float(label_divergence(labels[segment.selected].mean(axis=0), target))
                         for segment, labels in zip(plan.segments, drawn, strict=True)]),
        upload_bits=job.upload_bits)


def with_forecast(job: Job, plan: Plan, target: Floats, fitted: FittedForecast) -> Job:
    """The job with its plan's forecast, which :func:`expected` corrects as the run goes on."""
    known = {"plan": asdict(features_of(plan, job, target)), "fitted": fitted.to_dict()}
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
