"""Check whether a plan, for example one from a file, belongs to a scenario."""

from __future__ import annotations

from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning import Plan
from fedgap.planning.problem import Problem


def check_plan(scenario: Scenario, plan: Plan, *, other_scenario: bool = False, label: object = "plan") -> None:
    """Raise an :class:`InputError` for a plan that cannot be evaluated in this scenario.

    :param other_scenario: accept a plan that was made for another scenario, as long as it has as many clients.
    :param label: what to call the plan in the message, for example its file.
    """
    if not plan.feasible:
        raise InputError(f"{label}: has no segments: {plan.reason or 'the plan is infeasible'}")
    clients = plan.segments[0].selected.size
    if clients != scenario.size:
        raise InputError(f"{label}: must have as many clients as the scenario, {scenario.size}; got {clients}")
    if other_scenario:
        return
    if plan.scenario_hash != scenario.hash():
        raise InputError(
            f"{label}: was made for another scenario (its hash is {plan.scenario_hash or 'missing'}, this one's "
            f"{scenario.hash()}); plan again with the same overrides, or accept it with --any-scenario"
        )
    Problem.of(scenario).refuse(plan)
