"""The forecast error of a plan (:mod:`fedgap.theory.forecast`) as an objective, by way of its tangents.

For given rounds, local steps and upload bits the error is K·e^z + B·Σ s_n·w_n² + C·KL(m) + floor, with
z = d·λ̄ + (c·KL(A) + g/k)·τ^q. An objective must be a mean over rounds. z is one, but e^z is not, and neither are the
next two parts, which depend on the shares w and the labels m of all rounds together. Each has tangents that are means
and nowhere above it:

    e^z ≥ e^{z₀}·(1 + z − z₀),      Σ s_n·w_n² ≥ Σ s_n·(2·w°_n·w_n − w°_n²),      KL(m) ≥ Σ_c m_c·ln(m°_c/t_c)

for every z₀, w° and m°, with equality at z = z₀, w = w° and m = m°. With h_n = 2·B·s_n·w°_n + C·Σ_c q_nc·ln(m°_c/t_c)
the error is therefore at least

    floor + K·e^{z₀}·(1 − z₀) − B·Σ s_n·w°_n² + mean over the rounds of [ (mean of h_n over A) + K·e^{z₀}·z ].

A lower bound on this tangent is a lower bound on the error of every plan. Clients that take part often have a high h_n,
which is why its best rounds take turns.

If all rounds have the same clients, B·Σ s_n·w_n² = (B/k)·(mean of s_n over A) and C·KL(m) = C·KL(A). Without w° and m°
the tangent has these instead of h_n. It is then never below the other, but equal to the error only for such plans, and
it finds the best of them. :mod:`fedgap.planning.forecast_plan` searches for the best z₀.
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
from fedgap.theory.label_matching import label_divergence

_RARE = 1e-9
"""Least share of a label in m°, so that its logarithm is finite."""
_MANY_SAMPLES = 1e6
"""For the local search, label distributions are turned into histograms of this many samples, so that smoothing by one
sample has no effect."""


@dataclass(frozen=True, eq=False)
class ForecastTangent:
    """The tangent at z₀ of the forecast error of a problem's plans."""

    problem: Problem
    fitted: FittedForecast
    slowed: float = 0.0
    """z₀: at a plan with this z the tangent equals the error."""
    shared: "SharedTraining | None" = None
    """w° and m°; None to judge every round as if all rounds had its clients."""
    counts_samples: bool = True
    """Whether s_n is known; otherwise it is taken as 1, as by policies, whose clients' data may change."""
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
        """The part of the tangent that no decision changes: floor + K·e^{z₀}·(1 − z₀) − B·Σ s_n·w°_n²."""
        squares = 0.0 if self.shared is None else float(self.scarcity @ self.shared.shares**2)
        return self.fixed.floor + self.slope * (1.0 - self.slowed) - self.fixed.few_clients * squares

    @property
    def pruning_weight(self) -> float:
        """K·e^{z₀}·d, the cost of a mean pruning ratio of 1."""
        return self.slope * self.fixed.slowed_by_pruning

    @property
    def label_weight(self) -> float:
        """K·e^{z₀}·c·τ^q, the cost of one nat of divergence; without ``shared`` C is added."""
        return self.slope * self.fixed.slowed_by_divergence + (self.fixed.divergence if self.shared is None else 0.0)

    @property
    def few_weight(self) -> float:
        """K·e^{z₀}·g·τ^q, the cost of 1/k; without ``shared`` and s_n, B is added."""
        alone = self.shared is None and not self.counts_samples
        return self.slope * self.fixed.slowed_by_few_clients + (self.fixed.few_clients if alone else 0.0)

    @cached_property
    def scarcity(self) -> Floats:
        """s_n of every client (:attr:`fedgap.theory.drawn_labels.DrawnLabels.scarcity`), (N,)."""
        if self.counts_samples and self.labels is not None:
            return self.labels.scarcity
        return np.ones(self.problem.size)

    @cached_property
    def scarcity_costs(self) -> Floats:
        """B·s_n, of which a selection costs the sum divided by k², (N,); 0 with ``shared`` or without s_n."""
        alone = self.shared is None and self.counts_samples
        return self.fixed.few_clients * self.scarcity if alone else np.zeros(self.problem.size)

    @cached_property
    def _drawn_costs(self) -> Floats | None:
        """C·ln(m°_c/t_c), what it costs to draw each label, (C,); None without ``shared`` or labels."""
        if self.shared is None or self.labels is None:
            return None
        seen = np.maximum(self.shared.labels, _RARE)
        return np.asarray(self.fixed.divergence * np.log(seen / seen.sum() / self.labels.target))

    @cached_property
    def client_costs(self) -> Floats:
        """h_n, what each client costs if it takes part, (N,); 0 without ``shared``.

        With ``target`` batches, where q_n depends on the selection, h_n has the q_n with which it is least. If clients
        have unequal weights, h_n is without its second part, which then depends on the selection.
        """
        if self.shared is None:
            return np.zeros(self.problem.size)
        costs = 2.0 * self.fixed.few_clients * self.scarcity * self.shared.shares
        if self._drawn_costs is not None and self.labels is not None and self.labels.convex:
            costs = costs + self.labels.scores(self._drawn_costs[None])[0]
        return np.asarray(costs)

    @property
    def least_error(self) -> float:
        """Lower bound on the forecast error with these rounds, local steps and bits: that of all clients, without
        pruning, if KL were 0."""
        few = 1.0 / self.problem.size
        # Σ s_n·w_n² is least if w_n is in proportion to 1/s_n.
        return self.fixed.error(PlanFeatures(self.problem.rounds, self.problem.local_steps,
                                             float(1.0 / (1.0 / self.scarcity).sum()), 0.0, 0.0, few_at_once=few))

    @property
    def additive(self) -> AdditiveStatements | None:
        """The cost of 1/k, if nothing else depends on the selection; otherwise None."""
        costs = self.scarcity_costs
        if self.shared is not None or np.ptp(costs) > 0.0 or (self.labels is not None and self.label_weight > 0.0):
            return None
        return AdditiveStatements(np.zeros(self.problem.size), self.few_weight + float(costs[0]), 0.0, mean=True)

    @property
    def pooled(self) -> PooledLabels | None:
        """The cost as a function of the summed labels that clients draw; None if it is additive.

        The sums of h_n and of B·s_n over the selection are two more columns besides the labels.
        """
        if self.additive is not None:
            return None
        labels = self._labels_or_one
        convex = ConvexLabels(labels.target, self.few_weight, self.label_weight, labels.scores, labels.total_drawn,
                              self.client_costs, self.scarcity_costs)
        return PooledLabels(_MANY_SAMPLES * self._columns, None,
                            lambda histogram, count: self._cost(histogram / _MANY_SAMPLES, count),
                            start=None, convex=convex if labels.convex else None)

    @cached_property
    def _labels_or_one(self) -> DrawnLabels:
        """The labels that clients draw or, if they are not known, the same label for all."""
        return self.labels or DrawnLabels.of(np.ones((self.problem.size, 1)), np.ones(1))

    @cached_property
    def _columns(self) -> Floats:
        """One row per client, (N, columns): the labels that it draws, h_n, and B·s_n."""
        return np.column_stack([self._labels_or_one.table, self.client_costs, self.scarcity_costs])

    def _cost(self, total: Floats, count: int | Ints) -> Floats:
        """Return what an unpruned round of k clients costs, (...).

        :param total: the sum of their rows of :attr:`_columns`, (..., columns); :param count: k, (...).
        """
        labels, count = self._labels_or_one, np.broadcast_to(count, total.shape[:-1])
        drawn, own, scarce = total[..., :-2], total[..., -2], total[..., -1]
        cost = (self.few_weight + own + scarce / count) / count
        if self.label_weight > 0.0:
            cost = cost + self.label_weight * labels.divergence_of(drawn, count)
        if self._drawn_costs is not None and not labels.convex:
            cost = cost + labels.mean(drawn, count) @ self._drawn_costs
        return np.asarray(cost)

    def selection_cost(self, selected: Bools) -> Floats:
        """Return what each selection costs in an unpruned round; infinite if nobody is selected."""
        count = selected.sum(axis=-1)
        someone = np.asarray(count > 0)
        total = np.where(someone[..., None], selected.astype(np.float64) @ self._columns, self._columns[0])
        return np.where(someone, self._cost(total, np.maximum(count, 1)), np.inf)

    def divergence(self, selected: Bools) -> Floats:
        """Return KL(A) of each selection (..., N), shape (...); 0 if no labels are known."""
        return np.zeros(selected.shape[:-1]) if self.labels is None else self.labels.divergence(selected)

    def with_rounds(self, rounds: int) -> "ForecastTangent":
        """Return the tangent for another number of rounds."""
        return replace(self, problem=self.problem.with_rounds(rounds))


