"""A run in a constant world whose clients a rule chooses from losses, round by round.

The job has every client's operating point, so that a round is a choice among its columns: no planner is needed, and the
run can be trained wherever a job can. Segment 0 of the job is the first round's points, segment 1 all others'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedgap.arrays import Floats
from fedgap.registry import RULES
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts
from fedgap.running.job import Job
from fedgap.running.ledger import Ledger

Ask = Callable[[int, Sequence[int]], Sequence[float]]
"""Called with a round and clients; the losses of the present model on a mini-batch of each."""
_BY_CLIENT = ("selected", "ratio", "compute_s", "upload_s", "compute_j", "upload_j", "upload_s_bit", "upload_j_bit",
              "cost_share", "label_probabilities")
"""Arrays of a job with one row per segment."""


def nobody_answers(number: int, clients: Sequence[int]) -> Sequence[float]:
    """No losses, where nobody can be asked: every answer is NaN."""
    return [float("nan")] * len(clients)


class RuledSteering:
    """Decides the rounds of one run by a rule, and remembers them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        settings = job.policy["rule"]
        counts = job.label_counts.astype(np.float64)
        facts = RuleFacts(settings["count"], counts.sum(axis=1), np.array(settings["seconds"]),
                          np.array(settings["joules"]), counts, job.seed)
        self._rule: RoundRule = RULES.load(job.policy["name"])(facts)
        self._probe_s, self._probe_j = np.array(settings["probe_s"]), np.array(settings["probe_j"])
        self.decided: list[dict[str, Any]] = []
        """Of each round: its ``clients`` and what its ``event`` says of it."""
        self.ended = ""
        """Why no further round follows; "" while rounds do."""
        self.ask: Ask = nobody_answers
        """How clients are asked for their loss."""
        self._losses, self._last_round = np.full(facts.size, np.nan), np.full(facts.size, -1.0)

    def decide(self, number: int, ledger: Ledger) -> None:
        """Decide round ``number`` unless that is done, or training has ended."""
        if not self.undecided(number):
            return
        if number >= self.job.policy["rule"]["most_rounds"]:
            self.ended = "all rounds are done"
            return
        event: dict[str, Any] = {}
        row, job = min(number, 1), self.job
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
            self.ended = ledger.affords(float(joules.sum()), float(seconds.max()))
            if self.ended:
                return
            event = ledger.book_probe(joules, seconds)
            self._losses[asked] = self.ask(number, np.flatnonzero(asked).tolist())
            now = replace(now, losses=self._losses.copy())
        chosen = self._rule.choose(now)
        self.decided.append({"clients": np.flatnonzero(chosen).tolist(), "event": event})

    def undecided(self, number: int) -> bool:
        """Whether round ``number`` is still to be decided, or the training's end."""
        return len(self.decided) <= number and not self.ended

    def learn(self, number: int, clients: Sequence[int], losses: Sequence[float]) -> None:
        """Note the training losses of a round's clients."""
        self._losses[list(clients)] = losses
        self._last_round[list(clients)] = number

    def ratios(self, number: int) -> list[float]:
        """The pruning ratios of the clients of a decided round."""
        return list(self.job.ratio[min(number, 1), self.decided[number]["clients"]].tolist())

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
        rows = np.minimum(np.array(numbers), 1)
        arrays: dict[str, Any] = {"statement": self.job.statement[rows]}
        for name in _BY_CLIENT:
            values = getattr(self.job, name)
            if values.size:
                mask = chosen.reshape(chosen.shape + (1,) * (values.ndim - 2))
                arrays[name] = np.where(mask, values[rows], np.zeros((), dtype=values.dtype))
        return arrays

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"policy": self._rule.state, "decided": self.decided, "ended": self.ended,
                "losses": [None if np.isnan(loss) else float(loss) for loss in self._losses],
                "last_round": self._last_round.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state`."""
        self._rule.state.clear()
        self._rule.state.update(state["policy"])
        self.decided, self.ended = state["decided"], state["ended"]
        self._losses = np.array([np.nan if loss is None else loss for loss in state["losses"]])
        self._last_round = np.array(state["last_round"])
