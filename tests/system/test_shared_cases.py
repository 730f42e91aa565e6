"""Energy and delay at every evaluation point of the planning cases, which were evaluated by another program."""

import numpy as np
import pytest

from fedgap.system import round_cost
from tests.system.shared_cases import NAMES, decision_of, fleet_of, load, points


def test_there_are_points_to_check() -> None:
    assert len(NAMES) >= 5
    assert len(points()) >= 2 * len(NAMES)


@pytest.mark.parametrize(("name", "index"), points())
def test_energy_and_delay_of_an_evaluation_point(name: str, index: int) -> None:
    scenario, expected = load(name)
    point = expected["evaluation_points"][index]
    cost = round_cost(fleet_of(scenario), *decision_of(point))
    assert cost.energy_j.item() == pytest.approx(point["round_energy"], rel=1e-9)
    assert cost.delay_s.item() == pytest.approx(point["round_delay"], rel=1e-9)
    assert scenario["rounds"] * cost.energy_j.item() == pytest.approx(point["total_energy"], rel=1e-9)
    assert scenario["rounds"] * cost.delay_s.item() == pytest.approx(point["total_delay"], rel=1e-9)


@pytest.mark.parametrize("name", [name for name in NAMES if load(name)[1]["plan"]])
def test_energy_and_delay_of_the_expected_plan(name: str) -> None:
    scenario, expected = load(name)
    fleet = fleet_of(scenario)
    costs = [(segment["rounds"], round_cost(fleet, *decision_of(segment))) for segment in expected["plan"]]
    assert sum(rounds * cost.energy_j.item() for rounds, cost in costs) == pytest.approx(expected["E"], rel=1e-9)
    assert sum(rounds * cost.delay_s.item() for rounds, cost in costs) == pytest.approx(expected["T"], rel=1e-9)


def test_all_points_of_a_case_in_one_call() -> None:
    scenario, expected = load("n10_cifar_mean")
    several = expected["evaluation_points"]
    together = round_cost(fleet_of(scenario), *(np.stack(x) for x in zip(*map(decision_of, several))))
    np.testing.assert_allclose(together.energy_j, [point["round_energy"] for point in several], rtol=1e-9)
    np.testing.assert_allclose(together.delay_s, [point["round_delay"] for point in several], rtol=1e-9)
