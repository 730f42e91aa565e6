"""P1 for a fixed *composition*: which selections, for how many rounds each. Deadlines and all else follow.

One segment has the deadline T₀/R and is one call of :func:`fedgap.planning.resources.allocate`. Two segments share the
budgets, and their deadlines are a scalar root. Those of more come from the column generation of
:mod:`fedgap.planning.master`, each segment being a kind of round with one selection; a segment's value is concave in
its deadline, so its columns merge into their average.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.composition import Composition, Part
from fedgap.planning.master import Master
from fedgap.planning.plan import Segment
from fedgap.planning.resources import Allocation, allocate
from fedgap.planning.roots import root
from fedgap.planning.round_lagrangian import Priced, RoundCurve
from fedgap.planning.task import Task
from fedgap.planning.tolerances import BUDGET_MARGIN, DEADLINES, KEPT

_ITERATIONS = 80
"""Programs for these deadlines at most: where budgets hardly suffice, prices are too steep to meet the tolerance."""
_NEAR = 0.9
"""Share of the energy, at least needed, from which on it is found out whether it suffices before anything else."""
_RESOLVED = 1e-7
"""Share of the energy budget below which the program cannot tell what is left from nothing."""
_TANGENTS = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 60)])
"""Shares of the spare time at which a segment's least energy is bounded by tangents."""


@dataclass(frozen=True, eq=False)
class Composed:
    """The optimum of a composition."""

    composition: Composition
    segments: tuple[Segment, ...]
    cost: float
    """The objective's value without its constant; θ − α for θ."""
    deadline: Floats
    """(J,), s."""
    energy_price: float
    """What a joule more takes off the value, ≥ 0, 1/J."""
    delay_price: float
    """What a second more takes off the value, ≥ 0, 1/s."""


def compose_single(task: Task, selected: Bools) -> tuple[Floats, Allocation]:
    """Values of plans that use one selection in all rounds, for many selections (B, N) at once; ∞ where infeasible.

    A dense first round is not provided for: all rounds are of the last kind.
    """
    problem, curves = task.problem, task.kinds[-1].curves
    time = np.full(selected.shape, problem.delay_s / problem.rounds) - curves.overhead
    share = 1.0 / np.maximum(selected.sum(axis=-1, keepdims=True), 1)
    budget = np.full(len(selected), problem.energy_j / problem.rounds - problem.broadcast_j)
    answer = allocate(curves, time, np.broadcast_to(share, selected.shape), np.ones(selected.shape), selected, budget)
    cost = task.objective.selection_cost(selected) + task.objective.pruning_weight * (1.0 - answer.value)
    return np.where(answer.feasible, cost, np.inf), answer


def compose(task: Task, composition: Composition, start: tuple[float, float] | None = None) -> Composed | None:
    """Solve one composition; None where it cannot keep the budgets, or one of its selections is not allowed.

    :param start: prices (μ, ν) near the composition's, if known.
    """
    problem = task.problem
    if len(composition) == 1:
        part = composition.parts[0]
        cost, answer = compose_single(task, part.selected[None])
        if not np.isfinite(cost[0]):
            return None
        segment = _segment(task, part, answer.keep[0], answer.x[0], answer.s[0])
        deadline = np.array([problem.delay_s / problem.rounds])
        return Composed(composition, (segment,), float(cost[0]), deadline, *_prices(task, answer, 1))
    several = _Several(task, composition)
    if several.spare_s < -KEPT * problem.delay_s or not np.isfinite(several.base).all():
        return None
    return several.solve(start)


