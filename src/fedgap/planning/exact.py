"""P1 solved with a certificate: column generation over rounds, then whole numbers of rounds.

Channels are constant, so a plan is a multiset of rounds; each round is a selection with a deadline, costing joules and
seconds. In fractions of rounds this is a linear program over all such rounds (*columns*): its dual prices (μ, ν) ask an
oracle (:mod:`fedgap.planning.pricing`) for a better round, until none exists. Weak duality gives the lower bound

    θ ≥ α + Σ_g (R_g/R)·min_A L_A(μ, ν) − μ·E₀/R − ν·T₀/R        for every μ, ν ≥ 0,

valid for every plan, time sharing included; g runs over the kinds of rounds (the dense first one, and the others). The
support of the program has at most a few selections; whole numbers of rounds near its weights are composed exactly
(:mod:`fedgap.planning.composition`), and where few rounds make that coarse, compositions are enumerated.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedgap.planning.diagnosis import Cheapest
from fedgap.planning.groups import Group, groups_of
from fedgap.planning.large import Searched
from fedgap.planning.master import Master, Progress
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.rounding import Rounder, composition_of
from fedgap.planning.schemes import Scheme

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found; ``segments`` is empty where no plan fits the budgets."""

    segments: tuple[Segment, ...]
    lower_bound: float | None
    """On θ − α in the scheme's own objective, over all plans of R rounds."""
    cost: float
    """θ − α of the plan in the scheme's own objective."""
    proven: bool
    """Whether every composition that could be better was ruled out."""
    energy_price: float
    """−∂θ/∂E₀ ≥ 0, 1/J."""
    delay_price: float
    """−∂θ/∂T₀ ≥ 0, 1/s."""
    interrupted: bool = False


def solve(problem: Problem, scheme: Scheme, progress: Progress | None = None) -> Solution:
    """The best plan found, with its certificate.

    :param problem: in the scheme's own objective (``no_generalization`` has γ₁ = 0 there).
    """
    groups = groups_of(problem, scheme)
    nothing = Solution((), None, np.inf, True, 0.0, 0.0)
    if any(not group.oracle.some for group in groups) or Cheapest(problem, scheme).impossible():
        return nothing
    hints = _mean_segments(problem, scheme, groups, progress)
    master = Master(
        np.array([group.rounds for group in groups]) / problem.rounds,
        problem.energy_j / problem.rounds,
        problem.delay_s / problem.rounds,
        lambda mu, nu, tolerance: [group.oracle.price(mu, nu, tolerance) for group in groups],
        max(group.oracle.tolerance for group in groups),
    )
    rounder = Rounder(problem, groups, master)
    interrupted = False
    try:
        rounder.start([composition_of(hints, groups)] if hints else [])
        master.run(progress, rounder.best_prices)
        if not master.infeasible:
            rounder.run(progress)
        if rounder.best is None:
            mix = Cheapest(problem, scheme).least_delay(problem.energy_j)
            if mix is not None:  # rounding found no way to keep tight budgets, but there is one
                rounder.try_all([mix.composition(len(groups))])
    except KeyboardInterrupt:
        interrupted = True
        if rounder.best is None and not rounder.rescue():
            raise
    if rounder.best is None:
        return nothing
    best = rounder.best
    return Solution(
        segments=best.plan.segments,
        lower_bound=master.lower_bound if np.isfinite(master.lower_bound) else None,
        cost=best.cost,
        proven=rounder.proven and not interrupted,
        energy_price=best.plan.energy_price,
        delay_price=best.plan.delay_price,
        interrupted=interrupted,
    )


def _mean_segments(
    problem: Problem, scheme: Scheme, groups: list[Group], progress: Progress | None
) -> tuple[Segment, ...]:
    """For ``mixture`` over a large fleet: the plan by ``mean``, to start from and never to fall behind.

    Its selections also become seeds of the pricing. Empty where selections are enumerated anyway.
    """
    searched = [group.oracle for group in groups if isinstance(group.oracle, Searched)]
    if problem.aggregation != "mixture" or not searched:
        return ()
    solution = solve(replace(problem, aggregation="mean"), scheme, progress)
    for oracle in searched:
        oracle.seeds = [segment.selected for segment in solution.segments]
    return solution.segments
