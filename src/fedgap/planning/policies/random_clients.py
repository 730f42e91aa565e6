"""``random``: draws as many clients as the plan's next round has at random; for comparison with other policies.

Each round may use an equal share of what is left of both budgets. Pruning, powers and clocks are the best within it.
If a round does not fit, its slowest clients are left out.
"""

from typing import Any

import numpy as np

from fedgap.planning.policies.policy import Decision, PolicyStart, RoundView
from fedgap.planning.policies.present_round import PresentRound
from fedgap.streams import stream

_LARGER = (1.0, 2.0)
"""Multiples of its share of the budgets that a round is given, one after another, until it fits."""


class RandomClients:
    """Draws the clients of each round at random."""

    def __init__(self, start: PolicyStart) -> None:
        self.start = start
        self.state: dict[str, Any] = {}

    def decide(self, view: RoundView) -> Decision:
        """Return a round with clients drawn at random, or no round if none fits."""
        plan, order, number = self.start.plan, self.start.order, len(view.done)
        left = len(order) - number
        if left <= 0:
            return Decision(None, ends=True)
        present = PresentRound.of(self.start, view)
        if present is None:
            return Decision(None)
        here = len(present.clients)
        wanted = min(int(plan.segments[order[number]].selected.sum()), here)
        drawn = stream(self.start.seed, "policy", view.number).permutation(here)[:wanted]
        selected = np.isin(np.arange(here), drawn) if present.selected is None else present.selected
        slowest = np.argsort(-present.shortest_s, kind="stable")
        for client in [None, *slowest[selected[slowest]][:-1].tolist()]:
            if client is not None:
                selected[client] = False
            for factor in _LARGER:
                segment = present.within(selected, factor / left * view.energy_j, factor / left * view.delay_s)
                if segment is not None:
                    return Decision(segment)
            if present.selected is not None:
                break
        return Decision(None)
