"""A plan within milliseconds: the best one that has the same selection in all rounds.

It keeps the budgets and is scored like any other plan, but it has no certificate: plans with several selections may be
better.
"""

from dataclasses import replace

import numpy as np

from fedgap.arrays import Bools
from fedgap.planning.composition import Composition, Part
from fedgap.planning.fixed_composition import compose, compose_single
from fedgap.planning.oracles.enumerate import all_selections
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.solve import answer_of
from fedgap.planning.task import Task
from fedgap.planning.tolerances import ENUMERATED_CLIENTS

_CHUNK = 8
"""Number of selections that are solved at once."""
_TRIES = 3
"""How many of the best selections are tried with the unpruned first round."""
_SIZES = 48
"""How many numbers of clients are tried in a large fleet, in geometric steps."""
_LEAST_KEPT = 1e-3
"""Lower limit of ``kept`` in the estimate of the unpruned round's share of the budgets, see :func:`_segments`."""


def best_single_selection(task: Task) -> Plan | None:
    """Return the best plan with one selection, or None if no selection that was tried fits the budgets.

    For up to 12 clients all selections are considered. They are tried in the order of their cost without pruning. As
    pruning only adds to the cost, the search ends when this cost alone exceeds the best total.
    """
    selections = _candidates(task)
    base = task.objective.selection_cost(selections)
    order = np.argsort(base, kind="stable")
    order = order[np.isfinite(base[order])]
    total, kept = np.full((2, len(selections)), np.inf)
    for start in range(0, len(order), _CHUNK):
        chunk = order[start : start + _CHUNK]
        if base[chunk[0]] >= total.min():
            break
        total[chunk], answer = compose_single(task, selections[chunk])
        kept[chunk] = answer.keep.min(axis=-1, where=selections[chunk], initial=1.0)
    for best in np.argsort(total, kind="stable")[:_TRIES]:
        if not np.isfinite(total[best]):
            break
        segments = _segments(task, selections[best], float(kept[best]))
        if segments:
            return answer_of(task, "exact", segments, status="feasible")
    return None


def _candidates(task: Task) -> Bools:
    """Return the selections that are tried, (S, N)."""
    size, objective, curves = task.problem.size, task.objective, task.kinds[-1].curves
    if task.selected is not None:
        return task.selected[None]
    if size <= ENUMERATED_CLIENTS:
        return all_selections(size)
    # The first k clients in the order of φ (or of what each costs alone), of their least time, and of the product.
    additive = objective.additive or (objective.pooled and objective.pooled.start and objective.pooled.start.additive)
    alone = additive.phi if additive else objective.selection_cost(np.eye(size, dtype=np.bool_))
    time = curves.least_s
    sizes = np.unique(np.geomspace(1, size, _SIZES).astype(int))
    return np.stack([np.argsort(np.argsort(key)) < k for key in (alone, time, alone * time) for k in sizes])


def _segments(task: Task, selected: Bools, kept: float) -> tuple[Segment, ...]:
    """Return the segments of a plan with this selection in all rounds; empty if it does not fit the budgets.

    If the first round must be unpruned, it gets 1/``kept`` times an equal share of both budgets, because costs grow
    with the part of the model that is kept; ``kept`` is what the most pruned client keeps in the other rounds. The
    exact solver would find the best share, but for one round of hundreds this estimate is good enough.
    """
    problem, rounds = task.problem, task.problem.rounds
    if len(task.kinds) == 2:
        share = min(1.0 / (rounds * max(kept, _LEAST_KEPT)), 0.5)
        first = _alone(task, selected, 1, share * problem.energy_j, share * problem.delay_s, dense=True)
        if first:
            left_j, left_s = problem.energy_j - problem.energy(first), problem.delay_s - problem.delay(first)
            rest = _alone(task, selected, rounds - 1, left_j, left_s, dense=False)
            if rest:
                return (*first, *rest)
    parts = (Part(k, selected, kind.rounds) for k, kind in enumerate(task.kinds))
    composed = compose(task, Composition(tuple(parts)))
    return composed.segments if composed is not None else ()


def _alone(
    task: Task, selected: Bools, rounds: int, energy_j: float, delay_s: float, *, dense: bool
) -> tuple[Segment, ...]:
    """Return the best segment for these rounds alone within these budgets; empty if they do not fit."""
    some = task.with_rounds(rounds)
    problem = replace(some.problem, energy_j=energy_j, delay_s=delay_s, dense_first=dense)
    composed = compose(replace(some, problem=problem), Composition((Part(0, selected, rounds),)))
    return composed.segments if composed is not None else ()
