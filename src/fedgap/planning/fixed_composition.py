"""P1 for a fixed *composition*, that is, for given selections and numbers of rounds: find deadlines and all else.

A composition with one part has the deadline T₀/R, or less if clients draw idle power, and needs one call of
:func:`fedgap.planning.resources.allocate`. For two parts, which share the budgets, the deadlines follow from an
equation in one variable. For more parts, and for two with idle power, they are found by the column generation of
:mod:`fedgap.planning.master`, in which each part is a kind of round with one selection. The value of a part is concave
in its deadline, so that the columns of a part can be replaced by one with their mean deadline.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.composition import Composition, Part
from fedgap.planning.master import Master
from fedgap.planning.plan import Segment
from fedgap.planning.resources import Allocation, allocate
from fedgap.planning.roots import root, sign_change
from fedgap.planning.round_lagrangian import Priced, RoundCurve
from fedgap.planning.task import Task
from fedgap.planning.tolerances import BUDGET_MARGIN, DEADLINES, KEPT

_DEADLINE = 1e-10
"""Relative precision of a deadline that is shortened because of idle power; the value is nearly flat there."""
_WORTH = 1e-9
"""Precision of ln ζ in the search for such a deadline; the value is within this share of the optimum."""
_ITERATIONS = 80
"""Maximum number of times that the program is solved for the deadlines of several parts. With very tight budgets the
tolerance may not be reached."""
_NEAR = 0.9
"""If the least energy exceeds this share of the budget, feasibility is checked before anything else."""
_RESOLVED = 1e-7
"""If the least energy leaves less than this share of the energy budget, its deadlines are used without a program."""
_TANGENTS = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 60)])
"""Shares of the spare time at which tangents of a part's least energy are taken."""


@dataclass(frozen=True, eq=False)
class Composed:
    """The best plan with a given composition."""

    composition: Composition
    segments: tuple[Segment, ...]
    cost: float
    """The objective's value without its constant; θ − α for θ."""
    deadline: Floats
    """Duration of the rounds of each part, s, (J,)."""
    energy_price: float
    """By how much one more joule would lower the value, ≥ 0, 1/J."""
    delay_price: float
    """By how much one more second would lower the value, ≥ 0, 1/s."""


def compose_single(task: Task, selected: Bools) -> tuple[Floats, Allocation]:
    """Return values (B,) and allocations of plans with one selection in all rounds, for selections (B, N).

    The value is ∞ for a plan that is infeasible. An unpruned first round is not considered here.
    """
    return _single(task, selected)[:2]


def _single(task: Task, selected: Bools) -> tuple[Floats, Allocation, Floats]:
    """Return what :func:`compose_single` returns, and the deadlines (B,): T₀/R, or less with idle power."""
    problem, curves = task.problem, task.kinds[-1].curves
    longest = np.full(len(selected), problem.delay_s / problem.rounds)
    share = 1.0 / np.maximum(selected.sum(axis=-1, keepdims=True), 1)
    budget = np.full(len(selected), problem.energy_j / problem.rounds - problem.broadcast_j)
    awake = curves.awake(selected)

    def within(deadline: Floats) -> Allocation:
        time = np.broadcast_to(deadline[:, None], selected.shape) - curves.overhead
        ones, left = np.ones(selected.shape), _left(budget, awake * deadline) if curves.idles else budget
        return allocate(curves, time, np.broadcast_to(share, selected.shape), ones, selected, left)

    deadline = longest
    if curves.idles and (budget > 0.0).all():
        deadline = np.minimum(_best_deadline(curves, selected, budget, longest), longest)
    answer = within(deadline)
    cost = task.objective.selection_cost(selected) + task.objective.pruning_weight * (1.0 - answer.value)
    return np.where(answer.feasible, cost, np.inf), answer, deadline


def _left(budget: Floats, awake_j: Floats) -> Floats:
    """Return the energy budget minus the idle energy, or a tiny positive number if nothing is left."""
    return np.maximum(budget - awake_j, KEPT * np.abs(budget))


