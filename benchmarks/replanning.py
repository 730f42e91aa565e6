"""How long it takes to plan again before a round, from a warm start, on one core.

    python benchmarks/replanning.py [--clients 100 1000] [--rounds 12] [--out benchmarks/results/replanning.json]

The policy ``replan`` decides rounds of the city fleet in a fading world. The first round, which solves for prices from
nothing, is given by itself; the others are the warm ones. Processor seconds are measured, so that other programs on the
machine hardly count; set OMP_NUM_THREADS=1 for a single core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from fedgap import Scenario
from fedgap.files import write_json
from fedgap.planning.policies.policy import PolicyStart
from fedgap.planning.policies.replan import Replan
from fedgap.planning.policy_simulation import ChangingWorld
from fedgap.planning.problem import Problem
from fedgap.planning.single_selection import best_single_selection
from fedgap.planning.solve import scheme_of
from fedgap.planning.task import Task


def times(clients: int, rounds: int) -> dict[str, float]:
    """Processor milliseconds per decision."""
    scenario = Scenario.load("city", ["mode=practical", "learning.local_steps=8", f"fleet.count={clients}",
                                      "rounds=100", f"budget.energy_j={40 * clients}", "budget.delay_s=300",
                                      "world.fading.doppler_hz=0.3"])
    scheme = scheme_of("forecast")
    problem = Problem.of(scenario)
    plan = best_single_selection(Task.of(problem, scheme))
    assert plan is not None
    start = PolicyStart.of(scenario, plan, scheme)
    policy, world = Replan(start), ChangingWorld.of(start, scenario.trace())
    left, done, taken = (problem.energy_j, problem.delay_s), (), []
    for number in range(rounds):
        began = time.process_time()
        decision = policy.decide(world.view(number, left, done))
        taken.append(1e3 * (time.process_time() - began))
        if decision.segment is not None:
            present = world.present(number, left, first=not done)
            assert present is not None
            cost = present.cost(decision.segment)
            left, done = (left[0] - float(cost.energy_j), left[1] - float(cost.delay_s)), (*done, decision.segment)
    return {"first_ms": taken[0], "median_ms": statistics.median(taken[1:]), "most_ms": max(taken[1:])}


def main() -> None:
    """Measure all fleets and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "replanning.json")
    chosen = parser.parse_args()
    found = {str(clients): times(clients, chosen.rounds) for clients in chosen.clients}
    write_json(chosen.out, found)
    for clients, row in found.items():
        print(clients, {key: round(value, 1) for key, value in row.items()})


if __name__ == "__main__":
    main()
