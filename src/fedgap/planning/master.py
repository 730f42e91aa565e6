"""The linear program over columns (candidate rounds), and the loop that adds columns until it is solved."""

from collections.abc import Callable, Sequence

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.linear_program import Optimum, solve_linear
from fedgap.planning.round_lagrangian import Columns, Priced
from fedgap.planning.settings import Progress
from fedgap.planning.tolerances import PROGRAM_KEPT

Pricing = Callable[[float, float, float], Sequence[Priced]]
"""Function of (μ, ν, allowed) that returns, for each kind of round, the best columns at these prices and a lower bound.
The bound may be below the best column's value by ``allowed``, in units of the objective."""


_ITERATIONS = 300
"""Maximum number of times that the program is solved; a few dozen are usual."""
_PENALTY = 1e3
"""Penalty for exceeding a budget by its full amount, in units of the most expensive column; raised if it is too
small."""
_MOST_PENALTY = 1e9
"""The largest penalty, in the same units."""
_DEAR, _CHEAP = 10.0, 0.1
"""Two initial price levels: the whole budget costs this many times the most expensive column."""
_NEARBY = (0.9, 1.1)
"""Multiples of known prices at which the first columns are generated."""
_ROUGH_BOUND = 0.2
"""How far an oracle's bound may be below its best column, as a share of the gap between program and bound."""
_STUCK, _PATIENCE = 1e-13, 6
"""The loop ends when the relative gain was below the first number this many (second number) times in a row, because
HiGHS's own tolerance then prevents progress."""
_UNBOUNDED_STUCK, _UNBOUNDED_PATIENCE = 1e-4, 3
"""The same if the oracles prove no bound; small gains are then not worth the time."""


