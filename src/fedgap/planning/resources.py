"""P1 for fixed selections: how much each client keeps, at which frequency and power. Exact, and vectorised.

With the selection and each round's deadline d fixed, what is left is

    max Σ_i r_i·m_i/k_i    s.t.   Σ_i r_i·m_i·ψ_i(t_i/m_i) ≤ E,   keep_min ≤ m_i ≤ 1,   t_i/m_i ≥ u_min,

over *instances* i = (segment, client), with t_i = d − download, r_i the segment's rounds, k_i its number of clients.
It is convex with one coupling constraint, hence one multiplier: with ζ the worth of a unit of kept model in joules,
an instance's π solves G(π) = ζ/k clipped to its range, and ζ is where the energy is used up. ``allocate`` does this for
a whole batch of problems at once; :mod:`fedgap.planning.composition` also chooses the deadlines.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgap.planning.units import Point, Units

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
    least_energy: Array
    """(B,): Σ r·m·ε at the most pruning, J."""
    least_price: Array
    """π at the most pruning, W: how much energy a second more would save there."""


def allocate(
    units: Units, time: Array, share: Array, rounds: Array, selected: Bools, budget: Array
) -> Allocation:
    """Solve B fixed-selection, fixed-deadline problems.

    :param units: curves of the instances, broadcastable to (B, I).
    :param time: t_i, s, (B, I); :param share: 1/k_i, (B, I); :param rounds: r_i, (B, I); :param selected: (B, I).
    :param budget: E, J, (B,): for computing and uploading, the broadcasts taken off.
    """
    u_min, keep_min = units.u_min, units.keep_min
    enough = (time >= keep_min * u_min * (1.0 - _TIGHT)) | ~selected
    in_time = enough.all(axis=-1)
    time = np.where(enough & selected, np.maximum(time, keep_min * u_min), u_min)
    weight = np.where(selected, rounds, 0.0)
    # The price of time at the most and at the least pruning, where the client's range of m ends.
    keep_max = np.minimum(1.0, time / u_min)
    ends = units.price_of_time(np.stack([time / keep_min, np.maximum(time, u_min)]))
    low, high = ends[0], np.where(keep_max < 1.0, units.full_price, ends[1])
    both = units.at(np.stack([low, high]))
    at_low, at_high = (Point(*(part[end] for part in both)) for end in (0, 1))
    worth_low = (at_low.energy + low * at_low.time) / share
    worth_high = (at_high.energy + high * at_high.time) / share
    least = (weight * keep_min * at_low.energy).sum(axis=-1)
    most = (weight * keep_max * at_high.energy).sum(axis=-1)
    feasible = in_time & (least <= budget * (1.0 + _TIGHT))
    rich = most <= budget

    inverse = np.zeros(budget.shape)  # 1/ζ: 0 where energy is no object
    price, point = high, at_high
    search = feasible & ~rich
    if search.any():
        bounds = _Ends(low, high, at_low, at_high, worth_low, worth_high)
        worth, price, point = _spend(units, time, share, weight, budget, bounds, search)
        inverse = np.where(search, 1.0 / worth, 0.0)
    keep = np.where(selected, np.clip(time / point.time, keep_min, keep_max), 0.0)
    # A client that cannot work faster still has a use for time: there π follows from G = ε + π·u_min = ζ/k.
    stretched = (keep_max < 1.0) & (worth_high * inverse[:, None] <= 1.0)
    rate = np.where(stretched, (share - point.energy * inverse[:, None]) / u_min, price * inverse[:, None])
    return Allocation(
        feasible=feasible,
        keep=keep,
        x=point.x,
        s=point.s,
        value=(weight * keep * share).sum(axis=-1),
        energy=(weight * keep * point.energy).sum(axis=-1),
        worth=np.divide(1.0, inverse, out=np.full(inverse.shape, np.inf), where=inverse > 0.0),
        time_value=np.where(selected, rate, 0.0),
        least_energy=np.where(in_time, least, np.inf),
        least_price=np.where(selected, np.where(enough, low, np.inf), 0.0),
    )


@dataclass(frozen=True, eq=False)
class _Ends:
    """Where each instance's range of m ends: price of time, point and ζ at the most and at the least pruning."""

    low: Array
    high: Array
    at_low: Point
    at_high: Point
    worth_low: Array
    worth_high: Array


def _spend(
    units: Units, time: Array, share: Array, weight: Array, budget: Array, ends: _Ends, search: Bools
) -> tuple[Array, Array, Point]:
    """ζ at which the energy is used up, by safeguarded Newton steps on ln E(ζ); dE_i/dg = r·t·(−u′)·G/u³.

    Problems outside ``search`` (all energy is used at the least pruning, or none can be) are held at the least pruning.
    """
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
