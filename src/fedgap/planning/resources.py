"""P1 for fixed selections and deadlines: how much each client keeps of the model, and at which frequency and power.

What is left to solve is

    max Σ_i r_i·w(m_i)/k_i    s.t.   Σ_i r_i·m_i·ψ_i(t_i/m_i) ≤ E,   keep_min ≤ m_i ≤ 1,   t_i/m_i ≥ u_min,

over *instances* i, which are pairs of a segment and a client. m_i is the share of the model that is kept, t_i the
round's deadline minus the download, r_i the segment's rounds, k_i its number of clients, ψ_i the energy curve of
:mod:`fedgap.planning.client_curves`, and w(m) = m unless there is a cost curve. The problem is convex with one
constraint that couples the instances, and therefore has one multiplier. If ζ is the worth of a unit of w in joules, the
price of time π of an instance solves G(π) = w′·ζ/k, clipped to its range, and ζ is such that the energy is used up.
``allocate`` solves a whole batch of such problems exactly; :mod:`fedgap.planning.fixed_composition` also chooses the
deadlines.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import ClientCurves, OperatingPoint
from fedgap.planning.roots import sign_change
from fedgap.planning.tolerances import KEPT


@dataclass(frozen=True, eq=False)
class Allocation:
    """The optimum of a batch of B problems over I instances. Arrays have shape (B, I) unless another is given."""

    feasible: Bools
    """Whether the deadlines and the energy can be kept, (B,)."""
    keep: Floats
    """m = s(λ), which is 1 − λ without a cost curve; 0 for unselected clients."""
    x: Floats
    """Compute variable of the operating point; see :class:`~fedgap.planning.client_curves.OperatingPoint`."""
    s: Floats
    """Upload variable of the operating point."""
    value: Floats
    """What was maximised, Σ r·w(m)/k, (B,)."""
    energy: Floats
    """Energy for computing and uploading, Σ r·m·ε, J, (B,)."""
    worth: Floats
    """ζ, (B,): the worth of a unit of Σ w(m)/k in joules; infinite if there is energy to spare."""
    time_value: Floats
    """π/ζ: by how much one more second of the instance's deadline raises Σ w(m)/k."""
    _batch: "_Batch"

    @property
    def least_energy(self) -> Floats:
        """The energy Σ r·m·ε at the most pruning, J, (B,); infinite if a deadline cannot be kept."""
        return np.where(self._batch.in_time, self._batch.ends.least, np.inf)

    @property
    def least_price(self) -> Floats:
        """π at the most pruning, W: how many joules one more second would save there."""
        batch = self._batch
        return np.where(batch.selected, np.where(batch.enough, batch.ends.low, np.inf), 0.0)


def allocate(
    curves: ClientCurves, time: Floats, share: Floats, rounds: Floats, selected: Bools, budget: Floats
) -> Allocation:
    """Solve B problems with fixed selections and deadlines.

    Most are solved by a few Newton steps on all optimality conditions at once. Those for which the steps do not
    converge (there is energy to spare, or too little, or a curve is almost flat) are solved by a safeguarded search for
    the multiplier ζ. With minimum clocks and powers or a cost curve, m(ζ) has corners and jumps, and only the search is
    used.

    :param curves: curves of the instances, broadcastable to (B, I).
    :param time: t_i, s, (B, I); :param share: 1/k_i, (B, I); :param rounds: r_i, (B, I);
    :param selected: whether the client takes part in the segment, (B, I).
    :param budget: E, J, (B,), for computing and uploading; without the energy of the broadcasts.
    """
    batch = _Batch.of(curves, time, share, rounds, selected, budget)
    if not curves.plain:
        return _stepwise(batch)
    solved, answer = _newton(batch)
    if not solved.any():
        answer = _search(batch)
    elif not solved.all():
        left = np.flatnonzero(~solved)
        answer = answer.put(left, _search(batch.take(left)))
    keep = np.where(selected, np.clip(batch.time / answer.point.time, curves.keep_min, batch.keep_max), 0.0)
    inverse, energy = answer.inverse[:, None], answer.point.energy
    # A client at full speed that keeps less than the whole model could still use more time. There π follows from
    # G = ε + π·u_min = ζ/k.
    fastest = answer.price >= curves.full_price * (1.0 - KEPT)
    stretched = (batch.keep_max < 1.0) & fastest & (energy * inverse <= share)
    rate = answer.price * inverse
    if stretched.any():
        rate = np.where(stretched, np.maximum((share - energy * inverse) / curves.u_min, rate), rate)
    kept = batch.weight * keep
    return Allocation(
        feasible=answer.feasible,
        keep=keep,
        x=answer.point.x,
        s=answer.point.s,
        value=(kept * share).sum(axis=-1),
        energy=(kept * energy).sum(axis=-1),
        worth=np.divide(1.0, answer.inverse, out=np.full(budget.shape, np.inf), where=answer.inverse > 0.0),
        time_value=np.where(selected, rate, 0.0),
        _batch=batch,
    )


