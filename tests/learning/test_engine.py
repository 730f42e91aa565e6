"""The engine equals the plain loop: every model, strategy, selection size, mask, batch size and number of runs."""

import itertools
import math
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedgap.errors import InputError
from fedgap.learning import reference
from fedgap.learning.contract import RoundInput
from fedgap.learning.engine import Engine
from fedgap.learning.engine.core import addressable
from fedgap.learning.engine.schedule import schedule
from fedgap.learning.masks import kept_fraction, ranks
from fedgap.learning.models import Layout, build


class Own(nn.Module):
    """What a user might bring: BatchNorm, a smooth activation, an integer buffer, a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 13 * 13, 10)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(torch.tanh(self.norm(self.conv(x))).flatten(1))


class Mixing(nn.Module):
    """Logits that depend on the other samples of the batch, without any BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.fc(x - x.mean(0))


class Unvectorisable(nn.Module):
    """A forward pass that looks at its values, which vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.fc(x if float(x.detach().sum()) > 0 else -x)


MODELS = {"lenet5": (1, 28, 28), "mlp": (1, 28, 28), "resnet20": (3, 16, 16), "own": (1, 28, 28)}
STRATEGIES = [(m, s) for m, s in itertools.product(MODELS, ("auto", "stacked", "vmap", "loop"))
              if (m, s) != ("own", "stacked")]
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 2e-2}


def model(name, seed=0, shape=None):
    module = Own() if name == "own" else build(name, input_shape=shape or MODELS[name], classes=10, seed=seed)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.bias.fill_(4.0)
    return module


def round_of(module, shape, run, ratios, dtype, batch=4, seed=0):
    """A round at random weights; each run's differ a little.

    Residual networks have biases that keep their thousands of ReLUs off the kink (see ``model``): where one sits within
    rounding error of 0 the gradient jumps, and no two orders of summation agree, be they stacked or not.
    """
    layout = Layout.of(module)
    generator = torch.Generator().manual_seed(seed)
    runs = max(run) + 1
    scale = 1 + 0.1 * torch.arange(runs)[:, None]
    weights = (layout.weights(module) * scale).to(dtype)
    buffers = layout.buffers(module).expand(runs, -1).to(dtype)
    x = torch.randn(len(run), batch, *shape, generator=generator).to(dtype)
    y = torch.randint(10, (len(run), batch), generator=generator)
    ranking = ranks(torch.rand(weights.shape, generator=generator) * weights.abs())
    return RoundInput(weights, ranking, buffers, run, ratios, x, y)


def distance(one, other):
    difference = one.double() - other.double()
    return float(difference.norm() / other.double().norm().clamp(min=1e-30)) if other.numel() else 0.0


def assert_equal(out, expected, tolerance):
    assert torch.equal(out.finite, expected.finite)
    assert torch.equal(out.accepted, expected.accepted)
    assert distance(out.gradient, expected.gradient) <= tolerance
    assert distance(out.losses, expected.losses) <= tolerance
    assert distance(out.buffers, expected.buffers) <= tolerance


# Under vmap torch rounds a layer's bias separately: in bfloat16 that decides ReLUs, so only the smooth model is asked.
@pytest.mark.parametrize(("name", "strategy", "precision"), [
    (m, s, p) for (m, s), p in itertools.product(STRATEGIES, TOLERANCE)
    if m == "own" or (s, p) != ("vmap", "bfloat16")])
@pytest.mark.usefixtures("cpu_precision")
def test_every_strategy_equals_the_plain_loop(name, strategy, precision):
    module = model(name)
    dtype = torch.float64 if precision == "float64" else torch.float32
    run, ratios = (0, 1, 0, 1, 0), (0.1, 0.5, 0.1, 0.0, 0.3)
    round_input = round_of(module, MODELS[name], run, ratios, dtype)
    expected = reference.gradients(module.to(dtype), round_input, bfloat16=precision == "bfloat16")
    out = Engine(module, precision=precision, strategy=strategy).gradients(round_input, per_client=True)
    assert_equal(out, expected, TOLERANCE[precision])
    assert distance(out.client_gradients, expected.client_gradients) <= TOLERANCE[precision]
    if expected.client_buffers.numel():
        assert distance(out.client_buffers, expected.client_buffers) <= TOLERANCE[precision]
    shared = Engine(module, precision=precision, strategy=strategy).gradients(round_input)
    assert shared.client_gradients is None
    assert_equal(shared, expected, TOLERANCE[precision])


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("depth", [32, *(pytest.param(depth, marks=pytest.mark.full) for depth in (44, 56, 110))])
@pytest.mark.usefixtures("cpu_precision")
def test_deeper_residual_networks_equal_the_plain_loop(depth, precision):
    module = model(f"resnet{depth}", shape=(3, 8, 8))
    dtype = torch.float64 if precision == "float64" else torch.float32
    round_input = round_of(module, (3, 8, 8), (0, 0, 1), (0.0, 0.4, 0.3), dtype)
    expected = reference.gradients(module.to(dtype), round_input, bfloat16=precision == "bfloat16")
    out = Engine(module, precision=precision, strategy="stacked").gradients(round_input)
    assert_equal(out, expected, TOLERANCE[precision])


@pytest.mark.parametrize("name", ["lenet5", "mlp", "own"])
@pytest.mark.parametrize("ratios", [(0.0,), (0.5,), (0.3,) * 7, (0.9, 0.0, 0.9, 0.25, 0.0, 0.9, 1.0)])
def test_selection_sizes_and_masks(name, ratios):
    module = model(name).double()
    round_input = round_of(module, MODELS[name], (0,) * len(ratios), ratios, torch.float64, batch=3)
    expected = reference.gradients(module, round_input)
    for strategy in ("auto", "vmap", "loop"):
        assert_equal(Engine(module, precision="float64", strategy=strategy).gradients(round_input), expected, 1e-10)


def test_odd_images_and_colour():
    for shape in ((3, 32, 32), (1, 29, 31), (2, 30, 27)):
        module = build("lenet5", input_shape=shape, classes=10, seed=0).double()
        round_input = round_of(module, shape, (0, 0, 0), (0.1, 0.2, 0.2), torch.float64)
        out = Engine(module, precision="float64").gradients(round_input)
        assert_equal(out, reference.gradients(module, round_input), 1e-10)


def test_pooling_ties_go_where_torch_sends_them():
    module = model("lenet5").double()
    round_input = round_of(module, MODELS["lenet5"], (0, 0), (0.6, 0.95), torch.float64)
    blocky = (round_input.inputs > 1).double()  # flat images: many equal pixels in a window
    round_input = replace(round_input, inputs=blocky)
    out = Engine(module, precision="float64").gradients(round_input)
    assert_equal(out, reference.gradients(module, round_input), 1e-10)


def test_batches_of_different_sizes():
    for name in ("lenet5", "own"):
        module = model(name).double()
        layout = Layout.of(module)
        weights, buffers = layout.weights(module)[None], layout.buffers(module)[None]
        inputs = [torch.randn(z, *MODELS[name]).double() for z in (2, 5, 2, 3)]
        labels = [torch.randint(10, (len(x),)) for x in inputs]
        round_input = RoundInput(weights, ranks(weights.abs()), buffers, (0,) * 4, (0.2, 0.2, 0.2, 0.4), inputs, labels)
        out = Engine(module, precision="float64").gradients(round_input)
        assert_equal(out, reference.gradients(module, round_input), 1e-10)


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_a_round_that_does_not_fit_is_divided(name):
    module = model(name)
    round_input = round_of(module, MODELS[name], (0,) * 9, (0.1,) * 6 + (0.2,) * 3, torch.float32)
    strategy = "stacked"
    whole = Engine(module, strategy=strategy).gradients(round_input)
    pieces = Engine(module, strategy=strategy, memory_bytes=2**20).gradients(round_input)
    assert_equal(pieces, whole, 1e-4)


def test_samples_that_are_not_independent_do_not_share_a_pass():
    module = Mixing().double()
    round_input = round_of(module, (1, 4, 4), (0,) * 3, (0.2,) * 3, torch.float64)
    round_input.labels.remainder_(3)
    out = Engine(module, precision="float64").gradients(round_input)
    assert_equal(out, reference.gradients(module, round_input), 1e-10)


def test_a_module_that_vmap_cannot_do_goes_one_by_one():
    module = Unvectorisable().double()
    round_input = round_of(module, (1, 4, 4), (0,) * 4, (0.2, 0.1, 0.2, 0.3), torch.float64)
    round_input.labels.remainder_(3)
    expected = reference.gradients(module, round_input)
    assert_equal(Engine(module, precision="float64", strategy="vmap").gradients(round_input), expected, 1e-10)


def test_the_template_is_left_alone():
    module = model("own")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    engine = Engine(module)
    round_input = round_of(module, MODELS["own"], (0, 0), (0.1, 0.2), torch.float32)
    given = round_input.weights.clone(), round_input.buffers.clone()
    engine.gradients(round_input)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(round_input.weights, given[0])
    assert torch.equal(round_input.buffers, given[1])


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_one_seed_and_thread_count_is_bit_identical(name):
    def train():
        module = model(name)
        engine = Engine(module)
        weights, buffers = Layout.of(module).weights(module)[None], Layout.of(module).buffers(module)[None]
        for s in range(3):
            batch = round_of(module, MODELS[name], (0,) * 3, (0.1, 0.1, 0.4), torch.float32, seed=s)
            out = engine.gradients(replace(batch, weights=weights, ranks=ranks(weights.abs()), buffers=buffers))
            weights, buffers = weights - 0.01 * out.gradient, out.buffers
        return weights, buffers

    one, other = train(), train()
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("name", ["lenet5", "mlp", "resnet20", "own"])
def test_evaluation_equals_the_plain_one(name):
    module = model(name).double()
    round_input = round_of(module, MODELS[name], (0, 1), (0.1, 0.4), torch.float64, batch=9)
    weights = round_input.weights * kept_fraction(round_input.ranks[0], (0.1, 0.4))
    x, y = round_input.inputs.flatten(0, 1), round_input.labels.flatten()
    expected = reference.evaluate(module, weights, round_input.buffers, x, y)
    results = Engine(module, precision="float64").evaluate(weights, round_input.buffers, x, y, batch_size=7)
    for got, wanted in zip(results, expected, strict=True):
        assert got.loss == pytest.approx(wanted.loss, rel=1e-10)
        assert got.accuracy == pytest.approx(wanted.accuracy)
        assert got.samples == 18


def test_runs_are_evaluated_on_samples_of_their_own():
    module = model("lenet5").double()
    given = round_of(module, MODELS["lenet5"], (0, 1), (0.1, 0.4), torch.float64, batch=9)
    engine = Engine(module, precision="float64")
    together = engine.evaluate(given.weights, given.buffers, given.inputs, given.labels, batch_size=4)
    for run, got in enumerate(together):
        one = slice(run, run + 1)
        alone, = engine.evaluate(given.weights[one], given.buffers[one], given.inputs[run], given.labels[run])
        assert got.loss == pytest.approx(alone.loss, rel=1e-12)
        assert (got.accuracy, got.samples) == (alone.accuracy, 9)


def test_a_thousand_clients_fit_in_memory():
    module = model("lenet5")
    engine = Engine(module)
    weights = engine.layout.weights(module)[None]
    x, y = torch.rand(1, 32, 1, 28, 28).expand(1000, -1, -1, -1, -1), torch.zeros(1000, 32, dtype=torch.int64)
    ratios = [0.5 * i / 1000 for i in range(1000)]
    round_input = RoundInput(weights, ranks(weights.abs()), torch.zeros(1, 0), (0,) * 1000, ratios, x, y)
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    out = engine.gradients(round_input)
    done.set()
    watcher.join()
    assert int(out.accepted) == 1000
    assert 0 < peak[0] < 4 * 2**30


def resident_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 64, 64), (3, 64, 96), (32, 40, 40)])
def test_passes_stay_within_the_kernels_32_bits(shape):
    height, width = ((side - 4) // 2 for side in shape[1:])  # LeNet-5's second layer: windows of 6×6×6 entries
    windows = (height - 4) // 2 * ((width - 4) // 2) * 216
    widest = 16 * shape[1] * shape[2]  # of a residual network
    assert addressable(shape) * max(windows, widest, math.prod(shape)) < 2**31


def test_schedule_by_hand():
    run, keeps, batches = (0, 0, 1, 0, 1), (7, 5, 7, 7, 7), (4,) * 5
    own = schedule(run, keeps, batches, fuse=False, uniform=False, samples=100, models=9)
    assert [chunk.groups for chunk in own] == [((0,), (1,), (3,), (2,), (4,))]
    fused = schedule(run, keeps, batches, fuse=True, uniform=False, samples=100, models=9)
    assert [chunk.groups for chunk in fused] == [((1,),), ((0, 3), (2, 4))]
    uniform = schedule(run, keeps, batches, fuse=True, uniform=True, samples=100, models=9)
    assert [chunk.groups for chunk in uniform] == [((0,), (1,), (3,), (2,), (4,))]
    small = schedule(run, keeps, batches, fuse=True, uniform=False, samples=8, models=9)
    assert [chunk.groups for chunk in small] == [((1,),), ((0, 3),), ((2, 4),)]


def test_dropout_and_unknown_settings_are_refused():
    with pytest.raises(InputError, match="layer 1 is dropout"):
        Engine(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    with pytest.raises(InputError, match=r"precision: must be one of .*; got 'int8'"):
        Engine(nn.Linear(2, 2), precision="int8")
    with pytest.raises(InputError, match="strategy"):
        Engine(nn.Linear(2, 2), strategy="stacked")
    with pytest.raises(InputError, match=r"strategy: must be one of .*; got 'magic'"):
        Engine(nn.Linear(2, 2), strategy="magic")
