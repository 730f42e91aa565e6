"""The numbers that pages quote from ``benchmarks/results``: single values by their place in the file, and whole
tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from fedgap.statistics import holm, paired
from tools import ROOT

ABSENT = "–"


@cache
def data(path: str) -> Any:
    """The content of a committed JSON file, by its path in the repository; None if it does not exist."""
    file = ROOT / path
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def value(name: str, place: str, form: str, divisor: str = "1") -> str:
    """One number of ``benchmarks/results/NAME.json``; ``place`` has its keys separated by slashes, ``form`` is a format
    specification.

    In a list, ``key=x,other=y`` selects the first entry with these values (with ``_`` for blanks), and a number selects
    by position. A number that does not exist is written as a dash."""
    entry = data(f"benchmarks/results/{name}.json")
    for part in place.split("/"):
        if isinstance(entry, list) and part.isdigit():
            entry = entry[int(part)] if int(part) < len(entry) else None
        elif isinstance(entry, list):
            wanted = dict(pair.split("=") for pair in part.split(","))
            entry = next((row for row in entry if all(_word(row[key]) == text for key, text in wanted.items())), None)
        else:
            entry = entry.get(part)
        if entry is None:
            return ABSENT
    return format(entry / float(divisor), form)


def _word(entry: Any) -> str:
    return str(entry).replace(" ", "_")


def planning(preset: str) -> str:
    """The seconds that the solver ``exact`` takes for an unchanged preset."""
    rows = [row for row in data("benchmarks/results/plans.json")["presets"]
            if (row["preset"], row["solver"]) == (preset, "exact")]
    return f"{rows[0]['seconds']:.1g} s"


def pruning(variant: str, ratio: str, which: str) -> str:
    """The test accuracy in % of the full or the pruned model after training with this pruning rule and ratio."""
    for row in data("benchmarks/results/pruning_repairs.json")["rows"]:
        if (row["variant"], row["ratio"]) == (variant.replace("_", " "), float(ratio)):
            return f"{row[which]['mean']:.1f} ± {row[which]['ci95']:.1f}"
    return ABSENT


def noise() -> str:
    """The table that shows how noise on label histograms changes plans."""
    results = data("benchmarks/results/histogram_noise.json")
    return table(["ε", "noise's standard deviation", "θ above the optimum, mean (most)",
                  "plans with the same selections"],
                 [[f"{row['epsilon']:g}", f"{2 ** 0.5 / row['epsilon']:.3g}", f"{row['mean']:.2%} ({row['most']:.2%})",
                   f"{row['same']} of {results['draws']}"] for row in results["rows"]])


def readings() -> str:
    """The table that shows how each reading of the paper changes a plan."""
    rows = []
    for row in data("benchmarks/results/readings.json")["rows"]:
        terms = [short(row["terms"][name]) for name in ("clients", "generalization", "pruning")]
        rows.append([f"`{' '.join(row['changes'])}`" if row["changes"] else "*(repaired)*", f"{row['clients']:.1f}",
                     f"{row['pruning_ratio']:.2f}", f"{row['energy_j']:.0f}", *terms])
    return table(["`fedgap plan paper-mnist …`", "clients a round", "mean λ", "energy, J (of 250)", "clients term",
                  "φ term", "pruning term"], rows)


def overheads() -> str:
    """The table of the overhead of a deployed round: median and quartiles by number of nodes, for each way to
    deploy."""
    runs = data("benchmarks/results/deploy_overhead.json")["runs"]
    titles = {"ordinary": "an ordinary app", "plain": "`--plain`", "warm": "`fedgap deploy`"}
    ways = [mode for mode in titles if any(run["mode"] == mode for run in runs)]

    def cell(mode: str, nodes: int) -> str:
        run = next(run for run in runs if (run["mode"], run["nodes"]) == (mode, nodes))
        low, high = run["overhead_s_quartiles"]
        return f"{run['overhead_s_median']:.1f} s ({low:.1f} to {high:.1f})"

    return table(["nodes", *(titles[mode] for mode in ways)],
                 [[str(nodes), *(cell(mode, nodes) for mode in ways)]
                  for nodes in dict.fromkeys(run["nodes"] for run in runs)])


def latencies() -> str:
    """The table of the studio's times from moving a slider to the frame that shows the new plan."""
    return table(["preset", "median", "90 % within", "certified after"],
                 [[name, *(f"{times[key]:.0f} ms" for key in ("median_ms", "p90_ms", "certified_median_ms"))]
                  for name, times in data("benchmarks/results/studio_latency.json")["presets"].items()])