@dataclass(frozen=True, eq=False)
class _Batch:
    """The problems of one call, with the quantities that follow directly from their deadlines."""

    curves: ClientCurves
    time: Floats
    """t, raised to what the most pruning needs. It is u_min for instances that are not selected or cannot be in
    time."""
    share: Floats
    weight: Floats
    """r for selected instances, 0 for others."""
    selected: Bools
    budget: Floats
    enough: Bools
    """Whether the instance can be in time, (B, I)."""
    in_time: Bools
    """Whether all instances of a problem can be in time, (B,)."""
    keep_max: Floats
    """The largest m that is possible within t at full speed, (B, I)."""

    @classmethod
    def of(
        cls, curves: ClientCurves, time: Floats, share: Floats, rounds: Floats, selected: Bools, budget: Floats
    ) -> "_Batch":
        needed = curves.keep_min * curves.u_min
        enough = (time >= needed * (1.0 - KEPT)) | ~selected
        time = np.where(enough & selected, np.maximum(time, needed), curves.u_min)
        keep_max = np.minimum(1.0, time / curves.u_min)
        in_time = np.asarray(enough.all(axis=-1))
        return cls(curves, time, share, np.where(selected, rounds, 0.0), selected, budget, enough, in_time, keep_max)

    def take(self, rows: Ints) -> "_Batch":
        """Return only the problems with these indices."""
        batch = len(self.budget)
        own = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "curves"}
        return _Batch(self.curves.pick(rows, batch), **own)

    @cached_property
    def ends(self) -> "_Ends":
        """The operating points at the most and at the least pruning, which are the ends of an instance's range of m."""
        curves, time = self.curves, self.time
        prices = curves.price_of_time(np.stack([time / curves.keep_min, np.maximum(time, curves.u_min)]))
        low, high = prices[0], np.where(self.keep_max < 1.0, curves.full_price, prices[1])
        both = curves.at(np.stack([low, high]))
        at_low, at_high = (OperatingPoint(*(part[end] for part in both)) for end in (0, 1))
        return _Ends(
            low, high, at_low, at_high,
            worth_low=(at_low.energy + low * at_low.time) / self.share,
            worth_high=(at_high.energy + high * at_high.time) / self.share,
            least=(self.weight * curves.keep_min * at_low.energy).sum(axis=-1),
            most=(self.weight * self.keep_max * at_high.energy).sum(axis=-1),
        )


class _Answer(NamedTuple):
    """The operating point of every instance, (B, I), and 1/ζ, (B,), which is 0 if there is energy to spare."""

    feasible: Bools
    inverse: Floats
    price: Floats
    point: OperatingPoint

    def put(self, rows: Ints, other: "_Answer") -> "_Answer":
        """Return this answer with the problems ``rows`` replaced by those of ``other``."""

        def both(mine: Any, new: Any) -> Any:
            whole = np.array(np.broadcast_to(mine, (len(self.feasible), *new.shape[1:])))
            whole[rows] = new
            return whole

        feasible, inverse, price = (both(mine, new) for mine, new in zip(self[:3], other[:3], strict=True))
        return _Answer(feasible, inverse, price, OperatingPoint(*map(both, self.point, other.point)))


