"""The cases of a panel: every combination of mode, scheme, seed and varied value, with its experiment and its plan."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.analysis import mean_pruning_ratio
from fedgap.config import Experiment, Scenario
from fedgap.config.mode_defaults import PRACTICAL_SCHEME
from fedgap.errors import FedgapError, InfeasibleError
from fedgap.evidence.bundle import open_data
from fedgap.evidence.definition import Panel
from fedgap.evidence.training import training_key
from fedgap.files import write_text
from fedgap.learning.data import Dataset
from fedgap.planning import Plan
from fedgap.planning import plan as make_plan
from fedgap.planning.diagnosis import most_rounds
from fedgap.planning.problem import Problem
from fedgap.planning.rule_plan import plan_by_rule
from fedgap.planning.schemes import Scheme
from fedgap.planning.solve import scheme_of
from fedgap.planning.task import Task
from fedgap.registry import RULES
from fedgap.running.job import Job
from fedgap.running.prepare import Divided, divide, prepare
from fedgap.running.steering import Steering
from fedgap.running.worker_pool import all_in_processes


@dataclass(frozen=True)
class Case:
    """One run that a panel needs."""

    experiment: str
    """The preset or file that the overrides change."""
    overrides: tuple[str, ...]
    mode: str
    scheme: str
    seed: int
    value: float
    """The value of the quantity that the panel varies: a budget, σ, or the number of rounds."""

    def load(self) -> Experiment:
        """The experiment of this case."""
        return Experiment.load(self.experiment, self.overrides)

    @property
    def data_overrides(self) -> tuple[str, ...]:
        """The overrides that choose the data set."""
        return tuple(override for override in self.overrides if override.startswith("data."))

    def digest(self) -> str:
        """16 hex digits that identify the experiment and its overrides."""
        return hashlib.sha256("\n".join([self.experiment, *self.overrides]).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Planned:
    """A case with its plan. ``job`` is None if not even one round fits the budgets, or if only the plan was wanted."""

    case: Case
    scenario: Scenario
    plan: Plan
    job: Job | None
    key: str
    """Identifies what is trained (see ``training_key``); empty if nothing is."""
    rounds_asked: int

    def facts(self) -> dict[str, Any]:
        """The facts of the plan that a result contains."""
        case, plan = self.case, self.plan
        clients = sum(s.rounds * int(s.selected.sum()) for s in plan.segments) / max(1, plan.rounds)
        return {"mode": case.mode, "scheme": case.scheme, "seed": case.seed, "value": case.value, "run": self.key,
                "scenario": self.scenario.hash(), "rounds": plan.rounds, "rounds_asked": self.rounds_asked,
                "theta": float(f"{plan.theta:.6g}") if np.isfinite(plan.theta) else None,
                "clients": round(clients, 3), "pruning_ratio": round(mean_pruning_ratio(plan) or 0.0, 4),
                "energy_j": round(plan.energy_j, 3), "delay_s": round(plan.delay_s, 3),
                **({} if plan.forecast is None else {"local_steps": plan.local_steps,
                                                     "forecast": round(plan.forecast.accuracy, 5)})}


@cache
def open_data_of(experiment: str, folder: Path | None, overrides: tuple[str, ...] = ()) -> Dataset:
    """The data set of an experiment, read once per process; see :func:`open_data`."""
    return open_data(Experiment.load(experiment, overrides).data.model_dump(exclude_none=True), folder)


def cases(panel: Panel) -> Iterator[Case]:
    """Yield every case of a panel."""
    for mode in panel.modes:
        for seed in panel.seeds:
            for value, change in panel.points():
                for scheme in panel.schemes:
                    chosen = (f"scheme={PRACTICAL_SCHEME}", f"policy={scheme}") if scheme in RULES else (
                        f"scheme={scheme}",)
                    overrides = (*panel.overrides, f"mode={mode}", f"seed={seed}", *chosen, *change)
                    yield Case(panel.experiment, overrides, mode, scheme, seed, value)


def plan_case(case: Case, dataset: Dataset, plans: Path, *, job: bool = True) -> Planned:
    """Plan a case, or read its plan from the folder ``plans``.

    If a scheme cannot finish the scenario's rounds within the budgets, it is planned with as many rounds as fit. This
    also applies to the proposed scheme.

    :param job: whether the job that trains the plan is made as well.
    """
    experiment, divided = _divided(case, dataset)
    if case.scheme in RULES:
        return _ruled(case, experiment, divided, dataset, plans, job=job)
    scheme = scheme_of(case.scheme, experiment.objective)
    plan, asked = _plan(divided[2], scheme, plans), divided[2].rounds
    if not plan.feasible:
        most = _most_rounds(divided[2], scheme, plans)
        if most == 0:
            return Planned(case, divided[2], plan, None, "", asked)
        experiment = experiment.with_overrides([f"rounds={most}"])
        divided = divide(experiment, dataset)
        plan = _plan(divided[2], scheme, plans)
        if not plan.feasible:
            raise InfeasibleError(f"{case.scheme}: {plan.reason}")
        plan = replace(plan, theta=np.inf)
    if not job:
        return Planned(case, divided[2], plan, None, "", asked)
    policies = [override for override in case.overrides if override.startswith("policy=")]
    prepared = prepare(experiment.with_overrides(policies), plan, dataset, divided=divided).job
    if prepared.policy:
        steering = Steering.in_world(prepared, divided[2], plan, divided[2].trace(prepared.seed))
        prepared = steering.decided_beforehand()
    prepared = _shared(prepared)
    return Planned(case, divided[2], plan, prepared, training_key(prepared), asked)


def _ruled(case: Case, experiment: Experiment, divided: Divided, dataset: Dataset, plans: Path, *,
           job: bool) -> Planned:
    """Plan a case whose clients are chosen by a published rule."""
    scenario = divided[2]
    path = plans / f"{scenario.hash()}-{case.scheme}-{case.seed}.json"
    if path.is_file():
        plan = Plan.load(path)
    else:
        plan = plan_by_rule(scenario, case.scheme, seed=case.seed)
        plans.mkdir(parents=True, exist_ok=True)
        plan.save(path)
    if not job or not plan.feasible:
        return Planned(case, scenario, plan, None, "", scenario.rounds)
    ruled = experiment.with_overrides([f"policy={case.scheme}"])
    prepared = _shared(prepare(ruled, plan, dataset, divided=divided).job)
    return Planned(case, scenario, plan, prepared, training_key(prepared), scenario.rounds)


_LAST: dict[tuple[str, ...], tuple[Experiment, Divided]] = {}


def _divided(case: Case, dataset: Dataset) -> tuple[Experiment, Divided]:
    """The experiment and its divided data, which the schemes of one setting share. (The scheme of a job is that of its
    plan.)"""
    setting = (case.experiment, *(o for o in case.overrides if not o.startswith(("scheme=", "policy="))))
    if setting not in _LAST:
        _LAST.clear()
        experiment = Experiment.load(case.experiment, setting[1:])
        _LAST[setting] = experiment, divide(experiment, dataset)
    return _LAST[setting]


_PARTITIONS: dict[bytes, Any] = {}


def _shared(job: Job) -> Job:
    """The job with the array of its partition shared with other jobs of the same partition, to save memory."""
    return replace(job, indices=_PARTITIONS.setdefault(job.indices.tobytes()[:4096] + job.sizes.tobytes(), job.indices))


def _plan(scenario: Scenario, scheme: Scheme, plans: Path) -> Plan:
    path = plans / f"{scenario.hash()}-{scheme.name}.json"
    if path.is_file():
        return Plan.load(path)
    plan = make_plan(scenario, scheme=scheme)
    plans.mkdir(parents=True, exist_ok=True)
    plan.save(path)
    return plan


def _most_rounds(scenario: Scenario, scheme: Scheme, plans: Path) -> int:
    path = plans / f"{scenario.hash()}-{scheme.name}.rounds"
    if not path.is_file():
        write_text(path, str(most_rounds(Task.of(Problem.of(scenario), scheme))))
    return int(path.read_text(encoding="utf-8"))


def _plan_in_child(task: tuple[Case, Path, Path | None]) -> str:
    case, plans, folder = task
    with suppress(FedgapError):  # the error occurs again when the plan is read, and is reported then
        plan_case(case, open_data_of(case.experiment, folder, case.data_overrides), plans, job=False)
    return case.digest()


def make_plans(todo: Sequence[Case], plans: Path, *, workers: int, done: Callable[[], None],
               folder: Path | None = None) -> None:
    """Fill the folder ``plans`` with the plans of the cases, using ``workers`` processes; ``done`` is called after each
    case."""
    plans.mkdir(parents=True, exist_ok=True)
    index = plans / "cases.txt"
    known = set(index.read_text(encoding="utf-8").split()) if index.is_file() else set()
    tasks = [(case, plans, folder) for case in todo if case.digest() not in known]
    for _ in range(len(todo) - len(tasks)):
        done()
    if workers == 1 or len(tasks) < 2:
        planned: Iterator[str] = map(_plan_in_child, tasks)
    else:
        planned = all_in_processes(_plan_in_child, tasks, workers, lambda task: " ".join(task[0].overrides))
    with index.open("a", encoding="utf-8") as file:
        for digest in planned:
            file.write(f"{digest}\n")
            file.flush()
            done()
