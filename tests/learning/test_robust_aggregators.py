"""Robust aggregators, by hand, and what one client of four can do to them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgap.learning.aggregators import aggregate, load_aggregator, mean
from fedgap.learning.robust_aggregators import clipped, clipped_mean, norms

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


def test_a_long_update_is_clipped_to_the_median_length():
    updates = torch.tensor([[3.0, 4.0], [0.0, 5.0], [5.0, 0.0], [0.0, -3e38]])
    assert norms(updates)[:3].tolist() == [5.0, 5.0, 5.0]
    assert clipped(updates)[3].tolist() == [0.0, -5.0]
    assert clipped(updates)[:3].tolist() == updates[:3].tolist()


def test_one_of_two_clients_cannot_raise_the_limit():
    assert clipped(torch.tensor([[1.0], [1e30]]))[1].item() == 1.0


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
        assert float(direction.norm()) <= float(honest.norm(dim=1).max())
    else:
        assert bool((direction >= honest.min(0).values).all())
        assert bool((direction <= honest.max(0).values).all())
