"""Rules that end a training early: the target is reached, nothing improves, or it diverges.

The rules have no state and depend only on what was measured so far, so a resumed run decides in the same way. The
accuracies are those of the validation split, never of the test set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedgap.errors import InputError


@dataclass(frozen=True)
class StoppingRule:
    """Ends a training that is good enough, or that no longer improves, and leaves the rest of the budgets unspent."""

    accuracy: float | None = None
    """The validation accuracy at which to stop; None for no target."""
    target_evaluations: int = 1
    """Number of consecutive evaluations that must reach the target."""
    patience: int | None = None
    """Number of evaluations without a new best accuracy after which to stop; None for no limit."""

    def __post_init__(self) -> None:
        if self.accuracy is not None and not 0.0 < self.accuracy <= 1.0:
            raise InputError("stop.accuracy: must be a share above 0 and at most 1, such as 0.95; got "
                             f"{self.accuracy:g}")
        for key in ("target_evaluations", "patience"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise InputError(f"stop.{key}: must be at least 1; got {value}")

    def reason(self, accuracies: Sequence[float]) -> str:
        """The reason to stop after these validation accuracies, which are in the order of evaluation; "" to
        continue."""
        target, needed = self.accuracy, self.target_evaluations
        if target is not None and len(accuracies) >= needed and min(accuracies[-needed:]) >= target:
            return f"the validation accuracy {accuracies[-1]:.2%} reached the target of {target:.2%}"
        if self.patience is not None and accuracies:
            waited = len(accuracies) - 1 - accuracies.index(max(accuracies))  # an equal accuracy is not an improvement
            if waited >= self.patience:
                return (f"the validation accuracy did not improve on {max(accuracies):.2%} in {waited} "
                        f"evaluation{'s' * (waited > 1)}")
        return ""


@dataclass(frozen=True)
class DivergenceRule:
    """Ends a training whose loss is not finite, or stays far above the loss at the start."""

    classes: int
    factor: float = 3.0
    """A loss that is this many times larger than the first one is too large; momentum and large rates overshoot by
    less."""
    evaluations: int = 3
    """Number of consecutive evaluations with such a loss after which training ends."""

    def reason(self, first_loss: float, losses: Sequence[float | None], rate: float,
               key: str = "scenario.learning.rate") -> str:
        """Why to stop, and what to change; "" to continue.

        :param first_loss: loss of the initial weights.
        :param losses: losses on training or validation samples, one per evaluation so far; None if not finite.
        :param rate: the learning rate; the advice names its ``key`` with a smaller value to try.
        """
        advice = f"try a smaller rate, for example {key}={rate / 3:.2g} instead of {rate:g}"
        if losses and not _finite(losses[-1]):
            return f"training diverged: the loss is no longer finite; {advice}"
        # ln(classes) is the loss of guessing. A model that began better may return to it without having diverged.
        limit = self.factor * max(first_loss, math.log(self.classes))
        last = [loss for loss in losses[-self.evaluations:] if loss is not None]
        if len(last) == self.evaluations and min(last) > limit:
            shown = ", ".join(f"{loss:.3g}" for loss in last)
            return (f"training diverged: the loss was {shown} at the last {self.evaluations} evaluations, and "
                    f"{first_loss:.3g} in the first round; {advice}")
        return ""


def _finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


@dataclass
class Progress:
    """The evaluations of a run that the stopping rules need, and the decision of the rules. A checkpoint contains
    it."""

    first_loss: float | None = None
    """Loss of the initial weights, if it was evaluated."""
    accuracies: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    ended: str = ""
    """Why the training ended early; "" while it continues."""
    diverged: bool = False
    """Whether it ended because it diverged."""

    @property
    def not_finite(self) -> bool:
        """Whether it ended because the loss was no longer finite."""
        return self.diverged and not _finite(self.losses[-1])

    def judge(self, rules: StoppingRule, divergence: DivergenceRule | None, event: dict[str, Any], *,
              all_rejected: bool, rate: float, key: str) -> None:
        """Add a round's evaluation, and decide whether the training ends.

        ``all_rejected`` says that updates arrived, but none of them was finite. ``rate`` and its ``key`` are named in
        the advice."""
        if "validation_accuracy" in event:
            self.accuracies.append(event["validation_accuracy"])
            self.ended = rules.reason(self.accuracies)
        if divergence is not None and self.first_loss is not None:
            loss = event.get("training_set_loss", event.get("validation_loss"))
            self.losses.append(None if all_rejected else loss)
            reason = divergence.reason(self.first_loss, self.losses, rate, key)
            self.ended, self.diverged = reason or self.ended, bool(reason)
