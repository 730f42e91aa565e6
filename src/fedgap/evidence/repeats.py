"""How much a single run depends on where it is trained: committed runs trained once more, on this machine's CPU.

    python -m fedgap.evidence.repeats --data DATA            writes experiments/repeats.json

The runs are those of two schemes at the nominal MNIST budgets (Fig. 5), repaired. Another machine takes floating-point
sums in another order, a weight near the cut changes sides, and the trainings part; the mean over seeds should not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgap.evidence.cases import Planned
from fedgap.evidence.definition import FOLDER, load_figure
from fedgap.evidence.reproduce import Workshop, plan_panels, write
from fedgap.evidence.training import Record, train

SCHEMES = ("proposed", "all_clients")
PATH = FOLDER / "repeats.json"


def pair(first: Record, second: Record) -> dict[str, Any]:
    """A run's two final accuracies, and where each was trained."""
    return {"run": first["key"], "seed": first["seed"], "machines": [first["machine"], second["machine"]],
            "accuracy": [first["test_accuracy"][-1], second["test_accuracy"][-1]]}


def main(arguments: Sequence[str]) -> int:
    """Trains the runs again and writes what both trainings reached; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedgap.evidence.repeats", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of MNIST's files")
    given = parser.parse_args(arguments)
    shop = Workshop(FOLDER, "paper", given.data, workers=1)
    panel = replace(load_figure("fig5").panels["paper"][0], modes=("repaired",), schemes=SCHEMES)
    jobs = {each.key: replace(each.job, device="cpu", threads=1) for each in plan_panels([panel], shop).values()
            if isinstance(each, Planned) and each.job is not None and each.key in shop.store}
    rows = []
    for again in train(jobs, shop.dataset(panel.experiment)):
        rows.append(pair(shop.store[again["key"]], again))
        write({"rows": rows}, PATH)
        print(rows[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
