"""A data set for training: samples and labels as tensors, the names of the classes, and the preprocessing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedgap.errors import InputError
from fedgap.learning.data.validation import validation_indices

_ARRAYS = ("train_x", "train_y", "test_x", "test_y")
_VALIDATION_ARRAYS = ("validation_x", "validation_y")


@dataclass(frozen=True)
class Preprocessing:
    """How samples become the inputs of a model: (x − mean)/deviation for each channel.

    A channel is the second dimension of the samples: a colour of images (n, c, h, w), a feature of vectors
    (n, features). ``mean`` and ``deviation`` are float32 values, so that JSON and ``.npz`` files keep them exactly.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def apply(self, samples: ArrayLike | Tensor, key: str = "samples") -> Tensor:
        """Standardise ``samples``, images (n, h, w) or (n, c, h, w) or vectors (n, features), to inputs (n, c, h, w) or
        (n, features) float32.

        The result equals, bit for bit, what :func:`from_arrays` makes of the same samples. ``key`` names the samples in
        an error message."""
        x = model_inputs(samples, key)
        if x.shape[1] != len(self.mean):
            raise InputError(f"data: {key} must have {len(self.mean)} channels or features; it has {x.shape[1]}")
        return self.standardised(x)

    def standardised(self, x: Tensor) -> Tensor:
        """Standardise inputs (n, c, ...) float32: (x − mean)/deviation."""
        shape = [1, -1, *[1] * (x.dim() - 2)]
        mean, deviation = (torch.tensor(v, dtype=torch.float32).reshape(shape) for v in (self.mean, self.deviation))
        return (x - mean) / deviation


