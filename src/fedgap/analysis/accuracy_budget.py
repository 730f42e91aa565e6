"""The least budgets for a target accuracy, pairs of budgets that just suffice, and plans that reach the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.config import Budget, Scenario
from fedgap.errors import InfeasibleError, InputError
from fedgap.planning.budget_search import AMPLE, Budgets, BudgetSearch, TargetPlan, rounded_up
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

POINTS = 5
"""Number of points of the frontier."""
ENDS = 1.05
"""At each end of the frontier, one budget is this multiple of the least that suffices if the other is unlimited."""
ANSWERS = {"both": "both in proportion", "least_energy": "least joules", "least_delay": "least seconds"}
"""Keys of the three answers, and their names: both budgets in the scenario's proportion, or one budget while the other
is the scenario's."""


@dataclass(frozen=True, eq=False)
class BudgetAnswer:
    """One of the three answers: the least budgets, and their uncertainty."""

    point: TargetPlan
    interval: tuple[float, float]
    """Multiples of these budgets that suffice with the confidences 1 − c and c, in rising order. A lucky run needs
    less, an unlucky one more."""


@dataclass(frozen=True, eq=False, repr=False)
class AccuracyBudget(Printable):
    """The budgets that a target accuracy needs. ``print`` shows the same as ``fedgap budget``."""

    accuracy: float
    confidence: float
    budget: Budget
    """The scenario's budgets."""
    origin: str
    """Where the forecast's weights come from."""
    answers: dict[str, BudgetAnswer | None]
    """The answers by the keys of :data:`ANSWERS`; None if no amount of a budget suffices with the scenario's other
    one."""
    frontier: tuple[TargetPlan, ...]
    """Pairs of budgets that just suffice, by rising seconds."""

    @property
    def sentence(self) -> str:
        """The three answers in a sentence."""
        both, joules, seconds = (self.answers[key] for key in ANSWERS)
        target = f"{100.0 * self.accuracy:g} % with {100.0 * self.confidence:g} % confidence takes"
        assert both is not None
        parts = [
            f"no amount of joules within {self.budget.delay_s:.4g} s" if joules is None else
            f"{joules.point.energy_j:.4g} J within {self.budget.delay_s:.4g} s",
            f"no number of seconds within {self.budget.energy_j:.4g} J" if seconds is None else
            f"{seconds.point.delay_s:.4g} s within {self.budget.energy_j:.4g} J",
            f"{both.point.energy_j:.4g} J and {both.point.delay_s:.4g} s in the scenario's proportion",
        ]
        return f"{target} {', or '.join(parts)}."

    @property
    def warnings(self) -> list[str]:
        """Warnings about plans outside the range that the forecast was fitted to."""
        points = [answer.point for answer in self.answers.values() if answer is not None]
        warned = [point.plan.forecast for point in points if point.plan.forecast and point.plan.forecast.outside]
        return list(dict.fromkeys(forecast.warning for forecast in warned))

    def parts(self) -> list[RenderableType]:
        """Return the sentence, the tables of the three answers and of the frontier, and warnings."""
        names = [f"{100.0 * share:.0f} %" for share in sorted((1.0 - self.confidence, self.confidence))]
        answers = Sheet("The least budgets", "answer", "energy budget", "delay budget", "forecast",
                        f"reached with {100.0 * self.confidence:g} %", "rounds", "local steps", "clients",
                        f"suffices with {names[0]} to {names[1]}",
                        caption=f"Forecast: {self.origin}")
        for key, name in ANSWERS.items():
            answer = self.answers[key]
            if answer is None:
                answers.add_row(name, *["–"] * 7, "no amount suffices", style="dim")
                continue
            low, high = answer.interval
            joules, seconds = answer.point.energy_j, answer.point.delay_s
            spans = {"J": joules, "s": seconds} if key == "both" else {"s": seconds} if key == "least_delay" else {
                "J": joules}
            answers.add_row(name, *_cells(answer.point), ", ".join(
                f"{low * value:.3g} to {high * value:.3g} {unit}" for unit, value in spans.items()))
        frontier = Sheet("The frontier: pairs of budgets that just suffice", "", "energy budget", "delay budget",
                         "forecast", f"reached with {100.0 * self.confidence:g} %", "rounds", "local steps", "clients")
        for number, point in enumerate(self.frontier, 1):
            frontier.add_row(str(number), *_cells(point))
        return [self.sentence, answers, *([frontier] if self.frontier else []), *self.warnings]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the frontier of joules and seconds, with the scenario's budgets; given a path, save it."""
        from fedgap.analysis.pictures import draw_target_frontier
        from fedgap.report.figures import save_figure

        answers = {ANSWERS[key]: (answer.point.energy_j, answer.point.delay_s)
                   for key, answer in self.answers.items() if answer is not None}
        title = f"Budgets for {100.0 * self.accuracy:g} % with {100.0 * self.confidence:g} % confidence"
        pairs = [(point.energy_j, point.delay_s) for point in self.frontier]
        return save_figure(
            draw_target_frontier(pairs, answers, (self.budget.energy_j, self.budget.delay_s), title), path)

    def to_dict(self) -> dict[str, Any]:
        """Return the answers, the frontier and all plans as plain values."""
        points = {key: None if answer is None else answer.point for key, answer in self.answers.items()}
        both, joules, seconds = (points[key] for key in ANSWERS)
        assert both is not None
        return {
            "accuracy": self.accuracy, "confidence": self.confidence,
            "energy_j": both.energy_j, "delay_s": both.delay_s,
            "least_energy_j": None if joules is None else joules.energy_j,
            "least_delay_s": None if seconds is None else seconds.delay_s,
            "intervals": {key: None if answer is None else list(answer.interval)
                          for key, answer in self.answers.items()},
            "frontier": [[point.energy_j, point.delay_s] for point in self.frontier],
            "origin": self.origin, "warnings": self.warnings,
            "plans": {key: None if point is None else point.plan.to_dict() for key, point in points.items()},
            "frontier_plans": [point.plan.to_dict() for point in self.frontier],
        }

    def save(self, folder: str | Path) -> list[str]:
        """Write each plan as ``NAME.json`` with its scenario as ``NAME.yaml``; return the names."""
        folder = Path(folder)
        named = {key: answer.point for key, answer in self.answers.items() if answer is not None}
        named |= {f"frontier-{number}": point for number, point in enumerate(self.frontier, 1)}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, point in named.items():
                point.plan.save(folder / f"{name}.json")
                point.scenario.save(folder / f"{name}.yaml")
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
        return list(named)


