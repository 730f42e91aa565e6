"""Server optimisers against numbers worked by hand and torch's own; state that is frozen, stacked and saved."""

from math import sqrt

import pytest
import torch

from fedgap.learning.server_optimisers import (
    OPTIMISERS,
    Adam,
    Momentum,
    Nesterov,
    ServerOptimiser,
    Yogi,
    server_optimiser,
)

ALL = torch.ones(1, 1, dtype=torch.bool)


def walk(optimiser, directions, rate, kept=None):
    """The weight after each of a walk's steps from 0, and the last state."""
    weights = torch.zeros(1, 1, dtype=torch.float64)
    state, path = optimiser.init(weights), []
    for i, direction in enumerate(directions):
        covered = ALL if kept is None else torch.tensor([[kept[i]]])
        weights, state = optimiser.step(weights, torch.tensor([[direction]], dtype=torch.float64), covered, rate, state)
        path.append(float(weights))
    return path, state


def test_plain_by_hand():
    path, state = walk(ServerOptimiser(), [1.0, 2.0, -4.0], 0.5)
    assert path == [-0.5, -1.5, 0.5]
    assert state == {}


def test_momentum_by_hand():
    path, state = walk(Momentum(0.5), [1.0, 2.0, -4.0], 0.1)  # v = 1, 2.5, −2.75
    assert path == pytest.approx([-0.1, -0.35, -0.075])
    assert float(state["velocity"]) == -2.75


def test_nesterov_by_hand():
    path, _ = walk(Nesterov(0.5), [1.0, 2.0, -4.0], 0.1)  # d + 0.5·v = 1.5, 3.25, −5.375
    assert path == pytest.approx([-0.15, -0.475, 0.0625])


def test_adam_by_hand():
    path, state = walk(Adam(0.9, 0.99, 0.001), [1.0, 2.0], 0.01)
    first = 0.01 * 0.1 / (sqrt(0.01) + 0.001)
    second = 0.01 * (0.09 + 0.2) / (sqrt(0.0099 + 0.04) + 0.001)
    assert path == pytest.approx([-first, -first - second], rel=1e-12)
    assert float(state["first_moment"]) == pytest.approx(0.29)
    assert float(state["second_moment"]) == pytest.approx(0.0499)


def test_yogi_by_hand():
    # v = 0 + 0.01·4 = 0.04; then d² = 0.01 is below it, v = 0.04 − 0.01·0.01.
    path, state = walk(Yogi(0.9, 0.99, 0.001), [2.0, 0.1], 0.01)
    assert float(state["second_moment"]) == pytest.approx(0.0399, rel=1e-12)
    first = 0.01 * 0.2 / (sqrt(0.04) + 0.001)
    second = 0.01 * (0.18 + 0.01) / (sqrt(0.0399) + 0.001)
    assert path == pytest.approx([-first, -first - second], rel=1e-12)


@pytest.mark.parametrize(("optimiser", "nesterov"), [(Momentum(0.9), False), (Nesterov(0.9), True)])
def test_momentum_is_torchs(optimiser, nesterov):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(1, 20, dtype=torch.float64, generator=generator)
    parameter = torch.nn.Parameter(weights.clone())
    theirs = torch.optim.SGD([parameter], lr=0.3, momentum=0.9, nesterov=nesterov)
    state = optimiser.init(weights)
    for _ in range(5):
        direction = torch.randn(1, 20, dtype=torch.float64, generator=generator)
        weights, state = optimiser.step(weights, direction, torch.ones(1, 20, dtype=torch.bool), 0.3, state)
        parameter.grad = direction.clone()
        theirs.step()
    assert torch.allclose(weights, parameter, rtol=1e-12)


