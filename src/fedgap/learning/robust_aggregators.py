"""Aggregators that a minority of false updates cannot take over.

All three look at the lengths of the updates first, because where few clients kept a weight there is nothing else to
compare. Each keeps all k updates of a round: 4·k·M bytes and k·M bytes of masks for M weights, where ``mean`` adds
updates up as they come. Sorting goes block by block and adds a few megabytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedgap.learning.aggregators import mean

CLIP_FACTOR = 10.0
"""An update may be so many times as long as the round's median update. Among honest clients with very different labels
factors of 5 were seen."""
DROP_FACTOR = 5.0
"""The trimmed mean and the median leave out updates that are longer than so many times the round's median update."""
TRIMMED_SHARE = 4
"""One in so many values is left out at each end, and at least one of three or more."""
_BLOCK = 2**16  # weights that are sorted at once


def norms(updates: Tensor) -> Tensor:
    """The Euclidean length of each update (k, M), (k,) float64: float32 would overflow at values of 10¹⁹."""
    return torch.stack([torch.linalg.vector_norm(update, dtype=torch.float64) for update in updates])


def clipped(updates: Tensor) -> Tensor:
    """The updates (k, M), each scaled down to at most :data:`CLIP_FACTOR` times the round's median length.

    The median of an even number is the smaller middle one, so that one of two clients cannot raise it. Where no update
    is too long they are returned as they are.
    """
    lengths = norms(updates)
    limit = CLIP_FACTOR * lengths.median()
    if not bool((lengths > limit).any()):
        return updates
    factors = torch.where(lengths > limit, limit / lengths, 1.0)
    return (updates.double() * factors[:, None]).to(updates)


def clipped_mean(updates: Tensor, kept: Tensor) -> Tensor:
    """The mean of the clipped updates; without an update that is too long it is ``mean``, bit for bit."""
    return mean(clipped(updates), kept)


def coordinate_trimmed_mean(updates: Tensor, kept: Tensor) -> Tensor:
    """For each weight the mean over the clients that kept it, without the smallest and the largest quarter.

    Updates that are far too long are left out as a whole. Of n values max(1, n // 4) are left out at each end if
    n ≥ 3, and none of fewer.
    """
    return _middle(updates, kept, lambda count: torch.where(count < 3, 0, (count // TRIMMED_SHARE).clamp(min=1)))


def coordinate_median(updates: Tensor, kept: Tensor) -> Tensor:
    """For each weight the median over the clients that kept it; of an even number the mean of the middle two.

    Updates that are far too long are left out as a whole.
    """
    return _middle(updates, kept, lambda count: (count - 1).clamp(min=0) // 2)


def _middle(updates: Tensor, kept: Tensor, trim: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean of each weight's values over the clients that kept it, less ``trim(n)`` of the n values at each end."""
    lengths = norms(updates)
    believed = lengths <= DROP_FACTOR * lengths.median()  # at least half of them
    updates, kept = updates[believed], kept[believed]
    places = torch.arange(len(updates), device=updates.device)[:, None]
    blocks = []
    for values, there in zip(torch.split(updates, _BLOCK, dim=1), torch.split(kept, _BLOCK, dim=1), strict=True):
        count = there.sum(0)
        left_out = trim(count)
        ascending = torch.where(there, values, torch.inf).sort(dim=0).values  # pruned weights come last
        used = (places >= left_out) & (places < count - left_out)
        blocks.append(torch.where(used, ascending, 0).sum(0) / (count - 2 * left_out).clamp(min=1))
    return torch.cat(blocks)
