"""How a run learns: what its clients do in a round, and how the server applies their mean update.

A :class:`Learner` consists of plain numbers and names, so that it can be saved in a run's folder and sent to deployed
nodes. The simulator, the server and every node build the same :class:`ServerUpdate` from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgap.learning.contract import LocalTraining
from fedgap.learning.rate_schedules import SCHEDULES, WARM_UP_SHARE, factor
from fedgap.learning.server_optimisers import ServerOptimiser, server_optimiser

_MOST_ROUNDS = 10**7


@dataclass(frozen=True)
class Learner:
    """The learning settings of one run; the default is plain FedSGD.

    ``rate`` is the learning rate η of the clients' steps, ``server_rate`` η_s that of the server; ``rounds`` is the
    plan's number of rounds. ``local_steps``, ``client_momentum``, ``proximal`` and ``clip_norm`` are the fields of
    :class:`~fedgap.learning.contract.LocalTraining`. ``optimiser`` is the server's, with ``server_momentum``.
    ``schedule`` is one of :data:`~fedgap.learning.rate_schedules.SCHEDULES`, and ``warm_up`` the share of the rounds in
    which the rate rises if the schedule has a warm-up.

    >>> from fedgap.learning.learner import Learner
    >>> learner = Learner(rate=0.03, rounds=50, local_steps=8, optimiser="momentum", schedule="cosine")
    >>> learner.local.steps, len(learner.rates())
    (8, 50)
    """

    rate: float
    rounds: int
    local_steps: int = 1
    client_momentum: float = 0.0
    proximal: float = 0.0
    clip_norm: float | None = None
    optimiser: str = "sgd"
    server_rate: float = 1.0
    server_momentum: float = 0.9
    schedule: str = "constant"
    warm_up: float = WARM_UP_SHARE

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"the schedule must be one of {', '.join(SCHEDULES)}; got {self.schedule!r}")
        if not 1 <= self.rounds <= _MOST_ROUNDS:
            raise ValueError(f"a run must have 1 to {_MOST_ROUNDS} rounds; got {self.rounds}")

    @property
    def local(self) -> LocalTraining:
        """The settings of a client's local training."""
        return LocalTraining(self.local_steps, self.client_momentum, self.proximal, self.clip_norm)

    @property
    def server(self) -> ServerOptimiser:
        """The server's optimiser."""
        return server_optimiser(self.optimiser, self.server_momentum)

    def rates(self) -> Tensor:
        """The clients' rate and the server's rate in each round, shape (rounds, 2) float64."""
        server, (warms_up, cosine) = self.server, SCHEDULES[self.schedule]
        warm_up = self.warm_up if warms_up else 0.0
        factors = (factor(s, self.rounds, cosine=cosine, warm_up=warm_up) for s in range(self.rounds))
        return torch.tensor([server.scheduled(self.rate, self.server_rate, f) for f in factors], dtype=torch.float64)


class ServerUpdate:
    """The server's optimiser of R runs, with its state. The runs' learners may differ only in their rates and
    schedules."""

    def __init__(self, learners: Sequence[Learner], weights: Tensor) -> None:
        """``learners`` has one learner per run; ``weights`` (R, M) are those before the first round."""
        self.steps, self._optimiser = learners[0].local_steps, learners[0].server
        tables = [learner.rates() for learner in learners]
        longest = max(len(table) for table in tables)
        padded = [torch.cat([table, table[-1:].expand(longest - len(table), 2)]) for table in tables]
        self._rates = torch.stack(padded, dim=1).to(weights)  # (rounds, R, 2)
        self.state = self._optimiser.init(weights)
        self.places: list[int] | None = None
        """The position of each run in its rate schedule, or None if it is the number of the round."""

    def _present(self, round: int) -> Tensor:
        """The clients' rate and the server's rate of each run in this round, (R, 2)."""
        if self.places is None:
            return self._rates[round]
        return torch.stack([self._rates[place, row] for row, place in enumerate(self.places)])

    def client_rates(self, round: int) -> Tensor:
        """The clients' learning rate η of each run in this round, (R,)."""
        return self._present(round)[:, 0]

    def apply(self, weights: Tensor, direction: Tensor, known: Tensor, round: int) -> Tensor:
        """The weights (R, M) after a round in which the clients' mean update ū is ``direction`` (R, M).

        ``known`` (R, M) is True where at least one accepted client kept the weight."""
        rates = self._present(round)[..., None]
        weights, self.state = self._optimiser.step(weights, rates[:, 0] * direction, known, rates[:, 1], self.state)
        return weights

    def forget(self, rows: list[int]) -> None:
        """Let these runs forget in which direction they were moving."""
        self.state = self._optimiser.forget(self.state, rows)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all runs except these rows."""
        self._rates = self._rates[:, rows]
        self.places = None if self.places is None else [self.places[row] for row in rows]
        self.state = {name: tensor[rows] for name, tensor in self.state.items()}
