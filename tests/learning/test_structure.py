"""Whole channels: the small model is the masked whole one, sizes are known beforehand, and masks stay nested."""

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedgap.errors import InputError
from fedgap.learning import masks, reference
from fedgap.learning.contract import LocalTraining, RoundInput, mean_buffers
from fedgap.learning.engine import Engine
from fedgap.learning.engine.small_models import Passes, SmallModels
from fedgap.learning.models import Layout, build
from fedgap.learning.sizes import flops_per_sample
from fedgap.learning.structure import Channels, Weights, cost_curve, structure_of

RATIOS = tuple(tenth / 10 for tenth in range(8))
SHIPPED = {"lenet5": (1, 28, 28), "mlp": (1, 28, 28), "resnet20": (3, 8, 8), "resnet32": (3, 8, 8),
           "resnet44": (3, 8, 8), "resnet56": (3, 8, 8), "resnet110": (3, 8, 8)}
QUICK = ("lenet5", "mlp", "resnet20")
FULL = os.environ.get("FEDGAP_FULL") == "1"


class PlainBlocks(nn.Module):
    """What a user might bring: a stem, a residual block with a smooth activation, BatchNorm without weights, a head
    with BatchNorm, pooling as a module, and a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.inner = nn.Sequential(nn.Conv2d(6, 9, 3, padding=1), nn.BatchNorm2d(9, affine=False), nn.Tanh(),
                                   nn.Conv2d(9, 6, 1))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Sequential(nn.Linear(24, 10), nn.BatchNorm1d(10), nn.Sigmoid(), nn.Linear(10, 3))

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = self.pool(x + self.inner(x))
        return self.head(x.view(x.size(0), -1))


class FlatNorm(nn.Module):
    """BatchNorm after flattening: a channel has several of its features."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 5, 5, stride=2), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(),
                                    nn.BatchNorm1d(20), nn.Linear(20, 3))

    def forward(self, x):
        return self.layers(x)


OWN = {"blocks": (PlainBlocks, (1, 8, 8)), "flat norm": (FlatNorm, (1, 13, 13))}


def made(name):
    """A model of float64 with BatchNorm statistics that are not the initial ones, its shape and its channels."""
    if name in OWN:
        factory, shape = OWN[name]
        torch.manual_seed(0)
        module = factory()
    else:
        shape = SHIPPED[name]
        module = build(name, input_shape=shape, classes=10, seed=0)
    module = module.double()
    generator = torch.Generator().manual_seed(1)
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand(buffer.shape, generator=generator))
    return module, shape, Channels(module, shape)


def round_of(module, channels, shape, ratios, *, batch=4, runs=1, steps=None):
    """A round of one job for each ratio and run; each run has its own weights and ranking."""
    layout, generator = Layout.of(module), torch.Generator().manual_seed(2)
    noise = torch.randn(runs, layout.size, generator=generator, dtype=torch.float64)
    weights = layout.weights(module) + 0.05 * noise
    ranks = channels.ranks(torch.rand(runs, layout.size, generator=generator))
    run = [r for r in range(runs) for _ in ratios]
    lead = (len(run), batch) if steps is None else (len(run), steps, batch)
    inputs = torch.randn(*lead, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, lead, generator=generator)
    buffers = layout.buffers(module).double().repeat(runs, 1)
    return RoundInput(weights, ranks, buffers, run, list(ratios) * runs, inputs, labels, channels)


def masked_round(given):
    """The same round by masks over the whole model."""
    return replace(given, structure=None, keep_counts=given.keeps)


