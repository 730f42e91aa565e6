"""What a round costs: the paper's Section II as functions of float64 arrays.

Every function is vectorised over clients (last axis, length N) with any leading batch dimensions, so a thousand
scenarios of a hundred clients are one call. Only numpy is needed.
"""

from fedgap.system.channel import downlink_rate, uplink_rate
from fedgap.system.cost import (
    RoundCost,
    broadcast_energy,
    computation_delay,
    computation_energy,
    download_delay,
    fixed_delay,
    probe_cost,
    round_cost,
    upload_delay,
    upload_energy,
)
from fedgap.system.cost_curve import CostCurve
from fedgap.system.fleet import Fleet

__all__ = [
    "CostCurve",
    "Fleet",
    "RoundCost",
    "broadcast_energy",
    "computation_delay",
    "computation_energy",
    "downlink_rate",
    "download_delay",
    "fixed_delay",
    "probe_cost",
    "round_cost",
    "uplink_rate",
    "upload_delay",
    "upload_energy",
]
