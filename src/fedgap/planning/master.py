"""The linear program over columns, and the loop that prices them."""

from collections.abc import Callable, Sequence

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.linear_program import Optimum, solve_linear
from fedgap.planning.round_lagrangian import Columns, Priced
from fedgap.planning.settings import Progress
from fedgap.planning.tolerances import PROGRAM_KEPT

Pricing = Callable[[float, float, float], Sequence[Priced]]
"""The best rounds of each kind at prices (μ, ν), their bounds within what is allowed, absolutely."""


_ITERATIONS = 300
"""Maximum number of programs; a few dozen are usual."""
_PENALTY = 1e3
"""Penalty for exceeding a budget by its full amount, in units of the most expensive column; raised if it is too
small."""
_MOST_PENALTY = 1e9
_DEAR, _CHEAP = 10.0, 0.1
"""Two initial prices: the whole budget costs this many times the most expensive column."""
_NEARBY = (0.9, 1.1)
"""Multiples of known prices at which the first columns are priced."""
_ROUGH_BOUND = 0.2
"""How far a bound may be below the best round, as a share of the distance between program and bound."""
_STUCK, _PATIENCE = 1e-13, 6
"""Relative gain, and number of programs with less, after which HiGHS's own tolerance has ended progress."""
_UNBOUNDED_STUCK, _UNBOUNDED_PATIENCE = 1e-4, 3
"""The same without a bound, where small gains are not worth it."""


class Master:
    """min Σ w·cost s.t. Σ_{c of kind g} w = share_g, Σ w·energy ≤ E, Σ w·deadline ≤ T, w ≥ 0, over the columns so far.

    All is per round: shares add up to 1, E = E₀/R, T = T₀/R, and the objective is θ − α.
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
        """The last program's (μ, ν)."""
        self.dual_points: list[tuple[float, float]] = []
        self.shortfall = np.inf
        """By which share the budgets are exceeded with the columns so far."""
        self._penalty = 0.0

    @property
    def infeasible(self) -> bool:
        """Whether even fractions of rounds cannot keep the budgets."""
        return self.shortfall > PROGRAM_KEPT

    def add(self, kind: int, columns: Columns) -> None:
        """Columns known from elsewhere."""
        self.columns[kind].append(columns)

    def column(self, kind: int) -> Columns:
        """All columns of a kind so far."""
        merged = Columns.join(self.columns[kind])
        self.columns[kind] = [merged]
        return merged

    def price(self, mu: float, nu: float, *, fine: bool = False) -> None:
        """Add the best rounds at (μ, ν) as columns, and return the bound that they prove.

        Far from the optimum a rough bound is enough; ``fine`` asks for a good one.
        """
        paid = mu * self.energy + nu * self.delay
        bound = -paid
        # What the bound may fall short by, absolutely: the rounds' values contain what the budgets cost at these
        # prices, which may be far above the objective and is taken off again.
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
        """Generate columns until program and bound meet.

        :param start: prices near the optimal ones, if known.
        """
        feasible = all(self.columns)  # columns of a known plan
        self.price(*(start or (0.0, 0.0)))
        scale = max(max(float(np.abs(c.cost).max()) for parts in self.columns for c in parts), 1e-300)
        self._penalty = _PENALTY * scale
        if start is None:
            # Two guesses with a high price for each budget give columns that keep it.
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
            # The program's own tolerance ends progress before ours does where columns are almost parallel.
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
                # A step that did not raise the bound: look between it and the best prices so far as well.
                self.price(0.5 * (mu + self.best_mu), 0.5 * (nu + self.best_nu))
        else:
            self.program()

    @property
    def _met(self) -> bool:
        return self.objective - self.lower_bound <= self.tolerance * abs(self.objective)

    def program(self) -> tuple[float, float]:
        """Solve the program over the columns; returns its prices (μ, ν)."""
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
            # As long as the columns exceed the budgets, minimise only the excess; afterwards no excess is allowed.
            answer = self._solved(np.concatenate([np.zeros(width), np.ones(2)]), limits, 1.0, kinds)
            # HiGHS may return a value slightly below 0; clip it.
            self.shortfall = max(float(answer.value), 0.0) if answer is not None else np.inf
        if not self.infeasible:
            # HiGHS has absolute tolerances: costs go in as what they are above the cheapest, in units of a typical one.
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
