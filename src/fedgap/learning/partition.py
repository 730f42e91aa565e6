"""Partitions: the division of a data set's samples among clients, and each client's target set.

Label proportions p_{n,z} (client n, class z) come first; samples are then drawn to match them. Sizes are ``equal``
(D̂_n = |D̂|/N for every client, drawn with replacement within a class, because the supply of a class would run
out otherwise) or ``natural`` (every sample goes to exactly one client, and sizes differ).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedgap.errors import InputError
from fedgap.streams import stream

Indices = NDArray[np.int64]
Kind = Literal["dirichlet", "dirichlet_by_class", "iid", "shards", "quantity", "file"]
Sizes = Literal["equal", "natural"]
Target = Literal["global", "own"]
KINDS: tuple[Kind, ...] = ("dirichlet", "dirichlet_by_class", "iid", "shards", "quantity", "file")
"""The partitions known by name."""


@dataclass(frozen=True)
class Partition:
    """The samples of each client.

    ``train`` holds one array per client of indices into the training set (repeats are possible). ``target`` holds one
    array per client with the indices of its target set D̃_n, the data on which its model is to be good: indices into
    the *test* set, or into the *training* set if the target set is held out of the client's own samples.
    ``label_counts`` and ``target_counts`` are the label histograms of both, (N, classes) int64."""

    train: tuple[Indices, ...]
    target: tuple[Indices, ...]
    label_counts: NDArray[np.int64]
    target_counts: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """D̂_n, the number of training samples of each client, (N,)."""
        return np.array([len(own) for own in self.train], dtype=np.int64)

    @property
    def indices(self) -> Indices:
        """The training indices of all clients in one array, client after client."""
        return np.concatenate(self.train)


def partition(train_y: NDArray[np.int64], test_y: NDArray[np.int64], clients: int, classes: int, seed: int, *,
              kind: Kind = "dirichlet", concentration: float = 5.0, sizes: Sizes | None = None, shards: int = 2,
              file: str | Path | None = None, target: Target = "global", target_size: int | None = None) -> Partition:
    """Divide a data set among N ``clients``.

    ``kind``: ``dirichlet`` (the paper's): p_n ~ Dirichlet(σ) over the classes for each client; ``dirichlet_by_class``:
    each class is split over the clients by a Dirichlet(σ) draw; ``iid``: samples at random; ``shards``: the samples are
    sorted by label and cut into N × ``shards`` pieces, of which each client gets ``shards``; ``quantity``: i.i.d.
    labels, with sizes proportional to a Dirichlet(σ) draw; ``file``: a list of index lists (JSON) or arrays ``0``,
    ``1``, ... (npz). σ is ``concentration``. ``sizes`` is ``equal`` by default, or ``natural`` for the kinds that set
    the sizes themselves (by class, quantity, file).

    ``target``: each client's target set is drawn i.i.d. from the test set (``global``; ``target_size`` samples, |D̃|/N
    by default), or held out of its own samples (``own``; by default the share that the test set has of all data)."""
    train_y, test_y = np.asarray(train_y, dtype=np.int64), np.asarray(test_y, dtype=np.int64)
    _check(clients, concentration, shards, len(train_y), target_size)
    if kind not in KINDS:
        raise InputError(f"partition.kind: {kind!r} is unknown; one of {', '.join(KINDS)}")
    sizes = sizes or ("natural" if kind in ("dirichlet_by_class", "quantity", "file") else "equal")
    if sizes == "equal" and kind in ("quantity", "file"):
        raise InputError(f"partition.sizes: equal is not possible with kind {kind}, which sets the sizes; leave sizes "
                         "out")
    draw = stream(seed, "partition")
    if kind == "file":
        train = _from_file(file, clients, len(train_y))
    elif kind == "shards":
        train = _shards(train_y, clients, shards, sizes, draw)
    elif kind in ("iid", "quantity"):
        share = draw.dirichlet(np.full(clients, concentration)) if kind == "quantity" else np.full(clients, 1 / clients)
        counts = _even(len(train_y), clients) if sizes == "equal" else draw.multinomial(len(train_y), share)
        train = np.split(draw.permutation(len(train_y)), np.cumsum(counts)[:-1])
    else:
        by_class = kind == "dirichlet_by_class"
        p = (draw.dirichlet(np.full(clients, concentration), classes).T if by_class
             else draw.dirichlet(np.full(classes, concentration), clients))  # (N, classes)
        if by_class and sizes == "equal":
            p = p * np.bincount(train_y, minlength=classes)  # a class's weight is its supply
        train = (_with_replacement if sizes == "equal" else _exactly_once)(train_y, p, draw)
    train = [np.sort(own.astype(np.int64)) for own in train]  # the order of draws carries no meaning
    empty = [n for n, indices in enumerate(train) if len(indices) == 0]
    if empty:
        cure = "list at least one" if kind == "file" else "use sizes: equal, a larger concentration or fewer clients"
        raise InputError(f"partition{'.file' * (kind == 'file')}: client {empty[0]} gets no sample; {cure}")
    train, targets, target_y = _targets(train, train_y, test_y, target, target_size, seed)
    return Partition(tuple(train), tuple(targets), _histograms(train, train_y, classes),
                     _histograms(targets, target_y, classes))


def _check(clients: int, concentration: float, shards: int, samples: int, target_size: int | None) -> None:
    if not 1 <= clients <= samples:
        raise InputError(f"partition: {samples} samples can be divided among 1 to {samples} clients, not {clients}")
    if not (concentration > 0 and np.isfinite(concentration)):
        raise InputError(f"partition.concentration: must be a positive number; found {concentration}")
    if shards < 1:
        raise InputError(f"partition.shards: must be at least 1; found {shards}")
    if target_size is not None and target_size < 1:
        raise InputError(f"partition.target_size: must be at least 1; found {target_size}")


def _even(total: int, parts: int) -> NDArray[np.int64]:
    """Divide ``total`` into ``parts`` whole numbers that differ by at most one, the larger ones first."""
    return np.full(parts, total // parts, dtype=np.int64) + (np.arange(parts) < total % parts)


def _with_replacement(labels: Indices, p: NDArray[np.float64], draw: np.random.Generator) -> list[Indices]:
    """Draw D̂_n = |D̂|/N samples for each client: class counts are multinomial in p_n, and samples of a class are drawn
    with replacement."""
    pools = [np.flatnonzero(labels == z) for z in range(p.shape[1])]
    p = p * np.array([len(pool) > 0 for pool in pools])  # a class without samples cannot be drawn
    train = []
    for n, size in enumerate(_even(len(labels), len(p))):
        if p[n].sum() <= 0:
            raise InputError(f"partition: client {n} draws only classes that have no samples; use a larger "
                             "concentration")
        counts = draw.multinomial(size, p[n] / p[n].sum())
        train.append(np.concatenate([pool[draw.integers(len(pool), size=k)]
                                     for pool, k in zip(pools, counts, strict=True) if k]))
    return train


def _exactly_once(labels: Indices, p: NDArray[np.float64], draw: np.random.Generator) -> list[Indices]:
    """Give every sample to exactly one client: one of class z goes to client n with probability p_{n,z}/Σ_m p_{m,z}."""
    owner = np.empty(len(labels), dtype=np.int64)
    for z in range(p.shape[1]):
        members = np.flatnonzero(labels == z)
        owner[members] = draw.choice(len(p), size=len(members), p=p[:, z] / p[:, z].sum())
    return [np.flatnonzero(owner == n) for n in range(len(p))]


def _shards(labels: Indices, clients: int, shards: int, sizes: Sizes, draw: np.random.Generator) -> list[Indices]:
    if clients * shards > len(labels):
        raise InputError(f"partition.shards: {len(labels)} samples cannot be cut into {clients} x {shards} shards; use "
                         f"at most {len(labels) // clients} per client")
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # sorted by label, in random order within a label
    runs = np.split(order, np.cumsum(_even(len(labels), clients * shards))[:-1])
    deal = draw.permutation(len(runs))
    # natural sizes: every client gets one shard, and the others go to random clients
    owner = (np.arange(len(runs)) % clients if sizes == "equal"
             else np.concatenate([np.arange(clients), draw.integers(clients, size=len(runs) - clients)]))
    return [np.concatenate([runs[i] for i in deal[owner == n]]) for n in range(clients)]


def _targets(train: list[Indices], train_y: Indices, test_y: Indices, target: Target, size: int | None,
             seed: int) -> tuple[list[Indices], list[Indices], Indices]:
    """Returns the clients' training indices, their target indices, and the label array that the target indices point
    into."""
    n_clients = len(train)
    if target == "global":
        counts = _even(max(len(test_y), n_clients), n_clients) if size is None else [size] * n_clients
        return train, [np.sort(stream(seed, "target", n).integers(len(test_y), size=k))
                       for n, k in enumerate(counts)], test_y
    if target != "own":
        raise InputError(f"partition.target: {target!r} is unknown; it must be global or own")
    share = len(test_y) / (len(train_y) + len(test_y))
    kept, held = [], []
    for n, indices in enumerate(train):
        k = max(1, round(share * len(indices))) if size is None else size
        if k >= len(indices):
            raise InputError(f"partition.target_size: client {n} has only {len(indices)} samples, so at most "
                             f"{len(indices) - 1} can be held out, not {k}")
        out = np.zeros(len(indices), dtype=bool)
        out[stream(seed, "target", n).permutation(len(indices))[:k]] = True
        kept.append(indices[~out])
        held.append(indices[out])
    return kept, held, train_y


def _histograms(members: Sequence[Indices], labels: Indices, classes: int) -> NDArray[np.int64]:
    return np.stack([np.bincount(labels[own], minlength=classes) for own in members]).astype(np.int64)


def _from_file(file: str | Path | None, clients: int, samples: int) -> list[Indices]:
    if file is None:
        raise InputError("partition.file: kind file needs the path of a .json or .npz file with each client's indices")
    path = Path(file)
    readers: dict[str, Callable[[Path], list[Indices]]] = {".json": _json_lists, ".npz": _npz_lists}
    if path.suffix not in readers:
        raise InputError(f"partition.file: {path} must end in .json or .npz")
    try:
        train = readers[path.suffix](path)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, EOFError, BadZipFile) as error:
        raise InputError(f"partition.file: {path} cannot be read as one list of indices per client ({error})") from None
    if len(train) != clients:
        raise InputError(f"partition.file: {path} has {len(train)} clients, the scenario {clients}; they must agree")
    for n, indices in enumerate(train):
        if indices.ndim != 1 or (len(indices) and not (indices.min() >= 0 and indices.max() < samples)):
            raise InputError(f"partition.file: {path}: client {n}'s indices must be a list of numbers "
                             f"in 0..{samples - 1}")
    return train


def _json_lists(path: Path) -> list[Indices]:
    lists = json.loads(path.read_text())
    if not isinstance(lists, list) or not all(type(i) is int for own in lists for i in own):
        raise ValueError("not a list of lists of whole numbers")
    return [np.array(own, dtype=np.int64) for own in lists]


def _npz_lists(path: Path) -> list[Indices]:
    with np.load(path, allow_pickle=False) as arrays:
        lists = [arrays[str(n)] for n in range(len(arrays.files))]
    if not all(np.issubdtype(own.dtype, np.integer) for own in lists):
        raise ValueError("not whole numbers")
    return [own.astype(np.int64) for own in lists]
