"""A run in a constant world whose clients a rule chooses from losses, round by round.

The job has every client's operating point, so that a round is a choice among its columns: no planner is needed, and the
run can be trained wherever a job can. Its segments are menus, one for the first round and one for all others, with a
segment for every time that a round may last: as long as planned, or as long as one of the slower clients needs.
"""

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
    """The points among which a round may choose."""

    least_s: Floats
    """The least seconds of each client, (N,)."""
    round_s: Floats
    """The seconds that a round may last, rising, (L,)."""
    first_segment: int
    """Of the shortest."""

    def segment(self, clients: Sequence[int]) -> int:
        """The segment of a round of these clients."""
        longest = self.least_s[list(clients)].max(initial=0.0)
        return self.first_segment + min(int(np.searchsorted(self.round_s, longest)), len(self.round_s) - 1)


class RuledSteering(DecidedRounds):
    """Decides the rounds of one run by a rule; what is decided of each round is its ``clients``."""

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
        """Decide round ``number`` unless that is done, or training has ended."""
        if not self.undecided(number):
            return
        if number >= self.job.policy["rule"]["most_rounds"]:
            self.ended = "all rounds are done"
            return
        event: dict[str, Any] = {}
        row, job = self._menu(number).first_segment, self.job
        client_s = job.compute_s[row] + job.upload_s[row] + job.download_s
        client_j = job.compute_j[row] + job.upload_j[row] + job.broadcast_j()
        # Who could not end a round of its own within what is left is not chosen.
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
        """The segment of a decided round: the shortest one in which all its clients can finish."""
        return self._menu(number).segment(self.decided[number]["clients"])

    def ratios(self, number: int) -> list[float]:
        """The pruning ratios of the clients of a decided round."""
        return list(self.job.ratio[self._segment(number), self.decided[number]["clients"]].tolist())

    def target(self, number: int) -> Floats | None:
        """The target's label distribution, where it drifts: it does not."""
        return None

    def round_job(self, number: int) -> Job:
        """The job of a decided round: one segment with its clients."""
        return replace(self.job, schedule=np.zeros(number + 1, dtype=np.int64), **self._rows([number]))

    def whole_job(self, rounds: int) -> Job:
        """The job with the rounds that were trained, for the summary and the model card."""
        if not rounds:
            return self.job
        return replace(self.job, schedule=np.arange(rounds), **self._rows(range(rounds)))

    def _rows(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The arrays of these rounds; whoever does not take part has zeros."""
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
        """What a checkpoint must hold."""
        return {"policy": self._rule.state, **super().state()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state`."""
        self._rule.state.clear()
        self._rule.state.update(state["policy"])
        super().load(state)
