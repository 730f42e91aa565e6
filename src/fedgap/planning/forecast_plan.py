"""The plan of least forecast error for given rounds, local steps and upload bits.

Tangents of the error (:mod:`fedgap.planning.objectives.forecast_tangent`) are solved one after another, each at the z₀
of the plan before. Every tangent's lower bound holds for the error itself, and the best of them certifies the best
plan. In K·e^{z₀} the bound is concave, and it rises towards the z of the tangent's own plan, which brackets the best
z₀.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgap.planning import exact
from fedgap.planning.composition import Composition
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, plan_features
from fedgap.planning.plan import Segment
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task
from fedgap.planning.tolerances import ENUMERATED_CLIENTS
from fedgap.theory.forecast import PlanFeatures

_TANGENTS = 6
"""Maximum number of tangents; two or three are usual."""
_ENOUGH, _ENOUGH_OF_MANY = 8e-4, 6e-3
"""Gaps, as shares of the error, that are not worth closing, because they are far below the accuracy of a forecast. The
first one is needed to be called optimal; the second one is for fleets whose selections cannot be enumerated."""


@dataclass(frozen=True, eq=False)
class ForecastSolution:
    """The best plan found for its rounds, local steps and bits."""

    task: Task
    segments: tuple[Segment, ...]
    features: PlanFeatures
    error: float
    least_error: float | None
    """Certified: no plan of so many rounds, local steps and bits has a smaller forecast error."""
    energy_price: float
    delay_price: float
    interrupted: bool

    @property
    def gap(self) -> float:
        """How far the error may be above the least, as a share of it; infinite where nothing is proven."""
        return np.inf if self.least_error is None else (self.error - self.least_error) / self.error


def solve_forecast(
    task: Task, settings: SolverSettings, known: Sequence[Composition] = (), slowed: float = 0.0
) -> ForecastSolution | None:
    """The best plan of a task's rounds, local steps and bits; None where none fits the budgets.

    :param known: compositions to start from; :param slowed: z₀ of the first tangent.
    """
    best, bound = None, -np.inf
    low, high = -np.inf, np.inf
    share = _ENOUGH if task.problem.size <= ENUMERATED_CLIENTS else _ENOUGH_OF_MANY
    assert isinstance(task.objective, ForecastTangent)
    for _ in range(_TANGENTS):
        objective = replace(task.objective, slowed=slowed)
        enough = max(settings.enough, share * (objective.least_error if best is None else best.error))
        solution = exact.solve(replace(task, objective=objective), replace(settings, enough=enough), known)
        if not solution.segments:
            break
        if solution.lower_bound is not None:
            bound = max(bound, objective.constant + solution.lower_bound)
        features = plan_features(task.problem, solution.segments)
        error = objective.fixed.error(features.few_clients, features.pruning, features.divergence)
        if best is None or error < best.error:
            best = ForecastSolution(task, solution.segments, features, error, None, solution.energy_price,
                                    solution.delay_price, solution.interrupted)
        z = objective.slowed_by(features)
        low, high = (max(low, slowed), high) if z > slowed else (low, min(high, slowed))
        # How far the tangent is below the error at its own plan: further tangents cannot gain more than that.
        lost = objective.fixed.scale * (np.exp(z) - np.exp(slowed) * (1.0 + z - slowed))
        if solution.interrupted or lost <= enough or best.error - bound <= enough:
            break
        known = [exact.composition_of(best.segments, task)]
        slowed = z if low < z < high else 0.5 * (low + high)
    if best is None:
        return None
    return replace(best, least_error=float(min(bound, best.error)) if np.isfinite(bound) else None)
