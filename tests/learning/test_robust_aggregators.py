"""Robust aggregators, by hand, and what one client of four can do to them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgap.learning.aggregators import aggregate, load_aggregator, mean
from fedgap.learning.contract import mean_buffers
from fedgap.learning.robust_aggregators import aggregate_buffers, clipped, clipped_mean, norms

NAMES = ("clipped_mean", "coordinate_trimmed_mean", "coordinate_median")
UPDATES = torch.tensor([[1.0, 4.0, 0.0, 0.0], [2.0, 0.0, 0.0, 6.0], [9.0, 2.0, 0.0, 3.0], [3.0, 8.0, 0.0, 0.0]])
KEPT = torch.tensor([[True, True, False, False], [True, False, False, True], [True, True, False, True],
                     [True, True, False, False]])


@pytest.mark.parametrize(("name", "expected"), [
    # (1, 2, 3, 9) without 1 and 9; (2, 4, 8) without 2 and 8; nobody; (3, 6): too few to leave out any
    ("coordinate_trimmed_mean", [2.5, 4.0, 0.0, 4.5]),
    ("coordinate_median", [2.5, 4.0, 0.0, 4.5]),
    ("clipped_mean", [3.75, 3.5, 0.0, 2.25])])
def test_by_hand(name, expected):
    assert aggregate(load_aggregator(name), UPDATES, KEPT).tolist() == expected


def test_a_trimmed_mean_of_eight_leaves_out_two_at_each_end():
    values = torch.tensor([[8.0], [1.0], [7.0], [2.0], [6.0], [3.0], [5.0], [20.0], [100.0]])
    kept = torch.ones(9, 1, dtype=torch.bool)
    # 100 is more than five times the median length, 6, and is the one that goes at each end: 1 | 2 ... 8 | 20
    assert aggregate(load_aggregator("coordinate_trimmed_mean"), values, kept).item() == pytest.approx(
        (2 + 3 + 5 + 6 + 7 + 8) / 6)
    assert aggregate(load_aggregator("coordinate_trimmed_mean"), values[:8], kept[:8]).item() == (3 + 5 + 6 + 7) / 4
    assert aggregate(load_aggregator("coordinate_median"), values, kept).item() == 5.5


def test_a_long_update_is_clipped_around_the_mean_of_the_others():
    """The others' mean is (4, 4, 0), and their distances from it are 2, 2 and 0: the median is 2."""
    updates = torch.tensor([[4.0, 2.0, 0.0], [4.0, 6.0, 0.0], [4.0, 4.0, 0.0], [4.0, -3e38, 0.0]])
    kept = torch.tensor([[True, True, False]] * 4)
    assert clipped(updates, kept)[3].tolist() == [4.0, 2.0, 0.0]
    assert clipped(updates, kept)[:3].tolist() == updates[:3].tolist()
    assert clipped_mean(updates, kept).tolist() == [4.0, 3.5, 0.0]


def test_one_of_two_clients_cannot_raise_the_limit():
    assert norms(torch.tensor([[3.0, 4.0]])).tolist() == [5.0]
    assert clipped(torch.tensor([[1.0], [1e30]]), torch.ones(2, 1, dtype=torch.bool))[1].item() == 1.0


@given(st.integers(2, 6), st.integers(0, 1000))
def test_without_a_long_update_clipping_is_the_mean_bit_for_bit(count, seed):
    updates = torch.randn(count, 40, generator=torch.Generator().manual_seed(seed))
    kept = torch.ones(count, 40, dtype=torch.bool)
    assert torch.equal(clipped_mean(updates, kept), mean(updates, kept))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [-10.0, 3.3e38, -1e30])
def test_one_of_four_cannot_move_the_direction_far(name, factor):
    """Three honest updates near 1, and one that is the first one times a factor."""
    honest = 1.0 + 0.1 * torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    updates = torch.cat([honest, factor * honest[:1].clamp(max=1.0)])
    assert bool(updates.isfinite().all())
    direction = aggregate(load_aggregator(name), updates, torch.ones_like(updates, dtype=torch.bool))
    if name == "clipped_mean":
        centre = honest.mean(0)
        assert float((direction - centre).norm()) <= float((honest - centre).norm(dim=1).max()) / 4 + 1e-4
    else:
        assert bool((direction >= honest.min(0).values).all())
        assert bool((direction <= honest.max(0).values).all())


BEFORE = torch.tensor([0.0, 1.0])  # a running mean and a running variance
HONEST = torch.tensor([[0.1, 1.1], [0.2, 0.9], [0.3, 1.0]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sent", [[3.3e38, 3.3e38], [-3.3e38, 0.0], [0.2, 1e6]])
def test_one_of_four_cannot_move_batch_statistics_far(name, sent):
    buffers = torch.cat([HONEST, torch.tensor([sent])])
    after = aggregate_buffers(load_aggregator(name), buffers, None, BEFORE)
    # clipped: a quarter of an honest distance, which is at most 0.15
    assert bool((after >= HONEST.min(0).values - 0.04).all())
    assert bool((after <= HONEST.max(0).values + 0.04).all())


@pytest.mark.parametrize("name", ["mean", "clipped_mean"])
def test_without_an_outlier_batch_statistics_are_the_mean_bit_for_bit(name):
    counted = torch.tensor([[True, True], [True, False], [True, False]])
    for has in (None, counted, counted & torch.tensor([True, False])):
        after = aggregate_buffers(load_aggregator(name), HONEST, has, BEFORE)
        assert torch.equal(after, mean_buffers(HONEST, has, BEFORE))


def test_the_median_of_batch_statistics_by_hand():
    """Of the mean 0.1, 0.2, 0.3, 0.4 and of the variance, which two clients have, 1.1 and 0.9; nobody has the third."""
    buffers = torch.tensor([[0.1, 1.1, 0.0], [0.2, 0.9, 0.0], [0.3, 0.0, 0.0], [0.4, 0.0, 0.0]])
    counted = torch.tensor([[True, True, False]] * 2 + [[True, False, False]] * 2)
    after = aggregate_buffers(load_aggregator("coordinate_median"), buffers, counted, torch.tensor([0.0, 1.0, 7.0]))
    assert after.tolist() == pytest.approx([0.25, 1.0, 7.0])
