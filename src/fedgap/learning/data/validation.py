"""Choose the training samples that are held out for validation, so that no decision uses the test set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedgap.errors import InputError
from fedgap.streams import stream


def validation_indices(labels: NDArray[np.int64], wanted: float, seed: int) -> NDArray[np.int64]:
    """Positions of the training samples to hold out, ascending, drawn class by class from the random stream
    ``validation``.

    :param labels: classes of the training samples, shape (n,).
    :param wanted: a share of the samples (above 0, below 1) or their number (1 and more)."""
    counts = np.bincount(labels)
    most = int(np.maximum(counts - 1, 0).sum())
    if not (0 < wanted < 1 or (wanted >= 1 and float(wanted).is_integer())):
        raise InputError(f"data.validation: must be a share between 0 and 1, or a whole number of samples; got "
                         f"{wanted:g}")
    number = round(wanted * len(labels)) if wanted < 1 else int(wanted)
    if not 1 <= number <= most:
        raise InputError(f"data.validation: of {len(labels)} training samples, 1 to {most} can be held out, so that "
                         f"every class keeps one to train with; not {number}")
    draw = stream(seed, "validation")
    taken = [draw.permutation(np.flatnonzero(labels == z))[:count]
             for z, count in enumerate(_shares(counts, number))]
    return np.sort(np.concatenate(taken))


def _shares(counts: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Divide ``number`` samples among the classes in proportion to ``counts``, so that each class keeps at least one
    sample.

    Every class first gives the whole part of its exact share; the remaining samples come from the classes with the
    largest fractions."""
    room = np.maximum(counts - 1, 0)
    exact = number * counts / counts.sum()
    shares: NDArray[np.int64] = np.minimum(np.floor(exact).astype(np.int64), room)
    order = np.argsort(shares - exact, kind="stable")  # largest fraction first, then the smaller class number
    while missing := number - int(shares.sum()):
        open_classes = [z for z in order if shares[z] < room[z]][:missing]
        shares[open_classes] += 1
    return shares
