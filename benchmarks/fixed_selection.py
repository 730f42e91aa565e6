"""Fixed selection: the structured solver against CVXPY + Clarabel on the same convex problem, on one thread.

    python benchmarks/fixed_selection.py [--sizes 10 100 1000 10000] [--out benchmarks/results/fixed_selection.json]

Both start from the same fleet and end with m, f and p. The comparator is the DPP-parametrised model from start to end.
Two further times are given for it: the compiled model solved again for other budgets (which a search over selections
cannot use, because each selection is a new model), and Clarabel's own time. For our solver, the time of one of a
hundred problems solved in one call is given as well. The objectives must agree to 1e-6, or the benchmark fails.
"""

# ruff: noqa: E402
import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[name] = "1"  # before numpy is imported

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import clarabel
import cvxpy
import numpy as np

from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.resources import Allocation, allocate
from fedgap.system import Fleet

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.oracle.convex_model import FixedSelectionModel

RESULT = Path(__file__).parent / "results" / "fixed_selection.json"
BATCH = 100


def fleet_of(clients: int, seed: int = 0) -> Fleet:
    """A fleet of clients from the paper's CIFAR-10 column, with Rayleigh fading and processors that differ by a factor
    of 4."""
    rng = np.random.default_rng(seed)

    def spread(middle: float) -> np.ndarray:
        return middle * 2.0 ** rng.uniform(-1.0, 1.0, clients)

    def same(value: float) -> np.ndarray:
        return np.full(clients, value)

    gain = 1e-5 * np.maximum(rng.exponential(1.0, clients), 1e-3)
    return Fleet(
        uplink_gain=gain,
        downlink_gain=gain,
        bandwidth_hz=same(2e6),
        max_power_w=same(0.5),
        max_frequency_hz=spread(2e9),
        flops_per_cycle=same(8.0),
        pue=same(1.0),
        capacitance=spread(1e-28),
        gradient_bits=same(21.07e6),
        flops_per_sample=same(0.59e9),
        batch_size=same(32.0),
        max_ratio=same(0.7),
        downlink_noise_psd_w_hz=same(3.98e-21),
        server_power_w=np.array(0.5),
        server_bandwidth_hz=np.array(2e6 * clients),
        uplink_noise_psd_w_hz=np.array(3.98e-21),
    )


def structured(
    fleet: Fleet, energy_j: float, delay_s: float, batch: int = 1
) -> tuple[Allocation, np.ndarray, np.ndarray]:
    """Solve with our solver, from the fleet to m, f and p. In a batch, as the search over selections calls it, the
    energy budgets differ."""
    units = ClientCurves.of(fleet)
    shape = (batch, fleet.size)
    share, ones = np.full(shape, 1.0 / fleet.size), np.ones(shape)
    time_left = np.broadcast_to(delay_s - units.overhead, shape)
    answer = allocate(units, time_left, share, ones, ones > 0.0, energy_j * np.linspace(1.0, 1.02, batch))
    return answer, units.frequency(answer.x), units.power(answer.s)


def budgets_of(fleet: Fleet) -> list[tuple[float, float]]:
    """Pairs of budgets (J, s) per round for which both bind: between what maximum pruning needs and what no pruning
    would use."""
    units = ClientCurves.of(fleet)
    floor = float((units.overhead + units.keep_min * units.u_min).max())
    budgets = []
    for stretch, share in ((1.2, 0.3), (1.3, 0.5), (1.5, 0.4), (1.25, 0.6), (1.4, 0.2)):
        rich, _, _ = structured(fleet, 1e12, stretch * floor)
        least, most = float(rich.least_energy[0]), float(rich.energy[0])
        budgets.append((least + share * (most - least), stretch * floor))
    return budgets


def timed(call: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = call()
    return time.perf_counter() - began, answer


def measure(clients: int) -> dict[str, Any]:
    """Time all solvers in turn on the same budgets. Each time is the smallest one seen, which other work on the machine
    disturbs least.

    Clarabel's own time is that of the new model, because in a model that is solved again its clock continues to count.
    """
    fleet = fleet_of(clients)
    budgets = budgets_of(fleet)
    compiled = FixedSelectionModel(clients, fleet=fleet)
    compiled.solve(*budgets[0])
    ours, batched, whole, again, inside, difference = [], [], [], [], [], 0.0
    for budget in budgets:
        repeats = range(max(1, 1000 // clients))
        ours += [timed(lambda: structured(fleet, *budget))[0] for _ in repeats]  # noqa: B023
        batched.append(timed(lambda: structured(fleet, *budget, batch=BATCH))[0] / BATCH)  # noqa: B023
        for _ in range(max(1, 100 // clients)):
            seconds, oracle = timed(lambda: FixedSelectionModel(clients, fleet=fleet).solve(*budget))  # noqa: B023
            whole.append(seconds)
            inside.append(oracle.solver_s)
            again.append(timed(lambda: compiled.solve(*budget))[0])  # noqa: B023
        kept = float(structured(fleet, *budget)[0].value[0])
        difference = max(difference, abs(kept - oracle.kept) / oracle.kept)
    row = {
        "clients": clients,
        "ours_s": min(ours),
        "ours_in_batch_s": min(batched),
        "cvxpy_s": min(whole),
        "again_s": min(again),
        "clarabel_s": min(inside),
        "objective_difference": difference,
    }
    return row | {f"ratio_{name}": row[f"{name}_s"] / row["ours_s"] for name in ("cvxpy", "again", "clarabel")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = []
    rivals = f"{'CVXPY, end to end':>20} {'solved again':>20} {'Clarabel':>20}"
    print(f"{'N':>6} {'ours':>10} {'in a batch':>11} {rivals} {'difference':>11}")
    for clients in options.sizes:
        row = measure(clients)
        rows.append(row)
        names = ("cvxpy", "again", "clarabel")
        others = "".join(f"{1e3 * row[f'{name}_s']:>10.1f} ms {row[f'ratio_{name}']:>5.0f}x" for name in names)
        own = f"{1e3 * row['ours_s']:>7.2f} ms {1e3 * row['ours_in_batch_s']:>8.3f} ms"
        print(f"{clients:>6} {own} {others} {row['objective_difference']:>11.1e}", flush=True)
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    versions |= {"cvxpy": cvxpy.__version__, "clarabel": clarabel.__version__}
    result = {"threads": 1, "versions": versions, "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["objective_difference"] <= 1e-6 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
