"""The Lagrangian of a round: with a joule priced at μ and a second at ν, which selection and deadline cost least?

    L_A(μ, ν) = c_A + min_d { ν·d + μ·E_bc + Σ_{n∈A} v_n(d) },
    v_n(d) = min_m γ(1 − w(m))/k + μ·m·ψ_n((d − δ_n)/m) + μ·P_n·d

with c_A the objective's cost of the selection (θ: R(β + γ₁Φ²)/k), γ its weight of pruning (θ: R·γ₂), δ_n the download,
E_bc the broadcast's joules, P_n the idle power and w(m) = m unless there is a cost curve. v_n is convex in d and known
piecewise: all of the model is kept, or as little as allowed, or what a knot of w has, or the client sits at its own
price π* where G(π*) = w′·γ/(kμ), and v_n is linear. min_A L_A gives a lower bound on P1
(:mod:`fedgap.planning.exact`), and its minimiser is the next column.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import Balance, ClientCurves
from fedgap.planning.task import Task
from fedgap.planning.tolerances import KEPT, TANGENTS_MET


@dataclass(frozen=True, eq=False)
class Columns:
    """Candidate rounds of a plan: S selections, each with a deadline; arrays have shape (S,), ``selected`` (S, N)."""

    selected: Bools
    cost: Floats
    """The objective's cost of the round: c_A + γ·mean λ."""
    energy: Floats
    """J of the round, broadcast included."""
    deadline: Floats
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


class Worths:
    """v_n(d) and v_n′(d) of every client on a grid of deadlines; what does not depend on prices is computed once."""

    def __init__(self, curves: ClientCurves, grid: Floats) -> None:
        self.curves, self.grid = curves, grid
        time = grid[:, None] - curves.overhead
        self.in_time = time >= curves.keep_min * curves.u_min * (1.0 - KEPT)
        """(D, N): whether the client can meet the deadline at all."""
        self._time = np.where(self.in_time, time, curves.keep_min * curves.u_min)
        everything = np.maximum(self._time, curves.u_min)
        knots = [np.maximum(self._time / piece.low, curves.u_min) for piece in curves.pieces[1:]]
        prices = curves.price_of_time(np.stack([everything, self._time / curves.pieces[0].low, *knots]))
        self._price_all, self._price_low = prices[0], prices[1:]
        """The price of time at the whole model, and at the low end of each piece."""
        self._energy_all = curves.at(self._price_all).energy
        self._energy_low = [piece.low * curves.at(price).energy
                            for piece, price in zip(curves.pieces, self._price_low, strict=True)]
        self.floor = 0.5 * self._price_low[0][-1]
        """A price of time below all that occur on the grid."""
        self._balances: dict[tuple[float, float], tuple[Balance, ...]] = {}

    def at(self, gamma_share: float, mu: float, rows: Ints | slice) -> tuple[Floats, Floats]:
        """(v, v′) at some grid points, (rows, N), for selections whose γ/k is ``gamma_share``.

        Clients that cannot meet a deadline have the value of the least one that they can: mask them with ``in_time``.
        """
        curves, time = self.curves, self._time[rows]
        value, rate = mu * self._energy_all[rows], mu * self._price_all[rows]
        balances = self._balance(gamma_share, mu)
        for i in reversed(range(len(curves.pieces))):
            piece, balance = curves.pieces[i], balances[i]
            below, at_low = time < piece.high * balance.time, time <= piece.low * balance.time
            pruned = gamma_share * (1.0 - curves.unpruned(piece.low)) + mu * self._energy_low[i][rows]
            # A client that only just meets the deadline at full speed values the next second as a stretched one does.
            squeezed = np.maximum(mu * self._price_low[i][rows], balance.rate)
            inside = gamma_share * piece.intercept - balance.rate * time
            value = np.where(below, np.where(at_low, pruned, inside), value)
            # Where ψ has a corner the price of its time may be above what the second before was worth.
            beyond = np.minimum(rate, balance.rate) if curves.limited else rate
            rate = np.where(below, np.where(at_low, squeezed, balance.rate), beyond)
        if curves.idles:
            return value + mu * curves.idle * self.grid[rows, None], mu * curves.idle - rate
        return value, -rate

    def expect(self, gamma_shares: Floats, mu: float) -> None:
        """Solve for the clients' own prices at several γ/k in one go."""
        missing = [share for share in gamma_shares.tolist() if (share, mu) not in self._balances]
        if not missing:
            return
        if any(known[1] != mu for known in self._balances):
            self._balances.clear()  # prices change for good from one pricing to the next
        shape = (len(missing), *self.curves.noise.shape)
        solved = self.curves.balances(np.broadcast_to(np.array(missing)[:, None], shape), mu, self.floor)
        for row, share in enumerate(missing):
            self._balances[share, mu] = tuple(Balance(*(part[row] for part in balance)) for balance in solved)

    def _balance(self, gamma_share: float, mu: float) -> tuple[Balance, ...]:
        self.expect(np.array([gamma_share]), mu)
        return self._balances[gamma_share, mu]


