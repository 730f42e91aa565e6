"""The running mean has the bits of the mean of all updates at once."""

import pytest
import torch

from fedgap.learning.aggregators import mean, weighted_mean
from fedgap.learning.running_mean import RunningMean


def updates(count, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator) * torch.rand(count, 1, generator=generator)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 15, 16, 17, 33, 256, 300])
@pytest.mark.parametrize("size", [1, 15, 64, 127, 128, 1000, 4097])
def test_it_is_the_mean_bit_for_bit(count, size):
    """torch adds up rows in blocks of 16 and the last columns in yet another order; both must be met."""
    rows = updates(count, size)
    kept = torch.ones(size, dtype=torch.bool)
    running = RunningMean(size, weighted=False)
    for row in rows:
        running.add(row, kept)
    assert torch.equal(running.mean(), mean(rows, kept))


def test_it_is_the_weighted_mean_bit_for_bit():
    rows, samples = updates(23, 500), torch.arange(1.0, 24.0)
    running = RunningMean(500, weighted=True)
    for row, weight in zip(rows, samples.tolist(), strict=True):
        running.add(row, torch.ones(500, dtype=torch.bool), weight)
    assert torch.equal(running.mean(), weighted_mean(rows, samples))


def test_a_weight_is_known_if_any_client_kept_it():
    running = RunningMean(3, weighted=False)
    running.add(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([True, False, False]))
    running.add(torch.tensor([3.0, 5.0, 0.0]), torch.tensor([True, True, False]))
    assert running.known.tolist() == [True, True, False]
    assert running.mean().tolist() == [2.0, 2.5, 0.0]
