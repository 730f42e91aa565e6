"""Oracle: P1 with given selections for given numbers of rounds, solved jointly by CVXPY and Clarabel."""

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from fedgap.planning.alternating.convex import solved
from fedgap.planning.task import Task
from tests.oracle.coefficients import Coefficients
from tests.oracle.convex_model import client_variables


@dataclass(frozen=True)
class Composition:
    """The optimum over λ, p, f and the deadlines of some segments."""

    value: float
    """The task's objective."""
    kept: np.ndarray
    """Mean m of each segment's clients."""
    deadline_s: np.ndarray


def compose(
    task: Task,
    selections: Sequence[np.ndarray],
    rounds: Sequence[int],
    dense: Sequence[bool] | None = None,
) -> Composition | None:
    """The best plan with these selections, each for so many rounds; None where there is none.

    Segments share both budgets, and each has a deadline of its own: it is one convex problem in all m, t_c, t_u and d.
    """
    problem, scheme = task.problem, task.scheme
    dense = dense or [False] * len(rounds)
    energy_budget = problem.energy_j - problem.rounds * problem.broadcast_j
    unit = problem.delay_s / problem.rounds
    if energy_budget <= 0.0:
        return None
    constraints, spent, kept = [], 0.0, []
    deadline = cp.Variable(len(rounds))
    for j, (selected, count, unpruned) in enumerate(zip(selections, rounds, dense, strict=True)):
        numbers = Coefficients.of(problem.fleet.take(np.flatnonzero(selected)), prune=scheme.prune)
        keep_min = np.ones_like(numbers.keep_min) if unpruned else numbers.keep_min
        own = client_variables(int(selected.sum()), numbers.log_snr, keep_min, scheme)
        seconds = cp.multiply(numbers.compute_s, own.compute) + cp.multiply(numbers.upload_s, own.upload)
        constraints += [*own.constraints, (seconds + numbers.download_s) / unit <= deadline[j]]
        joules = numbers.compute_j @ own.compute_work + numbers.upload_j @ own.upload_work
        spent += count * (joules - numbers.silent_j @ own.upload) / energy_budget
        kept.append(cp.sum(own.keep) / int(selected.sum()))
    share = np.array(rounds) / problem.rounds
    constraints += [spent <= 1.0, share @ deadline <= 1.0]
    model = cp.Problem(cp.Maximize(share @ cp.hstack(kept)), constraints)
    assert model.is_dcp()
    if not solved(model):
        return None
    means = np.array([float(k.value) for k in kept])
    objective = task.objective
    costs = np.array([float(objective.selection_cost(s)) for s in selections])
    costs += objective.pruning_weight * (1.0 - means)
    return Composition(objective.constant + float(share @ costs), means, deadline.value * unit)
