"""Models: their sizes as the paper's table has them, initialisation, a user's own module."""

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedgap.errors import InputError
from fedgap.learning.models import Layout, build
from fedgap.learning.sizes import flops_per_sample, gradient_bits
from fedgap.registry import MODELS

SHAPES = {name: (1, 28, 28) if name in ("lenet5", "mlp") else (3, 32, 32) for name in MODELS.built_in}


@pytest.mark.parametrize(("name", "parameters"), [
    ("lenet5", 44_426), ("mlp", 50_890), ("resnet20", 269_722), ("resnet32", 464_154), ("resnet44", 658_586),
    ("resnet56", 853_018), ("resnet110", 1_727_962)])
def test_parameter_counts(name, parameters):
    module = build(name, input_shape=SHAPES[name], classes=10, seed=0)
    assert sum(p.numel() for p in module.parameters()) == Layout.of(module).size == parameters
    assert gradient_bits(module) == 32 * parameters


def test_lenet5_layer_by_layer():
    sizes = [p.numel() for p in build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0).parameters()]
    assert sizes == [150, 6, 2400, 16, 30720, 120, 10080, 84, 840, 10]


@pytest.mark.parametrize(("name", "table"), [("lenet5", 1.8e6), ("resnet44", 0.59e9)])
def test_flops_are_within_a_fifth_of_table_1(name, table):
    module = build(name, input_shape=SHAPES[name], classes=10, seed=0)
    assert abs(flops_per_sample(module, SHAPES[name]) / table - 1) < 0.2


def test_lenet5_flops_by_hand():
    # multiply-adds: 24·24·6·25 + 8·8·16·150 + 256·120 + 120·84 + 84·10 = 281,640; two operations each, three passes
    module = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0)
    assert flops_per_sample(module, (1, 28, 28)) == 3 * 2 * 281_640
    assert module.training  # left as it was


def test_flops_are_counted_as_torch_counts_them():
    """Attention and batched products too."""
    module = nn.Sequential(nn.Conv2d(1, 8, 5), nn.Flatten(2), nn.TransformerEncoderLayer(576, 4, 32), nn.Linear(576, 3))
    with FlopCounterMode(display=False) as counter:
        module.eval()(torch.zeros(1, 1, 28, 28))
    assert flops_per_sample(module, (1, 28, 28)) == 3 * counter.get_total_flops() > 0


@pytest.mark.parametrize("name", ["lenet5", "mlp", "resnet20"])
def test_logits_and_batch_statistics(name):
    module = build(name, input_shape=SHAPES[name], classes=7, seed=0)
    assert module(torch.randn(5, *SHAPES[name])).shape == (5, 7)


def test_option_a_shortcut_is_subsampling_and_zero_channels():
    block = build("resnet20", input_shape=(3, 32, 32), classes=10, seed=0).blocks[3]
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(2, 16, 32, 32)
    y = block(x)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


def test_he_initialisation():
    module = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=3)
    weight = module.fc1.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 256), rel=0.02)
    assert weight.mean().abs() < 0.002
    assert not module.fc1.bias.any()
    # E‖ω‖² = 2·(6 + 16 + 120 + 84 + 10) = 472, decisions' B² ≈ 470
    assert Layout.of(module).weights(module).square().sum().item() == pytest.approx(472, rel=0.05)


