"""Random scenarios in many regimes, for the tests that hold whatever the scenario."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.diagnosis import Cheapest
from fedgap.planning.problem import Problem
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES

PROPOSED = SCHEMES.load("proposed")
NEAR = (1.0001, 1.01, 1.1)
"""Multiples of the least energy at which almost nothing is left to decide."""


def but_for(weak: Mapping[tuple[str, int], str], cases: Iterable[tuple[str, int]]) -> list[Any]:
    """Parameters (name, seed), those that are known to fail marked with why."""
    return [pytest.param(*case, marks=[pytest.mark.xfail(strict=True, reason=weak[case])] if case in weak else [])
            for case in cases]


def random_document(rng: np.random.Generator, clients: int, rounds: int, **chosen: Any) -> dict[str, Any]:
    """A scenario's document with budgets of 1: see :func:`random_scenario`, which sets them.

    :param chosen: what not to draw: ``aggregation``, ``spread`` (1: equal clients), ``hopeless`` (one client that takes
        1000 times as long), ``weights`` ("both", "no_pruning_cost", "no_generalization_cost", "no_phi"), ``max_ratio``,
        ``dense_first``, ``loud`` (the mean gain).
    """
    aggregation = chosen.get("aggregation") or str(rng.choice(["mean", "sum", "mixture"]))
    spread = chosen.get("spread") or float(rng.choice([1.0, 1.5, 10.0, 100.0], p=[0.1, 0.4, 0.3, 0.2]))
    weights = chosen.get("weights") or str(
        rng.choice(["both", "no_pruning_cost", "no_generalization_cost", "no_phi"], p=[0.79, 0.07, 0.07, 0.07])
    )
    ratio = chosen.get("max_ratio", float(rng.choice([0.0, 0.3, 0.7, 0.95], p=[0.1, 0.3, 0.4, 0.2])))
    models = ((1.42e6, 1.8e6), (21.07e6, 0.59e9), (1e4, 1e9), (1e9, 1e4))
    bits, flops = models[int(rng.choice(4, p=[0.35, 0.35, 0.15, 0.15]))]
    loud = float(chosen.get("loud", 10.0 ** rng.choice([-5.0, -5.0, -12.0, -2.0])))

    def around(middle: float) -> list[float]:
        return [float(v) for v in middle * np.sqrt(spread) ** rng.uniform(-1.0, 1.0, clients)]

    gain = loud * (rng.exponential(1.0, clients) + 1e-3) if spread > 1.0 else np.full(clients, loud)
    slow = np.ones(clients)
    if chosen.get("hopeless", bool(rng.random() < 0.15)):
        slow[rng.integers(clients)] = 1e-3
    columns: dict[str, Any] = {
        "uplink_gain": [float(g) for g in gain],
        "downlink_gain": [float(g) for g in gain],
        "bandwidth_hz": [float(b) for b in slow * np.array(around(1e6))],
        "max_power_w": around(0.5),
        "max_frequency_hz": [float(f) for f in np.maximum(slow * np.array(around(1e9)), 1e6)],  # config's least clock
        "flops_per_cycle": [4.0] * clients,
        "capacitance": around(1e-27),
    }
    if aggregation == "mixture":
        shape = float(rng.choice([0.5, 2.0, 10.0]))
        columns["label_counts"] = rng.multinomial(600, rng.dirichlet(np.full(10, shape), clients)).tolist()
        phi = 20.0
    else:
        phi = float(10.0 ** rng.uniform(-2.0, 2.0))
        columns["phi"] = [0.0] * clients if weights == "no_phi" else [phi * v for v in around(1.0)]
    people = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if rng.random() < 0.3 and "max_ratio" not in chosen:
        for client in people:
            client["max_ratio"] = float(rng.choice([0.0, 0.5, 0.9]))
    # β/γ₁ = η²(L + 1): a smoothness of φ²/η² makes few clients as dear as a large φ; the rest is drawn around that.
    rate = 0.01
    balance = 10.0 ** rng.uniform(-1.5, 1.5) * (clients if aggregation == "sum" else 1.0)
    smoothness = balance * (phi / rate) ** 2
    scale = 1.0 / (rate**3 * (smoothness + 1.0) / 32.0)
    document: dict[str, Any] = {
        "rounds": rounds,
        "budget": {"energy_j": 1.0, "delay_s": 1.0},
        "learning": {"rate": rate, "batch_size": 32},
        "model": {"gradient_bits": bits, "flops_per_sample": flops},
        "pruning": {"max_ratio": ratio, "dense_first": bool(chosen.get("dense_first", rng.random() < 0.35))},
        "bound": {
            "initial_gap": float(rng.choice([0.0, 1e-4, 1.0])),
            "smoothness": 0.0 if weights == "no_generalization_cost" and rng.random() < 0.5 else smoothness,
            "gradient_moment": scale,
            "parameter_moment": 1.0,
            "sensitivity": "secant",
            "pruning_sensitivity": 0.0 if weights == "no_pruning_cost" else float(10.0 ** rng.uniform(-1.5, 1.5)),
            "aggregation": aggregation,
            "constants": str(rng.choice(["printed", "corrected"])),
        },
        "server": {"power_w": float(rng.choice([1e-3, 0.5])), "bandwidth_hz": 1e6 * clients},
        "noise_psd_w_hz": 3.98e-21,
        "clients": people,
    }
    if weights == "no_generalization_cost" and aggregation != "mixture":
        for client in people:
            client["phi"] *= 1e-9
    if aggregation == "mixture":
        document["target_counts"] = [100] * 10
    return document


def with_budgets(document: dict[str, Any], energy_j: float, delay_s: float) -> Scenario:
    """The scenario with these budgets."""
    return Scenario.from_dict(document | {"budget": {"energy_j": energy_j, "delay_s": delay_s}})


def random_scenario(
    rng: np.random.Generator, clients: int, rounds: int, *, near: float | None = None, **chosen: Any
) -> Scenario:
    """A scenario whose budgets lie anywhere between almost infeasible and no object.

    :param near: the energy budget as a multiple of the least that would do; drawn if not given.
    """
    document = random_document(rng, clients, rounds, **chosen)
    problem = Problem.of(with_budgets(document, 1e30, 1e30))
    curves = ClientCurves.of(problem.fleet)
    need = np.sort(curves.overhead + curves.keep_min * curves.u_min)
    place = need[int(rng.integers(clients))]  # a deadline that some clients can meet
    delay_s = rounds * float(place * rng.choice([1.02, 1.3, 2.0, 5.0, 100.0]))
    if problem.dense_first:
        delay_s += float((curves.overhead + curves.u_min).min())
    least = Cheapest(Task.of(problem, PROPOSED)).least_energy(delay_s)
    factor = near if near is not None else float(rng.choice([*NEAR, 1.5, 3.0, 10.0, 1e3, 1e9]))
    energy_j = 1.0 if least is None else least.energy_j * factor
    return with_budgets(document, energy_j, delay_s)
