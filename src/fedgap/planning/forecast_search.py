"""Choose the rounds, local steps and upload bits of the plan with the least forecast error.

For given rounds R, local steps τ and bits, :mod:`fedgap.planning.forecast_plan` finds the best plan with a certificate,
which takes seconds. To solve only a few of them, *drafts* are made first: estimates of plans with the same selection in
all rounds. The least pruning of a draft, and with it its error, needs one call of
:func:`fedgap.planning.resources.allocate`, for many selections and numbers of rounds at once.

A *learner* is a choice of τ and bits. For each learner a grid of selections and numbers of rounds is tried, and then a
finer grid around its best number of rounds, because the error changes fast near the most rounds that fit the budgets.
Numbers of rounds are skipped if the error would be too high even with all clients and without pruning. The drafts of
the best learners are then improved by changing single clients and the number of rounds, and the best of them are solved
with a certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.composition import Composition, Part
from fedgap.planning.forecast_plan import ForecastSolution, solve_forecast, solve_turns
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, features_of_rounds, few_clients
from fedgap.planning.resources import allocate
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task
from fedgap.planning.turn_taking import TurnDraft, TurnSearch
from fedgap.theory.forecast import PlanFeatures

_ROUNDS = 14
"""How many numbers of rounds the first grid has, in geometric steps."""
_SIZES = 24
"""How many numbers of clients the first grid has, in geometric steps."""
_CLOSE = 1.03
"""Learners whose best error on the grid is within this factor of the best are improved."""
_REFINED = 4
"""Maximum number of learners that are improved."""
_SOLVED = 2
"""Maximum number of learners that are solved with a certificate."""
_NEAR_TIE = 1.004
"""The second-best learner is also solved with a certificate if its error is within this factor of the best."""
_STEPS = 30
"""Maximum number of improvements of a selection."""
_FLIPPED = 64
"""In a large fleet, how many clients are tried at a time for being added or dropped."""
_FINER = 5
"""How many steps of the finer grid of rounds fit into one step of the first grid."""
_FEW = 8
"""How many of the best selections of the first grid are tried on the finer one."""
_APART = 1.06
"""A draft has clearly more or fewer rounds than the best one if their numbers differ by this factor."""
_DENSE_ROUND = 1.5
"""First guess of how many pruned rounds an unpruned first round costs."""
_WORTH_TURNS = 2e-3
"""Clients take turns if that lowers the forecast error by more than this share."""
MOST_IN_TURNS = 64
"""Clients of larger fleets do not take turns: this search takes several times as long as the rest, for a small gain."""
_SHORTER = 0.97
"""If a plan with the draft's number of rounds does not fit, this share of the rounds is tried next."""


@dataclass(frozen=True, eq=False)
class Draft:
    """An estimate of a plan with the same selection in all rounds."""

    task: Task
    """The task with the draft's rounds, local steps and bits."""
    selected: Bools
    """The clients that take part, (N,)."""
    error: float
    """The forecast error."""
    slowed: float
    """z = d·λ̄ + (c·KL(A) + g/k)·τ^q of the forecast."""

    @property
    def features(self) -> PlanFeatures:
        """The features of the draft on which its forecast depends."""
        fixed = _objective(self.task).fixed
        unpruned = features_of_rounds(self.task.problem, self.selected[None], 0.0)
        pruned = self.slowed - fixed.slowed(unpruned)
        weight = fixed.slowed_by_pruning
        return replace(unpruned, pruning=pruned / weight if weight > 0.0 else 0.0)


def best_forecast(task: Task, settings: SolverSettings) -> ForecastSolution | None:
    """Return the plan with the least forecast error; None if not even one round fits the budgets."""
    answer: ForecastSolution | None = None
    drafts = best_drafts(task)
    for draft in drafts[:_SOLVED]:
        if answer is not None and draft.error > _NEAR_TIE * drafts[0].error:
            break
        solution = _solved(draft, settings)
        if solution is not None and (answer is None or solution.error < answer.error):
            answer = solution
        if answer is not None and answer.interrupted:
            return answer
    try:
        turns = best_turns(task, drafts)
        if turns is None or (answer is not None and turns.error >= (1.0 - _WORTH_TURNS) * answer.error):
            return answer
        other = solve_turns(task, turns, settings)
    except KeyboardInterrupt:
        if answer is None:
            raise
        return replace(answer, interrupted=True)
    # With ``target`` batches the error of a draft is only a lower bound.
    return other if answer is None or other.error < answer.error else answer


