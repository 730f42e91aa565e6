"""What the pruning repairs give: test accuracy of the pruned and of the full model on MNIST after 400 rounds.

The runs train LeNet-5 with ten clients at σ = 5; all clients take part in every round, and the importance uses current
weights. The pruning ratio λ is 0.3, 0.5 or 0.7. The variants are: no repair, a dense first round (with or without
remembered gradients), and ranking by magnitude. Each has ten seeds.

    python benchmarks/pruning_repairs.py --data FOLDER_WITH_MNIST --out benchmarks/results/pruning_repairs.json

Runs are kept under --work and results under --out, so that a second call resumes where the first stopped.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from fedgap.config import Experiment, Scenario
from fedgap.learning.data import Dataset, load
from fedgap.learning.engine import Engine
from fedgap.learning.models import build
from fedgap.planning.plan import Plan, Segment
from fedgap.running.checkpoint import Checkpoints
from fedgap.running.prepare import Prepared, divide, prepare
from fedgap.running.run import Run, execute, has_run
from fedgap.running.train_and_resume import write_run
from fedgap.statistics import interval

VARIANTS = {"without repair": ("dense_first=false", "pruning.importance=taylor"),
            "dense first": ("dense_first=true", "pruning.importance=taylor"),
            "dense first, forgetting": ("dense_first=true", "pruning.importance=taylor", "pruning.remember=false"),
            "magnitude": ("dense_first=false", "pruning.importance=magnitude")}
RATIOS = (0.3, 0.5, 0.7)
STUDY = {  # the study before the project: (full, pruned) model evaluated, in percent
    ("without repair", 0.3): (89.7, 92.3), ("dense first", 0.3): (92.2, 93.2), ("magnitude", 0.3): (87.4, 92.6),
    ("without repair", 0.5): (76.3, 91.2), ("dense first", 0.5): (87.4, 92.0), ("magnitude", 0.5): (67.9, 92.0),
    ("without repair", 0.7): (46.8, 89.0), ("dense first", 0.7): (70.3, 89.4), ("magnitude", 0.7): (34.9, 90.7),
    ("unpruned", 0.0): (93.2, 93.2)}

STUDY_SD = (0.6, 1.1)
"""The range of the standard deviations between seeds that the earlier study reports for pruned models, in percentage
points."""


def everybody(scenario: Scenario, rounds: int, ratio: float, dense_first: bool) -> Plan:
    """A plan with all clients in all rounds at one pruning ratio, at full power and clock."""
    fleet, n = scenario.fleet(), scenario.size
    parts = [(1, 0.0), (rounds - 1, ratio)] if dense_first else [(rounds, ratio)]
    segments = tuple(Segment(r, np.ones(n, dtype=bool), np.full(n, x), fleet.max_power_w, fleet.max_frequency_hz)
                     for r, x in parts)
    return Plan(status="feasible", scheme="all_clients", solver="fixed", rounds=rounds, segments=segments,
                theta=float("inf"), terms={}, energy_j=0.0, delay_s=0.0, scenario_hash=scenario.hash())


def accuracy(run: Run, data: Dataset) -> tuple[float, float]:
    """The accuracies of the full and of the pruned model in per cent."""
    tensors, _ = Checkpoints(run.folder / "checkpoint").load()
    module = build(**run.job.model, input_shape=data.shape, classes=data.classes, seed=0)
    weights, buffers = tensors["weights"][None], tensors["buffers"][None]
    full, = Engine(module).evaluate(weights, buffers, data.test_x, data.test_y)
    return 100 * full.accuracy, 100 * run.summary["test_accuracy"]


def prepared(name: str, ratio: float, seed: int, rounds: int, folder: str, data: Dataset) -> Prepared:
    """One run, ready to be executed."""
    experiment = Experiment.load("mnist", [
        f"seed={seed}", f"rounds={rounds}", f"evaluate_every={rounds}", "engine.threads=1", "engine.device=cpu",
        f"data.folder={folder}", "budget.energy_j=1e9", "budget.delay_s=1e9", "evaluate_pruned=true",
        "importance_weights=current", "checkpoint_every=100",
        "scenario.pruning.max_ratio=0.9", *VARIANTS.get(name, ("dense_first=false",))])
    _, _, scenario = divide(experiment, data)
    return prepare(experiment, everybody(scenario, rounds, ratio, experiment.readings["dense_first"]), data)


def row(name: str, ratio: float, results: list[tuple[float, float]]) -> dict[str, object]:
    """Means with 95 % confidence intervals, and the difference of the pruned mean from the earlier study's in pooled
    standard errors.

    The study had five seeds and reports a range of standard deviations: ``off`` uses the smallest, which is stricter,
    and ``off_at_most_spread`` the largest."""
    full, pruned = ({"mean": mean.mean, "ci95": mean.half}
                    for mean in (interval(column) for column in zip(*results, strict=True)))
    spread, study = float(np.std([p for _, p in results], ddof=1)), STUDY.get((name, ratio))
    off, lenient = (abs(pruned["mean"] - study[1]) / (sd**2 / 5 + spread**2 / len(results)) ** 0.5 if study else None
                    for sd in STUDY_SD)
    return {"variant": name, "ratio": ratio, "full": full, "pruned": pruned, "pruned_sd": spread, "study": study,
            "off": off, "off_at_most_spread": lenient, "each": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/pruning_repairs"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    data, rows = load("mnist", options.data), []
    cells = [("unpruned", 0.0), *((name, ratio) for ratio in RATIOS for name in VARIANTS)]
    known = json.loads(options.out.read_text()) if options.out.is_file() else {"rows": []}
    if known.get("rounds") != options.rounds:
        known = {"rows": []}
    for name, ratio in cells:
        results = next((each["each"][:options.seeds] for each in known["rows"]
                        if (each["variant"], each["ratio"]) == (name, ratio)), [])
        for seed in range(len(results), options.seeds):
            folder = options.work / f"{name.replace(', ', '_').replace(' ', '_')}-{ratio}-{seed}"
            if not has_run(folder):
                write_run(prepared(name, ratio, seed, options.rounds, options.data, data), folder)
            results.append(accuracy(execute([folder], dataset=data)[0], data))
        rows.append(row(name, ratio, results))
        print(json.dumps({key: rows[-1][key] for key in ("variant", "ratio", "full", "pruned", "off")}), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"rounds": options.rounds, "seeds": options.seeds, "rows": rows}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