@pytest.mark.parametrize("name", [*(SHIPPED if FULL else QUICK), *OWN])
def test_the_small_model_is_the_masked_whole_one(name):
    """Outputs in evaluation; losses and gradients of kept weights in training."""
    module, shape, channels = made(name)
    given = round_of(module, channels, shape, RATIOS)
    small = reference.gradients(module, given)
    masked = reference.gradients(module, masked_round(given))
    torch.testing.assert_close(small.losses, masked.losses, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(small.client_gradients, masked.client_gradients, rtol=1e-7, atol=1e-7)
    layout, buffers = Layout.of(module), given.buffers[0]
    for keep, inputs in zip(given.keeps, given.inputs, strict=True):
        mask = given.ranks[0] < keep
        assert int(mask.sum()) == keep
        layout.load(module, given.weights[0] * mask, buffers)
        part = channels.small_module(channels.widths_of(keep)).double()
        Layout.of(part).load(part, given.weights[0][mask], buffers[channels.buffer_mask(mask)])
        torch.testing.assert_close(part.eval()(inputs), module.eval()(inputs), rtol=1e-9, atol=1e-9)


def test_it_holds_in_float32_too():
    module, shape, channels = made("lenet5")
    given = round_of(module.float(), channels, shape, RATIOS)
    given = replace(given, weights=given.weights.float(), inputs=given.inputs.float(), buffers=given.buffers.float())
    small, masked = (reference.gradients(module, own) for own in (given, masked_round(given)))
    torch.testing.assert_close(small.client_gradients, masked.client_gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("local", [None, LocalTraining(3, momentum=0.9, proximal=0.1, clip_norm=2.0)])
@pytest.mark.parametrize("name", ["lenet5", "mlp", "resnet20", "blocks"])
def test_the_engine_is_the_plain_loop(name, local):
    """Two runs with rankings of their own, equal and different sizes, one client that is not finite."""
    module, shape, channels = made(name)
    given = round_of(module, channels, shape, (0.0, 0.3, 0.3, 0.6), runs=2, steps=local and local.steps)
    given.inputs[1] = float("nan")
    engine, rates = Engine(module, precision="float64"), torch.tensor([0.01, 0.02], dtype=torch.float64)
    if local is None:
        loop, stacked = reference.gradients(module, given), engine.gradients(given, per_client=True)
    else:
        loop = reference.updates(module, given, local, rates)
        stacked = engine.updates(given, local, rates, per_client=True)
    assert stacked.finite.tolist() == loop.finite.tolist() == [job != 1 for job in range(8)]
    assert stacked.accepted.tolist() == [3, 4]
    assert stacked.kept.tolist() == loop.kept.tolist()
    finite = loop.finite
    torch.testing.assert_close(stacked.gradient, loop.gradient, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(stacked.buffers, loop.buffers, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(stacked.losses[finite], loop.losses[finite], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(stacked.client_gradients[finite], loop.client_gradients[finite], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(stacked.client_buffers[finite], loop.client_buffers[finite], rtol=1e-9, atol=1e-9)


class Replayed:
    """Computes as a replay does: from copies of the tensors of this call, by the function of the first."""

    def __init__(self):
        self.known = {}

    def run(self, key, function, given):
        return self.known.setdefault(key, function)(type(given)(*(tensor.clone() for tensor in given)))


@pytest.mark.parametrize("local", [None, LocalTraining(2, momentum=0.9)])
@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_units_that_come_along_change_nothing(name, local):
    """On a GPU widths are rounded up, clients of several sizes share a pass, and rounds are replayed."""
    module, shape, channels = made(name)
    engine, rates = Engine(module, precision="float64"), torch.tensor([0.01, 0.02], dtype=torch.float64)
    engine._smaller = SmallModels(channels, engine, engine._of_small_module, Passes(4, 5), Replayed())
    first = round_of(module, channels, shape, (0.0, 0.35, 0.4, 0.6), runs=2, steps=local and local.steps)
    sizes = engine._smaller._divided(first)
    assert [len(size.jobs) for size in sizes] == [6, 2]  # 0.35 and 0.4 are rounded up to one size and join 0
    other = replace(first, weights=first.weights.flip(1), ranks=channels.ranks(first.weights.flip(1).abs()),
                    inputs=first.inputs.flip(0))
    for own in (first, other):
        if local is None:
            loop, out = reference.gradients(module, own), engine.gradients(own, per_client=True)
        else:
            loop = reference.updates(module, own, local, rates)
            out = engine.updates(own, local, rates, per_client=True)
        for key in ("gradient", "buffers", "losses", "client_gradients"):
            torch.testing.assert_close(getattr(out, key), getattr(loop, key), rtol=1e-8, atol=1e-9)


def test_the_sizes_of_a_small_network_worked_by_hand():
    """2 − 4 − 2 − 1 with biases: M = 4·2 + 4 + 2·4 + 2 + 2 + 1 = 25. Units go at shares 1/8 (of the 4), 1/4 (of the 2),
    3/8 and 5/8 (of the 4). Without one of the 4: 2·3 + 3 + 2·3 + 2 + 2 + 1 = 20; then one of the 2:
    6 + 3 + 3 + 1 + 1 + 1 = 15; then 4 + 2 + 2 + 1 + 1 + 1 = 11; then 2 + 1 + 1 + 1 + 1 + 1 = 7."""
    module = build("mlp", input_shape=(2,), classes=1, seed=0, hidden=[4, 2])
    channels = Channels(module, (2,))
    assert channels.sizes.tolist() == [25, 20, 15, 11, 7]
    assert channels.widths.tolist() == [[4, 2], [3, 2], [3, 1], [2, 1], [1, 1]]
    assert [channels.keep_count(ratio) for ratio in (0.0, 0.1, 0.2, 0.23, 0.4, 0.5, 0.72, 0.9)] == [
        25, 20, 20, 15, 15, 11, 7, 7]
    assert channels.largest_ratio == pytest.approx(18 / 25)


def test_the_least_important_unit_goes_first():
    """Scores are the weights' magnitudes. Unit 1 of 3 has the least sum: |0.1| + 0 + |0.2| (in, bias, out)."""
    module = build("mlp", input_shape=(1,), classes=1, seed=0, hidden=[3])
    channels, layout = Channels(module, (1,)), Layout.of(module)
    weights = torch.tensor([2.0, 0.1, 3.0, 0.0, 0.0, 0.0, 0.1, 0.2, 5.0, 0.0])  # in 3, bias 3, out 3, bias
    assert layout.names == ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")
    ranks = channels.ranks(weights.abs())
    assert (ranks < 7).tolist() == [True, False, True, True, False, True, True, False, True, True]
    assert (ranks < 4).tolist() == [False, False, True, False, False, True, False, False, True, True]  # 0 has 2.1


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), ratios=st.lists(st.floats(0, 0.95), min_size=2, max_size=2))
def test_masks_are_nested_and_no_larger_than_the_ratio_says(seed, ratios):
    channels = CHANNELS()
    ranks = channels.ranks(torch.rand(channels.size, generator=torch.Generator().manual_seed(seed)))
    assert [int((ranks < size).sum()) for size in channels.sizes] == channels.sizes.tolist()
    less, more = (ranks < channels.keep_count(ratio) for ratio in sorted(ratios))
    assert (less | ~more).all()
    for ratio in ratios:
        kept, most = channels.keep_count(ratio), masks.keep_count(ratio, channels.size)
        assert kept <= most or kept == channels.sizes[-1]


_MADE: list[Channels] = []


def CHANNELS() -> Channels:
    if not _MADE:
        _MADE.append(made("blocks")[2])
    return _MADE[0]


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "blocks"])
def test_every_layer_loses_the_same_share_within_one_unit(name):
    channels = made(name)[2]
    full = np.array(channels.graph.widths)
    for row in channels.widths:  # for one share t: t·C − 1 ≤ width ≤ t·C in all layers that are not at 1 already
        free = row > 1
        if free.any():
            assert (row / full)[free].max() <= ((row + 1.0) / full).min() + 1e-9


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "blocks"])
def test_the_cost_curve_is_that_of_the_small_models(name):
    module, shape, channels = made(name)
    curve = cost_curve(module, shape)
    assert curve.ratio[0] == 0
    assert curve.bits[0] == curve.flops[0] == 1
    assert (np.diff(curve.ratio) > 0).all()
    assert (np.diff(curve.bits) < 0).all()
    assert (np.diff(curve.flops) < 0).all()
    whole = flops_per_sample(module, shape)
    for ratio in RATIOS:
        keep = channels.keep_count(ratio)
        small = channels.small_module(channels.widths_of(keep)).double()
        at = int(np.flatnonzero(curve.ratio >= ratio - 1e-12)[0])
        assert curve.bits[at] == keep / channels.size == Layout.of(small).size / channels.size
        assert curve.flops[at] == pytest.approx(flops_per_sample(small, shape) / whole)
        assert curve.flops[at] <= np.interp(ratio, curve.ratio, curve.flops) + 1e-12


