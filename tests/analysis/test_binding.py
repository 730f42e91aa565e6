"""What binds a client, on plans made by hand."""

from pathlib import Path

import numpy as np
import pytest

from fedgap.analysis import Binding, cost, what_binds
from fedgap.analysis.binding import limits_reached
from fedgap.analysis.cost_report import segment_cost
from fedgap.config import Scenario
from fedgap.planning import Segment
from fedgap.planning.problem import Problem

CASE = Path(__file__).parents[1] / "cases" / "n3_r1.json"


@pytest.fixture
def problem():
    return Problem.of(Scenario.load(CASE))


def segment(problem, ratio, power=1.0, clock=1.0, selected=(True, True, True)):
    """All at a share of their caps."""
    chosen = np.array(selected)
    return Segment(1, chosen, np.where(chosen, ratio, 0.0), power * problem.fleet.max_power_w,
                   clock * problem.fleet.max_frequency_hz)


def test_caps_and_pruning(problem):
    most = problem.fleet.max_ratio
    words = limits_reached(problem, segment(problem, np.array([0.0, 0.5, 1.0]) * most), energy=False)
    words = [word.replace("deadline, ", "") for word in words]
    assert words == ["both caps, unpruned", "both caps", "both caps, most pruned"]


def test_one_cap_at_a_time_and_energy_only_below_a_cap(problem):
    ratio = np.full(3, 0.1)
    slow = limits_reached(problem, segment(problem, ratio, clock=0.5), energy=True)
    assert all("power cap" in w and "energy" in w for w in slow)
    assert all("clock cap" in w for w in limits_reached(problem, segment(problem, ratio, power=0.5), energy=True))
    assert not any("energy" in w for w in limits_reached(problem, segment(problem, ratio), energy=True))
    assert not any("energy" in w for w in limits_reached(problem, segment(problem, ratio, power=0.5), energy=False))


def test_unpruned_is_said_only_where_others_prune(problem):
    assert not any("unpruned" in w for w in limits_reached(problem, segment(problem, np.zeros(3)), energy=False))


def test_the_unselected_are_bound_by_nothing_and_somebody_ends_last(problem):
    part = segment(problem, np.full(3, 0.1), selected=(True, False, True))
    words = limits_reached(problem, part, energy=True)
    assert words[1] == ""
    last = segment_cost(problem, part).stragglers
    assert last.tolist() == ["deadline" in w for w in words]
    assert np.flatnonzero(last).tolist() == [int(problem.cost(part).straggler)]


def test_a_plan_by_hand(scenario, plan):
    """The first ends each round at both caps; the second has time left, prunes to the most, and energy is used up."""
    result = what_binds(scenario, plan)
    assert result == Binding(("near", "far"), (3, 1), energy=True, delay=False, clients=(
        ("deadline, both caps, unpruned", "power cap, most pruned, energy"), ("deadline, both caps", "")))
    assert cost(scenario, plan).energy_j == pytest.approx(scenario.budget.energy_j)
    text = str(result)
    assert "in 3 rounds (1)" in text
    assert "Used up: the energy budget." in text
