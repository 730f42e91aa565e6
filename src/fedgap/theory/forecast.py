"""The forecast of a plan's test error, from what the plan decides.

    error ≈ K(R, τ, bits)·exp(d·λ̄ + (c·KL(A) + g/k)·τ^q) + B·Σ_n s_n·w_n² + C·KL(m) + floor
    K = C₀·(R·exp(−r₀/R)·τ^b)^(−a)·exp(e·ρ(bits))

The first part is the error that more training removes, the rest is what always remains. R is the number of rounds, of
which the first have little effect, because momentum and learning rate have to build up (r₀). τ is the number of local
steps, and ρ(bits) = 2^(1 − bits) the step to which uploaded values are rounded. The other letters are the fitted
weights, all at least 0. An error is a fraction: 0.02 for an accuracy of 98 %.

How fast a model learns depends on the single rounds: k is the number of clients in a round, λ̄ their mean pruning ratio,
and KL(A) the divergence of their mean label distribution from the target; all three are means over the rounds. With
more local steps the clients of a round drift further apart (q). What remains depends on all rounds together: w_n is the
share of the training that client n does (the mean over the rounds of 1/k if it takes part, and of 0 otherwise), s_n
says how few samples it has and how often it repeats rare ones (1 for an average client, see
:attr:`fedgap.theory.drawn_labels.DrawnLabels.scarcity`), and m is the mean label distribution over all rounds. If the
same k average clients take part in all rounds, Σ s_n·w_n² = 1/k and KL(m) = KL(A). Clients that take turns make both
smaller.

For given R, τ and bits the error is convex in λ̄, KL(A), 1/k, w and m. Its tangent is therefore a lower bound, and it is
linear in means over the rounds, as :class:`fedgap.planning.objective.Objective` requires.
"""

from dataclasses import dataclass, fields
from math import isnan, nan

import numpy as np


@dataclass(frozen=True)
class PlanFeatures:
    """The features of a plan from which its error is forecast."""

    rounds: float
    """R, the number of rounds."""
    local_steps: float
    """τ, the local steps per round."""
    few_clients: float
    """Σ s_n·w_n²: one divided by the number of clients that train, if these are average and train equally often."""
    pruning: float
    """λ̄: mean over the rounds of the selected clients' mean pruning ratio."""
    divergence: float
    """KL(m), in nats: how far the labels that are drawn in all rounds together are from the target
    (:mod:`fedgap.theory.drawn_labels`)."""
    upload_bits: int = 32
    """Bits per uploaded value."""
    few_at_once: float = nan
    """Mean over the rounds of 1/k; by default ``few_clients``, as if the same clients took part in all rounds."""
    divergence_at_once: float = nan
    """Mean over the rounds of KL(A), in nats; by default ``divergence``, for the same reason."""

    def __post_init__(self) -> None:
        """Fill in the features of single rounds if they are not given."""
        for name, like in (("few_at_once", self.few_clients), ("divergence_at_once", self.divergence)):
            if isnan(getattr(self, name)):
                object.__setattr__(self, name, like)


@dataclass(frozen=True)
class FixedRounds:
    """The forecast for given rounds, local steps and bits: K·e^z + B·Σ s_n·w_n² + C·KL(m) + floor."""

    scale: float
    """K: the error that more training removes, if λ̄, KL(A) and 1/k are 0."""
    slowed_by_pruning: float
    """d: how much pruning slows learning."""
    slowed_by_divergence: float
    """c·τ^q: how much a label distribution other than the target's slows learning."""
    slowed_by_few_clients: float
    """g·τ^q: how much few clients in a round slow learning."""
    few_clients: float
    """B: weight of the lasting error of few clients."""
    divergence: float
    """C: weight of the lasting error of a label distribution other than the target's."""
    floor: float
    """The error that always remains."""

    def error(self, plan: PlanFeatures) -> float:
        """Return the forecast error of a plan with these rounds, local steps and bits, a fraction."""
        return float(self.scale * np.exp(self.slowed(plan)) + self.lasting(plan))

    def slowed(self, plan: PlanFeatures) -> float:
        """Return z = d·λ̄ + (c·KL(A) + g/k)·τ^q, by which a plan slows learning."""
        return (self.slowed_by_pruning * plan.pruning + self.slowed_by_divergence * plan.divergence_at_once
                + self.slowed_by_few_clients * plan.few_at_once)

    def lasting(self, plan: PlanFeatures) -> float:
        """Return the error that remains however long a plan trains: B·Σ s_n·w_n² + C·KL(m) + floor."""
        return self.few_clients * plan.few_clients + self.divergence * plan.divergence + self.floor


@dataclass(frozen=True)
class Forecast:
    """The fitted weights; see the module docstring."""

    start: float
    """C₀: the removable part of the error after one round of one step, if rounds counted fully from the first."""
    rounds_power: float
    """a: the power with which more training reduces the error."""
    steps_power: float
    """b: τ local steps per round count as much as τ^b times as many rounds."""
    slowed_by_pruning: float
    """d: how much pruning slows learning."""
    slowed_by_divergence: float
    """c: how much a label distribution other than the target's slows learning."""
    few_clients: float
    """B: weight of the lasting error of few clients."""
    divergence: float
    """C: weight of the lasting error of a label distribution other than the target's."""
    coarse_uploads: float
    """e: how much rounding of the uploaded values slows learning."""
    floor: float
    """The error that always remains."""
    slow_start: float = 0.0
    """r₀: with fewer rounds than about this number, each round has less effect."""
    slowed_by_few_clients: float = 0.0
    """g: how much few clients in a round slow learning."""
    drift_power: float = 0.0
    """q: with τ local steps, unlike labels and few clients in a round slow learning τ^q times as much."""

    def at(self, rounds: float, local_steps: float, upload_bits: int = 32) -> FixedRounds:
        """Return the forecast for given rounds R, local steps τ and upload bits."""
        effective = rounds * np.exp(-self.slow_start / rounds) * local_steps**self.steps_power
        coarse = np.exp(self.coarse_uploads * 2.0 ** (1 - upload_bits))
        return FixedRounds(
            scale=float(self.start * effective ** (-self.rounds_power) * coarse),
            slowed_by_pruning=self.slowed_by_pruning,
            slowed_by_divergence=self.slowed_by_divergence * local_steps**self.drift_power,
            slowed_by_few_clients=self.slowed_by_few_clients * local_steps**self.drift_power,
            few_clients=self.few_clients,
            divergence=self.divergence,
            floor=self.floor,
        )

    def error(self, plan: PlanFeatures) -> float:
        """Return the forecast test error of a plan, a fraction."""
        return self.at(plan.rounds, plan.local_steps, plan.upload_bits).error(plan)


WEIGHTS = tuple(weight.name for weight in fields(Forecast))
"""The names of the fitted weights, in the order of a covariance matrix."""
FEATURES = tuple(feature.name for feature in fields(PlanFeatures))
"""The names of the features of a plan."""
