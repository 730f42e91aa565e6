"""Shadow prices against differences of plans."""

import os

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import plan
from tests.oracle.scenarios import CASES

FULL = os.environ.get("FEDGAP_FULL") == "1"
CASE = {
    "delay_binds": ("n10_mnist_mean_tight.json", []),
    "both_bind": ("n10_mnist_mean_tight.json", ["budget.energy_j=120"]),
    "with_a_dense_round": ("n10_mnist_mean_tight.json", ["budget.energy_j=120", "pruning.dense_first=true"]),
    "nothing_binds": ("n10_mnist_mean_tight.json", ["budget.energy_j=1e6", "budget.delay_s=1e6"]),
}


def cost(answer) -> float:
    return answer.terms["clients"] + answer.terms["generalization"] + answer.terms["pruning"]


@pytest.mark.parametrize(("case", "key", "price"), [
    pytest.param(case, key, price, marks=pytest.mark.full if (case, price) == ("with_a_dense_round", "energy") else ())
    for case in CASE for key, price in (("energy_j", "energy"), ("delay_s", "delay"))])
def test_a_price_is_the_slope_of_theta(case, key, price):
    """∂θ/∂E₀ and ∂θ/∂T₀ of the plan, and θ at a thousandth more and less of the budget: central to second order."""
    file, changes = CASE[case]
    scenario = Scenario.load(CASES / file, changes)
    own = getattr(scenario.budget, key)
    step = 1e-3 * own
    more, less = (
        cost(plan(scenario.with_overrides([f"budget.{key}={own + sign * step!r}"]))) for sign in (1.0, -1.0)
    )
    answer = plan(scenario)
    assert answer.prices[price] <= 0.0
    assert (more - less) / (2.0 * step) == pytest.approx(answer.prices[price], rel=1e-2, abs=1e-9 * cost(answer) / step)


@pytest.mark.parametrize("seed", range(30 if FULL else 4))
def test_a_budget_that_is_left_over_is_worth_nothing(seed):
    rng = np.random.default_rng(seed)
    factor = float(rng.uniform(1.5, 50.0))
    scenario = Scenario.load(CASES / "n10_mnist_mean_tight.json", [f"budget.energy_j={250.0 * factor!r}"])
    answer = plan(scenario)
    if answer.energy_j < 0.999 * scenario.budget.energy_j:
        assert answer.prices["energy"] == pytest.approx(0.0, abs=1e-12)
    assert answer.prices["delay"] < 0.0
