"""How long whole plans take, and how good they are, from 10 to 10,000 clients.

    OMP_NUM_THREADS=1 python benchmarks/plans.py [--sizes 10 100 1000] [--out benchmarks/results/plans.json]

The paper's presets are planned by both solvers in turn, and the median of five times is taken. Fleets of growing size
have the paper's MNIST column and an energy budget in proportion to the clients; they are planned with `sum` and `mean`.
Writes the figures as JSON, and their growth as a picture.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedgap.config import Scenario
from fedgap.planning import plan

HERE = Path(__file__).parent


def timed(scenario: Scenario, solver: str = "exact") -> dict[str, Any]:
    started = time.perf_counter()
    answer = plan(scenario, solver=solver)
    selected = [int(s.selected.sum()) for s in answer.segments]
    return {
        "seconds": time.perf_counter() - started,
        "status": answer.status,
        "theta": answer.theta if np.isfinite(answer.theta) else None,
        "gap": answer.gap,
        "bound_scope": answer.bound_scope,
        "selected": selected,
        "rounds": [s.rounds for s in answer.segments],
    }


def presets() -> list[dict[str, Any]]:
    rows = []
    for name in ("paper-mnist", "paper-cifar10"):
        for aggregation in ("mixture", "mean", "sum"):
            scenario = Scenario.load(name, [f"bound.aggregation={aggregation}"])
            times = [{solver: timed(scenario, solver) for solver in ("exact", "alternating")} for _ in range(6)][1:]
            for solver, answer in times[0].items():
                answer["seconds"] = statistics.median(each[solver]["seconds"] for each in times)
                rows.append({"preset": name, "aggregation": aggregation, "solver": solver, **answer})
                print(_line(rows[-1]), flush=True)
    return rows


def growth(sizes: list[int]) -> list[dict[str, Any]]:
    rows = []
    for size in sizes:
        for aggregation in ("mean", "sum"):
            changes = [f"fleet.count={size}", f"bound.aggregation={aggregation}", f"budget.energy_j={25.0 * size}"]
            row = {"clients": size, "aggregation": aggregation, **timed(Scenario.load("paper-mnist", changes))}
            rows.append(row)
            print(_line(row), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    gap = "none" if row["gap"] is None else f"{row['gap']:.1e}"
    what = row.get("preset") or f"{row['clients']} clients"
    solver = row.get("solver", "exact")
    return f"{what:16} {row['aggregation']:8} {solver:12} {row['seconds']:8.2f} s  gap {gap:8} {row['status']}"


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    for aggregation, marker, colour in (("mean", "o", "#0072B2"), ("sum", "s", "#D55E00")):
        own = [row for row in rows if row["aggregation"] == aggregation]
        seconds = [row["seconds"] for row in own]
        axis.loglog([row["clients"] for row in own], seconds, marker=marker, color=colour, label=aggregation)
    axis.set_xlabel("clients N")
    axis.set_ylabel("time to a certified plan (s)")
    axis.set_title("Planning time, one thread", fontsize=10)
    axis.grid(True, which="both", alpha=0.25)
    axis.legend(title="φ aggregation", frameon=False)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 100, 300, 1000, 3000, 10000])
    parser.add_argument("--part", choices=["presets", "growth"], help="measure this alone, and keep the other")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "plans.json")
    arguments = parser.parse_args()
    kept = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.part else {}
    result = {
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
        "presets": kept["presets"] if arguments.part == "growth" else presets(),
        "growth": kept["growth"] if arguments.part == "presets" else growth(arguments.sizes),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    picture(result["growth"], arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
