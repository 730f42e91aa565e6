"""A figure's results as tables for a terminal."""

from __future__ import annotations

from typing import Any

from fedgap.evidence.planning_tables import planning_tables
from fedgap.report.uncut_table import Sheet


def result_tables(results: dict[str, Any]) -> list[Sheet | str]:
    """The results of a figure as tables and sentences for a terminal."""
    head = f"{results['figure']}: {results['title']}"
    if results["kind"] == "table":
        sheet = Sheet(head, "column", "model", "quantity", "printed", "derived", "ratio")
        for row in results["rows"]:
            sheet.add_row(row["column"], row["model"], row["quantity"], f"{row['printed']:.4g}",
                          f"{row['derived']:.6g}", f"{row['ratio']:.3f}")
        return [sheet]
    if results["kind"] == "partitions":
        sheet = Sheet(head, "σ", "mode", "mean φ", "deviation among clients", "rank correlation with KL")
        for row in results["spread"]:
            sheet.add_row(f"{row['sigma']:g}", row["mode"], *(_pair(*row[key]) for key in (
                "mean", "deviation", "rank_with_divergence")))
        return [sheet]
    if results["kind"] == "forecast":
        return _forecast(head, results)
    if results["kind"] == "planning":
        return planning_tables(head, results)
    tables = [_comparison(head, results, panel) for panel in results["panels"]]
    return [*tables, _against_references(head, results)] if "comparisons" in results else tables


def _forecast(head: str, results: dict[str, Any]) -> list[Sheet | str]:
    """A table with one row per cell and fit: to the plans of other folds, and to the pilot."""
    sheet = Sheet(f"{head}. Accuracies in %, differences in points", "cell", "fit", "plans", "rank correlation",
                  "better half", "error there", "chosen", "best", "missed per budget", "90 % intervals hold",
                  left=("fit",))
    for panel in results["panels"]:
        if panel["status"]:
            sheet.add_row(panel["title"], panel["status"], *[""] * 8)
            continue
        fits = {"other plans": panel["held_out"]}
        if "pilot" in panel:
            fits[f"pilot, {panel['pilot']['samples_share']:.1%} of the samples"] = panel["pilot"]
        for name, fit in fits.items():
            sheet.add_row(panel["title"], name, str(fit["plans"]), f"{fit['rank']:.3f}",
                          f"{fit['rank_better_half']:.2f}", f"{fit['points_better_half']:.2f}",
                          f"{100 * fit['chosen']:.2f}", f"{100 * fit['best']:.2f}",
                          f"{fit['missed_points_per_budget']['mean']:.2f}", f"{fit['coverage']:.0%}")
    return [sheet]


def _comparison(head: str, results: dict[str, Any], panel: dict[str, Any]) -> Sheet | str:
    from fedgap.evidence.results import MEASURES, by_seed
    from fedgap.statistics import interval

    if panel["status"]:
        return f"{head}, {panel['title']}: {panel['status']}."
    loss, measure = results["kind"] == "loss", MEASURES[results["kind"]]
    scale, form = (1.0, "{:.3f}") if loss else (100.0, "{:.1f}")
    verdicts = {(c["mode"], c["value"], c["baseline"]): c for c in panel["comparisons"]}
    title, columns = f"{head}. {panel['title']}: {'loss' if loss else 'accuracy, %'}", ["value"]
    if verdicts:
        title += ", and how the proposed scheme differs (paired over seeds, Holm)"
        columns.append("proposed minus this")
    sheet = Sheet(title, "mode", panel["vary"], "scheme", *columns)
    for mode, value, scheme in dict.fromkeys((r["mode"], r["value"], r["scheme"]) for r in panel["rows"]):
        values = list(by_seed(panel["rows"], measure, mode=mode, value=value, scheme=scheme).values())
        mean = interval([scale * x for x in values]) if values else None
        c = verdicts.get((mode, value, scheme))
        difference = "" if c is None else f"{_pair(c['difference'], c['half'], form, scale)}: {c['verdict']}"
        sheet.add_row(mode, f"{value:g}", scheme, "none fits" if mean is None else _pair(mean.mean, mean.half, form),
                      *([difference] if verdicts else []))
    return sheet


def _against_references(head: str, results: dict[str, Any]) -> Sheet:
    sheet = Sheet(f"{head}. Accuracy of the reference minus this, points (paired over seeds, Holm)", "reference",
                  "this", "value", "difference", left=("reference", "this"))
    for c in results["comparisons"]:
        sheet.add_row(c["reference"], c["baseline"], f"{c['value']:g}",
                      f"{_pair(c['difference'], c['half'], '{:.2f}', 100.0)}: {c['verdict']}")
    return sheet


def _pair(mean: float, half: float | None, form: str = "{:.3g}", scale: float = 1.0) -> str:
    return form.format(scale * mean) + ("" if half is None else f" ± {form.format(scale * half)}")
