"""Hypothesis strategies for fleets and decisions, over everyday values or over all that a scenario may hold."""

import os
from math import log10

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgap.system import Fleet

Array = npt.NDArray[np.float64]

checked = settings(max_examples=1000 if os.environ.get("FEDGAP_FULL") == "1" else 100, deadline=None)
"""How often a property is tried."""

# Everyday ranges: from a sensor to a server, from a cell's edge to the next desk.
EVERYDAY = {
    "uplink_gain": (1e-14, 1e-3),
    "downlink_gain": (1e-14, 1e-3),
    "bandwidth_hz": (1e3, 1e9),
    "max_power_w": (1e-3, 10.0),
    "max_frequency_hz": (1e6, 1e10),
    "flops_per_cycle": (0.1, 1e3),
    "pue": (1.0, 2.0),
    "capacitance": (1e-30, 1e-25),
    "gradient_bits": (1e3, 1e10),
    "uplink_bits": (1e2, 1e10),
    "flops_per_sample": (1e3, 1e12),
    "batch_size": (1.0, 1e4),
    "local_steps": (1.0, 1e3),
    "max_ratio": (0.01, 0.99),
    "downlink_noise_psd_w_hz": (1e-21, 1e-18),
}
EVERYDAY_SERVER = {
    "server_power_w": (1e-2, 100.0),
    "server_bandwidth_hz": (1e3, 1e9),
    "uplink_noise_psd_w_hz": (1e-21, 1e-18),
}
# The limits that a scenario's numbers are held to (fedgap.config.checked_fields).
SMALLEST, LARGEST = 1e-40, 1e30


@st.composite
def fleets(draw: st.DrawFn, batch: tuple[int, ...] = (), extreme: bool = False, most: int = 4) -> Fleet:
    """A fleet of 1 to ``most`` clients with the leading dimensions ``batch``; logarithms fill each range."""
    size = draw(st.integers(1, most))

    def columns(limits: dict[str, tuple[float, float]], shape: tuple[int, ...]) -> dict[str, Array]:
        places = draw(arrays(np.float64, (len(limits), *shape), elements=st.floats(0.0, 1.0)))
        bounds = [(log10(SMALLEST), log10(LARGEST)) if extreme else (log10(a), log10(b)) for a, b in limits.values()]
        return {key: np.asarray(10.0 ** (a + (b - a) * x)) for key, x, (a, b) in zip(limits, places, bounds)}

    fields = columns(EVERYDAY, (*batch, size)) | columns(EVERYDAY_SERVER, batch)
    fields["max_ratio"] = np.minimum(fields["max_ratio"], 0.99)
    fields["batch_size"] = np.clip(np.round(fields["batch_size"]), 1.0, 1e9)
    fields["local_steps"] = np.clip(np.round(fields["local_steps"]), 1.0, 1e6)
    return Fleet(**fields)


@st.composite
def decisions(draw: st.DrawFn, fleet: Fleet, silent: bool = False) -> tuple[npt.NDArray[np.bool_], Array, Array, Array]:
    """(selected, ratio, power_w, frequency_hz) inside the fleet's limits; ``silent``: powers and clocks may be 0."""
    shape = fleet.uplink_gain.shape
    share = st.floats(1e-6, 1.0) | st.just(0.0) if silent else st.floats(1e-6, 1.0)
    shares = arrays(np.float64, (2, *shape), elements=share)
    selected = draw(arrays(np.bool_, shape))
    ratio = draw(arrays(np.float64, shape, elements=st.floats(0.0, 1.0))) * fleet.max_ratio
    power, frequency = draw(shares)
    return selected, ratio, power * fleet.max_power_w, frequency * fleet.max_frequency_hz
