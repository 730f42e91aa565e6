"""The engine on a GPU: our own kernels, CUDA graphs, rejection without asking the device. Skipped without one."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedgap.learning import reference
from fedgap.learning.contract import LocalTraining, RoundInput, known
from fedgap.learning.engine import Engine
from fedgap.learning.masks import ranks
from fedgap.learning.models import Layout, build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = {"lenet5": (1, 28, 28), "mlp": (1, 28, 28), "resnet20": (3, 32, 32)}


def round_of(name, runs=2, clients=3, batch=8, shape=None):
    shape = shape or SHAPES[name]
    module = build(name, input_shape=shape, classes=10, seed=0)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.constant_(layer.bias, 4.0)  # off the ReLUs' kinks, where gradients jump
    layout = Layout.of(module)
    weights = layout.weights(module) * (1 + 0.1 * torch.arange(runs)[:, None])
    buffers = layout.buffers(module).expand(runs, -1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(runs * clients, batch, *shape, generator=generator)
    y = torch.randint(10, (runs * clients, batch), generator=generator)
    run = [j % runs for j in range(runs * clients)]
    ratios = [0.07 * j for j in range(runs * clients)]
    return module, RoundInput(weights, ranks(weights.abs()), buffers, run, ratios, x, y)


def distance(one, other):
    return float((one.cpu().double() - other.double()).norm() / other.double().norm()) if other.numel() else 0.0


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-10), ("float32", 1e-4), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.usefixtures("cpu_precision")  # the plain loop runs on the CPU
def test_the_gpu_equals_the_plain_loop(name, precision, tolerance):
    module, given = round_of(name)
    double = replace(given, weights=given.weights.double(), buffers=given.buffers.double(),
                     inputs=given.inputs.double())
    if precision == "bfloat16":
        expected = reference.gradients(module, given, bfloat16=True)
    else:
        expected = reference.gradients(module.double(), double)
    engine = Engine(module.float(), device="cuda", precision=precision)
    for _ in range(3):  # at once, recorded, replayed
        out = engine.gradients(double if precision == "float64" else given)
        assert distance(out.gradient, expected.gradient) <= tolerance
        assert distance(out.losses, expected.losses) <= tolerance
        assert distance(out.buffers, expected.buffers) <= tolerance
        assert torch.equal(out.accepted.cpu(), expected.accepted)
        assert torch.equal(known(given, out).cpu(), known(given, expected))


@pytest.mark.parametrize("shape", [(3, 24, 40), (3, 30, 28)])  # halved twice, once, or not at all
def test_residual_networks_on_other_images(shape):
    module, given = round_of("resnet20", shape=shape)
    out = Engine(module, device="cuda").gradients(given)
    assert distance(out.gradient, reference.gradients(module, given).gradient) <= 1e-4


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("name", SHAPES)
def test_runs_are_evaluated_together(name, runs):
    module, given = round_of(name, runs=runs, clients=1, batch=20)
    engine = Engine(module, device="cuda")
    same = engine.evaluate(given.weights, given.buffers, given.inputs[0], given.labels[0], batch_size=16)
    expected = reference.evaluate(module, given.weights, given.buffers, given.inputs[0], given.labels[0])
    own = engine.evaluate(given.weights, given.buffers, given.inputs, given.labels, batch_size=16)
    for run in range(runs):
        assert same[run].loss == pytest.approx(expected[run].loss, rel=1e-4)
        one = slice(run, run + 1)
        alone, = reference.evaluate(module, given.weights[one], given.buffers[one], given.inputs[run],
                                    given.labels[run])
        assert own[run].loss == pytest.approx(alone.loss, rel=1e-4)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 30, 30), (1, 29, 31)])
def test_lenet_on_other_images(shape):
    module, given = round_of("lenet5", shape=shape)
    out = Engine(module, device="cuda").gradients(given)
    assert distance(out.gradient, reference.gradients(module, given).gradient) <= 1e-4


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_a_replay_names_who_is_not_finite(name):
    module, given = round_of(name)
    engine = Engine(module, device="cuda", precision="tf32")
    for _ in range(3):
        engine.gradients(given)
    poisoned = given.inputs.clone()
    poisoned[3, 0, 0, 5, 5] = float("nan")
    out = engine.gradients(replace(given, inputs=poisoned))
    assert out.finite.tolist() == [j != 3 for j in range(6)]
    assert out.gradient.isfinite().all()


def test_results_outlive_the_next_replay():
    module, given = round_of("lenet5")
    engine = Engine(module, device="cuda")
    for _ in range(2):
        engine.gradients(given)
    first = engine.gradients(given, per_client=True)
    kept = first.gradient.clone(), first.losses.clone()
    engine.gradients(replace(given, weights=2 * given.weights), per_client=True)
    assert torch.equal(first.gradient, kept[0])
    assert torch.equal(first.losses, kept[1])


@pytest.mark.parametrize("size", [1000, 2**20])  # recorded, and too large for that
def test_rankings_are_replayed(size):
    engine = Engine(build("mlp", input_shape=(1, 8, 8), classes=10, seed=0), device="cuda")
    for seed, runs in enumerate([2, 2, 2, 3, 3, 3, 2, 2]):
        generator = torch.Generator("cuda").manual_seed(seed)
        scores = torch.randint(50, (runs, size), device="cuda", generator=generator).float()  # with ties
        assert torch.equal(engine.rank(scores), ranks(scores))


@pytest.mark.parametrize("poison", [None, 5])
def test_clients_of_one_mask_share_a_model(poison):
    """More jobs than are computed alone: two runs of 40 clients, half of them with one ratio, half with another."""
    module, given = round_of("lenet5", runs=2, clients=40, batch=4)
    given = replace(given, ratios=[0.0 if j < 40 else 0.3 for j in range(80)])
    if poison is not None:
        given.inputs[poison, 0, 0, 5, 5] = float("nan")
    expected = reference.gradients(module, given)
    engine = Engine(module, device="cuda")
    for _ in range(3):
        out = engine.gradients(given)
        assert distance(out.gradient, expected.gradient) <= 1e-4
        assert torch.equal(out.finite.cpu(), expected.finite)
        assert torch.equal(out.accepted.cpu(), expected.accepted)
        assert torch.equal(known(given, out).cpu(), known(given, expected))


def with_steps(given, steps):
    """The round with ``steps`` batches of each client, every one other samples of its first."""
    inputs = torch.stack([given.inputs.roll(step, 0) for step in range(steps)], 1)
    labels = torch.stack([given.labels.roll(step, 0) for step in range(steps)], 1)
    return replace(given, inputs=inputs, labels=labels), torch.full((len(given.weights),), 0.01)


LOCAL = [LocalTraining(3), LocalTraining(3, momentum=0.9, proximal=0.5, clip_norm=5.0)]
COMPARED = ("gradient", "client_gradients", "losses", "buffers")


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-10), ("float32", 2e-4)])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("local", LOCAL)
def test_local_steps_equal_the_plain_loop(name, precision, tolerance, local):
    module, given, rates, exact, double = three_steps(name, local)
    engine = Engine(module, device="cuda", precision=precision)
    for _ in range(3):  # at once, recorded, replayed
        out = engine.updates(double if precision == "float64" else given, local, rates, per_client=True)
        for part in COMPARED:
            assert distance(getattr(out, part), getattr(exact, part)) <= tolerance, part
        assert torch.equal(out.accepted.cpu(), exact.accepted)
        assert torch.equal(known(given, out).cpu(), known(given, exact))


@pytest.mark.parametrize("precision", ["bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.usefixtures("cpu_precision")  # the plain loop runs on the CPU
def test_local_steps_in_bfloat16_are_as_exact_as_the_plain_loops(name, precision, local):
    """No fixed tolerance fits. A bfloat16 number has 8 bits, so that each of the three gradients is wrong by some 2^-8;
    where that turns a ReLU or chooses another maximum of a pool, the next gradient is another one, by more than that.
    The yardstick is therefore the plain loop in bfloat16: whatever its distance from the loop in float64, the engine,
    which rounds in other places, may have half as much again, and a rounding. Measured on an H200: up to 0.096 and
    0.098 (LeNet-5), and never more than 1.2 times the loop's."""
    module, given, rates, exact, _ = three_steps(name, local)
    plain = reference.updates(module, given, local, rates, bfloat16=True)
    engine = Engine(module, device="cuda", precision=precision)
    for _ in range(3):  # at once, recorded, replayed
        out = engine.updates(given, local, rates, per_client=True)
        for part in COMPARED:
            truth = getattr(exact, part)
            error, yardstick = distance(getattr(out, part), truth), distance(getattr(plain, part), truth)
            assert error <= 1.5 * yardstick + 2**-8, part
            assert yardstick < 0.2, part  # a step that is missing would make about a third
        assert torch.equal(out.accepted.cpu(), exact.accepted)
        assert torch.equal(known(given, out).cpu(), known(given, exact))


