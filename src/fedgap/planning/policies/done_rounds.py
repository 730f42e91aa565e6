"""What the forecast knows about the rounds that are done."""

from dataclasses import dataclass

from fedgap.planning.objectives.forecast_tangent import ForecastTangent
from fedgap.planning.plan import Segment
from fedgap.theory.forecast import FixedRounds


@dataclass(frozen=True)
class DoneRounds:
    """Sums over the rounds so far."""

    rounds: int = 0
    few_clients: float = 0.0
    """Of 1/k."""
    pruning: float = 0.0
    """Of the mean pruning ratio."""
    divergence: float = 0.0
    """Of KL(A)."""

    def with_round(self, segment: Segment, divergence: float) -> "DoneRounds":
        """One round more."""
        chosen = segment.selected
        return DoneRounds(self.rounds + 1, self.few_clients + 1.0 / int(chosen.sum()),
                          self.pruning + float(segment.pruning_ratio[chosen].mean()), self.divergence + divergence)

    def error(self, fixed: FixedRounds) -> float:
        """The forecast error where training ends here; ``fixed`` is the forecast for so many rounds."""
        return fixed.error(self.few_clients / self.rounds, self.pruning / self.rounds, self.divergence / self.rounds)

    def constant(self, tangent: ForecastTangent) -> float:
        """The tangent's constant and what the rounds so far add to it."""
        spent = (tangent.fixed.few_clients * self.few_clients + tangent.label_weight * self.divergence
                 + tangent.pruning_weight * self.pruning)
        return tangent.constant + spent / tangent.problem.rounds
