"""The Lagrangian of a round: with a joule priced at μ and a second at ν, which selection and deadline cost least?

    L_A(μ, ν) = c_A + min_d { ν·d + μ·E_bc + Σ_{n∈A} v_n(d) },    v_n(d) = min_m γ(1 − m)/k + μ·m·ψ_n((d − δ_n)/m)

with c_A = R(β + γ₁Φ²)/k, γ = R·γ₂, δ_n the download, E_bc the broadcast's joules. v_n is convex in d and known
piecewise: all of the model is kept, or as little as allowed, or the client sits at its own price π* where
G(π*) = γ/(kμ), and v_n is linear. min_A L_A gives a lower bound on P1 (:mod:`fedgap.planning.exact`), and its minimiser
is the next column.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgap.planning.energy_time_curve import Units
from fedgap.planning.problem import Problem

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Columns:
    """Rounds that a plan may be made of: S selections, each with a deadline; arrays (S,) but ``selected`` (S, N)."""

    selected: Bools
    cost: Array
    """R(β + γ₁Φ²)/k + R·γ₂·mean λ: the round's contribution to R·(θ − α)/R."""
    energy: Array
    """J of the round, broadcast included."""
    deadline: Array
    """s."""

    @classmethod
    def join(cls, parts: Sequence["Columns"]) -> "Columns":
        """Several lists of columns as one."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def take(self, index: Sequence[int]) -> "Columns":
        """Some of the columns."""
        return Columns(self.selected[index], self.cost[index], self.energy[index], self.deadline[index])


class Priced(NamedTuple):
    """An oracle's answer: a valid lower bound on min_A L_A(μ, ν), and the best rounds it found."""

    lower_bound: float
    columns: Columns


_MET = 1e-11
"""Relative distance of a round's value to its tangents' meeting point at which its deadline is good enough."""


class _Balance(NamedTuple):
    """Where G(π*) = γ/(kμ): the client's time a unit of model, energy a unit, and μ·π*, the worth of a second."""

    time: Array
    energy: Array
    rate: Array


def balance(units: Units, gamma_share: Array, mu: float, floor: Array) -> _Balance:
    """u(π*), ε(π*) and μπ* with G(π*) = γ/(kμ), for clients (..., N).

    Where the model is worth more than full speed costs, π* follows from G = ε + π·u_min; μπ* stays finite at μ = 0.

    :param gamma_share: γ/k; :param floor: a price below which no client works on the deadlines of interest.
    """
    full = units.full_price
    at_full = units.at(full)
    stretched = gamma_share >= mu * (at_full.energy + full * at_full.time)
    with np.errstate(divide="ignore"):
        worth = np.where(stretched, at_full.energy + full * at_full.time, gamma_share / (mu if mu > 0.0 else 1.0))
    low = np.minimum(floor, full)
    at_low = units.at(low)
    worth = np.maximum(worth, at_low.energy + low * at_low.time)
    start = np.clip(full * worth / (at_full.energy + full * at_full.time), low, full)
    price, point = units.price_of_model(worth, low, full, start, units.at(start))
    rate = np.where(stretched, (gamma_share - mu * at_full.energy) / at_full.time, mu * price)
    return _Balance(point.time, point.energy, rate)


class Worths:
    """v_n(d) and v_n′(d) of every client on a grid of deadlines; what does not depend on prices is computed once."""

    def __init__(self, units: Units, grid: Array) -> None:
        self.units, self.grid = units, grid
        time = grid[:, None] - units.overhead
        self.in_time = time >= units.keep_min * units.u_min * (1.0 - 1e-12)
        """(D, N): whether the client can meet the deadline at all."""
        self._time = np.where(self.in_time, time, units.keep_min * units.u_min)
        everything, least = np.maximum(self._time, units.u_min), self._time / units.keep_min
        self._price_all, self._price_least = units.price_of_time(np.stack([everything, least]))
        self._energy_all = units.at(self._price_all).energy
        self._energy_least = units.keep_min * units.at(self._price_least).energy
        self.floor = 0.5 * self._price_least[-1]
        """A price of time below all that occur on the grid."""
        self._balances: dict[tuple[float, float], _Balance] = {}

    def at(self, gamma_share: float, mu: float, rows: Ints | slice) -> tuple[Array, Array]:
        """(v, v′) at some grid points, (rows, N), for selections whose γ/k is ``gamma_share``.

        Clients that cannot meet a deadline have the value of the least one that they can: mask them with ``in_time``.
        """
        units, time = self.units, self._time[rows]
        own = self._balance(gamma_share, mu)
        everything, little = time >= own.time, time <= units.keep_min * own.time
        pruned = gamma_share * (1.0 - units.keep_min) + mu * self._energy_least[rows]
        value = np.where(
            everything, mu * self._energy_all[rows], np.where(little, pruned, gamma_share - own.rate * time)
        )
        # A client that only just meets the deadline at full speed values the next second as a stretched one does.
        squeezed = np.maximum(mu * self._price_least[rows], own.rate)
        slope = -np.where(everything, mu * self._price_all[rows], np.where(little, squeezed, own.rate))
        return value, slope

    def expect(self, gamma_shares: Array, mu: float) -> None:
        """Solve for the clients' own prices at several γ/k in one go."""
        missing = [share for share in gamma_shares.tolist() if (share, mu) not in self._balances]
        if not missing:
            return
        if any(known[1] != mu for known in self._balances):
            self._balances.clear()  # prices change for good from one pricing to the next
        shape = (len(missing), *self.units.noise.shape)
        solved = balance(self.units, np.broadcast_to(np.array(missing)[:, None], shape), mu, self.floor)
        for row, share in enumerate(missing):
            self._balances[share, mu] = _Balance(*(part[row] for part in solved))

    def _balance(self, gamma_share: float, mu: float) -> _Balance:
        self.expect(np.array([gamma_share]), mu)
        return self._balances[gamma_share, mu]


