"""Compare ``forecast`` with every other scheme and rule, cell by cell and pooled.

A cell is one task, fleet, σ and share of the budgets; a rival is a scheme or rule in a mode. All comparisons are paired
over seeds, in accuracy, and forecast minus rival.

- **Not inferior** in a cell: the one-sided 95 % bound of the mean difference is at least −0.3 points. **Worse**: the
  other one-sided bound is below 0.
- **Better** over the tight cells (shares of at most a quarter), and over those of each fleet: each seed's mean
  difference over the cells that have both schemes, two-sided paired t-test, Holm's correction over the rivals. A cell
  that lacks a seed which other cells have is left out.
- **Regret** in a cell: the best mean accuracy of all minus that of ``forecast``, over the seeds that both have. This is
  too high, because the best of many noisy means is. **Held out**, the best is therefore chosen by all seeds but one,
  and compared with ``forecast`` in that one.
- **Equal accuracy**: what ``forecast`` spends, divided by what the rival spends, until both reach the lower of their
  final accuracies; the geometric mean over the tight cells, with its interval over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgap.evidence.equal_accuracy import AXES, Runs, logarithms, written
from fedgap.statistics import Interval, PairedComparison, holm, interval, lower_bound, paired

OURS = "forecast"
MARGIN = 0.003
"""How far the accuracy of a scheme may be below another without being called inferior."""
TIGHT = 0.25
"""The largest share of the nominal budgets that is called tight."""
Row = Mapping[str, Any]
OfCell = Mapping[str, Mapping[int, Row]]
"""The rows of a cell by rival and seed."""


def rival_of(row: Row) -> str:
    """The name of a row's scheme or rule, followed by the mode unless it is ``practical``."""
    return str(row["scheme"]) if row["mode"] == "practical" else f"{row['scheme']}, {row['mode']}"


def by_cell(rows: Sequence[Row]) -> dict[tuple[str, float], OfCell]:
    """The rows by (cell, share of the budgets), then by rival and seed. Cells without runs of ``forecast`` are left
    out."""
    cells: dict[tuple[str, float], dict[str, dict[int, Row]]] = {}
    for row in rows:
        if row["accuracy"] is not None:
            of_cell = cells.setdefault((row["cell"], row["value"]), {})
            of_cell.setdefault(rival_of(row), {})[row["seed"]] = row
    return {place: of_cell for place, of_cell in cells.items() if OURS in of_cell}


def seed_means(cells: Sequence[OfCell], rival: str) -> dict[int, float]:
    """A rival's mean accuracy over these cells, for each seed that all cells have."""
    seeds = set.intersection(*(set(of_cell[rival]) for of_cell in cells))
    return {seed: math.fsum(of_cell[rival][seed]["accuracy"] for of_cell in cells) / len(cells) for seed in seeds}


def pooled(cells: Iterable[OfCell], one: str, other: str) -> tuple[list[OfCell], PairedComparison] | None:
    """Compare two rivals by each seed's mean over cells; returns the cells used and the comparison, or None if there
    are none.

    The cells used are those that have both rivals with the largest common set of seeds."""
    shared = [(of_cell, of_cell[one].keys() & of_cell[other].keys())
              for of_cell in cells if one in of_cell and other in of_cell]
    seeds = max((common for _, common in shared), key=len, default=set[int]())
    if not seeds:
        return None
    both = [of_cell for of_cell, common in shared if seeds <= common]
    return both, paired(seed_means(both, one), seed_means(both, other))


def compared(cells: Iterable[OfCell], one: str,
             others: Iterable[str]) -> dict[str, tuple[list[OfCell], PairedComparison]]:
    """Compare a rival with others by :func:`pooled`, with Holm's correction over these; those without a common cell are
    left out."""
    cells = list(cells)
    found = {other: answer for other in others if (answer := pooled(cells, one, other)) is not None}
    corrected = holm([comparison for _, comparison in found.values()])
    return {other: (both, c) for (other, (both, _)), c in zip(found.items(), corrected, strict=True)}


def pooled_difference(entry: Mapping[str, Any]) -> Interval:
    """Mean accuracy of ``forecast`` minus that of a rival, with its interval, from an entry of ``pooled`` in the
    results."""
    return Interval(entry["difference"], entry["half"], entry["seeds"])


def spending(entry: Mapping[str, Any], axis: str) -> str:
    """What ``forecast`` spends divided by what the rival spends, from an entry of ``pooled`` in the results, such as
    ``× 0.72 (0.65 to 0.80)``."""
    if axis not in entry:
        return "–"
    return f"× {written(Interval(entry[axis]['log'], entry[axis]['half'], entry['seeds']))}"


def judged(rows: Sequence[Row], runs: Runs) -> dict[str, Any]:
    """All comparisons: ``cells``, ``pooled`` over the tight cells, and ``regret``.

    The rows have ``cell``, ``value`` (the share of the budgets), ``mode``, ``scheme``, ``seed``, ``accuracy``, ``run``,
    ``rounds``, ``energy_j`` and ``delay_s``; ``runs`` has the records of the runs by key."""
    cells = by_cell(rows)
    return {"cells": [_cell(*place, of_cell) for place, of_cell in cells.items()],
            "pooled": _pooled(cells, runs), "regret": _regret(cells)}


def _accuracies(by_seed: Mapping[int, Row]) -> dict[int, float]:
    return {seed: row["accuracy"] for seed, row in by_seed.items()}


