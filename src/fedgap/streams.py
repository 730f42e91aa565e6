"""Named random streams: one root seed, one independent generator per purpose.

A stream depends on its *name*, not on the order of creation, so that a new stream never changes the draws of another.
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
    """Return the random generator of stream ``name`` for a seed; ``index`` distinguishes clients or rounds within it.

    >>> bool(stream(7, "fading").random() == stream(7, "fading").random())
    True
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, name, index)))


def stream_seed(seed: int, name: str, *index: int) -> int:
    """Return a 63-bit seed for the same stream, for libraries that need an integer
    (``torch.Generator.manual_seed``)."""
    return int(_sequence(seed, name, index).generate_state(1, np.uint64)[0] >> np.uint64(1))