class Enumerated:
    """Prices an explicit list of selections: all 2^N − 1 of a small fleet, or those that a scheme allows."""

    _GRID = 96
    tolerance = 1e-9

    def __init__(self, problem: Problem, units: Units, selections: Bools, longest_s: float) -> None:
        self.problem = problem
        self.units = units
        shortest = units.shortest(selections)
        base = problem.selection_cost(selections)
        usable = (shortest <= longest_s) & np.isfinite(base)
        order = np.argsort(selections[usable].sum(axis=-1), kind="stable")
        self.selections = selections[usable][order]
        self.base = base[usable][order]
        self.shortest = shortest[usable][order]
        self.count = self.selections.sum(axis=-1)
        if not len(self.selections):
            return
        first = float(self.shortest.min())
        spaced = np.geomspace(first, max(longest_s, first), self._GRID)
        starts = units.overhead + units.keep_min * units.u_min
        self.worths = Worths(units, np.unique(np.concatenate([spaced, starts[starts <= longest_s]])))
        self.grid = self.worths.grid
        self._first = np.searchsorted(self.grid, self.shortest * (1.0 - 1e-12))

    @property
    def some(self) -> bool:
        """Whether any selection can meet the longest deadline."""
        return bool(len(self.selections))

    def price(self, mu: float, nu: float, allowed: float = 0.0) -> Priced:
        """Bound every selection on a grid of deadlines by tangents, then refine the best ones exactly."""
        bounds, left = self.bounds(mu, nu)
        order = np.argsort(bounds)
        best, taken = np.inf, 0
        found: list[Columns] = []
        floor = np.inf
        while taken < len(order) and bounds[order[taken]] < best * (1.0 - 1e-13):
            chosen = order[taken : taken + 8]
            chosen = chosen[bounds[chosen] < best]
            taken += max(len(chosen), 1)
            refined = self._refine(chosen, left[chosen], mu, nu)
            floor = min(floor, float(refined.bound.min()))
            best = min(best, float(refined.value.min()))
            found.append(refined.columns)
        rest = bounds[order[taken]] if taken < len(order) else np.inf
        return Priced(min(floor, float(rest)), Columns.join(found))

    def bounds(self, mu: float, nu: float) -> tuple[Array, Ints]:
        """A lower bound on L_A for every selection, and the grid interval [left, left + 1] where its minimum lies."""
        gamma = self.problem.pruning_weight
        bounds = np.empty(len(self.selections))
        left = np.empty(len(self.selections), dtype=np.intp)
        fixed = nu * self.grid + mu * self.problem.broadcast_j
        sizes = np.unique(self.count)
        self.worths.expect(gamma / sizes, mu)
        for k in sizes:
            members = np.flatnonzero(self.count == k)
            value, slope = self.worths.at(gamma / k, mu, slice(None))
            sets = self.selections[members].astype(np.float64)
            # Matrix products over all selections of one size: value and slope at every grid point.
            total = sets @ value.T + fixed
            rise = sets @ slope.T + nu
            first = self._first[members]
            rows = np.arange(len(members))
            outside = np.arange(len(self.grid)) < first[:, None]
            rising = (rise >= 0.0) & ~outside
            right = np.where(rising.any(axis=-1), rising.argmax(axis=-1), len(self.grid) - 1)
            start = np.maximum(right - 1, first)
            interior = rising[rows, right] & (right > first)
            low = total[rows, right]
            d_left, d_right = self.grid[start], self.grid[right]
            f_left, f_right = total[rows, start], total[rows, right]
            g_left, g_right = rise[rows, start], rise[rows, right]
            with np.errstate(divide="ignore", invalid="ignore"):
                where = (f_right - f_left + g_left * d_left - g_right * d_right) / (g_left - g_right)
                meeting = f_left + g_left * (where - d_left)
            meeting = np.where(np.isfinite(meeting), np.minimum(meeting, np.minimum(f_left, f_right)), low)
            bounds[members] = self.base[members] + np.where(interior, meeting, low)
            left[members] = start
        return bounds, left

    def _refine(self, chosen: Ints, left: Ints, mu: float, nu: float) -> "_Refined":
        """Minimise L_A over the deadline for some selections: tangents and bisection in turn, until they meet."""
        some = self.selections[chosen], self.base[chosen]
        curve = RoundCurve(self.problem, self.units, *some, mu, nu, self.worths.floor)
        low, high = self.grid[left], self.grid[np.minimum(left + 1, len(self.grid) - 1)]
        low = np.maximum(low, self.shortest[chosen])
        high = np.maximum(high, low)
        return curve.minimise(low, high)


