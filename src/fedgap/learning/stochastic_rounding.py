"""Uploads of 8 or 4 bits per value: unbiased stochastic rounding with one scale per block.

The kept values of a masked gradient, in the order of their indices, are cut into blocks of
:data:`~fedgap.upload_size.BLOCK`. With b bits and L = 2^(b−1) − 1, a block's scale is its largest magnitude divided
by L, and each value g becomes one of the two whole multiples k·scale around it, |k| ≤ L: the upper one with the
probability that makes the expectation equal to g. The error is thus below the scale. Random numbers are hashes of
(client's key, round, index of the parameter), so that the simulator, a real device and a resumed run round alike, on
any processor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedgap.learning.hashed_random import client_keys, hashes, uniform_pairs
from fedgap.upload_size import BLOCK

_BLOCK_SHIFT = BLOCK.bit_length() - 1  # BLOCK is a power of two; a shift is much faster than a division


def upload_keys(seed: int, clients: int | Sequence[int]) -> np.ndarray:
    """One random key per client, (N,) uint64 below 2^63. ``clients`` is their number N (clients 0..N−1) or a list of
    them."""
    return client_keys(seed, "uploads", clients)


def largest_number(bits: int) -> int:
    """L = 2^(b−1) − 1: a signed number of ``bits`` bits takes values from −L to L."""
    return int(2 ** (bits - 1) - 1)


def rounded(values: Tensor, masks: Tensor, keys: Tensor, round: int, bits: int) -> tuple[Tensor, Tensor]:
    """Round masked gradients to whole numbers: returns these (..., M) int8, zero where pruned, and the scale of each
    block (..., ⌈M/BLOCK⌉) float32.

    ``values`` (..., M) are masked gradients, ``masks`` (..., M) bool says which weights each client keeps, and ``keys``
    (...) int64 hold the bits of the clients' :func:`upload_keys`."""
    numbers, scales, _ = _rounded(values, masks, keys, round, bits)
    return numbers, scales


def arriving(values: Tensor, masks: Tensor, keys: Tensor, round: int, bits: int) -> Tensor:
    """The masked gradients (..., M) float32 that the server decodes after an upload with ``bits`` bits per value.

    They equal the result of encoding and decoding bit for bit, but nothing is encoded. The arguments are those of
    :func:`rounded`; with 32 bits the values arrive unchanged."""
    if bits == 32:
        return values
    if values.dim() > 1 and values.device.type == "cpu":  # one gradient after another stays in the processor's cache
        return torch.stack([arriving(*row, round, bits) for row in zip(values, masks, keys, strict=True)])
    numbers, _, scale = _rounded(values, masks, keys, round, bits)
    return numbers.float().mul_(scale)


def _rounded(values: Tensor, masks: Tensor, keys: Tensor, round: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the two results of :func:`rounded` and, as a third, the scale that applies to each value (..., M)."""
    size, largest = values.shape[-1], largest_number(bits)
    block = (masks.cumsum(-1) - 1).clamp_(min=0) >> _BLOCK_SHIFT  # each value's block; irrelevant where pruned
    values = torch.where(masks, values.float(), 0.0)
    scales = torch.zeros(*values.shape[:-1], -(-size // BLOCK), device=values.device)
    scales = scales.scatter_reduce_(-1, block, values.abs(), "amax")
    scales /= torch.full_like(scales, largest)  # a GPU divides by a plain number inexactly, as times its inverse
    scale = scales.gather(-1, block)
    multiple = torch.where(scale > 0, values / scale, 0.0).clamp_(-largest, largest)
    lower = multiple.floor()
    pairs = torch.arange((size + 1) // 2, device=values.device)
    chance = uniform_pairs(hashes(keys[..., None], round, 0, pairs))[..., :size]
    return lower.add_(chance < multiple - lower).to(torch.int8), scales, scale
