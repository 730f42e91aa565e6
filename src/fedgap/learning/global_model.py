"""The global model of a training, and the one place where a round changes it.

The simulator and the deployed server hold one, and every deployed node holds a copy; all of them call
:meth:`GlobalModel.advance`, so that they stay equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedgap.learning.learner import Learner, ServerUpdate
from fedgap.learning.masks import ranks
from fedgap.learning.stacked_importance import Importances

_IMPORTANCE, _OPTIMISER = "importance.", "optimiser."  # the prefixes of their tensors' names in a checkpoint


class GlobalModel:
    """R runs' weights ω (R, M), BatchNorm buffers (R, B), ranking of the weights, and what importance and the server's
    optimiser remember.

    ``round`` s is the next round: ``weights`` are ω^(s). ``rank`` computes a ranking from scores.
    """

    def __init__(self, weights: Tensor, buffers: Tensor, importance: Importances, update: ServerUpdate,
                 rank: Callable[[Tensor], Tensor] = ranks) -> None:
        self.round, self.weights, self.buffers = 0, weights, buffers
        self.importance, self._update, self._rank = importance, update, rank
        runs, size = weights.shape
        self.ranks = self._unranked = torch.arange(size, dtype=torch.int32, device=weights.device).repeat(runs, 1)

    def rank(self, pruned: bool) -> Tensor:
        """Rank the weights for the current round, (R, M). If nobody prunes, the ranking is not needed and not
        computed."""
        self.ranks = self._rank(self.importance.scores(self.weights, self.round)) if pruned else self._unranked
        return self.ranks

    @property
    def client_rates(self) -> Tensor:
        """η of each run's clients in the current round, (R,)."""
        return self._update.client_rates(self.round)

    @property
    def places(self) -> list[int] | None:
        """The position of each run in its rate schedule, if it is not the number of the round."""
        return self._update.places

    def follow_schedule(self, places: list[int]) -> None:
        """Set the position of each run in its rate schedule, in place of the number of the round."""
        self._update.places = places

    def forget_direction(self, rows: list[int]) -> None:
        """Start the server's momentum of these runs anew."""
        self._update.forget(rows)

    def advance(self, direction: Tensor, known: Tensor, buffers: Tensor, heard: Sequence[int]) -> None:
        """End the current round with the aggregated ``direction`` (R, M) and the clients' mean ``buffers`` (R, B).

        The direction is the clients' mean update ū: a gradient, or with local steps a sum of step directions, of which
        importance sees the mean. ``known`` (R, M) is True where at least one accepted client kept the weight; ``heard``
        are the runs of which any client delivered. The other runs' direction is 0.
        """
        steps = self._update.steps
        self.importance.observe(self.weights, direction / steps if steps > 1 else direction, known, heard)
        self.weights = self._update.apply(self.weights, direction, known, self.round)
        self.buffers = buffers
        self.round += 1

    def skip(self) -> None:
        """End the current round without any update: nobody delivered, so the model stays as it is."""
        self.round += 1

    def set_rates(self, learners: Sequence[Learner]) -> None:
        """Continue with these runs' rates; everything else of their learners is as before."""
        state = self._update.state
        self._update = ServerUpdate(learners, self.weights)
        self._update.state = state

    def keep(self, rows: list[int]) -> None:
        """Continue with these runs only."""
        self.weights, self.buffers = self.weights[rows], self.buffers[rows]
        self.ranks, self._unranked = self.ranks[rows], self._unranked[rows]
        self.importance.keep(rows)
        self._update.keep(rows)

    def state(self, row: int) -> dict[str, Tensor]:
        """The tensors that a checkpoint of one run must hold."""
        return {"weights": self.weights[row], "buffers": self.buffers[row], "ranks": self.ranks[row],
                **{f"{_IMPORTANCE}{name}": tensor for name, tensor in self.importance.state(row).items()},
                **{f"{_OPTIMISER}{name}": tensor[row] for name, tensor in self._update.state.items()}}

    def load(self, states: Sequence[dict[str, Tensor]], round: int) -> None:
        """Restore each run's :meth:`state`; all are at the same ``round``. Rankings may be missing."""
        device = self.weights.device
        self.round = round
        self.weights, self.buffers = (torch.stack([state[name] for state in states]).to(device)
                                      for name in ("weights", "buffers"))
        if all("ranks" in state for state in states):
            self.ranks = torch.stack([state["ranks"] for state in states]).to(device)
        self.importance.load([{name.removeprefix(_IMPORTANCE): tensor.to(device) for name, tensor in state.items()
                               if name.startswith(_IMPORTANCE)} for state in states])
        self._update.state = {name: torch.stack([state[f"{_OPTIMISER}{name}"] for state in states]).to(device)
                              for name in self._update.state}
