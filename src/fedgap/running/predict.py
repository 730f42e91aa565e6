"""Predictions of a run's trained model for raw samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fedgap.errors import InputError
from fedgap.files import write_bytes
from fedgap.learning.accuracy import Accuracy
from fedgap.learning.data import Dataset, InputFormat, load
from fedgap.learning.engine import Engine
from fedgap.learning.models import build
from fedgap.running.job import Job
from fedgap.running.weights import load_weights

_SHOWN = 10
"""Maximum number of predictions that ``str`` shows."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """A model's predictions for n samples.

    ``probabilities`` (n, classes) float32 are the softmax of its outputs, ``classes`` (n,) int64 the most probable
    class of each sample, counted from 0, and ``class_names[z]`` is the name of class z.
    """

    classes: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def names(self) -> NDArray[np.str_]:
        """The name of each sample's predicted class, (n,)."""
        return np.array(self.class_names)[self.classes]

    @property
    def probability(self) -> NDArray[np.float32]:
        """The probability of each sample's predicted class, (n,)."""
        return self.probabilities[np.arange(len(self)), self.classes]

    def accuracy(self, labels: ArrayLike | Tensor) -> float:
        """The share of samples whose prediction equals the label; see :meth:`compared` for its interval."""
        return self.compared(labels).share

    def compared(self, labels: ArrayLike | Tensor) -> Accuracy:
        """Compare the predictions with labels, which are class names or classes counted from 0.

        Whole numbers that are all class names, such as 1 to 5 if the classes have these names, are read as names."""
        truth = self._classes_of(np.asarray(labels))
        return Accuracy(int((truth == self.classes).sum()), len(self))

    def _classes_of(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        if labels.shape != (len(self),):
            raise InputError(f"data: the labels must have shape ({len(self)},), one per prediction; they have shape "
                             f"{labels.shape}")
        number = {name: z for z, name in enumerate(self.class_names)}
        names = [str(label) for label in labels.tolist()]
        if all(name in number for name in names):
            return np.array([number[name] for name in names], dtype=np.int64)
        counted = {str(z): z for z in range(len(self.class_names))} if labels.dtype.kind in "iu" else number
        unknown = next((name for name in names if name not in counted), None)
        if unknown is not None:
            raise InputError(f"data: label {unknown!r} must be one of the model's classes: "
                             f"{', '.join(self.class_names)}")
        return labels.astype(np.int64)

    def save(self, path: str | Path) -> Path:
        """Write the predictions to a file; its suffix decides the format.

        ``.csv``: columns sample, class, class_name, probability. ``.npz``: arrays class, class_name, probability,
        ``probabilities`` and ``class_names``."""
        path, buffer = Path(path), io.BytesIO()
        if path.suffix == ".npz":
            arrays: dict[str, Any] = {
                "class": self.classes, "class_name": self.names, "probability": self.probability,
                "probabilities": self.probabilities, "class_names": np.array(self.class_names)}
            np.savez_compressed(buffer, **arrays)
        elif path.suffix == ".csv":
            text = io.StringIO(newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(["sample", "class", "class_name", "probability"])
            writer.writerows(zip(range(len(self)), self.classes, self.names, self.probability, strict=True))
            buffer.write(text.getvalue().encode())
        else:
            raise InputError(f"--out: {path} must end in .npz or .csv")
        if not path.parent.is_dir():
            raise InputError(f"--out: the folder {path.parent} must exist; create it first")
        write_bytes(path, buffer.getvalue())
        return path

    def __str__(self) -> str:
        rows = [f"{sample}: {name} ({probability:.1%})" for sample, (name, probability)
                in enumerate(zip(self.names[:_SHOWN], self.probability[:_SHOWN], strict=True))]
        return "\n".join([*rows, *([f"... {len(self):,} samples in all"] if len(self) > _SHOWN else [])])


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of a finished run, with the format of its inputs."""

    job: Job
    module: nn.Module
    """The model in evaluation mode, on the CPU. It takes standardised inputs."""
    inputs: InputFormat

    @staticmethod
    def load(folder: Path, job: Job | None = None) -> TrainedModel:
        """Read the model of the run in ``folder``."""
        job = job or Job.load(folder / "job")
        file = folder / "model.safetensors"
        if not file.is_file():
            raise InputError(f"{folder}: has no trained model yet; finish the run with `fedgap resume {folder}`")
        shape, classes = job.extra["input_shape"], job.extra["classes"]
        module = build(**job.model, input_shape=shape, classes=classes, seed=0)
        load_weights(module, file, key=str(folder))
        return TrainedModel(job, module.eval(), _input_format(folder, job))

    def predict(self, samples: ArrayLike | Tensor, key: str = "samples") -> Predictions:
        """Predict with the engine, precision and threads of the training, so that its test accuracy is reproduced
        exactly.

        If the run was trained on a GPU and this computer has none, float32 on the CPU is used; rounding then differs,
        and a close decision between two classes may change. ``key`` names the samples in error messages."""
        x, layout = self.inputs.inputs(samples, key), self._engine.layout
        with _threads(self.job.threads):
            logits = self._engine.logits(layout.weights(self.module), layout.buffers(self.module), x)
            probabilities = logits.softmax(1).float().cpu()
        return Predictions(logits.argmax(1).cpu().numpy(), probabilities.numpy(), self.inputs.class_names)

    @cached_property
    def _engine(self) -> Engine:
        device, precision = self.job.device, self.job.precision
        if device != "cpu" and not torch.cuda.is_available():
            device, precision = "cpu", "float32"
        return Engine(self.module, device=device, precision=precision)


def _input_format(folder: Path, job: Job) -> InputFormat:
    """The input format from the run's job, or from the data set for runs of fedgap 0.1, which do not record it."""
    known = job.extra.get("summary", {}).get("preprocessing")
    if known is not None:
        return InputFormat.from_dict(known)
    copy = folder / "job" / "data.npz"
    return InputFormat.of(Dataset.open(copy) if copy.is_file() else load(**job.data))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Use this number of CPU threads, because the rounding of sums depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def read_samples(path: str | Path) -> tuple[NDArray[Any], NDArray[Any] | None, str]:
    """Read samples and labels (None if there are none) from an ``.npz`` file; the third value names the samples in
    messages.

    They are the arrays ``x`` and ``y``, or else ``test_x`` and ``test_y``."""
    path = Path(path)
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise InputError(f"{path}: must be an .npz file, not a single array; save it with "
                             f"numpy.savez({path.stem}.npz, x=array)")
        with opened as file:
            samples, labels = next((pair for pair in (("x", "y"), ("test_x", "test_y")) if pair[0] in file), ("", ""))
            if not samples:
                raise InputError(f"{path}: must have an array x or test_x; it has {', '.join(file.files) or 'none'}")
            return file[samples], file.get(labels), f"{samples} of {path.name}"
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{path}: cannot be read as .npz ({error})") from None
