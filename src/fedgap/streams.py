"""Named random streams: one root seed, one independent generator per purpose.

A stream is keyed by its *name*, not by the order of creation, so that a new consumer never shifts another's draws.
"""

import hashlib

import numpy as np

NAMES = frozenset(
    ("fading", "placement", "processors", "partition", "target", "model", "batches", "selection", "faults", "pilot",
     "planning", "policy", "uploads", "validation", "world")
)
"""The streams in use; a typo in a name would otherwise silently open a new one."""


def _sequence(seed: int, name: str, index: tuple[int, ...]) -> np.random.SeedSequence:
    if name not in NAMES:
        raise ValueError(f"unknown random stream {name!r}; known: {', '.join(sorted(NAMES))}")
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.SeedSequence(entropy=seed, spawn_key=(key, *index))


def stream(seed: int, name: str, *index: int) -> np.random.Generator:
    """The generator of stream ``name`` of root ``seed``; with ``index``, of that member of it (a client, a round).

    >>> bool(stream(7, "fading").random() == stream(7, "fading").random())
    True
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, name, index)))


def stream_seed(seed: int, name: str, *index: int) -> int:
    """A 63-bit seed derived from the same key, for libraries that take an integer (``torch.Generator.manual_seed``)."""
    return int(_sequence(seed, name, index).generate_state(1, np.uint64)[0] >> np.uint64(1))
