"""``static``: follows the plan that was made before the first round, with powers and clocks for the present channels.

Planned clients that are not available, or whose batteries do not suffice for the round, are left out. A round may take
the share of the remaining time that the plan gives it. If the channels are so bad that a round would exceed a budget,
the policy waits for better ones.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from fedgap.planning.policies.policy import Decision, PolicyStart, RoundView
from fedgap.planning.policies.present_channel import least_energy
from fedgap.planning.policies.present_round import PresentRound

_ROUNDING = 1e-9
"""Share of the energy budget by which a round may exceed what is left, because of rounding."""


class Static:
    """Follows a plan, round by round in the plan's order."""

    def __init__(self, start: PolicyStart) -> None:
        self.start, self.segments, self.order = start, start.plan.segments, start.order
        self.planned_s = [float(start.problem.cost(segment).delay_s) for segment in self.segments]
        self.state: dict[str, Any] = {}

    def decide(self, view: RoundView) -> Decision:
        """Return the plan's next round, or no round if it must wait."""
        done = len(view.done)
        if done >= len(self.order):
            return Decision(None, ends=True)
        planned = self.segments[self.order[done]]
        chosen = planned.selected & view.available
        present = PresentRound.of(self.start, view)
        if present is None or not chosen.any():
            return Decision(None)
        left = sum(self.planned_s[segment] for segment in self.order[done:])
        deadline = view.delay_s * self.planned_s[self.order[done]] / left
        while chosen.any():
            ratio = np.where(chosen, planned.pruning_ratio, 0.0)
            segment = least_energy(view.fleet, self.start.scheme,
                                   replace(planned, selected=chosen, pruning_ratio=ratio), deadline)
            cost = present.cost(segment)
            overdrawn = present.spread(cost.client_j) > view.battery_j
            if not overdrawn.any():
                energy_j = view.energy_j + _ROUNDING * self.start.problem.energy_j
                if cost.energy_j > energy_j and self.start.affords_a_round(view.energy_j, view.delay_s):
                    return Decision(None)
                return Decision(segment)
            chosen = chosen & ~overdrawn
        return Decision(None)
