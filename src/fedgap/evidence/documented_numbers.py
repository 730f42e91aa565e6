"""The measured numbers in README and documentation, each written from committed result data.

    python -m fedgap.evidence.documented_numbers            rewrites them

A page has ``<!-- n: WORDS -->…<!-- / -->`` around each: the first word is one of :data:`WRITERS`, the others are its
arguments, and what stands between is what it answers. Data that is not there yet is written as "–".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

from fedgap.evidence import benchmark_numbers
from fedgap.evidence.benchmark_numbers import ABSENT, ROOT, data, short
from fedgap.evidence.claim_verdicts import number
from fedgap.evidence.definition import FOLDER
from fedgap.evidence.guide import DEFAULT, MEASURED, NO_LABELS
from fedgap.evidence.results import by_seed
from fedgap.evidence.scheme_claims import on_average
from fedgap.evidence.store import Store
from fedgap.statistics import interval

MARK = re.compile(r"(<!-- n: ([^>]+?) -->)(.*?)(<!-- / -->)", re.DOTALL)
GUIDES = {"theta": DEFAULT, "measured": MEASURED, "no_labels": NO_LABELS, "rounds": "fewest rounds last (−R)",
          "samples": "fewest samples last (−R·k)", "clients": "fewest clients last (−k)",
          "divergence": "pooled divergence"}
FIGURES = ("fig4", "fig5", "fig6", "fig7", "fig8", "heterogeneity", "rounds")


def pages() -> list[Path]:
    """Where numbers may stand."""
    folders = (ROOT / "docs", FOLDER, ROOT / "benchmarks")
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


def guide(sigma: str, name: str) -> str:
    """A guide's rank correlation with the error of random plans; ``NAME-theta``: how much better than θ it ranks."""
    block = next(b for b in data("experiments/guide/results.json")["correlations"] if b["sigma"] == float(sigma))
    named = {"measured-theta": "measured_less_theta", "measured-held": "measured_weight_from_other_seeds"}
    return number(block[named[name]] if name in named else block["of"][GUIDES[name]])


def missed(sigma: str, name: str) -> str:
    """By how many points the plan that a guide puts first misses the best of twenty."""
    block = next(b for b in data("experiments/guide/results.json")["correlations"] if b["sigma"] == float(sigma))
    return number(block["missed_points"][GUIDES[name]])


def versus(figure: str, value: str, baseline: str) -> str:
    """The proposed scheme less a baseline in points of accuracy, repaired, in a figure's first panel."""
    for c in data(f"experiments/{figure}/results.json")["panels"][0]["comparisons"]:
        if (c["mode"], c["value"], c["baseline"]) == ("repaired", float(value), baseline):
            return f"{100 * c['difference']:+.1f} ± {100 * c['half']:.1f}"
    return ABSENT


def averaged(figure: str, panel: str, baseline: str) -> str:
    """The same on average over a panel's values."""
    found = on_average(data(f"experiments/{figure}/results.json")["panels"][int(panel)].get("rows", []), "repaired",
                       baseline, "accuracy")
    return ABSENT if found is None else found.signed(100.0, 1)


def pooled(sigma: str) -> str:
    """The proposed scheme by ``mixture`` less the same by ``mean`` over the city fleet, in points of accuracy."""
    panels = data("experiments/heterogeneity/results.json")["panels"]
    mean, mixture = (by_seed(panel.get("rows", []), "accuracy", scheme="proposed", value=float(sigma))
                     for panel in panels[1:3])
    seeds = sorted(mean.keys() & mixture.keys())
    return interval([100.0 * (mixture[s] - mean[s]) for s in seeds]).signed(digits=1) if len(seeds) > 1 else ABSENT


def measured(panel: str, value: str, other: str) -> str:
    """The scheme ``measured`` less another in points of accuracy, on seeds that did not choose it."""
    results = data("experiments/measured/results.json")
    rows = [] if results is None else results["panels"][int(panel)]["rows"]
    first, second = (by_seed(rows, "accuracy", scheme=name, value=float(value)) for name in ("measured", other))
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return ABSENT
    return interval([100.0 * (first[seed] - second[seed]) for seed in seeds]).signed()


def statement(sigma: str, what: str) -> str:
    """The median over Fig. 3's clients and seeds: of φ in a mode, or of D̃·√(2KL) (``printed_factor``)."""
    rows = [row for row in data("experiments/fig3/results.json")["rows"] if row["sigma"] == float(sigma)]
    if what == "printed_factor":
        return f"{median(1000 * (2 * kl) ** 0.5 for row in rows for kl in row['divergence']):.0f}"
    return f"{median(phi for row in rows for phi in row['phi'][what]):.{0 if what == 'as_printed' else 1}f}"


def constant(key: str) -> str:
    """The least and the largest of a constant of Theorem 1 over the runs whose trajectories were measured."""
    values = [row["constants"][key] for row in data("experiments/theory/results.json")["rows"]]
    return f"{short(min(values))} to {short(max(values))}"


def repeated(what: str) -> str:
    """Runs trained twice: how many, their mean and largest difference, or the difference of the means, in points."""
    found = data("experiments/repeats.json")
    if found is None:
        return ABSENT
    differences = [100.0 * (row["accuracy"][1] - row["accuracy"][0]) for row in found["rows"]
                   if row["variant"] == "again"]
    each = interval(differences)
    return {"runs": str(len(differences)), "mean": f"{sum(map(abs, differences)) / len(differences):.2f}",
            "most": f"{max(map(abs, differences)):.2f}", "shift": each.signed()}[what]


def machines() -> str:
    """The trained runs in ``experiments/runs.jsonl`` by machine."""
    counts = Counter(run["machine"] for run in Store(FOLDER / "runs.jsonl"))
    return ", ".join(f"{count:,} on {'a CPU' if name == 'CPU' else name}" for name, count in counts.most_common())


def gpu_hours() -> str:
    """What the runs on GPUs took, as a sum over processes."""
    return f"{sum(run['wall_s'] for run in Store(FOLDER / 'runs.jsonl') if run['machine'] != 'CPU') / 3600:.1g}"


def trained(data_set: str, mode: str = "") -> str:
    """How many distinct runs are there of the figures' panels on a data set that do not wait (of one mode)."""
    there: set[str] = set()
    missing: set[str] = set()
    for figure in FIGURES:
        for panel in data(f"experiments/{figure}/results.json")["panels"]:
            if data_set in panel["title"] and not panel["status"]:
                there |= {row["run"] for row in panel["rows"] if row["run"] and mode in row["mode"]}
                missing |= {name for name in panel.get("missing_by_mode", {}) if mode in name}
    return f"{len(there)} distinct runs, {'others not trained yet' if missing else 'complete'}"


OWN: tuple[Callable[..., str], ...] = (guide, missed, versus, averaged, pooled, measured, statement, constant,
                                       repeated, machines, gpu_hours, trained)
WRITERS = {writer.__name__: writer for writer in (*OWN, *benchmark_numbers.WRITERS)}


def filled(text: str) -> str:
    """The text with every marked number as the data has it; an unknown word is an error."""
    def write(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        return found[1] + WRITERS[name](*arguments) + found[4]

    return MARK.sub(write, text)


def main() -> None:
    """Rewrites every page."""
    for page in pages():
        old = page.read_text(encoding="utf-8")
        if (new := filled(old)) != old:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
