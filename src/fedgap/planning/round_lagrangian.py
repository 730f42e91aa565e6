"""The Lagrangian of a round: if a joule costs μ and a second ν, which selection and deadline cost least?

    L_A(μ, ν) = c_A + min_d { ν·d + μ·E_bc + Σ_{n∈A} v_n(d) },
    v_n(d) = min_m γ(1 − w(m))/k + μ·m·ψ_n((d − δ_n)/m) + μ·P_n·d

A is a selection of k clients, d the deadline, and v_n(d) what client n contributes. c_A is the objective's cost of the
selection (for θ: R(β + γ₁Φ²)/k), γ the objective's weight of pruning (for θ: R·γ₂), δ_n the time of the download, E_bc
the energy of the broadcast, and P_n the idle power. m is the share of the full model's cost that client n has after
pruning, and w(m) the share of the model that it then keeps: m = w(m) = 1 − λ unless there is a cost curve. ψ, its price
of time π, and G are those of :mod:`fedgap.planning.client_curves`.

v_n is convex in d and has a closed form on each of several intervals of d. On these the client keeps the whole model,
or as little as it may, or m is at a knot of w, or the client works at the price π* with G(π*) = w′·γ/(kμ), where v_n is
linear in d. min_A L_A gives a lower bound on P1 (:mod:`fedgap.planning.exact`). The A and d that attain it are the next
column of the linear program.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import Balance, ClientCurves, Piece
from fedgap.planning.task import Task
from fedgap.planning.tolerances import KEPT, TANGENTS_MET


@dataclass(frozen=True, eq=False)
class Columns:
    """Candidate rounds of a plan: S selections, each with a deadline; arrays have shape (S,), ``selected`` (S, N)."""

    selected: Bools
    cost: Floats
    """The objective's cost of the round: c_A + γ·mean λ."""
    energy: Floats
    """Energy of the round, including the broadcast, J."""
    deadline: Floats
    """Duration of the round, s."""

    @classmethod
    def join(cls, parts: Sequence["Columns"]) -> "Columns":
        """Combine several sets of columns into one."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def take(self, index: Sequence[int]) -> "Columns":
        """Return the columns with these indices."""
        return Columns(self.selected[index], self.cost[index], self.energy[index], self.deadline[index])


class Priced(NamedTuple):
    """An oracle's answer: a valid lower bound on min_A L_A(μ, ν), and the best columns it found."""

    lower_bound: float
    columns: Columns


