"""The root finder against known roots and against scipy's, which is the same method."""

import numpy as np
import pytest
from scipy.optimize import brentq

from fedgap.planning.roots import root

FUNCTIONS = {
    "steep": lambda z, at: np.expm1(3.0 * (z - at)) * (1.0 + z * z),
    "flat": lambda z, at: (z - at) ** 3 + 1e-3 * (z - at),
    "saturated": lambda z, at: np.arctan(40.0 * (z - at)),
    "vertical": lambda z, at: np.sign(z - at) * abs(z - at) ** 0.3,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("at", [-4.9, -1.0, 0.3, 2.0, 6.999])
def test_finds_the_root_and_takes_scipys_steps(name: str, at: float) -> None:
    def function(z: float) -> float:
        return float(FUNCTIONS[name](z, at))

    found = root(function, -5.0, 7.0, xtol=1e-13, rtol=1e-14)
    assert found == brentq(function, -5.0, 7.0, xtol=1e-13, rtol=1e-14)
    assert found == pytest.approx(at, abs=1e-11)


def test_a_root_at_an_end_is_found() -> None:
    assert root(lambda z: z - 2.0, 2.0, 3.0, xtol=1e-12, rtol=1e-12) == 2.0
    assert root(lambda z: z - 3.0, 2.0, 3.0, xtol=1e-12, rtol=1e-12) == 3.0


def test_the_signs_at_the_ends_must_differ() -> None:
    with pytest.raises(ValueError, match="no change of sign"):
        root(lambda z: z * z + 1.0, -1.0, 1.0, xtol=1e-12, rtol=1e-12)
