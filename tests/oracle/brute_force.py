"""Oracle: P1 by brute force over all sequences of selections, each solved by CVXPY. For N ≤ 4 and R ≤ 4.

P1 does not know the order of rounds, so sequences are multisets; a dense first round is chosen on its own. A multiset
is skipped only where its cost without any pruning is above the best plan's (pruning only adds to it), or where it
exceeds T₀ with all clients at full power, full frequency and most pruning.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement, product

import numpy as np

from fedgap.planning.task import Task
from tests.oracle.coefficients import Coefficients
from tests.oracle.cvxpy_resources import compose


@dataclass(frozen=True)
class BruteForce:
    """The best of all plans: its value is infinite where none fits the budgets."""

    value: float
    sequence: tuple[tuple[int, ...], ...]
    """The clients of each round; round 0 first where it must be dense."""
    solved: int
    """How many sequences had to be solved."""


def brute_force(task: Task) -> BruteForce:
    """Try every sequence under the task's objective."""
    problem, scheme = task.problem, task.scheme
    size, dense = problem.size, problem.dense_first
    masks = [np.array([(code >> n) & 1 for n in range(size)], dtype=bool) for code in range(1, 2**size)]
    if not scheme.select:
        masks = [np.ones(size, dtype=bool)]
    price = [float(task.objective.selection_cost(mask)) for mask in masks]
    firsts = [(i,) for i in range(len(masks))] if dense else [()]
    rests = list(combinations_with_replacement(range(len(masks)), problem.rounds - dense))
    plans = [(first, rest) for first, rest in product(firsts, rests)]
    floors = [task.objective.constant + sum(price[i] for i in (*f, *r)) / problem.rounds for f, r in plans]
    numbers = Coefficients.of(problem.fleet, prune=scheme.prune)
    busy = numbers.compute_s + numbers.upload_s
    least = [float((numbers.download_s + numbers.keep_min * busy)[mask].max()) for mask in masks]
    dense_least = [float((numbers.download_s + busy)[mask].max()) for mask in masks]
    best, sequence, solved = np.inf, (), 0
    for at in np.argsort(floors, kind="stable"):
        if floors[at] >= best:
            break
        first, rest = plans[at]
        if sum(dense_least[i] for i in first) + sum(least[i] for i in rest) > problem.delay_s:
            continue
        counts = Counter(rest)
        chosen = [*first, *counts]
        rounds = [*(1 for _ in first), *counts.values()]
        unpruned = [j < len(first) for j in range(len(chosen))]
        answer = compose(task, [masks[i] for i in chosen], rounds, unpruned)
        solved += 1
        if answer is not None and answer.value < best:
            best = answer.value
            sequence = tuple(tuple(int(n) for n in np.flatnonzero(masks[i])) for i in (*first, *rest))
    return BruteForce(best, sequence, solved)
