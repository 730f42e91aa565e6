"""The order in which a plan's rounds are trained. It matters for learning, but not for problem P1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ORDERS = ("even", "blocks")
"""``even`` mixes the segments evenly; ``blocks`` trains one segment after the other, as the plan lists them."""


def interleave(rounds: Sequence[int], *, first: int | None = None, order: str = "even") -> NDArray[np.int64]:
    """Return the index of the segment that each round belongs to, shape (R,), with R = Σ ``rounds``.

    With ``even``, round t goes to the segment whose fair share r_i·(t + 1)/R exceeds the rounds that it has had by
    most; of equal ones to the first. Segment i then has exactly r_i rounds, spread evenly. Only whole numbers are used,
    so that the order is the same on every machine.

    :param rounds: r_i, the number of rounds of each segment;
    :param first: a segment of which one round must be round 0, such as the unpruned first round; the others are mixed.

    >>> interleave([4, 2]).tolist()
    [0, 1, 0, 0, 1, 0]
    >>> interleave([1, 2, 2], first=0).tolist()
    [0, 1, 2, 1, 2]
    """
    if order not in ORDERS:
        raise ValueError(f"order: must be one of {', '.join(ORDERS)}; got {order!r}")
    left = np.array(rounds, dtype=np.int64)
    head = []
    if first is not None:
        left[first] -= 1
        head = [first]
    if (left < 0).any():
        raise ValueError("rounds must be whole numbers of at least 0, and the segment of the first round must have at "
                         "least one")
    total = int(left.sum())
    if order == "blocks":
        return np.array([*head, *np.repeat(np.arange(len(left)), left)], dtype=np.int64)
    result = np.empty(total, dtype=np.int64)
    behind = np.zeros_like(left)  # (fair share − rounds had)·total, in whole numbers
    for t in range(total):
        behind += left
        result[t] = segment = int(behind.argmax())
        behind[segment] -= total
    return np.concatenate([np.array(head, dtype=np.int64), result])
