"""What a round of many runs asks of the device does not grow with the runs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedgap.running.job import Job
from fedgap.running.loop import Rounds
from fedgap.running.prepare import divide, prepare
from tests.running.plans import by_hand


class Operators(TorchDispatchMode):
    """Counts the tensor operators that are called while it is on."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.calls[str(function)] += 1
        return function(*arguments, **(named or {}))


@pytest.fixture
def ready(small):
    experiment = small("rounds=14", "evaluate_every=100")
    _, _, scenario = divide(experiment)
    return prepare(experiment, by_hand(scenario, (1, range(10), 0.0), (7, [0, 2, 5], 0.25), (6, [1, 2, 9], 0.4)))


def calls_of_a_round(jobs, dataset) -> Counter:
    """Of a pruned round, but for the gradients."""
    rounds = Rounds(jobs, dataset)
    for _ in range(4):
        rounds.step()
    compute, count = rounds.clients.compute, Operators()

    def aside(round_input, rates, **options):
        count.__exit__(None, None, None)
        try:
            return compute(round_input, rates, **options)
        finally:
            count.__enter__()

    rounds.clients.compute = aside
    with count:
        rounds.step()
    return count.calls


def test_a_round_of_many_runs_calls_as_many_operators_as_one(ready):
    one = calls_of_a_round([ready.job], ready.dataset)
    many = calls_of_a_round([replace(ready.job, seed=seed) for seed in range(7)], ready.dataset)
    assert one == many
    assert sum(one.values()) > 5


def weights_of(jobs: list[Job], dataset) -> torch.Tensor:
    rounds = Rounds(jobs, dataset)
    for _ in range(5):
        rounds.step()
    return rounds.model.weights


def test_runs_of_other_batch_sizes_train_together_as_alone(ready):
    sizes = ready.job.batch_size
    jobs = [replace(ready.job, batch_size=own) for own in (sizes, sizes // 2, sizes + np.arange(10) % 3)]
    together = weights_of(jobs, ready.dataset)
    for row, job in enumerate(jobs):
        torch.testing.assert_close(together[row:row + 1], weights_of([job], ready.dataset), rtol=1e-4, atol=1e-6)
    assert not torch.equal(together[0], together[1])


def test_batches_go_on_where_runs_leave_and_blocks_end(ready, monkeypatch):
    expected = weights_of([ready.job], ready.dataset)
    monkeypatch.setattr("fedgap.running.batch_queue._AHEAD", 2)
    rounds = Rounds([replace(ready.job, seed=9), ready.job], ready.dataset)
    for number in range(5):
        if number == 3:
            rounds.drain()
            rounds.keep([1])
        rounds.step()
    torch.testing.assert_close(rounds.model.weights, expected, rtol=1e-4, atol=1e-6)
