"""Statistics against hand-worked numbers, scipy's own tests, and the definition of Holm's correction."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedgap.statistics import holm, interval, paired


def test_interval_by_hand() -> None:
    # mean 2, s = 1, t(0.975, 2) = 4.30265: half-width 4.30265/√3
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert interval([4.0]).half is None


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=3, max_size=12))
def test_paired_test_is_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = ({seed: pair[i] for seed, pair in enumerate(pairs)} for i in (0, 1))
    differences = np.subtract(*np.transpose(pairs))
    if np.std(differences) < 1e-6:
        return
    found = paired(first, second)
    assert found.p == pytest.approx(stats.ttest_rel(list(first.values()), list(second.values())).pvalue, rel=1e-6)


def test_only_common_seeds_are_paired() -> None:
    found = paired({0: 1.0, 1: 2.0, 2: 9.0}, {0: 0.5, 1: 1.0, 3: 4.0})
    assert found.difference.n == 2
    assert found.difference.mean == 0.75


def test_identical_runs_are_called_identical_and_test_nothing() -> None:
    same = paired({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7})
    assert same.verdict == "identical"
    clear = paired({s: 1.0 + 0.01 * s for s in range(10)}, dict.fromkeys(range(10), 0.0))
    assert [c.adjusted for c in holm([same, clear, same])][1] == clear.p  # a family of one test


def test_holm_by_hand() -> None:
    # p = 0.01, 0.04, 0.03 → sorted 0.01·3, max(0.03·2, …), max(0.04·1, …) = 0.03, 0.06, 0.06
    rng = np.random.default_rng(0)
    base = {s: float(x) for s, x in enumerate(rng.normal(size=8))}
    family = [paired({s: v + shift + 0.1 * math.sin(s) for s, v in base.items()}, base) for shift in (0.3, 0.03, 0.06)]
    found = holm(family)
    order = np.argsort([c.p for c in family])
    expected, worst = np.empty(3), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (3 - rank) * family[i].p))
        expected[i] = worst
    assert [c.adjusted for c in found] == pytest.approx(expected.tolist())
    assert all(c.adjusted >= c.p for c in found)


def test_baselines_that_trained_the_same_models_are_one_test() -> None:
    other = paired({s: 0.02 + 0.01 * math.sin(s) for s in range(6)}, dict.fromkeys(range(6), 0.0))
    one = paired({s: 0.1 + 0.09 * math.cos(s) for s in range(6)}, dict.fromkeys(range(6), 0.0))
    twice = holm([other, one, other])
    assert twice[0] == twice[2]
    assert [c.adjusted for c in twice[:2]] == [c.adjusted for c in holm([other, one])]


def test_what_is_detectable_is_so_at_the_strictest_step() -> None:
    """Three tests: t at 1 − 0.05/6 and at 0.8, five degrees of freedom, from tables: 3.534 and 0.920."""
    family = [paired({s: k + math.sin((k + 1) * s) for s in range(6)}, dict.fromkeys(range(6), 0.0)) for k in range(3)]
    for c in holm(family):
        assert c.difference.half is not None
        assert c.detectable == pytest.approx((3.534 + 0.920) * c.difference.half / 2.571, rel=1e-3)


def test_detectable_difference_has_the_power_it_claims() -> None:
    rng, n = np.random.default_rng(1), 10
    first = paired({s: float(x) for s, x in enumerate(rng.normal(size=n))}, dict.fromkeys(range(n), 0.0))
    assert first.detectable is not None
    true_size = (stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)) / math.sqrt(n)  # in standard deviations
    samples = rng.normal(true_size, 1.0, size=(4000, n))
    power = np.mean(stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05)
    assert power == pytest.approx(0.8, abs=0.05)
