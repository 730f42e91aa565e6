"""Compare schemes: plans of the same scenario with different restrictions, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedgap.analysis.plan_accuracy import accuracy_text, with_forecast
from fedgap.config import Scenario
from fedgap.planning import PAPER_SCHEMES, Plan, Scheme, plan
from fedgap.planning.rule_plan import plan_by_rule
from fedgap.planning.settings import Progress
from fedgap.registry import RULES
from fedgap.report.bound_terms import TERMS
from fedgap.report.number_format import alike, share
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


T = TypeVar("T")

PROVEN = 1e-6
"""A smaller gap is a rounding error and is shown as zero."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Printable):
    """One plan for each scheme, in the given order."""

    rounds: int
    """R, the scenario's number of rounds."""
    energy_budget_j: float
    delay_budget_s: float
    plans: tuple[Plan, ...]
    interrupted: bool = False
    """Whether some schemes are missing because of Ctrl-C."""

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, scheme: str) -> Plan:
        return {answer.scheme: answer for answer in self.plans}[scheme]

    @property
    def origin(self) -> str:
        """Where the weights of the forecast come from."""
        return next((answer.forecast.origin for answer in self.plans if answer.forecast is not None), "none")

    def parts(self) -> list[RenderableType]:
        """Return the table, and a sentence for each scheme that cannot finish all rounds within the budgets."""
        reasons = [f"{answer.scheme}: {answer.reason}" for answer in self.plans if answer.reason]
        return [self._table(), *reasons]

    def _table(self) -> Sheet:
        table = Sheet(
            f"Schemes side by side: {self.rounds:,} rounds, {self.energy_budget_j:g} J, {self.delay_budget_s:g} s",
            "scheme", "rounds", *(name for name, _ in TERMS.values()), "θ", "gap", "forecast", "energy", "delay",
            caption="θ = ∞ if the budgets do not allow all rounds. gap: to the certified bound, as a share of θ − α."
                    f" forecast: accuracy on the test set ({self.origin})",
        )
        for answer in self.plans:
            if not answer.feasible:
                table.add_row(answer.scheme, "0", *["–"] * 4, "∞", *["–"] * 4, style="dim")
                continue
            table.add_row(
                answer.scheme, f"{answer.rounds:,}", *alike([*(answer.terms[key] for key in TERMS), answer.theta]),
                "–" if answer.gap is None else "0" if answer.gap < PROVEN else f"{answer.gap:.1e}",
                accuracy_text(answer),
                share(answer.energy_j, self.energy_budget_j), share(answer.delay_s, self.delay_budget_s),
                style="bold" if answer.scheme == "proposed" else None,
            )
        return table

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw θ and its terms by scheme, on a logarithmic scale; given a path, save the picture.

        If a published rule is among them, which has no θ, the forecast accuracies are drawn instead.
        """
        from fedgap.analysis.pictures import draw_accuracies, draw_comparison
        from fedgap.report.figures import save_figure

        title = f"{self.rounds} rounds within {self.energy_budget_j:g} J and {self.delay_budget_s:g} s"
        if any(answer.scheme in RULES for answer in self.plans):
            return save_figure(draw_accuracies(self.plans, title), path)
        return save_figure(draw_comparison(self.plans, self.rounds, title), path)

    def to_dict(self) -> dict[str, Any]:
        """Return all plans as plain values."""
        return {"rounds": self.rounds, "plans": [answer.to_dict() for answer in self.plans]}


def compare(
    scenario: Scenario,
    schemes: Iterable[str | Scheme] | None = None,
    *,
    solver: str = "exact",
    progress: Progress | None = None,
    on_plan: Callable[[Plan], None] | None = None,
) -> Comparison:
    """Plan with several schemes. A scheme whose rounds do not all fit the budgets is planned with fewer rounds.

    >>> comparison = fedgap.compare(fedgap.Scenario.load("paper-mnist"), ["proposed", "no_pruning"])
    >>> [plan.scheme for plan in comparison]
    ['proposed', 'no_pruning']
    >>> picture = comparison.plot("schemes.png")

    The picture shows θ and its terms by scheme. Ctrl-C ends the comparison with the schemes that were planned so far.

    :param schemes: names of schemes and of published rules, or :class:`Scheme` objects; by default the paper's six, in
        its order.
    :param solver: ``exact`` (certified) or ``alternating`` (the paper's Algorithm 1).
    :param progress: as for ``plan``. :param on_plan: called with each plan as soon as it is solved.
    """
    wanted = list(PAPER_SCHEMES if schemes is None else schemes)

    def planned(scheme: str | Scheme) -> Plan:
        if isinstance(scheme, str) and scheme in RULES:
            return plan_by_rule(scenario, scheme)
        return plan(scenario, scheme=scheme, solver=solver, shorten=True, progress=progress)

    plans, interrupted = until_interrupted((with_forecast(planned(scheme), scenario) for scheme in wanted),
                                           lambda answer: answer, on_plan)
    budget = scenario.budget
    return Comparison(scenario.rounds, budget.energy_j, budget.delay_s, tuple(plans), interrupted)


def until_interrupted(
    answers: Iterable[T], plan_of: Callable[[T], Plan | None], report: Callable[[T], None] | None = None
) -> tuple[list[T], bool]:
    """Return all answers, or those before Ctrl-C, and whether it was pressed. An unfinished plan is left out.

    :param plan_of: returns the plan of an answer; :param report: called with each answer as soon as it is there.
    """
    kept: list[T] = []
    try:
        for answer in answers:
            solved = plan_of(answer)
            if solved is not None and solved.reason.startswith("interrupted"):
                return kept, True
            kept.append(answer)
            if report is not None:
                report(answer)
    except KeyboardInterrupt:
        return kept, True
    return kept, False


def mean_pruning_ratio(answer: Plan) -> float | None:
    """Return λ averaged over the selected clients of a round and then over rounds; None for a plan without rounds."""
    if not answer.rounds:
        return None
    ratios = [float(np.mean(s.pruning_ratio[s.selected])) * s.rounds for s in answer.segments]
    return sum(ratios) / answer.rounds
