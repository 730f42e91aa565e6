"""Compute θ, energy and delay of a plan again, because a person may have written or edited it."""

from dataclasses import asdict, replace

import numpy as np

from fedgap.config import Scenario
from fedgap.planning.objectives.forecast_tangent import plan_features
from fedgap.planning.plan import Plan
from fedgap.planning.plan_forecast import PlanForecast
from fedgap.planning.problem import Problem
from fedgap.planning.tolerances import BUDGET_MARGIN
from fedgap.registry import SCHEMES

_SAME = 1e-9
"""Relative difference up to which a plan's numbers agree with its segments; far above the rounding errors of JSON."""


def rescore(plan: Plan, scenario: Scenario) -> Plan:
    """Return the plan unchanged if its θ, joules and seconds agree with its segments; otherwise score it again.

    An edited plan loses its certificate (lower bound, gap and prices), and its status says whether it keeps the
    budgets. If its ``scheme`` is the name of a real scheme, it becomes ``edited``, because that scheme did not make the
    plan.
    """
    if not plan.segments:
        return plan
    problem = Problem.of(scenario).with_rounds(plan.rounds)
    terms = problem.objective(plan.segments)
    energy_j, delay_s = problem.energy(plan.segments), problem.delay(plan.segments)
    # A plan with fewer rounds than the scenario has θ = ∞, but its terms are finite: those of its rounds.
    stated = plan.theta if np.isfinite(plan.theta) else sum(plan.terms.values())
    if all(_same(*pair) for pair in ((stated, terms.theta), (plan.energy_j, energy_j), (plan.delay_s, delay_s))):
        return plan
    excess = [
        f"needs {needed:.6g} {unit} of {budget:.6g} {unit}"
        for needed, budget, unit in ((energy_j, problem.energy_j, "J"), (delay_s, problem.delay_s, "s"))
        if needed > budget * (1.0 + BUDGET_MARGIN)
    ]
    moved = plan.scenario_hash not in ("", scenario.hash())
    origin = "made for another scenario, and scored for this one" if moved else "written or edited by hand"
    return replace(
        plan, status="infeasible" if excess else "feasible", reason="; ".join([origin, *excess]),
        scheme=plan.scheme if moved or not _is_scheme(plan.scheme) else "edited",
        theta=terms.theta, terms=asdict(terms), energy_j=energy_j, delay_s=delay_s, solve_s=0.0,
        lower_bound=None, bound_scope="all", least_budget=None, prices=None, trace=(),
        forecast=None if plan.forecast is None else PlanForecast.of(
            scenario.fitted_forecast(), plan_features(problem, plan.segments)),
    )


def _same(stated: float, scored: float) -> bool:
    """Return whether a number in the plan agrees with the computed one."""
    return bool(abs(stated - scored) <= _SAME * abs(scored))


def _is_scheme(name: str) -> bool:
    """Return whether this is the name of a scheme, as :func:`fedgap.planning.solve.scheme_of` makes it."""
    return name.split("+")[0] in SCHEMES.names() or ":" in name