def _best_deadline(curves: ClientCurves, selected: Bools, budget: Floats, longest: Floats) -> Floats:
    """Return the best deadlines (B,) for rounds of selections (B, N) whose clients draw idle power.

    If ζ is the worth of a unit of w in joules, the best deadline is where one more second is worth as much to the
    clients as it costs in idle power, Σ π = Σ P. It is unique, because the value is concave in the deadline. ζ is such
    that the energy budget is used up. If the energy jumps at that ζ, all deadlines between the two sides of the jump
    are equally good, and the one that uses up the budget is taken.
    """
    awake = curves.awake(selected)
    share = np.broadcast_to(1.0 / np.maximum(selected.sum(axis=-1, keepdims=True), 1), selected.shape)
    shortest = curves.shortest(selected)
    longest = np.maximum(longest, shortest)
    slopes = [piece.slope for piece in curves.pieces]
    slowest, at_slowest = curves.until(longest)
    full, at_full = curves.full_price, curves.at(curves.full_price)
    least = np.where(selected, at_slowest.energy + slowest * at_slowest.time, np.inf).min(axis=-1)
    most = np.where(selected, at_full.energy + full * at_full.time, 0.0).max(axis=-1)
    deadline, sides = longest, [(shortest, np.zeros(len(selected))), (longest, np.full(len(selected), np.inf))]

    def excess(log_worth: Floats) -> Floats:
        nonlocal deadline
        mu = np.exp(-log_worth)[:, None]
        balances = curves.balances(share, mu, 0.5 * slowest)
        energy = np.zeros(len(selected))

        def slope(trial: Floats) -> Floats:
            nonlocal energy
            time = np.maximum(trial[:, None] - curves.overhead, curves.keep_min * curves.u_min)
            keep = curves.kept(time, balances)
            price = curves.price_of_time(np.maximum(time / keep, curves.u_min))
            energy = np.where(selected, keep * curves.at(price).energy, 0.0).sum(axis=-1) + awake * trial
            worth = np.where(selected, curves.rate(keep, mu * price, balances), 0.0).sum(axis=-1)
            return np.asarray(mu[:, 0] * awake - worth)

        ends = [curves.overhead + end * balance.time for piece, balance in zip(curves.pieces, balances, strict=True)
                for end in (piece.low, piece.high)]
        corners = np.concatenate([shortest[:, None], *ends, longest[:, None]], axis=-1)
        corners = np.sort(np.clip(corners, shortest[:, None], longest[:, None]), axis=-1)
        deadline = _between_corners(slope, corners)
        slope(deadline)
        rich = energy > budget
        for side, where in ((0, ~rich), (1, rich)):
            sides[side] = np.where(where, deadline, sides[side][0]), np.where(where, energy, sides[side][1])
        return np.log(energy / budget)

    log_low, log_high = (
        np.log(factor * joules / (slope * share[:, 0]))
        for factor, joules, slope in ((0.5, least, max(slopes)), (2.0, most, min(slopes)))
    )
    at_high, all_energy = excess(log_high), deadline
    at_low = excess(log_low)
    spare, short = at_high <= 0.0, at_low > 0.0
    low, high = np.where(spare, log_high, log_low), np.where(short, log_low, log_high)
    sign_change(excess, low, high, at_low, at_high, width=_WORTH, met=KEPT)
    (under, under_j), (over, over_j) = sides
    room = over_j - under_j
    part = np.divide(budget - under_j, room, out=np.zeros(len(room)), where=np.isfinite(room) & (room > 0.0))
    mixed = under + np.clip(part, 0.0, 1.0) * (over - under)
    return np.where(spare, all_energy, np.where(short, deadline, mixed))


def _between_corners(slope: Callable[[Floats], Floats], corners: Floats) -> Floats:
    """Return where a rising function changes its sign, (B,).

    It is smooth between the sorted ``corners`` (B, K), and may jump at them.
    """
    rows, size = np.arange(len(corners)), corners.shape[-1]
    first, last = np.zeros(len(corners), dtype=np.intp), np.full(len(corners), size - 1)
    while (last - first > 1).any():
        middle = (first + last) // 2
        up = slope(corners[rows, middle]) >= 0.0
        first, last = np.where(up, first, middle), np.where(up, middle, last)
    left, right = corners[rows, first], corners[rows, last]
    low, high = left * (1.0 + KEPT), right * (1.0 - KEPT)
    at_low, at_high = slope(low), slope(high)
    inside = (at_low < 0.0) & (at_high >= 0.0) & (low < high)
    low, high = np.where(inside, low, left), np.where(inside, high, left)
    low, high = sign_change(slope, low, high, at_low, at_high, width=_DEADLINE)
    return np.where(inside, 0.5 * (low + high), np.where(at_low >= 0.0, left, right))


