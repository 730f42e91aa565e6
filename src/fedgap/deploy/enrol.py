"""Build the scenario, plan and job of a deployment from the nodes' profiles, in the same way as the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgap.config import Experiment, Scenario
from fedgap.config.node_file import NOT_A_DEVICE
from fedgap.deploy.packet import Packet, PacketError, one_line
from fedgap.deploy.round_messages import most_answer_bytes
from fedgap.errors import InfeasibleError, InputError
from fedgap.learning.data import Dataset, load
from fedgap.learning.models.layout import Layout
from fedgap.learning.partition import Partition
from fedgap.planning import plan as make_plan
from fedgap.planning.plan import Plan
from fedgap.running.prepare import Prepared, check_model, data_arguments, make_job, missing_sizes
from fedgap.system import Fleet, download_delay, round_cost

PROFILE_BYTES = 2**20
"""Maximum length of a profile in bytes."""
MOST_CLASSES = 100_000
MOST_SAMPLES = 10**9
"""Maximum number of training samples of a node."""
CLAIM_LIMIT = 5.0
"""The number of samples that a client reports counts in the plan up to this many times the median of the others'."""
DATA_ELSEWHERE = "the data are the nodes'"
"""Replaces the digest of the data in a deployed run's job, because only the nodes have the data."""


@dataclass(frozen=True)
class Profile:
    """What a node reports about itself when it enrols."""

    name: str
    order: int
    """Its position among the clients if it plays a client of an experiment; otherwise -1."""
    device: dict[str, Any]
    label_counts: tuple[int, ...]
    target_counts: tuple[int, ...] | None
    epsilon: float | None

    @staticmethod
    def read(answer: Packet) -> Profile:
        """Read and check the profile in a node's answer."""
        fields = answer.fields
        if fields.get("status") != "enrolled":
            raise PacketError(f"did not enrol: {one_line(fields.get('reason', fields.get('status')))}")
        order = answer.whole("client") if "client" in fields else -1
        device = fields.get("device")
        if not isinstance(device, dict) or any(key in NOT_A_DEVICE for key in device):
            raise PacketError("device: must be a mapping with the figures of a scenario's client")
        epsilon = answer.number("epsilon") if "epsilon" in fields else None
        if epsilon is not None and not epsilon > 0.0:
            raise PacketError("epsilon: must be positive")
        own_target = fields.get("target_counts")
        return Profile(answer.text("name", 200), order, device, _counts("label_counts", fields.get("label_counts")),
                       None if own_target is None else _counts("target_counts", own_target), epsilon)