class _Several:
    """A composition of two or more segments."""

    def __init__(self, task: Task, composition: Composition) -> None:
        self.task, self.problem, self.composition, self.parts = task, task.problem, composition, composition.parts
        problem, parts = self.problem, self.parts
        self.selected = np.stack([part.selected for part in parts])
        self.rounds = np.array([part.rounds for part in parts], dtype=np.float64)
        self.curves = ClientCurves.stack([task.kinds[part.kind].curves for part in parts])
        self.base = task.objective.selection_cost(self.selected)
        self.floor = self.curves.shortest(self.selected)
        least = float(self.rounds @ self.floor)
        self.spare_s = problem.delay_s - least
        self.energy_j = problem.energy_j - problem.rounds * problem.broadcast_j
        self.longest = self.floor + max(self.spare_s, 0.0) / self.rounds
        slowest = np.maximum(self.longest[:, None] - self.curves.overhead, self.curves.u_min) / self.curves.keep_min
        self._cheapest = 0.5 * self.curves.price_of_time(slowest)

    def price(self, mu: float, nu: float, allowed: float) -> list[Priced]:
        """Each segment's best deadline at prices (μ, ν), whatever is allowed."""
        curve = RoundCurve(self.task, self.curves, self.selected, self.base, mu, nu, self._cheapest)
        refined = curve.minimise(self.floor, self.longest)
        return [Priced(float(refined.bound[j]), refined.columns.take([j])) for j in range(len(self.parts))]

    def solve(self, start: tuple[float, float] | None) -> Composed | None:
        """The best deadlines, and all that follows from them."""
        needed = self._at_least()
        if needed > self.energy_j * (1.0 + BUDGET_MARGIN):
            return None
        two = len(self.parts) == 2
        deadline = self._two_deadlines() if two else self._deadlines(start, near=needed > _NEAR * self.energy_j)
        costs, answer = self.allocate(self.rounds[None], deadline)
        if not (two or np.isfinite(costs[0])):  # the program keeps budgets by its own tolerances
            deadline = self.frugal
            costs, answer = self.allocate(self.rounds[None], deadline)
        if not np.isfinite(costs[0]):
            return None
        values = (value.reshape(self.selected.shape) for value in (answer.keep, answer.x, answer.s))
        segments = tuple(_segment(self.task, part, *row) for part, *row in zip(self.parts, *values, strict=True))
        prices = _prices(self.task, answer, len(self.parts))
        return Composed(self.composition, segments, float(costs[0]), deadline, *prices)

    def _at_least(self) -> float:
        """Energy that is needed whatever the deadlines, J: most compositions fail here, quickly.

        Each segment's least energy is convex in the spare seconds that it is given, hence above its tangents; the spare
        time goes to whichever tangent falls most steeply.
        """
        spare = max(self.spare_s, 0.0)
        given = spare * _TANGENTS[:, None]
        energy, price = self.curves.within(self.selected, self.floor + given / self.rounds)
        energy, slope = self.rounds * energy, -price
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = energy - slope * given  # each tangent's height at no spare time
            meet = (rise[1:] - rise[:-1]) / (slope[:-1] - slope[1:])
        meet = np.clip(np.where(np.isfinite(meet), meet, np.inf), given[:-1], given[1:])
        fall = np.concatenate([slope[:-1], slope[1:]]).ravel()
        seconds = np.concatenate([meet - given[:-1], given[1:] - meet]).ravel()
        order = np.argsort(fall)
        before = np.cumsum(seconds[order]) - seconds[order]
        saved = fall[order] @ np.clip(spare - before, 0.0, seconds[order])
        return float(energy[0].sum() + saved)

    @cached_property
    def frugal(self) -> Floats:
        """The deadlines of least energy: where these do not keep the budgets, none do."""
        shared = self.curves.share(self.selected, self.rounds, self.problem.delay_s, of_energy=False)
        return self.floor if shared is None else shared[1]

    def _deadlines(self, start: tuple[float, float] | None, *, near: bool) -> Floats:
        problem = self.problem
        if near:
            left = self.energy_j - float(self.rounds @ self.curves.within(self.selected, self.frugal)[0])
            if left <= _RESOLVED * problem.energy_j:
                return self.frugal
        energy, delay = problem.energy_j / problem.rounds, problem.delay_s / problem.rounds
        master = Master(self.rounds / problem.rounds, energy, delay, self.price, DEADLINES, _ITERATIONS)
        master.run(start=start)
        if master.infeasible or not len(master.weights):  # the last: budgets so tight that the program gave up
            return self.frugal
        # Columns priced after the last program have no weight.
        columns = [(w, master.column(j).deadline[: len(w)]) for j, w in enumerate(master.weights)]
        return np.array([float(w @ deadline) / w.sum() for w, deadline in columns])

    def _two_deadlines(self) -> Floats:
        """With two segments the first deadline decides: a second must be worth the same in both, a scalar root."""

        def other(first: float) -> float:
            return float((self.problem.delay_s - self.rounds[0] * first) / self.rounds[1])

        def difference(first: float) -> float:
            _, answer = self.allocate(self.rounds[None], np.array([first, other(first)]))
            # Where the energy does not suffice, what a second saves: the direction towards feasibility.
            gain = answer.time_value[0] if answer.feasible[0] else answer.least_price[0]
            worth = gain.reshape(2, -1).sum(axis=-1)
            return float(worth[0] - worth[1])

        low, high = float(self.floor[0]), float(self.longest[0])
        if high - low <= KEPT * high or difference(low) <= 0.0:
            first = low
        elif difference(high) >= 0.0:
            first = high
        else:
            first = root(difference, low, high, xtol=KEPT * high, rtol=KEPT)
        return np.array([first, max(other(first), float(self.floor[1]))])

    def allocate(self, rounds: Floats, deadline: Floats) -> tuple[Floats, Allocation]:
        """Values of many round counts (B, J) at deadlines shrunk or stretched to fit; ∞ where infeasible."""
        problem, batch = self.problem, len(rounds)
        least = rounds @ self.floor
        beyond = rounds @ (deadline - self.floor)
        with np.errstate(divide="ignore", invalid="ignore"):
            stretch = np.maximum(problem.delay_s - least, 0.0) / beyond
            fitted = np.where(
                beyond[:, None] > 0.0,
                self.floor + stretch[:, None] * (deadline - self.floor),
                self.floor + (np.maximum(problem.delay_s - least, 0.0) / rounds.sum(axis=-1))[:, None],
            )
        shape, flat = (batch, *self.selected.shape), (batch, -1)
        share = 1.0 / self.selected.sum(axis=-1, keepdims=True)
        answer = allocate(
            self.curves.flat(),
            (fitted[..., None] - self.curves.overhead).reshape(flat),
            np.broadcast_to(share, shape).reshape(flat),
            np.broadcast_to(rounds[..., None], shape).reshape(flat),
            (self.selected & (rounds[..., None] > 0.0)).reshape(flat),
            np.full(batch, self.energy_j),
        )
        pruned = self.task.objective.pruning_weight * (1.0 - answer.value / problem.rounds)
        cost = rounds @ self.base / problem.rounds + pruned
        in_time = least <= problem.delay_s * (1.0 + KEPT)
        return np.where(answer.feasible & in_time, cost, np.inf), answer


