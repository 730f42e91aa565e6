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
from fedgap.cli.terminal import show, steps
from fedgap.evidence.definition import load_figure
from fedgap.evidence.reproduce import Workshop, reproduce
from fedgap.evidence.result_tables import result_tables
from fedgap.evidence.results import by_seed
from fedgap.report.figures import new_figure, save_figure
from fedgap.report.printable import text_of
from fedgap.running.prepare import divide
from fedgap.running.sweep import SweepResult, sweep
from fedgap.statistics import interval

FIGURE = "fig5"
LEARNERS = {"repaired": ("the paper's FedSGD", "#0072B2"), "practical": ("local steps, server momentum", "#D55E00")}
"""Mode → its learner in words, and its colour."""


def main(folder: Path) -> None:
    """Run the demo into ``folder``; runs that are there already are kept."""
    started = time.perf_counter()
    (panel,) = load_figure(FIGURE).panels["quick"]
    ((_, nominal),) = panel.points()
    _, _, scenario = divide(fedgap.Experiment.load(panel.experiment, [*panel.overrides, *nominal]))
    say("1/4  planning the proposed scheme and five baselines")
    comparison = fedgap.compare(scenario)
    folder.mkdir(parents=True, exist_ok=True)
    comparison["proposed"].save(folder / "plan.json")
    scenario.save(folder / "scenario.yaml")
    comparison.plot(folder / "schemes.png")
    show(comparison)

    say(f"2/4  training {len(comparison)} schemes in {len(panel.modes)} modes from {len(panel.seeds)} seeds, "
        f"{scenario.rounds} rounds each; equal plans are trained once")
    results = reproduce([FIGURE], Workshop(folder, "quick", bar=steps))[FIGURE]

    say("3/4  training with the learner of the mode practical, within the same joules and seconds")
    experiment = fedgap.Experiment.load(panel.experiment, [*panel.overrides, *nominal])
    learners = sweep(experiment, {"mode": list(LEARNERS), "seed": panel.seeds}, folder / "learners", workers=2)
    draw_learners(learners, folder / "learners.png")
    show(learners)

    say("4/4  writing the report")
    shown = text_of(plan_report(scenario, comparison["proposed"]), width=100)
    (folder / "report.html").write_text(report(folder, comparison, results, shown, learners), encoding="utf-8")
    show(*result_tables(results))
    say(f"done in {time.perf_counter() - started:.0f} s: open {folder / 'report.html'}; the picture is "
        f"{folder / FIGURE / FIGURE}.png")


def draw_learners(learners: SweepResult, picture: Path) -> None:
    """The test accuracy of every run over the joules and the seconds spent."""
    figure = new_figure(10.0, 4.0)
    panels = figure.subplots(1, 2, sharey=True)
    for path in sorted((learners.folder / "runs").iterdir()):
        run = fedgap.Run(path)
        words, colour = LEARNERS[run.summary["mode"]]
        tested = [event for event in run.history if "test_accuracy" in event]
        for axes, key in zip(panels, ("energy_total_j", "delay_total_s"), strict=True):
            axes.plot([event[key] for event in tested], [100.0 * event["test_accuracy"] for event in tested],
                      color=colour, marker=".", label=words if run.summary["seed"] == 0 else None)
    for axes, label in zip(panels, ("joules spent", "seconds spent"), strict=True):
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    panels[0].legend(loc="lower right")
    save_figure(figure, picture)


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def trained_rows(results: dict[str, Any]) -> str:
    """A row a mode and scheme, means over seeds with 95 % confidence intervals."""
    columns = (("accuracy", 100, ".1f"), ("training_loss", 1, ".3f"), ("rounds", 1, ".0f"), ("energy_j", 1, ".1f"),
               ("delay_s", 1, ".1f"))
    rows = [row for row in results["panels"][0]["rows"] if row["accuracy"] is not None]
    lines = []
    for mode, scheme in dict.fromkeys((row["mode"], row["scheme"]) for row in rows):
        cells = [f"{scheme}, {mode.replace('_', ' ')}"]
        for measure, scale, form in columns:
            values = by_seed(rows, measure, mode=mode, scheme=scheme).values()
            found = interval([scale * value for value in values])
            cells.append(f"{found.mean:{form}}" + (f" ± {found.half:{form}}" if found.half else ""))
        lines.append(f"<tr><td>{'</td><td>'.join(cells)}</td></tr>")
    return "\n".join(lines)


def report(folder: Path, comparison: Comparison, results: dict[str, Any], plan: str, learners: SweepResult) -> str:
    """One HTML page with everything in it."""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>fedgap demo</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
 pre {{ font-size: 12px; line-height: 1.3; overflow-x: auto; background: #f6f6f4; padding: 1rem; border-radius: 6px; }}
 table {{ border-collapse: collapse; }}
 td, th {{ padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #ddd; }}
 td:first-child, th:first-child {{ text-align: left; }} img {{ max-width: 100%; }}
</style>
<h1>fedgap demo</h1>
<p>Ten clients train LeNet-5 together within {comparison.energy_budget_j:g} J and {comparison.delay_budget_s:g} s,
the paper's budgets scaled to {comparison.rounds} rounds. Joules and seconds come from the paper's system model,
accuracies from training on 5,000 real MNIST digits (4,000 to train with, 1,000 to test with) that an installed package
carries.
fedgap {fedgap.__version__}.</p>
<h2>Two learners</h2>
<p>The same joules and seconds, spent by FedSGD (mode <code>repaired</code>, scheme <code>proposed</code>) and
by the mode <code>practical</code>: local steps, server momentum, balanced batches, scheme <code>forecast</code>.
One line per seed.</p>
<img alt="accuracy of two learners over joules and seconds" src="{embedded(folder / 'learners.png')}">
<pre>{html.escape(text_of(learners, width=100))}</pre>
<h2>The plan (seed 0)</h2>
<p>Who takes part, how much each prunes, at which power and clock, and what binds it.</p>
<pre>{html.escape(plan)}</pre>
<h2>Six schemes on paper</h2>
<p>The bound θ by terms, for the proposed scheme and the paper's five baselines, each solved as well as its restriction
allows.</p>
<img alt="the bound by terms for six schemes" src="{embedded(folder / 'schemes.png')}">
<pre>{html.escape(text_of(comparison, width=100))}</pre>
<h2>Six schemes in training</h2>
<p>Mean ± half of the 95 % confidence interval over three seeds; a seed draws the partition, the weights and the
batches. Where intervals overlap this demo does not tell the schemes apart, and lines that coincide are ties. Every
scheme once with the repairs and once as printed in the paper.</p>
<table>
<tr><th>scheme</th><th>test accuracy, %</th><th>training loss</th><th>rounds</th><th>energy, J</th><th>time, s</th></tr>
{trained_rows(results)}</table>
<img alt="training loss against simulated time" src="{embedded(folder / FIGURE / f'{FIGURE}.png')}">
</html>
"""


def embedded(path: Path) -> str:
    """A picture as a data URI."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    main(target)
