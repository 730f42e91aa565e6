"""The main job on data that needs no download: plan, compare the six schemes, train each, and report.

    python experiments/demo.py [FOLDER]

leaves pictures, results and a self-contained ``report.html`` in FOLDER (``demo``). It is a slice of ``fedgap
reproduce``: Fig. 5 of the preset ``quick``, the paper's ten clients and LeNet-5 on 5,000 real MNIST digits with its
budgets scaled to 60 rounds, from three seeds, because accuracies need intervals. After that the same budgets are spent
by the learner of the mode ``practical``.
"""

import base64
import html
import sys
import time
from pathlib import Path
from typing import Any

import fedgap
from fedgap.analysis import Comparison, plan_report
from fedgap.analysis.plan_report import PlanReport
from fedgap.cli.terminal import show, steps
from fedgap.evidence.definition import load_figure
from fedgap.evidence.reproduce import Workshop, reproduce
from fedgap.evidence.result_tables import result_tables
from fedgap.evidence.results import by_seed
from fedgap.report.figures import PAGE_WIDTH, new_figure, plain_axes, save_figure
from fedgap.report.printable import text_of
from fedgap.running.prepare import divide
from fedgap.running.sweep import SweepResult, sweep
from fedgap.statistics import interval

FIGURE = "fig5"
LEARNERS = {"practical": ("practical, scheme forecast", "#D55E00", "o"),
            "repaired": ("the paper's FedSGD, scheme proposed", "#0072B2", "s")}
"""Mode → its learner in words, its colour and its mark."""
PAGE = Path(__file__).with_name("demo_report.html")
"""The report, with ``{names}`` for what this program fills in."""


def main(folder: Path) -> None:
    """Run the demo into ``folder``; runs that are there already are kept."""
    started = time.perf_counter()
    (panel,) = load_figure(FIGURE).panels["quick"]
    ((_, nominal),) = panel.points()
    experiment = fedgap.Experiment.load(panel.experiment, [*panel.overrides, *nominal])
    _, _, scenario = divide(experiment)
    say("1/4  planning the proposed scheme and five baselines")
    comparison = fedgap.compare(scenario)
    folder.mkdir(parents=True, exist_ok=True)
    scenario.save(folder / "scenario.yaml")
    comparison.plot(folder / "schemes.png")
    show(comparison)

    say(f"2/4  training {len(comparison)} schemes in {len(panel.modes)} modes from {len(panel.seeds)} seeds, "
        f"{scenario.rounds} rounds each; equal plans are trained once")
    results = reproduce([FIGURE], Workshop(folder, "quick", bar=steps))[FIGURE]

    say("3/4  training with the learner of the mode practical, within the same joules and seconds")
    learners = sweep(experiment, {"mode": list(LEARNERS), "seed": panel.seeds}, folder / "learners", workers=2)
    draw_learners(learners, folder)
    show(learners)

    say("4/4  writing the report")
    first = fedgap.Run(folder / "learners" / "runs" / f"mode=practical,seed={panel.seeds[0]}")
    first.plan.save(folder / "plan.json")
    planned = plan_report(fedgap.Scenario.load(first.folder / "scenario.yaml"), first.plan)
    planned.plot(folder / "plan.png")
    (folder / "report.html").write_text(report(folder, comparison, results, planned, learners), encoding="utf-8")
    show(*result_tables(results))
    say(f"done in {time.perf_counter() - started:.0f} s: open {folder / 'report.html'}")


def draw_learners(learners: SweepResult, folder: Path) -> None:
    """The test accuracy of both learners over the joules and over the seconds spent, one line per seed.

    Two pictures, which stand side by side on a screen and below each other on a phone.
    """
    runs = [fedgap.Run(path) for path in sorted((learners.folder / "runs").iterdir())]
    for name, key in (("joules", "energy_total_j"), ("seconds", "delay_total_s")):
        figure = new_figure(PAGE_WIDTH / 2, 3.6)
        axes = figure.subplots()
        for run in runs:
            words, colour, mark = LEARNERS[run.summary["mode"]]
            tested = [event for event in run.history if "test_accuracy" in event]
            axes.plot([event[key] for event in tested], [100.0 * event["test_accuracy"] for event in tested],
                      color=colour, marker=mark, markersize=4, label=words if run.summary["seed"] == 0 else None)
        axes.set(xlabel=f"{name} spent", ylabel="test accuracy, %", ylim=(0.0, 100.0))
        axes.set_xlim(left=0.0)
        plain_axes(axes, "both")
        axes.legend(loc="lower right", frameon=False, fontsize=9)
        save_figure(figure, folder / f"learners-{name}.png")


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def trained_rows(results: dict[str, Any]) -> str:
    """One row per mode and scheme, means over seeds with 95 % confidence intervals."""
    columns = (("accuracy", 100, ".1f"), ("training_loss", 1, ".3f"), ("rounds", 1, ".0f"), ("energy_j", 1, ".1f"),
               ("delay_s", 1, ".1f"))
    rows = [row for row in results["panels"][0]["rows"] if row["accuracy"] is not None]
    lines = []
    for mode, scheme in dict.fromkeys((row["mode"], row["scheme"]) for row in rows):
        cells = [scheme, mode]
        for measure, scale, form in columns:
            mean = interval([scale * value for value in by_seed(rows, measure, mode=mode, scheme=scheme).values()])
            cells.append(f"{mean.mean:{form}}" + (f" ± {mean.half:{form}}" if mean.half else ""))
        lines.append(f"<tr><td>{'</td><td>'.join(cells)}</td></tr>")
    return "\n".join(lines)


def accuracy_text(learners: SweepResult, mode: str) -> str:
    """A learner's accuracy with its interval."""
    accuracy = next(row.measures["test_accuracy"] for row in learners.rows if row.values["mode"] == mode)
    assert accuracy is not None
    return f"{100 * accuracy.mean:.1f}" + (f" ± {100 * accuracy.half:.1f}" if accuracy.half else "") + " %"


def report(folder: Path, comparison: Comparison, results: dict[str, Any], planned: PlanReport,
           learners: SweepResult) -> str:
    """One HTML page with everything in it."""
    forecast = planned.plan.forecast
    takes_part = int((planned.cost.rounds > 0).sum())
    filled = {
        "version": fedgap.__version__, "energy_j": f"{comparison.energy_budget_j:g}",
        "delay_s": f"{comparison.delay_budget_s:g}", "rounds": str(comparison.rounds),
        "practical": accuracy_text(learners, "practical"), "repaired": accuracy_text(learners, "repaired"),
        "takes_part": str(takes_part), "clients": str(len(planned.cost.names)),
        "planned_rounds": str(planned.plan.rounds), "local_steps": str(planned.plan.local_steps),
        "forecast": "" if forecast is None else f" Its forecast accuracy is {100 * forecast.accuracy:.1f} %, by "
                    "weights that were fitted to trainings on all of MNIST, not on these 5,000 digits.",
        "plan": html.escape(text_of(planned, width=100)), "schemes": html.escape(text_of(comparison, width=100)),
        "trained_rows": trained_rows(results), "folder": html.escape(str(folder)),
    } | {f"{name}_picture": embedded(folder / path) for name, path in (
        ("joules", "learners-joules.png"), ("seconds", "learners-seconds.png"), ("plan", "plan.png"),
        ("schemes", "schemes.png"), ("loss", f"{FIGURE}/{FIGURE}.png"))}
    page = PAGE.read_text(encoding="utf-8")
    for name, text in filled.items():
        page = page.replace(f"{{{name}}}", text)
    return page


def embedded(path: Path) -> str:
    """A picture as a data URI."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
