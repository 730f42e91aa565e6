"""A small valid scenario that the tests bend."""

import copy
from typing import Any

import pytest

CLIENT = {
    "phi": 10.0,
    "uplink_gain": 8.0e-6,
    "downlink_gain": 8.0e-6,
    "bandwidth_hz": 1.0e5,
    "max_power_w": 0.5,
    "max_frequency_hz": 5.0e8,
    "flops_per_cycle": 4,
    "pue": 1.0,
    "capacitance": 8.8e-28,
}

SCENARIO: dict[str, Any] = {
    "rounds": 180,
    "budget": {"energy_j": 250.0, "delay_s": 150.0},
    "learning": {"rate": 0.01, "batch_size": 32},
    "model": {"gradient_bits": 1421632, "flops_per_sample": 1.8e6},
    "pruning": {"max_ratio": 0.5, "dense_first": False},
    "bound": {
        "initial_gap": 3.5,
        "smoothness": 0.4,
        "gradient_moment": 1000.0,
        "parameter_moment": 470.0,
        "aggregation": "mean",
        "constants": "printed",
    },
    "server": {"power_w": 0.5, "bandwidth_hz": 1.0e5},
    "noise_psd_w_hz": 3.98e-21,
    "clients": [dict(CLIENT), {**CLIENT, "phi": 4.0}],
}


@pytest.fixture
def document() -> dict[str, Any]:
    """A scenario's document, the test's own copy: the contract's example with two clients."""
    return copy.deepcopy(SCENARIO)
