"""Objectives: what a plan minimises."""

import numpy as np

from fedgap import Objective


class ManyClients(Objective):
    """Prefers rounds with many clients: a round costs one over its number of clients, plus its mean pruning ratio."""

    name = "many_clients"
    constant = 0.0
    pruning_weight = 1.0

    def __init__(self, problem):
        """The problem has the fleet, the budgets and the number of rounds. This objective needs none of them."""

    def selection_cost(self, selected):
        """The cost of each selection before pruning; ``selected`` has one truth value per client on its last axis."""
        clients = selected.sum(axis=-1)
        return np.where(clients > 0, 1.0 / np.maximum(clients, 1), np.inf)

    def with_rounds(self, rounds):
        """The same objective for another number of rounds; here the number does not matter."""
        return self
