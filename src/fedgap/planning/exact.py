"""P1 solved with a certificate: column generation over rounds, then whole numbers of rounds.

Channels are constant, so a plan is a multiset of rounds; each round is a selection with a deadline, costing joules and
seconds. In fractions of rounds this is a linear program over all such rounds (*columns*): its dual prices (μ, ν) ask an
oracle (:mod:`fedgap.planning.oracles`) for a better round, until none exists. Weak duality gives the lower bound

    θ ≥ α + Σ_g (R_g/R)·min_A L_A(μ, ν) − μ·E₀/R − ν·T₀/R        for every μ, ν ≥ 0,

valid for every plan, time sharing included; g runs over the kinds of rounds (the dense first one, and the others). The
support of the program has at most a few selections; whole numbers of rounds near its weights are composed exactly
(:mod:`fedgap.planning.fixed_composition`), and where few rounds make that coarse, compositions are enumerated.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from fedgap.planning.composition_search import Composition
from fedgap.planning.diagnosis import Cheapest
from fedgap.planning.fixed_composition import Composed, Part, compose
from fedgap.planning.master import Master, Progress
from fedgap.planning.oracles.local_search import Climbed
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.round_kinds import Group, groups_of
from fedgap.planning.schemes import Scheme
from fedgap.planning.whole_rounds import Rounder, composition_of

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


_KICKS = 24
"""Climbs at a plan's own prices from the best selection there with a few clients changed."""
_CLIMBS = 4
"""How often at most that is repeated at the better plan's prices."""
_AGAIN = 3
"""How often at most the program is solved again after such climbs made the plan better."""


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found; ``segments`` is empty where no plan fits the budgets."""

    segments: tuple[Segment, ...]
    lower_bound: float | None
    """On θ − α in the scheme's own objective, over all plans of R rounds."""
    cost: float
    """θ − α of the plan in the scheme's own objective."""
    energy_price: float
    """−∂θ/∂E₀ ≥ 0, 1/J."""
    delay_price: float
    """−∂θ/∂T₀ ≥ 0, 1/s."""
    interrupted: bool = False


def solve(
    problem: Problem, scheme: Scheme, progress: Progress | None = None, *, bounded: bool = True
) -> Solution:
    """The best plan found, with its certificate.

    :param problem: in the scheme's own objective (``no_generalization`` has γ₁ = 0 there).
    :param bounded: whether a bound is asked for where selections are searched.
    """
    nothing = Solution((), None, np.inf, 0.0, 0.0)
    search: _Search | None = None
    interrupted = False
    try:
        if Cheapest(problem, scheme).impossible():
            return nothing
        groups = groups_of(problem, scheme, bounded=bounded)
        if any(not group.oracle.some for group in groups):
            return nothing
        hints = _mean_solution(problem, scheme, groups, progress)
        if hints is not None and hints.interrupted:
            cost = problem.objective(hints.segments).theta - problem.constants.alpha
            return Solution(hints.segments, None, cost, 0.0, 0.0, interrupted=True)
        search = _Search(problem, groups)
        search.run([composition_of(hints.segments, groups)] if hints is not None and hints.segments else [], progress)
    except KeyboardInterrupt:
        interrupted = True
        if search is not None and search.rounder.best is None:
            search.rounder.rescue()
    found = search.rounder.best if search is not None else None
    best = found.plan if found is not None else _cheapest(problem, scheme)
    if best is None:
        if interrupted:
            raise KeyboardInterrupt
        return nothing
    bound = search.rounder.lower_bound if search is not None else -np.inf
    return Solution(
        segments=best.segments,
        lower_bound=bound if np.isfinite(bound) else None,
        cost=best.cost,
        energy_price=best.energy_price,
        delay_price=best.delay_price,
        interrupted=interrupted,
    )


