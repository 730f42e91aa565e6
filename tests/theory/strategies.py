"""Hypothesis strategies for label histograms and the bound's inputs."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays


def histograms(classes: int, most: int = 10_000) -> st.SearchStrategy[np.ndarray]:
    """Counts of 2 or more classes with at least one sample."""
    counts = arrays(np.int64, classes, elements=st.integers(0, most))
    return counts.filter(lambda values: values.sum() > 0)


@st.composite
def pairs(draw: st.DrawFn, most: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """A training and a target histogram over the same 2 to 12 classes."""
    classes = draw(st.integers(2, 12))
    return draw(histograms(classes, most)), draw(histograms(classes, most))


def positive(low: float, high: float) -> st.SearchStrategy[float]:
    """A float whose logarithm fills the range."""
    return st.floats(np.log10(low), np.log10(high)).map(lambda power: float(10.0**power))


@st.composite
def bounds(draw: st.DrawFn, extreme: bool = False) -> dict[str, float]:
    """Arguments of ``bound_constants``; ``extreme`` fills all that a scenario may hold."""

    def value(low: float, high: float) -> float:
        return draw(positive(*((1e-40, 1e30) if extreme else (low, high))))

    return {
        "rounds": draw(st.integers(1, 10**9 if extreme else 10_000)),
        "learning_rate": value(1e-4, 1.0),
        "batch_size": draw(st.integers(1, 10**9 if extreme else 1024)),
        "initial_gap": value(1e-3, 100.0),
        "smoothness": value(1e-2, 1e4),
        "gradient_moment": value(1e-2, 1e5),
        "parameter_moment": value(1e-2, 1e5),
    }
