"""Rounds, local steps and upload bits of the plan of least forecast error.

For given rounds R, local steps τ and bits the best plan is found with a certificate
(:mod:`fedgap.planning.forecast_plan`), which takes seconds. So that only few of them are solved, *drafts* come first:
plans with one selection of clients in all rounds. A draft's least pruning, and hence its error, is one call of
:func:`fedgap.planning.resources.allocate`, for many selections and numbers of rounds at once.

A *learner* is a choice of τ and bits. For each learner a grid of selections and rounds is tried, then a finer one
around its best number of rounds: near the most rounds that fit the budgets the error changes fast. Numbers of rounds
are skipped where the error would be too high even if everybody took part and nobody pruned. The drafts of the best
learners are then improved client by client and round by round, and the best of them are solved.
"""

from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.composition import Composition, Part
from fedgap.planning.forecast_plan import ForecastSolution, solve_forecast
from fedgap.planning.objectives.forecast_tangent import ForecastTangent
from fedgap.planning.resources import allocate
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task
from fedgap.theory.forecast import PlanFeatures

_ROUNDS = 14
"""Numbers of rounds on the first grid, in geometric steps."""
_SIZES = 24
"""Numbers of clients on the first grid, in geometric steps."""
_CLOSE = 1.03
"""Learners whose best error on the grid is within this factor of the best are refined."""
_REFINED = 4
"""Maximum number of learners that are refined."""
_SOLVED = 2
"""Maximum number of learners that are solved with a certificate."""
_NEAR_TIE = 1.004
"""A learner is solved with a certificate beside the best where its error is within this factor."""
_STEPS = 30
"""Maximum number of improvements of a selection."""
_FLIPPED = 64
"""Clients that are tried at a time in a large fleet."""
_FINER = 5
"""Steps of the finer grid in one of the first, in the numbers of rounds around the best one."""
_FEW = 8
"""The best selections of the first grid, which the finer one tries."""
_DENSE_ROUND = 1.5
"""Pruned rounds that a dense first round costs, as a first guess."""
_SHORTER = 0.97
"""Share of the rounds that is tried next if the draft's number of rounds does not fit."""


@dataclass(frozen=True, eq=False)
class Draft:
    """One selection in all rounds, and its forecast error."""

    task: Task
    selected: Bools
    error: float
    slowed: float
    """z = d·λ̄ + c·KL."""


    @property
    def features(self) -> PlanFeatures:
        """What the forecast knows about it."""
        problem, fixed = self.task.problem, _objective(self.task).fixed
        apart = float(_objective(self.task).divergence(self.selected))
        pruned = self.slowed - fixed.slowed_by_divergence * apart
        return PlanFeatures(
            rounds=problem.rounds, local_steps=problem.local_steps, few_clients=1.0 / int(self.selected.sum()),
            pruning=pruned / fixed.slowed_by_pruning if fixed.slowed_by_pruning > 0.0 else 0.0, divergence=apart,
            upload_bits=problem.upload_bits)


def best_forecast(task: Task, settings: SolverSettings) -> ForecastSolution | None:
    """The plan of least forecast error; None where not even one round fits the budgets."""
    answer: ForecastSolution | None = None
    drafts = best_drafts(task)
    for draft in drafts[:_SOLVED]:
        if answer is not None and draft.error > _NEAR_TIE * drafts[0].error:
            break
        solution = _solved(draft, settings)
        if solution is not None and (answer is None or solution.error < answer.error):
            answer = solution
        if answer is not None and answer.interrupted:
            break
    return answer


def best_drafts(task: Task) -> list[Draft]:
    """The best draft of each of the best learners, the best first; empty where not even one round fits the budgets."""
    assert task.problem.scenario is not None
    learning = task.problem.scenario.learning
    drafts: list[Draft] = []
    seen = _objective(task).fitted.seen
    variants = [task.with_learner(steps, bits) for steps in seen("local_steps", learning.local_steps_choices)
                for bits in seen("upload_bits", learning.upload_bits_choices)]
    best = np.inf
    # The learners that train fastest come first: they rule out most of the others.
    for variant in sorted(variants, key=lambda variant: _objective(variant).fixed.scale):
        draft = _Grid(variant).best(below=best)
        if draft is not None:
            drafts.append(draft)
            best = min(best, draft.error)
    if not drafts:
        alone = _Grid(cheapest_task(task)).alone()
        return [] if alone is None else [alone]
    drafts = sorted((draft for draft in drafts if draft.error <= _CLOSE * best), key=lambda draft: draft.error)
    most = task.problem.rounds
    return sorted((_Grid(draft.task, most).refined(draft) for draft in drafts[:_REFINED]),
                  key=lambda draft: draft.error)