def test_plain_with_rate_one_is_fedsgds_step_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    weights, gradient = torch.randn(2, 1000, generator=generator), torch.randn(2, 1000, generator=generator)
    gradient[:, ::3] = 0.0
    rates = torch.tensor([[0.01], [0.03]])
    stepped, _ = ServerOptimiser().step(weights, rates * gradient, gradient != 0, 1.0, {})
    assert torch.equal(stepped, weights - rates * gradient)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_weight_that_nobody_kept_is_frozen_with_its_state(name):
    """A walk with a round in which nobody kept the weight is the walk without that round."""
    optimiser = server_optimiser(name)
    path, state = walk(optimiser, [1.0, 0.0, 2.0], 0.1, kept=[True, False, True])
    expected, expected_state = walk(optimiser, [1.0, 2.0], 0.1)
    assert path == [expected[0], expected[0], expected[1]]
    assert {name: float(value) for name, value in state.items()} == {n: float(v) for n, v in expected_state.items()}


@pytest.mark.parametrize("name", [name for name in OPTIMISERS if name != "sgd"])
def test_a_kept_weight_without_gradient_moves_on_by_its_momentum(name):
    path, _ = walk(server_optimiser(name), [1.0, 0.0], 0.1)
    assert path[1] < path[0] < 0.0


@pytest.mark.parametrize("name", OPTIMISERS)
def test_runs_are_stacked_with_rates_and_states_of_their_own(name):
    optimiser, generator = server_optimiser(name), torch.Generator().manual_seed(1)
    weights = torch.randn(3, 10, generator=generator)
    rates = torch.tensor([[0.1], [0.2], [0.3]])
    together, state = weights, optimiser.init(weights)
    alone, states = list(weights.split(1)), [optimiser.init(row) for row in weights.split(1)]
    assert set(state) == set(optimiser.state_names)
    for _ in range(3):
        direction = torch.randn(3, 10, generator=generator)
        kept = torch.rand(3, 10, generator=generator) < 0.7
        direction *= kept
        together, state = optimiser.step(together, direction, kept, rates, state)
        for row in range(3):
            one = slice(row, row + 1)
            alone[row], states[row] = optimiser.step(alone[row], direction[one], kept[one], float(rates[row]),
                                                     states[row])
    assert torch.allclose(together, torch.cat(alone), rtol=1e-6)
    for name_of_state in optimiser.state_names:
        assert torch.equal(state[name_of_state], torch.cat([own[name_of_state] for own in states]))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_walk_resumed_from_saved_rows_ends_where_it_would_have(name):
    optimiser, generator = server_optimiser(name), torch.Generator().manual_seed(2)
    weights, kept = torch.randn(2, 10, generator=generator), torch.ones(2, 10, dtype=torch.bool)
    directions = torch.randn(4, 2, 10, generator=generator)
    state = optimiser.init(weights)
    for i, direction in enumerate(directions):
        if i == 2:  # one run is saved and continues alone
            saved = {name_of_state: tensor[1].clone() for name_of_state, tensor in state.items()}
            resumed, resumed_state = weights[1:].clone(), {n: tensor[None] for n, tensor in saved.items()}
        weights, state = optimiser.step(weights, direction, kept, 0.1, state)
        if i >= 2:
            resumed, resumed_state = optimiser.step(resumed, direction[1:], kept[1:], 0.1, resumed_state)
    assert torch.equal(weights[1:], resumed)


def test_what_went_in_is_left_alone():
    for name in OPTIMISERS:
        optimiser, weights = server_optimiser(name), torch.randn(1, 5)
        state, direction = optimiser.init(weights), torch.randn(1, 5)
        before = weights.clone(), direction.clone()
        optimiser.step(weights, direction, torch.ones(1, 5, dtype=torch.bool), 0.1, state)
        assert torch.equal(weights, before[0])
        assert torch.equal(direction, before[1])
        assert all(not tensor.any() for tensor in state.values())


def test_a_schedule_multiplies_the_rate_that_sets_the_steps_length():
    assert server_optimiser("momentum").scheduled(0.1, 1.0, 0.5) == (0.05, 1.0)
    assert server_optimiser("yogi").scheduled(0.1, 0.01, 0.5) == (0.1, 0.005)


def test_unknown_names_and_values_are_refused():
    with pytest.raises(ValueError, match="must be one of sgd, momentum, nesterov, adam, yogi"):
        server_optimiser("adagrad")
    with pytest.raises(ValueError, match="momentum must be in"):
        server_optimiser("adam", momentum=1.0)
