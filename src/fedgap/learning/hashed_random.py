"""Random numbers that are a hash of (client's key, round, local step, counter), equal on every device.

Every client has a 64-bit key from a named stream (:mod:`fedgap.streams`); the i-th number of a round is a hash of the
key, the round and i (the finaliser of SplitMix64, a counter-based generator). No state is carried from round to round,
so that a resumed run, a stacked run and a real device draw the same numbers whatever their order of work. Tensors are
int64; their products wrap modulo 2^64 as unsigned products do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedgap.streams import stream_seed


def _signed(bits: int) -> int:
    """The signed 64-bit number with the same bits as the unsigned number ``bits``."""
    return bits - (1 << 64) if bits >> 63 else bits


_ROUND, _STEP, _COUNTER = map(_signed, (0x9E3779B97F4A7C15, 0xA0761D6478BD642F, 0xD1B54A32D192ED03))
_MIX = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def client_keys(seed: int, stream: str, clients: int | Sequence[int]) -> np.ndarray:
    """One random key per client from a named stream, (N,) uint64. ``clients`` is their number N (clients 0..N−1) or a
    list of them."""
    members = range(clients) if isinstance(clients, int) else clients
    return np.array([stream_seed(seed, stream, n) for n in members], dtype=np.uint64)


def hashes(keys: Tensor, rounds: Tensor | int, steps: Tensor | int, counters: Tensor) -> Tensor:
    """64 random bits, int64, for each combination of key, round, local step and counter; the arguments are broadcast
    against each other."""
    start = _mixed(keys + _product(_ROUND, rounds + 1) + _product(_STEP, steps))
    return _mixed(start + _COUNTER * (counters + 1))


def uniform(bits: Tensor) -> Tensor:
    """Turn random ``bits`` int64 into numbers in [0, 1), float64 with 53 random bits each."""
    return _shifted(bits, 11).double() * 2.0**-53


def uniform_pairs(bits: Tensor) -> Tensor:
    """Turn random ``bits`` (..., n) int64 into numbers in [0, 1), (..., 2·n) float32 with 24 random bits: two from
    each.

    The upper three bytes of the lower half of an int64 give the first number of a pair, those of its upper half the
    second."""
    return ((bits.view(torch.int32) >> 8) & 0xFFFFFF).float().mul_(2.0**-24)


def _product(factor: int, value: Tensor | int) -> Tensor | int:
    """``factor`` times ``value`` modulo 2^64, as a signed number."""
    return _signed(factor * value % 2**64) if isinstance(value, int) else factor * value


def _mixed(z: Tensor) -> Tensor:
    """Apply the finaliser of SplitMix64 to ``z``, which is overwritten."""
    z.bitwise_xor_(_shifted(z, 30)).mul_(_MIX[0])
    z.bitwise_xor_(_shifted(z, 27)).mul_(_MIX[1])
    return z.bitwise_xor_(_shifted(z, 31))


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shift right as unsigned numbers do: zeros enter from the left."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)