def best_turns(task: Task, drafts: Sequence[Draft]) -> TurnDraft | None:
    """Return the best draft in which clients take turns; None if there is none that fits the budgets.

    :param drafts: those of :func:`best_drafts`. The search begins with the learner of the best, and then tries more and
        fewer local steps as long as that helps.
    """
    scenario = task.problem.scenario
    assert scenario is not None
    # In a changing world clients may be absent when it is their turn, and policies judge each round alone.
    fixed = task.selected is not None or not task.scheme.turns or scenario.world is not None
    if fixed or not drafts or not 2 <= task.problem.size <= MOST_IN_TURNS:
        return None
    first = drafts[0].task
    choices = _objective(task).fitted.seen("local_steps", scenario.learning.local_steps_choices)

    def search(steps: int) -> TurnSearch:
        problem = task.problem.with_learner(steps, first.problem.upload_bits)
        return TurnSearch(problem.with_rounds(task.problem.rounds), task.scheme)

    start = first.problem.local_steps
    shapes = search(start).shapes(first.problem.rounds)
    best = search(start).best(shapes)
    for side in (sorted(step for step in choices if step > start),
                 sorted((step for step in choices if step < start), reverse=True)):
        nearest = best
        for steps in side:
            other = search(steps).best(shapes if nearest is None else [nearest])
            if other is None or (nearest is not None and other.error >= nearest.error):
                break
            nearest = other
        best = nearest if best is None or (nearest is not None and nearest.error < best.error) else best
    return best


def best_drafts(task: Task) -> list[Draft]:
    """Return the best draft of each of the best learners, sorted by error; empty if not even one round fits."""
    assert task.problem.scenario is not None
    learning = task.problem.scenario.learning
    drafts: list[list[Draft]] = []
    seen = _objective(task).fitted.seen
    variants = [task.with_learner(steps, bits) for steps in seen("local_steps", learning.local_steps_choices)
                for bits in seen("upload_bits", learning.upload_bits_choices)]
    best = np.inf
    # Learners that train fastest are tried first, because they exclude most of the others.
    for variant in sorted(variants, key=lambda variant: _objective(variant).fixed.scale):
        found = _Grid(variant).best(below=best)
        if found:
            drafts.append(found)
            best = min(best, found[0].error)
    if not drafts:
        alone = _Grid(cheapest_task(task)).alone()
        return [] if alone is None else [alone]
    most = task.problem.rounds
    close = sorted((found for found in drafts if found[0].error <= _CLOSE * best), key=lambda found: found[0].error)
    # With other numbers of rounds other clients are best. Trying them is slow, and is left to the best learner.
    tried = [close[0], *(found[:1] for found in close[1:_REFINED])]
    return sorted((min((_Grid(draft.task, most).refined(draft) for draft in found), key=_error) for found in tried),
                  key=_error)


def _error(draft: Draft) -> float:
    return draft.error