def compose(task: Task, composition: Composition, start: tuple[float, float] | None = None) -> Composed | None:
    """Return the best plan with a composition; None if it cannot keep the budgets or a selection is not allowed.

    :param start: prices (μ, ν) near those of the result, if known.
    """
    problem = task.problem
    if len(composition) == 1:
        part = composition.parts[0]
        cost, answer, deadline = _single(task, part.selected[None])
        if not np.isfinite(cost[0]):
            return None
        segment = _segment(task, part, answer.keep[0], answer.x[0], answer.s[0])
        prices = _prices(task, answer, part.selected[None])
        return Composed(composition, (segment,), float(cost[0]), deadline, *prices)
    several = _Several(task, composition)
    if several.spare_s < -KEPT * problem.delay_s or not np.isfinite(several.base).all():
        return None
    return several.solve(start)


class _Several:
    """A composition with two or more parts."""

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
        """Return the best column of each part at prices (μ, ν), as an oracle does; ``allowed`` is not used."""
        curve = RoundCurve(self.task, self.curves, self.selected, self.base, mu, nu, self._cheapest)
        refined = curve.minimise(self.floor, self.longest)
        return [Priced(float(refined.bound[j]), refined.columns.take([j])) for j in range(len(self.parts))]

    def solve(self, start: tuple[float, float] | None) -> Composed | None:
        """Find the best deadlines and return the plan; None if the budgets cannot be kept."""
        needed = self._at_least()
        if needed > self.energy_j * (1.0 + BUDGET_MARGIN):
            return None
        two = len(self.parts) == 2 and not self.curves.idles  # with idle power it may be better not to use all the time
        deadline = self._two_deadlines() if two else self._deadlines(start, near=needed > _NEAR * self.energy_j)
        costs, answer = self.allocate(self.rounds[None], deadline)
        if not (two or np.isfinite(costs[0])):  # the program's tolerance may have allowed too much energy
            deadline = self.frugal
            costs, answer = self.allocate(self.rounds[None], deadline)
        if not np.isfinite(costs[0]):
            return None
        values = (value.reshape(self.selected.shape) for value in (answer.keep, answer.x, answer.s))
        segments = tuple(_segment(self.task, part, *row) for part, *row in zip(self.parts, *values, strict=True))
        prices = _prices(self.task, answer, self.selected)
        return Composed(self.composition, segments, float(costs[0]), deadline, *prices)

    def _at_least(self) -> float:
        """Return a lower bound on the energy for any deadlines, J. It quickly excludes most infeasible compositions.

        The least energy of each part is convex in the spare seconds that it is given, and therefore above its tangents.
        The spare time is given to the tangents that fall most steeply, and none to those that rise.
        """
        spare = max(self.spare_s, 0.0)
        given = spare * _TANGENTS[:, None]
        energy, price = self.curves.within(self.selected, self.floor + given / self.rounds)
        energy, slope = self.rounds * energy, -price
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = energy - slope * given  # value of each tangent without spare time
            meet = (rise[1:] - rise[:-1]) / (slope[:-1] - slope[1:])
        meet = np.clip(np.where(np.isfinite(meet), meet, np.inf), given[:-1], given[1:])
        fall = np.concatenate([slope[:-1], slope[1:]]).ravel()
        seconds = np.concatenate([meet - given[:-1], given[1:] - meet]).ravel()
        order = np.argsort(fall)
        before = np.cumsum(seconds[order]) - seconds[order]
        saved = np.minimum(fall[order], 0.0) @ np.clip(spare - before, 0.0, seconds[order])
        return float(energy[0].sum() + saved)

    @cached_property
    def frugal(self) -> Floats:
        """The deadlines with the least energy. If these do not keep the budgets, no deadlines do."""
        shared = self.curves.share(self.selected, self.rounds, self.problem.delay_s, of_energy=False)
        return self.floor if shared is None else shared[1]

    def _deadlines(self, start: tuple[float, float] | None, *, near: bool) -> Floats:
        """Return the best deadlines of several parts by column generation.

        :param start: prices to start from; :param near: whether the least energy may be close to the budget.
        """
        problem = self.problem
        if near:
            left = self.energy_j - float(self.rounds @ self.curves.within(self.selected, self.frugal)[0])
            if left <= _RESOLVED * problem.energy_j:
                return self.frugal
        energy, delay = problem.energy_j / problem.rounds, problem.delay_s / problem.rounds
        master = Master(self.rounds / problem.rounds, energy, delay, self.price, DEADLINES, _ITERATIONS)
        master.run(start=start)
        if master.infeasible or not len(master.weights):  # there are no weights if HiGHS found no solution
            return self.frugal
        # Columns that were added after the program was last solved have no weight.
        columns = [(w, master.column(j).deadline[: len(w)]) for j, w in enumerate(master.weights)]
        return np.array([float(w @ deadline) / w.sum() for w, deadline in columns])

    def _two_deadlines(self) -> Floats:
        """Return the best deadlines of two parts: those at which one more second is worth equally much in both."""

        def other(first: float) -> float:
            return float((self.problem.delay_s - self.rounds[0] * first) / self.rounds[1])

        def difference(first: float) -> float:
            _, answer = self.allocate(self.rounds[None], np.array([first, other(first)]))
            # If the energy does not suffice, compare how many joules a second saves, which leads towards feasibility.
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
        """Return values (B,), ∞ if infeasible, and allocations for B different numbers of rounds of the parts.

        :param rounds: numbers of rounds, (B, J); :param deadline: (J,), which is scaled so that the rounds use up T₀.
        """
        problem, batch = self.problem, len(rounds)
        least = rounds @ self.floor
        beyond = rounds @ (deadline - self.floor)
        with np.errstate(divide="ignore", invalid="ignore"):
            stretch = np.maximum(problem.delay_s - least, 0.0) / beyond
            if self.curves.idles:  # longer rounds may cost more than they gain
                stretch = np.minimum(stretch, 1.0)
            fitted = np.where(
                beyond[:, None] > 0.0,
                self.floor + stretch[:, None] * (deadline - self.floor),
                self.floor + (np.maximum(problem.delay_s - least, 0.0) / rounds.sum(axis=-1))[:, None],
            )
        shape, flat = (batch, *self.selected.shape), (batch, -1)
        share = 1.0 / self.selected.sum(axis=-1, keepdims=True)
        awake = (rounds * fitted) @ self.curves.awake(self.selected)
        answer = allocate(
            self.curves.flat(),
            (fitted[..., None] - self.curves.overhead).reshape(flat),
            np.broadcast_to(share, shape).reshape(flat),
            np.broadcast_to(rounds[..., None], shape).reshape(flat),
            (self.selected & (rounds[..., None] > 0.0)).reshape(flat),
            _left(np.full(batch, self.energy_j), awake) if self.curves.idles else np.full(batch, self.energy_j),
        )
        pruned = self.task.objective.pruning_weight * (1.0 - answer.value / problem.rounds)
        cost = rounds @ self.base / problem.rounds + pruned
        in_time = least <= problem.delay_s * (1.0 + KEPT)
        return np.where(answer.feasible & in_time, cost, np.inf), answer


