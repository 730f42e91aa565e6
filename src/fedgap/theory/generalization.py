"""The generalization statement φ (Lemma 1) of a client and of a set of clients.

It measures how far the labels of test data are from those that the clients train on.
The paper's p(z|D) is read as the *label* distribution of D with add-one smoothing. As a distribution of samples it
would make the divergence infinite, because training and test sets share no sample.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedgap.arrays import Bools, Floats
from fedgap.errors import InputError

Reading = Literal["as_printed", "size_normalised"]
"""How Lemma 1 is read; see :func:`statement`."""
Aggregation = Literal["sum", "mean", "mixture"]
"""How Φ of a selection follows from its clients: see :func:`aggregate` and, for ``mixture``,
:func:`pooled_statement`."""


def smoothed(counts: npt.ArrayLike) -> Floats:
    """Return the add-one smoothed label distribution, (counts + 1)/Σ(counts + 1), over the last axis."""
    raised = np.asarray(counts, dtype=np.float64) + 1.0
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def entropy(p: Floats) -> Floats:
    """Entropy H(p) = −Σ p·ln p, in nats, over the last axis."""
    return -np.asarray(np.sum(p * np.log(p), axis=-1))


def cross_entropy(p: Floats, q: Floats) -> Floats:
    """Cross entropy H(p, q) = −Σ p·ln q, in nats, over the last axis."""
    return -np.asarray(np.sum(p * np.log(q), axis=-1))


def mutual_information(train: Floats, test: Floats) -> Floats:
    """Mutual information as the proof of Lemma 1 defines it, with the *cross* entropy: H(p̂) + H(p̃) − H(p̂, p̃)."""
    return np.asarray(entropy(train) + entropy(test) - cross_entropy(train, test))


def divergence(train: Floats, test: Floats) -> Floats:
    """Divergence KL(p̂‖p̃) = Σ p̂·ln(p̂/p̃) ≥ 0, in nats, over the last axis; equals H(p̃) − I(p̂, p̃) (Appendix A)."""
    # Σ p̂·[ln(p̂/p̃) − 1 + p̃/p̂] has the same sum and no negative term, so rounding cannot make it negative.
    ratio = test / train
    return np.asarray(np.sum(train * (ratio - 1.0 - np.log(ratio)), axis=-1))


def statement(
    train_counts: npt.ArrayLike,
    target_counts: npt.ArrayLike,
    reading: Reading = "size_normalised",
    names: Sequence[str] | None = None,
) -> Floats:
    """Return the generalization statement φ = (D̂ + D̃)/p′ · |√(2·KL)/(1 − D̃·√(2·KL))| of Lemma 1.

    KL is the divergence of the training labels from the test labels, and p′ the smallest probability of a training
    label. With ``as_printed``, D̂ and D̃ are the sizes of the training and the test set. With ``size_normalised`` they
    are these sizes as fractions of D̂ + D̃ (means instead of sums in (A-1)), so that φ grows with the divergence, as the
    paper says it does.

    :param train_counts: label histogram(s) of the training data, shape (..., classes).
    :param target_counts: label histogram(s) of the test data, broadcastable.
    :param names: the clients' names for error messages, one for each index of the first axis.
    :raises InputError: if D̃·√(2·KL) = 1, where φ has no value, and with ``size_normalised`` also if it is above 1.
    """
    train = np.asarray(train_counts, dtype=np.float64)
    target = np.asarray(target_counts, dtype=np.float64)
    empty = train.sum(axis=-1) + target.sum(axis=-1) <= 0.0
    if np.any(empty):
        raise InputError(f"{_who(empty, names)}: label_counts: there are no samples; φ needs at least one")
    phi = possible_statement(train, target, reading)
    if not np.all(np.isfinite(phi)):
        raise InputError(
            f"{_who(~np.isfinite(phi), names)}: label_counts: φ has no value because D̃·√(2·KL) "
            + ("is at least 1" if reading == "size_normalised" else "is 1")
            + "; give the client's phi, or a target set closer to its data"
        )
    return phi


def possible_statement(train: Floats, target: Floats, reading: Reading = "size_normalised") -> Floats:
    """Return :func:`statement` of histograms, but ∞ instead of an error where φ has no value."""
    p_train = smoothed(train)
    root = np.sqrt(2.0 * divergence(p_train, smoothed(target)))
    train_size, target_size = train.sum(axis=-1), target.sum(axis=-1)
    total = train_size + target_size
    if reading == "size_normalised":
        train_size, target_size = train_size / total, target_size / total
    margin = 1.0 - target_size * root
    usable = margin > 1e-9 if reading == "size_normalised" else np.abs(margin) > 1e-9
    scale = (train_size + target_size) / p_train.min(axis=-1)
    return np.asarray(np.where(usable, scale * root / np.where(usable, np.abs(margin), 1.0), np.inf))


def _who(bad: Bools, names: Sequence[str] | None) -> str:
    first = int(np.flatnonzero(np.atleast_1d(bad))[0])
    return names[first] if names is not None else f"client {first}"


def pooled_statement(
    label_counts: Floats, target_counts: Floats, selected: Bools, reading: Reading = "size_normalised"
) -> Floats:
    """Return φ̂(A), the statement of the summed histograms of the selected clients A (aggregation ``mixture``).

    φ̂ is ∞ if nobody is selected, and where :func:`statement` has no value, so that no plan uses such a selection.

    :param label_counts: shape (N, classes); :param target_counts: shape (classes,);
    :param selected: shape (..., N), one selection for each leading index.
    """
    pooled = selected.astype(np.float64) @ label_counts
    return np.where(selected.any(axis=-1), possible_statement(pooled, target_counts, reading), np.inf)


def aggregate(phi: Floats, selected: Bools, aggregation: Literal["sum", "mean"]) -> Floats:
    """Return Φ of a selection, shape (...): the sum Σ a_n·φ_n, as printed, or the mean of φ_n over selected clients.

    If nobody is selected, the mean is ∞, as in :func:`pooled_statement`.
    """
    total, count = np.where(selected, phi, 0.0).sum(axis=-1), selected.sum(axis=-1)
    if aggregation == "sum":
        return np.asarray(total)
    return np.where(count > 0, total / np.maximum(count, 1), np.inf)