_CLOSE = 1e-13
"""The search for ζ ends when the energy differs from the budget by at most this share."""
_JUMP = 1e-11
"""If m jumps at some ζ, the search ends when ln ζ is known to this width. The value is then exact to about this
share."""


def _stepwise(batch: _Batch) -> Allocation:
    """Solve problems in which m(ζ) has corners and jumps, by a safeguarded search for ζ.

    If the energy jumps past the budget E at some ζ, it is linear in m between the two sides of the jump, and an m
    between them uses up the budget. For sides ζ₁ < ζ₂ with energy E₁ at ζ₁, weak duality at ζ₁ shows that the value of
    this m is at most (E − E₁)·(1/ζ₁ − 1/ζ₂) below the optimum.
    """
    curves, time, share, ends = batch.curves, batch.time, batch.share, batch.ends
    floor, knots = 0.5 * ends.low, curves.knots(time)

    def point_of(keep: Floats) -> tuple[Floats, OperatingPoint]:
        price = curves.price_of_time(np.maximum(time / keep, curves.u_min))
        return price, curves.at(price)

    feasible = batch.in_time & (ends.least <= batch.budget * (1.0 + KEPT))
    search = feasible & (ends.most > batch.budget * (1.0 + KEPT))
    under = _Spending(np.broadcast_to(curves.keep_min, time.shape), ends.least)
    over = _Spending(batch.keep_max, ends.most)

    def excess(log_worth: Floats) -> Floats:
        """Return ln(energy/budget) at ζ, and remember the allocation as the side of a possible jump."""
        nonlocal under, over
        keep = curves.kept_between(knots, time, share, np.exp(-log_worth)[:, None], floor)
        keep = np.minimum(keep, batch.keep_max)
        now = _Spending(keep, (batch.weight * keep * point_of(keep)[1].energy).sum(axis=-1))
        rich = now.energy > batch.budget
        under, over = under.where(~rich, now), over.where(rich, now)
        return np.where(search, np.log(now.energy / np.where(search, batch.budget, 1.0)), 0.0)

    inverse = np.zeros(search.shape)
    if search.any():
        slopes = [piece.slope for piece in curves.pieces]
        counted = batch.weight > 0.0
        least = np.where(counted, ends.worth_low, np.inf).min(axis=-1) / max(slopes)
        most = np.where(counted, ends.worth_high, 0.0).max(axis=-1) / min(slopes)
        low, high = (np.log(np.where(search, worth, 1.0)) for worth in (0.5 * least, 2.0 * most))
        at_ends = (np.log(np.where(search, energy / batch.budget, 1.0)) for energy in (ends.least, ends.most))
        low, high = sign_change(excess, low, high, *at_ends, width=_JUMP, met=_CLOSE)
        inverse = np.where(search, np.exp(-0.5 * (low + high)), 0.0)
    room = over.energy - under.energy
    part = np.divide(batch.budget - under.energy, room, out=np.zeros(len(room)), where=room > 0.0)
    mixed = under.keep + np.clip(part, 0.0, 1.0)[:, None] * (over.keep - under.keep)
    keep = np.where(search[:, None], mixed, batch.keep_max)
    price, point = point_of(keep)
    rate = curves.rate(keep, price * inverse[:, None], curves.balances(share, inverse[:, None], floor))
    kept = np.where(batch.selected, keep, 0.0)
    return Allocation(
        feasible=feasible,
        keep=kept,
        x=point.x,
        s=point.s,
        value=(batch.weight * curves.unpruned(keep) * share).sum(axis=-1),
        energy=(batch.weight * kept * point.energy).sum(axis=-1),
        worth=np.divide(1.0, inverse, out=np.full(inverse.shape, np.inf), where=inverse > 0.0),
        time_value=np.where(batch.selected, rate, 0.0),
        _batch=batch,
    )


