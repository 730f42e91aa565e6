"""A scenario whose costs and bound can be worked out by hand.

The uplink carries 2 bit/s/Hz (SNR 3) and the downlink 1 (SNR 1), both on 100 kHz; a gradient has 100 kbit, and a round
takes 10⁷ clock cycles. Unpruned at full power and clock, a client takes 1 s to download, 1 s to compute and 0.5 s to
upload, and spends 0.1 J and 0.25 J; the broadcast takes 0.5 J.
"""

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import Plan, Segment

CLIENT = {"uplink_gain": 6e-15, "downlink_gain": 2e-15, "bandwidth_hz": 1e5, "max_power_w": 0.5,
          "max_frequency_hz": 1e7, "flops_per_cycle": 1, "pue": 1.0, "capacitance": 1e-22}
DOCUMENT = {
    "rounds": 4, "budget": {"energy_j": 3.8125, "delay_s": 12.0}, "learning": {"rate": 0.1, "batch_size": 10},
    "model": {"gradient_bits": 1e5, "flops_per_sample": 1e6}, "pruning": {"max_ratio": 0.5, "dense_first": False},
    "bound": {"initial_gap": 0.2, "smoothness": 1.0, "gradient_moment": 4000.0, "parameter_moment": 8.0,
              "aggregation": "mean", "constants": "printed"},
    "server": {"power_w": 0.5, "bandwidth_hz": 1e5}, "noise_psd_w_hz": 1e-20,
    "clients": [CLIENT | {"name": "near", "phi": 1.0}, CLIENT | {"name": "far", "phi": 3.0}],
}


@pytest.fixture
def scenario():
    return Scenario.from_dict(DOCUMENT)


@pytest.fixture
def plan():
    """Three rounds of both, the second pruned by half at half its clock; one round of the first alone."""
    both = Segment(3, np.array([True, True]), np.array([0.0, 0.5]), np.array([0.5, 0.5]), np.array([1e7, 5e6]))
    alone = Segment(1, np.array([True, False]), np.zeros(2), np.array([0.5, 0.0]), np.array([1e7, 0.0]))
    return Plan(status="feasible", scheme="proposed", solver="by hand", rounds=4, segments=(both, alone), theta=73.0,
                terms={"alpha": 1.0, "clients": 0.5, "generalization": 70.0, "pruning": 1.5}, energy_j=3.8125,
                delay_s=10.0)
