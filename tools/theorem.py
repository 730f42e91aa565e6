"""Compare measured trainings with what Lemma 1, Assumption 4, Proposition 1 and Theorem 1 promise.

    python -m tools.theorem --data DATA [--device cpu] [--again as_printed]

measures the runs that ``experiments/theory/results.json`` does not have (with --again, those of a mode once more), and
judges all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.evidence.cases import Planned
from fedgap.evidence.definition import load_figure
from fedgap.evidence.reproduce import plan_panels, write
from fedgap.evidence.workshop import Workshop
from fedgap.running.job import Job
from fedgap.statistics import interval
from fedgap.theory import aggregate, bound_constants, pooled_statement, round_terms, statement
from fedgap.theory.convergence import Constants
from fedgap.theory.generalization import Reading
from tools import EXPERIMENTS
from tools.trajectory import measure

READINGS: dict[str, tuple[Reading, str]] = {"as_printed": ("as_printed", "sum"),
                                            "repaired": ("size_normalised", "mixture")}
CONSTANTS: tuple[Constants, ...] = ("printed", "corrected")
RUNS = {"repaired": ("proposed", "all_clients"), "as_printed": ("proposed",)}
"""The schemes that are measured in each mode, at the nominal MNIST budgets (Fig. 5)."""
SEEDS = (0, 1, 2)


def analyse(record: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """How often each inequality held during one run, and by how many orders of magnitude it was loose.

    A², B² and L are the largest values that occurred during the run itself, and L(ω⁰) − L(ω*) is the loss at the start:
    the theorem gets the best possible constants. Round 0, in which the model is random, counts like every other round.
    """
    rows, mode = record["rows"], job.extra["summary"]["mode"]
    reading, aggregation = READINGS[mode]
    counts, targets = job.label_counts.astype(np.float64), job.target_counts.astype(np.float64)
    phi = statement(counts, targets, reading)
    lemma, growth, kept, moments, ranks = [], [], [], [], []
    moment = max(row["moment"] for row in rows if "moment" in row)
    for row in rows:
        selected = np.isin(np.arange(len(phi)), row["selected"])
        ratio = np.array(row["client_difference_norm"]) / np.array(row["client_train_norm"])
        lemma += (ratio / phi).tolist()
        ranks.append(_rank(phi, np.array(row["client_difference_norm"])))
        whole = (pooled_statement(counts, targets.sum(axis=0), selected, reading) if aggregation == "mixture"
                 else aggregate(phi, selected, "sum"))
        bound = 0.5 * (record["learning_rate"] ** 2 + float(whole) ** 2) * row["gradient_norm2"]
        growth.append((row["gap_after"] - row["gap"]) / bound)
        if row["pruning_ratio"] > 0.0:
            kept.append(row["pruned_norm2"] / (row["pruning_ratio"] * row["norm2"]))
        moments.append(row["gradient_norm2"] * record["batch_size"] * row["clients"] / moment)
    left = float(np.mean([row["test_norm2"] for row in rows]))
    theta = {name: _theta(record, job, phi, counts, targets, moment, name) for name in CONSTANTS}
    return {"mode": mode, "scheme": record["scheme"], "seed": record["seed"], "measured_rounds": len(rows),
            "mean_squared_gradient": _short(left), "theta": {name: _short(value) for name, value in theta.items()},
            "orders_loose": {name: _short(np.log10(value / left)) for name, value in theta.items()},
            "lemma_held": _share(lemma), "lemma_orders_loose": _short(-np.median(np.log10(lemma))),
            "proposition_held": _share(growth),
            "proposition_orders_loose": _short(-np.median(np.log10(np.abs(growth)))),
            "assumption4_held": _share(kept), "assumption4_worst": _short(max(kept)) if kept else None,
            "moment_ratio_median": _short(np.median(moments)), "moment_ratio_worst": _short(max(moments)),
            "phi_ranks_difference": _short(np.mean(ranks)),
            "constants": {"smoothness": max(row["curvature"] for row in rows if "curvature" in row),
                          "gradient_moment": moment, "parameter_moment": max(row["norm2"] for row in rows),
                          "initial_gap": _short(record["start_loss"])}}


def _theta(record: Mapping[str, Any], job: Job, phi: np.ndarray, counts: np.ndarray, targets: np.ndarray,
           moment: float, constants: Constants) -> float:
    reading, aggregation = READINGS[job.extra["summary"]["mode"]]
    rows = record["rows"]
    known = bound_constants(
        rounds=record["rounds"], learning_rate=record["learning_rate"], batch_size=record["batch_size"],
        initial_gap=record["start_loss"], smoothness=max(row["curvature"] for row in rows if "curvature" in row),
        gradient_moment=moment, parameter_moment=max(row["norm2"] for row in rows), constants=constants)
    whole = (pooled_statement(counts, targets.sum(axis=0), job.selected, reading) if aggregation == "mixture"
             else aggregate(phi, job.selected, "sum"))
    by_segment = sum(round_terms(known, job.selected, whole, job.ratio))
    return known.alpha + float(np.asarray(by_segment)[job.schedule].sum())


def _rank(x: np.ndarray, y: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)


def _share(ratios: Sequence[float]) -> float | None:
    """The share of the ratios measured/promised that are at most 1; None if there are no ratios."""
    return float(np.mean(np.array(ratios) <= 1.0).round(4)) if ratios else None


def _short(value: Any) -> float:
    return float(f"{value:.4g}")


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean of each measure over the runs of one mode, with Student's 95 % interval."""
    summaries = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mode_rows = [row for row in rows if row["mode"] == mode]
        entry: dict[str, Any] = {"mode": mode, "runs": len(mode_rows)}
        flat = {name: [row[name] for row in mode_rows] for name in (
            "lemma_held", "lemma_orders_loose", "proposition_held", "proposition_orders_loose", "assumption4_held",
            "moment_ratio_median", "phi_ranks_difference")}
        flat |= {f"orders_loose_{name}": [row["orders_loose"][name] for row in mode_rows] for name in CONSTANTS}
        for name, values in flat.items():
            known = [value for value in values if value is not None]
            if known:
                mean = interval(known)
                entry[name] = {"mean": _short(mean.mean), "half": None if mean.half is None else _short(mean.half)}
        summaries.append(entry)
    return summaries


