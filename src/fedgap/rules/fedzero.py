"""``fedzero``: selects the clients with the most utility within an energy limit, by an integer program.

P. Wiesner, R. Khalili, D. Grinwald, P. Agrawal, L. Thamsen and O. Kao, *FedZero: Leveraging Renewable Excess Energy in
Federated Learning*, e-Energy 2024, arXiv:2305.15092.

FedZero selects n clients, and how many batches each computes in every time step. It maximises the number of batches,
weighted by statistical utility, within the forecast excess energy of every power domain and the spare capacity of every
client; each client computes between a least and a largest number of batches. The clients of a round are then excluded,
and come back with a probability that falls with how often they took part.

A fleet with one energy budget is treated as a single power domain with constant energy, in which every client computes
either its τ batches or none:

    max Σ_n σ_n·x_n   subject to   Σ_n x_n = k,   Σ_n E_n·x_n ≤ k·mean(E),   x binary,

σ_n is D̂_n·loss_n (Oort's statistical utility) divided by its mean, and 1 for a client that has not taken part yet. E_n
are the client's joules. If no k clients that are not excluded fit the limit, exclusions are ignored for the round. An
excluded client comes back with probability 1/(p_n − ω) if p_n − ω > 1, otherwise with probability 1; p_n is the number
of its rounds and ω the fleet's mean.

Deviations from the authors' code: the search for the shortest duration of a round is left out, because the plan has a
deadline; the limit is k·mean(E); the loss is a mean; a client without a loss counts as average, there by its number of
samples; all clients of a round are excluded, there a part of them; if nobody fits, the round there waits.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members


def most_utility(value: Floats, joules: Floats, count: int, limit_j: float) -> Bools:
    """Return the ``count`` clients with the largest sum of values within a limit of joules, (n,); nobody if none fit.

    :param value: σ, (n,); :param joules: E, (n,).
    """
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
    """Selects the clients of each round by the integer program of the module docstring."""

    uses_losses = True

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self.state = {"times": [0] * facts.size, "excluded": []}

    def choose(self, now: RoundFacts) -> Bools:
        """Return the clients of the next round, (N,)."""
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
        if not chosen.any() and now.available.any():  # not even the cheapest clients fit the limit: take these
            here = np.flatnonzero(now.available)
            chosen[here[np.argsort(facts.joules[here], kind="stable")[:wanted]]] = True
        self.state["times"] = (np.array(self.state["times"]) + chosen).tolist()
        self.state["excluded"] = np.flatnonzero(excluded | chosen).tolist()
        return chosen
