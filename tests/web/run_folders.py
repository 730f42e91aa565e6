"""A small scenario, and finished runs on it, written by fedgap's own writers in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fedgap
from fedgap.config import Experiment, Scenario, preset_text
from fedgap.config.yaml_files import parse, write_document
from fedgap.files import write_json, write_text

ROUNDS = 8
SEEDS = (0, 1, 2, 3)
PROPOSED = (0.80, 0.82, 0.84, 0.86)
"""The last accuracy of the scheme proposed, seed by seed: 83 % on average."""
BETTER = (0.01, 0.02, 0.01, 0.02)
"""What all_clients adds: 1.5 ± 0.92 points (t₀.₉₇₅(3) = 3.182, s = 0.577, s/√4·t = 0.919)."""
WORSE = -0.05
"""What no_pruning adds, to each seed alike."""


def small_document(clients: int = 4, **changes: Any) -> dict[str, Any]:
    """The paper's MNIST scenario with few clients: everything on the page is solved at once."""
    document = parse(preset_text("paper-mnist"), "preset")
    document["fleet"] |= {"count": clients, "capacitance": 1.0e-27}
    return document | {"rounds": 60, "budget": {"energy_j": 25.0, "delay_s": 30.0}} | changes


def named_fleet(count: int) -> dict[str, Any]:
    """A scenario that lists so many clients, each with a name. Nobody can slow down, and the last computes slowest."""
    scenario = Scenario.from_dict(small_document(count, rounds=20, budget={"energy_j": 400.0, "delay_s": 60.0}))
    document = {key: value for key, value in scenario.document().items() if key not in ("fleet", "labels", "seed")}
    resolved = scenario.to_dict()
    rooms = ("kitchen", "hall", "attic", "garage", "garden")
    names = [f"{rooms[n % 5]} {n // 5 + 1}" for n in range(count)]
    clients = [{"name": name, **client, "min_frequency_hz": client["max_frequency_hz"],
                "min_power_w": client["max_power_w"], "uplink_gain": 1e-5}
               for name, client in zip(names, resolved["clients"], strict=True)]
    clients[-1] |= {"min_frequency_hz": 1e8, "max_frequency_hz": 1e8}
    return document | {"clients": clients, "target_counts": resolved["target_counts"]}


def experiment(scheme: str, seed: int, **more: Any) -> Experiment:
    """An experiment on the small scenario."""
    return Experiment.from_dict({"scenario": small_document(rounds=ROUNDS), "data": {"name": "embedded"},
                                 "model": {"name": "mlp"}, "scheme": scheme, "seed": seed, **more})


def write_run(folder: Path, chosen: Experiment, accuracy: float) -> None:
    """A finished run that ends with this accuracy, evaluated in every second round."""
    (folder / "job").mkdir(parents=True)
    scenario = chosen.planning_scenario()
    plan = fedgap.plan(scenario, scheme=chosen.scheme)
    write_document(chosen.to_dict(), folder / "config.yaml")
    scenario.save(folder / "scenario.yaml")
    plan.save(folder / "plan.json")
    write_json(folder / "job" / "job.json", {})
    rows = []
    for number in range(plan.rounds):
        done = (number + 1) / plan.rounds
        row = {"round": number, "clients": [0, 2], "energy_total_j": plan.energy_j * done,
               "delay_total_s": plan.delay_s * done, "train_loss": 2.0 - done}
        if number % 2:
            row |= {"test_loss": 2.5 - 2.0 * accuracy * done, "test_accuracy": accuracy * done}
        rows.append(json.dumps(row) + "\n")
    write_text(folder / "rounds.jsonl", "".join(rows))
    write_json(folder / "summary.json", {"rounds": plan.rounds, "ended": "all rounds are done",
                                         "best_test_accuracy": accuracy})


def write_sweep(folder: Path) -> None:
    """Twelve runs: three schemes with four seeds each."""
    for seed, proposed, better in zip(SEEDS, PROPOSED, BETTER, strict=True):
        for scheme, accuracy in (("proposed", proposed), ("all_clients", proposed + better),
                                 ("no_pruning", proposed + WORSE)):
            write_run(folder / "runs" / f"scheme={scheme},seed={seed}", experiment(scheme, seed), accuracy)
