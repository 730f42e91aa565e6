"""The planning cases of ``tests/cases`` as plain arrays, read without ``fedgap.config``."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.system import Fleet

FOLDER = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in FOLDER.glob("*.expected.json"))


def load(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A case's scenario and what is expected of it."""
    return json.loads((FOLDER / f"{name}.json").read_text()), json.loads((FOLDER / f"{name}.expected.json").read_text())


def points() -> list[tuple[str, int]]:
    """Every evaluation point as (case, index)."""
    return [(name, index) for name in NAMES for index in range(len(load(name)[1]["evaluation_points"]))]


def fleet_of(scenario: dict[str, Any]) -> Fleet:
    """The case's clients and server."""
    clients = scenario["clients"]

    def column(key: str, default: float | None = None) -> np.ndarray:
        return np.array([client.get(key, default) for client in clients], dtype=np.float64)

    return Fleet(
        **{
            key: column(key)
            for key in (
                "uplink_gain",
                "downlink_gain",
                "bandwidth_hz",
                "max_power_w",
                "max_frequency_hz",
                "flops_per_cycle",
                "pue",
                "capacitance",
            )
        },
        gradient_bits=column("gradient_bits", scenario["model"]["gradient_bits"]),
        uplink_bits=column("gradient_bits", scenario["model"]["gradient_bits"]),
        flops_per_sample=column("flops_per_sample", scenario["model"]["flops_per_sample"]),
        batch_size=column("batch_size", scenario["learning"]["batch_size"]),
        local_steps=np.ones(len(clients)),
        max_ratio=column("max_ratio", scenario["pruning"]["max_ratio"]),
        downlink_noise_psd_w_hz=column("noise_psd_w_hz", scenario["noise_psd_w_hz"]),
        server_power_w=np.array(scenario["server"]["power_w"]),
        server_bandwidth_hz=np.array(scenario["server"]["bandwidth_hz"]),
        uplink_noise_psd_w_hz=np.array(scenario["noise_psd_w_hz"]),
    )


def decision_of(point: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A point's (selected, ratio, power_w, frequency_hz)."""
    ratio, power, frequency = (np.array(point[key], dtype=np.float64) for key in ("lam", "p", "f"))
    return np.array(point["a"], dtype=np.bool_), ratio, power, frequency
