"""Loss and accuracy of a model on a data set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy ``loss`` and share of correct predictions ``accuracy`` over ``samples`` samples."""

    loss: float
    accuracy: float
    samples: int
