"""Writes the measured numbers in README and documentation from committed results.

    python -m tools.documented_numbers            rewrites them

A page has ``<!-- n: WORDS -->…<!-- / -->`` around each number. The first word is the name of one of :data:`WRITERS`,
the others are its arguments, and its result is written between the marks. Data that does not exist yet is written as
"–".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from fedgap.evidence.equal_accuracy import AXES, spent_at, written
from fedgap.evidence.planning_value import OURS, TIGHT, fleet_of, pooled_difference, spending
from fedgap.evidence.results import by_seed
from fedgap.evidence.store import Store
from fedgap.statistics import interval
from tools import EXPERIMENTS, ROOT, benchmark_numbers
from tools.benchmark_numbers import ABSENT, data, short
from tools.claim_verdicts import number
from tools.guide import DEFAULT, MEASURED, NO_LABELS
from tools.scheme_claims import on_average

MARK = re.compile(r"(<!-- n: ([^>]+?) -->)(.*?)(<!-- / -->)", re.DOTALL)
GUIDES = {"theta": DEFAULT, "measured": MEASURED, "no_labels": NO_LABELS, "rounds": "fewest rounds last (−R)",
          "samples": "fewest samples last (−R·k)", "clients": "fewest clients last (−k)",
          "divergence": "pooled divergence"}
FIGURES = ("fig4", "fig5", "fig6", "fig7", "fig8", "heterogeneity", "rounds")
VERY_UNEVEN = 0.1
"""The σ at which a client has only a few of the labels."""


def pages() -> list[Path]:
    """The pages that may contain marked numbers."""
    folders = (ROOT / "docs", EXPERIMENTS, ROOT / "benchmarks")
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


def guide(sigma: str, name: str) -> str:
    """The rank correlation of a guide with the error of random plans; ``NAME-theta``: how much better it ranks than θ.

    A guide is a quantity that could rank plans before training, such as θ (see ``tools.guide``)."""
    block = next(b for b in data("experiments/guide/results.json")["correlations"] if b["sigma"] == float(sigma))
    named = {"measured-theta": "measured_less_theta", "measured-held": "measured_weight_from_other_seeds"}
    return number(block[named[name]] if name in named else block["of"][GUIDES[name]])


def missed(sigma: str, name: str) -> str:
    """How many points of accuracy the plan that a guide ranks first is below the best of twenty."""
    block = next(b for b in data("experiments/guide/results.json")["correlations"] if b["sigma"] == float(sigma))
    return number(block["missed_points"][GUIDES[name]])


def versus(figure: str, value: str, baseline: str) -> str:
    """Proposed minus baseline in points of accuracy, in the mode repaired, in the first panel of a figure."""
    for c in data(f"experiments/{figure}/results.json")["panels"][0]["comparisons"]:
        if (c["mode"], c["value"], c["baseline"]) == ("repaired", float(value), baseline):
            return f"{100 * c['difference']:+.1f} ± {100 * c['half']:.1f}"
    return ABSENT


def averaged(figure: str, panel: str, baseline: str) -> str:
    """Proposed minus baseline, averaged over the values of a panel."""
    rows = data(f"experiments/{figure}/results.json")["panels"][int(panel)].get("rows", [])
    difference = on_average(rows, "repaired", baseline, "accuracy")
    return ABSENT if difference is None else difference.signed(100.0, 1)


def pooled(sigma: str) -> str:
    """The proposed scheme with ``mixture`` minus the same with ``mean`` on the city fleet, in points of accuracy."""
    panels = data("experiments/heterogeneity/results.json")["panels"]
    mean, mixture = (by_seed(panel.get("rows", []), "accuracy", scheme="proposed", value=float(sigma))
                     for panel in panels[1:3])
    seeds = sorted(mean.keys() & mixture.keys())
    return interval([100.0 * (mixture[s] - mean[s]) for s in seeds]).signed(digits=1) if len(seeds) > 1 else ABSENT


def measured(panel: str, value: str, other: str) -> str:
    """The scheme ``measured`` minus another one in points of accuracy, on seeds that were not used to choose it."""
    results = data("experiments/measured/results.json")
    rows = [] if results is None else results["panels"][int(panel)]["rows"]
    first, second = (by_seed(rows, "accuracy", scheme=name, value=float(value)) for name in ("measured", other))
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return ABSENT
    return interval([100.0 * (first[seed] - second[seed]) for seed in seeds]).signed()


def _learner_rows(panel: str, sigma: str) -> dict[int, dict[str, Any]]:
    """The runs of a panel of ``experiments/learner`` at one σ, by seed; panels are numbered from 0."""
    rows = data("experiments/learner/results.json")["panels"][int(panel)]["rows"]
    return {row["seed"]: row for row in rows if row["value"] == float(sigma) and row["accuracy"] is not None}


def learner(panel: str, sigma: str) -> str:
    """A learner's accuracy in per cent over seeds."""
    mean = interval([100.0 * row["accuracy"] for row in _learner_rows(panel, sigma).values()])
    return f"{mean.mean:.2f} ± {mean.half:.2f}"


