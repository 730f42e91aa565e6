"""Interleaving: every segment gets exactly its rounds, evenly spread, the same everywhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.planning.round_order import interleave

counts = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(lambda r: sum(r) > 0)


@given(counts)
def test_every_segment_gets_its_rounds_and_is_never_far_from_its_share(rounds):
    order = interleave(rounds)
    assert np.bincount(order, minlength=len(rounds)).tolist() == rounds
    share = np.outer(np.arange(1, len(order) + 1), rounds) / len(order)
    had = np.cumsum(order[:, None] == np.arange(len(rounds)), axis=0)
    assert np.abs(had - share).max() <= (0.5 if len(rounds) <= 2 else 1.5)


@given(counts, st.data())
def test_the_dense_round_comes_first_and_the_rest_is_as_without_it(rounds, data):
    first = data.draw(st.sampled_from([i for i, r in enumerate(rounds) if r > 0]))
    order = interleave(rounds, first=first)
    assert order[0] == first
    assert np.bincount(order, minlength=len(rounds)).tolist() == rounds
    left = [r - (i == first) for i, r in enumerate(rounds)]
    assert order[1:].tolist() == interleave(left).tolist()


@given(counts)
def test_blocks_keep_the_plans_order(rounds):
    assert interleave(rounds, order="blocks").tolist() == [i for i, r in enumerate(rounds) for _ in range(r)]


def test_worked_by_hand():
    assert interleave([3, 3]).tolist() == [0, 1, 0, 1, 0, 1]
    assert interleave([1, 4]).tolist() == [1, 1, 0, 1, 1]
    assert interleave([5, 3, 1]).tolist() == [0, 1, 0, 2, 0, 1, 0, 1, 0]
    assert interleave([1, 2, 2], first=0).tolist() == [0, 1, 2, 1, 2]
    assert interleave([2, 1], first=1, order="blocks").tolist() == [1, 0, 0]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        interleave([2, 0], first=1)
    with pytest.raises(ValueError, match="order: must be one of even, blocks"):
        interleave([2], order="evenly")