def _counts(key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_CLASSES:
        raise PacketError(f"{key}: must be a list with one count per class")
    if any(type(count) is not int or count < 0 for count in value):
        raise PacketError(f"{key}: must be whole numbers that are not negative")
    least = 1 if key == "label_counts" else 0
    if not least <= sum(value) <= MOST_SAMPLES:
        raise PacketError(f"{key}: must add up to at least {least} and at most {MOST_SAMPLES:.0e} samples")
    return tuple(value)


class ClaimedPartition(Partition):
    """The label histograms and sizes that the nodes report, without samples."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples D̂_n that each node reports, (N,)."""
        return np.asarray(self.label_counts.sum(axis=1))

    @property
    def indices(self) -> NDArray[np.int64]:
        """An empty array, because only the nodes have the samples."""
        return np.zeros(0, dtype=np.int64)


def first_clients(experiment: Experiment, count: int) -> Experiment:
    """The experiment with only the first ``count`` clients of its scenario."""
    if count > experiment.size:
        raise InputError(f"--local: must be at most {experiment.size}, the number of clients in the scenario; got "
                         f"{count}")
    return experiment.with_clients(experiment.devices()[:count])


def most_request_bytes(experiment: Experiment) -> int:
    """Maximum length in bytes of a node's request. Raises an InputError if the model does not fit the data.

    It is twice what is needed, so that an answer that is a little too long still reaches the server, which then names
    its sender."""
    module = check_model(experiment, load(**data_arguments(experiment)))
    return 2 * max(PROFILE_BYTES, most_answer_bytes(Layout.of(module)))


def check_profile(experiment: Experiment, profile: Profile, dataset: Dataset) -> None:
    """Raise a :class:`~fedgap.deploy.packet.PacketError` if a profile cannot be used for planning.

    Each profile is checked alone, so that the figures of one node cannot end the run of the others."""
    for key, counts in (("label_counts", profile.label_counts), ("target_counts", profile.target_counts)):
        if counts is not None and len(counts) != dataset.classes:
            raise PacketError(f"{key}: must have the {dataset.classes} classes of the experiment's data; it has "
                              f"{len(counts)}")
    try:
        fleet = fleet_of(experiment, [profile], dataset)
        ratio = np.zeros(1)
        cost = round_cost(fleet, np.ones(1, dtype=bool), ratio, fleet.max_power_w, fleet.max_frequency_hz)
        usable = np.isfinite([cost.energy_j, cost.delay_s]).all()
    except Exception as error:  # a node's figures may lead to any error
        raise PacketError(f"its figures cannot be used for planning ({one_line(error)})") from None
    if not usable:
        raise PacketError("device: with these figures a round's joules or seconds would not be finite")


def unaffordable(experiment: Experiment, profiles: Sequence[Profile], dataset: Dataset) -> list[int]:
    """Positions of the profiles to which the broadcasts alone would cost more than the energy budget.

    Every broadcast must reach all nodes, so one node that reports an extremely weak channel would prevent the run. If
    all nodes are like this, the budget is too small, and the list is empty."""
    scenario = _scenario(experiment, profiles, [p.label_counts for p in profiles], dataset)[1]
    joules = scenario.rounds * scenario.server.power_w * download_delay(scenario.fleet())
    over = np.flatnonzero(joules > scenario.budget.energy_j).tolist()
    return over if len(over) < len(profiles) else []


def limited_claims(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The reported histograms (N, classes), with limited totals.

    If a client's total exceeds :data:`CLAIM_LIMIT` times the median of the other clients' totals, its histogram is
    scaled down to that limit, with the same shares of classes. All other rows are unchanged."""
    totals, limited = counts.sum(axis=1), counts.copy()
    for n, total in enumerate(totals):
        others = np.delete(totals, n)
        if len(others) and total > (limit := CLAIM_LIMIT * float(np.median(others))):
            limited[n] = np.maximum(np.rint(counts[n] * (limit / total)), counts[n] > 0)
    return limited


def fleet_of(experiment: Experiment, profiles: Sequence[Profile], dataset: Dataset) -> Fleet:
    """The nodes of these profiles as a fleet, for the cost formulas."""
    return _scenario(experiment, profiles, [p.label_counts for p in profiles], dataset)[1].fleet()


def plan_for(experiment: Experiment, profiles: Sequence[Profile], dataset: Dataset,
             cost_curve: Mapping[str, Any] | None = None) -> Prepared:
    """Build scenario, plan and job for these nodes, in this order. Each profile must have passed :func:`check_profile`.

    :param dataset: the server's data set; the model is evaluated on its test set, whose label histogram is the target
    of planning; :param cost_curve: what pruning saves, if nodes have measured it."""
    counts = limited_claims(np.array([p.label_counts for p in profiles], dtype=np.int64))
    experiment, scenario, target_counts = _scenario(experiment, profiles, counts, dataset, cost_curve)
    plan: Plan = make_plan(scenario, scheme=experiment.scheme, objective=experiment.objective,
                           selection=experiment.selection, solver=experiment.solver)
    if not plan.feasible:
        raise InfeasibleError(plan.reason or "no plan fits the budgets")
    parts = ClaimedPartition((), (), counts, counts * 0 if target_counts is None else target_counts)
    job = make_job(experiment, scenario, plan, dataset, parts)
    job = dataclasses.replace(job, data_sha256=DATA_ELSEWHERE, extra={**job.extra, "deployed": True})
    return Prepared(experiment, scenario, plan, job, dataset, parts)


def _scenario(experiment: Experiment, profiles: Sequence[Profile], counts: ArrayLike, dataset: Dataset,
              cost_curve: Mapping[str, Any] | None = None) -> tuple[Experiment, Scenario, NDArray[np.int64] | None]:
    """The experiment with these nodes as its clients, its scenario, and the nodes' target histograms if all have one.
    """
    experiment = experiment.with_clients([{**p.device, "name": p.name} for p in profiles])
    targets = [p.target_counts for p in profiles]
    target_counts = np.array(targets, dtype=np.int64) if all(t is not None for t in targets) else None
    sizes = missing_sizes(experiment, dataset)
    if cost_curve is not None:
        sizes["cost_curve"] = cost_curve
    scenario = experiment.planning_scenario(counts, dataset.label_counts()[1], target_counts, sizes)
    return experiment, scenario, target_counts
