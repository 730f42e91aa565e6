"""The measured numbers in README and documentation, each written from committed result data.

    python -m fedgap.evidence.numbers            rewrites them

A page has ``<!-- n: WORDS -->…<!-- / -->`` around each: the first word is one of :data:`WRITERS`, the others are its
arguments, and what stands between is what it answers. Data that is not there yet is written as "–".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fedgap.evidence.definition import FOLDER
from fedgap.evidence.guide import DEFAULT, MEASURED, NO_LABELS
from fedgap.evidence.judges import number
from fedgap.evidence.results import by_seed
from fedgap.evidence.statistics import interval
from fedgap.evidence.store import Store

ROOT = FOLDER.parent
MARK = re.compile(r"(<!-- n: ([^>]+?) -->)(.*?)(<!-- / -->)", re.DOTALL)
ABSENT = "–"
GUIDES = {"theta": DEFAULT, "measured": MEASURED, "no_labels": NO_LABELS, "rounds": "fewest rounds last (−R)",
          "samples": "fewest samples last (−R·k)", "clients": "fewest clients last (−k)",
          "divergence": "pooled divergence"}
FIGURES = ("fig4", "fig5", "fig6", "fig7", "fig8", "heterogeneity")


def pages() -> list[Path]:
    """Where numbers may stand."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), FOLDER / "README.md"])


@cache
def _data(path: str) -> Any:
    file = ROOT / path
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def guide(sigma: str, name: str) -> str:
    """A guide's rank correlation with the error of random plans; ``NAME-theta``: how much better than θ it ranks."""
    block = next(b for b in _data("experiments/guide/results.json")["correlations"] if b["sigma"] == float(sigma))
    named = {"measured-theta": "measured_less_theta", "measured-held": "measured_weight_from_other_seeds"}
    return number(block[named[name]] if name in named else block["of"][GUIDES[name]])


def missed(sigma: str, name: str) -> str:
    """By how many points the plan that a guide puts first misses the best of twenty."""
    block = next(b for b in _data("experiments/guide/results.json")["correlations"] if b["sigma"] == float(sigma))
    return number(block["missed_points"][GUIDES[name]])


def planning(preset: str) -> str:
    """The seconds that ``exact`` takes for a preset as it is."""
    rows = [row for row in _data("benchmarks/results/plans.json")["presets"]
            if (row["preset"], row["solver"]) == (preset, "exact")]
    return f"{rows[0]['seconds']:.1g} s"


def pruning(variant: str, ratio: str, which: str) -> str:
    """Test accuracy in % of the full or the pruned model, after training under a pruning rule."""
    for row in _data("benchmarks/results/pruning_repairs.json")["rows"]:
        if (row["variant"], row["ratio"]) == (variant.replace("_", " "), float(ratio)):
            return f"{row[which]['mean']:.1f} ± {row[which]['ci95']:.1f}"
    return ABSENT


def noise() -> str:
    """The table of what noise on label histograms does to plans."""
    found = _data("benchmarks/results/histogram_noise.json")
    lines = ["| ε | noise's standard deviation | θ above the optimum, mean (most) | plans with the same selections |",
             "|---|---|---|---|"]
    lines += [f"| {row['epsilon']:g} | {2 ** 0.5 / row['epsilon']:.3g} | {row['mean']:.2%} ({row['most']:.2%}) | "
              f"{row['same']} of {found['draws']} |" for row in found["rows"]]
    return "\n".join(["", *lines, ""])


def versus(figure: str, value: str, baseline: str) -> str:
    """The proposed scheme less a baseline in points of accuracy, repaired, in a figure's first panel."""
    for c in _data(f"experiments/{figure}/results.json")["panels"][0]["comparisons"]:
        if (c["mode"], c["value"], c["baseline"]) == ("repaired", float(value), baseline):
            return f"{100 * c['difference']:+.1f} ± {100 * c['half']:.1f}"
    return ABSENT


def measured(panel: str, value: str, other: str) -> str:
    """The scheme ``measured`` less another in points of accuracy, on seeds that did not choose it."""
    results = _data("experiments/measured/results.json")
    rows = [] if results is None else results["panels"][int(panel)]["rows"]
    first, second = (by_seed(rows, "accuracy", scheme=name, value=float(value)) for name in ("measured", other))
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return ABSENT
    found = interval([100.0 * (first[seed] - second[seed]) for seed in seeds])
    return f"{found.mean:+.2f} ± {found.half:.2f}"


def machines() -> str:
    """The trained runs in ``experiments/runs.jsonl`` by machine."""
    counts = Counter(run["machine"] for run in Store(FOLDER / "runs.jsonl"))
    return ", ".join(f"{count:,} on {'a CPU' if name == 'CPU' else name}" for name, count in counts.most_common())


def gpu_hours() -> str:
    """What the runs on GPUs took, as a sum over processes."""
    return f"{sum(run['wall_s'] for run in Store(FOLDER / 'runs.jsonl') if run['machine'] != 'CPU') / 3600:.1g}"


def trained() -> str:
    """How many distinct runs of the figures' panels that do not wait are there."""
    there: set[str] = set()
    missing = False
    for figure in FIGURES:
        for panel in _data(f"experiments/{figure}/results.json")["panels"]:
            there |= {row["run"] for row in panel.get("rows", []) if row["run"]}
            missing |= bool(panel.get("missing"))
    return f"{len(there)} distinct runs, {'others not trained yet' if missing else 'complete'}"


WRITERS: dict[str, Callable[..., str]] = {
    writer.__name__: writer
    for writer in (guide, missed, planning, pruning, noise, versus, measured, machines, gpu_hours, trained)
}


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
