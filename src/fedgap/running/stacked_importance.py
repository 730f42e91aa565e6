"""The importance of every run's weights: runs of equal settings share one computation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgap.learning.importance import Importance
from fedgap.running.job import Job
from fedgap.streams import stream_seed


@dataclass
class _Group:
    """Runs of equal settings: their rows among all, also on the device."""

    importance: Importance
    rows: list[int]
    index: Tensor


class Importances:
    """:class:`~fedgap.learning.importance.Importance` of R runs, whose settings may differ."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        by_settings: dict[str, list[int]] = {}
        for row, job in enumerate(jobs):
            by_settings.setdefault(json.dumps(job.importance, sort_keys=True), []).append(row)
        self._device = device
        self._groups = [_Group(Importance(**jobs[rows[0]].importance,
                                          seeds=[stream_seed(jobs[row].seed, "selection") for row in rows]),
                               rows, torch.tensor(rows, device=device)) for rows in by_settings.values()]

    def scores(self, weights: Tensor, round: int) -> Tensor:
        """√Q of every weight, (R, M)."""
        if len(self._groups) == 1:
            return self._groups[0].importance.scores(weights, round)
        scores = torch.empty_like(weights)
        for group in self._groups:
            scores[group.index] = group.importance.scores(weights[group.index], round)
        return scores

    def observe(self, weights: Tensor, gradient: Tensor, known: Tensor, heard: Sequence[int]) -> None:
        """Takes in a round of which the runs ``heard`` have learned something."""
        if len(self._groups) == 1:
            self._groups[0].importance.observe(weights, gradient, known, heard)
            return
        for group in self._groups:
            own = [place for place, row in enumerate(group.rows) if row in heard]
            group.importance.observe(weights[group.index], gradient[group.index], known[group.index], own)

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these runs only."""
        groups = []
        for group in self._groups:
            own = [row for row in rows if row in group.rows]
            if own:
                group.importance.keep([group.rows.index(row) for row in own])
                places = [rows.index(row) for row in own]
                groups.append(_Group(group.importance, places, torch.tensor(places, device=self._device)))
        self._groups = groups

    def state(self, row: int) -> dict[str, Tensor]:
        """What a checkpoint of one run must hold."""
        group = next(group for group in self._groups if row in group.rows)
        return group.importance.state(group.rows.index(row))

    def load(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Restores :meth:`state`, one for each run."""
        for group in self._groups:
            group.importance.load(*(states[row] for row in group.rows))