class Worths:
    """v_n(d) and v_n′(d) of every client on a grid of D deadlines.

    What does not depend on the prices is computed once, when the object is made.
    """

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
        """The price of time if the whole model is kept, and at the low end of each piece of w."""
        self._energy_all = curves.at(self._price_all).energy
        self._energy_low = [piece.low * curves.at(price).energy
                            for piece, price in zip(curves.pieces, self._price_low, strict=True)]
        self.floor = 0.5 * self._price_low[0][-1]
        """A price of time below all that occur on the grid."""
        self._balances: dict[tuple[float, float], tuple[Balance, ...]] = {}

    def for_other_prices(self) -> "Worths":
        """Return a copy that keeps only what does not depend on the prices."""
        other = copy(self)
        other._balances = {}
        return other

    def values(self, gamma_share: float, mu: float, rows: Ints | slice) -> Floats:
        """Return v_n(d) at the deadlines in these rows of the grid, shape (rows, N), with γ/k = ``gamma_share``.

        A client that cannot meet a deadline gets its value at the shortest deadline that it can meet. The caller must
        ignore this value, which ``in_time`` marks with False.
        """
        curves, time = self.curves, self._time[rows]
        value = mu * self._energy_all[rows]
        for i, piece, balance, below, at_low in self._pieces(gamma_share, mu, time):
            pruned = gamma_share * (1.0 - curves.unpruned(piece.low)) + mu * self._energy_low[i][rows]
            inside = gamma_share * piece.intercept - balance.rate * time
            value = np.where(below, np.where(at_low, pruned, inside), value)
        return value + mu * curves.idle * self.grid[rows, None] if curves.idles else value

    def _pieces(self, gamma_share: float, mu: float,
                time: Floats) -> Iterator[tuple[int, Piece, Balance, Bools, Bools]]:
        """Yield the pieces of the cost curve from the last to the first: number, piece, balance, and for each client
        whether its ``time`` is too short for all of the piece, and whether it is too short for any of it."""
        balances = self._balance(gamma_share, mu)
        for i in reversed(range(len(self.curves.pieces))):
            piece, balance = self.curves.pieces[i], balances[i]
            yield i, piece, balance, time < piece.high * balance.time, time <= piece.low * balance.time

    def slopes(self, gamma_share: float, mu: float, rows: Ints | slice) -> Floats:
        """Return the derivatives v_n′(d) for the same arguments as :meth:`values`."""
        curves, time = self.curves, self._time[rows]
        rate = mu * self._price_all[rows]
        for i, _, balance, below, at_low in self._pieces(gamma_share, mu, time):
            # With one more second, a client that barely meets its deadline at full speed could keep more of the model.
            squeezed = np.maximum(mu * self._price_low[i][rows], balance.rate)
            # Where ψ has a corner, the price of time may be above the worth of the last second.
            beyond = np.minimum(rate, balance.rate) if curves.limited else rate
            rate = np.where(below, np.where(at_low, squeezed, balance.rate), beyond)
        return np.asarray(mu * curves.idle - rate if curves.idles else -rate)

    def expect(self, gamma_shares: Floats, mu: float) -> None:
        """Compute the clients' balances at several γ/k in one call, so that :meth:`values` finds them."""
        missing = [share for share in gamma_shares.tolist() if (share, mu) not in self._balances]
        if not missing:
            return
        if any(known[1] != mu for known in self._balances):
            self._balances.clear()  # balances at earlier prices are not needed again
        shape = (len(missing), *self.curves.noise.shape)
        solved = self.curves.balances(np.broadcast_to(np.array(missing)[:, None], shape), mu, self.floor)
        for row, share in enumerate(missing):
            self._balances[share, mu] = tuple(Balance(*(part[row] for part in balance)) for balance in solved)

    def _balance(self, gamma_share: float, mu: float) -> tuple[Balance, ...]:
        self.expect(np.array([gamma_share]), mu)
        return self._balances[gamma_share, mu]


class Refined(NamedTuple):
    """The least L of S selections: lower bounds (S,), values (S,), and the columns that attain them."""

    bound: Floats
    value: Floats
    columns: Columns


class RoundCurve:
    """The exact L of S selections as a function of the deadline."""

    def __init__(
        self, task: Task, curves: ClientCurves, selected: Bools, base: Floats, mu: float | Floats, nu: float,
        floor: Floats,
    ) -> None:
        """:param selected: the selections, (S, N); :param base: c_A of each, (S,);
        :param mu: the price of a joule, one number or one per selection, (S,); :param nu: the price of a second;
        :param floor: a lower bound on the prices of time that occur, (N,)."""
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
        """Return L (S,), L′ (S,) and the columns at these deadlines (S,)."""
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
        """Return the least L for deadlines in [low, high], with a lower bound from tangents.

        The minimum must be in this interval. L is convex, so that two of its tangents meet below it.

        :param met: the search ends when value and bound differ by at most this share.
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
"""The result of :meth:`RoundCurve.at`."""


def _choose(mask: Bools, a: _State, b: _State) -> _State:
    """Return ``a`` for the selections in ``mask``, (S,), and ``b`` for the others."""
    columns = Columns(
        a[2].selected,
        *(np.where(mask, getattr(a[2], key), getattr(b[2], key)) for key in ("cost", "energy", "deadline")),
    )
    return np.where(mask, a[0], b[0]), np.where(mask, a[1], b[1]), columns


def _better(a: _State, b: _State) -> _State:
    """Return for each selection the one of ``a`` and ``b`` with the smaller L."""
    return _choose(a[0] <= b[0], a, b)
