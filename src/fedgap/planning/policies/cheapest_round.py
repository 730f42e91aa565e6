"""The cheapest rounds of the available clients at given prices of a joule and a second."""

from dataclasses import replace

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.oracles.oracle import Oracle, oracles_for
from fedgap.planning.policies.quick_pricing import quick_rounds
from fedgap.planning.round_lagrangian import Columns, RoundCurve
from fedgap.planning.task import Task
from fedgap.planning.tolerances import ENUMERATED_CLIENTS

_SELECTIONS = 3
"""How many of the selections that an oracle returns are used for further rounds."""
_ENERGY_PRICES = (0.1, 0.6, 1.0, 1.7, 8.0)
"""Multiples of μ at which further rounds of the best selection are made."""
_DEADLINES = (0.0, 0.5, 0.75, 1.0, 1.35, 2.0)
"""Multiples of the best round's deadline for these rounds. Each round has at least the time that it needs."""
_FEW_ENERGY_PRICES, _FEW_DEADLINES = (1.0, 8.0), (0.0, 1.0)
"""The same for all selections except the best."""
_NEARBY = np.concatenate([np.exp(np.linspace(-1.5, 1.5, 7)), np.exp([-6.0, -3.0, 3.0, 6.0])])
"""Multiples of μ and of ν. Rounds that are best at none of them are dropped. Distant prices keep rounds that a linear
program needs if its prices turn out to be quite different, and the cheapest rounds, without which no plan may fit.
"""


def cheapest_rounds(task: Task, mu: float, nu: float) -> Columns | None:
    """Return the best rounds at prices (μ, ν), the best one first; None if no client can meet the longest deadline."""
    pooled, additive = task.objective.pooled, task.objective.additive
    large = task.problem.size > ENUMERATED_CLIENTS and task.selected is None
    if large and (additive is not None or (pooled is not None and pooled.convex is not None)):
        return quick_rounds(task, mu, nu)
    return cheapest_by(oracles_for(task, bounded=False)[-1], mu, nu)


def cheapest_by(oracle: Oracle, mu: float, nu: float) -> Columns | None:
    """Return the same as :func:`cheapest_rounds`, found by this oracle."""
    if not oracle.usable:
        return None
    columns = oracle.price(mu, nu, np.inf).columns
    value = columns.cost + mu * columns.energy + nu * columns.deadline
    return columns.take(np.argsort(value, kind="stable").tolist())


def nearby_rounds(task: Task, columns: Columns, mu: float, nu: float) -> Columns:
    """Return rounds that are best at prices near (μ, ν).

    They have the selections of ``columns``, and the faster parts of the first selection.

    :param columns: the best rounds at (μ, ν), the best one first.
    """
    curves = task.kinds[-1].curves
    need = curves.least_s
    selections = _distinct(columns.selected)[:_SELECTIONS]
    if task.selected is None:
        selections = _distinct(np.concatenate([selections, _fastest_parts(selections[0], need)]))
    others = range(1, len(selections))
    variants = [(0, factor, share) for factor in _ENERGY_PRICES for share in _DEADLINES]
    variants += [(i, factor, share) for i in others for factor in _FEW_ENERGY_PRICES for share in _FEW_DEADLINES]
    place, factor, share = (np.array(column) for column in zip(*variants, strict=True))
    deadline = np.maximum(share * columns.deadline[0], curves.shortest(selections)[place])
    someone = np.flatnonzero(selections.any(axis=0))
    few, longest = curves.take(someone), float(columns.deadline[0]) * max(_DEADLINES)
    floor = 0.5 * few.price_of_time(np.maximum(longest - few.overhead, few.u_min) / few.keep_min)
    kinds, kind = np.unique(np.stack([place, factor]), axis=1, return_inverse=True)
    sets = kinds[0].astype(np.intp)
    base = task.objective.selection_cost(selections)[sets]
    curve = RoundCurve(task, few, selections[:, someone][sets], base, kinds[1] * mu, nu, floor)
    variant = curve.take(kind).at(deadline)[2]
    parts = [columns.take(range(min(len(columns.cost), _SELECTIONS))), replace(variant, selected=selections[place])]
    every = Columns.join(parts)
    return every.take(best_nearby(every.cost, every.energy, every.deadline, mu, nu).tolist())


def best_nearby(cost: Floats, energy: Floats, deadline: Floats, mu: float, nu: float) -> Ints:
    """Return the indices of the rounds that are best at some prices near (μ, ν), or at some distant ones."""
    prices_j, prices_s = (grid.reshape(-1, 1) for grid in np.meshgrid(_NEARBY * mu, _NEARBY * nu))
    return np.unique((cost + prices_j * energy + prices_s * deadline).argmin(axis=-1))


def _fastest_parts(selected: Bools, need: np.ndarray) -> Bools:
    """Return the fastest half, quarter and so on of a selection, down to one client, (S, N).

    Rounds of so few clients fit even small budgets.
    """
    order = np.argsort(np.where(selected, need, np.inf), kind="stable")
    rank = np.argsort(order, kind="stable")
    sizes, size = [], int(selected.sum())
    while size > 1:
        size //= 2
        sizes.append(size)
    return np.array([rank < size for size in sizes], dtype=np.bool_).reshape(len(sizes), len(selected))


def _distinct(selections: Bools) -> Bools:
    """Return the selections without repetitions, in their order."""
    return np.stack([np.frombuffer(key, dtype=np.bool_)
                     for key in dict.fromkeys(row.tobytes() for row in selections)])
