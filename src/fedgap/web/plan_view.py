"""Plans in the form that the page needs: JSON objects with the costs of each client's rounds."""

from __future__ import annotations

from typing import Any

from fedgap.analysis import AccuracyBudget, CostReport, SegmentCost, mean_pruning_ratio
from fedgap.analysis.plan_accuracy import applicable_forecast
from fedgap.planning import Plan
from fedgap.planning.budget_search import TargetPlan
from fedgap.planning.problem import Problem

_BY_CLIENT = ("compute_s", "upload_s", "download_s", "compute_j", "upload_j")


def drawn(plan: Plan, problem: Problem) -> dict[str, Any]:
    """The plan's JSON object with its forecast; each segment also has its costs by client and cause, and its
    stragglers."""
    forecast, reason = applicable_forecast(plan, problem)
    answer, report = plan.to_dict(), CostReport.from_problem(problem, plan)
    answer["forecast"] = None if forecast is None else forecast.to_dict() | {
        "remark": forecast.warning if forecast.outside else ""}
    answer["no_forecast"] = reason
    for written, cost in zip(answer["segments"], report.segments, strict=True):
        written["cost"] = _cost(cost)
    answer["budget"] = {"energy_j": problem.energy_j, "delay_s": problem.delay_s, "rounds": problem.rounds}
    answer["clients"] = {key: getattr(report, key).tolist() for key in ("compute_j", "upload_j", "rounds")}
    answer["clients"]["broadcast_j"] = report.broadcast_j
    return answer


def brief(plan: Plan) -> dict[str, Any]:
    """The plan's JSON object without its segments, for a row of the comparison."""
    answer = plan.to_dict()
    answer["selected"] = [int(segment.selected.sum()) for segment in plan.segments]
    answer["mean_pruning_ratio"] = mean_pruning_ratio(plan)
    del answer["segments"], answer["trace"]
    return answer


def scheme_view(plan: Plan, problem: Problem) -> dict[str, Any]:
    """A row of the comparison of schemes, with the forecast accuracy where the forecast applies."""
    forecast, _ = applicable_forecast(plan, problem)
    return brief(plan) | {"accuracy": None if forecast is None else forecast.accuracy}


def target_view(answer: AccuracyBudget) -> dict[str, Any]:
    """The budgets for a target accuracy, with the values of their plans that the page shows."""
    return {
        "accuracy": answer.accuracy, "confidence": answer.confidence, "sentence": answer.sentence,
        "warnings": answer.warnings, "origin": answer.origin,
        "budget": {"energy_j": answer.budget.energy_j, "delay_s": answer.budget.delay_s},
        "answers": {key: None if one is None else point_view(one.point) | {"interval": one.interval}
                    for key, one in answer.answers.items()},
    }


def point_view(one: TargetPlan) -> dict[str, Any]:
    """A pair of budgets with which the target is reached, and its plan."""
    return {"energy_j": one.energy_j, "delay_s": one.delay_s, "surely": one.surely, "plan": brief(one.plan)}


def _cost(cost: SegmentCost) -> dict[str, Any]:
    return {key: getattr(cost.by_client, key).tolist() for key in _BY_CLIENT} | {
        "broadcast_j": float(cost.by_client.broadcast_j),
        "delay_s": cost.delay_s,
        "stragglers": cost.real_stragglers.nonzero()[0].tolist(),
    }
