"""How far each policy is from perfect foresight, over worlds, fleets and seeds.

    python benchmarks/regret.py [--clients 10 40] [--seeds 10] [--out benchmarks/results/regret.json]

Three worlds: channels that fade, clients that come and go, and both with a target whose labels drift. Nothing is
trained: regret is the forecast error above the certified clairvoyant bound, as a share of the bound. Seeds that the
file already has are kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedgap import Plan, Scenario, plan, regret
from fedgap.files import write_json
from fedgap.statistics import interval

FADING = ["world.fading.doppler_hz=0.3"]
AVAILABILITY = ["world.availability.mean_on_s=20", "world.availability.mean_off_s=10"]
WORLDS = {"fading": FADING, "availability": AVAILABILITY,
          "both with drift": [*FADING, *AVAILABILITY, "world.drift.kind=gradual"]}
BUDGETS = {10: ("300", "80"), 40: ("600", "80")}
"""The budgets in joules and seconds, by number of clients."""


def scenario_of(world: str, clients: int) -> Scenario:
    """One of the worlds with so many clients of the preset city."""
    energy, delay = BUDGETS[clients]
    return Scenario.load("city", ["rounds=60", f"budget.energy_j={energy}", f"budget.delay_s={delay}", "mode=practical",
                                  "learning.local_steps=8", f"fleet.count={clients}", *WORLDS[world]])


def main() -> None:
    """Measure what is missing, and write everything after each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "regret.json")
    chosen = parser.parse_args()
    found = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    plans: dict[str, Plan] = {}
    for clients in chosen.clients:
        for seed in range(chosen.seeds):
            for world in WORLDS:
                case = found.setdefault(f"{world}, {clients} clients", {"seeds": {}})
                if str(seed) not in case["seeds"]:
                    scenario = scenario_of(world, clients)
                    if scenario.hash() not in plans:
                        plans[scenario.hash()] = plan(scenario, scheme="forecast")
                    answer = regret(scenario, seed=seed, known_plan=plans[scenario.hash()])
                    case["seeds"][str(seed)] = answer.to_dict()
                    by_policy = {name: [row["policies"][name]["regret"] for row in case["seeds"].values()]
                                 for name in answer.reached}
                    case["mean regret"] = {name: sum(values) / len(values) for name, values in by_policy.items()}
                    ends = {name: interval(values) for name, values in by_policy.items() if len(values) > 1}
                    case["interval"] = {name: [mean.low, mean.high] for name, mean in ends.items()}
                    write_json(chosen.out, found)
                    print(world, clients, seed, case["mean regret"], flush=True)


if __name__ == "__main__":
    main()
