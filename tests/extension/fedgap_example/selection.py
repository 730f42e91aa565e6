"""Selection rules: who takes part in every round. The planner decides everything else for them."""

import numpy as np


def nearest_third(scenario):
    """The third of the clients (rounded up) with the best uplink channels."""
    gains = [client.uplink_gain for client in scenario.clients]
    best_first = np.argsort(gains)[::-1]
    return best_first[: -(-len(gains) // 3)]