def test_only_the_inner_channels_of_residual_blocks_are_removed():
    channels = made("resnet20")[2]
    assert channels.graph.names == tuple(f"blocks.{i}.conv1" for i in range(9))
    assert made("blocks")[2].graph.names == ("inner.0", "head.0")


def test_statistics_are_averaged_over_the_clients_that_kept_the_channel():
    """Channels 0..2: kept by both, by the second, by nobody."""
    buffers = torch.tensor([[1.0, 7.0, 7.0], [3.0, 5.0, 7.0]])
    counted = torch.tensor([[True, False, False], [True, True, False]])
    assert mean_buffers(buffers, counted, torch.tensor([0.0, 0.0, 9.0])).tolist() == [2.0, 5.0, 9.0]


def test_statistics_of_a_round():
    module, shape, channels = made("resnet20")
    given = round_of(module, channels, shape, (0.1, 0.6))
    out = reference.gradients(module, given)
    alone = [reference.gradients(module, replace(given, run=[0], ratios=[ratio], inputs=given.inputs[job:job + 1],
                                                 labels=given.labels[job:job + 1]))
             for job, ratio in enumerate(given.ratios)]
    both, one = (channels.buffer_mask(given.ranks[0] < keep) for keep in reversed(given.keeps))
    assert (one | ~both).all()
    assert not (one == both).all()
    assert not one.all()
    mean = (alone[0].buffers[0] + alone[1].buffers[0]) / 2
    torch.testing.assert_close(out.buffers[0][both], mean[both])
    torch.testing.assert_close(out.buffers[0][one & ~both], alone[0].buffers[0][one & ~both])
    assert torch.equal(out.buffers[0][~one], given.buffers[0][~one])


