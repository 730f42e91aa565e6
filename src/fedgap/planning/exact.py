"""Solve P1 with a certificate: column generation over rounds, then whole numbers of rounds.

``fedgap.planning`` explains the words. Channels are constant, so that the order of rounds does not matter: a plan is a
number of rounds, each with a selection and a deadline, which cost joules and seconds. If fractions of rounds were
allowed, the best plan would solve a linear program over all such rounds (*columns*). Its dual prices (μ, ν) are given
to an oracle (:mod:`fedgap.planning.oracles`), which looks for a better round, until none exists. By weak duality

    θ ≥ α + Σ_g (R_g/R)·min_A L_A(μ, ν) − μ·E₀/R − ν·T₀/R        for every μ, ν ≥ 0

for every plan, also for plans that mix selections. g runs over the kinds of rounds, and L_A is the Lagrangian of a
round (:mod:`fedgap.planning.round_lagrangian`). The program's solution uses only a few selections. Whole numbers of
rounds near its weights are solved exactly (:mod:`fedgap.planning.fixed_composition`). If there are so few rounds that
this is too coarse, compositions are enumerated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from fedgap.planning import battery
from fedgap.planning.composition import Composition, Part
from fedgap.planning.diagnosis import Cheapest
from fedgap.planning.fixed_composition import Composed, compose
from fedgap.planning.incumbent import Incumbent
from fedgap.planning.master import Master
from fedgap.planning.oracles.oracle import Oracle, oracles_for
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task
from fedgap.planning.thrift import thriftier
from fedgap.planning.tolerances import BUDGET_MARGIN
from fedgap.planning.whole_rounds import WholeRounds, pricing_of

_CLIMBS = 4
"""Maximum number of times that a local search for selections is repeated at the prices of a better plan."""
_AGAIN = 3
"""Maximum number of times that the program is solved again after such a search found promising selections."""
_PROMISING = 1e-5
"""The program is solved again if new selections lower the value at the best plan's prices by more than this share."""
_PROVEN = 1e-3
"""Relative gap at which a lower bound is good enough, unless the settings say what is enough."""
_BETTER = 1e-6
"""The local search is repeated at the prices of a better plan if that plan is better by more than this share."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The solver's result; ``segments`` is empty if no plan fits the budgets."""

    segments: tuple[Segment, ...]
    lower_bound: float | None
    """Lower bound on the objective without its constant (θ − α), over all plans of R rounds; None if nothing is
    proven."""
    cost: float
    """The objective of the plan, without its constant."""
    energy_price: float
    """−∂θ/∂E₀ ≥ 0: by how much one more joule would lower the objective, 1/J."""
    delay_price: float
    """−∂θ/∂T₀ ≥ 0: by how much one more second would lower the objective, 1/s."""
    interrupted: bool = False
    """Whether the search was ended by Ctrl-C."""


def solve(task: Task, settings: SolverSettings | None = None, known: Sequence[Composition] = ()) -> Solution:
    """Return the best plan found, with its certificate.

    Batteries and minimum clocks and powers are left out at first. If the plan keeps them anyway, it is the result, and
    its bound holds, because these limits only exclude plans. A limit that does not bind therefore changes nothing.

    :param known: compositions of plans that are known to be good, from which the search starts.
    """
    settings = settings or SolverSettings()
    if not battery.limited(task.problem):
        return _with_minima(task, settings, known)

    def plan_of(problem: Problem) -> Solution:
        return _with_minima(replace(task, problem=problem), settings, known)

    def with_plan(solution: Solution, segments: tuple[Segment, ...], bound: float | None) -> Solution:
        return replace(solution, segments=segments, lower_bound=bound)

    found = battery.within_batteries(task.problem, plan_of, with_plan)
    return found or Solution((), None, np.inf, 0.0, 0.0)


def _with_minima(task: Task, settings: SolverSettings, known: Sequence[Composition]) -> Solution:
    """Solve without minimum clocks and powers first, and then with them if that plan does not keep them."""
    fleet, relaxed = task.problem.fleet, None
    if fleet.min_frequency_hz.any() or fleet.min_power_w.any():
        without = replace(task, problem=replace(task.problem, fleet=fleet.without_minima()))
        relaxed = _solve(without, settings, known)
        if not relaxed.segments or task.problem.violation(relaxed.segments) <= BUDGET_MARGIN:
            return relaxed
        if relaxed.interrupted:
            raise KeyboardInterrupt
    found = _solve(task, settings, known)
    if relaxed is None or relaxed.lower_bound is None:
        return found
    return replace(found, lower_bound=max(relaxed.lower_bound, found.lower_bound or -np.inf))


