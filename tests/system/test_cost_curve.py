"""Cost curves: the least one above two, its inverse, and what a round costs with it."""

from dataclasses import replace

import numpy as np
import pytest

from fedgap.system import CostCurve, round_cost
from tests.oracle.scenarios import pencil_problem


def test_the_maximum_of_two_curves_has_a_knot_where_they_cross():
    """1 − λ and 1 − 1.5λ up to 0.5, then flatter: at 0.5 they are 0.5 and 0.25, at 0.8 0.2 and 0.22.

    Between, 0.5 − (x − 0.5) = 0.25 − 0.1·(x − 0.5) where 0.25 = 0.9·(x − 0.5), x = 0.5 + 0.2777…
    """
    curve = CostCurve.covering(np.array([0.0, 0.5, 0.8]), np.array([1.0, 0.5, 0.2]), np.array([1.0, 0.25, 0.22]))
    assert curve.ratio == pytest.approx([0.0, 0.5, 0.5 + 0.25 / 0.9, 0.8])
    assert curve.share == pytest.approx([1.0, 0.5, 0.5 - 0.25 / 0.9, 0.22])
    assert curve.ratio_at(curve.share_at(np.array([0.1, 0.6, 0.79]))) == pytest.approx([0.1, 0.6, 0.79])


def test_a_curve_ends_where_pruning_more_saves_nothing():
    curve = CostCurve.covering(np.array([0.0, 0.5, 0.8]), np.array([1.0, 0.5, 0.5]))
    assert curve.ratio.tolist() == [0.0, 0.5]
    assert curve.share_at(np.array(0.7)) == 0.5


def test_computing_and_sending_are_charged_by_the_curve():
    """The pencil's client 0 at λ = 0.5 costs 0.8 of its 12 J + 3 J and of its 1.5 s + 1 s, not half."""
    fleet = replace(pencil_problem(1.0, 1.0).fleet, cost_curve=CostCurve(np.array([0.0, 0.5]), np.array([1.0, 0.8])))
    cost = round_cost(fleet, np.array([True, False]), np.full(2, 0.5), fleet.max_power_w, fleet.max_frequency_hz)
    assert cost.compute_j[0] == pytest.approx(0.8 * 12.0)
    assert cost.upload_j[0] == pytest.approx(0.8 * 3.0)
    assert cost.compute_s[0] + cost.upload_s[0] == pytest.approx(0.8 * 2.5)
