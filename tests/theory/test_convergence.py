"""Theorem 1 worked by hand and by term, Proposition 1, and what their constants promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.theory import (
    BoundConstants,
    Terms,
    aggregate,
    bound_constants,
    gap_growth_bound,
    gradient_gap_bound,
    round_terms,
    statement,
)
from tests.system.shared_cases import decision_of, load, points
from tests.system.strategies import checked
from tests.theory.strategies import bounds, positive

# --- two clients, two rounds, worked by hand -------------------------------------------------------------------------
#
# η = 0.1, Z = 4, R = 2, L(ω⁰) − L(ω*) = 3, L = 2, A² = 10, B² = 5, φ = (1, 3).
# Round 0: both take part, λ = (0.2, 0.4). Round 1: the first alone, λ = 0.5.
#   α = 2·3/(0.1·2) = 30
#   printed:    β = 0.001·10·3/(4·2) = 0.00375   γ₁ = 0.1·10/(4·2) = 0.125   γ₂ = 4·5/2 = 10
#   corrected:  β = 0.1·10·3/(4·2)   = 0.375     γ₁ = 10/(0.1·4·2) = 12.5    γ₂ as before
#   clients:         β·(1/2 + 1/1)                    printed 0.005625   corrected 0.5625
#   generalization:  γ₁·((1 + 3)²/2 + 1²/1) = γ₁·9    printed 1.125      corrected 112.5     (sum)
#                    γ₁·(2²/2 + 1²/1)       = γ₁·3    printed 0.375      corrected  37.5     (mean)
#   pruning:         γ₂·((0.2 + 0.4)/2 + 0.5/1)       8
EXAMPLE = {
    "rounds": 2,
    "learning_rate": 0.1,
    "batch_size": 4,
    "initial_gap": 3.0,
    "smoothness": 2.0,
    "gradient_moment": 10.0,
    "parameter_moment": 5.0,
}
SELECTED = np.array([[True, True], [True, False]])
RATIO = np.array([[0.2, 0.4], [0.5, 0.9]])  # the last belongs to a client that stays at home


def terms_of(constants: BoundConstants, selected: np.ndarray, phi: np.ndarray, ratio: np.ndarray, how: str) -> Terms:
    parts = round_terms(constants, selected, aggregate(phi, selected, how), ratio)
    return Terms(constants.alpha, *(float(part.sum()) for part in parts))


@pytest.mark.parametrize(
    ("how", "constants", "clients", "generalization", "theta"),
    [
        ("sum", "printed", 0.005625, 1.125, 39.130625),
        ("mean", "printed", 0.005625, 0.375, 38.380625),
        ("sum", "corrected", 0.5625, 112.5, 151.0625),
        ("mean", "corrected", 0.5625, 37.5, 76.0625),
    ],
)
def test_two_clients_two_rounds(
    how: str, constants: str, clients: float, generalization: float, theta: float
) -> None:
    terms = terms_of(bound_constants(**EXAMPLE, constants=constants), SELECTED, np.array([1.0, 3.0]), RATIO, how)
    assert terms.alpha == pytest.approx(30.0, rel=1e-14)
    assert terms.clients == pytest.approx(clients, rel=1e-14)
    assert terms.generalization == pytest.approx(generalization, rel=1e-14)
    assert terms.pruning == pytest.approx(8.0, rel=1e-14)
    assert terms.theta == pytest.approx(theta, rel=1e-14)


def test_a_measured_sensitivity_replaces_smoothness_squared_times_the_parameter_moment() -> None:
    assert bound_constants(**EXAMPLE).gamma2 == pytest.approx(10.0)
    assert bound_constants(**EXAMPLE, pruning_sensitivity=3.0).gamma2 == pytest.approx(1.5)


@pytest.mark.parametrize(("name", "index"), points())
def test_theta_of_an_evaluation_point(name: str, index: int) -> None:
    scenario, expected = load(name)
    point, bound = expected["evaluation_points"][index], scenario["bound"]
    constants = bound_constants(
        rounds=scenario["rounds"],
        learning_rate=scenario["learning"]["rate"],
        batch_size=scenario["learning"]["batch_size"],
        initial_gap=bound["initial_gap"],
        smoothness=bound["smoothness"],
        gradient_moment=bound["gradient_moment"],
        parameter_moment=bound["parameter_moment"],
        pruning_sensitivity=bound.get("pruning_sensitivity"),
        constants=bound.get("constants", "printed"),
    )
    selected, ratio, _, _ = decision_of(point)
    phi = np.array([client["phi"] for client in scenario["clients"]])
    parts = round_terms(constants, selected, aggregate(phi, selected, bound["aggregation"]), ratio)
    theta = constants.alpha + scenario["rounds"] * sum(float(part) for part in parts)
    assert theta == pytest.approx(point["theta"], rel=1e-9)


# --- properties ------------------------------------------------------------------------------------------------------


@checked
@given(bounds())
def test_corrected_constants_are_one_over_eta_squared_larger(bound: dict[str, float]) -> None:
    printed, corrected = (bound_constants(**bound, constants=how) for how in ("printed", "corrected"))
    ratio = bound["learning_rate"] ** -2
    assert corrected.beta == pytest.approx(ratio * printed.beta, rel=1e-12)
    assert corrected.gamma1 == pytest.approx(ratio * printed.gamma1, rel=1e-12)
    assert (corrected.alpha, corrected.gamma2) == (printed.alpha, printed.gamma2)


@checked
@given(st.data())
def test_theta_falls_when_a_ratio_falls(data: st.DataObject) -> None:
    constants = bound_constants(**data.draw(bounds()))
    size = data.draw(st.integers(1, 6))
    selected = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any)))
    ratio = np.array(data.draw(st.lists(st.floats(0.01, 0.99), min_size=size, max_size=size)))
    phi = np.array(data.draw(st.lists(st.floats(0.0, 10.0), min_size=size, max_size=size)))
    whose = int(data.draw(st.sampled_from(list(np.flatnonzero(selected)))))
    less = ratio.copy()
    less[whose] *= data.draw(st.floats(0.0, 0.9))
    before, after = (terms_of(constants, selected, phi, x, "mean") for x in (ratio, less))
    assert after.pruning < before.pruning
    assert after.theta <= before.theta
    assert (after.clients, after.generalization) == (before.clients, before.generalization)


@checked
@given(bounds(), st.integers(1, 50), positive(1e-3, 1e3))
def test_more_clients_of_one_phi_lower_the_bound_by_the_mean_and_not_by_the_sum(
    bound: dict[str, float], count: int, phi: float
) -> None:
    constants = bound_constants(**bound)

    def generalization(k: int, how: str) -> float:
        selected = np.ones(k, dtype=np.bool_)
        return terms_of(constants, selected, np.full(k, phi), np.zeros(k), how).generalization

    # γ₁(kφ)²/k = γ₁φ²·k rises with k; γ₁φ²/k falls: with the printed sum the optimum is few clients, often one.
    assert generalization(count + 1, "sum") > generalization(count, "sum")
    assert generalization(count + 1, "mean") < generalization(count, "mean")


def test_nobody_selected_is_infinitely_bad() -> None:
    nobody = np.zeros((1, 3), dtype=np.bool_)
    constants = bound_constants(**EXAMPLE)
    clients, generalization, pruning = round_terms(constants, nobody, np.array([np.nan]), np.full((1, 3), 0.5))
    assert np.isposinf(clients).all()
    assert np.isposinf(generalization).all()
    assert not np.isnan(pruning).any()


@checked
@given(st.data())
def test_nothing_is_nan_anywhere_in_the_valid_range(data: st.DataObject) -> None:
    bound = data.draw(bounds(extreme=True))
    bound["gradient_moment"] *= data.draw(st.sampled_from([0.0, 1.0]))
    bound["smoothness"] *= data.draw(st.sampled_from([0.0, 1.0]))
    constants = bound_constants(**bound, constants=data.draw(st.sampled_from(["printed", "corrected"])))
    selected = np.array(data.draw(st.lists(st.booleans(), min_size=3, max_size=3).filter(any)))
    phi = np.array(data.draw(st.lists(st.just(0.0) | positive(1e-40, 1e30), min_size=3, max_size=3)))
    ratio = np.array(data.draw(st.lists(st.floats(0.0, 0.99), min_size=3, max_size=3)))
    terms = terms_of(constants, selected, phi, ratio, data.draw(st.sampled_from(["sum", "mean"])))
    assert np.isfinite([terms.alpha, terms.clients, terms.generalization, terms.pruning]).all()
    assert terms.theta >= terms.alpha >= 0.0


@checked
@given(st.data())
def test_leading_dimensions_equal_a_loop(data: st.DataObject) -> None:
    constants = bound_constants(**data.draw(bounds()))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    selected, ratio, phi = rng.random((2, 3, 4)) < 0.6, rng.random((2, 3, 4)), rng.random((2, 3))
    together = round_terms(constants, selected, phi, ratio)
    for index in np.ndindex(2, 3):
        alone = round_terms(constants, selected[index], phi[index], ratio[index])
        for part, expected in zip(together, alone, strict=True):
            np.testing.assert_array_equal(part[index], expected)


# --- the theorem on a problem whose gradient norm is known -----------------------------------------------------------


def mean_squared_gradient(
    smoothness: float, rate: float, rounds: int, start: float, noise: float
) -> tuple[float, float]:
    """(1/R)·Σ_s E‖∇L(ω^s)‖² and max_s E‖∇L(ω^s)‖² of SGD on L(ω) = ½·L·ω², by the exact recursion of E ω².

    ω^(s+1) = (1 − ηL)·ω^s − η·ξ, with ξ of mean 0 and variance ``noise``: E ω² ← (1 − ηL)²·E ω² + η²·noise.
    """
    squared, history = start**2, []
    for _ in range(rounds):
        history.append(smoothness**2 * squared)
        squared = (1.0 - rate * smoothness) ** 2 * squared + rate**2 * noise
    return float(np.mean(history)), max(history)


def theta_on_the_quadratic(
    smoothness: float, rate: float, rounds: int, start: float, noise: float, how: str
) -> tuple[float, float]:
    """The left and right side of Theorem 1 there: one client, Z = 1, no pruning, training = test data, so φ = 0."""
    left, largest = mean_squared_gradient(smoothness, rate, rounds, start, noise)
    constants = bound_constants(
        rounds=rounds,
        learning_rate=rate,
        batch_size=1,
        initial_gap=0.5 * smoothness * start**2,
        smoothness=smoothness,
        gradient_moment=largest + noise,
        parameter_moment=largest / smoothness**2,
        constants=how,
    )
    selected = np.ones((rounds, 1), dtype=np.bool_)
    phi = np.full(1, statement([50, 50], [5, 5]))
    return left, terms_of(constants, selected, phi, np.zeros((rounds, 1)), "sum").theta


@checked
@given(positive(0.1, 100.0), positive(1e-3, 1.0), st.integers(1, 300), st.floats(0.0, 10.0), positive(1e-3, 1e3))
def test_the_corrected_bound_holds_on_a_quadratic(
    smoothness: float, step: float, rounds: int, start: float, noise: float
) -> None:
    left, theta = theta_on_the_quadratic(smoothness, step / smoothness, rounds, start, noise, "corrected")
    assert left <= theta * (1 + 1e-12)


def test_the_printed_bound_fails_on_a_quadratic() -> None:
    # Start at the optimum, η = 0.01, L = 1, unit noise: SGD hovers at E‖∇‖² ≈ ηL/(2 − ηL) = 0.005, and the printed
    # bound is η³A²(L + 1) ≈ 2·10⁻⁶. All four assumptions hold.
    left, theta = theta_on_the_quadratic(1.0, 0.01, 2000, 0.0, 1.0, "printed")
    assert left == pytest.approx(0.005, rel=0.05)
    assert theta == pytest.approx(2e-6, rel=0.02)
    assert left > 1000 * theta


# --- Lemma 1 and Proposition 1 ---------------------------------------------------------------------------------------


def test_lemma_1_is_phi_times_the_training_gradient() -> None:
    assert gradient_gap_bound(10.0, 0.3) == pytest.approx(3.0)


def test_lemma_1_cannot_hold_where_the_training_gradient_vanishes() -> None:
    # Two classes whose gradients are +1 and −1. Training (50, 50): the gradient is 0. Target (60, 40): it is 0.2.
    gradients, train, target = np.array([1.0, -1.0]), np.array([50, 50]), np.array([60, 40])
    training_gradient, target_gradient = (gradients @ counts / counts.sum() for counts in (train, target))
    phi = statement(train, target).item()
    assert abs(training_gradient - target_gradient) == pytest.approx(0.2)
    assert gradient_gap_bound(phi, abs(training_gradient)) == 0.0


def test_proposition_1_by_terms() -> None:
    # ½·(0.1² + 3²)·4 = ½·0.01·4 + ½·9·4 = 0.02 + 18
    parts = gap_growth_bound(0.1, 3.0, 4.0)
    assert parts == pytest.approx({"step": 0.02, "generalization": 18.0, "total": 18.02})
