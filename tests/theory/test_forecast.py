"""The formula of the forecast, worked by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.theory.forecast import FEATURES, Forecast, PlanFeatures

WEIGHTS = Forecast(start=2.0, rounds_power=0.5, steps_power=1.0, slowed_by_pruning=1.0, slowed_by_divergence=0.5,
                   few_clients=0.4, divergence=0.2, coarse_uploads=0.0, floor=0.01, slowed_by_few_clients=0.3,
                   drift_power=0.5)
TURNS = PlanFeatures(rounds=25, local_steps=4, few_clients=0.1, pruning=0.2, divergence=0.05, few_at_once=0.25,
                     divergence_at_once=0.3)


def test_turns_by_hand():
    """K = 2·(25·4)^−0.5 = 0.2 and z = 0.2 + (0.5·0.3 + 0.3·0.25)·4^0.5 = 0.65, with e^0.65 = 1.9155408. What remains is
    0.4·0.1 + 0.2·0.05 + 0.01 = 0.06, so that the error is 0.2·1.9155408 + 0.06."""
    fixed = WEIGHTS.at(25, 4)
    assert fixed.scale == pytest.approx(0.2, rel=1e-12)
    assert fixed.slowed(TURNS) == pytest.approx(0.65, rel=1e-12)
    assert fixed.lasting(TURNS) == pytest.approx(0.06, rel=1e-12)
    assert WEIGHTS.error(TURNS) == pytest.approx(0.44310816, rel=1e-7)


def test_without_turns_all_rounds_are_like_one():
    """The same rounds with the same clients each time: z is the same, and 0.4·0.25 + 0.2·0.3 + 0.01 = 0.17 remains."""
    same = PlanFeatures(25, 4, 0.25, 0.2, 0.3)
    assert (same.few_at_once, same.divergence_at_once, same.upload_bits) == (0.25, 0.3, 32)
    assert WEIGHTS.error(same) == pytest.approx(0.38310816 + 0.17, rel=1e-7)
    # Only what is given may differ: a plan that says 0 has 0.
    assert PlanFeatures(25, 4, 0.25, 0.2, 0.3, divergence_at_once=0.0).divergence_at_once == 0.0
    assert replace(same, few_clients=0.1).few_at_once == 0.25


def test_one_local_step_drifts_by_nothing():
    """1^q = 1: with one local step q does not matter, and without q local steps do not."""
    one = replace(TURNS, local_steps=1)
    assert WEIGHTS.error(one) == pytest.approx(replace(WEIGHTS, drift_power=2.0).error(one), rel=1e-12)
    still = replace(WEIGHTS, drift_power=0.0)
    assert still.at(25, 4).slowed(TURNS) == still.at(25, 64).slowed(TURNS) == pytest.approx(0.425, rel=1e-12)


@given(st.sampled_from(FEATURES), st.floats(1.0, 3.0))
def test_more_training_helps_and_everything_else_harms(name, factor):
    if name in ("rounds", "local_steps"):
        # Without drift; with it, more local steps may harm.
        better, worse = replace(TURNS, **{name: getattr(TURNS, name) * factor}), TURNS
        assert replace(WEIGHTS, drift_power=0.0).error(better) <= replace(WEIGHTS, drift_power=0.0).error(worse)
    elif name == "upload_bits":
        coarse = replace(WEIGHTS, coarse_uploads=1.0)
        assert coarse.error(replace(TURNS, upload_bits=4)) > coarse.error(TURNS)
    else:
        assert WEIGHTS.error(replace(TURNS, **{name: getattr(TURNS, name) * factor})) >= WEIGHTS.error(TURNS)
