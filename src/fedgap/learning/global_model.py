"""The global model of a training, and the one place where a round changes it.

The simulator and the deployed server each hold one, and every deployed node holds a copy. All of them call
:meth:`GlobalModel.advance`, so their models stay equal bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedgap.learning.learner import Learner, ServerUpdate
from fedgap.learning.masks import ranks
from fedgap.learning.stacked_importance import Importances

_IMPORTANCE, _OPTIMISER = "importance.", "optimiser."  # prefixes of the names of these tensors in a checkpoint


class GlobalModel:
    """The global models of R runs: weights ω (R, M), BatchNorm buffers (R, B), the ranking of the weights (R, M), and
    the state of the importance rule and of the server's optimiser.

    ``round`` s is the number of the next round, so ``weights`` are ω^(s). The argument ``rank`` is the function that
    turns scores (R, M) into a ranking."""

    def __init__(self, weights: Tensor, buffers: Tensor, importance: Importances, update: ServerUpdate,
                 rank: Callable[[Tensor], Tensor] = ranks) -> None:
        self.round, self.weights, self.buffers = 0, weights, buffers
        self.importance, self._update, self._rank = importance, update, rank
        runs, size = weights.shape
        self.ranks = self._unranked = torch.arange(size, dtype=torch.int32, device=weights.device).repeat(runs, 1)

    def rank(self, pruned: bool) -> Tensor:
        """Rank the weights for the current round; returns the ranking (R, M). If nobody prunes, it is not needed and
        not computed."""
        self.ranks = self._rank(self.importance.scores(self.weights, self.round)) if pruned else self._unranked
        return self.ranks

    @property
    def client_rates(self) -> Tensor:
        """The learning rate η of each run's clients in the current round, (R,)."""
        return self._update.client_rates(self.round)

    @property
    def places(self) -> list[int] | None:
        """The position of each run in its rate schedule, or None if it is the number of the round."""
        return self._update.places

    def follow_schedule(self, places: list[int]) -> None:
        """Set the position of each run in its rate schedule. It then replaces the number of the round."""
        self._update.places = places

    def forget_direction(self, rows: list[int]) -> None:
        """Start the server's momentum of these runs anew."""
        self._update.forget(rows)

    def advance(self, direction: Tensor, known: Tensor, buffers: Tensor, heard: Sequence[int]) -> None:
        """End the current round: apply the aggregated ``direction`` (R, M) and the clients' mean ``buffers`` (R, B).

        The direction is the clients' mean update ū: a gradient, or with local steps the sum of the step directions
        (importance then gets their mean). ``known`` (R, M) is True where at least one accepted client kept the weight.
        ``heard`` lists the runs of which at least one client delivered; the direction of the other runs must be 0."""
        steps = self._update.steps
        self.importance.observe(self.weights, direction / steps if steps > 1 else direction, known, heard)
        self.weights = self._update.apply(self.weights, direction, known, self.round)
        self.buffers = buffers
        self.round += 1

    def skip(self) -> None:
        """End the current round without an update, because no client delivered. The model does not change."""
        self.round += 1

    def set_rates(self, learners: Sequence[Learner]) -> None:
        """Continue with the learning rates of these learners, one per run. All their other settings must be as
        before."""
        state = self._update.state
        self._update = ServerUpdate(learners, self.weights)
        self._update.state = state

    def keep(self, rows: list[int]) -> None:
        """Drop all runs except these rows."""
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
        """Restore the :meth:`state` of each run; all runs continue at the same ``round``.

        States may lack ``ranks``, because a round with pruning computes the ranking again."""
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
