"""Record what ``fedgap calibrate`` measures for LeNet-5, and how long it takes, on the embedded digits and on MNIST.

    python benchmarks/calibration.py --data DATA [--out FILE]

DATA is the folder of MNIST's files. It uses one thread, and the command's default number of pilots.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.config import Experiment
from fedgap.running.calibrate import Quantity, calibrate


def spread(quantity: Quantity) -> dict[str, Any]:
    return {"taken": quantity.taken, "rule": quantity.rule, "least": min(quantity.values),
            "median": quantity.quantile(0.5), "most": max(quantity.values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "calibration.json")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name, own in (("embedded", []), ("mnist", [f"data.folder={options.data.resolve()}"])):
        began, processor = time.monotonic(), time.process_time()
        measured = calibrate(Experiment.load(name, [*own, "engine.threads=1"]))
        found[name] = {
            "seconds": round(time.monotonic() - began, 1), "processor_s": round(time.process_time() - processor, 1),
            "pilots": measured.pilots, "steps": measured.steps,
            "quantities": {q.key: spread(q) for q in measured.quantities},
            "sensitivities": {f"{ratio:g}": spread(q) for ratio, q in measured.sensitivities.items()},
            "moment_ratio": spread(measured.moment_ratio), "phi_median": float(np.median(measured.phi)),
        }
        print(name, found[name], flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
