"""What Laplace noise on the clients' label histograms does to planning.

    python benchmarks/histogram_noise.py [--draws 20] [--concentration 5] [--out FILE]

A plan is made from histograms with noise and then scored with the exact ones. The θ that such a plan really has is
compared with that of the certified optimum without noise.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from fedgap.config import Experiment
from fedgap.deploy.privacy import noised_counts
from fedgap.planning import plan
from fedgap.planning.problem import Problem
from fedgap.running.prepare import divide

EPSILONS = (0.03, 0.1, 0.3, 1.0, 10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--concentration", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "histogram_noise.json")
    options = parser.parse_args()
    experiment = Experiment.load("embedded", [f"partition.concentration={options.concentration}"])
    dataset, parts, scenario = divide(experiment)
    problem, best = Problem.of(scenario), plan(scenario)
    members = {tuple(s.selected.tolist()) for s in best.segments}
    alpha = best.terms["alpha"]
    print(f"without noise: θ = {best.theta:.5g}, of which α = {alpha:.5g}, {len(best.segments)} segments")
    rows = []
    for epsilon in EPSILONS:
        worse, same = [], 0
        for draw in range(options.draws):
            counts = np.array([noised_counts(row, epsilon, bytes([draw, n])) for n, row in
                               enumerate(parts.label_counts)])
            made = plan(experiment.planning_scenario(counts, dataset.label_counts()[1], parts.target_counts))
            worse.append(problem.objective(made.segments).theta / best.theta - 1)
            same += {tuple(s.selected.tolist()) for s in made.segments} == members
        rows.append({"epsilon": epsilon, "mean": float(np.mean(worse)), "most": max(worse), "same": same})
        print(rows[-1], flush=True)
    found = {"concentration": options.concentration, "draws": options.draws, "theta": best.theta, "rows": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
