"""Export a run's model, including the standardisation of inputs, as one TorchScript or ONNX file for programs without
fedgap."""

from __future__ import annotations

import copy
import io
import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedgap.errors import InputError
from fedgap.files import write_bytes
from fedgap.learning.data import InputFormat
from fedgap.running.predict import TrainedModel

Format = Literal["torchscript", "onnx"]
_ONNX_PACKAGES = ("onnx", "onnxscript")
"""Packages that torch needs to write ONNX."""


class RawModel(nn.Module):
    """A module that maps raw samples, (n, c, h, w) or (n, features) of any number format, to probabilities (n, classes)
    float32.

    Images with one channel may also have shape (n, h, w)."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, module: nn.Module, inputs: InputFormat) -> None:
        super().__init__()
        self.module, self._shape = module, inputs.shape
        known, broadcast = inputs.preprocessing, (1, -1, *[1] * (len(inputs.shape) - 1))
        for name, values in (("mean", known.mean if known else (0.0,)),
                             ("deviation", known.deviation if known else (1.0,))):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).reshape(broadcast))

    def forward(self, samples: Tensor) -> Tensor:
        """Probabilities (n, classes) of raw samples."""
        if len(self._shape) == 3 and self._shape[0] == 1:
            samples = samples.reshape(-1, *self._shape)
        logits: Tensor = self.module((samples.to(torch.float32) - self.mean) / self.deviation)
        return logits.softmax(1)


def export(model: TrainedModel, out: str | Path, file_format: Format = "torchscript") -> Path:
    """Write the model to ``out`` and return the path. A TorchScript file contains the class names as the extra file
    ``class_names.json``.

    Before a TorchScript file is written, its outputs are compared with the model's on a different number of samples."""
    out, raw = Path(out), RawModel(copy.deepcopy(model.module), model.inputs).eval().requires_grad_(False)
    if file_format not in get_args(Format):
        raise InputError(f"--format: must be one of {', '.join(get_args(Format))}; got {file_format!r}")
    if not out.parent.is_dir():
        raise InputError(f"--out: the folder {out.parent} must exist; create it first")
    draw = torch.Generator().manual_seed(0)
    two, three = (torch.randn(n, *model.inputs.shape, generator=draw) for n in (2, 3))
    name = model.job.model["name"]
    try:
        if file_format == "onnx":
            _write_onnx(raw, two, out)
        else:
            _write_torchscript(raw, two, three, out, model.inputs.class_names)
    except InputError:
        raise
    except Exception as error:  # torch may raise anything for a user's module
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"model: {name} cannot be exported as {file_format} ({reason})") from error
    return out


def _write_torchscript(raw: RawModel, example: Tensor, other: Tensor, out: Path, names: tuple[str, ...]) -> None:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated; the comparison below checks the result
        traced = torch.jit.trace(raw, example)  # type: ignore[no-untyped-call]
        if not torch.allclose(traced(other), raw(other), rtol=1e-4, atol=1e-6):
            raise ValueError("its result must not depend on the number of samples in a batch")
        torch.jit.save(traced, file, _extra_files={"class_names.json": json.dumps(names)})
    write_bytes(out, file.getvalue())


def _write_onnx(raw: RawModel, example: Tensor, out: Path) -> None:
    if absent := [package for package in _ONNX_PACKAGES if find_spec(package) is None]:
        raise InputError(f"--format: onnx needs the package {' and '.join(absent)}; pip install {' '.join(absent)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch's own code
        program = torch.onnx.export(raw, (example,), input_names=["samples"], output_names=["probabilities"],
                                    dynamic_shapes=({0: torch.export.Dim("n")},), dynamo=True, verbose=False)
    assert program is not None  # with dynamo=True torch always returns the program
    write_bytes(out, program.model_proto.SerializeToString())
