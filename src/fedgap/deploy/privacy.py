"""Differentially private noise for a node's label histogram."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from numpy.typing import ArrayLike, NDArray


def noised_counts(counts: ArrayLike, epsilon: float, secret: bytes) -> NDArray[np.int64]:
    """The label histogram with ε-differentially private noise: max(0, round(c_z + Laplace(1/ε))) for each class z.

    Adding or removing one sample changes one count by 1, so the noise has scale 1/ε; rounding and clipping afterwards
    do not weaken the privacy. If all counts would be 0, the largest noisy one becomes 1, because a histogram needs a
    sample.

    :param counts: samples of each class, shape (classes,); :param epsilon: ε > 0, smaller is more private;
    :param secret: bytes that only the node knows. The same counts and ε always get the same noise, so that asking again
    reveals nothing new; other counts get other noise, because otherwise the difference of two reports would be exact.
    """
    exact = np.asarray(counts, dtype=np.int64)
    if not epsilon > 0.0:
        raise ValueError(f"epsilon must be positive; got {epsilon}")
    asked = f"label histogram {exact.tolist()} {float(epsilon)!r}".encode()
    key = int.from_bytes(hmac.new(secret, asked, hashlib.sha256).digest(), "little")
    noisy = exact + np.random.Generator(np.random.PCG64(key)).laplace(0.0, 1.0 / epsilon, exact.shape)
    result = np.maximum(np.rint(noisy), 0.0).astype(np.int64)
    if not result.any():
        result[int(noisy.argmax())] = 1
    return result
