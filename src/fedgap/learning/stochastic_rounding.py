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
    """The clients' keys, (N,) uint64 below 2^63: of clients 0..N-1, or of those listed."""
    return client_keys(seed, "uploads", clients)


def largest_number(bits: int) -> int:
    """L: numbers of ``bits`` bits lie in −L..L."""
    return int(2 ** (bits - 1) - 1)


def rounded(values: Tensor, masks: Tensor, keys: Tensor, round: int, bits: int) -> tuple[Tensor, Tensor]:
    """Whole numbers (..., M) int8, zero where pruned, and the blocks' scales (..., ⌈M/BLOCK⌉) float32.

    ``values`` (..., M) are masked gradients, ``masks`` (..., M) bool what each keeps, and ``keys`` (...) int64 hold the
    bits of the clients' :func:`upload_keys`.
    """
    numbers, scales, _ = _rounded(values, masks, keys, round, bits)
    return numbers, scales


def arriving(values: Tensor, masks: Tensor, keys: Tensor, round: int, bits: int) -> Tensor:
    """What the server gets of masked gradients (..., M): float32, bit for bit what encoding and decoding give.

    The arguments are those of :func:`rounded`; 32 bits give the values themselves.
    """
    if bits == 32:
        return values
    if values.dim() > 1 and values.device.type == "cpu":  # one gradient after another stays in the processor's cache
        return torch.stack([arriving(*row, round, bits) for row in zip(values, masks, keys, strict=True)])
    numbers, _, scale = _rounded(values, masks, keys, round, bits)
    return numbers.float().mul_(scale)


def _rounded(values: Tensor, masks: Tensor, keys: Tensor, round: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`rounded` gives, and the scale of each value (..., M)."""
    size, largest = values.shape[-1], largest_number(bits)
    block = (masks.cumsum(-1) - 1).clamp_(min=0) >> _BLOCK_SHIFT  # of each kept value; some block where pruned
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
