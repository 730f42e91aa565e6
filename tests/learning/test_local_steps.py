"""Local steps: the plain loop against hand-worked numbers and torch's optimiser, the engine against the plain loop."""

import itertools
from dataclasses import replace

import pytest
import torch
from test_engine import MODELS, TOLERANCE, Unvectorisable, assert_equal, distance, model, round_of
from torch import nn
from torch.nn import functional

from fedgap.learning import reference
from fedgap.learning.contract import LocalTraining, RoundInput, known
from fedgap.learning.engine import Engine
from fedgap.learning.importance import Importance
from fedgap.learning.masks import mask, ranks
from fedgap.learning.models import Layout, build

ALL_OPTIONS = LocalTraining(steps=5, momentum=0.9, proximal=0.5, clip_norm=1.0)
BOTH = [reference.updates, lambda module, *given: Engine(module, precision="float64").updates(*given)]


def round_with_steps(module, shape, run, ratios, dtype, steps, batch=4, seed=0):
    """A round of test_engine's with other batches for each step, and each run's rate."""
    given = round_of(module, shape, run, ratios, dtype, batch * steps, seed)
    inputs, labels = (t.unflatten(1, (steps, batch)) for t in (given.inputs, given.labels))
    rates = 0.01 * (1 + torch.arange(max(run) + 1))
    return replace(given, inputs=inputs, labels=labels), rates.to(dtype)


# --- by hand ------------------------------------------------------------------------------------------------------


