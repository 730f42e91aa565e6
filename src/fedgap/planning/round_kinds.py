"""The kinds of rounds that a plan is made of, and who prices them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgap.planning.energy_time_curve import Units
from fedgap.planning.oracles.bounded_search import Searched
from fedgap.planning.oracles.enumerate import Enumerated
from fedgap.planning.oracles.local_search import Climbed
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme

Bools = npt.NDArray[np.bool_]
Oracle = Enumerated | Searched | Climbed
"""Who prices rounds: ``price(μ, ν, allowed)`` gives the best found, and a bound on min_A L_A(μ, ν) about that close."""

ENUMERATED_CLIENTS = 12
"""Up to here all 2^N − 1 selections are priced one by one."""


def all_selections(size: int) -> Bools:
    """Every non-empty selection of ``size`` clients, (2^size − 1, size)."""
    codes = np.arange(1, 2**size)
    return np.asarray((codes[:, None] >> np.arange(size)) % 2 == 1)


@dataclass(frozen=True, eq=False)
class Group:
    """Rounds of one kind: how many, the clients' curves, and who prices them."""

    rounds: int
    units: Units
    dense: bool
    oracle: Oracle


def groups_of(problem: Problem, scheme: Scheme, *, bounded: bool = True) -> list[Group]:
    """The kinds of rounds of a problem under a scheme; the dense first round, where there is one, comes first.

    :param bounded: whether a bound is asked for where selections are searched.
    """
    units = Units.of(
        problem.fleet, prune=scheme.prune, free_power=scheme.power, free_frequency=scheme.frequency
    )
    kinds = [(problem.rounds, units, not scheme.prune)]
    if problem.dense_first and scheme.prune:
        kinds = [(1, units.dense(), True), (problem.rounds - 1, units, False)]
    kinds = [kind for kind in kinds if kind[0] > 0]
    shortest = [float((u.overhead + u.keep_min * u.u_min).min()) for _, u, _ in kinds]
    least = sum(rounds * d for (rounds, _, _), d in zip(kinds, shortest, strict=True))
    everyone = np.ones((1, problem.size), dtype=np.bool_)
    groups = []
    for (rounds, curves, dense), shortest_s in zip(kinds, shortest, strict=True):
        longest = problem.delay_s - (least - shortest_s)  # what is left when all other rounds are as short as can be
        oracle: Oracle
        if not scheme.select:
            oracle = Enumerated(problem, curves, everyone, longest)
        elif problem.size <= ENUMERATED_CLIENTS:
            oracle = Enumerated(problem, curves, all_selections(problem.size), longest)
        elif problem.aggregation == "mixture" and problem.constants.gamma1 > 0.0:
            oracle = Climbed(problem, curves, longest, thorough=10 * rounds >= problem.rounds)
        else:
            oracle = Searched(problem, curves, longest, bounded=bounded)
        groups.append(Group(rounds, curves, dense, oracle))
    return groups