def _solved(draft: Draft, settings: SolverSettings) -> ForecastSolution | None:
    """The draft's rounds, local steps and bits with a certificate; fewer rounds where these do not fit."""
    task = draft.task
    while True:
        known = Composition(tuple(Part(k, draft.selected, kind.rounds) for k, kind in enumerate(task.kinds)))
        solution = solve_forecast(task, settings, [known], draft.slowed)
        rounds = task.problem.rounds
        if solution is not None or rounds == 1:
            return solution
        task = task.with_rounds(min(rounds - 1, int(_SHORTER * rounds)))


def _objective(task: Task) -> ForecastTangent:
    assert isinstance(task.objective, ForecastTangent)
    return task.objective


class _Grid:
    """Drafts of one learner, of at most so many rounds (by default the task's)."""

    def __init__(self, task: Task, most: int | None = None) -> None:
        self.task, self.problem, self.most = task, task.problem, most or task.problem.rounds
        kinds = task.kinds
        self.curves, self.dense_first = kinds[-1].curves, len(kinds) > 1
        self.first = task.with_rounds(1).kinds[-1].curves
        self._need = self.curves.overhead + self.curves.keep_min * self.curves.u_min

    def errors(self, rounds: Ints, selected: Bools) -> tuple[Floats, Floats]:
        """The forecast errors of selections (S, N), each in all rounds, and their z: (len(rounds), S).

        Infinite where the budgets do not carry them.
        """
        error, slowed = np.full((2, len(rounds), len(selected)), np.inf)
        kept = self._kept(rounds, selected, np.full(error.shape, _DENSE_ROUND if self.dense_first else 1.0))
        if self.dense_first:  # costs grow with the share of the model that is kept
            kept = self._kept(rounds, selected, 1.0 / kept)
        few, apart = 1.0 / selected.sum(axis=-1), _objective(self.task).divergence(selected)
        for place, count in enumerate(rounds.tolist()):
            share = (1.0 - kept[place]) * ((count - 1) / count if self.dense_first else 1.0)
            fixed = _objective(self.task.with_rounds(count)).fixed
            z = fixed.slowed_by_pruning * share + fixed.slowed_by_divergence * apart
            value = fixed.scale * np.exp(z) + fixed.few_clients * few + fixed.divergence * apart + fixed.floor
            error[place] = np.where(np.isfinite(share), value, np.inf)
            slowed[place] = np.where(np.isfinite(share), z, np.inf)
        return error, slowed

    def _kept(self, rounds: Ints, selected: Bools, first_round: Floats) -> Floats:
        """The mean share of the model that selections (S, N) keep in the rounds that may be pruned: (len(rounds), S).

        Not a number where the budgets do not carry them.

        :param first_round: how many pruned rounds the first one costs, (len(rounds), S).
        """
        kept = np.full(first_round.shape, np.nan)
        counted = np.where(rounds > 1, rounds - 1, 0)[:, None] + np.where((rounds > 1)[:, None], first_round, 1.0)
        budget = self.problem.energy_j / counted - self.problem.broadcast_j
        for curves, rows in ((self.first, rounds == 1), (self.curves, rounds > 1)):
            wanted = rows[:, None] & (budget > 0.0)
            if not wanted.any():
                continue
            sets = np.broadcast_to(selected, (len(rounds), *selected.shape))[wanted]
            answer = allocate(
                curves, self.problem.delay_s / counted[wanted][:, None] - curves.overhead,
                np.broadcast_to(1.0 / sets.sum(axis=-1, keepdims=True), sets.shape), np.ones(sets.shape), sets,
                budget[wanted])
            kept[wanted] = np.where(answer.feasible, answer.value, np.nan)
        return kept

    def best(self, below: float) -> Draft | None:
        """The best of the first grid; None where it cannot be better than ``below``, or nothing fits."""
        rounds = np.unique(np.geomspace(1, self.most, _ROUNDS).round().astype(np.intp))
        hopeless = sum(_objective(self.task.with_rounds(int(r))).least_error >= _CLOSE * below for r in rounds)
        if hopeless == len(rounds):
            return None
        rounds, selected = rounds[max(hopeless - 1, 0):], self._selections()  # the last hopeless one begins the range
        error, _ = self.errors(rounds, selected)
        row, few = int(error.min(axis=1).argmin()), error.min(axis=0).argsort()[:_FEW]
        around = rounds[max(row - 1, 0)], rounds[min(row + 1, len(rounds) - 1)]
        return self._best_of(np.unique(np.geomspace(*around, 2 * _FINER + 1).round().astype(np.intp)), selected[few])

    def alone(self) -> Draft | None:
        """The best round of a single client, or of those whom the scheme selects."""
        everyone = np.eye(self.problem.size, dtype=np.bool_) if self.task.selected is None else self.task.selected[None]
        return self._best_of(np.ones(1, dtype=np.intp), everyone)

    def _best_of(self, rounds: Ints, selected: Bools) -> Draft | None:
        error, slowed = self.errors(rounds, selected)
        row, place = np.unravel_index(int(error.argmin()), error.shape)
        if not np.isfinite(error[row, place]):
            return None
        task = self.task.with_rounds(int(rounds[row]))
        return Draft(task, selected[place], float(error[row, place]), float(slowed[row, place]))

    def _selections(self) -> Bools:
        """Where the clients are free: the fastest, the most frugal and the best mixed ones, in several numbers."""
        size = self.problem.size
        if self.task.selected is not None:
            return self.task.selected[None]
        longest = self.curves.overhead + self.curves.u_min
        _, point = self.curves.until(np.array(np.median(longest) + longest.min()))
        frugal = self.curves.keep_min * point.energy
        sizes = np.unique(np.geomspace(1, size, _SIZES).round().astype(np.intp))
        orders = [np.argsort(self._need, kind="stable"), np.argsort(frugal * self._need, kind="stable")]
        rows = [order[:count] for order in orders for count in sizes]
        rows += [frugal.argsort()[:1]]
        selected = np.zeros((len(rows), size), dtype=np.bool_)
        for chosen, row in zip(selected, rows, strict=True):
            chosen[row] = True
        return np.unique(selected, axis=0)

    def refined(self, draft: Draft) -> Draft:
        """The draft improved by turns: clients added or dropped, and the number of rounds."""
        best, width = draft, 0.5
        for _ in range(6):
            before = best.error
            best = self._other_rounds(best, width)
            if self.task.selected is None:
                best = self._other_clients(best)
            width *= 0.5
            if best.error >= before * (1.0 - 1e-5) and width < 0.1:
                break
        return best

    def _other_rounds(self, draft: Draft, width: float) -> Draft:
        rounds = draft.task.problem.rounds
        near = np.round(rounds * np.exp(np.linspace(-width, width, 9))).astype(np.intp)
        near = np.unique(np.clip(np.append(near, [rounds - 1, rounds, rounds + 1]), 1, self.most))
        other = self._best_of(near, draft.selected[None])
        return other if other is not None and other.error < draft.error else draft

    def _other_clients(self, draft: Draft) -> Draft:
        rounds, size = np.array([draft.task.problem.rounds]), self.problem.size
        random = np.random.default_rng(0)
        for _ in range(_STEPS):
            flips = np.arange(size) if size <= _FLIPPED else random.choice(size, _FLIPPED, replace=False)
            near = draft.selected ^ (np.arange(size) == flips[:, None])
            near = near[near.any(axis=-1)]
            other = self._best_of(rounds, near) if len(near) else None
            if other is None or other.error >= draft.error:
                break
            draft = other
        return draft


def cheapest_task(task: Task) -> Task:
    """One round with the fewest local steps and bits. If this does not fit the budgets, no plan does."""
    assert task.problem.scenario is not None
    learning = task.problem.scenario.learning
    seen = _objective(task).fitted.seen
    steps, bits = (min(seen(name, choices)) for name, choices in (
        ("local_steps", learning.local_steps_choices), ("upload_bits", learning.upload_bits_choices)))
    return task.with_learner(steps, bits).with_rounds(1)
