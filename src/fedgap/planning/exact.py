"""P1 solved with a certificate: column generation over rounds, then whole numbers of rounds.

Channels are constant, so a plan is a multiset of rounds; each round is a selection with a deadline, costing joules and
seconds. In fractions of rounds this is a linear program over all such rounds (*columns*): its dual prices (μ, ν) ask an
oracle (:mod:`fedgap.planning.oracles`) for a better round, until none exists. Weak duality gives the lower bound

    θ ≥ α + Σ_g (R_g/R)·min_A L_A(μ, ν) − μ·E₀/R − ν·T₀/R        for every μ, ν ≥ 0,

valid for every plan, time sharing included; g runs over the kinds of rounds (the dense first one, and the others). The
support of the program has at most a few selections; whole numbers of rounds near its weights are composed exactly
(:mod:`fedgap.planning.fixed_composition`), and where few rounds make that coarse, compositions are enumerated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from fedgap.planning.composition import Composition, Part
from fedgap.planning.diagnosis import Cheapest
from fedgap.planning.fixed_composition import Composed, compose
from fedgap.planning.incumbent import Incumbent
from fedgap.planning.master import Master
from fedgap.planning.oracles.oracle import Oracle, oracles_for
from fedgap.planning.plan import Segment
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task
from fedgap.planning.thrift import thriftier
from fedgap.planning.whole_rounds import WholeRounds, pricing_of

_CLIMBS = 4
"""How often at most a local search is repeated at the better plan's prices."""
_AGAIN = 3
"""How often at most the program is solved again after such a search made the plan better."""
_PROMISING = 1e-5
"""Relative distance below the best plan at which new selections' value at its prices is worth another program."""
_BETTER = 1e-6
"""Relative gain from which on the search is repeated at the better plan's prices."""


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found; ``segments`` is empty where no plan fits the budgets."""

    segments: tuple[Segment, ...]
    lower_bound: float | None
    """On the objective without its constant (θ − α), over all plans of R rounds."""
    cost: float
    """The objective of the plan, without its constant."""
    energy_price: float
    """−∂θ/∂E₀ ≥ 0, 1/J."""
    delay_price: float
    """−∂θ/∂T₀ ≥ 0, 1/s."""
    interrupted: bool = False


def solve(task: Task, settings: SolverSettings | None = None, known: Sequence[Composition] = ()) -> Solution:
    """The best plan found, with its certificate.

    :param known: compositions to start from.
    """
    settings = settings or SolverSettings()
    nothing = Solution((), None, np.inf, 0.0, 0.0)
    search: _Search | None = None
    interrupted = False
    try:
        if Cheapest(task).impossible():
            return nothing
        oracles = oracles_for(task, bounded=settings.bounded)
        if not all(oracle.usable for oracle in oracles):
            return nothing
        hints = _additive_solution(task, oracles, settings)
        if hints is not None and hints.interrupted:
            cost = task.value(hints.segments) - task.objective.constant
            return Solution(hints.segments, None, cost, 0.0, 0.0, interrupted=True)
        search = _Search(task, oracles, settings)
        additive = [composition_of(hints.segments, task)] if hints is not None and hints.segments else []
        search.run([*known, *additive])
    except KeyboardInterrupt:
        interrupted = True
        if search is not None and search.incumbent.best is None:
            search.whole_rounds.rescue()
    best = search.incumbent.best if search is not None else None
    best = best or _cheapest(task)
    if best is None:
        if interrupted:
            raise KeyboardInterrupt
        return nothing
    bound = search.incumbent.lower_bound if search is not None else -np.inf
    return Solution(
        segments=thriftier(task, best),
        lower_bound=bound if np.isfinite(bound) else None,
        cost=best.cost,
        energy_price=best.energy_price,
        delay_price=best.delay_price,
        interrupted=interrupted,
    )


def composition_of(segments: tuple[Segment, ...], task: Task) -> Composition:
    """A plan's segments as a composition; with two kinds of rounds the first segment is the dense one."""
    last = len(task.kinds) - 1
    return Composition(tuple(Part(min(i, last), s.selected, s.rounds) for i, s in enumerate(segments)))


