"""Least clock, least power, idle power and cost curves: the structured solver against CVXPY and brute force."""

import os
from dataclasses import replace

import numpy as np
import pytest

from fedgap.planning import exact
from fedgap.planning.composition import Composition, Part
from fedgap.planning.fixed_composition import compose
from fedgap.planning.oracles.enumerate import all_selections
from fedgap.planning.problem import Problem
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from fedgap.system import CostCurve, download_delay, round_cost, upload_delay
from tests.oracle.limited_model import most_unpruned
from tests.oracle.scenarios import pencil_problem, random_problem

COUNT = 200 if os.environ.get("FEDGAP_FULL") == "1" else 16
WINDING = 22, 35
"""Problems whose battery weights are only found by steps that also go to the centre of what is possible."""
PROPOSED = SCHEMES.load("proposed")
CURVE = CostCurve(np.array([0.0, 0.2, 0.5, 0.7]), np.array([1.0, 0.7, 0.45, 0.35]))


def limited_problem(seed: int, clients: int, rounds: int = 5) -> Problem:
    """A random problem in which some clients have limits, near enough to what they would choose that most bind."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, clients, rounds)
    fleet = problem.fleet

    def some(values: np.ndarray) -> np.ndarray:
        return np.where(rng.random(clients) < 0.6, values, 0.0)

    fleet = replace(
        fleet,
        min_frequency_hz=some(fleet.max_frequency_hz * rng.uniform(0.1, 1.0, clients)),
        min_power_w=some(fleet.max_power_w * 10.0 ** rng.uniform(-4.0, 0.0, clients)),
        idle_power_w=some(rng.uniform(0.0, 1.5, clients)) if seed % 3 else np.zeros(clients),
        cost_curve=CURVE if seed % 2 else None,
    )
    longer = rng.uniform(1.0, 3.0)
    return replace(problem, fleet=fleet, delay_s=longer * problem.delay_s)


def single(problem: Problem, selected: np.ndarray):
    return compose(Task.of(problem, PROPOSED), Composition((Part(0, selected, problem.rounds),)))


@pytest.mark.parametrize("seed", range(COUNT))
def test_fixed_selection_agrees_with_cvxpy(seed):
    """The value to 1e-6, the same verdict on feasibility, and every constraint kept by the literal formulas."""
    rng = np.random.default_rng(1000 + seed)
    problem = limited_problem(seed, int(rng.integers(1, 7)))
    selected = rng.random(problem.size) < 0.7
    selected[rng.integers(problem.size)] = True
    energy_j, delay_s = problem.energy_j / problem.rounds - problem.broadcast_j, problem.delay_s / problem.rounds
    oracle = most_unpruned(problem.fleet.take(np.flatnonzero(selected)), energy_j, delay_s)
    ours = single(problem, selected)
    assert (ours is None) == (oracle is None)
    if ours is not None:
        (segment,) = ours.segments
        assert problem.violation(ours.segments) <= 1e-9
        assert 1.0 - segment.pruning_ratio[selected].mean() == pytest.approx(oracle, rel=1e-6)
        assert ours.cost == pytest.approx(
            float(problem.selection_cost(selected)) + problem.pruning_weight * (1.0 - oracle), rel=1e-6)


@pytest.mark.parametrize("seed", sorted({*range(COUNT // 4), *WINDING}))
def test_batteries_with_a_fixed_selection_agree_with_cvxpy(seed):
    """Equal rounds, everybody selected: a client has B_n/R joules in each. The bound is below, the plan keeps all."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(2, 5)), 4)
    problem = replace(problem, delay_s=2.0 * problem.delay_s)
    task = Task.of(problem, SCHEMES.load("all_clients"))
    free = exact.solve(task)
    assert free.segments, "each of these seeds has a plan without batteries"
    used = problem.client_energy(free.segments)
    battery_j = np.where(rng.random(problem.size) < 0.6, used * rng.uniform(0.6, 1.1, problem.size), np.inf)
    problem = replace(problem, fleet=replace(problem.fleet, battery_j=battery_j))
    ours = exact.solve(replace(task, problem=problem))
    oracle = most_unpruned(problem.fleet, problem.energy_j / 4 - problem.broadcast_j, problem.delay_s / 4, rounds=4)
    assert bool(ours.segments) == (oracle is not None)
    if oracle is not None:
        everybody = np.ones(problem.size, dtype=bool)
        value = float(problem.selection_cost(everybody)) + problem.pruning_weight * (1.0 - oracle)
        assert problem.violation(ours.segments) <= 1e-9
        assert ours.cost == pytest.approx(value, rel=1e-6)
        assert ours.lower_bound <= value * (1.0 + 1e-6)
        assert ours.lower_bound == pytest.approx(value, rel=1e-6)


