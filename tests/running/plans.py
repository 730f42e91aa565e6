"""Plans made by hand, so that the tests of running need no solver."""

from collections.abc import Sequence

import numpy as np

from fedgap.config import Scenario
from fedgap.planning.plan import Plan, Segment


def by_hand(scenario: Scenario, *segments: tuple[int, Sequence[int], float | Sequence[float]]) -> Plan:
    """A plan of segments (rounds, selected clients, λ), the power and frequency of client n a third and half of its
    maximum, growing with n."""
    fleet, n = scenario.fleet(), scenario.size
    made = []
    for rounds, chosen, ratio in segments:
        selected = np.isin(np.arange(n), list(chosen))
        share = (1 + np.arange(n) / n) / 2
        made.append(Segment(rounds, selected, np.where(selected, ratio, 0.0),
                            np.where(selected, share * fleet.max_power_w / 1.5, 0.0),
                            np.where(selected, share * fleet.max_frequency_hz, 0.0),
                            local_steps=scenario.learning.local_steps))
    return Plan(status="feasible", scheme="proposed", solver="hand", rounds=sum(s.rounds for s in made),
                segments=tuple(made), theta=1.5, terms={}, energy_j=0.0, delay_s=0.0, scenario_hash=scenario.hash())
