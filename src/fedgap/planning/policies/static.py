"""``static``: the plan that was made before the first round, with powers and clocks solved again for each channel.

Planned clients that are away are left out. A round may take the share of the remaining time that the plan gives it.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from fedgap.planning.policies.policy import Decision, PolicyStart, RoundView
from fedgap.planning.policies.present_channel import least_energy


class Static:
    """Follows a plan. Its rounds are those of its order, one after the other."""

    def __init__(self, start: PolicyStart) -> None:
        self.segments, self.order = start.plan.segments, start.order
        self.planned_s = [float(start.problem.cost(segment).delay_s) for segment in self.segments]
        self.state: dict[str, Any] = {}

    def decide(self, view: RoundView) -> Decision:
        """The plan's next round."""
        done = len(view.done)
        if done >= len(self.order):
            return Decision(None, ends=True)
        planned = self.segments[self.order[done]]
        chosen = planned.selected & view.available
        if not chosen.any():
            return Decision(None)
        left = sum(self.planned_s[segment] for segment in self.order[done:])
        deadline = view.delay_s * self.planned_s[self.order[done]] / left
        ratio = np.where(chosen, planned.pruning_ratio, 0.0)
        return Decision(least_energy(view.fleet, replace(planned, selected=chosen, pruning_ratio=ratio), deadline))
