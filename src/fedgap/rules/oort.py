"""``oort``: loss times speed, with exploration (Lai, Zhu, Madhyastha and Chowdhury, OSDI 2021).

A client that took part before has the utility

    [ (U_n − 0.999·min U)/(max U − 0.999·min U) + √(0.1·ln t / last_n) ] · min(1, T/t_n)^α

with U_n = D̂_n·√(mean squared loss) its statistical utility, clipped at the 95th percentile, last_n the round in which
it took part last, t_n its seconds and T the preferred seconds of a round. In round t a share ε of the k places goes to
clients that never took part, drawn in proportion to their speed; ε falls from 0.9 by a factor 0.98 to 0.2. The other
places are drawn in proportion to utility, from the clients with at least 95 % of the utility of the first one without
a place.
T is a percentile of the clients' seconds. The *pacer* raises it by 5 percentage points after every 20 rounds in which
the utility of the exploited clients changed by at most a tenth, and lowers it where it changed more than fivefold.
These are the formulas and constants of the authors' code (github.com/SymbioticLab/Oort).

Deviations: the clients' mean losses are known, not the mean of their squares, so that U_n = D̂_n·loss_n. Nobody is
excluded for having taken part often, and once everybody took part nobody is explored.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members

PENALTY = 2.0
"""α."""
FIRST_EXPLORATION, EXPLORATION_DECAY, LEAST_EXPLORATION = 0.9, 0.98, 0.2
CLIPPED_AT = 0.95
CUT_OFF = 0.95
PACER_STEP = 20
PACER_DELTA = 5.0
FIRST_PERCENTILE = 30.0
"""Where T begins among the clients' seconds."""
EXPLORED_WINDOW = 5.0
"""Unexplored clients are drawn from the fastest ones, this many times as many as are needed."""


def utility(reward: Floats, last: Floats, seconds: Floats, number: int, preferred_s: float) -> Floats:
    """The utility of clients that took part before; ``reward``: U_n, ``last`` and ``number`` count rounds from 1."""
    clip = np.sort(reward)[min(int(len(reward) * CLIPPED_AT), len(reward) - 1)]
    least = 0.999 * float(reward.min())
    span = max(float(reward.max()) - least, 1e-4)
    value = (np.minimum(reward, clip) - least) / span + np.sqrt(0.1 * np.log(number) / last)
    return np.asarray(value * slowness(seconds, preferred_s))


def slowness(seconds: Floats, preferred_s: float) -> Floats:
    """(T/t)^α for clients that need longer than T, else 1."""
    return np.where(seconds > preferred_s, (preferred_s / seconds) ** PENALTY, 1.0)


class Oort(RoundRule):
    """Exploits clients of high utility and explores those that never took part."""

    uses_losses = True

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self.state = {"percentile": FIRST_PERCENTILE, "exploited": [], "utilities": []}

    def choose(self, now: RoundFacts) -> Bools:
        """Some of the clients with the highest utility, and some that never took part."""
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
        if self.state["percentile"] >= 100.0:
            return np.inf
        ordered = np.sort(self.facts.seconds)
        return float(ordered[min(int(len(ordered) * self.state["percentile"] / 100.0), len(ordered) - 1)])

    def _pace(self, reward: Floats, number: int) -> None:
        """Note what the last round's exploited clients were worth, and change T where that says so."""
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
