"""Random plans for a fleet, and the jobs that train them, on which a forecast is judged.

The clients, local steps, rounds, upload bits and budgets are drawn at random; in some cells also the groups in which
the clients take turns. The solver for fixed selections then computes powers, clocks and the smallest pruning that fits
the budgets; for clients that take turns :mod:`fedgap.planning.operating_points` does. Labels are not used, so cells
with the same fleet share their plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.analysis import mean_pruning_ratio
from fedgap.arrays import Bools, Floats
from fedgap.config import Experiment, Scenario
from fedgap.evidence.definition import Cell
from fedgap.evidence.training import training_key
from fedgap.files import write_json
from fedgap.learning.data import Dataset
from fedgap.learning.partition import Partition
from fedgap.planning import Plan
from fedgap.planning import plan as make_plan
from fedgap.planning.cycles import Cycle, at_random, by_speed, groups_of
from fedgap.planning.diagnosis import feasible
from fedgap.planning.objectives.forecast_tangent import plan_features
from fedgap.planning.problem import Problem
from fedgap.planning.settings import SolverSettings
from fedgap.planning.solve import answer_of, infeasible, scheme_of
from fedgap.planning.task import Task
from fedgap.planning.turn_taking import TurnSearch
from fedgap.running.forecast_pilot import design, pilot_experiment, pilot_plan, samples_processed
from fedgap.running.job import Job
from fedgap.running.prepare import divide, make_job
from fedgap.streams import stream
from fedgap.system import round_cost

LOCAL_STEPS = (1, 2, 4, 8, 16, 32)
WIDE_SHARE, EIGHT_BIT_SHARE = 0.85, 0.5
"""The share of plans with 32-bit uploads, and of 8-bit uploads among the others (the rest has 4 bits)."""
FEWEST_CLIENTS = 3
FEWEST_ROUNDS = 6
BY_SPEED_SHARE = 0.3
"""Where clients take turns, the share of plans whose groups have about equally fast clients."""
LEAST_SHARE = 0.45
"""A plan has at least this share of the largest number of rounds that fits the budgets with maximum pruning."""
STEPS_PER_DECADE = 20
"""Numbers of rounds lie on a geometric grid, so that runs with equally many rounds can be stacked."""
EVALUATIONS = 6
"""Number of evaluations during a run."""
PILOT_SHARE, PILOT_RUNS = 0.045, 32
"""The pilot's share of the samples that all drawn runs of its cell process, and its number of runs."""


@dataclass(frozen=True, eq=False)
class DrawnPlan:
    """A random plan, with the settings (budgets, rounds, local steps, bits) for which it was made."""

    number: int
    settings: tuple[str, ...]
    """Overrides of the experiment: budgets, rounds, local steps and bits."""
    plan: Plan


@dataclass(frozen=True, eq=False)
class DrawnRun:
    """One training of a cell: the facts that a forecast may use, and the job."""

    facts: dict[str, Any]
    job: Job

    @property
    def key(self) -> str:
        """The training key of the job."""
        return str(self.facts["run"])


def plans_file(cell: Cell, folder: Path) -> Path:
    """The file with the cell's plans. Cells that differ only in their data share it."""
    decides = [cell.load().planning_scenario().hash(), cell.budgets, cell.plans, cell.most_samples,
               *(["turns"] if cell.take_turns else [])]
    return folder / f"drawn-{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}.json"


def draw_plans(cell: Cell, folder: Path) -> list[DrawnPlan]:
    """The cell's plans; they are read from ``folder`` if they were drawn before."""
    path = plans_file(cell, folder)
    if not path.is_file():
        drawn = [_draw(cell.load(), cell, number) for number in range(cell.plans)]
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, [{"settings": one.settings, "plan": one.plan.to_dict()} for one in drawn])
        return drawn
    stored = json.loads(path.read_text(encoding="utf-8"))
    return [DrawnPlan(number, tuple(entry["settings"]), Plan.from_dict(entry["plan"]))
            for number, entry in enumerate(stored)]


