"""The forecast error of a plan (:mod:`fedgap.theory.forecast`) as an objective, by way of its tangents.

For given rounds, local steps and upload bits the error is K·e^z + B·(1/k) + C·KL + floor with z = d·λ̄ + c·KL, where
1/k, λ̄ and KL are means over the rounds. e^z is not a mean over rounds, as an objective must be. But as
e^z ≥ e^{z₀}·(1 + z − z₀) for every z₀, the tangent

    floor + K·e^{z₀}·(1 − z₀) + mean over the rounds of [ B/k + (C + K·e^{z₀}·c)·KL(A) + K·e^{z₀}·d·(mean λ) ]

is nowhere above the error, equals it where z = z₀, and has the form of an objective. A lower bound on a tangent is
therefore a lower bound on the error. :mod:`fedgap.planning.forecast_plan` searches for the best z₀.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.objective import AdditiveStatements, ConvexLabels, PooledLabels
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.theory.built_in_forecasts import BUILT_IN
from fedgap.theory.drawn_labels import DrawnLabels
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import FixedRounds, PlanFeatures

_MANY_SAMPLES = 1e6
"""For the local search, label distributions are turned into histograms of this many samples, so that smoothing by one
sample has no effect."""


@dataclass(frozen=True, eq=False)
class ForecastTangent:
    """The tangent at z₀ of the forecast error of a problem's plans."""

    problem: Problem
    fitted: FittedForecast
    slowed: float = 0.0
    """z₀: at a plan with z = d·λ̄ + c·KL equal to this, the tangent equals the error."""
    name: str = "forecast"
    chooses_rounds: bool = True

    @cached_property
    def fixed(self) -> FixedRounds:
        """The forecast for the problem's rounds, local steps and upload bits."""
        problem = self.problem
        return self.fitted.forecast.at(problem.rounds, problem.local_steps, problem.upload_bits)

    @cached_property
    def labels(self) -> DrawnLabels | None:
        """The labels that clients draw; None if they are not known."""
        return drawn_labels(self.problem)

    @property
    def slope(self) -> float:
        """K·e^{z₀}, the slope of the tangent in z."""
        return float(self.fixed.scale * np.exp(self.slowed))

    @property
    def constant(self) -> float:
        """The part of the tangent that no decision changes: floor + K·e^{z₀}·(1 − z₀)."""
        return self.fixed.floor + self.slope * (1.0 - self.slowed)

    @property
    def pruning_weight(self) -> float:
        """K·e^{z₀}·d, the cost of a mean pruning ratio of 1."""
        return self.slope * self.fixed.slowed_by_pruning

    @property
    def label_weight(self) -> float:
        """C + K·e^{z₀}·c, the cost of one nat of divergence."""
        return self.fixed.divergence + self.slope * self.fixed.slowed_by_divergence

    @property
    def least_error(self) -> float:
        """Lower bound on the forecast error with these rounds, local steps and bits: that of all clients, without
        pruning, if KL were 0."""
        return self.fixed.error(1.0 / self.problem.size, 0.0, 0.0)

    @property
    def additive(self) -> AdditiveStatements | None:
        """The cost B/k, if labels are not known or have no effect; otherwise None."""
        if self.labels is not None and self.label_weight > 0.0:
            return None
        return AdditiveStatements(np.zeros(self.problem.size), self.fixed.few_clients, 0.0, mean=True)

    @property
    def pooled(self) -> PooledLabels | None:
        """The cost as a function of the summed labels that clients draw; None if they have no effect."""
        labels = self.labels
        if labels is None or self.additive is not None:
            return None
        matched = labels.batches == "target"
        convex = ConvexLabels(labels.target, self.fixed.few_clients, self.label_weight, labels.scores,
                              labels.total_drawn)
        return PooledLabels(
            _MANY_SAMPLES * labels.table, None if matched else _MANY_SAMPLES * labels.target, self._pooled_cost,
            start=None, convex=convex if labels.convex else None,
        )

    def _pooled_cost(self, histogram: Floats, count: int | Ints) -> Floats:
        assert self.labels is not None
        count = np.asarray(count)
        apart = self.labels.divergence_of(histogram / _MANY_SAMPLES, np.broadcast_to(count, histogram.shape[:-1]))
        return np.asarray(self.fixed.few_clients / count + self.label_weight * apart)

    def selection_cost(self, selected: Bools) -> Floats:
        """Return B/k + (C + K·e^{z₀}·c)·KL(A) of each selection; infinite if nobody is selected."""
        count = selected.sum(axis=-1)
        cost = self.fixed.few_clients / np.maximum(count, 1) + self.label_weight * self.divergence(selected)
        return np.where(count > 0, cost, np.inf)

    def divergence(self, selected: Bools) -> Floats:
        """Return KL(A) of each selection (..., N), shape (...); 0 if no labels are known."""
        return np.zeros(selected.shape[:-1]) if self.labels is None else self.labels.divergence(selected)

    def with_rounds(self, rounds: int) -> "ForecastTangent":
        """Return the tangent for another number of rounds."""
        return replace(self, problem=self.problem.with_rounds(rounds))

    def slowed_by(self, features: PlanFeatures) -> float:
        """Return z = d·λ̄ + c·KL of a plan."""
        return self.fixed.slowed(features.pruning, features.divergence)


def forecast(problem: Problem) -> ForecastTangent:
    """Return the forecast error of a problem as an objective, with the scenario's weights or built-in ones."""
    return ForecastTangent(problem, BUILT_IN if problem.scenario is None else problem.scenario.fitted_forecast())


def drawn_labels(problem: Problem) -> DrawnLabels | None:
    """Return the labels that the clients of a problem draw; None if labels are not known.

    With ``target`` batches, how often samples may repeat is computed as if every client took part in all rounds.
    """
    if problem.label_counts is None or problem.target_counts is None:
        return None
    if problem.scenario is None:
        return DrawnLabels.of(problem.label_counts, problem.target_counts)
    learning = problem.scenario.learning
    return DrawnLabels.of(
        problem.label_counts, problem.target_counts, batches=learning.batches,
        by_samples=learning.weighting == "samples", max_repeat=learning.max_repeat,
        draws=problem.rounds * problem.local_steps * problem.fleet.batch_size,
    )


def plan_features(problem: Problem, segments: Sequence[Segment]) -> PlanFeatures:
    """Return the features of a plan on which its forecast depends, with the exact divergence of the drawn labels."""
    rounds = np.array([segment.rounds for segment in segments], dtype=np.float64)
    planned = problem.with_rounds(int(rounds.sum())).with_learner(segments[0].local_steps, segments[0].upload_bits)
    labels = drawn_labels(planned)

    def mean(values: list[float]) -> float:
        return float(rounds @ np.array(values) / rounds.sum())

    return PlanFeatures(
        rounds=float(rounds.sum()),
        local_steps=float(segments[0].local_steps),
        few_clients=mean([1.0 / int(segment.selected.sum()) for segment in segments]),
        pruning=mean([float(segment.pruning_ratio[segment.selected].mean()) for segment in segments]),
        divergence=0.0 if labels is None else mean([labels.exact_divergence(s.selected) for s in segments]),
        upload_bits=planned.upload_bits,
    )