class Master:
    """The linear program over the columns so far, and the loop that adds columns.

    It is min Σ w·cost s.t. Σ_{columns of kind g} w = share_g, Σ w·energy ≤ E, Σ w·deadline ≤ T, w ≥ 0. All quantities
    are per round: the shares of the kinds add up to 1, E = E₀/R, T = T₀/R, and the objective is θ − α.
    """

    def __init__(
        self, shares: Floats, energy: float, delay: float, pricing: Pricing, tolerance: float,
        iterations: int = _ITERATIONS,
    ) -> None:
        self.shares, self.energy, self.delay = shares, energy, delay
        self.pricing, self.tolerance, self.iterations = pricing, tolerance, iterations
        self.columns: list[list[Columns]] = [[] for _ in shares]
        self.weights: list[Floats] = []
        self.objective = np.inf
        self.lower_bound = -np.inf
        self.best_mu = self.best_nu = 0.0
        self.prices = (0.0, 0.0)
        """(μ, ν) of the program when it was last solved."""
        self.dual_points: list[tuple[float, float]] = []
        """All prices at which columns were generated."""
        self.shortfall = np.inf
        """Share by which the budgets are at least exceeded with the columns so far; 0 if they can be kept."""
        self._penalty = 0.0

    @property
    def infeasible(self) -> bool:
        """Whether the budgets cannot be kept with the columns so far, even with fractions of rounds."""
        return self.shortfall > PROGRAM_KEPT

    def add(self, kind: int, columns: Columns) -> None:
        """Add columns of a kind of round that are known from elsewhere."""
        self.columns[kind].append(columns)

    def column(self, kind: int) -> Columns:
        """Return all columns of a kind of round so far."""
        merged = Columns.join(self.columns[kind])
        self.columns[kind] = [merged]
        return merged

    def price(self, mu: float, nu: float, *, fine: bool = False) -> None:
        """Let the oracles find the best columns at prices (μ, ν). Add these, and raise the lower bound if the oracles
        prove a higher one.

        :param fine: whether to ask for a tight bound; far from the optimum a rough one is enough.
        """
        paid = mu * self.energy + nu * self.delay
        bound = -paid
        # ``allowed`` is absolute, because the value of a column includes the price of its joules and seconds. These may
        # cost far more than the objective, and are subtracted again as ``paid``.
        allowed = np.inf
        if np.isfinite(self.objective):
            distance = min(self.objective - self.lower_bound, 1.5 * abs(self.objective))
            allowed = max(self.tolerance * abs(self.objective), 0.0 if fine else _ROUGH_BOUND * distance)
        for i, (share, answer) in enumerate(zip(self.shares, self.pricing(mu, nu, allowed), strict=True)):
            bound += share * answer.lower_bound
            self.columns[i].append(answer.columns)
        if bound > self.lower_bound:
            self.lower_bound, self.best_mu, self.best_nu = bound, mu, nu
        self.dual_points.append((mu, nu))

    def run(self, progress: Progress | None = None, start: tuple[float, float] | None = None) -> None:
        """Add columns until the program's value and the lower bound meet.

        :param start: prices near the optimal ones, if known.
        """
        feasible = all(self.columns)  # there are columns of each kind only if a plan is known
        self.price(*(start or (0.0, 0.0)))
        scale = max(max(float(np.abs(c.cost).max()) for parts in self.columns for c in parts), 1e-300)
        self._penalty = _PENALTY * scale
        if start is None:
            # Prices at which one budget is expensive give columns that need little of it.
            self.price(_DEAR * scale / self.energy, _CHEAP * scale / self.delay)
            self.price(_CHEAP * scale / self.energy, _DEAR * scale / self.delay)
        elif not feasible:
            for factor in _NEARBY:
                self.price(factor * start[0], start[1])
                self.price(start[0], factor * start[1])
        stuck, raised = 0, self.lower_bound
        for iteration in range(self.iterations):
            last = self.objective
            mu, nu = self.program()
            if progress is not None:
                progress("pricing", iteration, self.objective, self.lower_bound)
            # If columns are almost parallel, HiGHS's tolerance ends progress before ours does.
            bounded = np.isfinite(self.lower_bound)
            least, patience = (_STUCK, _PATIENCE) if bounded else (_UNBOUNDED_STUCK, _UNBOUNDED_PATIENCE)
            gain = max(last - self.objective, self.lower_bound - raised if np.isfinite(raised) else 0.0)
            raised = self.lower_bound
            stuck = stuck + 1 if gain <= least * abs(self.objective) else 0
            again = (mu, nu) == self.dual_points[-1]
            if again and not self._met:
                self.price(mu, nu, fine=True)
            if self._met or again or stuck >= patience:
                if not self.infeasible or self._penalty >= _MOST_PENALTY * scale:
                    break
                self._penalty *= _PENALTY
                stuck = 0
                continue
            before = self.lower_bound
            self.price(mu, nu)
            if bounded and not self._met and self.lower_bound == before:
                # These prices did not raise the bound: try the mean of them and the best prices so far as well.
                self.price(0.5 * (mu + self.best_mu), 0.5 * (nu + self.best_nu))
        else:
            self.program()

    @property
    def _met(self) -> bool:
        return self.objective - self.lower_bound <= self.tolerance * abs(self.objective)

    def program(self) -> tuple[float, float]:
        """Solve the linear program over the columns so far; return its dual prices (μ, ν)."""
        columns = [self.column(i) for i in range(len(self.shares))]
        sizes = [len(c.cost) for c in columns]
        width = sum(sizes)
        limits = np.zeros((2, width + 2))
        limits[0, :width] = np.concatenate([c.energy for c in columns]) / self.energy
        limits[1, :width] = np.concatenate([c.deadline for c in columns]) / self.delay
        limits[0, -2] = limits[1, -1] = -1.0
        kinds = np.zeros((len(columns), width + 2))
        kinds[:, :width] = np.repeat(np.eye(len(columns)), sizes, axis=1)
        base = np.array([c.cost.min() for c in columns])
        answer, unit = None, self._penalty
        if self.infeasible:
            # While the columns cannot keep the budgets, only the excess is minimised. Afterwards none is allowed.
            answer = self._solved(np.concatenate([np.zeros(width), np.ones(2)]), limits, 1.0, kinds)
            # HiGHS may return a value slightly below 0.
            self.shortfall = max(float(answer.value), 0.0) if answer is not None else np.inf
        if not self.infeasible:
            # HiGHS has absolute tolerances. Costs are therefore given relative to the cheapest, in units of a typical
            # difference.
            above = np.concatenate([c.cost - least for c, least in zip(columns, base, strict=True)])
            typical = np.sort(above[above > 0.0])
            unit = float(typical[[(len(typical) - 1) // 2, len(typical) // 2]].mean()) if len(typical) else 1.0
            room = 1.0 + self.shortfall
            answer = self._solved(above / unit, limits[:, :width], room, kinds[:, :width])
        if answer is None:
            return self.prices
        self.objective = float(self.shares @ base + unit * answer.value)
        self.weights = np.split(answer.weights[:width], np.cumsum(sizes)[:-1])
        mu, nu = answer.prices[:2] * unit / (self.energy, self.delay)
        self.prices = float(mu), float(nu)
        return self.prices

    def _solved(self, costs: Floats, limits: Floats, room: float, kinds: Floats) -> Optimum | None:
        """min costs·w s.t. limits·w ≤ room, kinds·w = shares, w ≥ 0."""
        lower = np.concatenate([np.full(2, -np.inf), self.shares])
        return solve_linear(costs, np.vstack([limits, kinds]), lower, np.concatenate([np.full(2, room), self.shares]))