def brute_force_unpruned(problem: Problem, energy_j: float, delay_s: float) -> float:
    """The largest 1 − λ of a single client, by the literal formulas on grids of clock and power.

    Bisection on λ: at each, every clock of a fine grid leaves some time for the upload; the least power that fits, or
    p^min, costs least. The round is as long as the client is busy, for idling longer only costs.
    """
    fleet = problem.fleet
    clocks = np.linspace(max(float(fleet.min_frequency_hz[0]), 1e-3 * float(fleet.max_frequency_hz[0])),
                         float(fleet.max_frequency_hz[0]), 1501)
    powers = np.geomspace(max(float(fleet.min_power_w[0]), 1e-9), float(fleet.max_power_w[0]), 1501)
    whole = np.zeros(1)
    rate = np.array([float(upload_delay(fleet, whole, np.array([p]))[0]) for p in powers])  # s of a whole upload

    def fits(ratio: float) -> bool:
        share = float(fleet.cost_share(np.array([ratio]))[0])
        compute_s = share * float(fleet.cycles[0]) / clocks
        compute_j = share * float(fleet.pue[0] * fleet.capacitance[0] * fleet.cycles[0]) * clocks**2
        upload_s, upload_j = share * rate, share * rate * powers
        seconds = float(download_delay(fleet)[0]) + compute_s[:, None] + upload_s
        joules = compute_j[:, None] + upload_j + float(fleet.idle_power_w[0]) * seconds
        return bool((joules[seconds <= delay_s] <= energy_j).any())

    low, high = 0.0, float(fleet.max_ratio[0])
    if not fits(high):
        return np.nan
    for _ in range(25):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return 1.0 - high


@pytest.mark.parametrize("seed", range(COUNT // 8))
def test_a_single_client_agrees_with_brute_force(seed):
    """On a grid of two million points the best is at most three thousandths below the optimum, and never above it."""
    problem = limited_problem(seed, 1)
    energy_j, delay_s = problem.energy_j / problem.rounds - problem.broadcast_j, problem.delay_s / problem.rounds
    brute, ours = brute_force_unpruned(problem, energy_j, delay_s), single(problem, np.array([True]))
    if ours is None:
        assert np.isnan(brute)
    else:
        kept = 1.0 - float(ours.segments[0].pruning_ratio[0])
        assert brute <= kept * (1.0 + 1e-6)
        assert brute >= kept - 3e-3


@pytest.mark.parametrize("seed", [0, 2])
def test_limits_that_do_not_bind_change_nothing(seed):
    """Bit for bit: plan, bound and prices."""
    problem = random_problem(np.random.default_rng(seed), 3, 4, dense_first=seed == 2)
    plain = exact.solve(Task.of(problem, PROPOSED))
    used = problem.client_energy(plain.segments)
    slowest, quietest = (np.min([np.where(s.selected, getattr(s, key), np.inf) for s in plain.segments], axis=0)
                         for key in ("frequency_hz", "power_w"))
    least = {key: np.where(np.isfinite(values), 0.5 * values, 0.0)
             for key, values in (("min_frequency_hz", slowest), ("min_power_w", quietest))}
    fleet = replace(problem.fleet, **least, battery_j=np.where(used > 0.0, 2.0 * used, 1.0))
    same = exact.solve(Task.of(replace(problem, fleet=fleet), PROPOSED))
    assert (same.cost, same.lower_bound, same.energy_price, same.delay_price) == (
        plain.cost, plain.lower_bound, plain.energy_price, plain.delay_price)
    for one, other in zip(plain.segments, same.segments, strict=True):
        for key in ("selected", "pruning_ratio", "power_w", "frequency_hz"):
            assert (getattr(one, key) == getattr(other, key)).all()


@pytest.mark.parametrize("seed", range(COUNT // 16))
def test_plans_with_limits_are_certified(seed):
    """The bound is below the plan and below the best single selection by CVXPY, and the plan keeps every constraint."""
    problem = limited_problem(seed, 3, rounds=2)
    answer = exact.solve(Task.of(problem, PROPOSED))
    best = np.inf
    for selected in all_selections(3):
        kept = most_unpruned(problem.fleet.take(np.flatnonzero(selected)),
                             problem.energy_j / 2 - problem.broadcast_j, problem.delay_s / 2)
        if kept is not None:
            best = min(best, float(problem.selection_cost(selected)) + problem.pruning_weight * (1.0 - kept))
    assert answer.segments
    assert problem.violation(answer.segments) <= 1e-9
    assert answer.lower_bound <= best * (1.0 + 1e-6)
    assert answer.cost <= best * (1.0 + 1e-6)
    assert answer.cost - answer.lower_bound <= 1e-3 * answer.cost


def test_idle_power_by_hand():
    """The pencil's client 0 at full speed: 1.5 s + 1 s + 2 s of download, 12 J + 3 J; idling at 2 W takes 9 J more."""
    problem = pencil_problem(100.0, 9.0)
    fleet = replace(problem.fleet, idle_power_w=np.array([2.0, 7.0]))
    cost = round_cost(fleet, np.array([True, False]), np.zeros(2), fleet.max_power_w, fleet.max_frequency_hz)
    assert cost.idle_j == pytest.approx([9.0, 0.0])
    assert float(cost.energy_j) == pytest.approx(12.0 + 3.0 + 9.0 + 2.0)  # with the broadcast's 2 J


def test_idle_power_shortens_rounds_that_have_time_to_spare():
    problem = pencil_problem(1e3, 1e3)
    idle = replace(problem, fleet=replace(problem.fleet, idle_power_w=np.array([5.0, 5.0])))
    plain, hungry = (exact.solve(Task.of(p, PROPOSED)).segments for p in (problem, idle))
    assert idle.delay(hungry) < 0.1 * problem.delay(plain)
    assert idle.energy(hungry) < idle.energy(plain)
