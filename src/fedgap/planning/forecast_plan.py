"""The plan with the least forecast error for given rounds, local steps and upload bits.

The error is not linear in the means over rounds, so that a tangent of it is minimised instead
(:mod:`fedgap.planning.objectives.forecast_tangent`). A tangent touches the error at z₀, and the next tangent is taken
at the z of the plan that minimises this one. As tangents are below the error, the lower bound of each holds for the
error, and the best of these bounds certifies the best plan. The bound is concave in K·e^{z₀} and rises from z₀ towards
the z of the tangent's plan, so that each plan narrows an interval that contains the best z₀.
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
"""The search ends at these gaps, as shares of the error, because they are far below the accuracy of a forecast. The
first is small enough for a plan to be called optimal; the second is for fleets whose selections cannot be
enumerated."""


@dataclass(frozen=True, eq=False)
class ForecastSolution:
    """The best plan found for its rounds, local steps and bits."""

    task: Task
    segments: tuple[Segment, ...]
    features: PlanFeatures
    error: float
    least_error: float | None
    """Proven lower bound on the forecast error of all plans with these rounds, local steps and bits; None if nothing is
    proven."""
    energy_price: float
    """By how much one more joule would lower the tangent, 1/J."""
    delay_price: float
    """By how much one more second would lower the tangent, 1/s."""
    interrupted: bool
    """Whether the search was ended by Ctrl-C."""

    @property
    def gap(self) -> float:
        """How far the error may be above the least possible one, as a share of it; infinite if nothing is proven."""
        return np.inf if self.least_error is None else (self.error - self.least_error) / self.error


def solve_forecast(
    task: Task, settings: SolverSettings, known: Sequence[Composition] = (), slowed: float = 0.0
) -> ForecastSolution | None:
    """Return the best plan for a task's rounds, local steps and bits; None if none fits the budgets.

    :param known: compositions of good plans to start from; :param slowed: z₀ of the first tangent.
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
        # How far the tangent is below the error at the plan that minimises it. Further tangents cannot gain more.
        lost = objective.fixed.scale * (np.exp(z) - np.exp(slowed) * (1.0 + z - slowed))
        if solution.interrupted or lost <= enough or best.error - bound <= enough:
            break
        known = [exact.composition_of(best.segments, task)]
        slowed = z if low < z < high else 0.5 * (low + high)
    if best is None:
        return None
    return replace(best, least_error=float(min(bound, best.error)) if np.isfinite(bound) else None)