def main(arguments: Sequence[str]) -> int:
    """Measure what is missing and write the results after each run; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.theorem", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of MNIST's files")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=10, help="measure at every so many rounds")
    parser.add_argument("--again", choices=tuple(RUNS), help="measure a mode's runs again")
    parser.add_argument("--out", type=Path, default=EXPERIMENTS)
    given = parser.parse_args(arguments)
    path, shop = given.out / "theory" / "results.json", Workshop(given.out, "paper", given.data, workers=1)
    results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
    rows = [row for row in results["rows"] if row["mode"] != given.again]
    if given.again:
        results.pop("pending", None)  # what was to be measured again
    present = {(row["mode"], row["scheme"], row["seed"]) for row in rows}
    nominal = replace(load_figure("fig5", EXPERIMENTS).panels["paper"][0], seeds=SEEDS)
    panels = [replace(nominal, modes=(mode,), schemes=schemes) for mode, schemes in RUNS.items()]
    for case, planned in plan_panels(panels, shop).items():
        if (case.mode, case.scheme, case.seed) in present or not isinstance(planned, Planned) or planned.job is None:
            continue
        job = replace(planned.job, device=given.device)
        record = measure(planned.key, job, shop.dataset(case.experiment), given.every)
        rows.append(analyse(record, planned.job) | {"machine": record["machine"], "torch": record["torch"]})
        rows.sort(key=lambda row: (list(RUNS).index(row["mode"]), row["seed"], row["scheme"] != "proposed"))
        write(results | {"rows": rows, "summary": summary(rows)}, path)
        print(f"{case.mode} {case.scheme}, seed {case.seed}: measured", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
