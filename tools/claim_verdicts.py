"""How sentences of the paper are judged: each function gives a verdict and the measurement, from the results of a
figure in a mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedgap.statistics import interval

Answer = tuple[str, str]
"""Verdict and measurement."""
Results = Mapping[str, Any]
Judge = Callable[[Results, str], Answer]
NOT_YET = ("not measured", "–")


def number(value: Mapping[str, Any] | Sequence[Any], form: str = "{:.2f}") -> str:
    """A mean ± half of its interval, as text."""
    mean, half = (value["mean"], value["half"]) if isinstance(value, Mapping) else value
    return form.format(mean) + ("" if half is None else f" ± {form.format(half)}")


def _theory(results: Results, mode: str) -> Mapping[str, Any]:
    return next(row for row in results["summary"] if row["mode"] == mode)


def _held(share: float) -> str:
    return "holds" if share == 1.0 else "holds in part" if share > 0.5 else "does not hold"


def in_all(truths: Sequence[bool]) -> str:
    """The verdict on a sentence that is true in all, some or none of several cases."""
    return "holds" if all(truths) else "holds in part" if any(truths) else "does not hold"


def _above(correlations: Sequence[float]) -> str:
    """The verdict on rank correlations, from the lower ends of their intervals."""
    return "holds" if min(correlations) > 0.5 else "holds in part" if min(correlations) > 0.0 else "does not hold"


def lemma(results: Results, mode: str) -> Answer:
    """Judge Lemma 1 for every client at every measured round."""
    row = _theory(results, mode)
    return _held(row["lemma_held"]["mean"]), (
        f"held at {row['lemma_held']['mean']:.0%} of the clients and rounds; "
        f"loose by {number(row['lemma_orders_loose'], '{:.1f}')} orders of magnitude")


def proposition(results: Results, mode: str) -> Answer:
    """Judge Proposition 1 at every measured round."""
    row = _theory(results, mode)
    return _held(row["proposition_held"]["mean"]), (
        f"held at {row['proposition_held']['mean']:.0%} of the rounds; "
        f"loose by {number(row['proposition_orders_loose'], '{:.1f}')} orders of magnitude")


def theorem(results: Results, mode: str) -> Answer:
    """Judge Theorem 1 for whole runs, with both constants."""
    row = _theory(results, mode)
    loose = {name: row[f"orders_loose_{name}"] for name in ("printed", "corrected")}
    lows = [orders["mean"] - (orders["half"] or 0.0) for orders in loose.values()]
    verdict = "holds" if min(lows) > 0.0 else "holds in part"
    return verdict, (f"loose by {number(loose['printed'], '{:.1f}')} orders of magnitude with printed constants, "
                     f"{number(loose['corrected'], '{:.1f}')} with corrected ones")


def assumption4(results: Results, mode: str) -> Answer:
    """Judge Assumption 4 at every measured round that prunes."""
    row = _theory(results, mode)
    if "assumption4_held" not in row:
        return NOT_YET
    share = row["assumption4_held"]["mean"]
    return _held(share), f"held at {number(row['assumption4_held'], '{:.2f}')} of the measured rounds"


def phi_orders_clients(results: Results, mode: str) -> Answer:
    """Whether clients of smaller φ have gradients closer to the test gradient."""
    correlation = _theory(results, mode)["phi_ranks_difference"]
    low, high = correlation["mean"] - (correlation["half"] or 0.0), correlation["mean"] + (correlation["half"] or 0.0)
    verdict = "holds" if low > 0.5 else "holds in part" if low > 0 else "does not hold" if high < 0.5 else "undecided"
    return verdict, f"rank correlation of φ_n with ‖∇L_n − ∇L̃‖ among clients: {number(correlation)}"


def clients_and_pruning(results: Results, mode: str) -> Answer:
    """Whether more clients and less pruning help, among random plans within one budget (trained as repaired)."""
    if mode == "as_printed":
        return NOT_YET
    names = ("fewest clients last (−k)", "mean pruning ratio")
    parts = [f"σ = {block['sigma']:g}: clients {number(block['of'][names[0]])}, "
             f"pruning ratio {number(block['of'][names[1]])}" for block in results["correlations"]]
    ranks = [block["of"][name]["mean"] > block["of"][name]["half"] for block in results["correlations"]
             for name in names]
    return in_all(ranks), ("rank correlation with the test error of fewer clients and of more pruning, where the "
                             "budget lets a pruned model train for longer: " + "; ".join(parts))


def good_guide(results: Results, mode: str) -> Answer:
    """Whether θ ranks random plans in the same order as their accuracy."""
    name = {"repaired": "size_normalised mixture, secant, corrected", "as_printed": "as_printed sum, theorem, printed"}
    values = {block["sigma"]: block["of"][name[mode]] for block in results["correlations"]}
    lows = [correlation["mean"] - correlation["half"] for correlation in values.values()]
    return _above(lows), "rank correlation of θ with the test error: " + "; ".join(
        f"{number(correlation)} at σ = {sigma:g}" for sigma, correlation in values.items())


def spread_falls(results: Results, mode: str) -> Answer:
    """Fig. 3: whether the standard deviation of φ among clients falls with σ."""
    rows = [row for row in results["spread"] if row["mode"] == mode]
    values = [row["deviation"][0] for row in rows]
    verdict = "holds" if all(a > b for a, b in pairwise(values)) else "does not hold"
    return verdict, "standard deviation of φ among clients: " + "; ".join(
        f"{number(row['deviation'], '{:.3g}')} at σ = {row['sigma']:g}" for row in rows)


def table_sizes(results: Results, mode: str) -> Answer:
    """Compare the sizes in Table I with those of the models that the text names."""
    ratio = {(row["model"], row["quantity"]): row["ratio"] for row in results["rows"]}
    fits = {model: all(abs(ratio[model, quantity] - 1.0) < 0.1 for quantity in ("gradient_bits", "flops_per_sample"))
            for model in ("lenet5", "resnet44", "resnet110")}
    sizes = "; ".join(f"{model} H {ratio[model, 'gradient_bits']:.3f}, e {ratio[model, 'flops_per_sample']:.3f}"
                      for model in fits)
    fit = ", ".join(model for model, yes in fits.items() if yes)
    return in_all([fits["lenet5"], fits["resnet110"]]), f"derived over printed: {sizes}; within 10 % of it: {fit}"


def moment_bound(results: Results, mode: str) -> Answer:
    """Judge E‖G‖² ≤ A²/(Z·k), which the proof of Theorem 1 uses, by the measured ratio of both sides during the
    runs."""
    mode_rows = [row for row in results["rows"] if row["mode"] == mode]
    if not mode_rows:
        return NOT_YET
    worst = max(row["moment_ratio_worst"] for row in mode_rows)
    middle = _theory(results, mode)["moment_ratio_median"]
    return "holds" if worst <= 1.0 else "does not hold", (
        f"‖G‖²·Z·k/A²: {number(middle)} at the median round, up to {worst:.3g} "
        "(it holds for gradients of mean zero)")


def phi_follows_divergence(results: Results, mode: str) -> Answer:
    """Judge Fig. 3 by the rank correlation of φ_n with the divergence of client n's labels from the target's."""
    rows = [row for row in results["spread"] if row["mode"] == mode]
    lows = [row["rank_with_divergence"][0] - row["rank_with_divergence"][1] for row in rows]
    return _above(lows), "rank correlation of φ_n with KL: " + "; ".join(
        f"{number(row['rank_with_divergence'])} at σ = {row['sigma']:g}" for row in rows)


def more_balanced(results: Results, mode: str) -> Answer:
    """Fig. 3: whether the clients' mean divergence from the target falls with σ."""
    values = {sigma: interval([float(np.mean(row["divergence"])) for row in results["rows"] if row["sigma"] == sigma])
              for sigma in dict.fromkeys(row["sigma"] for row in results["rows"])}
    falls = all(a.low > b.high for a, b in pairwise(values.values()))
    return "holds" if falls else "does not hold", "mean KL of a client's labels from the target's: " + "; ".join(
        f"{mean.mean:.3f} ± {mean.half or 0.0:.3f} at σ = {sigma:g}" for sigma, mean in values.items())