class Pull(nn.Module):
    """Logits (0, w·x): with labels 1 and x·w very negative, the loss is −w·x and its gradient −x, to 1e-40."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([torch.zeros(len(x), dtype=x.dtype), x.flatten(1) @ self.w], 1)


def constant_gradients(gradients, weights, ratio=0.0, local=None, rate=0.5, updates=reference.updates):
    """One client whose step t has gradient ``gradients[t]`` wherever it is, starting at ``weights``."""
    gradients = torch.tensor(gradients, dtype=torch.float64)
    omega = torch.tensor([weights], dtype=torch.float64)
    given = RoundInput(omega, ranks(omega.abs()), torch.zeros(1, 0).double(), (0,), (ratio,),
                       -gradients[None, :, None], torch.ones(1, len(gradients), 1, dtype=torch.int64))
    local = local or LocalTraining(len(gradients))
    return given, updates(Pull(len(weights)), given, local, torch.tensor([rate], dtype=torch.float64))



@pytest.mark.parametrize("updates", BOTH)
def test_the_update_is_the_sum_of_the_steps_gradients(updates):
    _, out = constant_gradients([[3.0, 0.0], [0.0, 4.0]], [100.0, 100.0], updates=updates)
    assert out.gradient[0].tolist() == pytest.approx([3.0, 4.0], rel=1e-12)


@pytest.mark.parametrize("updates", BOTH)
def test_momentum_by_hand(updates):
    # d0 = g0, d1 = 0.5·d0 + g1, d2 = 0.5·d1 + g2; their sum is (1 + 0.5 + 0.25)·g0 + (1 + 0.5)·g1 + g2.
    local = LocalTraining(3, momentum=0.5)
    _, out = constant_gradients([[8.0, 0.0], [0.0, 4.0], [2.0, 2.0]], [100.0, 100.0], local=local, updates=updates)
    assert out.gradient[0].tolist() == pytest.approx([14.0 + 2.0, 6.0 + 2.0], rel=1e-12)


@pytest.mark.parametrize("updates", BOTH)
def test_fedprox_by_hand(updates):
    # Rate 0.5, μ = 0.2. d0 = g = 4; w1 − w0 = −2, d1 = 4 − 0.4 = 3.6; w2 − w0 = −3.8, d2 = 4 − 0.76 = 3.24.
    local = LocalTraining(3, proximal=0.2)
    _, out = constant_gradients([[4.0, 0.0]] * 3, [100.0, 100.0], local=local, updates=updates)
    assert out.gradient[0].tolist() == pytest.approx([4.0 + 3.6 + 3.24, 0.0], rel=1e-12)


@pytest.mark.parametrize("updates", BOTH)
def test_clipping_by_hand(updates):
    # ‖(3, 4)‖ = 5 is cut to 2.5, ‖(0.6, 0.8)‖ = 1 is not.
    local = LocalTraining(2, clip_norm=2.5)
    _, out = constant_gradients([[3.0, 4.0], [0.6, 0.8]], [100.0, 100.0], local=local, updates=updates)
    assert out.gradient[0].tolist() == pytest.approx([1.5 + 0.6, 2.0 + 0.8], rel=1e-6)
    _, one = constant_gradients([[3.0, 4.0]], [100.0, 100.0], local=LocalTraining(1, clip_norm=2.5), updates=updates)
    assert one.gradient[0].tolist() == pytest.approx([1.5, 2.0], rel=1e-6)


@pytest.mark.parametrize("updates", BOTH)
def test_a_pruned_weight_stays_zero_and_the_norm_is_of_kept_weights(updates):
    # The second weight is pruned: it contributes to no loss, its gradient is masked, and (3, 4) has norm 3 here.
    local = LocalTraining(2, momentum=0.5, proximal=0.2, clip_norm=3.0)
    given, out = constant_gradients([[3.0, 4.0], [3.0, 4.0]], [100.0, 50.0], ratio=0.5, local=local, rate=0.1,
                                    updates=updates)
    # g0 = 3; w1 − w0 = −0.3, g1 = 3 − 0.06 = 2.94, d1 = 1.5 + 2.94.
    assert out.gradient[0].tolist() == pytest.approx([3.0 + 4.44, 0.0], rel=1e-6)
    assert known(given, out).tolist() == [[True, False]]
    assert out.losses.tolist() == pytest.approx([(300.0 + 3 * 99.7) / 2], rel=1e-6)  # 50·4 is not part of it


def test_importance_takes_the_mean_direction_of_a_step():
    given, out = constant_gradients([[3.0, 0.5], [1.0, 0.1]], [100.0, 400.0])
    importance = Importance()
    importance.observe(given.weights, out.gradient / 2, known(given, out))
    assert importance.scores(given.weights, 1)[0].tolist() == pytest.approx([2.0 * 100.0, 0.3 * 400.0], rel=1e-12)


def test_a_remembered_gradient_is_kept_where_a_round_of_local_steps_says_nothing():
    given, out = constant_gradients([[3.0, 0.5], [1.0, 0.1]], [100.0, 400.0])
    importance = Importance()
    importance.observe(given.weights, out.gradient / 2, known(given, out))
    later, pruned = constant_gradients([[1.0, 9.0]] * 4, [100.0, 50.0], ratio=0.5)
    importance.observe(later.weights, pruned.gradient / 4, known(later, pruned))
    assert importance.scores(later.weights, 2)[0].tolist() == pytest.approx([1.0 * 100.0, 0.3 * 50.0], rel=1e-12)


@pytest.mark.parametrize("updates", BOTH)
def test_batch_norm_statistics_run_through_the_steps_and_are_averaged_over_clients(updates):
    module = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 2)).double()
    layout = Layout.of(module)
    x = torch.tensor([[[0.0, 2.0], [4.0, 4.0]], [[1.0, 1.0], [-1.0, 3.0]]], dtype=torch.float64)[..., None]
    weights, buffers = layout.weights(module)[None], layout.buffers(module)[None]  # running mean 0, variance 1
    given = RoundInput(weights, ranks(weights.abs()), buffers, (0, 0), (0.0, 0.0), x, torch.tensor([[[0, 1]] * 2] * 2))
    out = updates(module, given, LocalTraining(2), torch.tensor([0.1], dtype=torch.float64))
    # Batch means 1 then 4 and 1 then 1; unbiased variances 2 then 0 and 0 then 8; momentum 0.1.
    means = [0.9 * 0.1 * 1 + 0.1 * 4, 0.9 * 0.1 * 1 + 0.1 * 1]
    variances = [0.9 * (0.9 + 0.1 * 2) + 0.0, 0.9 * (0.9 + 0.0) + 0.1 * 8]
    assert out.buffers[0].tolist() == pytest.approx([sum(means) / 2, sum(variances) / 2])


# --- against torch's optimiser --------------------------------------------------------------------------------------


@pytest.mark.parametrize("updates", BOTH)
@pytest.mark.parametrize("local", [LocalTraining(4), ALL_OPTIONS])
def test_a_client_ends_where_torchs_own_optimiser_does(updates, local):
    module = model("lenet5", seed=3).double()
    layout = Layout.of(module)
    given, rates = round_with_steps(module, MODELS["lenet5"], (0, 0), (0.0, 0.3), torch.float64, local.steps)
    out = updates(module, given, local, rates)
    mean = torch.zeros_like(given.weights[0])
    for job, ratio in enumerate(given.ratios):
        keep = mask(given.ranks[0], ratio)
        start = given.weights[0] * keep
        layout.load(module, start)
        optimizer = torch.optim.SGD(module.parameters(), lr=float(rates[0]), momentum=local.momentum)
        for x, y in zip(given.inputs[job], given.labels[job], strict=True):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(x), y)
            for parameter, anchor in zip(module.parameters(), layout.split(start).values(), strict=True):
                loss = loss + local.proximal / 2 * (parameter - anchor).square().sum()
            loss.backward()
            for parameter, kept in zip(module.parameters(), layout.split(keep).values(), strict=True):
                parameter.grad *= kept
            if local.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), local.clip_norm)
            optimizer.step()
        mean += (start - layout.weights(module)) / rates[0] / 2
    assert distance(out.gradient[0], mean) <= 1e-10


# --- one step is FedSGD ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("local", [LocalTraining(), LocalTraining(1, momentum=0.9, proximal=0.1)])
def test_one_step_is_the_gradient_bit_for_bit(name, local):
    module = model(name)
    given = round_of(module, MODELS[name], (0, 0, 0), (0.1, 0.1, 0.4), torch.float32)
    one_step = replace(given, inputs=given.inputs[:, None], labels=given.labels[:, None])
    engine = Engine(module)
    rates = torch.ones(1)
    for out, expected in ((engine.updates(one_step, local, rates), engine.gradients(given)),
                          (reference.updates(module, one_step, local, rates), reference.gradients(module, given))):
        assert torch.equal(out.gradient, expected.gradient)
        assert torch.equal(out.losses, expected.losses)
        assert torch.equal(out.buffers, expected.buffers)


# --- the engine equals the plain loop -------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_stacked_steps_equal_the_plain_loop(name, steps):
    module = model(name).double()
    run, ratios = (0, 1, 0, 1, 0), (0.1, 0.5, 0.1, 0.0, 0.3)
    given, rates = round_with_steps(module, MODELS[name], run, ratios, torch.float64, steps)
    for local in (LocalTraining(steps), replace(ALL_OPTIONS, steps=steps)):
        expected = reference.updates(module, given, local, rates)
        out = Engine(module, precision="float64").updates(given, local, rates, per_client=True)
        assert_equal(out, expected, 1e-10)
        assert distance(out.client_gradients, expected.client_gradients) <= 1e-10
        torch.testing.assert_close(out.client_buffers, expected.client_buffers, rtol=1e-10, atol=1e-10)
        assert torch.equal(known(given, out), known(given, expected))


@pytest.mark.parametrize(("name", "strategy"), [
    (m, s) for m, s in itertools.product(MODELS, ("stacked", "vmap", "loop")) if (m, s) != ("own", "stacked")])
def test_every_strategy_takes_the_same_steps(name, strategy):
    module = model(name).double()
    given, rates = round_with_steps(module, MODELS[name], (0, 1, 0), (0.1, 0.5, 0.0), torch.float64, 2, batch=3)
    expected = reference.updates(module, given, LocalTraining(2), rates)
    out = Engine(module, precision="float64", strategy=strategy).updates(given, LocalTraining(2), rates)
    assert out.client_gradients is None
    assert_equal(out, expected, 1e-10)


@pytest.mark.parametrize("ratios", [(0.0,), (0.3,) * 7, (0.9, 0.0, 0.9, 0.25, 0.0, 0.9, 1.0)])
@pytest.mark.parametrize("name", ["lenet5", "mlp", "own"])
def test_selection_sizes_and_masks(name, ratios):
    module = model(name).double()
    given, rates = round_with_steps(module, MODELS[name], (0,) * len(ratios), ratios, torch.float64, 3, batch=2)
    out = Engine(module, precision="float64").updates(given, LocalTraining(3), rates)
    assert_equal(out, reference.updates(module, given, LocalTraining(3), rates), 1e-10)


@pytest.mark.usefixtures("cpu_precision")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["lenet5", "mlp", "own"])
def test_other_precisions(name, precision):
    module = model(name)
    given, rates = round_with_steps(module, MODELS[name], (0, 0, 0), (0.1, 0.1, 0.4), torch.float32, 3)
    expected = reference.updates(module, given, LocalTraining(3), rates, bfloat16=precision == "bfloat16")
    out = Engine(module, precision=precision).updates(given, LocalTraining(3), rates)
    assert_equal(out, expected, 2 * TOLERANCE[precision])  # each step starts from the last one's rounding


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 29, 31), (2, 30, 28)])
def test_lenet_on_other_images_with_ties(shape):
    module = build("lenet5", input_shape=shape, classes=10, seed=0).double()
    given, rates = round_with_steps(module, shape, (0, 0), (0.1, 0.6), torch.float64, 2)
    given = replace(given, inputs=(given.inputs > 1).double())  # flat images: many equal pixels in a window
    out = Engine(module, precision="float64").updates(given, LocalTraining(2), rates)
    assert_equal(out, reference.updates(module, given, LocalTraining(2), rates), 1e-10)


def test_batches_of_different_sizes_and_runs_of_different_rates():
    module = model("lenet5").double()
    weights = Layout.of(module).weights(module).repeat(2, 1)
    inputs = [torch.randn(2, z, *MODELS["lenet5"]).double() for z in (2, 5, 2, 3)]
    labels = [torch.randint(10, x.shape[:2]) for x in inputs]
    given = RoundInput(weights, ranks(weights.abs()), torch.zeros(2, 0).double(), (0, 1, 1, 0), (0.2, 0.2, 0.0, 0.4),
                       inputs, labels)
    rates = torch.tensor([0.1, 0.001], dtype=torch.float64)
    out = Engine(module, precision="float64").updates(given, LocalTraining(2), rates)
    assert_equal(out, reference.updates(module, given, LocalTraining(2), rates), 1e-10)
    other = Engine(module, precision="float64").updates(given, LocalTraining(2), rates.flip(0))
    assert distance(other.gradient, out.gradient) > 1e-3


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_a_round_that_does_not_fit_is_divided(name):
    module = model(name)
    given, rates = round_with_steps(module, MODELS[name], (0,) * 5, (0.1,) * 5, torch.float32, 2)
    whole = Engine(module, strategy="stacked").updates(given, LocalTraining(2), rates)
    pieces = Engine(module, strategy="stacked", memory_bytes=2**20).updates(given, LocalTraining(2), rates)
    assert_equal(pieces, whole, 1e-4)


def test_a_module_that_vmap_cannot_do_goes_one_by_one():
    module = Unvectorisable().double()
    given, rates = round_with_steps(module, (1, 4, 4), (0, 0), (0.2, 0.1), torch.float64, 3)
    given.labels.remainder_(3)
    out = Engine(module, precision="float64", strategy="vmap").updates(given, LocalTraining(3), rates)
    assert_equal(out, reference.updates(module, given, LocalTraining(3), rates), 1e-10)


@pytest.mark.parametrize("updates", BOTH)
@pytest.mark.parametrize("local", [LocalTraining(3), ALL_OPTIONS])
def test_a_client_that_diverges_in_a_later_step_is_rejected(updates, local):
    module = model("mlp").double()
    given, rates = round_with_steps(module, MODELS["mlp"], (0, 0, 0), (0.1, 0.2, 0.3), torch.float64, local.steps)
    given.inputs[1, 2, 0] = float("inf")
    out = updates(module, given, local, rates)
    assert out.finite.tolist() == [True, False, True]
    assert out.accepted.tolist() == [2]
    rest = RoundInput(given.weights, given.ranks, given.buffers, (0, 0), (0.1, 0.3), given.inputs[[0, 2]],
                      given.labels[[0, 2]])
    assert distance(out.gradient, updates(module, rest, local, rates).gradient) <= 1e-12


def test_what_went_in_is_left_alone():
    module = model("own")
    given, rates = round_with_steps(module, MODELS["own"], (0, 0), (0.0, 0.0), torch.float32, 3)
    before = given.weights.clone(), given.buffers.clone(), given.inputs.clone()
    Engine(module).updates(given, LocalTraining(3), rates)
    for tensor, copy in zip((given.weights, given.buffers, given.inputs), before, strict=True):
        assert torch.equal(tensor, copy)


def test_wrong_steps_and_rates_are_refused():
    module = model("mlp")
    given, rates = round_with_steps(module, MODELS["mlp"], (0, 1), (0.0, 0.0), torch.float32, 3)
    for local, wrong in ((LocalTraining(2), rates), (LocalTraining(3), rates[:1]), (LocalTraining(3), rates[:, None])):
        for updates in (Engine(module).updates, lambda *a: reference.updates(module, *a)):
            with pytest.raises(ValueError):
                updates(given, local, wrong)
    for bad in ({"steps": 0}, {"momentum": 1.0}, {"proximal": -0.1}, {"clip_norm": 0.0}):
        with pytest.raises(ValueError):
            LocalTraining(**bad)
