"""The scenarios whose plans must not change from one version to the next: presets, shared cases and random ones."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedgap.config import Scenario
from tests.oracle.scenarios import CASES
from tests.planning.regimes import random_document, random_scenario

PRESETS = {"paper-mnist": [], "paper-cifar10": [],
           "city": ["mode=repaired", "learning.rate=0.01", "learning.local_steps="]}
"""Presets, with overrides that make them what they were in fedgap 0.1."""
SCHEMES = ("proposed", "no_pruning", "all_clients", "no_generalization", "fixed_power", "fixed_frequency", "measured")
RANDOM = 100
ALTERNATING = 12
"""Of the random scenarios, so many are also planned by Algorithm 1."""


def cases() -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """(name, the scenario's document, scheme, solver) of every case."""
    for name in PRESETS:
        for scheme in SCHEMES:
            yield f"{name}", Scenario.load(name, PRESETS[name]).to_dict(), scheme, "exact"
    for path in sorted(CASES.glob("n*.json")):
        if not path.name.endswith(".expected.json"):
            yield path.stem, Scenario.load(path).to_dict(), "proposed", "exact"
            yield path.stem, Scenario.load(path).to_dict(), "proposed", "alternating"
    for seed in range(RANDOM):
        yield f"random-{seed}", random_scenario(*_drawn(seed)).to_dict(), SCHEMES[seed % len(SCHEMES)], "exact"
    for seed in range(RANDOM, RANDOM + ALTERNATING):
        rng, _, rounds = _drawn(seed)
        scenario = random_scenario(rng, 1 + seed % 5, rounds, **_ALTERNATING[seed % 2])
        yield f"random-{seed}", scenario.to_dict(), SCHEMES[seed % 6], "alternating"


_ALTERNATING = ({"near": 3.0, "spread": 1.5, "weights": "both", "loud": 1e-5, "aggregation": "mean"},
                {"near": 10.0, "spread": 1.5, "weights": "both", "loud": 1e-5, "aggregation": "sum"})


def _drawn(seed: int) -> tuple[np.random.Generator, int, int]:
    """A generator, the number of clients (most fleets are enumerated) and the number of rounds."""
    rng = np.random.default_rng([seed, 13])
    clients = int(rng.integers(1, 13)) if seed % 4 else int(rng.integers(13, 41))
    return rng, clients, int(rng.choice([1, 2, 3, 5, 8, 40, 180]))


def scenario_of(name: str, budget: dict[str, float] | None) -> Scenario:
    """The scenario of a case; a random one's budgets are given, for planning code chose them."""
    if not name.startswith("random-"):
        return Scenario.load(name, PRESETS[name]) if name in PRESETS else Scenario.load(CASES / f"{name}.json")
    seed = int(name.removeprefix("random-"))
    rng, clients, rounds = _drawn(seed)
    chosen = {} if seed < RANDOM else _ALTERNATING[seed % 2]
    document = random_document(rng, clients if seed < RANDOM else 1 + seed % 5, rounds, **chosen)
    return Scenario.from_dict(document | {"budget": budget})


def searched_at_random(scenario: Scenario, scheme: str) -> bool:
    """Whether the plan comes from a random local search, so that another may be better."""
    pooled = scenario.bound.aggregation == "mixture" or (scheme == "measured" and scenario.label_counts() is not None)
    return pooled and scenario.size > 12 and scheme not in ("all_clients", "no_generalization")
