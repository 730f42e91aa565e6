"""``oort``: prefers clients with a high loss and a high speed, and explores others.

F. Lai, X. Zhu, H. V. Madhyastha and M. Chowdhury, *Oort: Efficient Federated Learning via Guided Participant
Selection*, OSDI 2021.

A client that took part before has the utility

    [ (U_n − 0.999·min U)/(max U − 0.999·min U) + √(0.1·ln t / last_n) ] · min(1, T/t_n)^α.

U_n = D̂_n·√(mean squared loss) is its statistical utility, clipped at the 95th percentile, last_n the round in which it
took part last, t_n its seconds, and T the preferred seconds of a round. In round t the share ε of the k places is for
*exploring*: they go to clients that never took part, drawn in proportion to their speed. ε falls from 0.9 by the factor
0.98 per round until it is 0.2. The other places are for *exploiting*: they are drawn in proportion to utility, from the
clients whose utility is at least 95 % of that of the (number of places + 1)-th best.

T is a percentile of the clients' seconds. The *pacer* raises it by 5 percentage points after 20 rounds in which the
utility of the exploited clients changed by at most a tenth, and lowers it if the utility changed more than fivefold.
Formulas and constants are those of the authors' code (github.com/SymbioticLab/Oort).

Deviations from the paper: only the clients' mean losses are known, not the means of their squares, so that
U_n = D̂_n·loss_n. No client is excluded for having taken part often. Once all clients have taken part, none is explored.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members

PENALTY = 2.0
"""α: the power by which slow clients are penalised."""
FIRST_EXPLORATION, EXPLORATION_DECAY, LEAST_EXPLORATION = 0.9, 0.98, 0.2
"""ε at first, the factor by which it falls per round, and its least value."""
CLIPPED_AT = 0.95
"""Quantile at which statistical utilities are clipped."""
CUT_OFF = 0.95
"""Share of the utility of the best client without a place that a client needs to be drawn."""
PACER_STEP = 20
"""Number of rounds after which T may change."""
PACER_DELTA = 5.0
"""Percentage points by which T changes."""
FIRST_PERCENTILE = 30.0
"""The percentile of the clients' seconds that is T at first."""
EXPLORED_WINDOW = 5.0
"""Clients to explore are drawn from this many times as many of the fastest ones as are needed."""


def utility(reward: Floats, last: Floats, seconds: Floats, number: int, preferred_s: float) -> Floats:
    """Return the utility of n clients that took part before, (n,).

    :param reward: U_n; :param last: last_n, and :param number: t, both counted from 1; :param seconds: t_n;
    :param preferred_s: T.
    """
    clip = np.sort(reward)[min(int(len(reward) * CLIPPED_AT), len(reward) - 1)]
    least = 0.999 * float(reward.min())
    span = max(float(reward.max()) - least, 1e-4)
    value = (np.minimum(reward, clip) - least) / span + np.sqrt(0.1 * np.log(number) / last)
    return np.asarray(value * slowness(seconds, preferred_s))


def slowness(seconds: Floats, preferred_s: float) -> Floats:
    """Return the factor by which slow clients are penalised: (T/t)^α for those that need longer than T, otherwise 1."""
    return np.where(seconds > preferred_s, (preferred_s / seconds) ** PENALTY, 1.0)


class Oort(RoundRule):
    """Exploits clients of high utility and explores those that never took part."""

    uses_losses = True

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self.state = {"percentile": FIRST_PERCENTILE, "exploited": [], "utilities": []}

    def choose(self, now: RoundFacts) -> Bools:
        """Return the clients of the next round, (N,): some with a high utility, and some that never took part."""
        facts, number = self.facts, now.number + 1
        reward = facts.samples * now.losses
        self._pace(reward, number)
        preferred_s = self._preferred_s()
        random = self.random(now.number)
        known = np.flatnonzero(now.available & ~np.isnan(reward))
        unknown = np.flatnonzero(now.available & np.isnan(reward))
        exploration = max(FIRST_EXPLORATION * EXPLORATION_DECAY**number, LEAST_EXPLORATION)
        wanted = self.wanted(now)
        exploited = min(int(wanted * (1.0 - exploration)) if len(unknown) else wanted, len(known))
        exploited = max(exploited, wanted - len(unknown))
        chosen: list[int] = []
        if exploited:
            value = utility(reward[known], now.last_round[known] + 1.0, facts.seconds[known], number, preferred_s)
            value = np.maximum(value, 1e-9)  # every client may be drawn
            least = CUT_OFF * np.sort(value)[::-1][min(exploited, len(value) - 1)]
            pool = value >= least
            chosen += random.choice(known[pool], exploited, replace=False,
                                    p=value[pool] / value[pool].sum()).tolist()
        self.state["exploited"] = list(chosen)
        explored = wanted - exploited
        if explored:
            speed = facts.samples[unknown] * slowness(facts.seconds[unknown], preferred_s)
            window = np.argsort(-speed, kind="stable")[: max(int(EXPLORED_WINDOW * explored), explored)]
            chosen += random.choice(unknown[window], explored, replace=False,
                                    p=speed[window] / speed[window].sum()).tolist()
        return members(facts.size, chosen)

    def _preferred_s(self) -> float:
        """Return T, the preferred seconds of a round."""
        if self.state["percentile"] >= 100.0:
            return np.inf
        ordered = np.sort(self.facts.seconds)
        return float(ordered[min(int(len(ordered) * self.state["percentile"] / 100.0), len(ordered) - 1)])

    def _pace(self, reward: Floats, number: int) -> None:
        """Record the mean utility of the last round's exploited clients, and change T if it is time for that."""
        state = self.state
        last = reward[np.array(state["exploited"], dtype=np.int64)]
        state["utilities"] = [*state["utilities"], float(np.nansum(last) / max(len(last), 1))][-2 * PACER_STEP:]
        if number < 2 * PACER_STEP or number % PACER_STEP:
            return
        before, after = sum(state["utilities"][:-PACER_STEP]), sum(state["utilities"][-PACER_STEP:])
        if abs(after - before) <= 0.1 * before:
            state["percentile"] = min(100.0, state["percentile"] + PACER_DELTA)
        elif abs(after - before) >= 5.0 * before:
            state["percentile"] = max(PACER_DELTA, state["percentile"] - PACER_DELTA)