def _cells(point: TargetPlan) -> list[str]:
    """Return the cells of a row: both budgets, the accuracies, rounds, local steps and clients."""
    sizes = sorted({int(segment.selected.sum()) for segment in point.plan.segments})
    assert point.plan.forecast is not None
    return [f"{point.energy_j:.4g} J", f"{point.delay_s:.4g} s", f"{100.0 * point.plan.forecast.accuracy:.2f} %",
            f"{100.0 * point.surely:.2f} %", f"{point.plan.rounds:,}", str(point.plan.local_steps),
            f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"]


def budget(
    scenario: Scenario, accuracy: float, *, confidence: float = 0.9, points: int = POINTS,
    done: Callable[[], None] | None = None,
) -> AccuracyBudget:
    """Find the least joules and seconds with which a run reaches an accuracy, according to the scenario's forecast.

    >>> answer = fedgap.budget(fedgap.Scenario.load("city", ["fleet.count=6", "learning.local_steps=8"]), 0.4, points=0)
    >>> print(answer.sentence)
    40 % with 90 % confidence takes ... J and ... s in the scenario's proportion.

    With ``points``, ``answer.plot("frontier.png")`` draws the pairs of budgets that just suffice.

    :param accuracy: the target on the test set, as a fraction;
    :param confidence: the probability with which a run must reach it;
    :param points: the number of pairs of budgets on the frontier; 0 for no frontier;
    :param done: called after each of :func:`budget_steps` steps.
    :raises InfeasibleError: if no budgets suffice.
    """
    check_target(accuracy, confidence)
    report = done or (lambda: None)
    search = BudgetSearch(scenario, accuracy, confidence)
    return replace(least_budgets(search, report), frontier=tuple(target_frontier(search, points, report)))


def least_budgets(search: BudgetSearch, done: Callable[[], None] = lambda: None) -> AccuracyBudget:
    """Return the three answers without a frontier; see :func:`budget`."""
    _check_reachable(search)
    own = search.scenario.budget
    answers = {key: _answer(search, *varied_budgets(own)[key], done) for key in ANSWERS}
    if answers["both"] is None:
        raise InfeasibleError(f"accuracy: no plan was found that reaches {search.accuracy:g} with "
                              f"{search.confidence:g} confidence, although an estimate says that one exists; lower "
                              "accuracy or confidence a little")
    return AccuracyBudget(search.accuracy, search.confidence, own, search.fitted.origin, answers, ())


def check_target(accuracy: float, confidence: float, prefix: str = "") -> None:
    """Raise an error if accuracy or confidence is not between 0 and 1.

    :param prefix: put before the name in the message, such as ``--``.
    """
    for name, value in (("accuracy", accuracy), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise InputError(f"{prefix}{name}: must be above 0 and below 1, such as 0.95 for 95 %; got {value:g}")


def budget_steps(points: int = POINTS) -> int:
    """Return how many steps of progress :func:`budget` reports."""
    return 2 * len(ANSWERS) + (1 + points if points else 0)


def varied_budgets(budget: Budget) -> dict[str, tuple[Budgets, float]]:
    """Return for each answer the function from x to the budgets that are varied, and the first x of the search."""
    joules, seconds = budget.energy_j, budget.delay_s
    return {
        "both": (lambda x: (rounded_up(x * joules), rounded_up(x * seconds)), 1.0),
        "least_energy": (lambda x: (rounded_up(x), seconds), joules),
        "least_delay": (lambda x: (joules, rounded_up(x)), seconds),
    }


def _check_reachable(search: BudgetSearch) -> None:
    """Raise an error if no budgets suffice for the target. It says why, and what to change."""
    features, wanted = search.ample, f"accuracy: {search.accuracy:g} with {search.confidence:g} confidence"
    if features is None:
        raise InfeasibleError(f"{wanted} cannot be reached: not even one round fits {AMPLE:,.0f} times the scenario's "
                              "budgets; raise budget.energy_j and budget.delay_s, or check the clients")
    reached = search.fitted.surely(features, search.confidence)
    if reached >= search.accuracy:
        return
    at_best = (f"with unlimited budgets the forecast is {reached:.4f} after the scenario's {features.rounds:,.0f} "
               "rounds")
    for_ever = search.for_ever(features)
    if for_ever >= search.accuracy:
        raise InfeasibleError(f"{wanted} cannot be reached: {at_best}; raise rounds")
    raise InfeasibleError(f"{wanted} cannot be reached: {at_best}, and at most {for_ever:.4f} with more rounds; ask "
                          "for a lower accuracy or confidence")


def _answer(search: BudgetSearch, budgets: Budgets, first: float, done: Callable[[], None]) -> BudgetAnswer | None:
    point = search.answer(budgets, first)
    done()
    # The budgets come from a plan. The multiples for lucky and unlucky runs come from drafts, which are quicker.
    least = search.least(budgets, first)
    lucky = None if least is None else search.least(budgets, least, confidence=1.0 - search.confidence)
    done()
    if point is None or least is None or lucky is None:
        return None
    ends = sorted((lucky / least, 1.0))
    return BudgetAnswer(point, (ends[0], ends[1]))


def target_frontier(search: BudgetSearch, points: int = POINTS,
                    done: Callable[[], None] = lambda: None) -> Iterator[TargetPlan]:
    """Yield pairs of budgets that just suffice, by rising seconds.

    They lie between the ends where more of one budget hardly saves any of the other.
    """
    if not points:
        return
    budget = search.scenario.budget
    fastest = search.least(lambda x: (AMPLE * budget.energy_j, x), budget.delay_s)
    thriftiest = search.least(lambda x: (x, AMPLE * budget.delay_s), budget.energy_j)
    assert fastest is not None
    assert thriftiest is not None
    slowest = search.least(lambda x: (ENDS * thriftiest, x), budget.delay_s)
    done()
    joules = budget.energy_j
    seconds: Sequence[float] = np.geomspace(ENDS * fastest, max(slowest or 0.0, ENDS * ENDS * fastest), points).tolist()
    for delay_s in map(rounded_up, seconds):

        def budgets(x: float, delay_s: float = delay_s) -> tuple[float, float]:
            return rounded_up(x), delay_s

        point = search.answer(budgets, joules, certified=False)
        done()
        if point is not None:
            joules = point.energy_j
            yield point