def _draw(base: Experiment, cell: Cell, number: int) -> DrawnPlan:
    """Draw settings at random until a plan with enough rounds fits the budgets."""
    for attempt in range(1000):
        random = stream(number, "planning", attempt)
        energy_j, delay_s = cell.budgets[random.integers(len(cell.budgets))]
        steps = int(random.choice(LOCAL_STEPS))
        bits = 32 if random.random() < WIDE_SHARE else 8 if random.random() < EIGHT_BIT_SHARE else 4
        settings: tuple[str, ...] = (
            f"budget.energy_j={energy_j!r}", f"budget.delay_s={delay_s!r}", f"learning.local_steps={steps}",
            f"learning.upload_bits={bits}")
        scenario = base.with_overrides(list(settings)).planning_scenario()
        selected = _draw_clients(scenario, random)
        cycle = _draw_cycle(scenario, selected, random) if cell.take_turns else None
        most = _most_rounds(scenario, selected) if cycle is None else _most_in_turns(scenario, cycle)
        batch, at_once = scenario.learning.batch_size, (selected if cycle is None else cycle.groups[0]).sum()
        rounds = most * random.uniform(LEAST_SHARE, 1.0)
        rounds = _on_grid(min(rounds, cell.most_samples / (steps * batch * int(at_once))))
        if rounds < FEWEST_ROUNDS:
            continue
        settings = (*settings, f"rounds={rounds}")
        scenario = base.with_overrides(list(settings)).planning_scenario()
        plan = (make_plan(scenario, shorten=False, selection=lambda _, chosen=selected: chosen)  # type: ignore[misc]
                if cycle is None else _in_turns(scenario, cycle))
        if plan.feasible:
            return DrawnPlan(number, settings, replace(plan, scheme="drawn"))
    raise AssertionError(f"{cell.title}: no random plan fits the budgets")


def _draw_clients(scenario: Scenario, random: np.random.Generator) -> Bools:
    """Draw the selected clients: their number is uniform or log-uniform; they are drawn uniformly, are the fastest
    ones, or the fastest ones when times have a random error."""
    size = scenario.size
    fewest = min(FEWEST_CLIENTS, size)
    evenly, in_logarithms = random.uniform(fewest, size), np.exp(random.uniform(np.log(fewest), np.log(size)))
    count = round(float(evenly if random.random() < 0.5 else in_logarithms))
    blur = random.choice([0.0, 0.5, 10.0])
    order = np.argsort(_seconds(scenario) * np.exp(blur * random.standard_normal(size)), kind="stable")
    return np.isin(np.arange(size), order[:count])


def _draw_cycle(scenario: Scenario, selected: Bools, random: np.random.Generator) -> Cycle:
    """Draw groups of the selected clients that take turns.

    The number of clients in a group is log-uniform. The groups are drawn at random, or have about equally fast clients.
    """
    pool = np.flatnonzero(selected)
    count = round(float(np.exp(random.uniform(0.0, np.log(len(pool))))))
    if random.random() < BY_SPEED_SHARE:
        return by_speed(pool, count, _seconds(scenario))
    return at_random(pool, count, groups_of(len(pool), count), random, scenario.size)


def _turns(scenario: Scenario) -> TurnSearch:
    return TurnSearch(Problem.of(scenario), scheme_of("forecast"))


def _most_in_turns(scenario: Scenario, cycle: Cycle) -> float:
    """The largest number of rounds on the grid in which the groups can take turns within the budgets; 0 if too few
    fit."""
    numbers = [_on_grid(1.001 * 10 ** (step / STEPS_PER_DECADE)) for step in range(5 * STEPS_PER_DECADE)]
    numbers = [number for number in dict.fromkeys(numbers) if number >= FEWEST_ROUNDS]
    return max((draft.problem.rounds for draft in _turns(scenario).drafts(cycle, np.array(numbers))), default=0)


def _in_turns(scenario: Scenario, cycle: Cycle) -> Plan:
    """The plan in which these groups take turns for all rounds of the scenario."""
    search = _turns(scenario)
    task = Task.of(search.problem, search.scheme)
    draft = next(search.drafts(cycle, np.array([scenario.rounds])), None)
    return infeasible(task, SolverSettings()) if draft is None else answer_of(
        task, "exact", draft.segments(search.scheme), status="feasible")


def _seconds(scenario: Scenario) -> Floats:
    """Seconds that each client needs for an unpruned round at full power and clock, (N,)."""
    fleet = scenario.fleet()
    everybody = np.ones(fleet.size, dtype=np.bool_)
    return round_cost(fleet, everybody, np.zeros(fleet.size), fleet.max_power_w, fleet.max_frequency_hz).client_s


