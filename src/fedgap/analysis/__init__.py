"""The analysis of plans: costs by client and cause, terms of the bound, binding limits, schemes and budgets.

Every result prints as tables in a terminal and in a notebook, and ``to_dict`` returns its plain values.
"""

from fedgap.analysis.accuracy_budget import AccuracyBudget, BudgetAnswer, budget, budget_steps
from fedgap.analysis.binding import Binding, what_binds
from fedgap.analysis.bound_report import BoundReading, BoundReport, ClientStatement, bound
from fedgap.analysis.budget_frontier import (
    BudgetGrid,
    Frontier,
    FrontierPoint,
    budget_factors,
    frontier,
    frontier_points,
)
from fedgap.analysis.cost_report import CostReport, SegmentCost, cost
from fedgap.analysis.plan_check import check_plan
from fedgap.analysis.plan_report import PlanReport, plan_report
from fedgap.analysis.policy_regret import PolicyRegret, regret
from fedgap.analysis.progress import describe_progress
from fedgap.analysis.scheme_comparison import Comparison, compare, mean_pruning_ratio

__all__ = [
    "AccuracyBudget", "Binding", "BoundReading", "BoundReport", "BudgetAnswer", "BudgetGrid", "ClientStatement",
    "Comparison", "CostReport", "Frontier", "FrontierPoint", "PlanReport", "PolicyRegret", "SegmentCost", "bound",
    "budget", "budget_factors", "budget_steps", "check_plan", "compare", "cost", "describe_progress", "frontier",
    "frontier_points", "mean_pruning_ratio", "plan_report", "regret", "what_binds",
]
