"""Runs that differ in their seed only, averaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedgap.web.runs import Runs

MEASURES = ("test_accuracy", "test_loss", "energy_j", "delay_s")


def over_seeds(runs: Runs, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for the runs of equal configuration: who they are, and each measure's mean and 95 % interval.

    Only finished runs count, for a run half-way is not comparable.
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if runs.state(name)[0] == "finished":
            config = {key: value for key, value in runs.config(name).items() if key != "seed"}
            groups.setdefault(json.dumps(config, sort_keys=True), []).append(name)
    return [_row(runs, members) for members in groups.values()]


def _row(runs: Runs, members: list[str]) -> dict[str, Any]:
    rows = [runs.overview(name) for name in members]
    row: dict[str, Any] = {"runs": members, "scheme": rows[0]["scheme"]}
    if len(members) < 2:
        return row
    from fedgap.running.sweep import confidence  # brings torch along, so only where there is something to average

    for measure in MEASURES:
        row[measure] = confidence([overview[measure] for overview in rows if overview[measure] is not None])
    return row