def _most_rounds(scenario: Scenario, selected: Bools) -> float:
    """The largest number of rounds that fits the budgets with maximum pruning, to within one step of the grid; 0 if too
    few fit."""
    task = Task.of(Problem.of(scenario), scheme_of("proposed", None, lambda _: selected))
    kept = 1.0 - scenario.pruning.max_ratio
    low, high = 1.0, max(2.0, scenario.budget.delay_s / (kept * float(_seconds(scenario)[selected].max())))
    if not feasible(task.with_rounds(FEWEST_ROUNDS)):
        return 0.0
    while high / low > 10 ** (1 / STEPS_PER_DECADE):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if feasible(task.with_rounds(max(1, int(middle)))) else (low, middle)
    return float(low)


def _on_grid(rounds: float) -> int:
    """The largest number of rounds on the grid that is not above ``rounds``."""
    if rounds < 1.0:
        return 0
    exponent = np.floor(np.log10(rounds) * STEPS_PER_DECADE + 1e-9)
    return max(1, int(10 ** (exponent / STEPS_PER_DECADE)))


def runs_of(cell: Cell, drawn: list[DrawnPlan], dataset: Dataset) -> Iterator[DrawnRun]:
    """The trainings of a cell. Most plans have one seed, the cell's first or second in turn; repeated plans have two or
    three."""
    seeds_of = [tuple(cell.first_seed + place for place in places) for places in _seeds(cell, drawn)]
    divided = {seed: divide(cell.load(f"seed={seed}"), dataset)[1] for seed in set().union(*seeds_of)}
    for one in drawn:
        for seed in seeds_of[one.number]:
            rounds = one.plan.rounds
            experiment = cell.load(*one.settings, f"seed={seed}", f"evaluate_every={-(-rounds // EVALUATIONS)}")
            parts = divided[seed]
            scenario = _scenario(experiment, parts, dataset)
            job = _without_stops(make_job(experiment, scenario, one.plan, dataset, parts))
            yield DrawnRun({"plan": one.number, **facts_of(scenario, one.plan, job)}, job)


def pilot_runs_of(cell: Cell, samples: float, dataset: Dataset) -> Iterator[DrawnRun]:
    """The pilot of the cell, as ``fedgap calibrate`` would train it with this many samples."""
    experiment = pilot_experiment(cell.load())
    dataset, parts, scenario = divide(experiment, dataset)
    for number, run in enumerate(design(scenario, samples, runs=PILOT_RUNS, seed=experiment.seed)):
        planned = experiment.with_overrides([*run.overrides(), f"evaluate_every={-(-run.rounds // EVALUATIONS)}"])
        scenario = _scenario(planned, parts, dataset)
        plan = pilot_plan(run, scenario)
        job = _without_stops(make_job(planned, scenario, plan, dataset, parts))
        yield DrawnRun({"pilot": number, **facts_of(scenario, plan, job)}, job)


def _scenario(experiment: Experiment, parts: Partition, dataset: Dataset) -> Scenario:
    return experiment.planning_scenario(parts.label_counts, dataset.label_counts()[1], parts.target_counts)


def _without_stops(job: Job) -> Job:
    """The job without stopping rules, so that it is trained to its end even if the model diverges."""
    return replace(job, stop={})


def facts_of(scenario: Scenario, plan: Plan, job: Job) -> dict[str, Any]:
    """What a forecast may know about a run, its training key, and the number of samples it processes."""
    known = asdict(plan_features(Problem.of(scenario), plan.segments))
    return {"run": training_key(job), "seed": job.seed, **{name: _digits(value) for name, value in known.items()},
            "label_divergence": _digits(job.extra["summary"]["label_divergence"]),
            "energy_j": _digits(job.energy_budget_j), "delay_s": _digits(job.delay_budget_s),
            "samples": samples_processed(job)}


def _digits(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _seeds(cell: Cell, drawn: list[DrawnPlan]) -> list[tuple[int, ...]]:
    ranked = sorted(drawn, key=_first_guess)
    place = {one.number: rank for rank, one in enumerate(ranked)}
    thrice, twice = cell.repeats
    return [(0, 1, 2) if place[one.number] < thrice else (0, 1) if place[one.number] < thrice + twice
            else (one.number % 2,) for one in drawn]


def _first_guess(one: DrawnPlan) -> float:
    """A rough forecast of the error, used only to decide which plans are trained with several seeds."""
    main = one.plan.segments[-1]
    effective = one.plan.rounds * main.local_steps**0.7
    return float(1.25 * effective**-0.8 * np.exp(0.5 * (mean_pruning_ratio(one.plan) or 0.0))
                 + 0.1 / main.selected.sum())
