"""The report of ``fedgap plan``: what each client does in which rounds, the costs, the limits, and the certificate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgap.analysis.binding import Binding
from fedgap.analysis.cost_report import MOST_CLIENTS, MOST_SEGMENTS, CostReport
from fedgap.analysis.plan_check import check_plan
from fedgap.config import Scenario
from fedgap.planning import Plan
from fedgap.planning.problem import Problem
from fedgap.report.bound_terms import theta_parts
from fedgap.report.number_format import rounds, share, si, split
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


FEW_CLIENTS = 12
"""For at most this many clients the table also lists those that are not selected."""


@dataclass(frozen=True, eq=False, repr=False)
class PlanReport(Printable):
    """A plan with its costs and the limits that it reaches. ``print`` shows the same as ``fedgap plan``."""

    plan: Plan
    cost: CostReport
    binding: Binding
    advice: str = ""
    """A sentence that says what else could be tried in this scenario; may be empty."""

    def parts(self) -> list[RenderableType]:
        """Return the forecast, one table per segment, θ by terms, the budgets and the certificate."""
        from rich.text import Text

        shown: list[RenderableType] = [*self.plan.forecast_lines, Text(self.plan.headline, style="bold")]
        shown += [self._segment_table(position) for position in range(len(self.plan.segments))[:MOST_SEGMENTS]]
        hidden = len(self.plan.segments) - MOST_SEGMENTS
        if hidden > 0:
            shown.append(f"... and {hidden} more segments; --json has all.")
        shown += theta_parts(self.plan.terms, self.plan.theta, self.plan.local_steps)
        shown += [self._budget_table(), self.plan.certificate]
        return [*shown, self.advice] if self.advice else shown

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw how often each client takes part, what it does and what that costs; given a path, save the picture."""
        from fedgap.analysis.plan_picture import draw_plan
        from fedgap.report.figures import save_figure

        return save_figure(draw_plan(self.plan, self.cost), path)

    def _segment_table(self, position: int) -> Sheet:
        """Return the table of one segment: what each client does in a round, what that costs, and its limits."""
        segment, cost = self.plan.segments[position], self.cost.segments[position]
        unpruned = ", unpruned" if not segment.pruning_ratio[segment.selected].any() else ""
        steps = f", {segment.local_steps} local steps" if segment.local_steps > 1 else ""
        steps += f", {segment.upload_bits}-bit uploads" if segment.upload_bits in (8, 4) else ""
        title = (
            f"{segment.rounds:,} of {rounds(self.plan.rounds)}{steps}{unpruned}: {int(segment.selected.sum())} of "
            f"{segment.selected.size} clients, {si(cost.delay_s, 's')} and {si(cost.energy_j, 'J')} per round"
        )
        shown, hidden = _listed(segment.selected, cost.by_client.client_j)
        table = Sheet(
            title, "client", "rounds", "pruned", "power", "clock", "download+\ncompute+upload", "energy", "what binds",
            left=("what binds",), caption=hidden,
        )
        for n in shown:
            name, part = self.cost.names[n], share(float(self.cost.rounds[n]), self.plan.rounds)
            if not segment.selected[n]:
                table.add_row(name, part, *["–"] * 5, "not selected", style="dim")
                continue
            times = (cost.by_client.download_s[n], cost.by_client.compute_s[n], cost.by_client.upload_s[n])
            table.add_row(
                name, part, f"{100.0 * segment.pruning_ratio[n]:.1f} %", si(segment.power_w[n], "W"),
                si(segment.frequency_hz[n], "Hz"), split(*times), si(cost.by_client.client_j[n], "J"),
                self.binding.clients[position][n],
            )
        return table

    def _budget_table(self) -> Sheet:
        """Return the table of both budgets: how much is used, and what more of it would gain."""
        table = Sheet("Budgets", "budget", "used", "of", "share", "more of it", left=("more of it",))
        for name, used, most, unit, word in (
            ("energy", self.plan.energy_j, self.cost.energy_budget_j, "J", "a joule"),
            ("delay", self.plan.delay_s, self.cost.delay_budget_s, "s", "a second"),
        ):
            table.add_row(name, f"{used:.6g} {unit}", f"{most:.6g} {unit}", share(used, most), self._price(name, word))
        return table

    def _price(self, budget: str, unit: str) -> str:
        """Return what one more unit of a budget would gain, in words.

        :param budget: ``energy`` or ``delay``; :param unit: one unit of it in words.
        """
        value = None if self.plan.prices is None else self.plan.prices[budget]
        if value is None:
            return "price unknown"
        goal = self.plan.minimised
        if goal == "forecast":  # the objective is the error
            return (f"{unit} more raises the forecast accuracy by {-100.0 * value:.2g} points" if value < 0.0 else
                    f"{unit} more would not raise the forecast accuracy")
        return f"{unit} more lowers {goal} by {-value:.3g}" if value < 0.0 else f"{unit} more would not lower {goal}"


def _listed(selected: np.ndarray, spent: np.ndarray) -> tuple[list[int], str | None]:
    """Return the clients that a table lists, and a sentence about the others; None if all are listed.

    :param selected: the selected clients, (N,); :param spent: joules of each client, (N,).
    """
    if selected.size <= FEW_CLIENTS:
        return list(range(selected.size)), None
    chosen = np.flatnonzero(selected)
    shown = np.sort(chosen[np.argsort(-spent[chosen], kind="stable")[:MOST_CLIENTS]])
    more = f"{chosen.size - shown.size} more take part, each spending less; " if chosen.size > shown.size else ""
    return shown.tolist(), f"{more}{selected.size - chosen.size} clients are not selected; --json lists all"


def plan_report(scenario: Scenario, plan: Plan) -> PlanReport:
    """Return the report that ``fedgap plan`` prints: a plan with its costs and the limits that it reaches."""
    check_plan(scenario, plan, other_scenario=True)
    problem = Problem.of(scenario)
    return PlanReport(plan, CostReport.from_problem(problem, plan), Binding.from_problem(problem, plan),
                      _pooling_advice(scenario, plan.objective))


def _pooling_advice(scenario: Scenario, objective: str) -> str:
    """Return the advice to use the aggregation ``mixture``, if labels are known and it is ``mean``; otherwise ""."""
    labels = scenario.label_counts() is not None and scenario.target_counts is not None
    if scenario.bound.aggregation != "mean" or not labels or objective != "theta":
        return ""
    return ("Each client's labels are judged separately (bound.aggregation: mean). With bound.aggregation=mixture the "
            "labels of all selected clients are judged together, which trained better models where labels differ. "
            "Above 12 clients such plans have no certificate.")
