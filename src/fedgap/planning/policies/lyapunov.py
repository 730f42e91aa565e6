"""``lyapunov``: drift plus penalty, after Xu and Wang (IEEE Transactions on Wireless Communications, 2021).

Two virtual queues, Q_E and Q_T, record by how much the rounds so far have exceeded their share of energy and time:

    Q ← max(0, Q + spent/share − 1),        share = budget / rounds of the plan.

Each round minimises V·cost + Q_E·joules/share + Q_T·seconds/share, where the cost is the forecast's tangent at the
plan. This is the round's Lagrangian (:mod:`fedgap.planning.round_lagrangian`) at prices Q/(V·share). Nothing about the
future is used.
"""

from typing import Any

from fedgap.planning.objectives.forecast_tangent import forecast, plan_features
from fedgap.planning.policies.cheapest_round import cheapest_rounds
from fedgap.planning.policies.policy import Decision, PolicyStart, RoundView
from fedgap.planning.policies.present_round import PresentRound

_WEIGHT = 10.0
"""V times the plan's forecast error. The larger it is, the further the queues grow before they limit spending."""
_FIRST = 1.0
"""The queues before the first round. With 0 it would cost nothing to spend everything at once."""


class Lyapunov:
    """Decides each round by two virtual queues."""

    def __init__(self, start: PolicyStart) -> None:
        self.start = start
        problem, rounds = start.problem, start.plan.rounds
        features = plan_features(problem, start.plan.segments)
        tangent = forecast(problem.with_rounds(rounds))
        self._slowed = tangent.fixed.slowed(features)
        error = tangent.fixed.error(features)
        self._penalty = _WEIGHT / error
        self._shares = problem.energy_j / rounds, problem.delay_s / rounds
        self.state: dict[str, Any] = {"energy_queue": _FIRST, "delay_queue": _FIRST}

    def decide(self, view: RoundView) -> Decision:
        """Return the round with the least drift plus penalty that fits into what is left of the budgets."""
        state, rounds = self.state, self.start.plan.rounds
        left = rounds - len(view.done)
        if left <= 0:
            return Decision(None, ends=True)
        notes = {key: float(state[key]) for key in ("energy_queue", "delay_queue")}
        present = PresentRound.of(self.start, view)
        if present is None:
            return self._idle(notes)
        task = present.task(rounds, self._slowed)
        mu, nu = (state[key] / (self._penalty * share)
                  for key, share in zip(("energy_queue", "delay_queue"), self._shares, strict=True))
        columns = cheapest_rounds(task, mu, nu)
        if columns is None:
            return self._idle(notes)
        for i in range(len(columns.cost)):
            energy, delay = float(columns.energy[i]), float(columns.deadline[i])
            segment = present.within(columns.selected[i], energy, delay)
            if segment is not None:
                cost = present.cost(segment)
                self._queue(float(cost.energy_j), float(cost.delay_s))
                return Decision(segment, notes=notes)
        if self.start.affords_a_round(view.energy_j, view.delay_s):
            return self._idle(notes)
        return Decision(None, ends=True, notes=notes, reason="no round fits into what is left of the budgets")

    def _idle(self, notes: dict[str, float]) -> Decision:
        """Update the queues by a round in which nobody trains, and return that decision."""
        self._queue(0.0, self.start.step_s)
        return Decision(None, notes=notes)

    def _queue(self, energy_j: float, delay_s: float) -> None:
        """Update the queues by what a round spends."""
        spent = zip(("energy_queue", "delay_queue"), (energy_j, delay_s), self._shares, strict=True)
        for key, amount, share in spent:
            self.state[key] = max(0.0, self.state[key] + amount / share - 1.0)
