"""Weights from a file: what fits is taken bit for bit, and what does not is named."""

import pytest
import torch
from safetensors.torch import save_file

from fedgap.errors import InputError
from fedgap.learning.models import build
from fedgap.running.weights import load_weights


def model(name="resnet20", seed=0):
    return build(name, input_shape=(1, 28, 28), classes=10, seed=seed)


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_parameters_and_statistics_are_taken(tmp_path):
    source, target = model(seed=1), model(seed=2)
    for buffer in source.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2.0)
    save_file(state(source), tmp_path / "weights.safetensors")
    load_weights(target, tmp_path / "weights.safetensors")
    for name, tensor in state(source).items():
        assert torch.equal(target.state_dict()[name], tensor), name


def test_other_number_formats_are_converted(tmp_path):
    source, target = model("mlp", 1), model("mlp", 2)
    save_file({name: tensor.half() for name, tensor in state(source).items()}, tmp_path / "half.safetensors")
    load_weights(target, tmp_path / "half.safetensors")
    for name, tensor in state(source).items():
        assert torch.equal(target.state_dict()[name], tensor.half().float())


@pytest.mark.parametrize(("change", "says"), [
    (lambda tensors: tensors.pop("layers.1.bias"), "must have the tensor 'layers.1.bias', which the model has"),
    (lambda tensors: tensors.update(extra=torch.zeros(1)), "has the tensor 'extra', which the model does not have"),
    (lambda tensors: tensors.update({"layers.1.bias": torch.zeros(3)}),
     r"layers.1.bias in .* must have the shape .*; it has \(3,\)"),
    (lambda tensors: tensors["layers.1.bias"].fill_(torch.nan), "layers.1.bias in .* must contain only finite"),
])
def test_what_does_not_fit_is_named_and_nothing_else_is_said(tmp_path, change, says):
    tensors = state(model("mlp"))
    change(tensors)
    save_file(tensors, tmp_path / "wrong.safetensors")
    with pytest.raises(InputError, match=rf"^model\.weights: .*{says}"):
        load_weights(model("mlp"), tmp_path / "wrong.safetensors")


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match=r"model\.weights: .*absent\.safetensors cannot be read"):
        load_weights(model("mlp"), tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("weights")
    with pytest.raises(InputError, match=r"model\.weights: .*text\.safetensors cannot be read"):
        load_weights(model("mlp"), tmp_path / "text.safetensors")
