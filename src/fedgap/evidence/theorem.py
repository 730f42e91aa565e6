"""Lemma 1, Assumption 4, Proposition 1 and Theorem 1: the measured trajectories against what they promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgap.evidence.statistics import interval
from fedgap.running.job import Job
from fedgap.theory import aggregate, bound_constants, pooled_statement, round_terms, statement
from fedgap.theory.convergence import Constants
from fedgap.theory.generalization import Reading

READINGS: dict[str, tuple[Reading, str]] = {"as_printed": ("as_printed", "sum"),
                                            "repaired": ("size_normalised", "mixture")}
CONSTANTS: tuple[Constants, ...] = ("printed", "corrected")


def analyse(record: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """How often each inequality held along one run, and by how many orders of magnitude it was loose.

    A², B² and L are the largest values met along the run itself, L(ω⁰) − L(ω*) the loss at the start: the theorem is
    given the best constants that it could have. Round 0, where the model is random, counts like every other.
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
    each = sum(round_terms(known, job.selected, whole, job.ratio))
    return known.alpha + float(np.asarray(each)[job.schedule].sum())


def _rank(x: np.ndarray, y: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)


def _share(ratios: Sequence[float]) -> float | None:
    """The share of ratios measured/promised that are at most 1."""
    return float(np.mean(np.array(ratios) <= 1.0).round(4)) if ratios else None


def _short(value: Any) -> float:
    return float(f"{value:.4g}")


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each measure's mean over the runs of one mode, with Student's 95 % interval."""
    found = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        own = [row for row in rows if row["mode"] == mode]
        entry: dict[str, Any] = {"mode": mode, "runs": len(own)}
        flat = {name: [row[name] for row in own] for name in (
            "lemma_held", "lemma_orders_loose", "proposition_held", "proposition_orders_loose", "assumption4_held",
            "moment_ratio_median", "phi_ranks_difference")}
        flat |= {f"orders_loose_{name}": [row["orders_loose"][name] for row in own] for name in CONSTANTS}
        for name, values in flat.items():
            there = [value for value in values if value is not None]
            if there:
                one = interval(there)
                entry[name] = {"mean": _short(one.mean), "half": None if one.half is None else _short(one.half)}
        found.append(entry)
    return found
