"""Line 1 of Algorithm 1: its starting point, and the reason if it is infeasible."""

from dataclasses import replace

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.alternating.iterate import Iterate, Repeated
from fedgap.planning.alternating.resource_step import ResourceStep


def everybody(repeated: Repeated) -> Iterate:
    """Return the starting point with all clients: a = 1, λ = λ^max (0 without pruning), p = p^max, f = f^max."""
    fleet = repeated.problem.fleet
    selected = np.ones(repeated.problem.size, dtype=np.bool_)
    return Iterate(selected, repeated.max_ratio, fleet.max_power_w, fleet.max_frequency_hz)


def fewer(repeated: Repeated) -> Iterate | None:
    """Return a starting point without the clients that do not fit the budgets; None if there is none.

    Clients that are too slow are dropped first, and then, one by one, those that need most energy. The powers and
    frequencies are those of least energy, found by P2.1 with energy as its objective. There is no such point if nobody
    is left, or if the scheme selects all clients and they do not fit.
    """
    start = everybody(repeated)
    selected = _in_time(repeated, start)
    while selected.any() and (selected.all() or repeated.scheme.select):
        thrifty, energy = _least_energy(repeated, replace(start, selected=selected))
        if energy.sum() < repeated.energy_j:
            return thrifty
        selected = selected.copy()
        selected[np.argmax(energy)] = False
    return None


def why_infeasible(repeated: Repeated, point: Iterate) -> str:
    """Return a sentence that says which constraint the starting point violates and, if there is one, which client."""
    problem = repeated.problem
    broadcasts = problem.rounds * problem.broadcast_j
    if broadcasts >= problem.energy_j:
        return f"energy_budget: the broadcasts alone need {broadcasts:.6g} J, the budget is {problem.energy_j:.6g} J"
    who = int(point.selected.sum())
    pruned = "with the most pruning" if (point.ratio > 0.0).any() else "without pruning"
    the_start = f"the start ({'all' if who == problem.size else 'its'} {who} clients {pruned}) is infeasible"
    in_time = _in_time(repeated, point)
    if not (in_time | ~point.selected).all():
        time = np.where(point.selected, _longest(repeated, point), 0.0)
        slowest = int(np.argmax(time))
        name = problem.names[slowest] if problem.names else f"client {slowest}"
        return (
            f"{the_start}: delay_budget: {name} needs {time[slowest]:.6g} s even at full power and frequency, "
            f"the budget is {problem.delay_s:.6g} s"
        )
    _, energy = _least_energy(repeated, point)
    total = float(energy.sum()) + broadcasts
    if total <= problem.energy_j:
        return (
            f"{the_start}: energy_budget: the tangent at full power overstates the upload's energy and leaves P2.1 "
            f"without a solution, though {total:.6g} J of {problem.energy_j:.6g} J would suffice; use the feasible "
            "start"
        )
    need = f"at least {total:.6g} J" if np.isfinite(total) else "more energy"
    return f"{the_start}: energy_budget: it needs {need} within the delay, the budget is {problem.energy_j:.6g} J"


def _longest(repeated: Repeated, point: Iterate) -> Floats:
    """Return the seconds of each client over all rounds at the point's λ, p and f, (N,)."""
    loads = repeated.loads(point.power_w, point.frequency_hz)
    kept = repeated.pruned_rounds * (1.0 - point.ratio) + repeated.dense_rounds
    return np.asarray(kept * loads.delay_s + repeated.problem.rounds * loads.download_s)


def _in_time(repeated: Repeated, point: Iterate) -> Bools:
    """Return which clients would keep T₀ if they were alone, (N,)."""
    return _longest(repeated, point) <= repeated.problem.delay_s


def _least_energy(repeated: Repeated, point: Iterate) -> tuple[Iterate, Floats]:
    """Return the point with the powers and frequencies of least energy within T₀, and each client's joules, (N,).

    P2.1 is solved again with the tangent at each solution until the energy no longer falls. The joules, which are over
    all rounds, are infinite if no solution was found.
    """
    step = ResourceStep(repeated, int(point.selected.sum()), "energy")
    best, energy = point, np.where(point.selected, np.inf, 0.0)
    for _ in range(20):
        new = step(best)
        if new is None:
            break
        spent = repeated.energy_of(repeated.loads(new.power_w, new.frequency_hz), new.ratio)
        spent = np.where(point.selected, spent, 0.0)
        settled = spent.sum() >= energy.sum() * (1.0 - 1e-6)
        if spent.sum() < energy.sum():
            best, energy = new, spent
        if settled:
            break
    return best, energy
