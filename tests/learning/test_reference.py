"""The plain loop against numbers worked by hand, and against plain SGD."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedgap.learning import reference
from fedgap.learning.contract import RoundInput, known
from fedgap.learning.engine import Engine
from fedgap.learning.masks import ranks
from fedgap.learning.models import Layout, build

BOTH = [lambda module, x: reference.gradients(module, x),
        lambda module, x: Engine(module, precision="float64").gradients(x)]


def softmax_regression() -> nn.Module:
    """Two inputs, two classes, no bias: logits = W·x, gradient (softmax − onehot)·xᵀ."""
    return nn.Linear(2, 2, bias=False).double()


def by_hand(weights, x, label):
    """Loss and gradient of one sample at W = weights (2, 2), flat order w00, w01, w10, w11."""
    z = [weights[0] * x[0] + weights[1] * x[1], weights[2] * x[0] + weights[3] * x[1]]
    total = math.exp(z[0]) + math.exp(z[1])
    p = [math.exp(v) / total for v in z]
    errors = [p[c] - (c == label) for c in range(2)]
    return -math.log(p[label]), [errors[c] * x[i] for c in range(2) for i in range(2)]


@pytest.mark.parametrize("gradients", BOTH)
def test_two_clients_by_hand(gradients):
    weights, ratios = [2.0, -1.0, 0.5, 1.5], (0.25, 0.5)
    # Ranking by magnitude: w00, w11, w01, w10. Client 0 keeps three (drops w10), client 1 two (drops w01 and w10).
    samples, labels = [(1.0, 2.0), (-1.0, 0.5)], [0, 1]
    loss0, g0 = by_hand([2.0, -1.0, 0.0, 1.5], samples[0], labels[0])
    loss1, g1 = by_hand([2.0, 0.0, 0.0, 1.5], samples[1], labels[1])
    expected = [(g0[0] + g1[0]) / 2, g0[1] / 2, 0.0, (g0[3] + g1[3]) / 2]  # divided by both clients, zeros included
    omega = torch.tensor([weights], dtype=torch.float64)
    x = RoundInput(omega, ranks(omega.abs()), torch.zeros(1, 0).double(), (0, 0), ratios,
                   torch.tensor(samples, dtype=torch.float64)[:, None], torch.tensor(labels)[:, None])
    out = gradients(softmax_regression(), x)
    assert out.losses.tolist() == pytest.approx([loss0, loss1], rel=1e-12)
    assert out.gradient[0].tolist() == pytest.approx(expected, rel=1e-12)
    assert out.accepted.tolist() == [2]
    assert known(x, out).tolist() == [[True, True, False, True]]


@pytest.mark.parametrize("gradients", BOTH)
@pytest.mark.parametrize("name", ["lenet5", "mlp"])
def test_unpruned_with_all_clients_is_plain_sgd_on_the_union_batch(gradients, name):
    module = build(name, input_shape=(1, 28, 28), classes=10, seed=2).double()
    layout = Layout.of(module)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 8, 1, 28, 28, dtype=torch.float64, generator=generator)
    y = torch.randint(10, (6, 8), generator=generator)
    weights, rate = layout.weights(module)[None], 0.01
    federated = weights.clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(3):
        ranking, none = ranks(federated.abs()), torch.zeros(1, 0).double()
        round_input = RoundInput(federated, ranking, none, (0,) * 6, (0.0,) * 6, x, y)
        federated = federated - rate * gradients(module, round_input).gradient
        optimizer.zero_grad()
        functional.cross_entropy(module(x.flatten(0, 1)), y.flatten()).backward()
        optimizer.step()
    central = layout.weights(module)
    assert (federated[0] - central).norm() <= 1e-12 * central.norm()


@pytest.mark.parametrize("gradients", BOTH)
def test_a_client_with_a_non_finite_gradient_is_rejected_and_the_rest_goes_on(gradients):
    module = build("mlp", input_shape=(1, 4, 4), classes=3, seed=0, hidden=(5,)).double()
    weights = Layout.of(module).weights(module)[None].repeat(2, 1)
    x = torch.randn(5, 4, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.zeros(5, 4, dtype=torch.int64)
    run, ratios = (0, 0, 1, 0, 1), (0.2, 0.2, 0.1, 0.2, 0.3)
    ranking, none = ranks(weights.abs()), torch.zeros(2, 0).double()
    healthy = [0, 3]
    poisoned = x.clone()
    poisoned[1, 2, 0, 0, 0] = float("nan")
    poisoned[2] = float("inf")
    poisoned[4] = float("nan")
    out = gradients(module, RoundInput(weights, ranking, none, run, ratios, poisoned, y))
    only = RoundInput(weights[:1], ranking[:1], none[:1], (0, 0), (0.2, 0.2), x[healthy], y[healthy])
    alone = gradients(module, only)
    assert out.finite.tolist() == [True, False, False, True, False]
    assert out.accepted.tolist() == [2, 0]
    assert torch.allclose(out.gradient[0], alone.gradient[0], rtol=1e-12, atol=0)
    assert not out.gradient[1].any()
    assert torch.allclose(out.losses[healthy], alone.losses)


@pytest.mark.parametrize("gradients", BOTH)
def test_batch_norm_statistics_are_each_clients_own_and_averaged(gradients):
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)).double()
    layout = Layout.of(module)
    x = torch.tensor([[[0.0, 0.0], [2.0, 4.0]], [[10.0, 0.0], [10.0, 2.0]]], dtype=torch.float64)
    weights, buffers = layout.weights(module)[None], layout.buffers(module)[None]  # running mean 0 0, variance 1 1
    out = gradients(module, RoundInput(weights, ranks(weights.abs()), buffers, (0, 0), (0.0, 0.0), x,
                                       torch.tensor([[0, 1], [1, 0]])))
    # Batch means (1, 2) and (10, 1); unbiased variances (2, 8) and (0, 2); momentum 0.1.
    assert out.buffers[0].tolist() == pytest.approx([0.1 * 5.5, 0.1 * 1.5, 0.9 + 0.1 * 1.0, 0.9 + 0.1 * 5.0])


def test_wrong_shapes_are_refused():
    weights = torch.zeros(1, 4)
    good = {"weights": weights, "ranks": ranks(weights), "buffers": torch.zeros(1, 0), "run": (0,), "ratios": (0.1,),
            "inputs": torch.zeros(1, 2, 3), "labels": torch.zeros(1, 2)}
    RoundInput(**good)
    for bad in ({"ratios": (0.1, 0.2)}, {"ranks": ranks(torch.zeros(1, 5))}, {"run": (1,)}, {"weights": weights[0]}):
        with pytest.raises(ValueError):
            RoundInput(**{**good, **bad})