def test_the_seed_alone_decides_and_the_global_state_is_left_alone():
    before = torch.get_rng_state()
    one, same, other = (build("resnet20", input_shape=(3, 32, 32), classes=10, seed=s) for s in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    layout = Layout.of(one)
    assert torch.equal(layout.weights(one), layout.weights(same))
    assert not torch.equal(layout.weights(one), layout.weights(other))


def test_layout_round_trip():
    module = build("resnet20", input_shape=(3, 32, 32), classes=10, seed=0)
    layout = Layout.of(module)
    flat, buffers = layout.weights(module), layout.buffers(module)
    assert flat.shape == (269_722,)
    assert buffers.shape == (layout.buffer_size,) == (2 * (16 * 7 + 32 * 6 + 64 * 6),)
    stack = torch.stack([flat, 2 * flat])
    assert torch.equal(layout.join(layout.split(stack), lead=1), stack)
    layout.load(module, 3 * flat, buffers + 1)
    assert torch.equal(layout.weights(module), 3 * flat)
    assert torch.equal(layout.buffers(module), buffers + 1)


def test_layout_leaves_frozen_parameters_out():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    assert Layout.of(module).size == 4 + 8 + 2


OWN = '''
__fedgap__ = ["tiny", "Both", "lazy", "missing", "number", "not_a_module", "ends_in", "Functional",
              "Logits"]
from torch import nn
def tiny(classes, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU(), nn.Linear(width, classes))
def lazy(classes):
    return nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(classes))
class Both(nn.Module):
    def __init__(self, input_shape, **rest):
        super().__init__()
        self.line, self.rest = nn.Linear(input_shape[0], rest["classes"]), rest
def ends_in(classes, layer):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes), getattr(nn, layer)(dim=1))
class Functional(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.line, self.normalise, self.probabilities = nn.Linear(4, classes), nn.BatchNorm1d(classes), True
        self.unused = nn.Softmax(dim=1)
        self.normalise.eval()
    def forward(self, x):
        logits = self.normalise(self.line(x.flatten(1)))
        return logits.softmax(1) if self.probabilities else logits
class Logits(Functional):
    def __init__(self, classes):
        super().__init__(classes)
        self.probabilities = False
not_a_module = lambda: 7
number = 7
'''


@pytest.fixture
def own_package(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_own_module_by_import_path(own_package):
    module = build("my_models:tiny", input_shape=(1, 2, 2), classes=5, seed=0, width=6)
    assert module(torch.zeros(3, 1, 2, 2)).shape == (3, 5)
    assert module[1].weight.shape == (6, 4)
    assert not module[1].bias.any()  # He initialisation is ours
    kept = build("my_models:tiny", input_shape=(1, 2, 2), classes=5, seed=0, initialisation="own")
    again = build("my_models:tiny", input_shape=(1, 2, 2), classes=5, seed=0, initialisation="own")
    assert kept[1].bias.any()
    assert torch.equal(kept[1].bias, again[1].bias)
    assert build("my_models:Both", input_shape=(4,), classes=2, seed=0, extra=1).rest == {"classes": 2, "extra": 1}


@pytest.mark.parametrize("initialisation", ["he", "own"])
def test_a_lazy_module_gets_its_shapes(own_package, initialisation):
    first, again = (build("my_models:lazy", input_shape=(3, 6, 6), classes=5, seed=4, initialisation=initialisation)
                    for _ in range(2))
    assert first.training
    assert [tuple(p.shape) for p in first.parameters()] == [(2, 3, 3, 3), (2,), (2,), (2,), (5, 32), (5,)]
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    with pytest.raises(InputError, match=r"model: my_models:lazy could not be built with input_shape=\(3,\)"):
        build("my_models:lazy", input_shape=(3,), classes=5, seed=4)


@pytest.mark.parametrize(("name", "message"), [
    ("lenet", "model.name: must be one of lenet5, mlp"),
    ("no_such_package:f", "model.name: no_such_package:f cannot be imported"),
    ("my_models:missing", "model.name: my_models:missing cannot be imported"),
    ("my_models:number", "must be a class or a function"),
    ("my_models:not_a_module", "must return a torch.nn.Module"),
    ("my_models:Both", "could not be built"),
])
def test_bad_models_are_named(own_package, name, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        build(name, input_shape=(), classes=2, seed=0)


@pytest.mark.parametrize(("name", "arguments", "message"), [
    ("my_models:ends_in", {"layer": "Softmax"}, "returns probabilities; .* remove the Softmax at its end"),
    ("my_models:ends_in", {"layer": "LogSoftmax"}, "returns logarithms of probabilities; .* remove the LogSoftmax"),
    ("my_models:Functional", {}, "returns probabilities; .* remove the Softmax"),
])
def test_probabilities_instead_of_logits_are_refused(own_package, name, arguments, message):
    with pytest.raises(InputError, match=f"^model: {name} {message}"):
        build(name, input_shape=(1, 2, 2), classes=3, seed=0, **arguments)


def test_a_softmax_that_the_output_does_not_pass_is_no_obstacle(own_package):
    module = build("my_models:Logits", input_shape=(1, 2, 2), classes=3, seed=0)
    assert isinstance(module.unused, nn.Softmax)
    assert module.training
    assert not module.normalise.training  # the user's choice stays
    assert not module.normalise.running_mean.any()


def test_unknown_argument_is_named():
    with pytest.raises(InputError, match=r"model\.arguments\.hiden: mlp takes no such argument; it takes input_shape"):
        build("mlp", input_shape=(1, 4, 4), classes=2, seed=0, hiden=(3,))
    with pytest.raises(InputError, match=r"model\.initialisation"):
        build("mlp", input_shape=(1, 4, 4), classes=2, seed=0, initialisation="xavier")
