"""Proposition 1 and Theorem 1: the bound θ, term by term."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgap.arrays import Bools, Floats

Constants = Literal["printed", "corrected"]
"""Which constants of Theorem 1 are used; see :func:`bound_constants`."""


@dataclass(frozen=True)
class BoundConstants:
    """α, β, γ₁ and γ₂ of Theorem 1, for a given number of rounds R = S + 1."""

    alpha: float
    beta: float
    gamma1: float
    gamma2: float
    rounds: int


@dataclass(frozen=True)
class Terms:
    """The terms of θ. Each is already summed over rounds, so θ is their sum."""

    alpha: float
    """The term of the initial loss: 2(L(ω⁰) − L(ω*))/(ηR)."""
    clients: float
    """The term of few clients: β·Σ_s 1/Σ_n a_n."""
    generalization: float
    """The term of the difference between training and test data: γ₁·Σ_s Φ²/Σ_n a_n."""
    pruning: float
    """The term of pruning: γ₂·Σ_s Σ_n a_n·λ_n/Σ_n a_n."""

    @property
    def theta(self) -> float:
        """θ, the bound on the average squared gradient norm."""
        return self.alpha + self.clients + self.generalization + self.pruning


def bound_constants(
    *,
    rounds: int,
    learning_rate: float,
    batch_size: float,
    initial_gap: float,
    smoothness: float,
    gradient_moment: float,
    parameter_moment: float,
    pruning_sensitivity: float | None = None,
    constants: Constants = "printed",
) -> BoundConstants:
    """Return Theorem 1's constants.

    α = 2(L(ω⁰) − L(ω*))/(ηR). γ₂ = L²B²/R or, if ``pruning_sensitivity`` is given, that number divided by R; it is
    measured, and therefore an estimate and not a bound. β and γ₁ depend on ``constants``:

    - ``printed``: β = η³A²(L + 1)/(ZR), γ₁ = ηA²/(ZR);
    - ``corrected``: β = ηA²(L + 1)/(ZR), γ₁ = A²/(ηZR), 1/η² times larger: the step from (53) to (55) multiplies by
      2/η, so A²/(2Z) becomes A²/(ηZ), where the paper prints ηA²/Z.

    :param rounds: R = S + 1; :param learning_rate: η; :param batch_size: Z; :param initial_gap: L(ω⁰) − L(ω*);
    :param smoothness: L; :param gradient_moment: A²; :param parameter_moment: B².
    """
    spread = gradient_moment / (batch_size * rounds)
    scale = learning_rate if constants == "printed" else 1.0 / learning_rate
    sensitivity = smoothness**2 * parameter_moment if pruning_sensitivity is None else pruning_sensitivity
    return BoundConstants(
        alpha=2.0 * initial_gap / (learning_rate * rounds),
        beta=scale * learning_rate**2 * spread * (smoothness + 1.0),
        gamma1=scale * spread,
        gamma2=sensitivity / rounds,
        rounds=rounds,
    )


def round_terms(
    constants: BoundConstants, selected: Bools, phi: Floats, ratio: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return one round's terms of θ, (β/k, γ₁Φ²/k, γ₂·mean λ), with k = Σ a_n. The first two are infinite for k = 0.

    :param selected: a_n, shape (..., N); :param phi: Φ of the selection, already aggregated, shape (...);
    :param ratio: λ_n, shape (..., N).
    """
    count = selected.sum(axis=-1).astype(np.float64)
    empty = count == 0
    share = np.where(empty, np.inf, 1.0 / np.where(empty, 1.0, count))
    pruned = np.where(selected, ratio, 0.0).sum(axis=-1)
    clients = np.where(empty, np.inf, constants.beta * np.where(empty, 1.0, share))
    # With γ₁ = 0 the term is 0 even if Φ is infinite.
    squared = np.where(empty, 0.0, phi) ** 2 if constants.gamma1 > 0.0 else np.zeros(count.shape)
    gap = np.where(empty, np.inf, constants.gamma1 * squared * np.where(empty, 1.0, share))
    pruning = constants.gamma2 * pruned * np.where(empty, 1.0, share)
    return np.asarray(clients), np.asarray(gap), np.asarray(pruning)


def gradient_gap_bound(phi: float, train_gradient_norm: float) -> float:
    """Return the right-hand side of Lemma 1, ‖∇L(ω, D̂) − ∇L̃(ω, D̃)‖ ≤ φ·‖∇L(ω, D̂)‖."""
    return phi * train_gradient_norm


def gap_growth_bound(learning_rate: float, phi: float, gradient_second_moment: float) -> dict[str, float]:
    """Return the right-hand side of Proposition 1, φ^(s+1) − φ^(s) ≤ ½(η² + |Φ|²)·E‖G(ω̃^(s))‖².

    ``step`` is its part with η², ``generalization`` its part with |Φ|², and ``total`` their sum.

    :param learning_rate: η; :param phi: Φ of the round's selection; :param gradient_second_moment: E‖G‖².
    """
    step = 0.5 * learning_rate**2 * gradient_second_moment
    generalization = 0.5 * phi**2 * gradient_second_moment
    return {"step": step, "generalization": generalization, "total": step + generalization}
