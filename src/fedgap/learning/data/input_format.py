"""The format of a trained model's inputs and outputs: shape, preprocessing, names of the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from fedgap.errors import InputError
from fedgap.learning.data.dataset import Dataset, Preprocessing, model_inputs


@dataclass(frozen=True)
class InputFormat:
    """How raw samples become the inputs of a model, and the names of its outputs.

    ``shape`` is that of one sample. If ``preprocessing`` is None, it is unknown, and samples are assumed to be
    preprocessed already.
    """

    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    preprocessing: Preprocessing | None

    @staticmethod
    def of(dataset: Dataset) -> InputFormat:
        """The format of a data set's samples."""
        return InputFormat(dataset.shape, dataset.class_names, dataset.preprocessing)

    def to_dict(self) -> dict[str, Any]:
        """The format as the JSON object ``preprocessing`` of a run's ``summary.json``; JSON keeps the float32 numbers
        exactly."""
        known = self.preprocessing
        return {"mean": list(known.mean) if known else None, "deviation": list(known.deviation) if known else None,
                "input_shape": list(self.shape), "class_names": list(self.class_names)}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> InputFormat:
        """Read what :meth:`to_dict` wrote."""
        mean, deviation = document["mean"], document["deviation"]
        known = None if mean is None else Preprocessing(tuple(mean), tuple(deviation))
        return InputFormat(tuple(document["input_shape"]), tuple(document["class_names"]), known)

    def inputs(self, samples: ArrayLike | Tensor, key: str = "samples") -> Tensor:
        """The model's inputs (n, *shape) float32, standardised exactly as in training.

        ``samples`` are images (n, h, w) or (n, c, h, w), or vectors (n, features), of any number format; ``key`` names
        them in an error message.
        """
        x = model_inputs(samples, key)
        if tuple(x.shape[1:]) != self.shape:
            raise InputError(f"data: one sample of {key} has shape {tuple(x.shape[1:])}; the model was trained with "
                             f"{self.shape}")
        return x if self.preprocessing is None else self.preprocessing.standardised(x)
