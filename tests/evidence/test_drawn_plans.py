"""The random plans on which the forecast is judged: within their budgets, in turns where a cell says so, and seeds."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedgap.evidence.definition import Cell, load_figure
from fedgap.evidence.drawn_plans import FEWEST_ROUNDS, _draw, draw_plans, plans_file, runs_of
from fedgap.evidence.forecast_runs import cell_runs
from fedgap.evidence.workshop import no_bar
from fedgap.learning.data import load
from fedgap.planning.problem import Problem

SMALL = ("mode=practical", "data.train_samples=800", "data.test_samples=100", "engine.threads=1")
CELL = Cell("ten clients", "embedded", SMALL, 0.3, ((6.0, 20.0), (3.0, 10.0)), plans=6, repeats=(1, 2),
            most_samples=4e5)
TURNS = replace(CELL, title="ten clients, in turns", take_turns=True)


@pytest.mark.parametrize("number", range(8))
def test_clients_take_turns_within_the_budgets(number):
    drawn = _draw(TURNS.load(), TURNS, number)
    problem = Problem.of(TURNS.load(*drawn.settings).planning_scenario())
    assert problem.violation(drawn.plan.segments) <= 1e-9
    assert drawn.plan.rounds == problem.rounds >= FEWEST_ROUNDS
    assert drawn.plan.scheme == "drawn"
    assert (problem.energy_j, problem.delay_s) in TURNS.budgets
    at_once = max(int(segment.selected.sum()) for segment in drawn.plan.segments)
    samples = drawn.plan.rounds * problem.local_steps * problem.scenario.learning.batch_size * at_once
    assert samples <= TURNS.most_samples


def test_some_plans_have_many_groups_and_some_clients_at_once():
    drawn = [_draw(TURNS.load(), TURNS, number) for number in range(8)]
    groups = [{segment.selected.tobytes() for segment in one.plan.segments} for one in drawn]
    assert max(map(len, groups)) > 2
    assert len({one.plan.segments[0].selected.sum() for one in drawn}) > 2
    for one in drawn:  # everybody who trains at all trains about equally often
        often = sum(segment.rounds * segment.selected.astype(int) for segment in one.plan.segments)
        per_cycle = one.plan.rounds / max(1, len(one.plan.segments) - 1)
        assert np.ptp(often[often > 0]) <= 2 * per_cycle + 1


def test_cells_without_turns_have_the_plans_that_they_always_had():
    """Their runs were trained before clients could take turns; other plans would make these runs useless."""
    same = [_draw(CELL.load(), CELL, number) for number in range(3)]
    assert [one.settings for one in same] == [
        ("budget.energy_j=6.0", "budget.delay_s=20.0", "learning.local_steps=4", "learning.upload_bits=8", "rounds=56"),
        ("budget.energy_j=3.0", "budget.delay_s=10.0", "learning.local_steps=8", "learning.upload_bits=32",
         "rounds=17"),
        ("budget.energy_j=6.0", "budget.delay_s=20.0", "learning.local_steps=8", "learning.upload_bits=32",
         "rounds=22")]
    assert [[int(segment.selected.sum()) for segment in one.plan.segments] for one in same] == [[3, 3], [5, 5], [6, 6]]
    for one in same:
        assert len({segment.selected.tobytes() for segment in one.plan.segments}) == 1


def test_cells_with_and_without_turns_do_not_share_plans(tmp_path):
    name = plans_file(CELL, tmp_path)
    assert plans_file(replace(CELL, first_seed=10, pilot=False, title="another", turn=9), tmp_path) == name
    assert plans_file(TURNS, tmp_path) != name


def test_seeds_begin_with_the_first_of_the_cell(tmp_path):
    cell = replace(CELL, first_seed=10)
    dataset = load("embedded", train_samples=800, test_samples=100)
    seeds = {}
    for run in runs_of(cell, draw_plans(cell, tmp_path), dataset):
        seeds.setdefault(run.facts["plan"], []).append(run.facts["seed"])
        assert run.job.seed == run.facts["seed"]
    assert sorted(map(len, seeds.values())) == [1, 1, 1, 2, 2, 3]  # one plan has three seeds and two have two
    for plan, its in seeds.items():
        assert its == {1: [10 + plan % 2], 2: [10, 11], 3: [10, 11, 12]}[len(its)]


def test_a_cell_without_a_pilot_has_none(tmp_path):
    dataset = load("embedded", train_samples=800, test_samples=100)
    shop = SimpleNamespace(out=tmp_path, workers=1, dataset=lambda *_: dataset,
                           bar=no_bar)
    draw_plans(CELL, tmp_path / "plans")
    with_pilot, without = cell_runs([CELL, replace(CELL, pilot=False)], shop)
    assert with_pilot.pilot
    assert not without.pilot
    assert [run.key for run in with_pilot.drawn] == [run.key for run in without.drawn]


def test_a_title_says_whether_clients_take_turns():
    """The picture and the tables of the figure tell cells apart by it."""
    cells = [cell for listed in load_figure("forecast").cells.values() for cell in listed]
    assert {cell.take_turns for cell in cells} == {True, False}
    for cell in cells:
        assert cell.take_turns == ("in turns" in cell.title)
