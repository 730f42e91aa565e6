"""The part of a forecast that comes from the rounds already trained.

Every round is judged as if all rounds had its clients, so that the forecast error follows from sums over rounds. With
s_n = 1 for all clients, as here, it is never below the forecast error of :mod:`fedgap.theory.forecast`, and equal to it
if all rounds have the same clients.
"""

from dataclasses import dataclass

from fedgap.planning.objectives.forecast_tangent import ForecastTangent
from fedgap.planning.plan import Segment
from fedgap.theory.forecast import FixedRounds, PlanFeatures


@dataclass(frozen=True)
class DoneRounds:
    """Sums over the rounds trained so far, from which the forecast is computed."""

    rounds: int = 0
    """The number of these rounds."""
    few_clients: float = 0.0
    """Sum of 1/k, with k clients in a round."""
    pruning: float = 0.0
    """Sum of the rounds' mean pruning ratios."""
    divergence: float = 0.0
    """Sum of KL(A)."""

    def with_round(self, segment: Segment, divergence: float) -> "DoneRounds":
        """Return the sums with one more round, whose KL(A) is ``divergence``."""
        chosen = segment.selected
        return DoneRounds(self.rounds + 1, self.few_clients + 1.0 / int(chosen.sum()),
                          self.pruning + float(segment.pruning_ratio[chosen].mean()), self.divergence + divergence)

    def error(self, fixed: FixedRounds) -> float:
        """Return the forecast error if training ends now; ``fixed`` is the forecast for this number of rounds."""
        return fixed.error(self.features)

    @property
    def features(self) -> PlanFeatures:
        """The means over these rounds. Local steps are not known here; those of a fixed forecast do not depend on
        them."""
        return PlanFeatures(self.rounds, 1.0, self.few_clients / self.rounds, self.pruning / self.rounds,
                            self.divergence / self.rounds)

    def constant(self, tangent: ForecastTangent) -> float:
        """Return the part of a tangent that can no longer be changed: its constant, and what these rounds add to it."""
        spent = (tangent.few_weight * self.few_clients + tangent.label_weight * self.divergence
                 + tangent.pruning_weight * self.pruning)
        return tangent.constant + spent / tangent.problem.rounds
