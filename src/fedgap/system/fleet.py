"""The clients and the server as arrays: what the cost formulas read."""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SERVER = ("server_power_w", "server_bandwidth_hz", "uplink_noise_psd_w_hz")


@dataclass(frozen=True, eq=False)
class Fleet:
    """N clients and their server; client fields have shape (..., N), the server's three have shape (...).

    Leading dimensions are scenarios. ``Fleet.stack`` puts scenarios of equal N together.
    """

    uplink_gain: Array
    """h_n: channel power gain from client to server."""
    downlink_gain: Array
    """ĥ_n: channel power gain from server to client."""
    bandwidth_hz: Array
    """c_n: uplink bandwidth of the client."""
    max_power_w: Array
    """p_n^max."""
    max_frequency_hz: Array
    """f_n^max."""
    flops_per_cycle: Array
    """q_n: floating-point operations a clock cycle."""
    pue: Array
    """κ_n: power usage effectiveness."""
    capacitance: Array
    """ϖ_n: effective switched capacitance, in farad."""
    gradient_bits: Array
    """H_n: size of the unpruned gradient."""
    flops_per_sample: Array
    """e_n: operations for one sample's full gradient."""
    batch_size: Array
    """Z_n: samples a round."""
    max_ratio: Array
    """λ^max of the client."""
    downlink_noise_psd_w_hz: Array
    """U_{0,n}: noise power spectral density at the client's receiver."""
    server_power_w: Array
    """p̂: broadcast power."""
    server_bandwidth_hz: Array
    """ĉ: broadcast bandwidth."""
    uplink_noise_psd_w_hz: Array
    """U_0: noise power spectral density at the server's receiver."""

    @property
    def size(self) -> int:
        """N, the number of clients."""
        return int(self.uplink_gain.shape[-1])

    @property
    def cycles(self) -> Array:
        """C_n = Z_n·e_n/q_n: clock cycles for one unpruned round, shape (..., N)."""
        return self.batch_size * self.flops_per_sample / self.flops_per_cycle

    @classmethod
    def stack(cls, fleets: list[Self]) -> Self:
        """Several fleets of equal size as one, with a new leading dimension."""
        return cls(**{f.name: np.stack([getattr(fleet, f.name) for fleet in fleets]) for f in fields(cls)})

    def take(self, clients: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Self:
        """The fleet reduced to some of its clients (an index or boolean array over the last axis)."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self)(**{k: v if k in _SERVER else v[..., clients] for k, v in kept.items()})