def learner_gain(panel: str, other: str, sigma: str) -> str:
    """One learner's accuracy minus another's in points, paired over seeds."""
    first, second = _learner_rows(panel, sigma), _learner_rows(other, sigma)
    return interval([100.0 * (first[seed]["accuracy"] - second[seed]["accuracy"])
                     for seed in sorted(first.keys() & second.keys())]).signed()


def learner_share(panel: str, paper: str, sigma: str, axis: str) -> str:
    """The seconds or joules that a learner needs until the paper's final accuracy, as a share of what the paper's
    learner spends."""
    first, second, store = _learner_rows(panel, sigma), _learner_rows(paper, sigma), Store(EXPERIMENTS / "runs.jsonl")
    logarithms = []
    for seed in sorted(first.keys() & second.keys()):
        share = spent_at(first[seed], store[first[seed]["run"]], second[seed]["accuracy"])
        if share is not None:
            logarithms.append(math.log(share * first[seed][AXES[axis]] / second[seed][AXES[axis]]))
    return written(interval(logarithms))


def forecast_table(which: str) -> str:
    """How well the forecast predicts the plans of each cell: with ``held_out`` folds, or fitted to the ``pilot``."""
    columns = ("rank", "rank_better_half", "points_better_half", "chosen", "best", "missed_points", "coverage")
    forms = ("{:.2f}", "{:.2f}", "{:.2f}", "{:.2%}", "{:.2%}", "{:.2f}", "{:.0%}")
    lines = ["| cell | plans | rank correlation | better half | mean error there, points | chosen | best | "
             "missed, points | 90 % intervals hold |", "|---|---|---|---|---|---|---|---|---|"]
    for panel in data("experiments/forecast/results.json")["panels"]:
        if which not in panel:
            continue
        values = [form.format(panel[which][key]) for form, key in zip(forms, columns, strict=True)]
        lines.append(f"| {panel['title']} | {panel[which]['plans']} | {' | '.join(values)} |")
    return "\n" + "\n".join(lines).replace("| -", "| −") + "\n"


def forecast_end(which: str, key: str, task: str, end: str, form: str) -> str:
    """The smallest (``least``) or largest (``most``) value of one column of the forecast table over the cells of a
    task that have a pilot."""
    values = [panel[which][key] for panel in data("experiments/forecast/results.json")["panels"]
              if "pilot" in panel and panel["title"].startswith(f"{task},")]
    return f"{(min if end == 'least' else max)(values):{form}}"


def forecast_runs() -> str:
    """The number of runs of drawn plans on which the forecast is judged."""
    return f"{sum(len(panel.get('rows', [])) for panel in data('experiments/forecast/results.json')['panels']):,}"


def compared_panels(figure: str, *parts: str) -> str:
    """A table of the panels of a figure of learners: plans (means over seeds), accuracy, and the gain of the
    reference. ``parts``: only panels whose title has one of these parts, such as ``sudden_drift``.

    What is the same in every row stands below the table in place of a column, so that the table fits a page."""
    results = data(f"experiments/{figure}/results.json")
    differences = {(c["baseline"], c["value"]): c for c in results["comparisons"]}
    forms = {"local_steps": "{:.0f}", "rounds": "{:.0f}", "clients": "{:.0f}", "pruning_ratio": "{:.0%}"}
    table = [["", "σ", "local steps", "rounds", "clients", "pruned", "forecast, %", "accuracy, %",
              "first plan minus this, points", "p (Holm)"]]
    wanted = [part.replace("_", " ") for part in parts]
    for panel in results["panels"]:
        if wanted and not any(part in panel["title"] for part in wanted):
            continue
        for sigma in dict.fromkeys(row["value"] for row in panel.get("rows", [])):
            rows = [row for row in panel["rows"] if row["value"] == sigma and row["accuracy"] is not None]
            facts = [form.format(sum(row[key] for row in rows) / len(rows)) for key, form in forms.items()]
            foretold, reached = (interval([100.0 * row[key] for row in rows]) for key in ("forecast", "accuracy"))
            c = differences.get((panel["title"], sigma))
            against = ["", ""] if c is None else [
                f"{100 * c['difference']:+.2f} ± {100 * c['half']:.2f}".replace("-", "−"), f"{c['p_holm']:.1g}"]
            table.append([panel["title"], f"{sigma:g}", *facts, f"{foretold.mean:.2f}",
                          f"{reached.mean:.2f} ± {reached.half:.2f}", *against])
    (_, *titles), *others = zip(*table, strict=True)
    same = []
    if len({title.partition(", ")[0] for title in titles}) == 1:  # titles begin with the task
        same = [titles[0].partition(", ")[0]]
        titles = [title.partition(", ")[2] for title in titles]
    same += [f"{name} {first}" for name, first, *more in others if {first} == set(more)]
    kept = [("", *titles), *(column for column in others if len(set(column[1:])) > 1)]
    head, *lines = [f"| {' | '.join(cells)} |" for cells in zip(*kept, strict=True)]
    note = [f"\nIn every row: {', '.join(same)}."] if same else []
    return "\n" + "\n".join([head, "|---" * len(kept) + "|", *lines, *note]) + "\n"