class _Search:
    """Oracles, program and whole rounds of one task."""

    def __init__(self, task: Task, oracles: list[Oracle], settings: SolverSettings) -> None:
        problem = task.problem
        self.master = Master(
            np.array([kind.rounds for kind in task.kinds]) / problem.rounds,
            problem.energy_j / problem.rounds,
            problem.delay_s / problem.rounds,
            pricing_of(oracles),
            max(oracle.tolerance for oracle in oracles),
        )
        self.task, self.oracles, self.progress = task, oracles, settings.progress
        self.incumbent = Incumbent(task, self.master, settings)
        self.whole_rounds = WholeRounds(self.incumbent, oracles)

    def run(self, hints: list[Composition]) -> None:
        """Until nothing better is left, or worth looking for."""
        self.whole_rounds.start(hints)
        self.search_harder()
        self.solve_program()
        if not self.master.infeasible:
            self.whole_rounds.run()
        for _ in range(_AGAIN):
            if not self.search_harder():
                break
            self.solve_program()
            self.whole_rounds.run()

    def solve_program(self) -> None:
        """Generate columns, from the best plan's prices on."""

        def report(what: str, step: int, objective: float, bound: float) -> None:
            # The program's value is of fractions of rounds: no plan yet.
            if self.progress is not None:
                self.progress(what, step, self.incumbent.cost, bound)

        self.master.run(report, self.incumbent.best_prices)

    def search_harder(self) -> bool:
        """Ask for better selections at the best plan's prices; returns whether they may make it better.

        Each is tried for all rounds, and all become columns of the program, which may mix them. Oracles that price
        exactly, or under a bound, have none.
        """
        incumbent, promising = self.incumbent, False
        for _ in range(_CLIMBS):
            best, prices = incumbent.best, incumbent.best_prices
            if best is None or prices is None:
                return False
            mu, nu = prices
            selections, value = [], -mu * self.master.energy - nu * self.master.delay
            for kind, oracle in enumerate(self.oracles):
                columns = oracle.search_harder(mu, nu)
                if columns is None:
                    return False
                self.master.add(kind, columns)
                for other in self.oracles:
                    other.learn(columns.selected)
                least = (columns.cost + mu * columns.energy + nu * columns.deadline).min()
                value += float(self.master.shares[kind] * least)
                selections.append(list(columns.selected[:2]))
            everywhere = [self.whole_rounds.same_everywhere(selected) for selected in selections[-1]]
            mixed = [
                Composition(tuple(Part(k, selected, self.task.kinds[k].rounds) for k, selected in enumerate(chosen)))
                for chosen in product(*selections)
            ]
            incumbent.try_all([*everywhere, *mixed])
            promising |= value < best.cost * (1.0 - _PROMISING)
            if incumbent.cost >= best.cost * (1.0 - _BETTER):
                break
        incumbent.hand_over()
        return promising


def _cheapest(task: Task) -> Composed | None:
    """Where rounding found no way to keep tight budgets, or no time to: the cheapest plan, if it fits."""
    mix = Cheapest(task).fitting()
    if mix is None:
        return None
    last = len(task.kinds) - 1
    kinds = [0 if dense else last for dense in mix.dense]
    rows = zip(kinds, mix.selected, mix.rounds.astype(int).tolist(), strict=True)
    return compose(task, Composition(tuple(Part(*row) for row in rows)))


def _additive_solution(task: Task, oracles: list[Oracle], settings: SolverSettings) -> Solution | None:
    """For pooled labels over a large fleet: the plan by the additive objective, to start from and never to fall behind.

    Its selections also become seeds of the pricing; its bound, which would take most of the time, is of no use. None
    where selections are enumerated anyway.
    """
    pooled = task.objective.pooled
    if pooled is None or pooled.start is None or oracles[-1].enumeration is not None:
        return None
    solution = solve(replace(task, objective=pooled.start), replace(settings, bounded=False))
    if solution.segments:
        for oracle in oracles:
            oracle.learn(np.stack([segment.selected for segment in solution.segments]))
    return solution
