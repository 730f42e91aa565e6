"""The pilot's measurements on quadratics, where every answer is known, and on LeNet-5."""

import pytest
import torch
from torch import nn

from fedgap.errors import InputError
from fedgap.learning import pilot as p
from fedgap.learning.models import Layout, build
from tests.embedded_digits import mnist_digits

CURVATURE = torch.tensor([5.0, 2.0, 0.5, -7.0], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, -3.0, 2.0, 0.25], dtype=torch.float64)
CENTRES = torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 1], [2, -1, 0, 0]], dtype=torch.float64)
LABELS = torch.zeros(3)


def quadratic(weights, centres, labels):
    """l_i = ½·(ω − c_i)ᵀ·D·(ω − c_i): gradient D·(ω − c_i), Hessian D."""
    return 0.5 * (CURVATURE * (weights - centres) ** 2).sum(1)


def generator():
    return torch.Generator().manual_seed(0)


def test_gradient():
    expected = CURVATURE * (WEIGHTS - CENTRES.mean(0))
    assert torch.allclose(p.gradient(quadratic, WEIGHTS, CENTRES, LABELS), expected)


def test_gradient_moment_is_the_mean_of_the_samples_squares():
    expected = (CURVATURE * (WEIGHTS - CENTRES)).square().sum(1).mean()
    assert p.gradient_moment(quadratic, WEIGHTS, CENTRES, LABELS) == pytest.approx(float(expected))


def test_smoothness_is_the_largest_absolute_eigenvalue():
    found = p.smoothness(quadratic, WEIGHTS, CENTRES, LABELS, generator=generator(), iterations=500, tolerance=1e-12)
    assert found == pytest.approx(7.0, rel=1e-6)


def test_smoothness_of_a_network_against_its_full_hessian():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    weights, objective = Layout.of(module).weights(module), p.objective_of(module)
    x, y = torch.randn(20, 3, dtype=torch.float64, generator=generator()), torch.arange(20) % 3
    hessian = torch.autograd.functional.hessian(lambda w: objective(w, x, y).mean(), weights)
    found = p.smoothness(objective, weights, x, y, generator=generator(), iterations=1000, tolerance=1e-10)
    assert found == pytest.approx(float(torch.linalg.eigvalsh(hessian).abs().max()), rel=1e-4)


def test_sensitivity_is_what_the_pruned_weights_change():
    # λ = 0.5 by magnitude prunes weights 0 and 3: difference of gradients D·(ω − ω̃) = (5, 0, 0, −7/4)
    found = p.sensitivity(quadratic, WEIGHTS, CENTRES, LABELS, 0.5, WEIGHTS.abs())
    assert found == pytest.approx((25 + 49 / 16) / 0.5)


@pytest.fixture(scope="module")
def digits():
    images, labels = mnist_digits()
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 28, 28)
    return (x - x.mean()) / x.std(), torch.tensor(labels)


@pytest.mark.full
def test_lenet_on_digits_is_where_the_readings_say(digits):
    module = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0)
    before = Layout.of(module).weights(module)
    measured = p.pilot(module, *digits, rate=0.01, batch_size=32, clients=10, seed=1, steps=20, points=3,
                       ratios=(0.1, 0.3), curvature_samples=128)
    assert torch.equal(Layout.of(module).weights(module), before)
    assert measured.steps == (0, 10, 20)
    assert 430 < max(measured.parameter_moment) < 510  # B² ≈ 470
    assert 200 < max(measured.gradient_moment) < 10_000  # A² 630–2600
    assert 50 < max(measured.smoothness) < 1000  # L 120–220
    assert measured.losses[0] == measured.initial_gap > measured.losses[-1]
    assert measured.moment_ratio[0] > 1  # gradients do not have zero mean
    assert 0 < max(measured.sensitivity[0.1]) < max(measured.sensitivity[0.3])


def test_one_seed_one_result(digits):
    module = build("mlp", input_shape=(1, 28, 28), classes=10, seed=0)
    one, other = (p.pilot(module, *digits, rate=0.01, batch_size=8, clients=2, seed=3, steps=2, points=2,
                          curvature_samples=16) for _ in range(2))
    assert one == other


def test_batch_norm_buffers_stay():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    before = Layout.of(module).buffers(module)
    x, y = torch.randn(16, 3, 8, 8, generator=generator()), torch.arange(16) % 10
    measured = p.pilot(module, x, y, rate=0.01, batch_size=4, clients=2, seed=0, steps=1, points=2, curvature_samples=8)
    assert torch.equal(Layout.of(module).buffers(module), before)
    assert max(measured.gradient_moment) > 0


def test_a_ratio_of_zero_is_refused(digits):
    with pytest.raises(InputError, match="between 0 and 1"):
        p.pilot(build("mlp", input_shape=(1, 28, 28), classes=10, seed=0), *digits, rate=0.01, batch_size=8, clients=2,
                seed=3, ratios=(0.0,))
