"""Factors that multiply a learning rate over the rounds of a plan.

What they multiply depends on the server's optimiser: see
:meth:`fedgap.learning.server_optimisers.ServerOptimiser.scheduled`.
"""

from math import ceil, cos, pi

WARM_UP_SHARE = 0.05
"""The share of a plan's rounds in which the rate rises. The first rounds with momentum are the least stable: a rate
that is fine later may diverge if it is used from the start."""


def factor(round: int, rounds: int, *, cosine: bool = False, warm_up: float = 0.0) -> float:
    """The factor in (0, 1] of round s = ``round`` of 0..``rounds`` − 1.

    In the first w = ⌈``warm_up``·rounds⌉ rounds it rises linearly, (s + 1)/w. After that it is 1, or with ``cosine``
    falls as half a cosine from 1 towards 0, which would be reached in the round after the last.
    """
    if not 0 <= round < rounds:
        raise ValueError(f"a plan of {rounds} rounds has rounds 0 to {rounds - 1}, not {round}")
    if not 0.0 <= warm_up < 1.0:
        raise ValueError(f"the share of rounds for warming up lies in [0, 1), not {warm_up}")
    rising = ceil(warm_up * rounds)
    if round < rising:
        return (round + 1) / rising
    return 0.5 * (1.0 + cos(pi * (round - rising) / (rounds - rising))) if cosine else 1.0


SCHEDULES = {"constant": (False, False), "cosine": (False, True), "warm_up": (True, False),
             "warm_up_cosine": (True, True)}
"""The schedules by name: whether the rate rises at first, and whether it then falls as a cosine."""
