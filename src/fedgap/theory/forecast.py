"""The forecast of a plan's test error, from what the plan decides.

    error ≈ K(R, τ, bits)·exp(d·λ̄ + c·KL) + B·(1/k) + C·KL + floor
    K = C₀·(R·exp(−r₀/R)·τ^b)^(−a)·exp(e·ρ(bits))

with R rounds, of which the first have little effect (r₀: momentum and rate have to build up), τ local steps, k clients
in a round, λ̄ the mean pruning ratio, KL the divergence of the mean of the selected clients' label distributions from
the target, and ρ(bits) = 2^(1 − bits), the step of a rounded upload. Errors
are shares of one (0.02 for an accuracy of 98 %). All weights are at least 0.

Where rounds differ, 1/k, λ̄ and KL are means over the rounds. For given R, τ and bits the error is then convex in these
three means, so that a tangent bounds it from below and has the form that :class:`fedgap.planning.objective.Objective`
asks for.
"""

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class PlanFeatures:
    """The features of a plan from which its error is forecast."""

    rounds: float
    """R."""
    local_steps: float
    """τ."""
    few_clients: float
    """Mean over the rounds of 1/k."""
    pruning: float
    """λ̄: mean over the rounds of the selected clients' mean pruning ratio."""
    divergence: float
    """Mean over the rounds of KL(A), in nats."""
    upload_bits: int = 32


@dataclass(frozen=True)
class FixedRounds:
    """The forecast for given rounds, local steps and bits: K·exp(d·λ̄ + c·KL) + B·(1/k) + C·KL + floor."""

    scale: float
    """K: the part of the error that more training removes."""
    slowed_by_pruning: float
    """d."""
    slowed_by_divergence: float
    """c."""
    few_clients: float
    """B."""
    divergence: float
    """C."""
    floor: float

    def error(self, few_clients: float, pruning: float, divergence: float) -> float:
        """The forecast error, a share of one."""
        return float(self.scale * np.exp(self.slowed(pruning, divergence)) + self.few_clients * few_clients
                     + self.divergence * divergence + self.floor)

    def slowed(self, pruning: float, divergence: float) -> float:
        """z = d·λ̄ + c·KL."""
        return self.slowed_by_pruning * pruning + self.slowed_by_divergence * divergence


@dataclass(frozen=True)
class Forecast:
    """The fitted weights; see the module docstring."""

    start: float
    """C₀: the part of the error after one round of one step that training can remove."""
    rounds_power: float
    """a."""
    steps_power: float
    """b: how much of a round a local step is worth."""
    slowed_by_pruning: float
    """d."""
    slowed_by_divergence: float
    """c."""
    few_clients: float
    """B."""
    divergence: float
    """C."""
    coarse_uploads: float
    """e."""
    floor: float
    slow_start: float = 0.0
    """r₀: with fewer rounds than about this number, each round has less effect."""

    def at(self, rounds: float, local_steps: float, upload_bits: int = 32) -> FixedRounds:
        """The forecast for given rounds, local steps and upload bits."""
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
        """The forecast error of a plan, a share of one."""
        fixed = self.at(plan.rounds, plan.local_steps, plan.upload_bits)
        return fixed.error(plan.few_clients, plan.pruning, plan.divergence)


WEIGHTS = tuple(weight.name for weight in fields(Forecast))
"""The names of the weights."""
FEATURES = tuple(feature.name for feature in fields(PlanFeatures))
"""The names of the features of a plan."""
