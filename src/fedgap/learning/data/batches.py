"""Mini-batches that depend only on (seed, client, round, local step), drawn for many clients and rounds in one call.

Their random numbers are hashes (:mod:`fedgap.learning.hashed_random`). :func:`draw_batches` draws all samples of a
client with equal probability (``as_is``); :func:`draw_weighted_batches` draws each with its own probability, which
:mod:`fedgap.learning.data.label_sampling` computes from the labels (``balanced``, ``target``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedgap.learning.hashed_random import client_keys, hashes, uniform


def batch_keys(seed: int, clients: int | Sequence[int]) -> np.ndarray:
    """One random key per client, (N,) uint64. ``clients`` is their number N (clients 0..N−1) or a list of them."""
    return client_keys(seed, "batches", clients)


def batch_indices(keys: np.ndarray, rounds: np.ndarray, sizes: np.ndarray, batch: int,
                  local_steps: int | None = None) -> np.ndarray:
    """Draw the mini-batches Z_n^(s) of N clients in R rounds: positions in 0..D̂_n−1, shape (R, N, Z) int64; with
    ``local_steps`` (R, N, τ, Z).

    ``keys`` (N,) are the clients' random keys, ``rounds`` (R,) the round numbers s, ``sizes`` (N,) the numbers of
    samples D̂_n, ``batch`` is Z. The positions equal those of :func:`draw_batches`."""
    shape = len(rounds), len(keys)
    pairs = (keys.view(np.int64), np.asarray(rounds)[:, None], sizes, batch)
    key, number, size, wanted = (torch.from_numpy(np.broadcast_to(values, shape).astype(np.int64).ravel())
                                 for values in pairs)
    drawn = draw_batches(key, number, size, wanted, batch, local_steps)
    return drawn.numpy().astype(np.int64).reshape(*shape, *drawn.shape[1:])


def draw_batches(keys: Tensor, rounds: Tensor, sizes: Tensor, batch: Tensor, width: int,
                 local_steps: int | None = None) -> Tensor:
    """Draw mini-batches for P pairs of a client and a round, on the tensors' device: positions (P, width) int32 among
    the client's samples.

    All tensors are (P,) int64; ``keys`` hold the bits of :func:`batch_keys`. The first ``batch`` positions of a row are
    its mini-batch; the rest of the row is filled with valid positions to be ignored. A batch is drawn uniformly without
    replacement (Floyd's algorithm, vectorised); a client with fewer than ``batch`` samples draws with replacement. With
    ``local_steps`` τ the result is (P, τ, width): τ independent mini-batches, of which the first equals the one drawn
    without ``local_steps``."""
    if local_steps is not None:
        keys, rounds, sizes, batch = (values.repeat_interleave(local_steps) for values in (keys, rounds, sizes, batch))
    steps = 0 if local_steps is None else torch.arange(local_steps, device=keys.device).repeat(len(keys) // local_steps)
    place = torch.arange(width, device=keys.device)[:, None]
    enough = sizes >= batch
    last = torch.where(enough, sizes - batch + place, sizes - 1).clamp(max=sizes - 1)  # (width, P)
    drawn = (uniform(hashes(keys, rounds, steps, place)) * (last + 1)).int()
    last, chosen = last.int(), drawn.clone()
    wanted = torch.where(enough, drawn, -1)  # -1 matches nothing: with replacement, repeats are allowed
    for i in range(1, width):
        torch.where((chosen[:i] == wanted[i]).any(0), last[i], drawn[i], out=chosen[i])
    return chosen.t() if local_steps is None else chosen.t().reshape(-1, local_steps, width)


def draw_weighted_batches(keys: Tensor, rounds: Tensor, sizes: Tensor, starts: Tensor, cumulative: Tensor, width: int,
                          local_steps: int | None = None) -> Tensor:
    """Draw mini-batches whose samples have given probabilities: positions (P, width) int32, or (P, τ, width) with
    ``local_steps`` τ.

    ``keys``, ``rounds`` and ``sizes`` are those of :func:`draw_batches`. ``cumulative`` (S,) float64 holds the clients'
    :func:`~fedgap.learning.data.label_sampling.cumulative_probabilities` one after another, and ``starts`` (P,) int64
    says where those of each row begin. Samples are drawn independently, with replacement. The first positions of a row
    do not depend on ``width``, so clients with smaller batches use only the first ones."""
    steps = torch.arange(local_steps or 1, device=keys.device)[:, None]
    place = torch.arange(width, device=keys.device)
    number = uniform(hashes(keys[:, None, None], rounds[:, None, None], steps, place))  # (P, τ, width)
    first = starts[:, None, None].expand_as(number)
    low, high = first, first + sizes[:, None, None] - 1
    for _ in range(len(cumulative).bit_length()):  # find the first cumulative probability above the number
        middle = (low + high) >> 1
        above = cumulative[middle] > number
        low, high = torch.where(above, low, middle + 1), torch.where(above, middle, high)
    drawn = (low - first).int()
    return drawn[:, 0] if local_steps is None else drawn
