"""The least budgets with which the forecast reaches a target accuracy.

The target is reached if a run of the best plan has at least that accuracy with a given confidence. A *draft* is a quick
estimate of the best plan by :mod:`fedgap.planning.forecast_search`, which takes a tenth of a second for a pair of
budgets. As the error falls with each budget, drafts are used to find the least budget. The plan with that budget is
then solved with its certificate, and the budget is raised if the plan misses the target.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, floor, inf, log, log10

import numpy as np

from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning.diagnosis import feasible
from fedgap.planning.forecast_search import Draft, best_drafts
from fedgap.planning.objectives.forecast_tangent import plan_features
from fedgap.planning.plan import Plan
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.settings import SolverSettings
from fedgap.planning.solve import planned, scheme_of
from fedgap.planning.task import Task
from fedgap.theory.forecast import PlanFeatures

AMPLE = 1e6
"""A multiple of a budget that is so large that no plan uses it up."""
CLOSE, ROUGHLY = 0.003, 0.01
"""Precision of the least budget as a share of it, and precision of budgets on a frontier and at the ends of
intervals."""
_DIGITS = 4
"""Significant digits of the resulting budgets, which are rounded up."""
_ENOUGH = 0.02
"""If a plan's error is less than this share below the target's, no smaller budget is tried."""
_GAP = 0.005
"""A plan's error may exceed the least possible one by this share of the target's error; a smaller gap would take too
long."""
_RAISE = 0.002
"""Least share by which a budget is raised if its plan missed the target; it doubles with every attempt."""
_INFEASIBLE = 0.05
"""By how much further drafts must be better than the target, in ln(error), if there is no plan for a draft's
budgets."""
_INNER = 0.15
"""When an interval is narrowed, the next point is at least this share of its width away from its ends."""
_STRIDE = 3.0
"""Factor by which a budget is changed until the target is first missed, or first reached."""
_ATTEMPTS = 7
"""Maximum number of budgets for which a plan is made."""
_SATURATED, _COARSE, _WIDE = 0.03, 1.2, 2.0
"""For :func:`interesting_multiples`: the share of the error that larger budgets may still remove at the upper end, the
precision of that end, and the least ratio of the two ends."""
_FOR_EVER = 1e12
"""A number of rounds after which further rounds change nothing."""

Budgets = Callable[[float], tuple[float, float]]
"""Function from one variable x to the budgets in J and s. One of them or both rise with x."""


@dataclass(frozen=True, eq=False)
class TargetPlan:
    """A pair of budgets that suffices, and a plan that reaches the target with it."""

    scenario: Scenario
    """The scenario with these budgets."""
    plan: Plan
    surely: float
    """The accuracy that a run of the plan reaches with the required confidence."""

    @property
    def energy_j(self) -> float:
        """The energy budget."""
        return self.scenario.budget.energy_j

    @property
    def delay_s(self) -> float:
        """The delay budget."""
        return self.scenario.budget.delay_s


class BudgetSearch:
    """Finds the least budgets for a target accuracy in one scenario, and keeps the drafts that it has made.

    :param accuracy: the target; :param confidence: the probability with which a run must reach it.
    """

    def __init__(self, scenario: Scenario, accuracy: float, confidence: float) -> None:
        self.scenario, self.fitted = scenario, scenario.fitted_forecast()
        self.accuracy, self.confidence = accuracy, confidence
        if self.fitted.spread is None:
            raise InputError("forecast.spread: missing, so the uncertainty of the forecast is unknown; give it, or let "
                             "`fedgap calibrate` fit the forecast")
        self._scheme = scheme_of("forecast")
        self._problem = Problem.of(scenario)
        self._drafts: dict[tuple[float, float], Draft | None] = {}

    @property
    def ample(self) -> PlanFeatures | None:
        """The features of the best draft with unlimited budgets; None if there is no plan."""
        budget = self.scenario.budget
        draft = self._draft(AMPLE * budget.energy_j, AMPLE * budget.delay_s)
        return None if draft is None else draft.features

    def for_ever(self, features: PlanFeatures) -> float:
        """Return the accuracy that is reached with the required confidence after very many rounds like these."""
        return self.fitted.surely(replace(features, rounds=_FOR_EVER), self.confidence)

    def excess(self, energy_j: float, delay_s: float, confidence: float) -> float:
        """Return by how much the target is missed: ln(error that is not exceeded with this confidence / target's
        error).

        It is at most 0 if the target is reached. Known drafts for smaller budgets are considered as well, so that the
        result never rises with a budget.
        """
        self._draft(energy_j, delay_s)
        known = [draft for (joules, seconds), draft in self._drafts.items()
                 if draft is not None and joules <= energy_j and seconds <= delay_s]
        return min((log((1.0 - self.fitted.surely(draft.features, confidence)) / (1.0 - self.accuracy))
                    for draft in known), default=inf)

    def _draft(self, energy_j: float, delay_s: float) -> Draft | None:
        pair = energy_j, delay_s
        if pair not in self._drafts:
            problem = replace(self._problem, energy_j=energy_j, delay_s=delay_s)
            drafts = best_drafts(Task.of(problem, self._scheme))
            self._drafts[pair] = drafts[0] if drafts else None
        return self._drafts[pair]

    def least(self, budgets: Budgets, first: float, *, confidence: float | None = None, close: float = ROUGHLY,
              margin: float = 0.0) -> float | None:
        """Return the least x for which ``budgets(x)`` suffices; None if no x does.

        :param first: the first x that is tried; :param confidence: by default that of the search;
        :param close: precision of x, as a share;
        :param margin: by how much, in ln(error), a draft must be better than the target.
        """
        wanted = self.confidence if confidence is None else confidence

        def excess(x: float) -> float:
            return self.excess(*budgets(x), wanted) + margin

        if excess(AMPLE * first) > 0.0:
            return None
        return next(high for low, high in _brackets(excess, first) if high / low <= 1.0 + close)

    def answer(self, budgets: Budgets, first: float, *, certified: bool = True) -> TargetPlan | None:
        """Return the least budgets for which a plan reaches the target, with that plan; None if there are none.

        A plan may be worse than its draft, because its first round must be unpruned and its number of rounds is whole.
        Further drafts must then be better than the target by that difference.

        :param first: the first x that is tried;
        :param certified: whether the final plan is solved over all selections, with a certificate. Otherwise, and in
            all plans before, the draft's clients take part in all rounds.
        """
        best: TargetPlan | None = None
        x, margin, missed = first, 0.0, 0.0
        for attempt in range(_ATTEMPTS):
            least = self.least(budgets, x, close=CLOSE if certified else ROUGHLY, margin=margin)
            if least is None:
                break
            x = max(least, missed * (1.0 + _RAISE * 2.0**attempt))  # rounds are whole, so that the error jumps
            energy_j, delay_s = budgets(x)
            point = self.plan_within(energy_j, delay_s)
            short = inf if point is None else log((1.0 - point.surely) / (1.0 - self.accuracy))
            if short <= 0.0 and (best is None or energy_j * delay_s < best.energy_j * best.delay_s):
                best = point
            if -_ENOUGH <= short <= 0.0 or (best is not None and (missed or not certified)):
                break
            missed = max(missed, x) if short > 0.0 else missed
            margin += _INFEASIBLE if point is None else short + 0.25 * _ENOUGH
        if best is not None and certified:
            better = self._planned(best.scenario, self._scheme)
            best = better if better is not None and better.surely >= best.surely else best
        return best

    def plan_within(self, energy_j: float, delay_s: float) -> TargetPlan | None:
        """Return the best plan in which the draft's clients take part in all rounds; None if none fits the budgets."""
        draft = self._draft(energy_j, delay_s)
        if draft is None:
            return None
        scenario = self.scenario.with_overrides([f"budget.energy_j={energy_j!r}", f"budget.delay_s={delay_s!r}"])
        point = self._planned(scenario, replace(self._scheme, selection=lambda _: draft.selected))
        if point is None:
            return None
        forecast = point.plan.forecast
        assert forecast is not None
        # The certificate is removed, because it holds only for plans with this selection.
        return replace(point, plan=replace(point.plan, status="feasible", forecast=replace(forecast, least_error=None)))

    def _planned(self, scenario: Scenario, scheme: Scheme) -> TargetPlan | None:
        answer = planned(scenario, scheme, SolverSettings(enough=_GAP * (1.0 - self.accuracy)))
        if not answer.feasible:
            return None
        features = plan_features(Problem.of(scenario), answer.segments)
        return TargetPlan(scenario, answer, self.fitted.surely(features, self.confidence))


