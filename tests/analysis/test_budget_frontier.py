"""The frontier of budgets: its grid, what is skipped, what is marked, and what is drawn."""

from dataclasses import replace

import numpy as np
import pytest

import fedgap
from fedgap.analysis import BudgetGrid, Frontier, budget_factors, frontier_points


def test_the_grid_has_the_scenario_s_budgets_and_is_even_in_its_logarithm():
    assert budget_factors(2) == [1.0, 2.0]
    assert budget_factors(7, least=0.5) == [0.5, 0.63, 0.7937, 1.0, 1.2599, 1.5874, 2.0]
    factors = budget_factors(6)
    assert (factors[0], factors[-1], factors[2]) == (0.6, 2.0, 1.0)


def test_the_centre_comes_first(scenario):
    grid = BudgetGrid.around(scenario.budget, [0.5, 1.0, 2.0])
    assert grid.delay_s == (6.0, 12.0, 24.0)
    pairs = grid.outwards()
    assert pairs[0] == (3.8125, 12.0)
    assert pairs[-1] == (7.625, 24.0)
    assert len(set(pairs)) == 9


@pytest.fixture
def solve(plan):
    """θ = 100/(E·T) where T ≥ 12 and E ≥ 3.8; nothing fits in less. Remembers what it was asked."""
    asked = []

    def answer(scenario):
        energy, delay = scenario.budget.energy_j, scenario.budget.delay_s
        asked.append((energy, delay))
        if delay < 12.0 or energy < 3.8:
            return replace(plan, status="infeasible", segments=(), theta=np.inf, reason=f"{delay:g} s are too few")
        return replace(plan, theta=100.0 / (energy * min(delay, 20.0)))

    answer.asked = asked
    return answer


def test_less_than_what_does_not_fit_is_not_planned(scenario, solve):
    points = list(frontier_points(scenario, BudgetGrid.around(scenario.budget, [0.5, 0.8, 1.0, 2.0]), solve))
    assert len(points) == 16
    skipped = {(p.budget_energy_j, p.budget_delay_s) for p in points if p.plan is None}
    assert skipped
    assert skipped.isdisjoint(solve.asked)
    for energy, delay in skipped:
        assert any(energy <= e and delay <= d and (d < 12.0 or e < 3.8) for e, d in solve.asked)
    assert {p.status for p in points if p.plan is None} == {"infeasible"}


def test_the_efficient_are_marked(scenario, solve, monkeypatch):
    """Seconds above 20 buy nothing: of two budgets with as many joules only the smaller is efficient."""
    monkeypatch.setattr("fedgap.analysis.budget_frontier.plan", lambda changed, scheme: solve(changed))
    seen = []
    result = fedgap.frontier(scenario, factors=[0.5, 1.0, 2.0, 2.5], on_point=seen.append)
    assert len(seen) == len(result) == 16
    assert [(p.budget_energy_j, p.budget_delay_s) for p in result][:2] == [(1.90625, 6.0), (1.90625, 12.0)]
    efficient = {(p.budget_energy_j, p.budget_delay_s) for p in result if p.efficient}
    joules, seconds = (3.8125, 7.625, 9.53125), (12.0, 24.0)
    assert efficient == {(e, d) for e in joules for d in seconds}
    row = next(line for line in str(result).splitlines() if line.startswith("3.812 J"))
    assert row.split() == ["3.812", "J", "∞", "[2.1858]", "1.3115", "1.3115*"]
    assert result.feasible
    assert [row["on_front"] for row in result.to_dict()["points"]] == [p.efficient for p in result]


def test_only_what_was_planned_is_coloured(scenario, solve, monkeypatch, tmp_path):
    monkeypatch.setattr("fedgap.analysis.budget_frontier.plan", lambda changed, scheme: solve(changed))
    result = fedgap.frontier(scenario, factors=[0.5, 1.0, 2.0])
    figure = result.plot(tmp_path / "front.svg")
    assert (tmp_path / "front.svg").read_text().startswith("<?xml")
    cells = figure.axes[2].images[0].get_array()
    assert cells.shape == (3, 3)
    assert np.ma.getmaskarray(cells).tolist() == [[True] * 3, [True, False, False], [True, False, False]]
    assert not figure.axes[2].collections  # no contours, which would colour what lies between two plans
    lines = [line for line in figure.axes[0].lines if line.get_label().endswith(" J")]
    assert [line.get_label() for line in lines] == ["3.812 J", "7.625 J"]  # none for budgets that carry nothing
    assert {line.get_drawstyle() for line in lines} == {"steps-post"}


def test_nothing_fits(scenario, solve):
    nothing = Frontier(scenario.budget, tuple(
        frontier_points(scenario, BudgetGrid.around(scenario.budget, [0.1, 0.2]), solve)))
    assert not nothing.feasible
    assert nothing.reason == "2.4 s are too few"
    with pytest.raises(fedgap.errors.InputError, match="nothing to draw"):
        nothing.plot()


def test_real_budgets(scenario):
    """More of either budget is never worse, and every plan keeps its budgets."""
    result = fedgap.frontier(scenario, points=3)
    for p in result:
        assert all(p.theta <= q.theta * (1 + 1e-3) for q in result
                   if q.budget_energy_j <= p.budget_energy_j and q.budget_delay_s <= p.budget_delay_s)
        if p.used is not None:
            assert p.used[0] <= p.budget_energy_j * (1 + 1e-6)
            assert p.used[1] <= p.budget_delay_s * (1 + 1e-6)
