"""Data sets: four arrays, or a ``fedgap.Dataset``, or two torch data sets."""

import numpy as np


def stripes(train=600, test=200, side=8):
    """Noisy grey images of horizontal (0), vertical (1) and diagonal (2) stripes."""
    random = np.random.default_rng(0)
    row, column = np.indices((side, side))
    patterns = np.stack([row % 2, column % 2, (row + column) % 4 // 2]).astype(np.float32)
    labels = random.integers(0, 3, train + test)
    images = patterns[labels] + random.normal(0, 0.3, (train + test, side, side)).astype(np.float32)
    return images[:train], labels[:train], images[train:], labels[train:]