def three_steps(name, local):
    """The module, a round of three steps, its rates, what the plain loop makes of it in float64, and that round."""
    module, given = round_of(name)
    given, rates = with_steps(given, 3)
    double = replace(given, weights=given.weights.double(), buffers=given.buffers.double(),
                     inputs=given.inputs.double())
    exact = reference.updates(module.double(), double, local, rates.double())
    return module.float(), given, rates, exact, double


def test_a_replay_takes_each_rounds_rates():
    module, given = round_of("lenet5")
    given, rates = with_steps(given, 3)
    engine = Engine(module, device="cuda")
    for _ in range(3):
        engine.updates(given, LocalTraining(3), rates)
    out = engine.updates(given, LocalTraining(3), 10 * rates)
    expected = reference.updates(module, given, LocalTraining(3), 10 * rates)
    assert distance(out.gradient, expected.gradient) <= 2e-4
    assert distance(out.gradient, reference.updates(module, given, LocalTraining(3), rates).gradient) > 1e-3


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_a_replay_names_who_diverges_in_a_later_step(name):
    module, given = round_of(name)
    given, rates = with_steps(given, 3)
    engine = Engine(module, device="cuda", precision="tf32")
    for _ in range(3):
        engine.updates(given, LocalTraining(3), rates)
    poisoned = given.inputs.clone()
    poisoned[3, 1, 0, 0, 5, 5] = float("nan")
    out = engine.updates(replace(given, inputs=poisoned), LocalTraining(3), rates)
    assert out.finite.tolist() == [j != 3 for j in range(6)]
    assert out.gradient.isfinite().all()


def test_the_host_is_not_asked_within_the_steps():
    module, given = round_of("lenet5", runs=1, clients=6)
    given, rates = with_steps(given, 4)
    given = replace(given, **{name: getattr(given, name).cuda() for name in ("weights", "ranks", "buffers", "inputs",
                                                                           "labels")})
    rates = rates.cuda()
    engine = Engine(module, device="cuda", graphs=False)
    engine.updates(given, LocalTraining(4), rates)  # plans, compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.updates(given, LocalTraining(4), rates)
    finally:
        torch.cuda.set_sync_debug_mode("default")