class _Refined(NamedTuple):
    bound: Array
    value: Array
    columns: Columns


class RoundCurve:
    """L of some selections as a function of the deadline, exactly."""

    def __init__(
        self, problem: Problem, units: Units, selected: Bools, base: Array, mu: float, nu: float, floor: Array
    ) -> None:
        self.units, self.selected, self.base, self.mu, self.nu = units, selected, base, mu, nu
        self.broadcast = problem.broadcast_j
        count = selected.sum(axis=-1, keepdims=True)
        gamma_share = np.broadcast_to(problem.pruning_weight / count, selected.shape)
        self.own = balance(units, gamma_share, mu, floor)
        self.gamma_share = gamma_share[:, 0]

    def at(self, deadline: Array) -> tuple[Array, Array, Columns]:
        """L, L′ and the rounds themselves at deadlines (S,)."""
        units, selected = self.units, self.selected
        time = np.maximum(deadline[:, None] - units.overhead, units.keep_min * units.u_min)
        keep = np.clip(time / self.own.time, units.keep_min, 1.0)
        per_unit = np.maximum(time / keep, units.u_min)
        price = units.price_of_time(per_unit)
        energy = np.where(selected, keep * units.at(price).energy, 0.0).sum(axis=-1) + self.broadcast
        rate = np.where(keep >= 1.0, self.mu * price, self.own.rate)
        rate = np.where(keep <= units.keep_min, np.maximum(self.mu * price, rate), rate)
        rate = np.where(selected, rate, 0.0).sum(axis=-1)
        pruned = self.gamma_share * np.where(selected, 1.0 - keep, 0.0).sum(axis=-1)
        cost = self.base + pruned
        return (
            cost + self.mu * energy + self.nu * deadline,
            self.nu - rate,
            Columns(selected, cost, energy, deadline),
        )

    def minimise(self, low: Array, high: Array, met: float = _MET) -> _Refined:
        """The least L in [low, high], where it lies by the caller's word, with a lower bound by tangents.

        :param met: how close value and bound must be, relatively.
        """
        at_low, at_high = self.at(low), self.at(high)
        best = _better(at_low, at_high)
        bound = np.minimum(at_low[0], at_high[0])
        open_ = (at_low[1] < 0.0) & (at_high[1] > 0.0)
        for step in range(40):
            with np.errstate(divide="ignore", invalid="ignore"):
                (f0, g0, _), (f1, g1, _) = at_low, at_high
                where = (f1 - f0 + g0 * low - g1 * high) / (g0 - g1)
                meeting = f0 + g0 * (where - low)
            sane = open_ & np.isfinite(where) & (where > low) & (where < high)
            bound = np.where(sane, np.minimum(meeting, best[0]), np.where(open_, bound, best[0]))
            if np.all(~open_ | (best[0] - bound <= met * np.abs(best[0])) | (high - low <= 1e-14 * high)):
                break
            trial = np.where(sane & (step % 3 != 2), where, 0.5 * (low + high))
            now = self.at(trial)
            rising = now[1] >= 0.0
            best = _better(best, now)
            at_high = _choose(rising & open_, now, at_high)
            at_low = _choose(~rising & open_, now, at_low)
            high, low = np.where(rising & open_, trial, high), np.where(~rising & open_, trial, low)
        return _Refined(np.minimum(bound, best[0]), best[0], best[2])


_State = tuple[Array, Array, Columns]


def _choose(mask: Bools, a: _State, b: _State) -> _State:
    columns = Columns(
        a[2].selected,
        *(np.where(mask, getattr(a[2], key), getattr(b[2], key)) for key in ("cost", "energy", "deadline")),
    )
    return np.where(mask, a[0], b[0]), np.where(mask, a[1], b[1]), columns


def _better(a: _State, b: _State) -> _State:
    return _choose(a[0] <= b[0], a, b)
