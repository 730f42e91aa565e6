"""Schedules by hand."""

import pytest

from fedgap.learning.rate_schedules import SCHEDULES, factor


def test_constant():
    assert [factor(s, 3) for s in range(3)] == [1.0, 1.0, 1.0]


def test_cosine_falls_from_one_through_a_half_and_stays_above_zero():
    assert [factor(s, 4, cosine=True) for s in range(4)] == pytest.approx([1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5])


def test_warm_up_rises_linearly_to_one():
    assert [factor(s, 10, warm_up=0.35) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_after_warm_up_spans_the_rest():
    factors = [factor(s, 6, cosine=True, warm_up=0.3) for s in range(6)]
    assert factors[:2] == [0.5, 1.0]
    assert factors[2:] == [factor(s, 4, cosine=True) for s in range(4)]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("rounds", [1, 2, 7, 400])
def test_every_factor_lies_in_zero_to_one(name, rounds):
    warms_up, cosine = SCHEDULES[name]
    factors = [factor(s, rounds, cosine=cosine, warm_up=0.05 * warms_up) for s in range(rounds)]
    assert all(0.0 < value <= 1.0 for value in factors)
    assert max(factors) == 1.0


def test_rounds_and_shares_out_of_range_are_refused():
    for wrong in ({"round": 3, "rounds": 3}, {"round": -1, "rounds": 3}, {"round": 0, "rounds": 3, "warm_up": 1.0}):
        with pytest.raises(ValueError):
            factor(**wrong)
