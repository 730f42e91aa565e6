"""A run in a constant world in which a rule chooses the clients of each round from their losses.

The job contains every client's operating point (pruning, power, clock), so a round only chooses clients: no planner is
needed, and the run can be trained wherever a job can. The job's segments form menus, one for the first round and one
for all others. A menu has one segment for each duration that a round may have: the planned one, and those that slower
clients need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgap.arrays import Floats
from fedgap.registry import RULES
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts
from fedgap.running.decided_rounds import DecidedRounds
from fedgap.running.job import BY_CLIENT, Job
from fedgap.running.ledger import Ledger


@dataclass(frozen=True, eq=False)
class _Menu:
    """The durations among which a round may choose, and their segments."""

    least_s: Floats
    """The shortest time of each client in seconds, (N,)."""
    round_s: Floats
    """The durations of a round in seconds, rising, (L,)."""
    first_segment: int
    """Number of the segment with the shortest duration; the others follow it."""

    def segment(self, clients: Sequence[int]) -> int:
        """The number of the segment for a round with these clients."""
        longest = self.least_s[list(clients)].max(initial=0.0)
        return self.first_segment + min(int(np.searchsorted(self.round_s, longest)), len(self.round_s) - 1)


class RuledSteering(DecidedRounds):
    """Decides the rounds of one run by a rule. The decision of a round is its ``clients``."""

    def __init__(self, job: Job) -> None:
        super().__init__(len(job.names))
        self.job = job
        settings = job.policy["rule"]
        counts = job.label_counts.astype(np.float64)
        facts = RuleFacts(settings["count"], counts.sum(axis=1), np.array(settings["seconds"]),
                          np.array(settings["joules"]), counts, job.seed)
        self._rule: RoundRule = RULES.load(job.policy["name"])(facts)
        self._probe_s, self._probe_j = np.array(settings["probe_s"]), np.array(settings["probe_j"])
        self._menus = [_Menu(np.array(menu["least_s"]), np.array(menu["round_s"]), menu["segment"])
                       for menu in settings["menus"]]

    def decide(self, number: int, ledger: Ledger) -> None:
        """Decide round ``number``, unless it is already decided or training has ended."""
        if not self.undecided(number):
            return
        if number >= self.job.policy["rule"]["most_rounds"]:
            self.ended = "all rounds are done"
            return
        event: dict[str, Any] = {}
        row, job = self._menu(number).first_segment, self.job
        client_s = job.compute_s[row] + job.upload_s[row] + job.download_s
        client_j = job.compute_j[row] + job.upload_j[row] + job.broadcast_j()
        # Clients that could not finish a round within the rest of the budgets are not chosen.
        fits = ((client_s <= job.delay_budget_s - ledger.delay_s) & (client_j <= job.energy_budget_j - ledger.energy_j))
        if not fits.any():
            self.ended = "the budgets are spent"
            return
        now = RoundFacts(number, fits, self._losses.copy(), self._last_round.copy())
        asked = self._rule.asks(now)
        if asked is not None:
            joules, seconds = np.where(asked, self._probe_j, 0.0), np.where(asked, self._probe_s, 0.0)
            event = self._probe(number, asked, joules, seconds, ledger)
            if self.ended:
                return
            now = replace(now, losses=self._losses.copy())
        chosen = self._rule.choose(now)
        self.decided.append({"clients": np.flatnonzero(chosen).tolist(), "event": event})

    def _menu(self, number: int) -> _Menu:
        return self._menus[min(number, 1)]

    def _segment(self, number: int) -> int:
        """The number of the segment of a decided round: the shortest one in which all its clients can finish."""
        return self._menu(number).segment(self.decided[number]["clients"])

    def ratios(self, number: int) -> list[float]:
        """The pruning ratios of the clients in a decided round."""
        return list(self.job.ratio[self._segment(number), self.decided[number]["clients"]].tolist())

    def target(self, number: int) -> Floats | None:
        """None, because the target does not drift in a constant world."""
        return None

    def round_job(self, number: int) -> Job:
        """The job of a decided round: a single segment with the round's clients."""
        return replace(self.job, schedule=np.zeros(number + 1, dtype=np.int64), **self._rows([number]))

    def whole_job(self, rounds: int) -> Job:
        """The job with the rounds that were trained, each as its own segment, for the summary and the model card."""
        if not rounds:
            return self.job
        return replace(self.job, schedule=np.arange(rounds), **self._rows(range(rounds)))

    def _rows(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The job's arrays with one row for each of these rounds; clients that do not take part have zeros."""
        chosen = np.zeros((len(numbers), len(self.job.names)), dtype=np.bool_)
        for row, number in enumerate(numbers):
            chosen[row, self.decided[number]["clients"]] = True
        rows = np.array([self._segment(number) for number in numbers])
        arrays: dict[str, Any] = {"statement": self.job.statement[rows]}
        for name in (*BY_CLIENT, "label_probabilities"):
            values = getattr(self.job, name)
            if values.size:
                mask = chosen.reshape(chosen.shape + (1,) * (values.ndim - 2))
                arrays[name] = np.where(mask, values[rows], np.zeros((), dtype=values.dtype))
        return arrays

    def state(self) -> dict[str, Any]:
        """The values that a checkpoint must hold."""
        return {"policy": self._rule.state, **super().state()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._rule.state.clear()
        self._rule.state.update(state["policy"])
        super().load(state)