@dataclass(frozen=True, eq=False)
class SharedTraining:
    """Who does how much of a plan's training, and the labels that are drawn in all its rounds together."""

    shares: Floats
    """w: the mean over the rounds of 1/k if the client takes part, and of 0 otherwise, (N,)."""
    labels: Floats
    """m: the mean over the rounds of the selected clients' mean label distribution, (C,); empty if labels are not
    known."""

    @classmethod
    def of(cls, problem: Problem, segments: Sequence[Segment]) -> "SharedTraining":
        """Return the shares and labels of a plan with these segments."""
        rounds = np.array([segment.rounds for segment in segments], dtype=np.float64)
        selected = np.stack([segment.selected for segment in segments])
        labels, weights = drawn_labels(problem), rounds / rounds.sum()
        drawn = np.zeros((len(segments), 0)) if labels is None else np.stack([labels.drawn(row)[0] for row in selected])
        return cls(weights @ (selected / selected.sum(axis=-1, keepdims=True)), weights @ drawn)


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


def few_clients(labels: DrawnLabels | None, shares: Floats) -> Floats:
    """Return Σ s_n·w_n² of shares w (..., N), shape (...); s_n is 1 if labels are not known."""
    return np.asarray((shares**2 if labels is None else labels.scarcity * shares**2).sum(axis=-1))


