"""What other budgets would achieve: θ and the forecast accuracy over a grid of energy and delay budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.analysis.plan_accuracy import accuracy_text, with_forecast
from fedgap.analysis.scheme_comparison import until_interrupted
from fedgap.config import Budget, Scenario
from fedgap.planning import Plan, Scheme, plan
from fedgap.planning.budget_search import interesting_multiples
from fedgap.report.number_format import number
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LEAST, MOST = 0.6, 2.0
"""Default range of the grid, as multiples of the scenario's budgets."""
WIDEST = 9
"""Largest number of delay budgets that a table shows side by side; they fit into a hundred characters."""
SAME = 1e-9
"""Two θ with a smaller relative difference count as equal, because of rounding."""


def budget_factors(points: int = 6, least: float = LEAST, most: float = MOST) -> list[float]:
    """Return this many multiples from ``least`` to ``most``, evenly spaced in their logarithm and including 1."""
    factors = np.geomspace(least, most, points)
    factors[np.abs(np.log(factors)).argmin()] = 1.0
    return [round(float(factor), 4) for factor in factors]


@dataclass(frozen=True)
class BudgetGrid:
    """All pairs of an energy budget in ``energy_j`` and a delay budget in ``delay_s``."""

    centre: Budget
    """The scenario's budgets."""
    energy_j: tuple[float, ...]
    delay_s: tuple[float, ...]

    @classmethod
    def around(cls, centre: Budget, factors: Sequence[float]) -> BudgetGrid:
        """Return the grid with these multiples of both budgets of ``centre``."""
        return cls(centre, tuple(centre.energy_j * f for f in factors), tuple(centre.delay_s * f for f in factors))

    def outwards(self) -> list[tuple[float, float]]:
        """Return all pairs, sorted by their distance from the centre."""

        def distance(pair: tuple[float, float]) -> float:
            return abs(pair[0] / self.centre.energy_j - 1.0) + abs(pair[1] / self.centre.delay_s - 1.0)

        return sorted(((energy, delay) for energy in self.energy_j for delay in self.delay_s), key=distance)


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """One pair of budgets and the best plan for it."""

    budget_energy_j: float
    budget_delay_s: float
    plan: Plan | None
    """None if larger budgets already allowed no plan, so that none was searched."""
    efficient: bool = False
    """Whether the pair is on the Pareto front: no smaller pair of budgets is as good."""

    @property
    def theta(self) -> float:
        """θ of the plan; infinite if the budgets allow none."""
        return np.inf if self.plan is None else self.plan.theta

    @property
    def accuracy(self) -> float | None:
        """The plan's forecast accuracy; None without a plan or a forecast."""
        return None if self.plan is None or self.plan.forecast is None else self.plan.forecast.accuracy

    @property
    def status(self) -> str:
        """The plan's status; ``infeasible`` without a plan."""
        return "infeasible" if self.plan is None else self.plan.status

    @property
    def used(self) -> tuple[float, float] | None:
        """Joules and seconds that the plan uses, if there is a plan."""
        return (self.plan.energy_j, self.plan.delay_s) if self.plan is not None and self.plan.feasible else None

    def to_dict(self) -> dict[str, Any]:
        """Return the values of a row in the JSON or CSV output."""
        energy, delay = self.used or (None, None)
        return {
            "budget_energy_j": self.budget_energy_j,
            "budget_delay_s": self.budget_delay_s,
            "status": self.status,
            "theta": self.theta if np.isfinite(self.theta) else None,
            "gap": None if self.plan is None else self.plan.gap,
            "forecast_accuracy": self.accuracy,
            "energy_j": energy,
            "delay_s": delay,
            "on_front": self.efficient,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Frontier(Printable):
    """Plans over a grid of budgets, by energy budget and then by delay budget."""

    budget: Budget
    """The scenario's budgets."""
    points: tuple[FrontierPoint, ...]
    interrupted: bool = False
    """Whether some budgets are missing because of Ctrl-C."""

    def __iter__(self) -> Iterator[FrontierPoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def feasible(self) -> bool:
        """Whether any of the budgets allows a plan."""
        return any(point.status != "infeasible" for point in self.points)

    @property
    def reason(self) -> str:
        """Why the largest budgets allow no plan; empty if they do."""
        return next((point.plan.reason for point in reversed(self.points) if point.plan is not None), "")

    def parts(self) -> list[Sheet]:
        """Return tables of θ and of the forecast accuracy by both budgets, or one list if the grid is too wide."""
        delays, energies = self._axes()
        caption = "[θ] the scenario's budgets; * not on the Pareto front: smaller budgets are as good; ∞ no plan fits"
        if len(delays) > WIDEST:
            table = Sheet("What other budgets achieve", "energy budget", "delay budget", "θ", "forecast",
                          "energy used", "delay used",
                          caption=caption)
            for point in self.points:
                used = [f"{point.used[0]:.4g} J", f"{point.used[1]:.4g} s"] if point.used else ["–", "–"]
                table.add_row(f"{point.budget_energy_j:.4g} J", f"{point.budget_delay_s:.4g} s", self._cell(point),
                              accuracy_text(point.plan), *used)
            return [table]
        table = Sheet("θ by energy budget (down) and delay budget (across)", "", *(f"{d:.4g} s" for d in delays),
                      caption=caption)
        cells = {(point.budget_energy_j, point.budget_delay_s): self._cell(point) for point in self.points}
        forecast = Sheet("Forecast accuracy", "", *(f"{d:.4g} s" for d in delays))
        accuracies = {(point.budget_energy_j, point.budget_delay_s): accuracy_text(point.plan) for point in self.points}
        for energy in energies:
            table.add_row(f"{energy:.4g} J", *(cells.get((energy, delay), "") for delay in delays))
            forecast.add_row(f"{energy:.4g} J", *(accuracies.get((energy, delay), "") for delay in delays))
        return [table, forecast]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw θ and the forecast accuracy over both budgets; given a path, save the picture.

        Nothing is drawn for budgets that allow no plan.
        """
        from fedgap.analysis.pictures import draw_frontier
        from fedgap.report.figures import save_figure

        delays, energies = self._axes()
        theta, accuracy = np.full((2, len(energies), len(delays)), np.nan)
        for point in self.points:
            if np.isfinite(point.theta):
                place = energies.index(point.budget_energy_j), delays.index(point.budget_delay_s)
                theta[place] = point.theta
                accuracy[place] = np.nan if point.accuracy is None else 100.0 * point.accuracy
        budget = self.budget
        return save_figure(draw_frontier(energies, delays, theta, budget.energy_j, budget.delay_s, accuracy), path)

    def to_dict(self) -> dict[str, Any]:
        """Return all points as plain values."""
        return {"points": [point.to_dict() for point in self.points]}

    def _axes(self) -> tuple[list[float], list[float]]:
        """Return the delay budgets and the energy budgets, in ascending order."""
        return (sorted({point.budget_delay_s for point in self.points}),
                sorted({point.budget_energy_j for point in self.points}))

    def _cell(self, point: FrontierPoint) -> str:
        text = number(point.theta, 5) + ("*" if np.isfinite(point.theta) and not point.efficient else "")
        is_scenario = (point.budget_energy_j, point.budget_delay_s) == (self.budget.energy_j, self.budget.delay_s)
        return f"[{text}]" if is_scenario else text


def frontier(
    scenario: Scenario,
    *,
    points: int = 6,
    factors: Sequence[float] | None = None,
    scheme: str | Scheme = "proposed",
    on_point: Callable[[FrontierPoint], None] | None = None,
) -> Frontier:
    """Plan over a grid of both budgets, and mark the pairs on the Pareto front.

    >>> found = fedgap.frontier(fedgap.Scenario.load("paper-mnist"), factors=[1.0, 1.5])
    >>> len(found.points)
    4
    >>> picture = found.plot("frontier.png")

    The picture shows θ over both budgets. Ctrl-C ends the search with the budgets that were planned so far.

    :param points: number of values of each budget. They range from the least that allows a plan to where more hardly
        raises the forecast accuracy.
    :param factors: the multiples of the scenario's budgets, in place of ``points``.
    :param on_point: called with each point as soon as it is planned, the scenario's budgets first.
    """
    if factors is None:
        factors = budget_factors(points, *interesting_multiples(scenario, scheme))
    grid = BudgetGrid.around(scenario.budget, factors)
    solved, interrupted = until_interrupted(
        frontier_points(scenario, grid, lambda changed: plan(changed, scheme=scheme)), lambda point: point.plan,
        on_point)
    return Frontier(scenario.budget, _marked(solved), interrupted)


def frontier_points(
    scenario: Scenario, grid: BudgetGrid, solve: Callable[[Scenario], Plan]
) -> Iterator[FrontierPoint]:
    """Yield the plan for each pair of budgets as soon as it is solved, from the grid's centre outwards.

    Pairs that are smaller than a pair without a plan are skipped, because they have no plan either.
    """
    too_small: list[tuple[float, float]] = []
    for energy, delay in grid.outwards():
        answer = None
        if not any(energy <= e and delay <= d for e, d in too_small):
            answer = solve(scenario.with_overrides([f"budget.energy_j={energy!r}", f"budget.delay_s={delay!r}"]))
        if answer is None or not np.isfinite(answer.theta):
            too_small.append((energy, delay))
        answer = None if answer is None else with_forecast(answer, scenario)
        yield FrontierPoint(energy, delay, answer)


def _marked(points: list[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Sort the points by energy and delay, and mark those on the Pareto front."""
    points = sorted(points, key=lambda point: (point.budget_energy_j, point.budget_delay_s))
    budgets = np.array([(point.budget_energy_j, point.budget_delay_s) for point in points]).reshape(-1, 2)
    theta = np.array([point.theta for point in points])
    marked = []
    for point, pair in zip(points, budgets, strict=True):
        smaller = np.all(budgets <= pair, axis=-1) & np.any(budgets < pair, axis=-1)
        dominated = np.any(smaller & (theta <= point.theta * (1.0 + SAME)))
        marked.append(replace(point, efficient=bool(np.isfinite(point.theta) and not dominated)))
    return tuple(marked)
