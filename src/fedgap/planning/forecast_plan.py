"""The plan with the least forecast error for given rounds, local steps and upload bits.

The error is not linear in the means over rounds, so that a tangent of it is minimised instead
(:mod:`fedgap.planning.objectives.forecast_tangent`), at first one that judges each round as if all rounds had its
clients. A tangent touches the error at z₀, and the next tangent is taken at the z of the plan that minimises this one.
As tangents are below the error, the lower bound of each holds for the error, and the best of these bounds certifies the
best plan with the same clients in all rounds. The bound is concave in K·e^{z₀} and rises from z₀ towards the z of the
tangent's plan, so that each plan narrows an interval that contains the best z₀.

Where clients take turns (:mod:`fedgap.planning.turn_taking`), one tangent at the plan gives a bound for all plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgap.planning import exact
from fedgap.planning.composition import Composition
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, SharedTraining, forecast, plan_features
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task
from fedgap.planning.tolerances import ENUMERATED_CLIENTS
from fedgap.planning.turn_taking import TurnDraft, TurnSearch
from fedgap.theory.forecast import PlanFeatures

_TANGENTS = 6
"""Maximum number of tangents; two or three are usual."""
_ENOUGH, _ENOUGH_OF_MANY = 8e-4, 6e-3
"""The search ends at these gaps, as shares of the error, because they are far below the accuracy of a forecast. The
first is small enough for a plan to be called optimal; the second is for fleets whose selections cannot be
enumerated."""
_ENOUGH_IN_TURNS = 0.02
"""The same where clients take turns, because the least value of their tangent is usually further below the error than
this."""
_SLIGHTLY = 0.01
"""By what share a budget is raised to compute its price."""


@dataclass(frozen=True, eq=False)
class ForecastSolution:
    """The best plan found for its rounds, local steps and bits."""

    task: Task
    segments: tuple[Segment, ...]
    features: PlanFeatures
    error: float
    least_error: float | None
    """Proven lower bound on the forecast error of plans with these rounds, local steps and bits: of all such plans if
    clients take turns, otherwise of those with the same clients in all rounds. None if nothing is proven."""
    energy_price: float
    """By how much one more joule would lower the tangent, 1/J."""
    delay_price: float
    """By how much one more second would lower the tangent, 1/s."""
    interrupted: bool
    """Whether the search was ended by Ctrl-C."""
    in_turns: bool = False
    """Whether the plan comes from :func:`solve_turns`."""

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
        error = objective.fixed.error(features)
        if best is None or error < best.error:
            best = ForecastSolution(task, solution.segments, features, error, None, solution.energy_price,
                                    solution.delay_price, solution.interrupted)
        z = objective.fixed.slowed(features)
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


def solve_turns(task: Task, draft: TurnDraft, settings: SolverSettings) -> ForecastSolution:
    """Return the plan of a draft in which clients take turns.

    The lower bound on a tangent at this plan certifies it. Its prices are those of the draft's cycle with the same
    number of rounds, from slightly larger budgets.
    """
    problem, segments = draft.problem, draft.segments(task.scheme)
    changed = task.with_learner(problem.local_steps, problem.upload_bits).with_rounds(problem.rounds)
    features, objective = plan_features(problem, segments), forecast(problem)
    reached = objective.fixed.error(features)
    tangent = replace(objective, slowed=objective.fixed.slowed(features), shared=SharedTraining.of(problem, segments))
    solution = exact.solve(replace(changed, objective=tangent),
                           replace(settings, enough=max(settings.enough, _ENOUGH_IN_TURNS * reached)))
    bound = solution.lower_bound

    def price(budget: float, richer: Problem) -> float:
        others = TurnSearch(richer, task.scheme).drafts(draft.cycle, np.array([problem.rounds]))
        error = next((other.error for other in others), draft.error)
        return max(0.0, draft.error - error) / (_SLIGHTLY * budget)

    more = 1.0 + _SLIGHTLY
    energy_price = price(problem.energy_j, replace(problem, energy_j=more * problem.energy_j))
    delay_price = price(problem.delay_s, replace(problem, delay_s=more * problem.delay_s))
    least = None if bound is None else min(tangent.constant + bound, reached)
    return ForecastSolution(changed, segments, features, reached, least, energy_price, delay_price,
                            solution.interrupted, in_turns=True)
