"""How good a model is on a data set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy and share of right answers over ``samples`` samples."""

    loss: float
    accuracy: float
    samples: int


def generalization_gap(training: Evaluation, testing: Evaluation) -> float:
    """φ^(s) = L(ω, D̂) − L̃(ω, D̃): training loss minus test loss of one model (negative where it fits training
    better)."""
    return training.loss - testing.loss
