"""Train committed runs once more on this machine's CPU: unchanged, and with the previous round's weights in the
importance.

    python -m tools.repeats --data DATA            writes experiments/repeats.json; called again, it resumes

The runs are those of two schemes at the nominal MNIST budgets (Fig. 5), repaired. Repeated without change, they show
how much a single run depends on the machine: another machine adds floating-point numbers in another order, a weight
near the pruning limit is treated differently, and the trainings diverge; the mean over seeds should not. With the
previous round's weights, as printed in the paper, they show the effect of the repair ``current`` weights alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgap.evidence.cases import Planned
from fedgap.evidence.definition import load_figure
from fedgap.evidence.reproduce import plan_panels, write
from fedgap.evidence.training import train
from fedgap.evidence.workshop import Workshop
from tools import EXPERIMENTS

SCHEMES = ("proposed", "all_clients")
PATH = EXPERIMENTS / "repeats.json"
VARIANTS = ("again", "previous_weights")


def main(arguments: Sequence[str]) -> int:
    """Train what ``experiments/repeats.json`` does not have yet; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.repeats", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of MNIST's files")
    given = parser.parse_args(arguments)
    shop = Workshop(EXPERIMENTS, "paper", given.data, workers=1)
    panel = replace(load_figure("fig5", EXPERIMENTS).panels["paper"][0], modes=("repaired",), schemes=SCHEMES)
    rows: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))["rows"] if PATH.is_file() else []
    present = {(row["variant"], row["run"]) for row in rows}
    planned = [run for run in plan_panels([panel], shop).values()
               if isinstance(run, Planned) and run.job is not None and run.key in shop.store]
    for variant in VARIANTS:
        for run in planned:
            if (variant, run.key) in present or run.job is None:
                continue
            job = replace(run.job, device="cpu", threads=1)
            if variant == "previous_weights":
                job = replace(job, importance=job.importance | {"current_weights": False})
            (record,) = train({run.key: job}, shop.dataset(panel.experiment))
            first = shop.store[run.key]
            present.add((variant, run.key))
            rows.append({"variant": variant, "run": run.key, "scheme": run.case.scheme, "seed": run.case.seed,
                         "machines": [first["machine"], record["machine"]],
                         "accuracy": [first["test_accuracy"][-1], record["test_accuracy"][-1]]})
            write({"title": "Runs of Fig. 5 on MNIST, repaired, trained once more", "rows": rows}, PATH)
            print(rows[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
