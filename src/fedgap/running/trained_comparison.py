"""Train schemes and rules and compare them: means over seeds, and how far each is below the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgap.analysis.plan_accuracy import with_forecast
from fedgap.config import Experiment, Scenario
from fedgap.errors import InputError
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.running.run import Run
from fedgap.running.sweep import Report, runs_of, sweep
from fedgap.running.sweep_result import SweepResult, SweepRow
from fedgap.statistics import Interval, PairedComparison, holm, interval, paired

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False, repr=False)
class TrainedComparison(Printable):
    """The results of trained schemes and rules, the most accurate first."""

    swept: SweepResult
    forecasts: dict[str, float]
    """The mean forecast accuracy by the name of the scheme; schemes without a forecast are left out."""
    against_best: dict[str, PairedComparison]
    """For each scheme except the best: its accuracy minus that of the best, seed by seed, after Holm's correction."""

    @property
    def rows(self) -> list[SweepRow]:
        """The rows of the sweep, the most accurate first and those without a finished run last."""
        return sorted(self.swept.rows, key=lambda row: -_mean(row))

    def parts(self) -> list[RenderableType]:
        """The table, and for each scheme without a run the reason."""
        table = Sheet("Trained side by side: mean ± half of the 95 % confidence interval over seeds", "scheme", "seeds",
                      "forecast", "accuracy", "minus the best", "verdict", "rounds", "energy J", "delay s",
                      caption="minus the best: percentage points, paired seed by seed, Holm's correction")
        for row in self.rows:
            name = row.values["scheme"]
            compared, forecast = self.against_best.get(name), self.forecasts.get(name)
            table.add_row(name, str(row.runs), "–" if forecast is None else f"{100.0 * forecast:.2f} %",
                          _text(row.measures["test_accuracy"], 100.0, 2),
                          "" if compared is None else compared.difference.signed(100.0),
                          "" if compared is None else compared.verdict,
                          *(_text(row.measures[key], 1.0, digits) for key, digits in
                            (("rounds_trained", 1), ("energy_j", 2), ("delay_s", 2))))
        return [table, *(f"{row.values['scheme']}: {row.failed}" for row in self.rows if row.failed)]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the accuracies with their intervals; saved if ``path`` is given."""
        return SweepResult(self.swept.folder, tuple(self.rows), ()).plot(path)

    def to_dict(self) -> dict[str, Any]:
        """The rows and the comparisons with the best, for JSON."""
        return {"rows": [row.to_dict() | {"forecast_accuracy": self.forecasts.get(row.values["scheme"])}
                         for row in self.rows],
                "against_best": {name: {"mean": c.difference.mean, "ci95": c.difference.half, "p": c.adjusted,
                                        "verdict": c.verdict} for name, c in self.against_best.items()}}


def _mean(row: SweepRow) -> float:
    accuracy = row.measures["test_accuracy"]
    return -1.0 if accuracy is None else accuracy.mean


def _text(mean: Interval | None, scale: float, digits: int) -> str:
    if mean is None:
        return "–"
    half = "" if mean.half is None else f" ± {scale * mean.half:.{digits}f}"
    return f"{scale * mean.mean:.{digits}f}{half}"


def train_and_compare(experiment: Experiment, schemes: Sequence[str], out: str | Path, *, seeds: int = 3,
                      workers: int = 1, report: Report | None = None) -> TrainedComparison:
    """Train an experiment with each of these schemes and rules, with ``seeds`` consecutive seeds from the experiment's
    own.

    The same call resumes what was interrupted; with more names or seeds it adds runs to those in ``out``."""
    if len(set(schemes)) < len(schemes):
        raise InputError("--schemes: list each name once")
    grid: dict[str, list[Any]] = {"scheme": list(schemes),
                                  "seed": list(range(experiment.seed, experiment.seed + seeds))}
    swept = sweep(experiment, grid, out, workers=workers, report=report)
    accuracies: dict[str, dict[int, float]] = {name: {} for name in schemes}
    forecasts: dict[str, list[float]] = {name: [] for name in schemes}
    for run in runs_of({key: list(map(str, values)) for key, values in grid.items()}, Path(out)):
        trained = Run(run.folder)
        if not trained.finished:
            continue
        summary, name = trained.summary, run.values["scheme"]
        if summary.get("test_accuracy") is not None:
            accuracies[name][int(run.values["seed"])] = float(summary["test_accuracy"])
        forecast = with_forecast(trained.plan, Scenario.load(run.folder / "scenario.yaml")).forecast
        if forecast is not None:
            forecasts[name].append(forecast.accuracy)
    known = {name: by_seed for name, by_seed in accuracies.items() if by_seed}
    best = max(known, key=lambda name: interval(list(known[name].values())).mean, default="")
    others = [name for name in known if name != best and known[name].keys() & known[best].keys()]
    compared = holm([paired(known[name], known[best]) for name in others])
    return TrainedComparison(swept, {name: interval(values).mean for name, values in forecasts.items() if values},
                             dict(zip(others, compared, strict=True)))
