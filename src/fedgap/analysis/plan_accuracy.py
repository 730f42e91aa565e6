"""The accuracy that a plan is forecast to reach, whatever it minimises."""

from __future__ import annotations

from dataclasses import replace

from fedgap.config import Scenario
from fedgap.planning import Plan
from fedgap.planning.problem import Problem
from fedgap.planning.solve import forecast_of


def with_forecast(plan: Plan, scenario: Scenario) -> Plan:
    """The plan with its forecast by the scenario's weights; as it is where it has one, or has no rounds."""
    if plan.forecast is not None or not plan.feasible:
        return plan
    return replace(plan, forecast=forecast_of(Problem.of(scenario), plan.segments))


def accuracy_text(plan: Plan | None) -> str:
    """The forecast accuracy in per cent; – where there is none."""
    return "–" if plan is None or plan.forecast is None else f"{100.0 * plan.forecast.accuracy:.2f} %"
