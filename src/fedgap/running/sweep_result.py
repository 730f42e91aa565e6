"""The results of a sweep: means over seeds, and differences between schemes or policies seed by seed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgap.report.figures import new_figure, plain_axes, save_figure
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.statistics import Interval, PairedComparison, holm, interval, paired

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

MEASURES = {"test_accuracy": "test_accuracy", "test_loss": "test_loss", "train_loss": "train_loss",
            "generalization_gap": "generalization_gap", "rounds_trained": "rounds", "energy_j": "energy_j",
            "delay_s": "delay_s", "theta": "theta"}
"""The numbers that a sweep averages over seeds: column → key of a run's summary. No column may have the name of an
experiment's key, because swept keys become columns as well."""
SHOWN = {"test_accuracy": "accuracy", "test_loss": "test loss", "generalization_gap": "gap",
         "rounds_trained": "trained rounds", "energy_j": "energy J", "delay_s": "delay s"}
"""The measures in the printed table, with their headings."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
"""Okabe and Ito's colours, which colour-blind people can tell apart."""
_COMPARED = {"scheme": "schemes", "policy": "policies"}
"""The swept keys whose values are compared seed by seed, with the plural for headings."""

Outcome = dict[str, Any]
"""``{"summary": ...}`` for a finished run, otherwise ``{"error": line, "exit_code": code}``: no plan (3), bad input
(2), or the process died (1)."""


@dataclass(frozen=True)
class SweepRow:
    """The results of one combination of the swept keys, over all its seeds."""

    values: Mapping[str, str]
    runs: int
    """Number of finished runs, one per seed."""
    failed: str | None
    """Why the first failed run failed; None if none did."""
    exit_code: int | None
    measures: Mapping[str, Interval | None]
    """The mean over seeds of each of :data:`MEASURES`; None if a run does not have it."""

    def to_dict(self) -> dict[str, Any]:
        """The row of ``summary.json``; ``ci95`` is half of the 95 % confidence interval (null for a single run)."""
        return {"values": dict(self.values), "runs": self.runs, "failed": self.failed, "exit_code": self.exit_code,
                **{name: {"mean": mean and mean.mean, "ci95": mean and mean.half}
                   for name, mean in self.measures.items()}}


@dataclass(frozen=True)
class SchemeDifference:
    """The test accuracy of one scheme, or policy, minus that of another, over the seeds that both have."""

    values: Mapping[str, str]
    """The other swept keys and their values."""
    first: str
    second: str
    comparison: PairedComparison

    def to_dict(self) -> dict[str, Any]:
        """The difference for JSON; ``p`` is after Holm's correction over all differences of the sweep."""
        compared = self.comparison
        return {"values": dict(self.values), "first": self.first, "second": self.second,
                "mean": compared.difference.mean, "ci95": compared.difference.half, "seeds": compared.difference.n,
                "p": compared.adjusted, "verdict": compared.verdict}


