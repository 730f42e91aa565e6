"""The selection rule by which the faster half of the fleet takes part."""

import numpy as np

from fedgap.arrays import Bools
from fedgap.config import Scenario
from fedgap.system import round_cost


def fastest_half(scenario: Scenario) -> Bools:
    """Return the half of the clients (rounded up) that finish an unpruned round first at full power and clock, (N,).

    Of equally fast clients the first in the list is taken.
    """
    fleet, everybody = scenario.fleet(), np.ones(scenario.size, dtype=np.bool_)
    seconds = round_cost(fleet, everybody, np.zeros(fleet.size), fleet.max_power_w, fleet.max_frequency_hz).client_s
    chosen = ~everybody
    chosen[np.argsort(seconds, kind="stable")[: (fleet.size + 1) // 2]] = True
    return chosen
