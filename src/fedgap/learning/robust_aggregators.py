"""Aggregators that limit the effect of a minority of false updates.

All three start by comparing the lengths of whole updates, because for a single weight that few clients kept there is
too little to compare. Each aggregator keeps all k updates of a round in memory (4·k·M bytes, and k·M bytes of masks,
for M weights), whereas ``mean`` adds updates as they arrive. Sorting is done in blocks and needs a few more megabytes;
clipping makes a second copy of the updates."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgap.learning.aggregators import Aggregator, mean
from fedgap.learning.contract import mean_buffers

CLIP_FACTOR = 7.0
"""``clipped_mean`` shortens updates that are longer than this many times the median length of the round. Honest
clients with very different labels differed by a factor of up to 5."""
DROP_FACTOR = 5.0
"""The trimmed mean and the median leave out updates longer than this many times the median length of the round."""
TRIMMED_SHARE = 4
"""The trimmed mean leaves out 1/4 of the values at each end, and at least one if there are three or more."""
_BLOCK = 2**16  # weights that are sorted at once


def norms(updates: Tensor) -> Tensor:
    """The Euclidean length of each of k updates (k, M), as (k,) float64 because float32 would overflow at values of
    10¹⁹."""
    return torch.stack([torch.linalg.vector_norm(update, dtype=torch.float64) for update in updates])


def clipped(updates: Tensor, kept: Tensor) -> Tensor:
    """The updates (k, M), where each one longer than :data:`CLIP_FACTOR` times the median length is clipped.

    A long update that is only scaled down to a usual length could still cancel an honest one. So it is clipped around a
    centre, the mean of the other updates, as in centred clipping (Karimireddy, He and Jaggi, 2021): it becomes the
    centre plus its deviation from the centre, shortened to the median deviation of the others. Centre and deviations
    use only the weights that the client kept. The median of an even number of lengths is the smaller of the middle two,
    so that one of two clients cannot raise it. If no update is too long, the input is returned unchanged."""
    lengths = norms(updates)
    too_long = lengths > CLIP_FACTOR * lengths.median()
    if not bool(too_long.any()):
        return updates
    others, result = torch.where(~too_long)[0].tolist(), updates.clone()
    centre = sum((updates[n].double() for n in others), torch.zeros_like(updates[0], dtype=torch.float64))
    centre = centre / kept[others].sum(0).clamp(min=1)

    def deviation(client: int) -> Tensor:
        return torch.where(kept[client], updates[client].double() - centre, 0.0)

    usual = torch.stack([deviation(n).norm() for n in others]).median()
    for client in torch.where(too_long)[0].tolist():
        far = deviation(client)
        result[client] = torch.where(kept[client], centre + far * (usual / far.norm()).clamp(max=1.0), 0.0).to(updates)
    return result


def clipped_mean(updates: Tensor, kept: Tensor) -> Tensor:
    """The mean of the :func:`clipped` updates; if no update is too long, it equals ``mean`` bit for bit."""
    return mean(clipped(updates, kept), kept)


def coordinate_trimmed_mean(updates: Tensor, kept: Tensor) -> Tensor:
    """For each weight the mean over the clients that kept it, without the smallest and the largest quarter of the
    values.

    With n ≥ 3 values, max(1, n // 4) are left out at each end; with fewer none. An update that is far too long
    (:data:`DROP_FACTOR`) is left out as a whole, and counts as one value left out at each end."""
    believed = _believed(updates)
    count = kept.sum(0)
    at_each_end = torch.where(count < 3, 0, (count // TRIMMED_SHARE).clamp(min=1)) - (~believed).sum()
    return _middle(updates[believed], kept[believed], at_each_end.clamp(min=0))


def coordinate_median(updates: Tensor, kept: Tensor) -> Tensor:
    """For each weight the median over the clients that kept it; with an even number of values the mean of the middle
    two.

    Updates that are far too long (:data:`DROP_FACTOR`) are left out as a whole."""
    believed = _believed(updates)
    updates, kept = updates[believed], kept[believed]
    return _middle(updates, kept, (kept.sum(0) - 1).clamp(min=0) // 2)


ROBUST: tuple[Aggregator, ...] = (clipped_mean, coordinate_trimmed_mean, coordinate_median)


def aggregate_buffers(aggregator: Aggregator, buffers: Tensor, counted: Tensor | None, before: Tensor) -> Tensor:
    """BatchNorm's statistics (B,) after a round, computed from those of k clients ``buffers`` (k, B) in the way
    ``aggregator`` treats updates.

    The robust aggregators are applied to what each client changed: its statistics minus those ``before`` (B,) the
    round. For ``mean`` and users' aggregators the result is :func:`~fedgap.learning.contract.mean_buffers`, and also
    for ``clipped_mean`` if no client changed too much. ``counted`` (k, B) is True for the buffer entries that a client
    has; None if every client has all of them."""
    if aggregator not in ROBUST:
        return mean_buffers(buffers, counted, before)
    has = torch.ones_like(buffers, dtype=torch.bool) if counted is None else counted
    changes = torch.where(has, buffers.double() - before.double(), 0.0)
    if aggregator is clipped_mean:
        moderate = clipped(changes, has)
        kept = buffers if moderate is changes else (before.double() + moderate).to(buffers)
        return mean_buffers(kept, counted, before)
    return (before.double() + aggregator(changes, has)).to(buffers)


def _believed(updates: Tensor) -> Tensor:
    """Which updates are not far too long, (k,) bool. This is True for at least half of them."""
    lengths = norms(updates)
    return lengths <= DROP_FACTOR * lengths.median()


def _middle(updates: Tensor, kept: Tensor, left_out: Tensor) -> Tensor:
    """For each weight the mean of its values over the clients that kept it, without the ``left_out`` (M,) smallest and
    largest ones."""
    places = torch.arange(len(updates), device=updates.device)[:, None]
    blocks = []
    for values, there, out in zip(*(torch.split(part, _BLOCK, dim=-1) for part in (updates, kept, left_out)),
                                  strict=True):
        count = there.sum(0)
        out = out.minimum((count - 1).clamp(min=0) // 2)
        ascending = torch.where(there, values, torch.inf).sort(dim=0).values  # pruned weights come last
        used = (places >= out) & (places < count - out)
        blocks.append(torch.where(used, ascending, 0).sum(0) / (count - 2 * out).clamp(min=1))
    return torch.cat(blocks)