def _solved(draft: Draft, settings: SolverSettings) -> ForecastSolution | None:
    """Solve the draft's task with a certificate, or with fewer rounds if these do not fit; None if none do."""
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
    """The drafts of one learner with at most ``most`` rounds, by default the task's."""

    def __init__(self, task: Task, most: int | None = None) -> None:
        self.task, self.problem, self.most = task, task.problem, most or task.problem.rounds
        kinds = task.kinds
        self.curves, self.dense_first = kinds[-1].curves, len(kinds) > 1
        self.first = task.with_rounds(1).kinds[-1].curves
        self._need = self.curves.overhead + self.curves.keep_min * self.curves.u_min

    def errors(self, rounds: Ints, selected: Bools, first_round: float | None = None) -> tuple[Floats, Floats]:
        """Return the forecast errors and z of drafts with these numbers of rounds and selections, (len(rounds), S).

        Both are infinite if the rounds do not fit the budgets.

        :param selected: the selections, (S, N).
        :param first_round: how many pruned rounds the first one costs, if similar drafts have shown it.
        """
        error, slowed = np.full((2, len(rounds), len(selected)), np.inf)
        guess = first_round or (_DENSE_ROUND if self.dense_first else 1.0)
        kept = self._kept(rounds, selected, np.full(error.shape, guess))
        if self.dense_first and first_round is None:  # costs grow with the share of the model that is kept
            kept = self._kept(rounds, selected, 1.0 / kept)
        few, apart = 1.0 / selected.sum(axis=-1), _objective(self.task).divergence(selected)
        ever = few_clients(_objective(self.task).labels, few[:, None] * selected)
        for place, count in enumerate(rounds.tolist()):
            share = (1.0 - kept[place]) * ((count - 1) / count if self.dense_first else 1.0)
            fixed = _objective(self.task.with_rounds(count)).fixed
            z = (fixed.slowed_by_pruning * share + fixed.slowed_by_divergence * apart
                 + fixed.slowed_by_few_clients * few)
            value = fixed.scale * np.exp(z) + fixed.few_clients * ever + fixed.divergence * apart + fixed.floor
            error[place] = np.where(np.isfinite(share), value, np.inf)
            slowed[place] = np.where(np.isfinite(share), z, np.inf)
        return error, slowed

    def _kept(self, rounds: Ints, selected: Bools, first_round: Floats) -> Floats:
        """Return the mean share of the model that selections (S, N) keep in rounds that may be pruned, (len(rounds),
        S).

        It is NaN if the rounds do not fit the budgets.

        :param first_round: how many pruned rounds the first round costs, (len(rounds), S).
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

    def best(self, below: float) -> list[Draft]:
        """Return the best draft of both grids, then the best ones with clearly more and with clearly fewer rounds.

        The list is empty if nothing fits, or if no error can be clearly below ``below``.
        """
        rounds = np.unique(np.geomspace(1, self.most, _ROUNDS).round().astype(np.intp))
        hopeless = sum(_objective(self.task.with_rounds(int(r))).least_error >= _CLOSE * below for r in rounds)
        if hopeless == len(rounds):
            return []
        # The largest number of rounds that is too small stays as the lower end of the range.
        rounds, selected = rounds[max(hopeless - 1, 0):], self._selections()
        error, _ = self.errors(rounds, selected)
        row, few = int(error.min(axis=1).argmin()), selected[error.min(axis=0).argsort()[:_FEW]]
        around = rounds[max(row - 1, 0)], rounds[min(row + 1, len(rounds) - 1)]
        finer = np.unique(np.geomspace(*around, 2 * _FINER + 1).round().astype(np.intp))
        error, slowed = self.errors(finer, few)
        best = self._least(finer, few, error, slowed)
        if best is None:
            return []
        chosen = best.task.problem.rounds
        others = (self._least(finer[some], few, error[some], slowed[some])
                  for some in (finer > _APART * chosen, _APART * finer < chosen) if some.any())
        return [best, *(draft for draft in others if draft is not None)]

    def alone(self) -> Draft | None:
        """Return the best draft with one round and a single client, or with the clients that the scheme selects."""
        everyone = np.eye(self.problem.size, dtype=np.bool_) if self.task.selected is None else self.task.selected[None]
        return self._best_of(np.ones(1, dtype=np.intp), everyone)

    def _best_of(self, rounds: Ints, selected: Bools, first_round: float | None = None) -> Draft | None:
        """Return the best draft with one of these numbers of rounds and selections (S, N); None if none fits."""
        return self._least(rounds, selected, *self.errors(rounds, selected, first_round))

    def _least(self, rounds: Ints, selected: Bools, error: Floats, slowed: Floats) -> Draft | None:
        """Return the draft with the least of these errors; None if all are infinite."""
        row, place = np.unravel_index(int(error.argmin()), error.shape)
        if not np.isfinite(error[row, place]):
            return None
        task = self.task.with_rounds(int(rounds[row]))
        return Draft(task, selected[place], float(error[row, place]), float(slowed[row, place]))

    def _selections(self) -> Bools:
        """Return the selections of the first grid, (S, N).

        They are the first clients in the order of speed, and of speed and energy together, for several numbers of
        clients, and the most frugal client; or the only selection that the scheme allows.
        """
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
        """Return the draft after its number of rounds and its clients were improved by turns."""
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
        """Return the best draft with a similar number of rounds: up to e^width times as many or as few."""
        rounds = draft.task.problem.rounds
        near = np.round(rounds * np.exp(np.linspace(-width, width, 9))).astype(np.intp)
        near = np.unique(np.clip(np.append(near, [rounds - 1, rounds, rounds + 1]), 1, self.most))
        other = self._best_of(near, draft.selected[None])
        return other if other is not None and other.error < draft.error else draft

    def _other_clients(self, draft: Draft) -> Draft:
        """Return the draft after single clients were added or dropped, as long as that helps."""
        rounds, size = np.array([draft.task.problem.rounds]), self.problem.size
        kept = 1.0 - draft.features.pruning * rounds[0] / max(rounds[0] - 1, 1)
        first_round = 1.0 / kept if self.dense_first and rounds[0] > 1 else None  # one client changes it little
        random = np.random.default_rng(0)
        for _ in range(_STEPS):
            flips = np.arange(size) if size <= _FLIPPED else random.choice(size, _FLIPPED, replace=False)
            near = draft.selected ^ (np.arange(size) == flips[:, None])
            near = near[near.any(axis=-1)]
            other = self._best_of(rounds, near, first_round) if len(near) else None
            if other is None or other.error >= draft.error:
                break
            draft = other
        return draft


def cheapest_task(task: Task) -> Task:
    """Return the task with one round and the fewest local steps and bits. If it does not fit the budgets, none does."""
    assert task.problem.scenario is not None
    learning = task.problem.scenario.learning
    seen = _objective(task).fitted.seen
    steps, bits = (min(seen(name, choices)) for name, choices in (
        ("local_steps", learning.local_steps_choices), ("upload_bits", learning.upload_bits_choices)))
    return task.with_learner(steps, bits).with_rounds(1)