class _Search:
    """Prices, program and rounding of one problem."""

    def __init__(self, problem: Problem, groups: list[Group]) -> None:
        self.master = Master(
            np.array([group.rounds for group in groups]) / problem.rounds,
            problem.energy_j / problem.rounds,
            problem.delay_s / problem.rounds,
            lambda mu, nu, allowed: [group.oracle.price(mu, nu, allowed) for group in groups],
            max(group.oracle.tolerance for group in groups),
        )
        self.groups = groups
        self.rounder = Rounder(problem, groups, self.master)

    def run(self, hints: list[Composition], progress: Progress | None) -> None:
        """Until nothing better is left, or worth looking for."""

        def pricing(what: str, step: int, objective: float, bound: float) -> None:
            # The program's value is of fractions of rounds: no plan yet.
            if progress is not None:
                progress(what, step, self.rounder.best.cost if self.rounder.best else np.inf, bound)

        self.rounder.start(hints)
        self.climb()
        self.master.run(pricing, self.rounder.best_prices)
        if not self.master.infeasible:
            self.rounder.run(progress)
        for _ in range(_AGAIN):
            if not self.climb():
                break
            self.master.run(pricing, self.rounder.best_prices)
            self.rounder.run(progress)

    def climb(self) -> bool:
        """By ``mixture``: look hard for selections at the best plan's own prices; whether they may make it better.

        Each is tried for all rounds, and all become columns of the program, which may mix them.
        """
        oracles = [group.oracle for group in self.groups if isinstance(group.oracle, Climbed)]
        promising = False
        for _ in range(_CLIMBS):
            best, prices = self.rounder.best, self.rounder.best_prices
            if best is None or prices is None or len(oracles) < len(self.groups):
                return False
            mu, nu = prices
            found, value = [], -mu * self.master.energy - nu * self.master.delay
            for kind, oracle in enumerate(oracles):
                columns = oracle.price(mu, nu, kicks=_KICKS if oracle.thorough else 0).columns
                self.master.add(kind, columns)
                for other in oracles:
                    other.learn(columns.selected)
                least = (columns.cost + mu * columns.energy + nu * columns.deadline).min()
                value += float(self.master.shares[kind] * least)
                found.append([row.tobytes() for row in columns.selected[:2]])
            everywhere = [[key] * len(oracles) for key in found[-1]]
            each = [list(keys) for keys in product(*found)]
            self.rounder.try_all(
                tuple((g, key, self.groups[g].rounds) for g, key in enumerate(keys)) for keys in everywhere + each
            )
            promising |= value < best.cost * (1.0 - 1e-5)
            now = self.rounder.best
            if now is None or now.cost >= best.cost * (1.0 - 1e-6):
                break
        self.rounder.hand_over()
        return promising


def _cheapest(problem: Problem, scheme: Scheme) -> Composed | None:
    """Where rounding found no way to keep tight budgets, or no time to: the cheapest plan, if it fits."""
    cheapest = Cheapest(problem, scheme)
    mix = cheapest.fitting()
    if mix is None:
        return None
    units = [cheapest.kinds[0 if dense else -1][1] for dense in mix.dense]
    parts = [Part(*each) for each in zip(units, mix.selected, mix.rounds.astype(int).tolist(), strict=True)]
    return compose(problem, parts)


def _mean_solution(
    problem: Problem, scheme: Scheme, groups: list[Group], progress: Progress | None
) -> Solution | None:
    """For ``mixture`` over a large fleet: the plan by ``mean``, to start from and never to fall behind.

    Its selections also become seeds of the pricing; its bound, which would take most of the time, is of no use. None
    where selections are enumerated anyway.
    """
    climbed = [group.oracle for group in groups if isinstance(group.oracle, Climbed)]
    if not climbed:
        return None
    solution = solve(replace(problem, aggregation="mean"), scheme, progress, bounded=False)
    if solution.segments:
        for oracle in climbed:
            oracle.learn(np.stack([segment.selected for segment in solution.segments]))
    return solution