READING = {"repaired": "mixture", "as_printed": "as printed"}
"""Mode → the name of its reading in the benchmark of Algorithm 1."""


def _solved(results: Results, mode: str) -> list[Mapping[str, Any]]:
    return [row for row in results["rows"] if row["reading"] == READING[mode] and row["exact"] is not None]


def hard_to_solve(results: Results, mode: str) -> Answer:
    """Whether P1 cannot be solved optimally: the certified gap of the solver ``exact``, if it has a bound."""
    rows = _solved(results, mode)
    gaps = [row["exact"] / row["lower_bound"] - 1.0 for row in rows if row["lower_bound"]]
    if not gaps:
        return NOT_YET
    certified, seconds = sum(gap <= 1e-3 for gap in gaps), float(np.median([row["exact_s"] for row in rows]))
    verdict = "does not hold" if certified > 0.9 * len(rows) else "holds in part"
    return verdict, (f"solved to within 0.1 % of a proven bound in {certified} of {len(rows)} scenarios, "
                     f"{seconds:.2g} s at the median")


def algorithm_gap(results: Results, mode: str) -> Answer:
    """The cost θ − α of Algorithm 1 as printed, divided by that of the optimum."""
    rows = _solved(results, mode)
    all_gaps = [row["variants"]["as printed"].get("gap") for row in rows]
    gaps = [gap for gap in all_gaps if gap is not None]
    verdict = "holds" if np.median(gaps) > 1e-3 else "holds in part" if max(gaps) > 1e-3 else "does not hold"
    return verdict, (f"its cost is above the optimum's by {np.median(gaps):.0%} at the median and {max(gaps):,.0%} at "
                     f"most; it finds no plan in {len(rows) - len(gaps)} of {len(rows)} scenarios that have one")
