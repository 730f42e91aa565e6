"""P1 for fixed selections: how much each client keeps, at which frequency and power. Exact, and vectorised.

With the selection and each round's deadline d fixed, what is left is

    max Σ_i r_i·m_i/k_i    s.t.   Σ_i r_i·m_i·ψ_i(t_i/m_i) ≤ E,   keep_min ≤ m_i ≤ 1,   t_i/m_i ≥ u_min,

over *instances* i = (segment, client), with t_i = d − download, r_i the segment's rounds, k_i its number of clients.
It is convex with one coupling constraint, hence one multiplier: with ζ the worth of a unit of kept model in joules,
an instance's π solves G(π) = ζ/k clipped to its range, and ζ is where the energy is used up. ``allocate`` does this for
a whole batch of problems at once; :mod:`fedgap.planning.fixed_composition` also chooses the deadlines.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedgap.planning.energy_time_curve import Point, Units

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_TIGHT = 1e-12
"""Relative slack within which a deadline that only just suffices still counts as kept."""


@dataclass(frozen=True, eq=False)
class Allocation:
    """The optimum of a batch of B problems over I instances; arrays (B, I) but where said."""

    feasible: Bools
    """(B,)"""
    keep: Array
    """m = 1 − λ; 0 where not selected."""
    x: Array
    s: Array
    value: Array
    """(B,): Σ r·m/k, what was maximised."""
    energy: Array
    """(B,): Σ r·m·ε, J."""
    worth: Array
    """ζ, (B,): J a unit of kept model (of Σ m/k) is worth; infinite where energy is no object."""
    time_value: Array
    """π/ζ: how much Σ m/k one more second of the instance's deadline gives."""
    _task: "_Task"

    @property
    def least_energy(self) -> Array:
        """(B,): Σ r·m·ε at the most pruning, J."""
        return np.where(self._task.in_time, self._task.ends.least, np.inf)

    @property
    def least_price(self) -> Array:
        """π at the most pruning, W: how much energy a second more would save there."""
        task = self._task
        return np.where(task.selected, np.where(task.enough, task.ends.low, np.inf), 0.0)


def allocate(
    units: Units, time: Array, share: Array, rounds: Array, selected: Bools, budget: Array
) -> Allocation:
    """Solve B fixed-selection, fixed-deadline problems.

    Most are solved by a few Newton steps on all the optimality conditions at once; where those do not arrive (no energy
    is left over, none suffices, a curve is all but flat), by a safeguarded search of the multiplier.

    :param units: curves of the instances, broadcastable to (B, I).
    :param time: t_i, s, (B, I); :param share: 1/k_i, (B, I); :param rounds: r_i, (B, I); :param selected: (B, I).
    :param budget: E, J, (B,): for computing and uploading, the broadcasts taken off.
    """
    task = _Task.of(units, time, share, rounds, selected, budget)
    solved, answer = _newton(task)
    if not solved.any():
        answer = _search(task)
    elif not solved.all():
        left = np.flatnonzero(~solved)
        answer = answer.put(left, _search(task.take(left)))
    keep = np.where(selected, np.clip(task.time / answer.point.time, units.keep_min, task.keep_max), 0.0)
    inverse, energy = answer.inverse[:, None], answer.point.energy
    # A client that cannot work faster still has a use for time: there π follows from G = ε + π·u_min = ζ/k.
    fastest = answer.price >= units.full_price * (1.0 - _TIGHT)
    stretched = (task.keep_max < 1.0) & fastest & (energy * inverse <= share)
    rate = answer.price * inverse
    if stretched.any():
        rate = np.where(stretched, np.maximum((share - energy * inverse) / units.u_min, rate), rate)
    kept = task.weight * keep
    return Allocation(
        feasible=answer.feasible,
        keep=keep,
        x=answer.point.x,
        s=answer.point.s,
        value=(kept * share).sum(axis=-1),
        energy=(kept * energy).sum(axis=-1),
        worth=np.divide(1.0, answer.inverse, out=np.full(budget.shape, np.inf), where=answer.inverse > 0.0),
        time_value=np.where(selected, rate, 0.0),
        _task=task,
    )


