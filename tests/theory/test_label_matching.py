"""Label matching: small problems by hand, a certificate of optimality for random ones, and what is refused."""

import numpy as np
import pytest

from fedgap.errors import InputError
from fedgap.theory.label_matching import label_divergence, largest_probabilities, match_labels


def optimality_gap(q, limits, weights, target):
    """At least KL(m‖t) minus its least value: a convex function lies above its tangent plane (Frank and Wolfe's gap).

    The tangent plane's least value over 0 ≤ q_k ≤ u_k, Σ_c q_{k,c} = 1 fills labels in ascending order of the gradient.
    """
    present = limits.any(axis=0)
    q, limits, target = q[:, present], limits[:, present], target[present]
    gradient = np.log(weights @ q / target)
    order = np.argsort(gradient)
    best = np.diff(np.minimum(np.cumsum(limits[:, order], axis=1), 1.0), axis=1, prepend=0.0)
    return float(weights @ (q[:, order] - best) @ gradient[order])


def random_problem(seed):
    draw = np.random.default_rng(seed)
    clients, labels = int(draw.integers(1, 40)), int(draw.integers(2, 20))
    spread = draw.choice([0.05, 0.1, 0.3, 1.0, 5.0])
    counts = np.array([draw.multinomial(draw.integers(1, 3000), draw.dirichlet(np.full(labels, spread)))
                       for _ in range(clients)])
    target = draw.dirichlet(np.full(labels, 2.0)) + 1e-4
    weights = draw.dirichlet(np.full(clients, 3.0)) + 1e-4 if seed % 2 else np.ones(clients)
    draws = None if seed % 3 else draw.integers(1, 4000, clients)
    return {"label_counts": counts, "target": target / target.sum(), "weights": weights / weights.sum(),
            "draws": draws, "max_repeat": float(draw.choice([1.0, 1.5, 3.0, 10.0, 100.0]))}


@pytest.mark.parametrize("seed", range(24))
def test_random_problems_are_solved_to_a_millionth(seed):
    problem = random_problem(seed)
    limits = largest_probabilities(problem["label_counts"], problem["max_repeat"], problem["draws"])
    match = match_labels(**problem)
    q = match.probabilities
    assert np.abs(q.sum(axis=1) - 1).max() < 1e-12
    assert (q >= 0).all()
    assert (q <= limits + 1e-9).all()
    assert not q[problem["label_counts"] == 0].any()
    assert optimality_gap(q, limits, problem["weights"], problem["target"]) < 1e-6
    mean = problem["weights"] @ q
    assert match.divergence == pytest.approx(label_divergence(mean, problem["target"]), abs=1e-12)
    assert match.divergence <= match.natural_divergence + 1e-12


def test_two_clients_by_hand():
    # Both labels at each client, mirrored: the mean is uniform already, so nobody changes anything.
    match = match_labels([[30, 10], [10, 30]], [0.5, 0.5], max_repeat=10)
    assert match.probabilities == pytest.approx(np.array([[0.75, 0.25], [0.25, 0.75]]), abs=1e-8)
    assert match.natural_divergence == match.divergence == pytest.approx(0, abs=1e-12)
    # The second client has label 1 only, so the first must draw label 0 as often as it may: at most 1.2·0.75 = 0.9.
    match = match_labels([[30, 10], [0, 40]], [0.5, 0.5], max_repeat=1.2)
    assert match.probabilities == pytest.approx(np.array([[0.9, 0.1], [0, 1]]), abs=1e-8)
    assert match.natural_divergence == pytest.approx(0.375 * np.log(0.75) + 0.625 * np.log(1.25))
    assert match.divergence == pytest.approx(0.45 * np.log(0.9) + 0.55 * np.log(1.1))


