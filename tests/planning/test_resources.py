"""Fixed selections: optimality conditions, agreement with Clarabel, batches, and how the optimum moves."""

import os
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap.planning import PAPER_SCHEMES, resources
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.fixed_composition import compose_single
from fedgap.planning.problem import Problem
from fedgap.planning.resources import Allocation, allocate
from fedgap.planning.task import Task
from tests.oracle.convex_model import solve_fixed_selection
from tests.oracle.scenarios import pencil_problem, random_problem
from tests.planning.test_client_curves import KINDS, extreme_fleet

FULL = os.environ.get("FEDGAP_FULL") == "1"
seeds = st.integers(0, 100_000)


class Setting(NamedTuple):
    """Arguments of ``allocate``: B problems over I instances."""

    units: ClientCurves
    time: np.ndarray
    share: np.ndarray
    rounds: np.ndarray
    selected: np.ndarray
    budget: np.ndarray

    def solve(self) -> Allocation:
        return allocate(*self)


def random_setting(seed: int, kind: str = "free", extreme: bool = False, problems: int = 5) -> Setting:
    """Problems whose deadlines and energies lie between too tight and no object."""
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(1, 9))
    fleet = extreme_fleet(seed, clients) if extreme else random_problem(rng, clients, 5).fleet
    units = ClientCurves.of(fleet, **KINDS[kind])
    shape = (problems, clients)
    selected = rng.random(shape) < 0.7
    selected[:, rng.integers(clients)] = True
    need = np.where(selected, units.keep_min * units.u_min, 0.0).max(axis=-1, keepdims=True)
    time = np.broadcast_to(need * rng.choice([0.9, 1.0, 1.2, 2.0, 10.0], (problems, 1)), shape)
    share = np.broadcast_to(1.0 / selected.sum(axis=-1, keepdims=True), shape)
    rounds = rng.integers(1, 9, shape).astype(float)
    free = allocate(units, time, share, rounds, selected, np.full(problems, 1e30))
    least, most = np.where(free.feasible, free.least_energy, 1.0), np.where(free.feasible, free.energy, 1.0)
    budget = least + (most - least) * rng.choice([1e-4, 0.1, 0.5, 0.99, 2.0], problems)
    return Setting(units, time, share, rounds, selected, np.where(rng.random(problems) < 0.1, 0.9 * least, budget))


def check_optimal(setting: Setting, answer: Allocation, tolerance: float = 1e-9, marginally: float = 1e-6) -> None:
    """Feasibility, dual signs, complementarity and stationarity of every feasible problem of a batch."""
    units, time, share, rounds, selected, budget = setting
    for b in np.flatnonzero(answer.feasible):
        own = np.flatnonzero(selected[b])
        curve, m = units.take(own), answer.keep[b, own]
        t, k, r = time[b, own], share[b, own], rounds[b, own]
        x, s = answer.x[b, own], answer.s[b, own]
        # primal: ranges, deadlines, energy by the client's own formulas
        assert (m >= curve.keep_min * (1 - 1e-12)).all()
        assert (m <= 1.0 + 1e-12).all()
        assert (x >= curve.x_min * (1 - 1e-12)).all()
        assert (s <= curve.s_max * (1 + 1e-12)).all()
        assert (m * (x + curve.nats / s) <= t * (1 + 1e-9)).all()
        joules = 0.5 * curve.cubic / x**2 + curve.noise * np.expm1(s) * curve.nats / s
        energy = float((r * m * joules).sum())
        assert energy == pytest.approx(answer.energy[b], rel=1e-9)
        assert energy <= budget[b] * (1 + 1e-9)
        assert (r * m * k).sum() == pytest.approx(answer.value[b], rel=1e-12)
        # dual signs, and complementarity: energy is worth something only where it is used up
        assert answer.worth[b] > 0.0
        assert (answer.time_value[b] >= 0.0).all()
        if np.isfinite(answer.worth[b]):
            assert energy == pytest.approx(budget[b], rel=tolerance)
        # stationarity: one more unit of model costs G = ε + π·u joules; it is worth ζ/k where m is inside its range
        u = np.maximum(t / m, curve.u_min)
        price = curve.price_of_time(u)
        point = curve.at(price)
        worth = answer.worth[b] * k
        marginal = point.energy + price * point.time
        fast = u <= curve.u_min * (1 + 1e-12)  # no faster: more of the model has no price
        low, full = m <= curve.keep_min * (1 + 1e-9), m >= 1 - 1e-9
        assert (low | (marginal <= worth * (1 + marginally))).all()
        assert (full | fast | (marginal >= worth * (1 - marginally))).all()


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
@settings(max_examples=120 if FULL else 40, deadline=None)
def test_optimality_conditions(kind, seed):
    setting = random_setting(seed, kind)
    check_optimal(setting, setting.solve())


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
@settings(max_examples=120 if FULL else 40, deadline=None)
def test_optimality_conditions_of_extreme_clients(kind, seed):
    setting = random_setting(seed, kind, extreme=True)
    check_optimal(setting, setting.solve(), marginally=1e-4)