def hostile() -> str:
    """The table that shows what one hostile node does to each aggregator: accuracies, and rounds until the node is
    reported, by seed."""
    results = data("benchmarks/results/hostile_nodes.json")
    titles = {"none": "none", "times -10": "gradient times −10", "times -4": "gradient times −4",
              "3.3e38": "every entry 3.3e38",
              "none, two labels": "none, but each client has a few labels only",
              "claims ten labels, has two": "the same, and one claims all ten labels"}
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(results["rows"], key=lambda row: (list(titles).index(row["attack"]), row["seed"])):
        cases.setdefault((row["attack"], row["aggregator"]), []).append(row)

    def listed(rows: list[dict[str, Any]], key: str, form: str, absent: str) -> str:
        return ", ".join(absent if row[key] is None else format(row[key], form) for row in rows)

    return table(["attack", "aggregator", "test accuracy", "named"],
                 [[titles[attack], f"`{aggregator}`", listed(rows, "accuracy", ".1%", "failed").replace("%", " %"),
                   listed(rows, "named", "d", ABSENT)] for (attack, aggregator), rows in cases.items()])


def regret_table() -> str:
    """The table of each policy's regret in %, mean and 95 % interval over seeds, by world and number of clients.

    A policy is called a tie if its regret and that of ``replan``, paired by seed, do not differ significantly."""
    results = data("benchmarks/results/regret.json")
    if results is None:
        return ABSENT
    others = ("static", "lyapunov", "random")

    def regrets(case: dict[str, Any], policy: str) -> dict[int, float]:
        return {int(seed): row["policies"][policy]["regret"] for seed, row in case["seeds"].items()}

    def cells(case: dict[str, Any]) -> list[str]:
        compared = holm([paired(regrets(case, policy), regrets(case, "replan")) for policy in others])
        ties = [""] + [", tie" if comparison.verdict == "tie" else "" for comparison in compared]
        return [f"{100.0 * case['mean regret'][policy]:.1f} % ({100.0 * low:.1f} to {100.0 * high:.1f}){tie}"
                for policy, tie in zip(("replan", *others), ties, strict=True)
                for low, high in [case["interval"][policy]]]

    return table(["world", "seeds", "`replan`", *(f"`{policy}`" for policy in others)],
                 [[world, str(len(case["seeds"])), *cells(case)] for world, case in results.items()])


def regret_parts() -> str:
    """The table of where the regret of ``replan`` comes from, in %, as means over seeds."""
    results = data("benchmarks/results/regret_parts.json")
    if results is None:
        return ABSENT
    titles = {"plan": "best plan found with foresight", "true rows": "expects the true rows", "replan": "`replan`",
              "seen rows": "expects only rows it has seen", "never idle": "never leaves a row idle"}
    return table(["world", "seeds", *titles.values()],
                 [[world, str(len(case["seeds"])), *(f"{100.0 * case['mean'][key]:.1f} %" for key in titles)]
                  for world, case in results.items()])


def regret_by_rows() -> str:
    """The regret of ``replan`` in % where each round is judged by the target of its own row."""
    results = data("benchmarks/results/regret_parts.json")
    if results is None:
        return ABSENT
    seeds = results["both with drift"]["seeds"].values()
    return f"{100.0 * sum(seed['replan by rows'] / seed['bound by rows'] - 1.0 for seed in seeds) / len(seeds):.1f} %"


def secant(ratio: str) -> str:
    """The measured γ₂·R at a pruning ratio during the pilots on MNIST, as a range."""
    sensitivity = data("benchmarks/results/calibration.json")["mnist"]["sensitivities"][ratio]
    return f"{short(sensitivity['least'])} to {short(sensitivity['most'])}"


def short(number: float) -> str:
    """A positive number with one or two digits; from a thousand on with a power of ten: 0.008, 8.9, 439, 6.2·10³."""
    if number >= 1000.0:
        mantissa, _, exponent = f"{number:.1e}".partition("e")
        return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    return f"{number:.0f}" if number >= 10.0 else f"{number:.2g}" if number >= 0.01 else f"{number:.1g}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown, with a newline before and after it, which the marks around it need."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join(["", lines[0], "|---" * len(head) + "|", *lines[1:], ""])


def planned_seconds() -> str:
    """The table of planned and measured seconds of four profiled nodes: the first run in full, and the totals of all
    runs."""
    results = data("benchmarks/results/planned_seconds.json")
    runs = results["runs"]
    nodes = [[f"{node['quota']:.1%} of a core", f"{node['pruning_ratio']:.2f}", f"{node['planned_s']:.1f} s",
              f"{node['measured_s']:.1f} s", f"{node['seconds_ratio']:.2f}"] for node in runs[0]["nodes"]]
    totals = [[f"**all {len(run['rounds'])} rounds**, load {run['load_before']:.0f} to {run['load_after']:.0f}", "",
               f"{run['planned_s']:.1f} s", f"{run['measured_s']:.1f} s", f"**{run['ratio']:.2f}**"] for run in runs]
    return table(["node", "λ", "planned", "measured", "ratio"], nodes + totals)


WRITERS: tuple[Callable[..., str], ...] = (value, planning, pruning, noise, readings, overheads, latencies, hostile,
                                        planned_seconds, regret_table, regret_parts, regret_by_rows,
                                        secant)