def estimate(task: Task, composition: Composition, rounds: Floats, deadline: Floats) -> Floats:
    """Return the values (B,) of a composition's selections with other numbers of rounds, (B, J).

    Deadlines are only scaled, not optimised, so that the values are upper bounds.
    """
    return _Several(task, composition).allocate(rounds, deadline)[0]


def _prices(task: Task, answer: Allocation, selected: Bools) -> tuple[float, float]:
    """Return by how much one more joule and one more second would lower the value.

    That is the weight of pruning times what they add to Σ w(m)/k.
    """
    weight, curves = task.objective.pruning_weight / task.problem.rounds, task.kinds[-1].curves
    joule = weight / float(answer.worth[0])
    second = weight * answer.time_value[0].reshape(len(selected), -1).sum(axis=-1)
    if curves.idles:
        second = np.maximum(second - joule * curves.awake(selected), 0.0)
    return joule, float(second.max())  # the second goes to the part where it is worth most


def _segment(task: Task, part: Part, keep: Floats, x: Floats, s: Floats) -> Segment:
    """Return a part as a segment, from the kept share m and the operating point of each client, (N,)."""
    chosen, curves = part.selected, task.kinds[part.kind].curves
    ratio = np.clip(1.0 - curves.unpruned(keep), 0.0, task.problem.fleet.max_ratio)
    return Segment(
        rounds=part.rounds,
        selected=chosen.copy(),
        pruning_ratio=np.where(chosen, ratio, 0.0),
        power_w=np.where(chosen, curves.power(s), 0.0),
        frequency_hz=np.where(chosen, curves.frequency(x), 0.0),
        local_steps=task.problem.local_steps,
        upload_bits=task.problem.upload_bits,
    )
