"""How far the labels that clients draw are from the target's, before and after balancing or matching them.

    PYTHONPATH=src python benchmarks/label_divergence.py --data DATA [--out benchmarks/results/label_divergence.json]

MNIST is divided among ten clients as in the paper, with ten seeds. The measure is the KL divergence, in nats, of the
mean of the clients' label distributions from that of the test set, if clients draw from their data as they are,
balanced, or matched to the target over 150 rounds of 16 steps of 32 samples.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.learning.data import load
from fedgap.learning.partition import partition
from fedgap.running.label_probabilities import label_sampling
from fedgap.statistics import interval
from fedgap.theory.generalization import smoothed

CLIENTS, SEEDS, ROUNDS, SAMPLES = 10, 10, 150, 16 * 32
CONCENTRATIONS = (0.1, 0.3, 1.0, 5.0)


def divergences(labels: np.ndarray, target_labels: np.ndarray, concentration: float, seed: int) -> dict[str, float]:
    """The divergence of one partition, by the way in which its clients draw."""
    parts = partition(labels, target_labels, CLIENTS, 10, seed, kind="dirichlet", concentration=concentration)
    everybody, rounds = np.ones((1, CLIENTS), dtype=np.bool_), np.zeros(ROUNDS, dtype=np.int64)
    found: dict[str, float] = {}
    for batches in ("balanced", "target"):
        sampling = label_sampling(batches, everybody, rounds, parts.label_counts, smoothed(np.bincount(target_labels)),
                                  samples_per_round=np.full(CLIENTS, float(SAMPLES)), max_repeat=10.0)
        found["as_is"] = sampling.summary["label_divergence"]
        found[batches] = sampling.summary["drawn_label_divergence"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of MNIST's files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "label_divergence.json")
    arguments = parser.parse_args()
    dataset = load("mnist", folder=str(arguments.data))
    rows: list[dict[str, Any]] = []
    for concentration in CONCENTRATIONS:
        seeds = [divergences(dataset.train_y.numpy(), dataset.test_y.numpy(), concentration, seed)
                 for seed in range(SEEDS)]
        for batches in ("as_is", "balanced", "target"):
            value = interval([one[batches] for one in seeds])
            rows.append({"sigma": concentration, "batches": batches, "mean": value.mean, "half": value.half})
            print(f"σ = {concentration:g}  {batches:9s} {value.mean:.5f} ± {value.half:.5f}")
    arguments.out.write_text(json.dumps({"clients": CLIENTS, "seeds": SEEDS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
