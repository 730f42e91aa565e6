"""The linear program over rounds, where a solver's rounding has once misled it."""

from pathlib import Path

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import plan
from fedgap.planning.master import _linear
from fedgap.planning.problem import Problem


def test_a_shortfall_a_hair_below_zero_takes_no_room_away() -> None:
    """ResNet-44 on CIFAR-10, all clients, T₀ = 4320 s: HiGHS finds the budgets kept with −1.2·10⁻⁸ to spare.

    Taken at its word, the program that follows has no solution, though the budgets are loose.
    """
    scenario = Scenario.load(Path(__file__).parent / "full_room.yaml")
    answer = plan(scenario, scheme="all_clients")
    assert (answer.status, answer.rounds) == ("optimal", scenario.rounds)
    assert Problem.of(scenario).violation(answer.segments) <= 1e-9
    assert answer.lower_bound == pytest.approx(answer.theta, rel=1e-3)


def test_a_program_without_a_solution_has_no_answer() -> None:
    assert _linear(np.ones(2), np.full((2, 2), 2.0), 1.0, np.ones((1, 2)), np.ones(1)) is None