def _cell(cell: str, share: float, of_cell: OfCell) -> dict[str, Any]:
    """The accuracies in one cell, and how ``forecast`` compares with each rival there."""
    ours = _accuracies(of_cell[OURS])
    compared: list[dict[str, Any]] = []
    for rival, by_seed in of_cell.items():
        theirs = _accuracies(by_seed)
        seeds = sorted(ours.keys() & theirs.keys())
        mean = interval(list(theirs.values()))
        entry: dict[str, Any] = {"rival": rival, "accuracy": _digits(mean.mean), "seeds": mean.n,
                                 "half": None if mean.half is None else _digits(mean.half)}
        if rival != OURS and seeds:
            differences = [ours[seed] - theirs[seed] for seed in seeds]
            difference, bound = interval(differences), lower_bound(differences)
            opposite = lower_bound([-value for value in differences])
            entry |= {"difference": _digits(difference.mean), "bound": None if bound is None else _digits(bound),
                      "upper": None if opposite is None else _digits(-opposite),
                      "not_inferior": None if bound is None else bound >= -MARGIN}
        compared.append(entry)
    best = min(compared, key=lambda entry: entry.get("difference", 0.0))
    return {"cell": cell, "share": share, "best": best["rival"] if best.get("difference", 0.0) < 0.0 else OURS,
            "regret": max(0.0, -best.get("difference", 0.0)), "rivals": compared}


def _pooled(cells: Mapping[tuple[str, float], OfCell], runs: Runs) -> list[dict[str, Any]]:
    """For each rival the mean difference over the tight cells, and over those of each fleet."""
    tight = {place: of_cell for place, of_cell in cells.items() if place[1] <= TIGHT}
    rivals = dict.fromkeys(rival for of_cell in tight.values() for rival in of_cell if rival != OURS)
    by_fleet = {fleet: compared((of_cell for (cell, _), of_cell in tight.items() if fleet_of(cell) == fleet), OURS,
                                rivals)
                for fleet in dict.fromkeys(fleet_of(cell) for cell, _ in tight)}
    return [{"rival": rival, **_entry(both, comparison), **_spending(both, rival, runs),
             "by_fleet": {fleet: _entry(*found[rival]) for fleet, found in by_fleet.items() if rival in found}}
            for rival, (both, comparison) in compared(tight.values(), OURS, rivals).items()]


def fleet_of(cell: str) -> str:
    """The fleet of a cell, such as ``city`` of ``MNIST, city, σ = 0.3``."""
    return cell.split(", ")[1]


def _entry(both: Sequence[OfCell], c: PairedComparison) -> dict[str, Any]:
    return {"cells": len(both), "difference": _digits(c.difference.mean), "seeds": c.difference.n,
            "half": None if c.difference.half is None else _digits(c.difference.half),
            "p_holm": float(f"{c.adjusted:.3g}"), "verdict": c.verdict}


def _spending(both: Sequence[OfCell], rival: str, runs: Runs) -> dict[str, Any]:
    """Seconds and joules of ``forecast`` divided by the rival's until equal accuracy: the mean logarithm over cells and
    seeds, and half of its interval over seeds."""
    answer: dict[str, Any] = {}
    of_cells = [logarithms([dict(row) | {"scheme": name} for name in (OURS, rival) for row in of_cell[name].values()],
                           runs, rival, OURS) for of_cell in both]
    for axis in AXES:
        seeds = set[int].intersection(*(set(of_cell[axis]) for of_cell in of_cells))
        if seeds:
            mean = interval([math.fsum(of_cell[axis][seed] for of_cell in of_cells) / len(of_cells) for seed in seeds])
            answer[axis] = {"log": _digits(mean.mean), "half": None if mean.half is None else _digits(mean.half)}
    return answer


def _regret(cells: Mapping[tuple[str, float], OfCell]) -> dict[str, Any]:
    """How far ``forecast`` is below the best scheme of a cell: the mean over all cells, and over the tight ones."""
    groups = {"all": cells, "tight": {place: of_cell for place, of_cell in cells.items() if place[1] <= TIGHT}}
    return {name: {"mean": _digits(math.fsum(_cell(*place, of_cell)["regret"] for place, of_cell in group.items())
                                   / len(group)),
                   "cells": len(group), "held_out": _held_out_regret(list(group.values()))}
            for name, group in groups.items() if group}


def _held_out_regret(cells: Sequence[OfCell]) -> dict[str, Any] | None:
    """The mean regret over cells if the best scheme is chosen by the other seeds, with its interval over seeds.

    Schemes that lack a seed are no candidates. None where fewer than two seeds are common to all cells."""
    seeds = set.intersection(*(set(of_cell[OURS]) for of_cell in cells))
    if len(seeds) < 2:
        return None

    def regret(of_cell: OfCell, seed: int) -> float:
        def elsewhere(name: str) -> float:
            return math.fsum(of_cell[name][other]["accuracy"] for other in seeds - {seed})

        best = max((name for name, rows in of_cell.items() if seeds <= rows.keys()), key=elsewhere)
        return float(of_cell[best][seed]["accuracy"] - of_cell[OURS][seed]["accuracy"])

    means = interval([math.fsum(regret(of_cell, seed) for of_cell in cells) / len(cells) for seed in sorted(seeds)])
    return {"mean": _digits(means.mean), "half": _digits(means.half or 0.0), "seeds": means.n}


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