def test_the_evaluated_model_reads_the_mean_of_the_clients_units():
    """2 inputs, 3 units, 1 output; one client keeps units 0 and 2, the other unit 2 alone."""
    module = build("mlp", input_shape=(2,), classes=1, seed=0, hidden=[3])
    channels = Channels(module, (2,))
    scores = torch.tensor([2.0, 2, 1, 1, 3, 3, 0, 0, 0, 0, 0, 0, 0])  # in 3 × 2, bias 3, out 3, bias
    keeps = channels.sizes.tolist()  # 13, 9, 5
    share = channels.kept_share(channels.ranks(scores), [1 - keeps[1] / 13, 1 - keeps[2] / 13])
    assert share.tolist() == [1, 1, 0, 0, 1, 1, 1, 0, 1, 0.5, 0, 1, 1]


def test_without_pruning_or_with_equal_ratios_the_evaluated_model_is_the_clients():
    channels = CHANNELS()
    ranks = channels.ranks(torch.rand(channels.size))
    assert channels.kept_share(ranks, [0.0, 0.0]).tolist() == [1.0] * channels.size
    assert torch.equal(channels.kept_share(ranks, [0.4] * 3) > 0, ranks < channels.keep_count(0.4))
    assert set(channels.kept_share(ranks, [0.4] * 3).tolist()) == {0.0, 1.0}


def test_single_weights_are_as_they_were():
    scores = torch.rand(50)
    weights = structure_of("weights", nn.Linear(7, 3), (7,))
    assert weights == Weights(24)
    assert weights.keep_count(0.5) == 12
    assert torch.equal(Weights(50).ranks(scores), masks.ranks(scores))
    assert [array.tolist() for array in cost_curve(nn.Linear(7, 3), (7,), "weights")] == [[0, 1], [1, 0], [1, 0]]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x):
        return self.layers(x if x.sum() > 0 else -x)


class Written(nn.Module):
    """Its forward pass has the number of channels written into it, where tracing does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)
        self.scale = 6

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) * self.first.out_features


@pytest.mark.parametrize(("factory", "reason"), [
    (partial(nn.Linear, 4, 2), "whose outputs go only to another one"),
    (Branching, "torch.fx can trace"),
    (Written, "works with fewer channels"),
    (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)), "1 is a LayerNorm"),
    (lambda: nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 2)), "can be removed"),
])
def test_other_models_are_told_why_not(factory, reason):
    with pytest.raises(InputError, match=r"^pruning\.structure: channels needs") as error:
        Channels(factory(), (4,))
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_structure_is_refused():
    with pytest.raises(InputError, match=r"pruning.structure: must be one of .*; got 'filters'"):
        structure_of("filters", nn.Linear(1, 1), (1,))


def test_what_cannot_be_removed_stays_whole():
    """Layers that are used twice, are not trained, or are grouped keep their channels, and so do those they read."""
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(6, 8)
            self.d, self.e = nn.Linear(8, 8), nn.Linear(8, 2)
            self.d.requires_grad_(False)

        def forward(self, x):
            return self.e(torch.relu(self.d(torch.relu(self.c(torch.relu(self.b(self.a(self.a(x)))))))))

    torch.manual_seed(0)
    module = Mixed().double()
    channels = Channels(module, (4,))
    assert channels.graph.names == ("b",)
    given = round_of(module, channels, (4,), (0.0, 0.3))
    given = replace(given, labels=given.labels % 2)
    small, masked = (reference.gradients(module, own) for own in (given, masked_round(given)))
    torch.testing.assert_close(small.client_gradients, masked.client_gradients)
    grouped = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 6, 3),
                            nn.ReLU(), nn.Conv2d(6, 2, 1), nn.Flatten())
    assert Channels(grouped, (1, 7, 7)).graph.names == ("4",)
