"""Importance of the weights of many runs at once: runs with equal settings share one computation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgap.learning.importance import RunsImportance, make_importance


@dataclass
class _Group:
    """Runs with equal settings: the numbers of their rows among all runs, as a list and as an index tensor on the
    device."""

    importance: RunsImportance
    rows: list[int]
    index: Tensor


class Importances:
    """The importance of the weights of R runs; each run has its own settings and its own seed."""

    def __init__(self, settings: Sequence[Mapping[str, Any]], seeds: Sequence[int], device: torch.device) -> None:
        """``settings``: for each run the arguments of :func:`~fedgap.learning.importance.make_importance` without the
        seeds."""
        by_settings: dict[str, list[int]] = {}
        for row, wanted in enumerate(settings):
            by_settings.setdefault(json.dumps(wanted, sort_keys=True), []).append(row)
        self._device = device
        self._groups = [_Group(make_importance(seeds=[seeds[row] for row in rows], **settings[rows[0]]), rows,
                               torch.tensor(rows, device=device)) for rows in by_settings.values()]

    def scores(self, weights: Tensor, round: int) -> Tensor:
        """The score √Q of every weight in this round, (R, M); ``weights`` is (R, M)."""
        if len(self._groups) == 1:
            return self._groups[0].importance.scores(weights, round)
        scores = torch.empty_like(weights)
        for group in self._groups:
            scores[group.index] = group.importance.scores(weights[group.index], round)
        return scores

    def observe(self, weights: Tensor, gradient: Tensor, known: Tensor, heard: Sequence[int]) -> None:
        """Update the importance after a round, for the runs ``heard``: those of which at least one client delivered."""
        if len(self._groups) == 1:
            self._groups[0].importance.observe(weights, gradient, known, heard)
            return
        for group in self._groups:
            places = [place for place, row in enumerate(group.rows) if row in heard]
            group.importance.observe(weights[group.index], gradient[group.index], known[group.index], places)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all runs except these rows."""
        groups = []
        for group in self._groups:
            staying = [row for row in rows if row in group.rows]
            if staying:
                group.importance.keep([group.rows.index(row) for row in staying])
                places = [rows.index(row) for row in staying]
                groups.append(_Group(group.importance, places, torch.tensor(places, device=self._device)))
        self._groups = groups

    def state(self, row: int) -> dict[str, Tensor]:
        """The tensors of one run that a checkpoint must hold."""
        group = next(group for group in self._groups if row in group.rows)
        return group.importance.state(group.rows.index(row))

    def load(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Restore the importance from one :meth:`state` for each run."""
        for group in self._groups:
            group.importance.load(*(states[row] for row in group.rows))
