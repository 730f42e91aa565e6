"""The forecast accuracy of any plan, also of one that does not minimise the forecast error."""

from __future__ import annotations

from dataclasses import replace

from fedgap.config import Scenario
from fedgap.planning import Plan
from fedgap.planning.plan_forecast import PlanForecast
from fedgap.planning.problem import Problem
from fedgap.planning.solve import forecast_of


def with_forecast(plan: Plan, scenario: Scenario) -> Plan:
    """Return the plan with a forecast by the scenario's weights, unless it has one already or has no rounds."""
    if plan.forecast is not None or not plan.feasible:
        return plan
    return replace(plan, forecast=forecast_of(Problem.of(scenario), plan.segments))


_OTHER_LEARNER = ("No accuracy is forecast: the built-in forecast was fitted to the learner of the mode practical. "
                  "Choose that mode, or fit a forecast to this learner with `fedgap calibrate`.")


def applicable_forecast(plan: Plan, problem: Problem) -> tuple[PlanForecast | None, str]:
    """Return the plan's forecast and "", or None and one line that says why there is none and what to do.

    The built-in forecasts hold only for the learner of the mode ``practical``. A plan that was made by such a forecast
    shows it nevertheless.
    """
    if not plan.feasible or plan.forecast is not None:
        return plan.forecast, ""
    forecast = forecast_of(problem, plan.segments)
    return (None, _OTHER_LEARNER) if "learner" in forecast.outside else (forecast, "")


def accuracy_text(plan: Plan | None) -> str:
    """Return the forecast accuracy of a plan in per cent, or – if there is none."""
    return "–" if plan is None or plan.forecast is None else f"{100.0 * plan.forecast.accuracy:.2f} %"
