"""A plan within milliseconds: the best one that keeps a single selection in all rounds.

It is feasible and scored like any other; what it lacks is time sharing and the certificate, which follow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedgap.planning.composition import Part, compose, compose_single
from fedgap.planning.groups import ENUMERATED_CLIENTS, all_selections
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.units import Units

Bools = npt.NDArray[np.bool_]

_CHUNK = 8
"""Selections that are solved at once."""
_TRIES = 3
"""Of the best selections, how many are tried with the dense first round."""


def draft(problem: Problem, scheme: Scheme) -> Plan | None:
    """The best plan with one selection, or None where no selection tried fits the budgets.

    Up to 12 clients it is the best of all selections: pruning only adds to a selection's own cost, so in order of that
    cost the search may stop as soon as the next one alone exceeds the best total.
    """
    own = problem if scheme.generalization else problem.without_generalization()
    units = Units.of(own.fleet, prune=scheme.prune, free_power=scheme.power, free_frequency=scheme.frequency)
    selections = _candidates(own, scheme, units)
    base = own.selection_cost(selections)
    order = np.argsort(base, kind="stable")
    order = order[np.isfinite(base[order])]
    total = np.full(len(selections), np.inf)
    for start in range(0, len(order), _CHUNK):
        chunk = order[start : start + _CHUNK]
        if base[chunk[0]] >= total.min():
            break
        total[chunk] = compose_single(own, units, selections[chunk])[0]
    for best in np.argsort(total, kind="stable")[:_TRIES]:
        if not np.isfinite(total[best]):
            break
        composed = compose(own, _parts(own, scheme, units, selections[best]))
        if composed is not None:
            return _plan(problem, scheme, composed.segments)
    return None


def _candidates(problem: Problem, scheme: Scheme, units: Units) -> Bools:
    if not scheme.select:
        return np.ones((1, problem.size), dtype=np.bool_)
    if problem.size <= ENUMERATED_CLIENTS:
        return all_selections(problem.size)
    # The first k clients in order of φ, of the least time, and of both together, for k up to all.
    time = units.overhead + units.keep_min * units.u_min
    keys = (problem.phi, time, problem.phi * time)
    sizes = np.unique(np.geomspace(1, problem.size, 48).astype(int))
    return np.stack([np.argsort(np.argsort(key)) < k for key in keys for k in sizes])


def _parts(problem: Problem, scheme: Scheme, units: Units, selected: Bools) -> list[Part]:
    if not (problem.dense_first and scheme.prune):
        return [Part(units, selected, problem.rounds)]
    parts = [Part(units.dense(), selected, 1), Part(units, selected, problem.rounds - 1)]
    return [part for part in parts if part.rounds]


def _plan(problem: Problem, scheme: Scheme, segments: tuple[Segment, ...]) -> Plan:
    terms = problem.objective(segments)
    return Plan(
        status="feasible",
        scheme=scheme.name,
        solver="exact",
        rounds=problem.rounds,
        segments=segments,
        theta=terms.theta,
        terms={"alpha": terms.alpha, "clients": terms.clients, "generalization": terms.generalization,
               "pruning": terms.pruning},
        energy_j=problem.energy(segments),
        delay_s=problem.delay(segments),
    )
