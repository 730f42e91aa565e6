"""Fleets: clients drawn from a seed."""

import numpy as np

from fedgap.streams import stream


def two_rings(seed, per_ring=5, near_gain=1e-5, far_gain=1e-7):
    """Clients on two rings around the server, with Rayleigh fading. The arguments are keys under ``fleet``."""
    fading = stream(seed, "fading").exponential(size=2 * per_ring)
    return {
        "name": [f"{ring} {n}" for ring in ("near", "far") for n in range(per_ring)],
        "uplink_gain": np.repeat([near_gain, far_gain], per_ring) * fading,
        "bandwidth_hz": 1e5,  # one value stands for all clients
        "max_power_w": 0.5,
        "max_frequency_hz": 5e8,
        "flops_per_cycle": 4,
        "capacitance": 1e-27,
    }
