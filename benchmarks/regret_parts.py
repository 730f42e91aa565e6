"""Where the regret of the policy ``replan`` comes from, with ten clients.

    python -m benchmarks.regret_parts [--seeds 10] [--out benchmarks/results/regret_parts.json]

For each world and seed of :mod:`benchmarks.regret` five numbers, each a forecast error above the certified bound as a
share of the bound:

- ``plan``: the best plan found that knows the whole world: whole rounds by integer programming over the rounds that the
  bound knows. Its distance from the bound is what the bound may be too low by.
- ``true rows``: ``replan`` that expects the true rows of the world, though not in their order.
- ``replan``: which expects rows with the distribution that the scenario declares, and the rows it has seen.
- ``seen rows``: ``replan`` that expects only the rows it has seen.
- ``never idle``: ``replan`` that never leaves a row idle to wait for a better one.

In the world whose labels drift, ``replan by rows`` and ``bound by rows`` are the errors of ``replan`` and the bound
where each round is judged by the target of its own row, not by the last one: foresight then ends before the drift.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.regret import scenario_of
from fedgap import plan
from fedgap.files import write_json
from fedgap.planning.clairvoyant import RowBounds
from fedgap.planning.objectives.forecast_tangent import forecast
from fedgap.planning.policies import replan as replan_module
from fedgap.planning.policies.policy import PolicyStart
from fedgap.planning.policies.replan import Replan
from fedgap.planning.policies.row_program import RowProgram, feature_weights
from fedgap.planning.policy_simulation import ChangingWorld, simulate_policy
from fedgap.planning.solve import scheme_of
from fedgap.system.trace import Trace

CLIENTS = 10
WORLDS_LOOKED_AT = ("availability", "both with drift")
FEWER = (0, 2)
"""How many rounds fewer than at the least bound are tried for the plan."""
REACHED = 1.25
"""Rows that are expected to be passed, for each round of the plan."""
SOLVER = {"mip_rel_gap": 3e-4, "time_limit": 4.0}


def known_rows(bounds: RowBounds) -> list[np.ndarray]:
    """The rounds that the bound knows of each row, (5, S)."""
    return [bounds.known.known[row] for row in bounds.first]


def best_plan(world: ChangingWorld, bounds: RowBounds, rounds: int) -> float:
    """The error of the best plan of so many whole rounds, by integer programming; infinite where none is found."""
    problem, step = world.start.problem, world.start.step_s
    rows = known_rows(bounds)[: 2 * rounds]
    every, count = np.hstack(rows), len(rows)
    width, further = every.shape[1], count - rounds
    fixed = forecast(problem.with_rounds(rounds)).fixed
    weights = feature_weights(bounds.rows[min(bounds.rows)].objective(rounds, bounds.slowed))
    reached = np.hstack([np.zeros((count, width)), np.eye(count, further, k=-rounds)])
    used = np.hstack([np.repeat(np.eye(count), [row.shape[1] for row in rows], axis=1), np.zeros((count, further))])
    one = (np.arange(count) < rounds).astype(np.float64)
    total = np.hstack([np.ones(width), np.zeros(further)])
    spent = np.vstack([np.hstack([every[3], np.zeros(further)]), np.hstack([every[4], np.full(further, step)])])
    falling = np.hstack([np.zeros((further, width)), np.eye(further) - np.eye(further, k=-1)])
    answer = milp(
        np.hstack([weights @ every[:3], np.zeros(further)]), integrality=np.ones(width + further),
        bounds=Bounds(0.0, 1.0), options=SOLVER,
        constraints=[LinearConstraint(used - reached, -np.inf, one), LinearConstraint(total, rounds, rounds),
                     LinearConstraint(spent, -np.inf, (problem.energy_j, problem.delay_s)),
                     LinearConstraint(falling, -np.inf, np.eye(1, further)[0])])
    if answer.x is None:
        return float("inf")
    few, divergence, pruning = every[:3] @ np.round(answer.x[:width]) / rounds
    return fixed.error(few, pruning, divergence)


def parts(world: ChangingWorld) -> dict[str, float]:
    """The numbers of one world."""
    start = world.start
    bounds = RowBounds(world.for_last_target)
    bound = bounds.least()

    def reached(rows: Callable[..., Trace | None] | None = None) -> float:
        declared = replan_module.typical_rows
        replan_module.typical_rows = rows or declared
        found = bound.regret(simulate_policy(world, Replan(start)))
        replan_module.typical_rows = declared
        return found

    found = {"plan": min(bound.regret(best_plan(world, bounds, bound.rounds - less)) for less in FEWER),
             "true rows": reached(lambda *declared: world.trace.first(int(REACHED * start.plan.rounds))),
             "replan": reached(), "seen rows": reached(lambda *declared: None)}
    waits, RowProgram.worth_waiting = RowProgram.worth_waiting, lambda *row: False  # type: ignore[method-assign]
    found["never idle"] = reached()
    RowProgram.worth_waiting = waits  # type: ignore[method-assign]
    if world.labels_at is not None:
        found["bound by rows"] = RowBounds(world).least().least_error
        done = simulate_policy(world, Replan(start))
        found["replan by rows"] = error_by_rows(world, done.rows, done.segments)
    return found


def error_by_rows(world: ChangingWorld, rows: tuple[int, ...], segments: tuple) -> float:
    """The forecast error of these rounds, each judged by the target of its own row."""
    problem = world.start.problem
    present = [world.present(number, (problem.energy_j, problem.delay_s), first=False) for number in rows]
    means = np.mean([(1.0 / segment.selected.sum(), row.divergence(segment.selected, len(rows)),
                      segment.pruning_ratio[segment.selected].mean())
                     for row, segment in zip(present, segments, strict=True)], axis=0)
    return forecast(problem.with_rounds(len(rows))).fixed.error(means[0], means[2], means[1])


def main() -> None:
    """Measure everything, and write after each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "regret_parts.json")
    chosen = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {world: {} for world in WORLDS_LOOKED_AT}
    scheme = scheme_of("forecast")
    plans = {world: plan(scenario_of(world, CLIENTS), scheme=scheme) for world in WORLDS_LOOKED_AT}
    for seed in range(chosen.seeds):
        for world in WORLDS_LOOKED_AT:
            scenario = scenario_of(world, CLIENTS)
            start = PolicyStart.of(scenario, plans[world], scheme, seed)
            found[world][str(seed)] = parts(ChangingWorld.of(start, scenario.trace(seed)))
            print(world, seed, found[world][str(seed)], flush=True)
            write_json(chosen.out, {name: {"seeds": seeds, "mean": means(seeds)} for name, seeds in found.items()})


def means(seeds: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean of each number over the seeds."""
    first = next(iter(seeds.values()), {})
    return {key: float(np.mean([seed[key] for seed in seeds.values()])) for key in first}


if __name__ == "__main__":
    main()
