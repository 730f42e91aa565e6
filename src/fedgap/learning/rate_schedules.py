"""Factors that multiply a learning rate over the rounds of a plan.

What they multiply depends on the server's optimiser: see
:meth:`fedgap.learning.server_optimisers.ServerOptimiser.scheduled`.
"""

from math import ceil, cos, pi

WARM_UP_SHARE = 0.05
"""The share of a plan's rounds in which the rate rises. The first rounds with momentum are the least stable: a rate
that is fine later may diverge if it is used from the start."""


def factor(round: int, rounds: int, *, cosine: bool = False, warm_up: float = 0.0) -> float:
    """The factor in (0, 1] that multiplies the rate in round s = ``round``, which is one of 0..``rounds`` − 1.

    In the first w = ⌈``warm_up``·rounds⌉ rounds it rises linearly, (s + 1)/w. After that it is 1; with ``cosine`` it
    falls as half a cosine from 1 towards 0, and would reach 0 in the round after the last."""
    if not 0 <= round < rounds:
        raise ValueError(f"round must be in 0..{rounds - 1}, because the plan has {rounds} rounds; got {round}")
    if not 0.0 <= warm_up < 1.0:
        raise ValueError(f"warm_up, the share of rounds in which the rate rises, must be in [0, 1); got {warm_up}")
    rising = ceil(warm_up * rounds)
    if round < rising:
        return (round + 1) / rising
    return 0.5 * (1.0 + cos(pi * (round - rising) / (rounds - rising))) if cosine else 1.0


SCHEDULES = {"constant": (False, False), "cosine": (False, True), "warm_up": (True, False),
             "warm_up_cosine": (True, True)}
"""The schedules by name, as (whether the rate rises at first, whether it then falls as a cosine)."""