@dataclass(frozen=True, eq=False)
class _Task:
    """The problems of one call, with what follows at once from their deadlines."""

    units: Units
    time: Array
    """t, at least what the most pruning needs; u_min where there is no problem to solve."""
    share: Array
    weight: Array
    """r where selected, else 0."""
    selected: Bools
    budget: Array
    enough: Bools
    in_time: Bools
    """(B,): all deadlines can be kept."""
    keep_max: Array

    @classmethod
    def of(cls, units: Units, time: Array, share: Array, rounds: Array, selected: Bools, budget: Array) -> "_Task":
        needed = units.keep_min * units.u_min
        enough = (time >= needed * (1.0 - _TIGHT)) | ~selected
        time = np.where(enough & selected, np.maximum(time, needed), units.u_min)
        keep_max = np.minimum(1.0, time / units.u_min)
        in_time = np.asarray(enough.all(axis=-1))
        return cls(units, time, share, np.where(selected, rounds, 0.0), selected, budget, enough, in_time, keep_max)

    def take(self, rows: npt.NDArray[np.intp]) -> "_Task":
        """Some of the problems."""
        batch = len(self.budget)
        own = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "units"}
        return _Task(self.units.pick(rows, batch), **own)

    @cached_property
    def ends(self) -> "_Ends":
        """The price of time at the most and at the least pruning, where the client's range of m ends."""
        units, time = self.units, self.time
        prices = units.price_of_time(np.stack([time / units.keep_min, np.maximum(time, units.u_min)]))
        low, high = prices[0], np.where(self.keep_max < 1.0, units.full_price, prices[1])
        both = units.at(np.stack([low, high]))
        at_low, at_high = (Point(*(part[end] for part in both)) for end in (0, 1))
        return _Ends(
            low, high, at_low, at_high,
            worth_low=(at_low.energy + low * at_low.time) / self.share,
            worth_high=(at_high.energy + high * at_high.time) / self.share,
            least=(self.weight * units.keep_min * at_low.energy).sum(axis=-1),
            most=(self.weight * self.keep_max * at_high.energy).sum(axis=-1),
        )


class _Answer(NamedTuple):
    """Where every instance works, (B, I), and 1/ζ, (B,): 0 where energy is no object."""

    feasible: Bools
    inverse: Array
    price: Array
    point: Point

    def put(self, rows: npt.NDArray[np.intp], other: "_Answer") -> "_Answer":
        """With these rows from the other."""

        def both(mine: Any, new: Any) -> Any:
            whole = np.array(np.broadcast_to(mine, (len(self.feasible), *new.shape[1:])))
            whole[rows] = new
            return whole

        feasible, inverse, price = (both(mine, new) for mine, new in zip(self[:3], other[:3], strict=True))
        return _Answer(feasible, inverse, price, Point(*map(both, self.point, other.point)))


_STEPS = 12
_ARRIVED = 1e-6
"""Newton's steps square the distance (in ln π), so the next is below rounding."""


def _newton(task: _Task) -> tuple[Bools, _Answer]:
    """Newton's steps in ln π and ln ζ at once, from a good guess; says which problems they solved.

    An instance wants ln G(π) = ln(ζ/k), unless that takes its m beyond an end, where ln u(π) = ln(t/m) is wanted
    instead: the step goes to the prediction of the first, clipped to those of the others. ln ζ is where the energy,
    to first order in these steps, is the budget.
    """
    units, time, share, weight = task.units, task.time, task.share, task.weight
    log_full = np.log(units.full_price)
    log_time, log_share = np.log(time), np.log(share)
    log_keep = np.log(units.keep_min)
    # The guess: in the middle of the range, all of the time but the least that the other needs goes to one.
    middle = np.maximum(time / np.sqrt(units.keep_min * task.keep_max), units.u_min)
    z = np.minimum(np.log(units.price_below(middle)), log_full)
    log_worth = np.full(task.budget.shape, np.nan)
    with np.errstate(all="ignore"):  # whatever goes astray is not solved
        for number in range(_STEPS):
            price = np.exp(z)
            point = units.at(price)
            model = point.energy + price * point.time
            steep = units.steepness(price, point)
            to_model = price * point.time / model
            to_time = np.maximum(steep / point.time, 1e-200)  # 0 at all maxima: from there both ends are far
            each = weight * time * point.energy / point.time
            rise = weight * time * steep * model / (point.time * point.time)
            energy = each.sum(axis=-1)
            off = np.log(model) - log_share
            if number == 0:
                log_worth = (off * each).sum(axis=-1) / energy
            missing = np.log(point.time) - log_time
            least = (missing + log_keep) / to_time
            most = np.minimum(np.where(task.keep_max < 1.0, np.inf, missing / to_time), log_full - z)
            free = (log_worth[:, None] - off) / to_model
            step = np.minimum(np.maximum(free, least), most)
            moves = np.where(step == free, rise / to_model, 0.0).sum(axis=-1)
            change = (energy * np.log(task.budget / energy) - (rise * step).sum(axis=-1)) / moves
            change = np.minimum(np.maximum(change, -2.0), 2.0)
            log_worth = log_worth + change
            step = np.minimum(np.maximum(free + change[:, None] / to_model, least), most)
            z = z + np.minimum(np.maximum(step, -3.0), 3.0)
            far = np.where(task.selected, np.abs(step), 0.0).max(axis=-1)
            if not (far > _ARRIVED).any():
                break
        price = np.where(z < log_full, np.exp(z), units.full_price)
        point = units.at(price)
        energy = (weight * time * point.energy / point.time).sum(axis=-1)
        solved = task.in_time & (far <= _ARRIVED) & (np.abs(energy - task.budget) <= 1e-12 * task.budget)
        keep = time / point.time
        inside = (keep >= units.keep_min * (1.0 - _TIGHT)) & (keep <= task.keep_max * (1.0 + _TIGHT)) | ~task.selected
        solved &= inside.all(axis=-1) & (moves > 0.0)  # where nobody can move, ζ is anything
    return solved, _Answer(task.in_time, np.exp(-log_worth), price, point)


