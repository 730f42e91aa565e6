"""What training needs of a data set: tensors, labels and the number of classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedgap.errors import InputError


@dataclass(frozen=True)
class Dataset:
    """A classification data set, held whole in memory.

    ``train_x`` (n, c, h, w) or (n, features) float32, standardised per channel with the training set's statistics;
    ``train_y`` (n,) int64 in 0..classes-1; ``test_x`` and ``test_y`` likewise, with the *training* statistics.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])

    def label_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples of each class in the training and in the test set, each (classes,) int64."""
        return (np.bincount(self.train_y.numpy(), minlength=self.classes),
                np.bincount(self.test_y.numpy(), minlength=self.classes))

    def thinned(self, train_samples: int | None, test_samples: int | None) -> Dataset:
        """The data set with only so many samples, evenly spaced over the original order; None keeps all."""
        def pick(x: Tensor, y: Tensor, wanted: int | None, key: str) -> tuple[Tensor, Tensor]:
            if wanted is None:
                return x, y
            if not 1 <= wanted <= len(y):
                raise InputError(f"data.{key}: {self.name} has {len(y)} such samples; between 1 and {len(y)} can be "
                                 f"taken, not {wanted}")
            index = torch.arange(wanted) * len(y) // wanted
            return x[index], y[index]

        return Dataset(self.name, *pick(self.train_x, self.train_y, train_samples, "train_samples"),
                       *pick(self.test_x, self.test_y, test_samples, "test_samples"), self.classes)

    def digest(self) -> str:
        """SHA-256 of all tensors: a resumed run checks that it still sees the same data."""
        total = hashlib.sha256()
        for tensor in (self.train_x, self.train_y, self.test_x, self.test_y):
            total.update(str(tuple(tensor.shape)).encode())
            total.update(tensor.contiguous().numpy().data)
        return total.hexdigest()

    def save(self, path: Path) -> None:
        """Writes the tensors as one ``.npz`` file that :func:`Dataset.open` reads back bit for bit."""
        np.savez_compressed(path, name=self.name, classes=self.classes, train_x=self.train_x.numpy(),
                            train_y=self.train_y.numpy(), test_x=self.test_x.numpy(), test_y=self.test_y.numpy())

    @staticmethod
    def open(path: Path) -> Dataset:
        """Reads what :meth:`save` wrote, as it is (no second standardisation)."""
        with np.load(path, allow_pickle=False) as file:
            train_x, train_y, test_x, test_y = (torch.from_numpy(file[key]) for key in
                                                ("train_x", "train_y", "test_x", "test_y"))
            return Dataset(str(file["name"]), train_x, train_y, test_x, test_y, int(file["classes"]))


def from_arrays(train_x: ArrayLike | Tensor, train_y: ArrayLike | Tensor, test_x: ArrayLike | Tensor,
                test_y: ArrayLike | Tensor, *, name: str = "own", classes: int | None = None,
                standardise: bool = True) -> Dataset:
    """A data set from arrays: images (n, h, w) or (n, c, h, w), or vectors (n, features), with integer labels.

    ``standardise`` subtracts each channel's training mean and divides by its training standard deviation.
    """
    inputs = [_inputs(train_x, "train_x"), _inputs(test_x, "test_x")]
    labels = [_labels(train_y, "train_y"), _labels(test_y, "test_y")]
    for x, y, part in zip(inputs, labels, ("train", "test"), strict=True):
        if len(x) != len(y):
            raise InputError(f"data: {part}_x has {len(x)} samples and {part}_y {len(y)} labels; they must be as many")
        if len(x) == 0:
            raise InputError(f"data: {part}_x is empty; at least one sample is needed")
    if inputs[0].shape[1:] != inputs[1].shape[1:]:
        raise InputError(f"data: a training sample has shape {tuple(inputs[0].shape[1:])} and a test sample "
                         f"{tuple(inputs[1].shape[1:])}; they must be equal")
    seen = 1 + int(max(y.max() for y in labels))
    if classes is None:
        classes = max(seen, 2)
    if seen > classes or min(int(y.min()) for y in labels) < 0:
        raise InputError(f"data: labels must lie in 0..{classes - 1}; found "
                         f"{min(int(y.min()) for y in labels)}..{seen - 1}")
    if standardise:
        inputs = _standardised(*inputs)
    return Dataset(name, inputs[0], labels[0], inputs[1], labels[1], classes)


def from_torch(train: torch.utils.data.Dataset[Any], test: torch.utils.data.Dataset[Any], *, name: str = "own",
               classes: int | None = None, standardise: bool = True) -> Dataset:
    """A data set from two map-style torch data sets whose items are ``(sample, label)``; each item is read once."""
    (train_x, train_y), (test_x, test_y) = _read_all(train, "train"), _read_all(test, "test")
    return from_arrays(train_x, train_y, test_x, test_y, name=name, classes=classes, standardise=standardise)


def _read_all(items: torch.utils.data.Dataset[Any], part: str) -> tuple[Tensor, Tensor]:
    if not hasattr(items, "__len__"):
        raise InputError(f"data: the {part} set has no length; a map-style torch data set is needed")
    samples, labels = [], []
    for i in range(len(cast(Sized, items))):
        try:
            x, y = items[i]
            samples.append(torch.as_tensor(np.asarray(x)) if not isinstance(x, Tensor) else x)
            labels.append(int(y))
        except (TypeError, ValueError) as error:
            raise InputError(f"data: item {i} of the {part} set must be (sample, label); {error}") from None
        if samples[-1].shape != samples[0].shape:
            raise InputError(f"data: item {i} of the {part} set has shape {tuple(samples[-1].shape)}, item 0 "
                             f"{tuple(samples[0].shape)}; they must be equal")
    return torch.stack(samples) if samples else torch.empty(0, 1), torch.tensor(labels, dtype=torch.int64)


def _inputs(values: ArrayLike | Tensor, key: str) -> Tensor:
    x = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float32))
    if x.dim() == 3:
        x = x.unsqueeze(1)
    if x.dim() not in (2, 4):
        raise InputError(f"data: {key} has shape {tuple(x.shape)}; images (n, h, w) or (n, c, h, w), "
                         "or vectors (n, features), are needed")
    x = x.to(torch.float32)
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"data: {key} has values that are not finite; every value must be a number")
    return x.contiguous()


def _labels(values: ArrayLike | Tensor, key: str) -> Tensor:
    y = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values).copy())
    if y.dim() != 1 or y.is_floating_point() or y.is_complex():
        raise InputError(f"data: {key} must be one integer label a sample; found shape {tuple(y.shape)}, {y.dtype}")
    return y.to(torch.int64)


def _standardised(train: Tensor, test: Tensor) -> list[Tensor]:
    """(x - mean)/std per channel; summed by numpy in float64, so that torch's thread count cannot matter."""
    axes, shape = (0, *range(2, train.dim())), [1, -1, *[1] * (train.dim() - 2)]
    pieces = [train[i:i + 4096].numpy() for i in range(0, len(train), 4096)]
    each = train[:, 0].numel()
    mean = sum(piece.sum(axes, dtype=np.float64) for piece in pieces) / each
    squares = sum(np.square(piece - mean.reshape(shape)).sum(axes) for piece in pieces)
    deviation = np.sqrt(squares / each)
    deviation[deviation == 0] = 1.0  # a feature that never varies stays at zero
    centre, scale = (torch.from_numpy(v.astype(np.float32)).reshape(shape) for v in (mean, deviation))
    return [(x - centre) / scale for x in (train, test)]
