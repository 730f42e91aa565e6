"""Pruning masks: all clients' masks are nested cuts of one global ranking.

All clients hold the same weights ω and the same ranking, so a round's masks are nested: a client that prunes more keeps
a subset of what the others keep. A mask is therefore never stored or sent; anyone can rebuild it from the client's
pruning ratio λ_n: parameter m is kept by client n iff ``ranks[m] < keep_count(λ_n, M)``."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def keep_count(ratio: float, size: int) -> int:
    """round((1 − λ)·M): how many of ``size`` parameters a client with pruning ratio λ = ``ratio`` in [0, 1] keeps."""
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"a pruning ratio must be in [0, 1]; got {ratio}")
    return round((1.0 - ratio) * size)


def ranks(scores: Tensor) -> Tensor:
    """Rank the parameters by ``scores`` (..., M): rank 0 is the highest score, and of equal scores the lower index
    comes first.

    Returns int32 of the same shape, a permutation of 0..M−1 along the last dimension. Scores must not be NaN."""
    if scores.device.type == "cpu" and scores.dtype is torch.float32:
        return _ranks_by_radix(scores)
    order = torch.argsort(scores, dim=-1, descending=True, stable=True)
    positions = torch.arange(scores.shape[-1], device=scores.device, dtype=torch.int32).expand_as(order)
    return torch.empty_like(order, dtype=torch.int32).scatter_(-1, order, positions)


def _ranks_by_radix(scores: Tensor) -> Tensor:
    """:func:`ranks` by two stable 16-bit radix sorts, about ten times faster than a stable float sort on the CPU.

    Flipping the magnitude bits of negative floats makes the integers sort as the floats do; inverting all bits makes
    the order descending."""
    values = scores.detach().contiguous().numpy() + np.float32(0.0)  # -0.0 ties with 0.0
    bits = values.view(np.int32)
    keys = (~(bits ^ ((bits >> 31) & 0x7FFFFFFF))).view(np.uint32) ^ np.uint32(0x80000000)
    low, high = keys.astype(np.uint16), (keys >> np.uint32(16)).astype(np.uint16)
    size = values.shape[-1]
    result = np.empty(values.shape, dtype=np.int32)
    positions = np.arange(size, dtype=np.int32)
    for row, lower, upper in zip(result.reshape(-1, size), low.reshape(-1, size), high.reshape(-1, size)):
        order = np.argsort(lower, kind="stable")
        order = order[np.argsort(upper[order], kind="stable")]
        row[order] = positions
    return torch.from_numpy(result)


def mask(ranks: Tensor, ratio: float) -> Tensor:
    """The boolean mask (..., M) of a client with pruning ratio λ = ``ratio``: True where the parameter is kept."""
    return ranks < keep_count(ratio, ranks.shape[-1])


def kept_fraction(ranks: Tensor, ratios: Sequence[float]) -> Tensor:
    """(1/k)·Σ_n mask_n, shape (M,): the share of the clients with these ``ratios`` that keep each parameter.

    The paper's global pruned model ω̃ = (1/k)·Σ_n ω̃_n is ω times this share. With ``evaluate_pruned`` that model is
    evaluated and exported."""
    size = ranks.shape[-1]
    keeps = torch.tensor(sorted(keep_count(r, size) for r in ratios), dtype=ranks.dtype, device=ranks.device)
    kept_by = len(ratios) - torch.searchsorted(keeps, ranks, right=True)
    return kept_by.to(torch.float32) / len(ratios)


def digest(mask: Tensor) -> bytes:
    """Eight bytes (blake2b of the packed bits) that differ for different masks of one length."""
    packed = np.packbits(mask.detach().cpu().numpy())
    return hashlib.blake2b(packed.tobytes(), digest_size=8).digest()
