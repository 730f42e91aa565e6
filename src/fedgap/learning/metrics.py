"""Loss and accuracy of a model on a data set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy and share of right answers over ``samples`` samples."""

    loss: float
    accuracy: float
    samples: int
