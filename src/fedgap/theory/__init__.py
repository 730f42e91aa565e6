"""What a round is worth: the paper's Section III (φ, Lemma 1, Proposition 1, Theorem 1) on plain arrays."""

from fedgap.theory.convergence import (
    BoundConstants,
    Terms,
    bound_constants,
    gap_growth_bound,
    gradient_gap_bound,
    round_terms,
)
from fedgap.theory.generalization import (
    aggregate,
    divergence,
    pooled_statement,
    possible_statement,
    smoothed,
    statement,
)

__all__ = [
    "BoundConstants",
    "Terms",
    "aggregate",
    "bound_constants",
    "divergence",
    "gap_growth_bound",
    "gradient_gap_bound",
    "pooled_statement",
    "possible_statement",
    "round_terms",
    "smoothed",
    "statement",
]
