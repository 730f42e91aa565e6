"""Batteries: plans in which no client needs more joules over all rounds than its battery has.

E₀ and the batteries B_n are the *limits*. For weights w ≥ 0 every plan that keeps all limits also keeps their weighted
sum

    w₀·(Σ_n E_n + broadcasts) + Σ_n w_n·E_n  ≤  w₀·E₀ + Σ_n w_n·B_n,

with E_n the client's joules. P1 with this one constraint instead of all limits is called a *surrogate*. It is P1 for a
fleet whose joules count φ_n = w₀ + w_n times, and is solved with a certificate like any other problem. Its lower bound
holds for the problem with batteries. If its plan keeps every limit and uses up those with w > 0, the plan is optimal.

w is found by steps in its logarithm, according to how much of each limit a plan uses. A surrogate's plan also shows
where the best w cannot be: a w whose surrogate allows that plan gives no better bound. If a step leads there, the next
w is instead the centre of the weights that remain possible. This set shrinks with every plan, so that the steps cannot
cycle. As rounds are whole, the search may end with a gap, which is reported like any other.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.analytic_centre import analytic_centre
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.tolerances import BUDGET_MARGIN

_STEPS = 60
"""Maximum number of surrogates; one or two dozen are usual."""
_AIM = 1.0 - 1e-7
"""Plans are made for this share of every limit, so that small errors of the search stay within the limit."""
_USED = 1e-6
"""A limit counts as used up if this share or less is left; a weight below it counts as 0."""
_STEP, _LONGEST = 1.0, 2.0
"""Step in ln w for a limit that is exceeded by the factor e, and the longest step."""
_MEMORY = 6
"""Number of past steps from which the next one is extrapolated (Anderson's acceleration)."""
_START = 0.5
"""First weight of a battery that the plan without batteries exceeds, relative to w₀ = 1 if that plan uses up E₀."""
_LEAST = 1e-12
"""Smallest weight, relative to the largest. A limit with this weight has no effect on the surrogate."""
_UNUSED = 1e-4
"""A limit that is not used up gets the smallest weight if its share of the weighted sum, relative to the largest share,
is at most this."""
_ROUNDING = 1e-9
"""How far a step may lead into excluded weights, relative to the largest share, because of rounding."""


class _Solution(Protocol):
    """What this module needs to know about a solver's result."""

    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def lower_bound(self) -> float | None: ...
    @property
    def cost(self) -> float: ...


S = TypeVar("S", bound=_Solution)


def limited(problem: Problem) -> bool:
    """Whether any client has a battery."""
    return bool(np.isfinite(problem.fleet.battery_j).any())


def surrogate(problem: Problem, total: float, own: Floats, part: float = 1.0) -> Problem:
    """Return the problem with E₀ and the batteries replaced by their weighted sum.

    A client's joules count φ times if its power is φ times as high at 1/φ of the gain, which gives the same rate, and
    if its PUE and idle power are φ times as high. The broadcasts must count w₀ times; the budget is adjusted for that.

    :param total: w₀; :param own: w_n, (N,);
    :param part: share of every limit that may be used; bounds hold for the original problem only with ``part`` = 1.
    """
    fleet, weight = problem.fleet, total + own
    weighed = replace(
        fleet, uplink_gain=fleet.uplink_gain / weight, max_power_w=fleet.max_power_w * weight,
        min_power_w=fleet.min_power_w * weight, pue=fleet.pue * weight, idle_power_w=fleet.idle_power_w * weight,
        battery_j=np.full_like(weight, np.inf),
    )
    battery = np.where(np.isfinite(fleet.battery_j), fleet.battery_j, 0.0)
    rest = (1.0 - total) * problem.rounds * problem.broadcast_j
    return replace(problem, fleet=weighed, energy_j=part * (total * problem.energy_j + float(own @ battery)) + rest)


def own_powers(segments: tuple[Segment, ...], weight: Floats) -> tuple[Segment, ...]:
    """Return a surrogate's segments with powers converted back to those of the problem itself.

    :param weight: φ_n, (N,).
    """
    return tuple(replace(segment, power_w=segment.power_w / weight) for segment in segments)


def within_batteries(
    problem: Problem, solve: Callable[[Problem], S], with_plan: Callable[[S, tuple[Segment, ...], float | None], S]
) -> S | None:
    """Return the best plan found that keeps the batteries, with the best bound; None if none was found.

    :param solve: solves a problem without batteries; :param with_plan: returns a solution with its segments and bound
        replaced.
    """
    limits = np.append(problem.energy_j, problem.fleet.battery_j)
    counted = np.isfinite(limits)
    free = solve(replace(problem, fleet=replace(problem.fleet, battery_j=np.full(problem.size, np.inf))))
    if not free.segments or problem.violation(free.segments) <= BUDGET_MARGIN:
        return free
    used = np.append(problem.energy(free.segments), problem.client_energy(free.segments)) / limits
    first = np.append(1.0 if used[0] > 1.0 - _USED else _LEAST, np.where(used[1:] > 1.0, _START, _LEAST))
    log_weight, least = np.log(first), np.log(_LEAST)
    steps: list[_Step] = []
    outside: list[Floats] = []  # each plan restricts the weights to a half-space; these are the normal vectors
    best: S | None = None
    weight = np.exp(log_weight)
    for _ in range(_STEPS):
        weight = np.where(counted, np.exp(log_weight), 0.0)
        found = solve(surrogate(problem, float(weight[0]), weight[1:], _AIM))
        if not found.segments:
            break  # if no plan keeps the weighted sum, none keeps all limits
        segments = own_powers(found.segments, weight[0] + weight[1:])
        used = np.append(problem.energy(segments), problem.client_energy(segments)) / limits
        if problem.violation(segments) <= BUDGET_MARGIN and (best is None or found.cost < best.cost):
            best = with_plan(found, segments, None)
        excess = np.where(counted, np.log(np.maximum(used, np.exp(-_LONGEST)) / _AIM), 0.0)
        excess = np.where((log_weight <= least) & (excess < 0.0), 0.0, excess)
        waste = np.where(weight > _USED, -excess, 0.0).max()
        if waste <= _USED and used[counted].max() <= 1.0 + BUDGET_MARGIN:
            break
        share = weight * np.where(counted, limits, 0.0)
        share /= share.max()
        weighted = counted & ((share > _UNUSED) | (excess > 0.0))
        outside.append(used / _AIM - 1.0)
        steps = [*steps, _Step(log_weight, excess, share)][-_MEMORY:]
        log_weight = np.where(weighted, _next(steps), -np.inf)
        inside = np.stack(outside)[:, weighted]
        shares = np.exp(log_weight[weighted]) * limits[weighted]
        if (inside @ shares < -_ROUNDING * shares.max()).any():
            centre = analytic_centre(inside, share[weighted])
            if centre is not None:
                log_weight[weighted] = np.log(centre / limits[weighted])
        log_weight = np.maximum(log_weight - log_weight[counted].max(), least)
    whole = solve(surrogate(problem, float(weight[0]), weight[1:]))
    bounds = [bound for bound in (free.lower_bound, whole.lower_bound) if bound is not None]
    return None if best is None else with_plan(best, best.segments, max(bounds, default=None))


class _Step(NamedTuple):
    """A surrogate that was solved. Arrays have one value for E₀ and one per battery."""

    log_weight: Floats
    """ln w."""
    excess: Floats
    """ln of what the plan needs, divided by the limit."""
    share: Floats
    """Each limit's share of the weighted sum, relative to the largest share."""


def _next(steps: list[_Step]) -> Floats:
    """Return the next ln w: a step in proportion to the excess, corrected by Anderson's acceleration.

    The derivative of the bound with respect to ln w_n is proportional to share times excess. This product is what the
    steps bring to zero, so that a limit whose weight vanishes no longer influences the others.
    """
    log_weight, excess, share = steps[-1]
    step = _STEP * excess
    if len(steps) > 1:
        moves = np.stack([b.log_weight - a.log_weight for a, b in pairwise(steps)], axis=-1)
        changes = np.stack([b.excess - a.excess for a, b in pairwise(steps)], axis=-1)
        part = np.linalg.lstsq(share[:, None] * changes, share * excess, rcond=1e-10)[0]
        further = step - (moves + _STEP * changes) @ part
        step = np.where(further * excess > 0.0, further, step)  # the weight of an exceeded limit always grows
    return np.asarray(log_weight + np.clip(step, -_LONGEST, _LONGEST))
