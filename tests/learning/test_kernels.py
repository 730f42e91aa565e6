"""Our Triton kernels against torch's own operations: on a GPU, or on a CPU in Triton's interpreter.

`make test-kernels` does the latter; where there is neither they are skipped.
"""

import os
from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional

from fedgap.learning.contract import LocalTraining
from fedgap.learning.engine.arrange import Arrangement
from fedgap.learning.engine.forwards import Grouped
from fedgap.learning.engine.local_steps import take_steps
from fedgap.learning.engine.precision import arithmetic
from fedgap.learning.engine.pruned_models import PassInput, PlainPruning, Shape
from fedgap.learning.engine.stacked import lenet_fused, lenet_grouped
from fedgap.learning.masks import ranks
from fedgap.learning.models import Layout, build

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()),
                                reason="needs a GPU, or Triton and TRITON_INTERPRET=1")


def draw(*shape, scale=1.0, seed=0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("clients", "samples", "classes"), [(1, 32, 10), (2, 70, 10), (3, 5, 100), (1, 1, 2)])
def test_cross_entropy_and_its_gradient(clients, samples, classes):
    from fedgap.learning.engine.kernels.loss import cross_entropy
    logits = draw(4, clients * samples, classes, scale=3.0)
    labels = torch.randint(classes, (4, clients * samples), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    losses, towards = cross_entropy(logits, labels, clients)
    logits.requires_grad_()
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    expected = expected.reshape(4, clients, -1).mean(-1)
    close(losses, expected.detach())
    close(towards, torch.autograd.grad(expected.sum(), logits)[0])


def test_a_loss_that_is_not_finite_is_no_other_clients():
    from fedgap.learning.engine.kernels.loss import cross_entropy
    logits = draw(3, 8, 10)
    logits[1, 5, 2] = float("nan")
    losses, _ = cross_entropy(logits, torch.zeros(3, 8, dtype=torch.int64, device=DEVICE), 2)
    assert losses.isfinite().tolist() == [[True, True], [True, False], [True, True]]


class _Spoilt(torch.autograd.Function):
    """The identity, whose gradient is not finite for model 1."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        gradient[1] = float("inf")
        return gradient


@pytest.mark.parametrize("spoilt", ["nothing", "a gradient", "a loss"])
@pytest.mark.parametrize(("run", "runs", "clients", "each"), [
    ((0, 0, 2, 2, 2), 4, 1, True),  # runs 1 and 3 have no model
    ((0, 1, 1), 2, 2, False),
])
def test_masked_gradients_are_summed_by_run(run, runs, clients, each, spoilt):
    from fedgap.learning.engine.kernels.prune import KernelPruning
    module = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0)
    layout, models = Layout.of(module), len(run)
    weights = (layout.weights(module) * (1 + 0.1 * torch.arange(runs)[:, None])).to(DEVICE)
    keeps = torch.tensor([layout.size - layout.size // 10 * g for g in range(models)], dtype=torch.int32)
    labels = torch.arange(models * 4 * clients).reshape(models, -1) % 10
    given = PassInput(weights, ranks(weights.abs()), weights[:, :0], torch.tensor(run, device=DEVICE), keeps.to(DEVICE),
                      weights[:0], labels.to(DEVICE), weights[:0, 0])
    arrangement, base = Arrangement(layout, torch.float32), draw(models, 4 * clients, 10)
    if spoilt == "a loss":
        base[0, 0, 0] = float("inf")
    found = []
    for pruning in (PlainPruning(arrangement.spread, arrangement.collect), KernelPruning(arrangement)):
        leaves, of = pruning.leaves(given, Shape(run, clients, each))
        values = [_Spoilt.apply(leaf) if spoilt == "a gradient" and i == 2 else leaf
                  for i, leaf in enumerate(leaves.values())]
        scores = sum((value * value).flatten(1).sum(1) for value in values)
        logits = base + 1e-3 * scores[:, None, None] * torch.arange(10, device=DEVICE)
        found.append((leaves, pruning.sums(logits, leaves, given, Shape(run, clients, each), of)))
    (plain_leaves, plain), (leaves, sums) = found
    assert all(torch.equal(leaves[leaf], plain_leaves[leaf]) for leaf in leaves)
    assert sums.finite.tolist() == [g != {"nothing": -1, "a gradient": 1, "a loss": 0}[spoilt] for g in range(models)]
    for exact in ("finite", "accepted", "kept"):
        assert torch.equal(getattr(sums, exact), getattr(plain, exact))
    close(sums.gradient, plain.gradient)
    assert sums.gradients.shape == plain.gradients.shape
    if each:
        close(sums.gradients[sums.finite], plain.gradients[plain.finite])


@pytest.mark.parametrize(("inside", "outside", "height", "width"),
                         [(1, 6, 12, 8), (6, 16, 12, 12), (3, 6, 8, 12), (6, 16, 8, 10)])
def test_convolution_and_pooling(inside, outside, height, width):
    check_convolution_and_pooling(inside, outside, height, width)


@pytest.mark.parametrize("programs", [1, 512])  # one goes through all blocks of windows, or each has its own
@pytest.mark.parametrize("width", [10, 12])  # three and four pooled pixels across
def test_pixels_may_share_a_window_in_every_kernel(width, programs, monkeypatch):
    from fedgap.learning.engine.kernels import pool
    for tiles in (pool.FORWARD, pool.KERNELS, pool.INPUTS):
        monkeypatch.setitem(tiles, (6, 4), pool.Tile(2, 16, 32, 4))
    monkeypatch.setattr(pool, "PROGRAMS", programs)
    check_convolution_and_pooling(6, 16, 12, width)


def check_convolution_and_pooling(inside, outside, height, width):
    from fedgap.learning.engine.kernels.pool import ConvolvePool
    x = draw(2, 3, height, width, inside).requires_grad_()
    weight = draw(2, outside, 5, 5, inside, scale=0.1).permute(0, 1, 4, 2, 3).requires_grad_()
    bias = draw(2, outside, seed=1).requires_grad_()
    with arithmetic("float32", torch.device(DEVICE)):  # cuDNN's own choice would be TF32
        z = ConvolvePool.apply(x, weight, bias, None, None)
        expected = torch.stack([functional.relu(functional.max_pool2d(functional.conv2d(
            own.permute(0, 3, 1, 2), kernel, offset), 2)).permute(0, 2, 3, 1)
            for own, kernel, offset in zip(x, weight, bias, strict=True)])
        close(z, expected)
        towards = draw(*z.shape, seed=2)
        for mine, torchs in zip(torch.autograd.grad(z, (x, weight, bias), towards),
                                torch.autograd.grad(expected, (x, weight, bias), towards), strict=True):
            close(mine, torchs)


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 30 * 2**30,
                    reason="needs a GPU with 30 GiB to spare")
def test_more_than_32_bits_of_addresses():
    from fedgap.learning.engine.kernels.pool import ConvolvePool
    x, weight, bias = draw(4, 16_000, 30, 30, 6), draw(4, 16, 5, 5, 6, scale=0.1).permute(0, 1, 4, 2, 3), draw(4, 16)
    found = []
    for models in (slice(0, 4), slice(3, 4)):  # 4·16,000·169 windows of 216 entries are over 2³¹
        own = [leaf[models].clone().requires_grad_() for leaf in (x, weight, bias)]
        z = ConvolvePool.apply(*own, None, None)
        found.append([part[-1] for part in (z, *torch.autograd.grad(z.square().mean(), own))])
        scale = len(z)
        found[-1][1:] = [part * scale for part in found[-1][1:]]
    for together, alone in zip(*found, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-7)


def test_lenet_by_our_kernels_writes_all_gradients_side_by_side():
    from fedgap.learning.engine.kernels.prune import KernelPruning
    module, run = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0), (0, 0, 1)
    layout = Layout.of(module)
    weights = (layout.weights(module) * torch.tensor([[1.0], [1.1]])).to(DEVICE)
    given = PassInput(weights, ranks(weights.abs()), weights[:, :0], torch.tensor(run, device=DEVICE),
                      torch.tensor([44_426, 30_000, 20_000], dtype=torch.int32, device=DEVICE), draw(3, 2, 1, 28, 28),
                      torch.arange(6, device=DEVICE).reshape(3, 2), weights[:0, 0])
    arrangement, shape = Arrangement(layout, torch.float32), Shape(run, 1, True)
    with arithmetic("float32", torch.device(DEVICE)):
        kernels, plain = KernelPruning(arrangement), PlainPruning(arrangement.spread, arrangement.collect)
        leaves, of = kernels.leaves(given, shape)
        logits = lenet_fused(leaves, given.buffers, given.inputs, True)
        assert leaves.hold(torch.autograd.grad(logits.sum(), list(leaves.values()), retain_graph=True))
        sums = kernels.sums(logits, leaves, given, shape, of)
        leaves, masks = plain.leaves(given, shape)
        expected = plain.sums(lenet_grouped(leaves, given.buffers, given.inputs, True), leaves, given, shape, masks)
    for mine, torchs in zip(sums, expected, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-3, atol=1e-6)


def test_local_steps_by_our_kernels():
    local = LocalTraining(2, momentum=0.9, proximal=0.5, clip_norm=1.0)
    module, run, models = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0), (0, 0, 1), 3
    layout = Layout.of(module)
    weights = (layout.weights(module) * torch.tensor([[1.0], [1.1]])).to(DEVICE)
    labels = torch.arange(models * local.steps * 2, device=DEVICE).reshape(models, local.steps, 2) % 10
    given = PassInput(weights, ranks(weights.abs()), weights[:, :0], torch.tensor(run, device=DEVICE),
                      torch.tensor([44_426, 30_000, 20_000], dtype=torch.int32, device=DEVICE),
                      draw(models, local.steps, 2, 1, 28, 28), labels, torch.tensor([0.01, 0.02], device=DEVICE))
    shape = Shape(run, 1, True, local)
    with arithmetic("float32", torch.device(DEVICE)):
        sums, _ = take_steps(Grouped(lenet_fused, layout, torch.float32, kernels=True), shape, given, local)
        expected, _ = take_steps(Grouped(lenet_grouped, layout, torch.float32, kernels=False), shape, given, local)
    for mine, torchs in zip(sums, expected, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("residual", [False, True])
def test_normalisation_addition_and_relu(residual):
    from fedgap.learning.engine.kernels.normalise import NormaliseRectify
    x, weight, bias = last(draw(4, 32, 8, 8)), draw(32, seed=1).abs(), draw(32, seed=2)
    leaves = [x, weight, bias, *([last(draw(4, 32, 8, 8, scale=0.5, seed=3))] if residual else [])]
    for leaf in leaves:
        leaf.requires_grad_()
    z, batch = NormaliseRectify.apply(x, weight, bias, leaves[3] if residual else None, 1e-5)
    y = functional.batch_norm(x, None, None, weight, bias, True)
    expected = functional.relu(y + leaves[3] if residual else y)
    close(z, expected)
    close(batch, torch.stack([x.mean((0, 2, 3)), x.var((0, 2, 3))]))
    towards = last(draw(4, 32, 8, 8, seed=4))
    for mine, torchs in zip(torch.autograd.grad(z, leaves, towards),
                            torch.autograd.grad(expected, leaves, towards), strict=True):
        close(mine, torchs)


@pytest.mark.parametrize(("inside", "outside", "stride"), [
    (16, 16, 1), (16, 32, 2), (32, 32, 1), (16, 8, 1), (8, 16, 1), (24, 32, 1), (3, 16, 1)])
def test_the_gradients_of_grouped_convolutions(inside, outside, stride):
    """Operands are rounded to TF32's 10 bits, hence the tolerance."""
    from fedgap.learning.engine.kernels.convolve import Convolve
    models = 2
    leaves = [last(draw(3, models * inside, 8, 8)), last(draw(models * outside, inside, 3, 3, scale=0.1, seed=1))]
    for leaf in leaves:
        leaf.requires_grad_()
    z = Convolve.apply(*leaves, models, stride)
    expected = functional.conv2d(*leaves, stride=stride, padding=1, groups=models)
    towards = last(draw(*z.shape, seed=2))
    for mine, torchs in zip((z, *torch.autograd.grad(z, leaves, towards)),
                            (expected, *torch.autograd.grad(expected, leaves, towards)), strict=True):
        assert float((mine - torchs).detach().norm() / torchs.detach().norm()) < 1e-3
