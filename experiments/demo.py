"""The main job on data that needs no download: plan, compare the six schemes, train each, and report.

    python experiments/demo.py [FOLDER]

leaves pictures, every run's folder and a self-contained ``report.html`` in FOLDER (``demo``). The paper's ten clients
and LeNet-5, its budgets scaled to 150 rounds, on 5,000 real MNIST digits; three seeds, for accuracies need intervals.
"""

import base64
import html
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console, RenderableType

import fedgap
from fedgap.cli import tables
from fedgap.cli.pictures import draw_comparison
from fedgap.cli.terminal import show
from fedgap.planning import SCHEMES
from fedgap.planning.problem import Problem
from fedgap.running.events import read_rounds
from fedgap.running.prepare import divide
from fedgap.running.sweep import confidence, points, sweep

ROUNDS, SEEDS = 150, ("0", "1", "2")
BUDGETS = ("budget.energy_j=93.75", "budget.delay_s=56.25")
SETTINGS = (f"rounds={ROUNDS}", *BUDGETS, "evaluate_every=15", "engine.threads=1")
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
"""Okabe and Ito's, with a dash of its own for each scheme beside."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))


def main(folder: Path) -> None:
    """Run the demo into ``folder``; runs that are there already are kept."""
    started = time.perf_counter()
    experiment = fedgap.Experiment.load("embedded", SETTINGS)
    _, _, scenario = divide(experiment)
    problem = Problem.of(scenario)
    say("1/3  planning the proposed scheme and five baselines")
    plans = list(fedgap.compare(scenario))
    folder.mkdir(parents=True, exist_ok=True)
    plans[0].save(folder / "plan.json")
    scenario.save(folder / "scenario.yaml")
    draw_comparison(problem, plans, folder / "schemes.png")
    show(tables.comparison_table(problem, plans))

    grid = {"scheme": list(SCHEMES), "seed": list(SEEDS)}
    say(f"2/3  training {len(SCHEMES)} schemes from {len(SEEDS)} seeds, {ROUNDS} rounds each")
    runs = folder / f"runs-{experiment.hash()[:8]}"
    rows = sweep(experiment, grid, runs, workers=os.cpu_count() or 1,
                 report=lambda point, outcome: say(f"     {' '.join(point.overrides)}: {described(outcome)}"))
    draw_training(runs, grid, folder / "training.png")

    say("3/3  writing the report")
    shown = [tables.segment_table(problem, plans[0], segment) for segment in plans[0].segments]
    shown += [tables.terms_table(plans[0]), tables.budget_table(problem, plans[0]), tables.certificate(plans[0])]
    (folder / "report.html").write_text(report(folder, problem, plans, rows, shown), encoding="utf-8")
    say(f"done in {time.perf_counter() - started:.0f} s: open {folder / 'report.html'}")


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def described(outcome: dict[str, Any]) -> str:
    """A run's end in a few words."""
    if "error" in outcome:
        return str(outcome["error"])
    summary = outcome["summary"]
    return f"accuracy {summary['test_accuracy']:.1%} after {summary['rounds']} rounds"


def draw_training(folder: Path, grid: dict[str, list[str]], path: Path) -> None:
    """Test accuracy against simulated time: a line for each scheme, mean over seeds, the band its 95 % interval."""
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    runs = points(grid, folder)
    for colour, dash, scheme in zip(COLOURS, DASHES, grid["scheme"], strict=True):
        histories = [
            [event for event in read_rounds(point.folder / "rounds.jsonl") if "test_accuracy" in event]
            for point in runs
            if point.values["scheme"] == scheme and (point.folder / "rounds.jsonl").exists()
        ]
        count = min(map(len, histories), default=0)
        if count == 0:
            continue
        spread = [confidence([100.0 * history[i]["test_accuracy"] for history in histories]) for i in range(count)]
        time_s = [float(np.mean([history[i]["delay_total_s"] for history in histories])) for i in range(count)]
        mean = np.array([each["mean"] for each in spread])
        half = np.array([each["ci95"] or 0.0 for each in spread])
        ax.fill_between(time_s, mean - half, mean + half, color=colour, alpha=0.12, linewidth=0)
        ax.plot(time_s, mean, color=colour, linestyle=dash, linewidth=1.8, label=scheme)
    ax.set(xlabel="simulated time, s", ylabel="test accuracy, %", ylim=(0, 100))
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower right", fontsize=9)
    ax.set_title(f"LeNet-5 on 5,000 MNIST digits; mean of {len(SEEDS)} seeds, bands: 95 % confidence", fontsize=10)
    figure.savefig(path, dpi=150)


def report(folder: Path, problem: Problem, plans: list[Any], rows: list[dict[str, Any]],
           shown: list[RenderableType]) -> str:
    """One HTML page with everything in it."""
    def cell(value: dict[str, float | None], scale: float, form: str) -> str:
        if value["mean"] is None:
            return "–"
        half = "" if value["ci95"] is None else f" ± {scale * value['ci95']:{form}}"
        return f"{scale * value['mean']:{form}}{half}"

    trained = "".join(
        f"<tr><td>{row['scheme']}</td><td>{cell(row['test_accuracy'], 100, '.1f')}</td>"
        f"<td>{cell(row['test_loss'], 1, '.3f')}</td><td>{cell(row['rounds'], 1, '.0f')}</td>"
        f"<td>{cell(row['energy_j'], 1, '.1f')}</td><td>{cell(row['delay_s'], 1, '.1f')}</td></tr>"
        for row in rows
    )
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
<p>Ten clients train LeNet-5 together within {problem.energy_j:g} J and {problem.delay_s:g} s, the paper's budgets
scaled to {problem.rounds} rounds. Joules and seconds come from the paper's system model, accuracies from training on
5,000 real MNIST digits (4,000 to train with, 1,000 to test with) that an installed package carries.
fedgap {fedgap.__version__}.</p>
<h2>The plan (seed 0)</h2>
<p>Who takes part, how much each prunes, at which power and clock, and what binds it.</p>
<pre>{html.escape(text(shown))}</pre>
<h2>Six schemes on paper</h2>
<p>The bound θ by terms, for the proposed scheme and the paper's five baselines, each solved as well as its restriction
allows.</p>
<img alt="the bound by terms for six schemes" src="{embedded(folder / 'schemes.png')}">
<pre>{html.escape(text([tables.comparison_table(problem, plans)]))}</pre>
<h2>Six schemes in training</h2>
<p>Mean ± half of the 95 % confidence interval over {len(SEEDS)} seeds; a seed draws the partition, the weights and the
batches. Where intervals overlap this demo does not tell the schemes apart, and lines that coincide are ties.</p>
<table>
<tr><th>scheme</th><th>test accuracy, %</th><th>test loss</th><th>rounds</th><th>energy, J</th><th>time, s</th></tr>
{trained}</table>
<img alt="test accuracy against simulated time" src="{embedded(folder / 'training.png')}">
</html>
"""


def text(parts: list[RenderableType]) -> str:
    """Tables as they look in a terminal of a hundred columns."""
    console = Console(file=io.StringIO(), width=100, markup=False, highlight=False)
    for part in parts:
        console.print(part)
        console.print()
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def embedded(path: Path) -> str:
    """A picture as a data URI."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    main(target)