@pytest.mark.parametrize("seed", range(200 if FULL else 12))
def test_agreement_with_clarabel(seed):
    """The best mean kept share of a random fixed selection within random budgets, to 1e-6."""
    rng = np.random.default_rng(1000 + seed)
    problem = random_problem(rng, int(rng.integers(1, 11)), 3, aggregation="sum")
    selected = rng.random(problem.size) < 0.6
    selected[rng.integers(problem.size)] = True
    cost, answer = compose_single(Task.of(problem, PAPER_SCHEMES["proposed"]), selected[None])
    energy_j, delay_s = problem.energy_j / 3 - problem.broadcast_j, problem.delay_s / 3
    oracle = solve_fixed_selection(problem, selected, energy_j, delay_s)
    assert bool(answer.feasible[0]) == oracle.feasible == bool(np.isfinite(cost[0]))
    if oracle.feasible:
        assert answer.value[0] == pytest.approx(oracle.kept, rel=1e-6)
        assert answer.keep[0, selected] == pytest.approx(oracle.keep, abs=1e-3)


@pytest.mark.parametrize("loud", [1.0, 1e4, 1e10])
@pytest.mark.parametrize("seed", range(5))
def test_all_energy_is_used_where_a_fixed_frequency_costs_almost_all(loud, seed):
    """With uploads almost free m hardly changes its price, and who keeps how much hangs on the price's last digit."""
    problem = random_problem(np.random.default_rng(seed), 5, 5)
    units = ClientCurves.of(replace(problem.fleet, uplink_gain=loud * problem.fleet.uplink_gain), free_frequency=False)
    shape = (1, 5)
    everyone = np.ones(shape, dtype=bool)
    time = np.full(shape, 1.1 * float((units.keep_min * units.u_min).max()))
    free = allocate(units, time, np.full(shape, 0.2), np.ones(shape), everyone, np.array([1e30]))
    budget = 0.5 * (free.least_energy + free.energy)
    setting = Setting(units, time, np.full(shape, 0.2), np.ones(shape), everyone, budget)
    check_optimal(setting, setting.solve(), tolerance=1e-11)


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_a_batch_is_its_problems_one_by_one(seed):
    setting = random_setting(seed, problems=7)
    together = setting.solve()
    for b in range(7):
        alone = Setting(setting.units, *(part[[b]] for part in setting[1:])).solve()
        assert alone.feasible[0] == together.feasible[b]
        if alone.feasible[0]:
            assert alone.value[0] == pytest.approx(together.value[b], rel=1e-12)
            assert alone.keep[0] == pytest.approx(together.keep[b], rel=1e-7)
            assert alone.worth[0] == pytest.approx(together.worth[b], rel=1e-9)


@given(seed=seeds, more=st.floats(1.0, 3.0))
@settings(max_examples=30, deadline=None)
def test_more_of_either_budget_never_hurts(seed, more):
    setting = random_setting(seed)
    before = setting.solve()
    energy, time = setting._replace(budget=setting.budget * more), setting._replace(time=setting.time * more)
    for after in (energy.solve(), time.solve()):
        assert (after.feasible | ~before.feasible).all()
        assert (after.value[before.feasible] >= before.value[before.feasible] * (1 - 1e-12)).all()


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_prices_are_the_slopes_of_the_value(seed):
    """1/ζ = ∂value/∂E, and Σ_i time_value·r_i = ∂value/∂t when all deadlines move together: one-sided differences."""
    setting = random_setting(seed)
    here = setting.solve()
    step = 1e-6

    def slope(change):
        more, less = change(1 + step).solve(), change(1 - step).solve()
        both = here.feasible & more.feasible & less.feasible
        right, left = (more.value - here.value) / step, (here.value - less.value) / step
        return both, np.minimum(left, right) - 1e-4 * np.abs(left), np.maximum(left, right) + 1e-4 * np.abs(left)

    both, low, high = slope(lambda f: setting._replace(budget=setting.budget * f))
    price = setting.budget / here.worth
    assert ((price >= low - 1e-7) & (price <= high + 1e-7))[both].all()
    both, low, high = slope(lambda f: setting._replace(time=setting.time * f))
    price = (here.time_value * setting.rounds * setting.time).sum(axis=-1)
    assert ((price >= low - 1e-7) & (price <= high + 1e-7))[both].all()


