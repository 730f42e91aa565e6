"""Training jobs of one kind together, in memory, from their first round to their last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedgap.errors import FedgapError
from fedgap.learning.data import Dataset
from fedgap.running.events import Event
from fedgap.running.job import Job
from fedgap.running.loop import Rounds


def train_stack(jobs: Sequence[Job], dataset: Dataset,
                step: Callable[[int], None] | None = None) -> tuple[list[list[Event]], torch.device]:
    """Train the jobs; return each one's evaluated rounds, and the device.

    ``step`` is called after each round with the number of runs that took part in it.
    """
    rounds = Rounds(jobs, dataset)
    events: list[list[Event]] = [[] for _ in jobs]
    running = list(range(len(jobs)))

    def read() -> None:
        for position, new in zip(running, rounds.drain(), strict=True):
            events[position] += [event for event in new if "test_accuracy" in event]

    while running:
        ended = [row for row, account in enumerate(rounds.accounts) if rounds.round >= account.job.rounds]
        if ended:
            read()
            left = [row for row in range(len(running)) if row not in ended]
            running = [running[row] for row in left]
            if running:
                rounds.keep(left)
            continue
        stopped = [account.stopped(rounds.round) for account in rounds.accounts]
        if any(stopped):
            raise FedgapError(f"a plan does not keep its budgets: {next(filter(None, stopped))} "
                              f"before round {rounds.round}")
        rounds.step()
        if rounds.ready():
            read()
        if step is not None:
            step(len(running))
    return events, rounds.engine.device
