"""The convex curve above measured costs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap import convex_upper_fit
from fedgap.errors import InputError


def test_equal_steps_are_covered_by_a_line_through_their_upper_corners():
    fitted = convex_upper_fit(np.linspace(0.0, 0.6, 7), [1.0, 0.9, 0.9, 0.8, 0.8, 0.7, 0.7])
    assert fitted == pytest.approx([1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7])


def test_a_convex_curve_is_its_own_fit():
    ratio = np.linspace(0.0, 0.7, 8)
    assert convex_upper_fit(ratio, (1.0 - ratio) ** 2) == pytest.approx((1.0 - ratio) ** 2)


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=12))
def test_the_fit_is_convex_falling_and_above(shares):
    ratio = np.linspace(0.0, 0.9, len(shares) + 1)
    fitted = convex_upper_fit(ratio, [1.0, *shares])
    slopes = np.diff(fitted) / np.diff(ratio)
    assert fitted[0] == 1.0
    assert (fitted >= np.array([1.0, *shares]) - 1e-12).all()
    assert (slopes <= 1e-6).all()
    assert (np.diff(slopes) >= -1e-6).all()


def test_what_is_not_a_curve_is_refused():
    with pytest.raises(InputError, match=r"^ratio: must begin with 0 and rise"):
        convex_upper_fit([0.1, 0.2], [1.0, 0.9])
    with pytest.raises(InputError, match=r"^share: must be above 0"):
        convex_upper_fit([0.0, 0.2], [1.0, 1.1])
