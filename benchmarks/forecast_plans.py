"""Plans by the forecast: gap and seconds for fleets of several sizes, and for rounds and local steps given or chosen.

    python benchmarks/forecast_plans.py [FILE.json]

Times are processor seconds of one thread.
"""

import json
import sys
import time
from pathlib import Path

from fedgap import Scenario, plan
from fedgap.planning.forecast_plan import solve_forecast
from fedgap.planning.problem import Problem
from fedgap.planning.settings import SolverSettings
from fedgap.planning.solve import scheme_of
from fedgap.planning.task import Task

SIZES = (10, 40, 100, 1000)
JOULES_PER_CLIENT = 0.3


def measured(clients: int) -> dict[str, float]:
    """Plan one fleet twice, once with rounds and local steps chosen by the planner and once with both given; returns
    seconds and gaps."""
    scenario = Scenario.load("city", [
        f"fleet.count={clients}", "model.gradient_bits=1421632", "model.flops_per_sample=1.8e6", "rounds=400",
        f"budget.energy_j={JOULES_PER_CLIENT * clients}", "budget.delay_s=15"])
    started = time.process_time()
    answer = plan(scenario, scheme="forecast")
    everything = time.process_time() - started
    task = Task.of(Problem.of(scenario).with_learner(answer.local_steps, 32), scheme_of("forecast"))
    started = time.process_time()
    solution = solve_forecast(task.with_rounds(answer.rounds), SolverSettings())
    assert solution is not None
    assert answer.gap is not None
    return {"clients": clients, "rounds": answer.rounds, "local_steps": answer.local_steps,
            "all_chosen_s": everything, "all_chosen_gap": answer.gap,
            "given_s": time.process_time() - started, "given_gap": solution.gap}


def main() -> None:
    """Print one line per fleet, and write all of them if a file is given."""
    rows = []
    for clients in SIZES:
        rows.append(measured(clients))
        print(", ".join(f"{key} {value:.4g}" for key, value in rows[-1].items()), flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
