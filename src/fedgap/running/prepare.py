"""Turn an experiment and its plan into a job, which consists of plain numbers and arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgap.config import Experiment, Scenario
from fedgap.errors import InfeasibleError, InputError
from fedgap.learning.aggregators import load_aggregator, mean
from fedgap.learning.data import Dataset, InputFormat, load
from fedgap.learning.engine import Engine, check_device
from fedgap.learning.models import build
from fedgap.learning.partition import Partition, partition
from fedgap.learning.sizes import flops_per_sample, gradient_bits
from fedgap.learning.structure import Channels, cost_curve, structure_of
from fedgap.planning import Plan, rescore
from fedgap.planning import plan as make_plan
from fedgap.planning.cost_curve_fit import convex_upper_fit
from fedgap.planning.objectives.forecast_tangent import plan_features
from fedgap.planning.policies.policy import PolicyStart
from fedgap.planning.policies.ruled_rounds import RuleChoices
from fedgap.planning.problem import Problem
from fedgap.planning.round_order import interleave
from fedgap.planning.rule_plan import plan_by_rule
from fedgap.planning.solve import scheme_of
from fedgap.registry import POLICIES, RULES, TRACKERS
from fedgap.running.faults import Faults
from fedgap.running.forecast_along import with_forecast
from fedgap.running.job import Job
from fedgap.running.label_probabilities import label_sampling
from fedgap.running.round_arrays import round_arrays
from fedgap.running.weights import load_weights
from fedgap.streams import stream_seed
from fedgap.theory.generalization import smoothed

Progress = Callable[[str, int, int], None]
"""A function that is called during downloads with the file's name, the bytes so far and the total."""
PlanningProgress = Callable[[str, int, float, float], None]
Divided = tuple[Dataset, Partition, Scenario]


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment that is ready to run, with everything that was made for it."""

    experiment: Experiment
    scenario: Scenario
    plan: Plan
    job: Job
    dataset: Dataset
    partition: Partition


def divide(experiment: Experiment, dataset: Dataset | None = None,
           progress: Progress | None = None) -> Divided:
    """Load the experiment's data, divide them among the clients, and build the scenario for planning.

    The scenario keeps its fleet and budgets; its label histograms and φ are replaced by those of the partition.
    ``dataset`` replaces the experiment's data. ``gradient_bits`` and ``flops_per_sample`` are those of the scenario
    (Table I's if a preset has them), or of the model if the scenario leaves them out."""
    wanted = experiment.partition
    if dataset is None:
        dataset = load(progress=progress, **data_arguments(experiment))
    elif dataset.validation_y is None:
        dataset = dataset.with_validation(experiment.data.validation, 0)
    parts = partition(dataset.train_y.numpy(), dataset.test_y.numpy(), experiment.size, dataset.classes,
                      experiment.seed, kind=wanted.kind, concentration=wanted.concentration, sizes=wanted.sizes,
                      shards=wanted.shards, file=wanted.file, target=wanted.target, target_size=wanted.target_size)
    scenario = experiment.planning_scenario(parts.label_counts, dataset.label_counts()[1], parts.target_counts,
                                            missing_sizes(experiment, dataset))
    return dataset, parts, scenario


def prepare(experiment: Experiment, plan: Plan | None = None, dataset: Dataset | None = None,
            progress: Progress | None = None, *, divided: Divided | None = None,
            planning: PlanningProgress | None = None) -> Prepared:
    """Load and divide the data, make the plan, and build the job.

    A given ``plan`` is used if it was made for this scenario. Otherwise the experiment's scheme and solver make one,
    and :class:`~fedgap.errors.InfeasibleError` is raised if there is none. ``divided`` is the result of :func:`divide`
    for this experiment, if it is already known; ``planning`` is called with the solver's progress."""
    dataset, parts, scenario = divided or divide(experiment, dataset, progress)
    check_model(experiment, dataset, float(scenario.fleet().max_ratio.max()))
    _check_world(experiment, scenario)
    if plan is None and experiment.policy is not None and experiment.policy in RULES:
        plan = plan_by_rule(scenario, experiment.policy, scheme=experiment.scheme, seed=experiment.seed)
    elif plan is None:
        plan = make_plan(scenario, scheme=experiment.scheme, objective=experiment.objective,
                         selection=experiment.selection, solver=experiment.solver, progress=planning)
    elif plan.scenario_hash != scenario.hash():
        raise InputError(f"plan: was made for another scenario (hash {plan.scenario_hash or 'missing'}) than this "
                         f"experiment's (hash {scenario.hash()}); `fedgap partition EXPERIMENT --scenario FILE` "
                         "writes the scenario to plan for")
    else:
        Problem.of(scenario).refuse(plan)
        plan = rescore(plan, scenario)
    if not plan.feasible:
        raise InfeasibleError(plan.reason or "no plan fits the budgets")
    return Prepared(experiment, scenario, plan, make_job(experiment, scenario, plan, dataset, parts), dataset, parts)


def model_sizes(experiment: Experiment, dataset: Dataset) -> dict[str, float]:
    """``gradient_bits`` and ``flops_per_sample`` of the experiment's model."""
    module = build(**model_arguments(experiment), input_shape=dataset.shape, classes=dataset.classes, seed=0)
    return {"gradient_bits": float(gradient_bits(module)),
            "flops_per_sample": float(flops_per_sample(module, dataset.shape))}


def missing_sizes(experiment: Experiment, dataset: Dataset) -> dict[str, Any]:
    """The model's sizes that the scenario leaves out, and with channel pruning the cost curve."""
    sizes: dict[str, Any] = model_sizes(experiment, dataset) if experiment.leaves_sizes_out else {}
    if experiment.pruning.structure == "channels":
        curve = channel_costs(experiment, dataset)
        # A max_ratio beyond the curve is an error of the user, which check_model reports.
        if experiment.step_limits[1] <= curve["ratio"][-1]:
            sizes["cost_curve"] = curve
    return sizes


_KNOTS = 12
"""Number of pruning ratios at which the cost curve for channels is given."""


def channel_costs(experiment: Experiment, dataset: Dataset) -> dict[str, list[float]]:
    """The ``model.cost_curve`` of the experiment's model for channel pruning: convex, and never below the true cost."""
    module = build(**model_arguments(experiment), input_shape=dataset.shape, classes=dataset.classes, seed=0)
    shares = cost_curve(module, dataset.shape, experiment.pruning.structure)
    ratio = np.linspace(0.0, float(shares.ratio[-1]), _KNOTS)

    def knots(share: np.ndarray) -> list[float]:
        # Straight lines between points of a convex curve lie above it, so a few points still give an upper bound.
        return [float(value) for value in np.interp(ratio, shares.ratio, convex_upper_fit(shares.ratio, share))]

    return {"ratio": ratio.tolist(), "bits": knots(shares.bits), "flops": knots(shares.flops)}


NEARLY = 1.1
"""Sizes in the scenario and of the model may differ by this factor without a warning, because Table I is rounded."""


def other_sizes(experiment: Experiment, scenario: Scenario, dataset: Dataset) -> str:
    """A warning if the scenario's costs belong to another model than the experiment trains; otherwise ""."""
    parts = []
    for key, own in model_sizes(experiment, dataset).items():
        charged = getattr(scenario.fleet(), key)
        if not charged.min() / NEARLY <= own <= charged.max() * NEARLY:
            parts.append(f"scenario.model.{key} is {charged.max():.4g}, but the model's is {own:.4g}")
    if not parts:
        return ""
    return (f"warning: {'; '.join(parts)}. Joules and seconds are computed with the scenario's; leave these keys out "
            "to use the model's.")


def check_model(experiment: Experiment, dataset: Dataset, max_ratio: float = 0.0) -> torch.nn.Module:
    """Build the model and try it on two samples, so that errors in it are reported before any file is written.

    ``max_ratio`` is the largest pruning ratio that the scenario allows."""
    name = experiment.model.name
    module = build(**model_arguments(experiment), input_shape=dataset.shape, classes=dataset.classes,
                   seed=stream_seed(experiment.seed, "model"))
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError(f"model: {name} has no parameters to train")
    if experiment.model.weights is not None:
        load_weights(module, experiment.model.weights)
    Engine(module)
    samples = dataset.train_x[:2]
    try:
        with torch.no_grad():
            logits = module.eval()(samples)
    except Exception as error:  # whatever a user's module raises
        raise InputError(f"model: {name} cannot take inputs of shape {tuple(samples.shape)} ({error})") from error
    wanted = (len(samples), dataset.classes)
    if not isinstance(logits, torch.Tensor) or logits.shape != wanted:
        given = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(f"model: {name} must return one logit for each of {dataset.classes} classes, so shape "
                         f"{wanted} for {len(samples)} samples; it returned {given}")
    structure = structure_of(experiment.pruning.structure, module, dataset.shape)
    if isinstance(structure, Channels) and max_ratio > structure.largest_ratio:
        raise InputError(f"scenario.pruning.max_ratio: must be at most {structure.largest_ratio:.4g} with "
                         f"pruning.structure channels, which leaves one channel in each layer of {name}; got "
                         f"{max_ratio:g}")
    return module


def make_job(experiment: Experiment, scenario: Scenario, plan: Plan, dataset: Dataset, parts: Partition) -> Job:
    """Build the job, which contains everything that training needs; no configuration is read after this."""
    load_aggregator(experiment.learning.aggregator)  # so that an error in it is reported before anything is written
    for tracker in experiment.trackers:
        TRACKERS.load(tracker, "trackers")
    readings, engine, faults = experiment.readings, experiment.engine, experiment.faults
    segments, steps = plan.segments, plan.local_steps
    problem = Problem.of(scenario).with_learner(steps, plan.upload_bits)
    fleet = problem.fleet
    if segments[0].selected.size != scenario.size:
        raise InputError(f"plan: must be for the {scenario.size} clients of the scenario; it has "
                         f"{segments[0].selected.size}")
    learning, weights = scenario.learning, experiment.model.weights
    policy, schedule = _policy(experiment, scenario), schedule_of(plan, scenario, experiment.interleave)
    if policy and scenario.world is None and (rule := policy["name"]) in RULES:
        if RULES.load(rule).uses_losses:
            start = PolicyStart.of(scenario, plan, scheme_of(experiment.scheme), experiment.seed)
            choices = RuleChoices.of(start, rule)
            policy, segments = {"name": rule, "rule": choices.settings}, choices.segments
            first, others = (menu["segment"] for menu in choices.settings["menus"])
            schedule = np.where(np.arange(plan.rounds) == 0, first, others)
        else:
            policy = {}  # the plan has the rounds that the rule chooses
    arrays = round_arrays(problem, segments)
    target = smoothed(dataset.label_counts()[1])  # the target distribution that the plan uses
    sampling = label_sampling(learning.batches, arrays["selected"], schedule, parts.label_counts, target,
                              samples_per_round=steps * fleet.batch_size, max_repeat=learning.max_repeat)
    device = engine.device if engine.device != "auto" else str(check_device("auto"))
    forecast = {} if plan.forecast is None else {"forecast": plan.forecast.to_dict()}
    job = Job(
        seed=experiment.seed, data=data_arguments(experiment), data_sha256=dataset.digest(),
        model=model_arguments(experiment), learning_rate=scenario.learning.rate,
        evaluate_every=experiment.evaluate_every, evaluate_pruned=readings["evaluate_pruned"],
        importance={"rule": experiment.pruning.importance, "remember": _remembers(experiment),
                    "current_weights": readings["importance_weights"] == "current"},
        energy_budget_j=scenario.budget.energy_j, delay_budget_s=scenario.budget.delay_s,
        accounting=experiment.pruning.accounting, structure=experiment.pruning.structure,
        faults=Faults(**faults.model_dump()),
        aggregator=_aggregator(experiment, learning.weighting), engine=engine.kind, device=device,
        precision=engine.precision, threads=engine.threads or torch.get_num_threads(),
        checkpoint_every=experiment.checkpoint_every, names=tuple(scenario.names), scheme=plan.scheme,
        schedule=schedule, **arrays, gradient_bits=fleet.gradient_bits, server_power_w=scenario.server.power_w,
        policy=policy,
        batch_size=fleet.batch_size.astype(np.int64), indices=parts.indices, sizes=parts.sizes,
        label_counts=parts.label_counts, target_counts=parts.target_counts,
        local_steps=steps, client=learning.client.model_dump(), server=learning.server.model_dump(),
        rate_schedule=learning.schedule, warm_up=learning.warm_up, batches=learning.batches,
        label_probabilities=sampling.probabilities, weighting=learning.weighting, upload_bits=problem.upload_bits,
        idle_power_w=fleet.idle_power_w if fleet.idle_power_w.any() else np.zeros(0),
        latency_s=fleet.latency_s if fleet.latency_s.any() else np.zeros(0),
        weights=None if weights is None else str(Path(weights).resolve()), stop=_stopping(experiment, dataset),
        trackers=list(experiment.trackers),
        extra={"input_shape": list(dataset.shape), "classes": dataset.classes, "scenario_hash": scenario.hash(),
               "summary": {"theta": plan.theta if np.isfinite(plan.theta) else None, "mode": readings["mode"],
                           "data": dataset.name, "model": experiment.model.name, "local_steps": steps,
                           **forecast, **sampling.summary, "preprocessing": InputFormat.of(dataset).to_dict()}})
    if scenario.forecast is None or readings["mode"] != "practical":  # forecasts hold only for that mode
        return job
    return with_forecast(job, plan_features(problem, plan.segments), scenario.fitted_forecast())


def schedule_of(plan: Plan, scenario: Scenario, order: str = "even") -> np.ndarray:
    """The plan's segment of each round, (R,). With ``pruning.dense_first`` round 0 belongs to the first segment."""
    return interleave([s.rounds for s in plan.segments], first=0 if scenario.pruning.dense_first else None, order=order)


def _check_world(experiment: Experiment, scenario: Scenario) -> None:
    """Raise an error for a world that cannot be trained in, before time is spent on a plan for it."""
    _policy(experiment, scenario)
    world = scenario.world
    if world is None:
        return
    if world.trace is not None:
        scenario.trace(experiment.seed)
    if world.drift is not None and scenario.target_counts is not None:
        world.drift.require_classes(len(scenario.target_counts))


def _policy(experiment: Experiment, scenario: Scenario) -> dict[str, Any]:
    """The policy of the job, with its scheme; empty if the plan is followed."""
    if experiment.policy is None:
        if scenario.world is not None:
            raise InputError("policy: must be set for a scenario with a world, for example policy=replan; without one, "
                             "powers and clocks would not follow the changing channels")
        return {}
    POLICIES.load(experiment.policy, "policy")  # so that an error in it is reported before anything is written
    names = {"objective": experiment.objective, "selection": experiment.selection}
    return {"name": experiment.policy, "scheme": experiment.scheme, "interleave": experiment.interleave,
            **{key: name for key, name in names.items() if name is not None}}


def model_arguments(experiment: Experiment) -> dict[str, Any]:
    """The arguments of ``build`` except the data's shape and the seed."""
    model = experiment.model
    return {"name": model.name, "initialisation": model.initialisation, **model.arguments}


def _aggregator(experiment: Experiment, weighting: str) -> str:
    """The name of the aggregator. It is loaded here, so that errors in it are reported before any file is written."""
    name = experiment.learning.aggregator
    if load_aggregator(name) is not mean and weighting != "equal":
        raise InputError(f"learning.weighting: must be equal with the aggregator {name}; {weighting} needs the "
                         "aggregator mean")
    return name


def _stopping(experiment: Experiment, dataset: Dataset) -> dict[str, Any]:
    """The rules that end training early. Every training ends if it diverges."""
    wanted = experiment.stop.model_dump(exclude_none=True)
    if wanted and dataset.validation_y is None:
        raise InputError(f"stop.{min(wanted)}: needs validation samples; hold some out, for example "
                         "data.validation=0.1")
    return {**wanted, "diverged": True}


def _remembers(experiment: Experiment) -> bool:
    written = experiment.pruning.remember
    return bool(experiment.readings["dense_first"]) if written is None else written


def data_arguments(experiment: Experiment) -> dict[str, Any]:
    """The arguments of ``load``, with absolute paths, so that the run can be resumed from any folder."""
    data = experiment.data.model_dump(exclude_none=True)
    if data["name"].endswith(".npz"):
        beside = experiment.folder / data["name"]
        data["name"] = str((beside if beside.is_file() else Path(data["name"])).resolve())
    if "folder" in data:
        data["folder"] = str(Path(data["folder"]).resolve())
    return data
