"""Runs that differ in their seed only, averaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedgap.statistics import interval
from fedgap.web.runs import Runs

MEASURES = ("test_accuracy", "test_loss", "energy_j", "delay_s")


def over_seeds(runs: Runs, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for the runs of equal configuration: who they are, and each measure's mean and 95 % interval.

    Only finished runs count, because others are not comparable; of several runs with one seed only the first counts.
    """
    groups: dict[str, dict[Any, str]] = {}
    for name in names:
        if runs.state(name)[0] == "finished":
            config = dict(runs.config(name))
            seed = config.pop("seed", None)
            groups.setdefault(json.dumps(config, sort_keys=True), {}).setdefault(seed, name)
    return [_row(runs, list(by_seed.values())) for by_seed in groups.values()]


def _row(runs: Runs, names: list[str]) -> dict[str, Any]:
    rows = [runs.overview(name) for name in names]
    row: dict[str, Any] = {"runs": names, "scheme": rows[0]["scheme"]}
    if len(names) < 2:
        return row
    for measure in MEASURES:
        numbers = [overview[measure] for overview in rows if overview[measure] is not None]
        mean = interval(numbers) if numbers else None
        row[measure] = {"mean": mean and mean.mean, "ci95": mean and mean.half}
    return row