def _search(task: _Task) -> _Answer:
    """By ends and a safeguarded search of ζ between them: whatever the problem."""
    ends = task.ends
    feasible = task.in_time & (ends.least <= task.budget * (1.0 + _TIGHT))
    search = feasible & (ends.most > task.budget * (1.0 + _TIGHT))  # below, who costs next to nothing would be pruned
    if not search.any():
        return _Answer(feasible, np.zeros(task.budget.shape), ends.high, ends.at_high)
    worth, price, point = _spend(task, search)
    return _Answer(feasible, np.where(search, 1.0 / worth, 0.0), price, point)


@dataclass(frozen=True, eq=False)
class _Ends:
    """Where each instance's range of m ends: price of time, point and ζ at the most and at the least pruning."""

    low: Array
    high: Array
    at_low: Point
    at_high: Point
    worth_low: Array
    worth_high: Array
    least: Array
    """Energy at the most pruning, J, (B,)."""
    most: Array


def _spend(task: _Task, search: Bools) -> tuple[Array, Array, Point]:
    """ζ at which the energy is used up, by safeguarded Newton steps on ln E(ζ); dE_i/dg = r·t·(−u′)·G/u³.

    Problems outside ``search`` (all energy is used at the least pruning, or none can be) are held at the least pruning.
    """
    units, time, share, weight, budget, ends = (
        task.units, task.time, task.share, task.weight, task.budget, task.ends)
    counted = weight > 0.0
    low = np.where(counted, ends.worth_low, np.inf).min(axis=-1)
    high = np.where(counted, ends.worth_high, 0.0).max(axis=-1)
    low, high = np.log(np.where(search, low, 1.0)), np.log(np.where(search, high, 1.0))
    log_worth = high
    price, point = ends.high, ends.at_high
    under, over = (_Spending.at(weight, time, at) for at in (ends.at_low, point))
    for _ in range(100):
        worth = np.where(search, np.exp(log_worth), np.inf)[:, None]
        target = np.clip(worth, ends.worth_low, ends.worth_high) * share
        # Beyond the ends of its range an instance stays there, however flat its G.
        bottom = np.where(worth >= ends.worth_high, ends.high, ends.low)
        top = np.where(worth <= ends.worth_low, ends.low, ends.high)
        price, point = units.price_of_model(target, bottom, top, price, point)
        now = _Spending.at(weight, time, point)
        error = np.where(search, np.log(now.energy / budget), 0.0)
        if np.all(np.abs(error) <= 1e-13):
            break
        under, over = under.where(error < 0.0, now), over.where(error >= 0.0, now)
        low, high = np.where(error < 0.0, log_worth, low), np.where(error < 0.0, high, log_worth)
        inside = (worth > ends.worth_low) & (worth < ends.worth_high)
        model = point.energy + price * point.time
        slope = np.where(inside, weight * time * units.steepness(price, point) * model / price, 0.0)
        slope = (slope * target / point.time**3).sum(axis=-1) / now.energy
        with np.errstate(divide="ignore", invalid="ignore"):
            trial = log_worth - error / slope
        stalled = (np.abs(trial - log_worth) <= 5e-14) & (np.abs(error) > 1e-12)  # as where G is all but flat
        trial = np.where((trial > low) & (trial < high) & ~stalled, trial, 0.5 * (low + high))
        moved = np.where(search, np.abs(trial - log_worth), 0.0)
        log_worth = trial
        if moved.max() <= 5e-14:
            break
    off = np.abs(error) > 1e-12
    if off.any():
        # Where a fixed frequency or power costs almost all, G is all but flat and m jumps with ζ's last digit: the
        # optimum lies between the last two points, and the energy, convex in m, is at most the mean of theirs.
        part = np.where(off, (budget - under.energy) / np.where(off, over.energy - under.energy, 1.0), 0.0)
        keep = under.keep + part[:, None] * (over.keep - under.keep)
        price = np.where(off[:, None], units.price_of_time(time / keep), price)
        point = units.at(price)
    return np.where(search, np.exp(log_worth), np.inf), price, point


class _Spending(NamedTuple):
    """What is kept, m (B, I), and what that takes, J (B,)."""

    keep: Array
    energy: Array

    @classmethod
    def at(cls, weight: Array, time: Array, point: Point) -> "_Spending":
        keep = time / point.time
        return cls(keep, (weight * keep * point.energy).sum(axis=-1))

    def where(self, rows: Bools, other: "_Spending") -> "_Spending":
        """The other's where ``rows``, (B,)."""
        return _Spending(np.where(rows[:, None], other.keep, self.keep), np.where(rows, other.energy, self.energy))