def _solve(task: Task, settings: SolverSettings, known: Sequence[Composition]) -> Solution:
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
    """Return the composition of a plan's segments. If the task has an unpruned first round, it is the first segment."""
    last = len(task.kinds) - 1
    return Composition(tuple(Part(min(i, last), s.selected, s.rounds) for i, s in enumerate(segments)))


class _Search:
    """The search for the best plan of one task: oracles, linear program and whole rounds."""

    def __init__(self, task: Task, oracles: list[Oracle], settings: SolverSettings) -> None:
        problem = task.problem
        self.master = Master(
            np.array([kind.rounds for kind in task.kinds]) / problem.rounds,
            problem.energy_j / problem.rounds,
            problem.delay_s / problem.rounds,
            pricing_of(oracles),
            max(oracle.tolerance for oracle in oracles),
        )
        self.task, self.oracles, self.progress, self.bounded = task, oracles, settings.progress, settings.bounded
        self.incumbent = Incumbent(task, self.master, settings)
        self.whole_rounds = WholeRounds(self.incumbent, oracles)

    def run(self, hints: list[Composition]) -> None:
        """Search until no better plan exists or the remaining gap is small enough.

        :param hints: compositions to start from.
        """
        self.whole_rounds.start(hints)
        if self.incumbent.enough > 0.0 and self.incumbent.best is not None:
            # Often the plan of the first program is already good enough, and a bound can prove it.
            self.solve_program()
            self.round_program()
            self.prove()
            if self.incumbent.good_enough:
                return
        self.search_harder()
        self.solve_program()
        if not self.master.infeasible:
            self.round_program()
        for _ in range(_AGAIN):
            if not self.search_harder():
                break
            self.solve_program()
            self.round_program()
        self.prove()

    def round_program(self) -> None:
        """Round the program's solution and improve it, unless HiGHS has found none."""
        if self.master.weights:
            self.whole_rounds.run()

    def prove(self) -> None:
        """Prove a lower bound at the prices of the best plan and of the program, if column generation gave none."""
        incumbent, master = self.incumbent, self.master
        if not self.bounded or incumbent.best_prices is None or np.isfinite(master.lower_bound):
            return
        allowed = 0.4 * incumbent.enough or _PROVEN * abs(incumbent.cost)
        for mu, nu in dict.fromkeys((incumbent.best_prices, master.program())):
            bound = -mu * master.energy - nu * master.delay
            for share, oracle in zip(master.shares, self.oracles, strict=True):
                bound += float(share) * oracle.prove(mu, nu, allowed)
            incumbent.proven = max(incumbent.proven, bound)
            incumbent.report("proving")
            if incumbent.good_enough or not np.isfinite(bound):
                break

    def solve_program(self) -> None:
        """Solve the linear program by column generation, starting at the best plan's prices."""

        def report(what: str, step: int, objective: float, bound: float) -> None:
            # The program's value is not reported, because it needs fractions of rounds and no plan reaches it yet.
            if self.progress is not None:
                self.progress(what, step, self.incumbent.cost, bound)

        if np.isfinite(self.incumbent.cost):
            tolerance = 0.25 * self.incumbent.enough / max(abs(self.incumbent.cost), 1e-300)
            self.master.tolerance = max(self.master.tolerance, tolerance)
        self.master.run(report, self.incumbent.best_prices)

    def search_harder(self) -> bool:
        """Search for better selections at the best plan's prices; return whether they may improve the plan.

        Each selection that is found is tried for all rounds, and becomes a column of the program, which may mix them.
        Oracles that are exact or prove a bound do not take part, because they find the best selections anyway.
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
    """Return the plan with the least energy and delay, if it fits; used if no other plan was found in tight budgets."""
    mix = Cheapest(task).fitting()
    if mix is None:
        return None
    last = len(task.kinds) - 1
    kinds = [0 if dense else last for dense in mix.dense]
    rows = zip(kinds, mix.selected, mix.rounds.astype(int).tolist(), strict=True)
    return compose(task, Composition(tuple(Part(*row) for row in rows)))


def _additive_solution(task: Task, oracles: list[Oracle], settings: SolverSettings) -> Solution | None:
    """For pooled labels and a large fleet, return the plan for a similar additive objective as a starting point.

    The oracles also learn its selections. Its bound is not computed, because it does not hold for the task itself.
    The result is None if the objective has no such start or if selections are enumerated.
    """
    pooled = task.objective.pooled
    if pooled is None or pooled.start is None or oracles[-1].enumeration is not None:
        return None
    solution = solve(replace(task, objective=pooled.start), replace(settings, bounded=False))
    if solution.segments:
        for oracle in oracles:
            oracle.learn(np.stack([segment.selected for segment in solution.segments]))
    return solution