def estimate(task: Task, composition: Composition, rounds: Floats, deadline: Floats) -> Floats:
    """Values that the selections reach with other round counts (B, J), the deadlines in proportion: upper bounds."""
    return _Several(task, composition).allocate(rounds, deadline)[0]


def _prices(task: Task, answer: Allocation, segments: int) -> tuple[float, float]:
    """What a joule and a second more take off the value: its weight of pruning times what they add to Σ m/k."""
    weight = task.objective.pruning_weight / task.problem.rounds
    second = answer.time_value[0].reshape(segments, -1).sum(axis=-1).max()  # given where it is worth most
    return weight / float(answer.worth[0]), weight * float(second)


def _segment(task: Task, part: Part, keep: Floats, x: Floats, s: Floats) -> Segment:
    chosen, curves = part.selected, task.kinds[part.kind].curves
    ratio = np.clip(1.0 - keep, 0.0, task.problem.fleet.max_ratio)
    return Segment(
        rounds=part.rounds,
        selected=chosen.copy(),
        pruning_ratio=np.where(chosen, ratio, 0.0),
        power_w=np.where(chosen, curves.power(s), 0.0),
        frequency_hz=np.where(chosen, curves.frequency(x), 0.0),
        local_steps=task.problem.local_steps,
        upload_bits=task.problem.upload_bits,
    )