def features_of_rounds(problem: Problem, selected: Bools, pruning: float, times: Ints | None = None) -> PlanFeatures:
    """Return the features of a plan whose rounds have these selections, (S, N), for a search that tries many plans.

    With ``target`` batches the divergences are lower bounds.

    :param problem: with the plan's rounds, local steps and bits; :param pruning: the mean pruning ratio;
    :param times: how often each selection occurs, (S,); by default equally often.
    """
    labels, count = drawn_labels(problem), selected.sum(axis=-1)
    weights = np.full(len(count), 1.0 / len(count)) if times is None else times / times.sum()
    together = at_once = 0.0
    if labels is not None:
        mean = labels.mean(selected.astype(np.float64) @ labels.table, count)
        together = float(labels.divergence_of(weights @ mean, 1.0))
        at_once = float(weights @ labels.divergence_of(mean, np.ones(len(count))))
    return PlanFeatures(problem.rounds, problem.local_steps, float(few_clients(labels, (weights / count) @ selected)),
                        pruning, together, problem.upload_bits, float(weights @ (1.0 / count)), at_once)


def plan_features(problem: Problem, segments: Sequence[Segment]) -> PlanFeatures:
    """Return the features of a plan on which its forecast depends, with the exact divergence of the drawn labels."""
    rounds = np.array([segment.rounds for segment in segments], dtype=np.float64)
    planned = problem.with_rounds(int(rounds.sum())).with_learner(segments[0].local_steps, segments[0].upload_bits)
    labels, together = drawn_labels(planned), SharedTraining.of(planned, segments)

    def mean(values: list[float]) -> float:
        return float(rounds @ np.array(values) / rounds.sum())

    return PlanFeatures(
        rounds=float(rounds.sum()),
        local_steps=float(segments[0].local_steps),
        few_clients=float(few_clients(labels, together.shares)),
        pruning=mean([float(segment.pruning_ratio[segment.selected].mean()) for segment in segments]),
        divergence=0.0 if labels is None else float(label_divergence(together.labels, labels.target)),
        upload_bits=planned.upload_bits,
        few_at_once=mean([1.0 / int(segment.selected.sum()) for segment in segments]),
        divergence_at_once=0.0 if labels is None else mean([labels.exact_divergence(s.selected) for s in segments]),
    )