@dataclass(frozen=True)
class Dataset:
    """A classification data set, held whole in memory. :func:`from_arrays` and :func:`from_torch` make one.

    >>> import numpy as np
    >>> from fedgap.learning.data import from_arrays
    >>> images, labels = np.random.default_rng(0).random((60, 8, 8)), np.arange(60) % 3
    >>> dataset = from_arrays(images[:45], labels[:45], images[45:], labels[45:])
    >>> dataset.shape, dataset.classes, len(dataset.train_y)
    ((1, 8, 8), 3, 45)

    ``fedgap.train(experiment, dataset=dataset)`` trains on it.

    ``train_x`` (n, c, h, w) or (n, features) float32 are the inputs of the model, after the preprocessing;
    ``train_y`` (n,) int64 are the classes, in 0..classes-1; ``test_x`` and ``test_y`` likewise, preprocessed with the
    statistics of the *training* samples. ``class_names[z]`` is the name of class z (by default its number).
    ``preprocessing`` turns new samples into inputs; it is None if it is unknown (data saved by fedgap 0.1).
    ``validation_x`` and ``validation_y`` are the samples that :meth:`with_validation` held out, otherwise None.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    class_names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    validation_x: Tensor | None = None
    validation_y: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.class_names:
            object.__setattr__(self, "class_names", tuple(map(str, range(self.classes))))
        if self.classes < 2:
            raise InputError(f"data: {self.name} has {self.classes} class; a classifier needs at least two")
        if len(self.class_names) != self.classes or len(set(self.class_names)) != self.classes:
            raise InputError(f"data: class_names must be {self.classes} different names, one for each class; got "
                             f"{', '.join(self.class_names)}")
        for x, y, part in ((self.train_x, self.train_y, "train"), (self.test_x, self.test_y, "test")):
            if len(x) != len(y):
                raise InputError(f"data: {part}_x has {len(x)} samples and {part}_y {len(y)} labels; "
                                 "the numbers must be equal")
            if not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                raise InputError(f"data: labels must lie in 0..{self.classes - 1}; {part}_y has "
                                 f"{int(y.min())}..{int(y.max())}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])

    def label_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of samples of each class in the training set and in the test set, each (classes,) int64."""
        return (np.bincount(self.train_y.numpy(), minlength=self.classes),
                np.bincount(self.test_y.numpy(), minlength=self.classes))

    def thinned(self, train_samples: int | None, test_samples: int | None) -> Dataset:
        """The data set with only this many training and test samples, evenly spaced in the original order; None keeps
        all."""
        def pick(x: Tensor, y: Tensor, wanted: int | None, key: str) -> tuple[Tensor, Tensor]:
            if wanted is None:
                return x, y
            if not 1 <= wanted <= len(y):
                raise InputError(f"data.{key}: must be between 1 and {len(y)}, the number that {self.name} has; got "
                                 f"{wanted}")
            index = torch.arange(wanted) * len(y) // wanted
            return x[index], y[index]

        train_x, train_y = pick(self.train_x, self.train_y, train_samples, "train_samples")
        test_x, test_y = pick(self.test_x, self.test_y, test_samples, "test_samples")
        return replace(self, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)

    def with_validation(self, wanted: float, seed: int) -> Dataset:
        """The data set with some training samples held out for validation, on which rates and the time to stop are
        chosen.

        ``wanted`` is a share of the training samples (below 1) or their number; 0 returns the data set unchanged. Each
        class contributes in proportion and keeps at least one training sample. The choice depends only on the labels
        and the ``seed``. The preprocessing remains that of all training samples."""
        if not wanted:
            return self
        if self.validation_y is not None:
            raise InputError(f"data.validation: {self.name} has a validation split already; leave the key out")
        chosen = torch.from_numpy(validation_indices(self.train_y.numpy(), wanted, seed))
        kept = torch.ones(len(self.train_y), dtype=torch.bool)
        kept[chosen] = False
        return replace(self, train_x=self.train_x[kept], train_y=self.train_y[kept],
                       validation_x=self.train_x[chosen], validation_y=self.train_y[chosen])

    def _tensors(self) -> dict[str, Tensor]:
        """All samples and labels, by their names in ``.npz`` files."""
        tensors = {key: getattr(self, key) for key in (*_ARRAYS, *_VALIDATION_ARRAYS)}
        return {key: tensor for key, tensor in tensors.items() if tensor is not None}

    def digest(self) -> str:
        """SHA-256 of all tensors, with which a resumed run checks that the data have not changed."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        total = hashlib.sha256()
        for tensor in self._tensors().values():
            total.update(str(tuple(tensor.shape)).encode())
            total.update(tensor.contiguous().numpy().data)
        return total.hexdigest()

    def save(self, path: Path) -> None:
        """Write the data set as one ``.npz`` file that :func:`Dataset.open` reads back bit for bit."""
        known = self.preprocessing
        arrays: dict[str, Any] = {key: tensor.numpy() for key, tensor in self._tensors().items()}
        if known:
            arrays |= {"mean": known.mean, "deviation": known.deviation}
        np.savez_compressed(path, name=self.name, classes=self.classes, class_names=self.class_names, **arrays)

    @staticmethod
    def open(path: Path) -> Dataset:
        """Read a file that :meth:`save` wrote, without standardising the samples again."""
        with np.load(path, allow_pickle=False) as file:
            train_x, train_y, test_x, test_y = (torch.from_numpy(file[key]) for key in _ARRAYS)
            validation = [torch.from_numpy(file[key]) for key in _VALIDATION_ARRAYS if key in file]
            names = tuple(file["class_names"].tolist()) if "class_names" in file else ()
            known = (Preprocessing(tuple(file["mean"].tolist()), tuple(file["deviation"].tolist()))
                     if "mean" in file else None)
            return Dataset(str(file["name"]), train_x, train_y, test_x, test_y, int(file["classes"]), names, known,
                           *validation)


def from_arrays(train_x: ArrayLike | Tensor, train_y: ArrayLike | Tensor, test_x: ArrayLike | Tensor,
                test_y: ArrayLike | Tensor, *, name: str = "own", classes: int | None = None,
                class_names: Sequence[str] | None = None, standardise: bool = True) -> Dataset:
    """A data set from arrays: images (n, h, w) or (n, c, h, w), or vectors (n, features), with one label per sample.

    Labels are whole numbers or strings. The distinct labels become the classes 0, 1, ... in ascending order
    (strings: as text) and stay known as ``class_names``; so labels 1 to 5 are five classes, called "1" to "5". To fix
    the classes yourself, give ``classes`` (labels are then numbers in 0..classes-1) or ``class_names`` (labels are
    then these names, or numbers that count them from 0). ``standardise`` subtracts each channel's training mean and
    divides by its training standard deviation.
    """
    train, test = model_inputs(train_x, "train_x"), model_inputs(test_x, "test_x")
    if train.shape[1:] != test.shape[1:]:
        raise InputError(f"data: a training sample has shape {tuple(train.shape[1:])} and a test sample "
                         f"{tuple(test.shape[1:])}; they must be equal")
    names = None if class_names is None else tuple(map(str, class_names))
    if names is None and classes is not None:
        names = tuple(map(str, range(classes)))
    train_z, test_z, names = _numbered(_labels(train_y, "train_y"), _labels(test_y, "test_y"), names)
    known = _statistics(train) if standardise else Preprocessing((0.0,) * train.shape[1], (1.0,) * train.shape[1])
    return Dataset(name, known.standardised(train), train_z, known.standardised(test), test_z,
                   len(names) if classes is None else classes, names, known)


def from_torch(train: torch.utils.data.Dataset[Any], test: torch.utils.data.Dataset[Any], *, name: str = "own",
               classes: int | None = None, class_names: Sequence[str] | None = None,
               standardise: bool = True) -> Dataset:
    """A data set from two map-style torch data sets whose items are ``(sample, label)``; each item is read once.

    The arguments are those of :func:`from_arrays`.
    """
    (train_x, train_y), (test_x, test_y) = _read_all(train, "train"), _read_all(test, "test")
    return from_arrays(train_x, train_y, test_x, test_y, name=name, classes=classes, class_names=class_names,
                       standardise=standardise)


def _read_all(items: torch.utils.data.Dataset[Any], part: str) -> tuple[Tensor, list[int | str]]:
    if not hasattr(items, "__len__"):
        raise InputError(f"data: the {part} set must be a map-style torch data set; it has no length")
    samples: list[Tensor] = []
    labels: list[int | str] = []
    for i in range(len(cast(Sized, items))):
        try:
            x, y = items[i]
            samples.append(torch.as_tensor(np.asarray(x)) if not isinstance(x, Tensor) else x)
            labels.append(y if isinstance(y, str) else int(y))
        except (TypeError, ValueError) as error:
            raise InputError(f"data: item {i} of the {part} set must be (sample, label); {error}") from None
        if samples[-1].shape != samples[0].shape:
            raise InputError(f"data: item {i} of the {part} set has shape {tuple(samples[-1].shape)}, item 0 "
                             f"{tuple(samples[0].shape)}; they must be equal")
    return torch.stack(samples) if samples else torch.empty(0, 1), labels


def model_inputs(values: ArrayLike | Tensor, key: str) -> Tensor:
    """Convert samples to (n, c, h, w) or (n, features) float32, without standardising; images (n, h, w) get one
    channel.

    ``key`` names the samples in error messages."""
    x = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float32))
    if x.dim() == 3:
        x = x.unsqueeze(1)
    if x.dim() not in (2, 4):
        raise InputError(f"data: {key} must be images (n, h, w) or (n, c, h, w), or vectors (n, features); its shape "
                         f"is {tuple(x.shape)}")
    if len(x) == 0:
        raise InputError(f"data: {key} is empty; at least one sample is needed")
    x = x.to(torch.float32)
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"data: {key} has values that are not finite; every value must be a number")
    return x.contiguous()


def _labels(values: ArrayLike | Tensor, key: str) -> NDArray[Any]:
    """Convert labels (n,) to int64, or to an array of strings."""
    y = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if y.dtype.kind in "OU" and len({isinstance(label, str) for label in np.asarray(values, dtype=object).flat}) > 1:
        raise InputError(f"data: {key} mixes strings and other labels; use strings only, or whole numbers only")
    if y.dtype.kind == "O" and y.size and isinstance(y.flat[0], str):
        y = y.astype(str)
    if y.ndim != 1 or y.dtype.kind not in "biuU":
        raise InputError(f"data: {key} must have one integer label or string per sample; got shape {y.shape}, "
                         f"{y.dtype}")
    return y if y.dtype.kind == "U" else y.astype(np.int64)


def _numbered(train: NDArray[Any], test: NDArray[Any],
              names: tuple[str, ...] | None) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """The classes (n,) int64 of the training labels and of the test labels, and the names of the classes.

    If ``names`` is None, the classes are the distinct labels."""
    texts = train.dtype.kind == "U"
    if texts != (test.dtype.kind == "U"):
        raise InputError("data: train_y and test_y must both be strings or both be whole numbers")
    if names is not None:
        labels: list[Any] = list(names) if texts else list(range(len(names)))
        allowed = f"be one of the class names {', '.join(names)}" if texts else f"lie in 0..{len(names) - 1}"
    else:
        labels = np.unique(np.concatenate([train, test])).tolist()
        names, allowed = tuple(map(str, labels)), "be whole numbers from 0, or strings"
        if not texts:
            labels = [label for label in labels if label >= 0]
    number = {label: z for z, label in enumerate(labels)}
    classes = []
    for part, key in ((train, "train_y"), (test, "test_y")):
        distinct, place = np.unique(part, return_inverse=True)
        if unknown := [label for label in distinct.tolist() if label not in number]:
            raise InputError(f"data: labels must {allowed}; {key} has {unknown[0]!r}")
        classes.append(torch.from_numpy(np.array([number[label] for label in distinct.tolist()], np.int64)[place]))
    return classes[0], classes[1], names


def _statistics(train: Tensor) -> Preprocessing:
    """The mean and standard deviation of each channel, summed by numpy in float64 so that torch's number of threads
    does not change them."""
    axes, shape = (0, *range(2, train.dim())), [1, -1, *[1] * (train.dim() - 2)]
    pieces = [train[i:i + 4096].numpy() for i in range(0, len(train), 4096)]
    values_per_channel = train[:, 0].numel()
    mean = sum(piece.sum(axes, dtype=np.float64) for piece in pieces) / values_per_channel
    squares = sum(np.square(piece - mean.reshape(shape)).sum(axes) for piece in pieces)
    deviation = np.sqrt(squares / values_per_channel)
    deviation[deviation == 0] = 1.0  # a feature that never varies stays at zero
    return Preprocessing(*(tuple(v.astype(np.float32).tolist()) for v in (mean, deviation)))