class Refined(NamedTuple):
    """The least L of some selections: a lower bound, the value and the rounds that reach it."""

    bound: Floats
    value: Floats
    columns: Columns


class RoundCurve:
    """L of some selections as a function of the deadline, exactly."""

    def __init__(
        self, task: Task, curves: ClientCurves, selected: Bools, base: Floats, mu: float | Floats, nu: float,
        floor: Floats,
    ) -> None:
        """:param mu: the price of a joule, or one of each selection, (S,)."""
        self.curves, self.selected, self.base, self.mu, self.nu = curves, selected, base, mu, nu
        self._client_mu = mu if np.ndim(mu) == 0 else np.asarray(mu)[:, None]
        self.broadcast = task.problem.broadcast_j
        count = selected.sum(axis=-1, keepdims=True)
        gamma_share = np.broadcast_to(task.objective.pruning_weight / count, selected.shape)
        self.balances = curves.balances(gamma_share, self._client_mu, floor)
        self.gamma_share = gamma_share[:, 0]

    def take(self, index: Ints) -> "RoundCurve":
        """The same for some of the selections, each as often as it is named; needs a price of a joule for each."""
        other = copy(self)
        other.selected, other.base, other.mu = self.selected[index], self.base[index], np.asarray(self.mu)[index]
        other._client_mu, other.gamma_share = other.mu[:, None], self.gamma_share[index]
        other.balances = tuple(Balance(*(part[index] for part in balance)) for balance in self.balances)
        return other

    def at(self, deadline: Floats) -> tuple[Floats, Floats, Columns]:
        """L, L′ and the rounds themselves at deadlines (S,)."""
        curves, selected = self.curves, self.selected
        time = np.maximum(deadline[:, None] - curves.overhead, curves.keep_min * curves.u_min)
        keep = curves.kept(time, self.balances)
        per_unit = np.maximum(time / keep, curves.u_min)
        price = curves.price_of_time(per_unit)
        energy = np.where(selected, keep * curves.at(price).energy, 0.0).sum(axis=-1) + self.broadcast
        rate = np.where(selected, curves.rate(keep, self._client_mu * price, self.balances), 0.0).sum(axis=-1)
        if curves.idles:
            awake = curves.awake(selected)
            energy, rate = energy + awake * deadline, rate - self.mu * awake
        pruned = self.gamma_share * np.where(selected, 1.0 - curves.unpruned(keep), 0.0).sum(axis=-1)
        cost = self.base + pruned
        return (cost + self.mu * energy + self.nu * deadline, self.nu - rate, Columns(selected, cost, energy, deadline))

    def minimise(self, low: Floats, high: Floats, met: float = TANGENTS_MET) -> Refined:
        """The least L in [low, high], where it lies as the caller knows, with a lower bound by tangents.

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
        return Refined(np.minimum(bound, best[0]), best[0], best[2])


_State = tuple[Floats, Floats, Columns]


def _choose(mask: Bools, a: _State, b: _State) -> _State:
    columns = Columns(
        a[2].selected,
        *(np.where(mask, getattr(a[2], key), getattr(b[2], key)) for key in ("cost", "energy", "deadline")),
    )
    return np.where(mask, a[0], b[0]), np.where(mask, a[1], b[1]), columns


def _better(a: _State, b: _State) -> _State:
    return _choose(a[0] <= b[0], a, b)
