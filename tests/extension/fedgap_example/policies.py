"""Policies: who decides each round while channels, clients and budgets change."""

from fedgap.planning.policies.policy import Decision
from fedgap.planning.policies.present_round import PresentRound


class InTurn:
    """Two clients a round, those who have waited longest, with an equal share of what is left of both budgets."""

    def __init__(self, start):
        self.start, self.state = start, {}

    def decide(self, view):
        left = self.start.plan.rounds - len(view.done)
        if left <= 0:
            return Decision(None, ends=True)
        present = PresentRound.of(self.start, view)
        if present is None:
            return Decision(None)
        waited_longest = view.last_round[present.clients].argsort(kind="stable")
        selected = waited_longest.argsort() < 2
        return Decision(present.within(selected, view.energy_j / left, view.delay_s / left), reason="it was their turn")
