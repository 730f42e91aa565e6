"""From the nodes' profiles to a scenario, a plan and a job: the simulator's, with the nodes' own figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgap.config import Experiment
from fedgap.deploy.packet import Packet, PacketError
from fedgap.deploy.round_messages import most_answer_bytes
from fedgap.errors import InfeasibleError, InputError
from fedgap.learning.data import Dataset, load
from fedgap.learning.models.layout import Layout
from fedgap.learning.partition import Partition
from fedgap.planning import plan as make_plan
from fedgap.planning.plan import Plan
from fedgap.running.prepare import Prepared, check_model, data_arguments, make_job, missing_sizes

PROFILE_BYTES = 2**20
"""No profile may be longer."""
MOST_CLASSES = 100_000
MOST_SAMPLES = 10**12
DATA_ELSEWHERE = "the data are the nodes'"
"""Stands for the data's digest in a deployed run's job: nobody but the nodes has them."""


@dataclass(frozen=True)
class Profile:
    """What a node told about itself."""

    name: str
    order: int
    """Where it stands among the clients, if it says so (a share of an experiment does)."""
    device: dict[str, Any]
    label_counts: tuple[int, ...]
    target_counts: tuple[int, ...] | None
    epsilon: float | None

    @staticmethod
    def read(answer: Packet) -> Profile:
        """The profile in an enrolment's answer, checked."""
        fields = answer.fields
        if fields.get("status") != "enrolled":
            raise PacketError(f"did not enrol: {fields.get('reason', fields.get('status'))}")
        order = fields.get("client", -1)
        device = fields.get("device")
        if not isinstance(order, int) or isinstance(order, bool):
            raise PacketError("client: must be a whole number")
        if not isinstance(device, dict) or not all(isinstance(key, str) for key in device):
            raise PacketError("device: must be a mapping of a client's figures")
        epsilon = answer.number("epsilon") if "epsilon" in fields else None
        own_target = _counts(fields["target_counts"]) if fields.get("target_counts") is not None else None
        counts = _counts(fields.get("label_counts"))
        return Profile(answer.text("name", 200), order, device, counts, own_target, epsilon)


def _counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_CLASSES:
        raise PacketError("label_counts: must be a list with one count per class")
    if any(isinstance(v, bool) or not isinstance(v, int) or not 0 <= v <= MOST_SAMPLES for v in value):
        raise PacketError("label_counts: must be whole numbers that are not negative")
    return tuple(value)


def first_clients(experiment: Experiment, count: int) -> Experiment:
    """The experiment on the first ``count`` of its scenario's clients."""
    if count > experiment.size:
        raise InputError(f"--local: the scenario has {experiment.size} clients; {count} nodes are too many")
    return experiment.with_clients(experiment.devices()[:count])


def most_request_bytes(experiment: Experiment) -> int:
    """No request of a node to the SuperLink may have more bytes; a model that does not fit the data is an InputError.

    Twice what is needed, so that an answer that is somewhat too long comes to the server, which says whose it is.
    """
    module = check_model(experiment, load(**data_arguments(experiment)))
    return 2 * max(PROFILE_BYTES, most_answer_bytes(Layout.of(module)))


def plan_for(experiment: Experiment, profiles: Sequence[Profile], dataset: Dataset) -> Prepared:
    """Scenario → plan → job for these nodes, in this order.

    :param dataset: the server's own; its test set is what the model is evaluated on, and its label histogram the
        target of planning.
    """
    for profile in profiles:
        if len(profile.label_counts) != dataset.classes:
            raise InputError(f"{profile.name}: reports {len(profile.label_counts)} classes; the experiment's data have "
                             f"{dataset.classes}")
    experiment = experiment.with_clients([{**p.device, "name": p.name} for p in profiles])
    counts = np.array([p.label_counts for p in profiles], dtype=np.int64)
    targets = [p.target_counts for p in profiles]
    target_counts = np.array(targets, dtype=np.int64) if all(t is not None for t in targets) else None
    scenario = experiment.planning_scenario(counts, dataset.label_counts()[1], target_counts,
                                            missing_sizes(experiment, dataset))
    plan: Plan = make_plan(scenario, scheme=experiment.scheme, objective=experiment.objective,
                           selection=experiment.selection, solver=experiment.solver)
    if not plan.feasible:
        raise InfeasibleError(plan.reason or "no plan fits the budgets")
    nowhere = tuple(np.zeros(int(row.sum()), dtype=np.int64) for row in counts)
    parts = Partition(nowhere, (), counts, counts * 0 if target_counts is None else target_counts)
    job = make_job(experiment, scenario, plan, dataset, parts)
    job = dataclasses.replace(job, indices=np.zeros(0, dtype=np.int64), data_sha256=DATA_ELSEWHERE,
                              extra={**job.extra, "deployed": True})
    return Prepared(experiment, scenario, plan, job, dataset, parts)
