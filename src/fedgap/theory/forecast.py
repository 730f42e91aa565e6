"""The forecast of a plan's test error, from what the plan decides.

    error ≈ K(R, τ, bits)·exp(d·λ̄ + c·KL) + B·(1/k) + C·KL + floor
    K = C₀·(R·exp(−r₀/R)·τ^b)^(−a)·exp(e·ρ(bits))

R is the number of rounds, of which the first have little effect, because momentum and learning rate have to build up
(r₀). τ is the number of local steps, k the number of clients in a round, λ̄ their mean pruning ratio, KL the divergence
of their mean label distribution from the target, and ρ(bits) = 2^(1 − bits) the step to which uploaded values are
rounded. The other letters are the fitted weights, all at least 0. An error is a fraction: 0.02 for an accuracy of 98 %.

Where rounds differ, 1/k, λ̄ and KL are means over the rounds. For given R, τ and bits the error is then convex in these
three means. Its tangent is therefore a lower bound, and it is linear in the means, as
:class:`fedgap.planning.objective.Objective` requires.
"""

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class PlanFeatures:
    """The features of a plan from which its error is forecast."""

    rounds: float
    """R, the number of rounds."""
    local_steps: float
    """τ, the local steps per round."""
    few_clients: float
    """Mean over the rounds of 1/k."""
    pruning: float
    """λ̄: mean over the rounds of the selected clients' mean pruning ratio."""
    divergence: float
    """Mean over the rounds of KL(A), in nats; A are the selected clients (:mod:`fedgap.theory.drawn_labels`)."""
    upload_bits: int = 32
    """Bits per uploaded value."""


@dataclass(frozen=True)
class FixedRounds:
    """The forecast for given rounds, local steps and bits: K·exp(d·λ̄ + c·KL) + B·(1/k) + C·KL + floor."""

    scale: float
    """K: the error that more training removes, if λ̄ and KL are 0."""
    slowed_by_pruning: float
    """d: how much pruning slows learning."""
    slowed_by_divergence: float
    """c: how much a label distribution other than the target's slows learning."""
    few_clients: float
    """B: weight of the lasting error of few clients."""
    divergence: float
    """C: weight of the lasting error of a label distribution other than the target's."""
    floor: float
    """The error that always remains."""

    def error(self, few_clients: float, pruning: float, divergence: float) -> float:
        """Return the forecast error, a fraction, from the mean 1/k, λ̄ and KL."""
        return float(self.scale * np.exp(self.slowed(pruning, divergence)) + self.few_clients * few_clients
                     + self.divergence * divergence + self.floor)

    def slowed(self, pruning: float, divergence: float) -> float:
        """Return z = d·λ̄ + c·KL."""
        return self.slowed_by_pruning * pruning + self.slowed_by_divergence * divergence


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

    def at(self, rounds: float, local_steps: float, upload_bits: int = 32) -> FixedRounds:
        """Return the forecast for given rounds R, local steps τ and upload bits."""
        effective = rounds * np.exp(-self.slow_start / rounds) * local_steps**self.steps_power
        coarse = np.exp(self.coarse_uploads * 2.0 ** (1 - upload_bits))
        return FixedRounds(
            scale=float(self.start * effective ** (-self.rounds_power) * coarse),
            slowed_by_pruning=self.slowed_by_pruning,
            slowed_by_divergence=self.slowed_by_divergence,
            few_clients=self.few_clients,
            divergence=self.divergence,
            floor=self.floor,
        )

    def error(self, plan: PlanFeatures) -> float:
        """Return the forecast test error of a plan, a fraction."""
        fixed = self.at(plan.rounds, plan.local_steps, plan.upload_bits)
        return fixed.error(plan.few_clients, plan.pruning, plan.divergence)


WEIGHTS = tuple(weight.name for weight in fields(Forecast))
"""The names of the fitted weights, in the order of a covariance matrix."""
FEATURES = tuple(feature.name for feature in fields(PlanFeatures))
"""The names of the features of a plan."""