def test_of_all_solutions_the_nearest_to_the_natural_distributions_is_taken():
    # The mean lacks 0.1 of label 0. Both clients add 0.1 to it, which is nearer than one of them adding 0.2, and
    # take it equally from the other labels.
    counts = [[40, 30, 30], [70, 15, 15]]
    match = match_labels(counts, [0.65, 0.175, 0.175], max_repeat=5)
    assert match.probabilities == pytest.approx(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]), abs=1e-8)
    assert match.divergence == pytest.approx(0, abs=1e-12)
    # With weights 3 and 1 the mean is 0.475 and must rise by 0.1; both rise by the same.
    match = match_labels(counts, [0.575, 0.2125, 0.2125], max_repeat=5, weights=[3, 1])
    assert match.probabilities[:, 0] == pytest.approx([0.5, 0.8], abs=1e-8)


def test_a_label_that_nobody_has_is_left_out():
    match = match_labels([[10, 30, 0], [20, 20, 0]], [0.4, 0.4, 0.2], max_repeat=10)
    assert match.probabilities.mean(axis=0) == pytest.approx([0.5, 0.5, 0], abs=1e-8)
    assert match.divergence == pytest.approx(np.log(0.5 / 0.4))


def test_without_repeats_every_client_draws_its_samples_alike():
    counts = np.array([[60, 30, 10], [0, 5, 95]])
    match = match_labels(counts, [1, 1, 1], max_repeat=1)
    assert match.probabilities == pytest.approx(counts / 100, abs=1e-9)
    assert match.divergence == pytest.approx(match.natural_divergence)


def test_largest_probabilities_by_hand():
    counts = [[90, 10, 0]]
    assert largest_probabilities(counts, 3)[0].tolist() == pytest.approx([1, 0.3, 0])  # 3·10/100
    # 20 draws from 100 samples: a sample of label 1 may be drawn 3 times, so that the label may have every draw
    assert largest_probabilities(counts, 3, draws=20)[0].tolist() == pytest.approx([1, 1, 0])
    assert largest_probabilities(counts, 3, draws=60)[0].tolist() == pytest.approx([1, 0.5, 0])  # 60·0.5/10 = 3
    assert largest_probabilities(counts, 3, draws=1000)[0].tolist() == pytest.approx([1, 0.3, 0])



def test_divergence_by_hand():
    assert label_divergence([1, 0], [0.5, 0.5]) == pytest.approx(np.log(2))
    assert label_divergence([[3, 1], [2, 2]], [1, 1]).tolist() == pytest.approx([
        0.75 * np.log(1.5) + 0.25 * np.log(0.5), 0])
    assert label_divergence([1, 1], [1, 0]) == np.inf


def test_a_thousand_clients_and_a_hundred_labels():
    draw = np.random.default_rng(0)
    counts = np.array([draw.multinomial(600, p) for p in draw.dirichlet(np.full(100, 0.1), 1000)])
    target = np.full(100, 0.01)
    match = match_labels(counts, target, max_repeat=3)
    gap = optimality_gap(match.probabilities, largest_probabilities(counts, 3), np.full(1000, 0.001), target)
    assert gap < 1e-6
    assert match.divergence < 1e-9 < match.natural_divergence


@pytest.mark.parametrize(("change", "says"), [
    ({"label_counts": [[0, 0], [1, 1]]}, "each client needs at least one sample"),
    ({"label_counts": np.zeros((0, 2))}, "each client needs at least one sample"),
    ({"label_counts": [[-1, 3], [1, 1]]}, "numbers of at least 0"),
    ({"target": [1, 0]}, "target: must have one positive number per label; add one to counts that contain a zero"),
    ({"target": [1, 1, 1]}, "target: must have one positive number per label"),
    ({"max_repeat": 0.5}, "max_repeat: must be at least 1; got 0.5"),
    ({"max_repeat": float("nan")}, "max_repeat: must be at least 1"),
    ({"weights": [1, 0]}, "weights: must have one positive number per client"),
])
def test_wrong_input_gets_one_line(change, says):
    with pytest.raises(InputError, match=says):
        match_labels(**{"label_counts": [[1, 1], [1, 1]], "target": [1, 1], "max_repeat": 2, **change})
