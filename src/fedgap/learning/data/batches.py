"""Mini-batches that depend on (seed, client, round) only, drawn for many clients and rounds in one call.

Every client has a 64-bit key from the stream ``batches``; its i-th random number of round s is a hash of (key, s, i)
(the finaliser of SplitMix64, a counter-based generator). No state is carried from round to round, so that a resumed
run, a stacked run and a real device draw the same samples in whatever order they work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedgap.streams import stream_seed

_ROUND, _DRAW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def batch_keys(seed: int, clients: int | Sequence[int]) -> np.ndarray:
    """The clients' keys, (N,) uint64: of clients 0..N-1, or of those named."""
    members = range(clients) if isinstance(clients, int) else clients
    return np.array([stream_seed(seed, "batches", n) for n in members], dtype=np.uint64)


def batch_indices(keys: np.ndarray, rounds: np.ndarray, sizes: np.ndarray, batch: int) -> np.ndarray:
    """Positions in 0..D̂_n-1 of the mini-batches Z_n^(s), shape (R, N, Z) int64.

    ``keys`` (N,), ``rounds`` (R,) round numbers s, ``sizes`` (N,) samples D̂_n of each client, ``batch`` Z. A batch is
    drawn uniformly without replacement (Floyd's algorithm, vectorised); a client of fewer than Z samples draws with
    replacement.
    """
    uniform = _uniform(keys, rounds, batch)  # (R, N, Z)
    sizes = np.asarray(sizes, dtype=np.int64)
    chosen = np.full(uniform.shape, -1, dtype=np.int64)
    for i in range(batch):
        last = np.where(sizes >= batch, sizes - batch + i, sizes - 1)  # (N,)
        drawn = (uniform[..., i] * (last + 1)).astype(np.int64)
        repeated = (chosen[..., :i] == drawn[..., None]).any(-1) & (sizes >= batch)
        chosen[..., i] = np.where(repeated, last, drawn)
    return chosen


def _uniform(keys: np.ndarray, rounds: np.ndarray, draws: int) -> np.ndarray:
    """Uniform numbers in [0, 1) with 53 bits, shape (R, N, draws)."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        z = _mix(keys[None, :] + _ROUND * (np.asarray(rounds, dtype=np.uint64)[:, None] + np.uint64(1)))
        z = _mix(z[..., None] + _DRAW * np.arange(1, draws + 1, dtype=np.uint64))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return np.asarray(z ^ (z >> np.uint64(31)))


def draw_batches(keys: Tensor, rounds: Tensor, sizes: Tensor, batch: Tensor, width: int) -> Tensor:
    """The same mini-batches for P pairs of a client and a round, on the tensors' device: positions (P, width) int32.

    All tensors are (P,) int64; ``keys`` hold the bits of :func:`batch_keys`. A row's first ``batch`` positions are its
    mini-batch, what follows is some position of the client's.
    """
    step = torch.arange(width, device=keys.device)[:, None]
    hashed = _mix_bits(_mix_bits(keys + _signed(_ROUND) * (rounds + 1)) + _signed(_DRAW) * (step + 1))
    enough = sizes >= batch
    last = torch.where(enough, sizes - batch + step, sizes - 1).clamp(max=sizes - 1)  # (width, P): columns are memory
    drawn = (_shift(hashed, 11).double() * 2.0**-53 * (last + 1)).int()
    last, chosen = last.int(), drawn.clone()
    wanted = torch.where(enough, drawn, -1)  # with replacement nothing counts as repeated
    for i in range(1, width):
        torch.where((chosen[:i] == wanted[i]).any(0), last[i], drawn[i], out=chosen[i])
    return chosen.t()


def _mix_bits(z: Tensor) -> Tensor:
    """:func:`_mix` of int64 tensors, whose products wrap as those of uint64 do."""
    z = (z ^ _shift(z, 30)) * _signed(_MIX[0])
    z = (z ^ _shift(z, 27)) * _signed(_MIX[1])
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """The shift of unsigned numbers: zeros come in from the left."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: np.uint64) -> int:
    """The int64 of the same bits."""
    return int(value.astype(np.int64))
