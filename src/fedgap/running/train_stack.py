"""Train jobs of one kind together, in memory, from their first round to their last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedgap.errors import FedgapError
from fedgap.learning.data import Dataset
from fedgap.running.events import Event
from fedgap.running.job import Job
from fedgap.running.loop import Rounds
from fedgap.running.ruled_steering import RuledSteering
from fedgap.running.run_accounts import RunAccounts


def train_stack(jobs: Sequence[Job], dataset: Dataset,
                step: Callable[[int], None] | None = None) -> tuple[list[list[Event]], torch.device]:
    """Train the jobs; returns the evaluated rounds of each job, and the device.

    ``step`` is called after each round with the number of runs that took part in it."""
    rounds = Rounds(jobs, dataset, steerings=[RuledSteering(job) if job.policy else None for job in jobs])
    events: list[list[Event]] = [[] for _ in jobs]
    running = list(range(len(jobs)))

    def read() -> None:
        for position, new in zip(running, rounds.drain(), strict=True):
            events[position] += [event for event in new if "test_accuracy" in event]

    while running:
        ended = [row for row, account in enumerate(rounds.accounts) if _has_ended(account, rounds.round)]
        if ended:
            read()
            left = [row for row in range(len(running)) if row not in ended]
            running = [running[row] for row in left]
            if running:
                rounds.keep(left)
            continue
        for account in rounds.accounts:
            if reason := account.stopped(rounds.round):
                what = "its training ended early" if account.progress.ended else "its plan exceeds a budget"
                raise FedgapError(f"{account.job.scheme}, seed {account.job.seed}: {what}, before round "
                                  f"{rounds.round} of {account.job.rounds}: {reason}")
        rounds.step()
        if rounds.ready():
            read()
        if step is not None:
            step(len(running))
    return events, rounds.engine.device


def _has_ended(account: RunAccounts, number: int) -> bool:
    """Whether a run has no round with this number. A run that a rule steers also ends when its budgets are spent."""
    if account.steering is None:
        return number >= account.job.rounds
    return bool(account.stopped(number)) and not account.progress.ended