_STEPS = 12
_ARRIVED = 1e-6
"""Newton's method ends after a step in ln π below this. The next step would be its square, below rounding errors."""


def _newton(batch: _Batch) -> tuple[Bools, _Answer]:
    """Solve by Newton's method in ln π and ln ζ at once; return which problems were solved, and the solutions.

    For an instance inside its range of m, ln G(π) = ln(ζ/k) must hold. At an end of the range, ln u(π) = ln(t/m) must
    hold instead. A step goes to where the first equation would hold to first order, clipped to where the second would
    hold at both ends. ln ζ is chosen such that, to first order in these steps, the energy equals the budget.
    """
    curves, time, share, weight = batch.curves, batch.time, batch.share, batch.weight
    log_full = np.log(curves.full_price)
    log_time, log_share = np.log(time), np.log(share)
    log_keep = np.log(curves.keep_min)
    # The first guess for π is a lower estimate at the middle of the range of m.
    middle = np.maximum(time / np.sqrt(curves.keep_min * batch.keep_max), curves.u_min)
    z = np.minimum(np.log(curves.price_below(middle)), log_full)
    log_worth = np.full(batch.budget.shape, np.nan)
    with np.errstate(all="ignore"):  # problems in which this fails are left to the search
        for number in range(_STEPS):
            price = np.exp(z)
            point = curves.at(price)
            model = point.energy + price * point.time
            steep = curves.steepness(price, point)
            to_model = price * point.time / model
            to_time = np.maximum(steep / point.time, 1e-200)  # it may be 0 at full speed, and is a divisor below
            each = weight * time * point.energy / point.time
            rise = weight * time * steep * model / (point.time * point.time)
            energy = each.sum(axis=-1)
            off = np.log(model) - log_share
            if number == 0:
                log_worth = (off * each).sum(axis=-1) / energy
            missing = np.log(point.time) - log_time
            least = (missing + log_keep) / to_time
            most = np.minimum(np.where(batch.keep_max < 1.0, np.inf, missing / to_time), log_full - z)
            free = (log_worth[:, None] - off) / to_model
            step = np.minimum(np.maximum(free, least), most)
            moves = np.where(step == free, rise / to_model, 0.0).sum(axis=-1)
            change = (energy * np.log(batch.budget / energy) - (rise * step).sum(axis=-1)) / moves
            change = np.minimum(np.maximum(change, -2.0), 2.0)
            log_worth = log_worth + change
            step = np.minimum(np.maximum(free + change[:, None] / to_model, least), most)
            z = z + np.minimum(np.maximum(step, -3.0), 3.0)
            far = np.where(batch.selected, np.abs(step), 0.0).max(axis=-1)
            if not (far > _ARRIVED).any():
                break
        price = np.where(z < log_full, np.exp(z), curves.full_price)
        point = curves.at(price)
        energy = (weight * time * point.energy / point.time).sum(axis=-1)
        solved = batch.in_time & (far <= _ARRIVED) & (np.abs(energy - batch.budget) <= 1e-12 * batch.budget)
        keep = time / point.time
        inside = (keep >= curves.keep_min * (1.0 - KEPT)) & (keep <= batch.keep_max * (1.0 + KEPT)) | ~batch.selected
        solved &= inside.all(axis=-1) & (moves > 0.0)  # if all instances are at an end of their range, ζ is not defined
    return solved, _Answer(batch.in_time, np.exp(-log_worth), price, point)


def _search(batch: _Batch) -> _Answer:
    """Solve any problem without corners by a safeguarded search for ζ between the ends of its range."""
    ends = batch.ends
    feasible = batch.in_time & (ends.least <= batch.budget * (1.0 + KEPT))
    search = feasible & (ends.most > batch.budget * (1.0 + KEPT))  # otherwise the budget allows the least pruning
    if not search.any():
        return _Answer(feasible, np.zeros(batch.budget.shape), ends.high, ends.at_high)
    worth, price, point = _spend(batch, search)
    return _Answer(feasible, np.where(search, 1.0 / worth, 0.0), price, point)


