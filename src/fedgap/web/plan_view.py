"""A plan as the page draws it: the contract's object, with what each client's rounds cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgap.planning.plan import Plan, Segment
from fedgap.planning.problem import Problem

_NEAR = 1e-4
"""Relative distance at which two clients end a round together."""


def drawn(plan: Plan, problem: Problem) -> dict[str, Any]:
    """The contract's plan, each segment with its costs by client and cause and its stragglers."""
    answer = plan.to_dict()
    for written, segment in zip(answer["segments"], plan.segments, strict=True):
        written["cost"] = _cost(problem, segment)
    answer["budget"] = {"energy_j": problem.energy_j, "delay_s": problem.delay_s, "rounds": problem.rounds}
    answer["clients"] = _totals(plan, problem)
    return answer


def brief(plan: Plan) -> dict[str, Any]:
    """What a row of the comparison shows."""
    answer = plan.to_dict()
    answer["selected"] = [int(segment.selected.sum()) for segment in plan.segments]
    pruned = [float(np.mean(s.pruning_ratio[s.selected])) * s.rounds for s in plan.segments]
    answer["mean_pruning_ratio"] = sum(pruned) / plan.rounds if plan.rounds else None
    del answer["segments"], answer["trace"]
    return answer


def _cost(problem: Problem, segment: Segment) -> dict[str, Any]:
    cost = problem.cost(segment)
    last = segment.selected & (cost.client_s >= (1.0 - _NEAR) * cost.delay_s)
    return {
        "compute_s": cost.compute_s.tolist(),
        "upload_s": cost.upload_s.tolist(),
        "download_s": cost.download_s.tolist(),
        "compute_j": cost.compute_j.tolist(),
        "upload_j": cost.upload_j.tolist(),
        "broadcast_j": float(cost.broadcast_j),
        "delay_s": float(cost.delay_s),
        "stragglers": np.flatnonzero(last).tolist(),
    }


def _totals(plan: Plan, problem: Problem) -> dict[str, Any]:
    """Over all rounds: each client's rounds and joules, and the server's joules."""
    compute, upload, rounds = np.zeros((3, problem.size))
    for segment in plan.segments:
        cost = problem.cost(segment)
        compute += segment.rounds * cost.compute_j
        upload += segment.rounds * cost.upload_j
        rounds += segment.rounds * segment.selected
    return {
        "compute_j": compute.tolist(),
        "upload_j": upload.tolist(),
        "rounds": rounds.astype(int).tolist(),
        "broadcast_j": problem.broadcast_j * plan.rounds,
    }