def gains(figure: str, sigma: str, *budgets: str) -> str:
    """What the fully planned scheme ``forecast`` gains over plans without one of its decisions, in points of accuracy.

    There is one row per baseline of a figure of learners, and one column per budget, such as ``15_s_and_12_J``."""
    names = [budget.replace("_", " ") for budget in budgets]
    found: dict[str, dict[str, str]] = {}
    for c in data(f"experiments/{figure}/results.json")["comparisons"]:
        budget, _, baseline = c["baseline"].partition(", ")
        if c["value"] == float(sigma) and not baseline.startswith("all is planned"):
            gain = f"{100 * c['difference']:+.1f} ± {100 * c['half']:.1f}".replace("-", "−")
            found.setdefault(baseline, {})[budget] = gain
    lines = [f"| gain over | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for baseline, row in found.items():
        lines.append(f"| {baseline} | {' | '.join(row.get(name, ABSENT) for name in names)} |")
    return "\n" + "\n".join(lines) + "\n"


def planning_gains(*rivals: str) -> str:
    """What ``forecast`` gains over these rivals in the panel's cells with tight budgets, by fleet, and what it spends
    until equal accuracy."""
    pooled_over = {entry["rival"]: entry for entry in data("experiments/panel/results.json")["judged"]["pooled"]}
    lines = ["| `forecast` against | gain, `city` | gain, paper's ten | seconds | joules |", "|---|---|---|---|---|"]
    for rival in rivals:
        entry = pooled_over[rival]
        gains = " | ".join(_gain(entry["by_fleet"].get(fleet)) for fleet in ("city", "paper's fleet"))
        lines.append(f"| `{rival}` | {gains} | {spending(entry, 'seconds')} | {spending(entry, 'joules')} |")
    return "\n" + "\n".join(lines) + "\n"


def _gain(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ABSENT
    tie = " (tie)" if entry["verdict"] == "tie" else ""
    return pooled_difference(entry).signed(100, 1).replace("-", "−") + tie


def planning_cells(fleet: str = "") -> str:
    """The number of the panel's cells with tight budgets that have ``forecast``: all, or those of the fleet ``city`` or
    ``paper``."""
    cells = [cell for cell in data("experiments/panel/results.json")["judged"]["cells"] if cell["share"] <= TIGHT]
    return str(sum(fleet_of(cell["cell"]).startswith(fleet) for cell in cells))


def planning_shown() -> str:
    """In how many of the panel's cells ``forecast`` is shown to be not inferior to any rival, such as ``18 of 30``."""
    cells = data("experiments/panel/results.json")["judged"]["cells"]
    return f"{sum(all(e.get('not_inferior', True) for e in cell['rivals']) for cell in cells)} of {len(cells)}"


def promises() -> str:
    """By task and fleet, how far the accuracies that the plans of ``forecast`` promise in the panel are above those of
    their models: the mean over cells, with its interval over seeds, for very uneven labels and for the others."""
    rows = [row for row in data("experiments/panel/results.json")["panels"][0]["rows"]
            if (row["scheme"], row["mode"]) == (OURS, "practical") and row["accuracy"] is not None]
    places = [(row, *row["cell"].rsplit(", σ = ", 1)) for row in rows]

    def excess(place: str, uneven: bool) -> str:
        of_seed: dict[int, list[float]] = {}
        for row, where, sigma in places:
            if where == place and (float(sigma) == VERY_UNEVEN) is uneven:
                of_seed.setdefault(row["seed"], []).append(row["forecast"] - row["accuracy"])
        means = [math.fsum(excesses) / len(excesses) for excesses in of_seed.values()]
        return interval(means).signed(100, 1).replace("-", "−") if means else ABSENT

    lines = ["| task and fleet | σ of at least 0.3 | σ = 0.1 |", "|---|---|---|"]
    lines += [f"| {place} | {excess(place, False)} | {excess(place, True)} |"
              for place in sorted({place for _, place, _ in places})]
    return "\n" + "\n".join(lines) + "\n"


def statement(sigma: str, what: str) -> str:
    """The median over the clients and seeds of Fig. 3: of φ in a mode, or of D̃·√(2KL) (``printed_factor``)."""
    rows = [row for row in data("experiments/fig3/results.json")["rows"] if row["sigma"] == float(sigma)]
    if what == "printed_factor":
        return f"{median(1000 * (2 * kl) ** 0.5 for row in rows for kl in row['divergence']):.0f}"
    return f"{median(phi for row in rows for phi in row['phi'][what]):.{0 if what == 'as_printed' else 1}f}"


def constant(key: str) -> str:
    """The smallest and the largest value of a constant of Theorem 1 over the runs whose trajectories were measured."""
    values = [row["constants"][key] for row in data("experiments/theory/results.json")["rows"]]
    return f"{short(min(values))} to {short(max(values))}"


def repeated(what: str) -> str:
    """About runs that were trained twice: how many, their mean and largest difference, or the difference of the means,
    in points."""
    repeats = data("experiments/repeats.json")
    if repeats is None:
        return ABSENT
    differences = [100.0 * (row["accuracy"][1] - row["accuracy"][0]) for row in repeats["rows"]
                   if row["variant"] == "again"]
    shift = interval(differences)
    return {"runs": str(len(differences)), "mean": f"{sum(map(abs, differences)) / len(differences):.2f}",
            "most": f"{max(map(abs, differences)):.2f}", "shift": shift.signed()}[what]


def machines() -> str:
    """The number of trained runs in ``experiments/runs.jsonl`` by machine."""
    counts = Counter(run["machine"] for run in Store(EXPERIMENTS / "runs.jsonl"))
    return ", ".join(f"{count:,} on {'a CPU' if name == 'CPU' else name}" for name, count in counts.most_common())


def gpu_hours() -> str:
    """The hours of all runs on GPUs, summed over processes."""
    return f"{sum(run['wall_s'] for run in Store(EXPERIMENTS / 'runs.jsonl') if run['machine'] != 'CPU') / 3600:.1g}"


def trained(data_set: str, mode: str = "") -> str:
    """The number of distinct runs of the figures' finished panels on a data set (in one mode, if given)."""
    runs: set[str] = set()
    missing: set[str] = set()
    for figure in FIGURES:
        for panel in data(f"experiments/{figure}/results.json")["panels"]:
            if data_set in panel["title"] and not panel["status"]:
                runs |= {row["run"] for row in panel["rows"] if row["run"] and mode in row["mode"]}
                missing |= {name for name in panel.get("missing_by_mode", {}) if mode in name}
    return f"{len(runs)} distinct runs, {'others not trained yet' if missing else 'complete'}"


def targets(what: str, cell: str = "") -> str:
    """About the trained answers of ``fedgap budget``: how many there are, and the shares of runs and answers that hold.

    ``cell`` is a fleet and a σ, such as ``paper-0.3``."""
    found = data("experiments/forecast/budget_answers.json")["rows"]
    rows = [row for row in found if not cell or row["cell"] == "{}, σ = {}".format(*cell.split("-"))]
    if what == "answers":
        return str(len(rows))
    shares = {"reached": [row["reached"] for row in rows], "thrifty": [row["reached_with_less"] < 0.5 for row in rows]}
    return f"{100 * sum(shares[what]) / len(rows):.0f} %"


RESULT_WRITERS: tuple[Callable[..., str], ...] = (
    learner, learner_gain, learner_share, compared_panels, gains, planning_gains, planning_cells, planning_shown,
    promises, forecast_table, forecast_end, forecast_runs, guide, missed, versus, averaged, pooled, measured, statement,
    constant, repeated, machines, gpu_hours, trained, targets)
WRITERS = {writer.__name__: writer for writer in (*RESULT_WRITERS, *benchmark_numbers.WRITERS)}


def filled(text: str) -> str:
    """The text with every marked number replaced from the data. An unknown word raises an error."""
    def write(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        return match[1] + WRITERS[name](*arguments) + match[4]

    return MARK.sub(write, text)


def main() -> None:
    """Rewrite every page."""
    for page in pages():
        old = page.read_text(encoding="utf-8")
        if (new := filled(old)) != old:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