def interesting_multiples(scenario: Scenario, scheme: str | Scheme) -> tuple[float, float]:
    """Return the range of multiples of both budgets that is worth looking at.

    It begins at the least multiple that allows a plan, and ends where the forecast error is within the share
    :data:`_SATURATED` of that with unlimited budgets. It includes 1.
    """
    task = Task.of(Problem.of(scenario), scheme_of(scheme))

    def carried(multiple: float, least: Task = task) -> bool:
        problem = least.problem
        return feasible(replace(least, problem=replace(
            problem, energy_j=multiple * problem.energy_j, delay_s=multiple * problem.delay_s)))

    def first(good: Callable[[float], bool], close: float) -> float:
        def signed(multiple: float) -> float:
            return -1.0 if good(multiple) else 1.0

        return next(high for low, high in _brackets(signed, 1.0) if high / low <= close)

    most = 1.0
    search = BudgetSearch(scenario, 0.5, 0.5)
    ample = search.excess(AMPLE * scenario.budget.energy_j, AMPLE * scenario.budget.delay_s, 0.5)
    if np.isfinite(ample):
        most = first(lambda x: search.excess(x * scenario.budget.energy_j, x * scenario.budget.delay_s, 0.5)
                     <= ample + _SATURATED, _COARSE)
    least = first(carried, 1.0 + ROUGHLY) if carried(AMPLE) else 1.0
    return min(least, 1.0), max(most, _WIDE * min(least, 1.0), 1.0)


def _brackets(excess: Callable[[float], float], first: float) -> Iterator[tuple[float, float]]:
    """Yield ever smaller intervals (low, high) with excess(low) > 0 ≥ excess(high), by the secant method in ln x."""
    x, value = first, excess(first)
    factor = 1.0 / _STRIDE if value <= 0.0 else _STRIDE
    while True:
        other = x * factor
        after = excess(other)
        if (after <= 0.0) != (value <= 0.0):
            break
        x, value = other, after
    (low, above), (high, below) = sorted([(x, value), (other, after)])
    while True:
        yield low, high
        share = above / (above - below) if above < inf and above > below else 0.5
        share = min(max(share, _INNER), 1.0 - _INNER)
        x = low * (high / low) ** share
        value = excess(x)
        low, high, above, below = (x, high, value, below) if value > 0.0 else (low, x, above, value)


def rounded_up(value: float) -> float:
    """Return the value rounded up to four significant digits."""
    unit = 10.0 ** (floor(log10(value)) + 1 - _DIGITS)
    return float(f"{ceil(value / unit - 1e-9) * unit:.{_DIGITS}g}")
