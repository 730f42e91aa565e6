"""``fedzero``: an integer program for most utility within the energy of a round.

P. Wiesner, R. Khalili, D. Grinwald, P. Agrawal, L. Thamsen and O. Kao, *FedZero: Leveraging Renewable Excess Energy in
Federated Learning*, e-Energy 2024, arXiv:2305.15092.

FedZero chooses n clients and their batches in each time step such that the batches, weighted by statistical utility,
are the most that the forecast excess energy of every power domain and the spare capacity of every client allow, each
client doing between its least and its most batches. After a round its clients are excluded and come back with a
probability that falls with how often they took part.

It applies to a fleet with one budget of joules as a single power domain whose energy is constant, and every client does
its τ batches or none:

    max Σ_n σ_n·x_n   subject to   Σ_n x_n = k,   Σ_n E_n·x_n ≤ k·mean(E),   x binary,

with σ_n = D̂_n·loss_n (Oort's statistical utility) divided by its mean, 1 before the first participation, and E_n the
client's joules. Where k of the clients that are not excluded do not fit, exclusions are lifted for the round. A client
is released with probability (p_n − ω)^(−1) where p_n > ω, else 1; p_n counts its rounds and ω is the fleet's mean.

Deviation: the authors' search for the shortest duration of a round is left out, because the plan gives the deadline.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members


def most_utility(value: Floats, joules: Floats, count: int, limit_j: float) -> Bools:
    """The ``count`` clients of most value within a limit of joules, by integer programming; nobody where none fit."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    if count == 0 or len(value) < count or np.sort(joules)[:count].sum() > limit_j:
        return np.zeros(len(value), dtype=np.bool_)
    dearest = members(len(value), np.argsort(-value, kind="stable")[:count])
    if joules[dearest].sum() <= limit_j:
        return dearest
    rows = np.stack([np.ones(len(value)), joules / limit_j])
    answer = milp(-value, integrality=np.ones(len(value)), bounds=Bounds(0, 1),
                  constraints=LinearConstraint(rows, [count, -np.inf], [count, 1.0]))
    if answer.x is None:
        return np.zeros(len(value), dtype=np.bool_)
    return np.asarray(answer.x > 0.5)


class FedZero(RoundRule):
    """Solves the integer program in each round."""

    uses_losses = True

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self.state = {"times": [0] * facts.size, "excluded": []}

    def choose(self, now: RoundFacts) -> Bools:
        """The set of most utility."""
        facts, random = self.facts, self.random(now.number)
        times = np.array(self.state["times"], dtype=np.float64)
        over = times - times.mean()
        released = random.random(facts.size) < np.where(over > 1.0, 1.0 / np.maximum(over, 1.0), 1.0)
        excluded = np.isin(np.arange(facts.size), self.state["excluded"]) & ~released
        reward = facts.samples * now.losses
        value = np.where(np.isnan(reward), 1.0, reward / np.nanmean(reward) if (reward > 0.0).any() else 1.0)
        value = value + 1e-6 * random.random(facts.size)  # ties are broken at random
        wanted = self.wanted(now)
        limit = wanted * float(facts.joules.mean())
        chosen = np.zeros(facts.size, dtype=np.bool_)
        for pool in (now.available & ~excluded, now.available):
            here = np.flatnonzero(pool)
            chosen[here] = most_utility(value[here], facts.joules[here], min(wanted, len(here)), limit)
            if chosen.sum() == wanted:
                break
        if not chosen.any() and now.available.any():  # even the cheapest are above the mean: as few joules as possible
            here = np.flatnonzero(now.available)
            chosen[here[np.argsort(facts.joules[here], kind="stable")[:wanted]]] = True
        self.state["times"] = (np.array(self.state["times"]) + chosen).tolist()
        self.state["excluded"] = np.flatnonzero(excluded | chosen).tolist()
        return chosen
