"""Label matching against CVXPY's models of its two steps, solved by Clarabel."""

import cvxpy as cp
import numpy as np
import pytest

from fedgap.theory.label_matching import largest_probabilities, match_labels


@pytest.mark.parametrize("seed", range(12))
def test_mean_and_probabilities_are_those_of_cvxpy(seed):
    draw = np.random.default_rng(seed)
    clients, labels = int(draw.integers(2, 16)), int(draw.integers(2, 10))
    counts = np.array([draw.multinomial(draw.integers(20, 300), p)
                       for p in draw.dirichlet(np.full(labels, [0.1, 0.3, 1.0][seed % 3]), clients)])
    target = draw.dirichlet(np.full(labels, 3.0)) + 0.01
    target /= target.sum()
    weights = draw.dirichlet(np.full(clients, 5.0)) if seed % 2 else np.full(clients, 1 / clients)
    repeat = [1.3, 2.0, 5.0, 20.0][seed % 4]
    match = match_labels(counts, target, max_repeat=repeat, weights=weights)

    q = cp.Variable((clients, labels))
    allowed = [q >= 0, q <= largest_probabilities(counts, repeat), cp.sum(q, axis=1) == 1]
    divergence = cp.Problem(cp.Minimize(cp.sum(cp.kl_div(weights @ q, target))), allowed)
    divergence.solve(solver=cp.CLARABEL)
    mean = weights @ match.probabilities
    assert match.divergence == pytest.approx(divergence.value, abs=1e-6)
    assert match.divergence <= divergence.value + 1e-7
    assert np.abs(mean - weights @ q.value).max() < 1e-4  # Clarabel's accuracy in the mean

    natural = counts / counts.sum(axis=1, keepdims=True)
    change = cp.sum(cp.multiply(weights[:, None], cp.square(q - natural)))
    nearest = cp.Problem(cp.Minimize(change), [*allowed, cp.abs(weights @ q - mean) <= 1e-8])
    nearest.solve(solver=cp.CLARABEL)
    assert np.abs(match.probabilities - q.value).max() < 1e-4
    ours = float((weights[:, None] * (match.probabilities - natural) ** 2).sum())
    assert ours == pytest.approx(nearest.value, abs=1e-6)
