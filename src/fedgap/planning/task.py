"""A planning task: problem P1, the scheme that restricts it, and the objective to minimise."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedgap.arrays import Bools
from fedgap.config import Scenario
from fedgap.errors import InputError, did_you_mean
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.objective import Objective, ObjectiveFactory
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.registry import OBJECTIVES, SELECTION, call_extension

_MEMBERS = [name for name in vars(Objective) if not name.startswith("_")]
"""Names of the attributes and methods that an objective must have."""


@dataclass(frozen=True, eq=False)
class RoundKind:
    """A kind of round: how many there are, and the clients' curves of energy against time in such a round."""

    rounds: int
    curves: ClientCurves
    remembered: dict[Any, Any] = field(default_factory=dict)
    """What a solver has computed from the curves and will need again, by a key that the solver chooses."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a solver has to solve. :meth:`of` applies the scheme's objective and selection rule; nothing else does."""

    problem: Problem
    scheme: Scheme
    objective: Objective
    selected: Bools | None
    """The clients that take part in every round, (N,); None if the solver selects them."""

    @classmethod
    def of(cls, problem: Problem, scheme: Scheme) -> "Task":
        """Make the task of solving a problem under a scheme."""
        factory: ObjectiveFactory | str = scheme.objective
        if isinstance(factory, str):
            factory = OBJECTIVES.load(factory)
        if not callable(factory):
            raise InputError(f"objective: must be a function from a problem to an objective; got {factory!r}")
        selected = np.ones(problem.size, dtype=np.bool_) if not scheme.select else None
        if scheme.selection is not None:
            rule = SELECTION.load(scheme.selection) if isinstance(scheme.selection, str) else scheme.selection
            if not callable(rule):
                raise InputError(f"selection: must be a function from a scenario to clients; got {rule!r}")
            assert problem.scenario is not None, "a selection rule needs the scenario"
            answer = call_extension("selection", scheme.name, rule, problem.scenario)
            selected = chosen_clients(answer, problem.scenario)
        objective = call_extension("objective", scheme.name, factory, problem)
        if missing := [name for name in _MEMBERS if not hasattr(objective, name)]:
            raise InputError(f"objective: must have the members of fedgap.Objective; {type(objective).__name__} has no "
                             f"{missing[0]}")
        return cls(problem, scheme, objective, selected)

    def with_rounds(self, rounds: int) -> "Task":
        """Return the same task with another number of rounds."""
        return replace(self, problem=self.problem.with_rounds(rounds), objective=self.objective.with_rounds(rounds))

    def with_same_curves(self, **changes: Any) -> "Task":
        """Return the task with another objective or other budgets, which do not change the clients' curves."""
        other = replace(self, **changes)
        vars(other)["kinds"] = self.kinds  # what has been computed for the curves is used again
        return other

    def with_learner(self, local_steps: int, upload_bits: int) -> "Task":
        """Return the same task with other local steps and upload bits."""
        return Task.of(self.problem.with_learner(local_steps, upload_bits), self.scheme)

    @cached_property
    def kinds(self) -> tuple[RoundKind, ...]:
        """The kinds of rounds of a plan: the unpruned first round, if there must be one, and then all others."""
        problem, scheme = self.problem, self.scheme
        curves = ClientCurves.of(
            problem.fleet, prune=scheme.prune, free_power=scheme.power, free_frequency=scheme.frequency
        )
        if not (problem.dense_first and scheme.prune):
            return (RoundKind(problem.rounds, curves),)
        kinds = RoundKind(1, curves.dense()), RoundKind(problem.rounds - 1, curves)
        return kinds if problem.rounds > 1 else kinds[:1]

    def value(self, segments: Sequence[Segment]) -> float:
        """Return the objective's value of a plan with these segments."""
        total = 0.0
        for segment in segments:
            pruned = float(segment.pruning_ratio[segment.selected].mean())
            one_round = float(self.objective.selection_cost(segment.selected)) + self.objective.pruning_weight * pruned
            total += segment.rounds / self.problem.rounds * one_round
        return self.objective.constant + total


def chosen_clients(answer: Any, scenario: Scenario) -> Bools:
    """Convert the result of a selection rule (truth values, indices or names) to truth values, (N,)."""
    size, names = scenario.size, scenario.names
    clients = np.asarray(list(answer) if isinstance(answer, (set, frozenset, tuple)) else answer)
    if clients.dtype.kind == "b":
        if clients.shape != (size,):
            raise InputError(f"selection: the rule must return {size} truth values, one per client; "
                             f"got an array of shape {clients.shape}")
        selected = clients.astype(np.bool_)
    elif clients.dtype.kind in "iu" and clients.ndim == 1:
        wrong = clients[(clients < 0) | (clients >= size)]
        if wrong.size:
            raise InputError(f"selection: the rule must return clients from 0 to {size - 1}; got {wrong[0]}")
        selected = np.isin(np.arange(size), clients)
    elif clients.dtype.kind in "UO" and clients.ndim == 1 and all(isinstance(name, str) for name in clients.tolist()):
        for name in clients.tolist():
            if name not in names:
                raise InputError(f"selection: the rule must return names of clients; {name!r} is not one"
                                 f"{did_you_mean(name, names)}")
        selected = np.isin(names, clients)
    elif clients.size == 0:
        selected = np.zeros(size, dtype=np.bool_)
    else:
        raise InputError("selection: the rule must return truth values, indices or names of clients; "
                         f"got {type(answer).__name__} {answer!r:.60}")
    if not selected.any():
        raise InputError("selection: the rule must select at least one client; it selects none")
    return selected
