"""What the rounds of some segments cost each client, as the arrays of a :class:`fedgap.running.job.Job`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.system import cost


def round_arrays(problem: Problem, segments: Sequence[Segment]) -> dict[str, Any]:
    """The arrays of a job by name, with one row per segment. ``problem`` must have the segments' local steps and upload
    bits."""
    fleet = problem.fleet
    costs = [cost.round_cost(fleet, s.selected, s.pruning_ratio, s.power_w, s.frequency_hz) for s in segments]

    def rows(values: Sequence[Any]) -> np.ndarray:
        return np.stack([np.asarray(v) for v in values])

    def per_bit(values: Sequence[Any]) -> np.ndarray:
        """Divide the costs of an unpruned upload by its bits; 0 for clients that are not selected."""
        return rows([np.where(s.selected, v / fleet.uplink_bits, 0.0) for s, v in zip(segments, values, strict=True)])

    unpruned = np.zeros(fleet.size)
    powers = [np.where(s.selected, s.power_w, fleet.max_power_w) for s in segments]
    download_s = cost.download_delay(fleet)
    curve = {} if fleet.cost_curve is None else {
        "cost_share": rows([fleet.cost_share(segment.pruning_ratio) for segment in segments])}
    return {
        **curve, "selected": rows([s.selected for s in segments]),
        "ratio": rows([np.where(s.selected, s.pruning_ratio, 0.0) for s in segments]),
        "compute_s": rows([c.compute_s for c in costs]), "upload_s": rows([c.upload_s for c in costs]),
        "compute_j": rows([c.compute_j for c in costs]), "upload_j": rows([c.upload_j for c in costs]),
        "upload_s_bit": per_bit([cost.upload_delay(fleet, unpruned, p) for p in powers]),
        "upload_j_bit": per_bit([cost.upload_energy(fleet, unpruned, p) for p in powers]),
        "download_s": download_s, "download_s_bit": download_s / fleet.gradient_bits,
        "statement": rows([problem.statement(s.selected) for s in segments]),
    }