@dataclass(frozen=True, repr=False)
class SweepResult(Printable):
    """The rows of a sweep, and the differences between its schemes and policies. ``print`` shows tables, ``plot`` draws
    them."""

    folder: Path
    rows: tuple[SweepRow, ...]
    differences: tuple[SchemeDifference, ...]
    """The first scheme of the grid minus each other one, and the same for policies; empty unless these are swept."""

    def to_dict(self) -> dict[str, Any]:
        """``rows`` and ``differences``, for JSON."""
        return {"rows": [row.to_dict() for row in self.rows],
                "differences": [difference.to_dict() for difference in self.differences]}

    def to_csv(self) -> str:
        """The rows as CSV: one column per key, and two per measure."""
        flat = []
        for row in self.rows:
            columns: dict[str, Any] = {**row.values, "runs": row.runs, "failed": row.failed,
                                       "exit_code": row.exit_code}
            for name, mean in row.measures.items():
                columns |= {name: mean and mean.mean, f"{name}_ci95": mean and mean.half}
            flat.append(columns)
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(name for row in flat for name in row)))
        writer.writeheader()
        writer.writerows(flat)
        return text.getvalue()

    def varied(self) -> dict[str, str]:
        """The keys, except ``seed``, that have several values, each with the shortest heading that is unique."""
        keys = [key for key in self.rows[0].values if len({row.values[key] for row in self.rows}) > 1]
        last = [key.rpartition(".")[2] for key in keys]
        return {key: short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)}

    def parts(self) -> list[RenderableType]:
        """A table of the means over seeds, and one of the differences between schemes and policies if there are any."""
        varied, first = self.varied(), self.rows[0].values
        same = ", ".join(f"{key} = {value}" for key, value in first.items() if key not in varied)
        means = Sheet("Mean ± half of the 95 % confidence interval over seeds", *varied.values(), "runs",
                      *SHOWN.values(), caption=f"All with {same}" if same else None)
        for row in self.rows:
            means.add_row(*(row.values[key] for key in varied), str(row.runs),
                          *(_cell(row.measures[name], percent=name == "test_accuracy") for name in SHOWN))
        if not self.differences:
            return [means]
        others = {key: name for key, name in varied.items() if any(key in d.values for d in self.differences)}
        compared = " or ".join(_COMPARED[key] for key in _COMPARED if key in varied)
        pairs = Sheet("Differences of the accuracy in percentage points, paired seed by seed", *others.values(),
                      compared, "seeds", "difference", "p (Holm)", "verdict", left=(compared, "verdict"))
        for d in self.differences:
            pairs.add_row(*(d.values.get(key, "") for key in others), f"{d.first} − {d.second}",
                          str(d.comparison.difference.n), d.comparison.difference.signed(100),
                          f"{d.comparison.adjusted:.2g}", d.comparison.verdict)
        return [means, pairs]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the test accuracy of every combination with its 95 % interval; saved if ``path`` (.png, .pdf, .svg) is
        given."""
        varied = self.varied()
        schemes = list(dict.fromkeys(row.values.get("scheme", "") for row in self.rows))
        figure = new_figure(7.5, 0.42 * len(self.rows) + 1.4)
        ax = figure.subplots()
        for place, row in enumerate(self.rows):
            accuracy = row.measures["test_accuracy"]
            if accuracy is None:
                ax.text(0.5, place, "no finished run", transform=ax.get_yaxis_transform(), ha="center", va="center",
                        fontsize=9, color="#777777")
                continue
            ax.errorbar(100 * accuracy.mean, place, xerr=None if accuracy.half is None else 100 * accuracy.half,
                        fmt="o", markersize=6, capsize=4,
                        color=COLOURS[schemes.index(row.values.get("scheme", "")) % len(COLOURS)])
        labels = [", ".join(row.values[key] if key == "scheme" else f"{name} = {row.values[key]}"
                            for key, name in varied.items()) or "all runs" for row in self.rows]
        ax.set_yticks(range(len(self.rows)), labels)
        ax.set_ylim(len(self.rows) - 0.5, -0.5)
        most = max(row.runs for row in self.rows)
        seeds = "one seed" if most <= 1 else f"mean and 95 % confidence interval over {most} seeds"
        ax.set_xlabel(f"test accuracy in % ({seeds})")
        plain_axes(ax, "x")
        return save_figure(figure, path)


def _cell(mean: Interval | None, percent: bool) -> str:
    if mean is None:
        return "–"
    scale, form = (100.0, "{:.2f}") if percent else (1.0, "{:.4g}")
    text = form.format(scale * mean.mean)
    if mean.half is not None:
        half = 0.0 if mean.half < 1e-12 * abs(mean.mean) else mean.half  # all values equal, except for rounding
        text += f" ± {form.format(scale * half)}"
    return text + (" %" if percent else "")


def summarise(runs: Sequence[tuple[Mapping[str, str], Outcome]], folder: Path) -> SweepResult:
    """Summarise runs, each given by its values of the swept keys and its outcome. No combination may occur twice."""
    seeds = {text: number for number, text in enumerate(dict.fromkeys(values.get("seed", "") for values, _ in runs))}
    groups: dict[tuple[tuple[str, str], ...], dict[int, Outcome]] = {}
    for values, outcome in runs:
        key = tuple((name, value) for name, value in values.items() if name != "seed")
        groups.setdefault(key, {})[seeds[values.get("seed", "")]] = outcome
    rows, accuracies = [], {}
    for key, outcomes in groups.items():
        summaries = {seed: outcome["summary"] for seed, outcome in outcomes.items() if "summary" in outcome}
        failed = next((outcome for outcome in outcomes.values() if "error" in outcome), {})
        measures: dict[str, Interval | None] = {}
        for measure, name in MEASURES.items():
            numbers = [summary.get(name) for summary in summaries.values()]
            measures[measure] = None if not numbers or None in numbers else interval(numbers)
        rows.append(SweepRow(dict(key), len(summaries), failed.get("error"), failed.get("exit_code"), measures))
        accuracies[key] = {seed: float(summary["test_accuracy"]) for seed, summary in summaries.items()
                           if summary.get("test_accuracy") is not None}
    return SweepResult(folder, tuple(rows), tuple(_differences(accuracies)))


def _differences(accuracies: Mapping[tuple[tuple[str, str], ...], Mapping[int, float]]) -> list[SchemeDifference]:
    """The first scheme or policy minus each other one, for every combination of the other swept keys."""
    by_others: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, Mapping[int, float]]] = {}
    for key, by_seed in accuracies.items():
        for compared in (name for name in _COMPARED if name in dict(key)):
            others = tuple((name, value) for name, value in key if name != compared)
            by_others.setdefault((compared, others), {})[dict(key)[compared]] = by_seed
    pairs = []
    for (_, others), by_name in by_others.items():
        (first, of_first), *rest = by_name.items()
        pairs += [(others, first, second, paired(of_first, of_second)) for second, of_second in rest
                  if of_first.keys() & of_second.keys()]
    corrected = holm([comparison for *_, comparison in pairs])
    return [SchemeDifference(dict(others), first, second, comparison)
            for (others, first, second, _), comparison in zip(pairs, corrected, strict=True)]