def pencil(energy_j: float, delay_s: float) -> Allocation:
    """The pencil's client 0 for one round: at 2 Hz and 3 W the model takes 2.5 s; ε = 12 + 3 J there."""
    problem: Problem = pencil_problem(1, 1)
    units = ClientCurves.of(problem.fleet).take(np.array([0]))
    ones = np.ones((1, 1))
    return allocate(units, delay_s * ones, ones, ones, ones.astype(bool), np.array([energy_j]))


def test_energy_no_object_by_hand():
    """2 s at full speed keep 2/2.5 = 0.8 of the model for 0.8·(1·3·2² + 3·1) = 12 J; a second more keeps 0.4 more."""
    rich = pencil(100.0, 2.0)
    assert rich.keep[0, 0] == pytest.approx(0.8)
    assert rich.energy[0] == pytest.approx(12.0)
    assert np.isinf(rich.worth[0])
    assert rich.time_value[0, 0] == pytest.approx(0.4)


def test_time_no_object_by_hand():
    """In 10⁹ s computing is free and a bit costs ln2·ν = ln2 J: 2 bits in all, so 1 J keeps 1/(2·ln2) of them."""
    poor = pencil(1.0, 1e9)
    assert poor.keep[0, 0] == pytest.approx(1.0 / (2.0 * np.log(2.0)), rel=1e-6)
    assert 1.0 / poor.worth[0] == pytest.approx(1.0 / (2.0 * np.log(2.0)), rel=1e-6)
    assert poor.time_value[0, 0] == pytest.approx(0.0, abs=1e-9)


def test_infeasible_by_hand():
    """Half the model takes 1.25 s at full speed, and ln2 J at no speed."""
    assert pencil(100.0, 1.25).feasible[0]
    assert not pencil(100.0, 1.249).feasible[0]
    assert np.isinf(pencil(100.0, 1.249).least_energy[0])
    assert pencil(0.6932, 1e9).feasible[0]
    assert not pencil(0.6931, 1e9).feasible[0]
    assert pencil(0.1, 1e9).least_energy[0] == pytest.approx(np.log(2.0), rel=1e-6)


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
@settings(max_examples=200 if FULL else 40)
def test_newton_and_search_find_the_same(kind, extreme, seed):
    """The quick way and the safe way, on the same problems."""
    task = resources._Batch.of(*random_setting(seed, kind, extreme))
    solved, quick = resources._newton(task)
    safe = resources._search(task)
    assert safe.feasible[solved].all()
    weight = task.weight * task.share * task.time
    value, best = ((weight / answer.point.time).sum(axis=-1) for answer in (quick, safe))
    assert value[solved] == pytest.approx(best[solved], rel=2e-9 if extreme else 1e-11)


@pytest.mark.parametrize("seed", [1011, 1601])  # the least and the most energy differ in the 16th digit
def test_a_client_that_costs_next_to_nothing_is_not_pruned_for_rounding(seed):
    task = resources._Batch.of(*random_setting(seed, "free", True))
    solved, quick = resources._newton(task)
    kept, safe = ((task.weight * task.time / answer.point.time).sum(axis=-1)
                  for answer in (quick, resources._search(task)))
    assert solved.any()
    assert safe[solved] == pytest.approx(kept[solved], rel=1e-6)


def test_newton_solves_most_ordinary_problems():
    tasks = [resources._Batch.of(*random_setting(seed)) for seed in range(40)]
    solvable = [task.in_time & (task.ends.least < task.budget) & (task.ends.most > task.budget) for task in tasks]
    solved = [resources._newton(task)[0] for task in tasks]
    assert np.concatenate(solvable).sum() > 50
    assert np.concatenate(solved).sum() > 0.8 * np.concatenate(solvable).sum()
