"""A plan within milliseconds: the best one that keeps a single selection in all rounds.

It is feasible and scored like any other; it lacks time sharing and the certificate, which the solver adds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedgap.config import Scenario
from fedgap.planning.diagnosis import feasible
from fedgap.planning.energy_time_curve import Units
from fedgap.planning.fixed_composition import Part, compose, compose_single
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.planning.round_kinds import ENUMERATED_CLIENTS, all_selections
from fedgap.planning.schemes import Scheme
from fedgap.planning.solve import infeasible

Bools = npt.NDArray[np.bool_]

_CHUNK = 8
"""Selections that are solved at once."""
_TRIES = 3
"""Of the best selections, how many are tried with the dense first round."""


def first_answer(scenario: Scenario, scheme: Scheme) -> Plan | None:
    """A draft; or why nothing fits, which is known long before the solver has given up; or None where neither is known.
    """
    problem = Problem.of(scenario)
    answer = draft(problem, scheme)
    if answer is None and not feasible(problem, scheme):
        return infeasible(problem, scheme, "exact")
    return answer


def draft(problem: Problem, scheme: Scheme) -> Plan | None:
    """The best plan with one selection, or None where no selection tried fits the budgets.

    Up to 12 clients it is the best of all selections: pruning only adds to a selection's own cost, so in order of that
    cost the search may stop as soon as the next one alone exceeds the best total.
    """
    own = scheme.own(problem)
    units = Units.of(own.fleet, prune=scheme.prune, free_power=scheme.power, free_frequency=scheme.frequency)
    selections = _candidates(own, scheme, units)
    base = own.selection_cost(selections)
    order = np.argsort(base, kind="stable")
    order = order[np.isfinite(base[order])]
    total, kept = np.full((2, len(selections)), np.inf)
    for start in range(0, len(order), _CHUNK):
        chunk = order[start : start + _CHUNK]
        if base[chunk[0]] >= total.min():
            break
        total[chunk], answer = compose_single(own, units, selections[chunk])
        kept[chunk] = answer.keep.min(axis=-1, where=selections[chunk], initial=1.0)
    for best in np.argsort(total, kind="stable")[:_TRIES]:
        if not np.isfinite(total[best]):
            break
        segments = _segments(own, scheme, units, selections[best], float(kept[best]))
        if segments:
            return _plan(problem, scheme, segments)
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


def _segments(problem: Problem, scheme: Scheme, units: Units, selected: Bools, kept: float) -> tuple[Segment, ...]:
    """All rounds with one selection, the first of them dense where it must be; empty where they do not fit.

    The dense round gets 1/kept times its share of both budgets, kept being what the most pruned client keeps, for costs
    grow with the model that is kept. How much is best is a root that the solver proper finds; in one round of hundreds
    it hardly shows.
    """
    rounds, whole = problem.rounds, Part(units, selected, problem.rounds)
    if not (problem.dense_first and scheme.prune):
        composed = compose(problem, [whole])
        return composed.segments if composed is not None else ()
    dense = Part(units.dense(), selected, 1)
    if rounds > 1:
        share = min(1.0 / (rounds * max(kept, 1e-3)), 0.5)
        once = replace(problem.with_rounds(1), energy_j=share * problem.energy_j, delay_s=share * problem.delay_s)
        first = compose(once, [dense])
        if first is not None:
            left_j = problem.energy_j - problem.energy(first.segments)
            left_s = problem.delay_s - problem.delay(first.segments)
            others = replace(problem.with_rounds(rounds - 1), energy_j=left_j, delay_s=left_s)
            rest = compose(others, [Part(units, selected, rounds - 1)])
            if rest is not None:
                return (*first.segments, *rest.segments)
    parts = [part for part in (dense, Part(units, selected, rounds - 1)) if part.rounds]
    composed = compose(problem, parts)
    return composed.segments if composed is not None else ()


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
