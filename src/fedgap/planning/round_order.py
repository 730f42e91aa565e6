"""The order of a plan's rounds, which matters for learning but not for P1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ORDERS = ("even", "blocks")
"""``even`` interleaves the segments; ``blocks`` trains one after the other, as the plan lists them."""


def interleave(rounds: Sequence[int], *, first: int | None = None, order: str = "even") -> NDArray[np.int64]:
    """Which segment each round belongs to, shape (R,), R = Σ ``rounds``.

    ``even``: round t goes to the segment whose share r_i·(t + 1)/R is furthest ahead of the rounds it has had (the
    largest remainder), ties to the lower number, in whole numbers, so that every machine gets the same order. Segment
    i thus has exactly r_i rounds, spread evenly. ``first`` names a segment that gives one of its rounds as round 0 (the
    unpruned first round); what is left is interleaved.

    >>> interleave([4, 2]).tolist()
    [0, 1, 0, 0, 1, 0]
    >>> interleave([1, 2, 2], first=0).tolist()
    [0, 1, 2, 1, 2]
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is not known; it is one of {', '.join(ORDERS)}")
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
    behind = np.zeros_like(left)  # (share − rounds had) · total, exact
    for t in range(total):
        behind += left
        result[t] = segment = int(behind.argmax())
        behind[segment] -= total
    return np.concatenate([np.array(head, dtype=np.int64), result])