@dataclass(frozen=True, eq=False)
class _Ends:
    """Price of time, operating point and ζ of each instance at the most (low) and at the least pruning (high)."""

    low: Floats
    high: Floats
    at_low: OperatingPoint
    at_high: OperatingPoint
    worth_low: Floats
    worth_high: Floats
    least: Floats
    """Energy of a problem at the most pruning, J, (B,)."""
    most: Floats
    """Energy of a problem at the least pruning, J, (B,)."""


def _spend(batch: _Batch, search: Bools) -> tuple[Floats, Floats, OperatingPoint]:
    """Find the ζ at which the energy is used up, by safeguarded Newton steps on ln E(ζ), with dE_i/dg = r·t·(−u′)·G/u³.

    Problems outside ``search``, which are infeasible or have energy to spare, are kept at the least pruning. Returns
    ζ (B,), and the prices of time and operating points of the instances (B, I).
    """
    curves, time, share, weight, budget, ends = (
        batch.curves, batch.time, batch.share, batch.weight, batch.budget, batch.ends)
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
        # An instance that ζ would take beyond an end of its range stays at that end, even if its G is flat.
        bottom = np.where(worth >= ends.worth_high, ends.high, ends.low)
        top = np.where(worth <= ends.worth_low, ends.low, ends.high)
        price, point = curves.price_of_model(target, bottom, top, price, point)
        now = _Spending.at(weight, time, point)
        error = np.where(search, np.log(now.energy / budget), 0.0)
        if np.all(np.abs(error) <= 1e-13):
            break
        under, over = under.where(error < 0.0, now), over.where(error >= 0.0, now)
        low, high = np.where(error < 0.0, log_worth, low), np.where(error < 0.0, high, log_worth)
        inside = (worth > ends.worth_low) & (worth < ends.worth_high)
        model = point.energy + price * point.time
        slope = np.where(inside, weight * time * curves.steepness(price, point) * model / price, 0.0)
        slope = (slope * target / point.time**3).sum(axis=-1) / now.energy
        with np.errstate(divide="ignore", invalid="ignore"):
            trial = log_worth - error / slope
        stalled = (np.abs(trial - log_worth) <= 5e-14) & (np.abs(error) > 1e-12)  # happens if G is almost flat
        trial = np.where((trial > low) & (trial < high) & ~stalled, trial, 0.5 * (low + high))
        moved = np.where(search, np.abs(trial - log_worth), 0.0)
        log_worth = trial
        if moved.max() <= 5e-14:
            break
    off = np.abs(error) > 1e-12
    if off.any():
        # If almost all energy is spent at a fixed frequency or power, G is almost flat, and m jumps with the last digit
        # of ζ. The optimum is then between the last two points. As the energy is convex in m, it does not exceed the
        # budget between them.
        part = np.where(off, (budget - under.energy) / np.where(off, over.energy - under.energy, 1.0), 0.0)
        keep = under.keep + part[:, None] * (over.keep - under.keep)
        price = np.where(off[:, None], curves.price_of_time(time / keep), price)
        point = curves.at(price)
    return np.where(search, np.exp(log_worth), np.inf), price, point


class _Spending(NamedTuple):
    """An allocation: the kept share m (B, I), and the energy that it needs, J (B,)."""

    keep: Floats
    energy: Floats

    @classmethod
    def at(cls, weight: Floats, time: Floats, point: OperatingPoint) -> "_Spending":
        keep = time / point.time
        return cls(keep, (weight * keep * point.energy).sum(axis=-1))

    def where(self, rows: Bools, other: "_Spending") -> "_Spending":
        """Return this allocation, with that of ``other`` for the problems in ``rows``, (B,)."""
        return _Spending(np.where(rows[:, None], other.keep, self.keep), np.where(rows, other.energy, self.energy))
