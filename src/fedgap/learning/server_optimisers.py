"""How the server turns a round's mean update into a step of the global weights.

The direction of a round is η·ū, the clients' rate times the mean of their updates (:mod:`fedgap.learning.contract`):
how far the clients' models moved on average. In the papers on federated optimisation it is called the negative
pseudo-gradient, −Δ. With the server's rate η_s, element by element:

    sgd        ω ← ω − η_s·d                                                FedSGD, FedAvg
    momentum   v ← β·v + d;  ω ← ω − η_s·v                                  FedAvgM (Hsu et al. 2019)
    nesterov   v ← β·v + d;  ω ← ω − η_s·(d + β·v)                          as torch.optim.SGD(nesterov=True)
    adam       m ← β·m + (1 − β)·d;  v ← β₂·v + (1 − β₂)·d²                 FedAdam (Reddi et al. 2021)
    yogi       m as in adam;  v ← v − (1 − β₂)·d²·sign(v − d²)              FedYogi (Reddi et al. 2021)
               both: ω ← ω − η_s·m/(√v + ε)

State starts at 0. Adam and Yogi do not correct the bias of that start, as in the paper.

A weight that no accepted client kept in a round (``kept`` False) does not move in that round, and its state does not
change: nothing was learned about it, so its momentum neither decays nor acts. A server may therefore broadcast its step
for the kept weights only.

Optimisers are immutable. State is a dictionary of tensors (R, M), one row for each run, so that runs are selected,
stacked, saved and restored row by row, under the names in :attr:`ServerOptimiser.state_names`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

State = dict[str, Tensor]
"""The state of an optimiser: tensors (R, M) by name."""


@dataclass(frozen=True)
class ServerOptimiser:
    """Plain SGD, and the base class of the others.

    ``default_rate`` of the server is 1 for sgd and the momentum methods, because their directions already contain the
    clients' rate. Adam and Yogi divide the direction by its typical size, so that the rate itself is about the distance
    that a weight moves in a round: 0.01, the middle of what Reddi et al. found best in their tasks (10⁻²·⁵ to 10⁻¹·⁵).

    ``adaptive`` is True if the length of a step does not depend on the length of the direction. A rate schedule must
    then multiply the server's rate; otherwise it multiplies the clients' rate, and the step follows. See
    :meth:`scheduled`."""

    state_names: ClassVar[tuple[str, ...]] = ()
    default_rate: ClassVar[float] = 1.0
    adaptive: ClassVar[bool] = False

    def init(self, weights: Tensor) -> State:
        """The state before the first round, for weights (R, M)."""
        return {name: torch.zeros_like(weights) for name in self.state_names}

    def update(self, direction: Tensor, kept: Tensor, rate: float | Tensor, state: Mapping[str, Tensor],
               ) -> tuple[Tensor, State]:
        """Returns the amount (R, M) to subtract from the weights, and the next state.

        ``direction`` d (R, M) is 0 where ``kept`` (R, M) is False; ``rate`` is η_s, one number or one per run (R, 1).
        """
        return rate * direction, {}

    def step(self, weights: Tensor, direction: Tensor, kept: Tensor, rate: float | Tensor,
             state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """The next weights and state; see :meth:`update`."""
        update, after = self.update(direction, kept, rate, state)
        return weights - update, after

    def forget(self, state: Mapping[str, Tensor], rows: list[int]) -> State:
        """The state after these runs have forgotten in which direction they were moving; sgd remembers none."""
        return dict(state)

    def scheduled(self, client_rate: float, server_rate: float, factor: float) -> tuple[float, float]:
        """The clients' rate and the server's rate in a round in which the schedule's factor is ``factor``."""
        return (client_rate, factor * server_rate) if self.adaptive else (factor * client_rate, server_rate)


@dataclass(frozen=True)
class Momentum(ServerOptimiser):
    """Heavy-ball momentum: ``momentum`` is β in the module docstring."""

    momentum: float = 0.9
    state_names: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1); got {self.momentum}")

    def update(self, direction: Tensor, kept: Tensor, rate: float | Tensor, state: Mapping[str, Tensor],
               ) -> tuple[Tensor, State]:
        """See :class:`ServerOptimiser`."""
        velocity = torch.where(kept, self.momentum * state["velocity"] + direction, state["velocity"])
        return torch.where(kept, rate * self._ahead(velocity, direction), 0.0), {"velocity": velocity}

    def forget(self, state: Mapping[str, Tensor], rows: list[int]) -> State:
        """See :class:`ServerOptimiser`. The first state is the direction. Adam keeps its second moments."""
        direction = state[self.state_names[0]].clone()
        direction[rows] = 0.0
        return {**state, self.state_names[0]: direction}

    def _ahead(self, velocity: Tensor, direction: Tensor) -> Tensor:
        return velocity


@dataclass(frozen=True)
class Nesterov(Momentum):
    """Nesterov's momentum, which looks one step ahead."""

    def _ahead(self, velocity: Tensor, direction: Tensor) -> Tensor:
        return direction + self.momentum * velocity


@dataclass(frozen=True)
class Adam(Momentum):
    """Steps of about equal length for all weights. ``momentum`` is β₁, ``second_momentum`` β₂.

    ``epsilon`` is the paper's degree of adaptivity (τ there): weights whose directions are typically smaller than it
    move in proportion to them.
    """

    second_momentum: float = 0.99
    epsilon: float = 1e-3
    state_names: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    default_rate: ClassVar[float] = 0.01
    adaptive: ClassVar[bool] = True

    def update(self, direction: Tensor, kept: Tensor, rate: float | Tensor, state: Mapping[str, Tensor],
               ) -> tuple[Tensor, State]:
        """See :class:`ServerOptimiser`."""
        before = state["first_moment"], state["second_moment"]
        first = torch.where(kept, self.momentum * before[0] + (1.0 - self.momentum) * direction, before[0])
        second = torch.where(kept, self._second_moment(before[1], direction.square()), before[1])
        update = torch.where(kept, rate * first / (second.sqrt() + self.epsilon), 0.0)
        return update, {"first_moment": first, "second_moment": second}

    def _second_moment(self, before: Tensor, square: Tensor) -> Tensor:
        return self.second_momentum * before + (1.0 - self.second_momentum) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """Adam with a second moment that changes by at most (1 − β₂)·d² in a round, so that it forgets slowly."""

    def _second_moment(self, before: Tensor, square: Tensor) -> Tensor:
        return before - (1.0 - self.second_momentum) * square * (before - square).sign()


OPTIMISERS: dict[str, type[ServerOptimiser]] = {
    "sgd": ServerOptimiser, "momentum": Momentum, "nesterov": Nesterov, "adam": Adam, "yogi": Yogi}
"""The optimisers by the name that an experiment gives in ``learning.server.optimiser``."""


def server_optimiser(name: str, momentum: float = 0.9) -> ServerOptimiser:
    """The optimiser with this name of :data:`OPTIMISERS`; ``momentum`` is its β or β₁ (sgd has none)."""
    if name not in OPTIMISERS:
        raise ValueError(f"the server optimiser must be one of {', '.join(OPTIMISERS)}; got {name!r}")
    kind = OPTIMISERS[name]
    return kind(momentum=momentum) if issubclass(kind, Momentum) else kind()
