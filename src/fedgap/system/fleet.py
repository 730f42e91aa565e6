"""The physical properties of clients and server as arrays, for the cost formulas."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.system.cost_curve import CostCurve
from fedgap.upload_size import bits_per_value

_SHARED = ("server_power_w", "server_bandwidth_hz", "uplink_noise_psd_w_hz", "cost_curve")
"""Fields without a client axis."""
_LIMITS = {"min_frequency_hz": 0.0, "min_power_w": 0.0, "idle_power_w": 0.0, "battery_j": np.inf, "latency_s": 0.0}
"""Optional fields, each with the value that has no effect."""


def _left_out() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class Fleet:
    """N clients and their server. Fields of clients have shape (..., N), the three fields of the server (...).

    The leading dimensions, if any, count scenarios: :meth:`stack` puts fleets of equal N together.
    """

    uplink_gain: Floats
    """h_n: channel power gain from client to server."""
    downlink_gain: Floats
    """ĥ_n: channel power gain from server to client."""
    bandwidth_hz: Floats
    """c_n: uplink bandwidth of the client."""
    max_power_w: Floats
    """p_n^max: the highest transmit power."""
    max_frequency_hz: Floats
    """f_n^max: the highest clock frequency."""
    flops_per_cycle: Floats
    """q_n: floating-point operations per clock cycle."""
    pue: Floats
    """κ_n: power usage effectiveness."""
    capacitance: Floats
    """ϖ_n: effective switched capacitance, in farad."""
    gradient_bits: Floats
    """H_n: size of the unpruned gradient, which the server broadcasts."""
    uplink_bits: Floats
    """H⁺_n: size of an unpruned upload. It is H_n, or less if uploaded values have fewer than 32 bits."""
    flops_per_sample: Floats
    """e_n: operations for one sample's full gradient."""
    batch_size: Floats
    """Z_n: samples per step."""
    local_steps: Floats
    """τ: mini-batch steps per round; 1 in the paper."""
    max_ratio: Floats
    """λ_n^max: the largest pruning ratio, a fraction."""
    downlink_noise_psd_w_hz: Floats
    """U_{0,n}: noise power spectral density at the client's receiver."""
    server_power_w: Floats
    """p̂: broadcast power."""
    server_bandwidth_hz: Floats
    """ĉ: broadcast bandwidth."""
    uplink_noise_psd_w_hz: Floats
    """U_0: noise power spectral density at the server's receiver."""
    min_frequency_hz: Floats = field(default_factory=_left_out)
    """f_n^min: the lowest clock frequency of a client that computes; default 0."""
    min_power_w: Floats = field(default_factory=_left_out)
    """p_n^min: the lowest transmit power of a client that sends; default 0."""
    idle_power_w: Floats = field(default_factory=_left_out)
    """P_n: power that a selected client draws during a whole round, in addition to computing and sending; default 0."""
    battery_j: Floats = field(default_factory=_left_out)
    """B_n: joules that the client has for all rounds together; default infinite."""
    latency_s: Floats = field(default_factory=_left_out)
    """ℓ_n: seconds that the client needs in every round in addition to download, computing and upload; default 0."""
    cost_curve: CostCurve | None = None
    """Share of bits and operations that remains after pruning λ; default 1 − λ."""

    def __post_init__(self) -> None:
        for name, nothing in _LIMITS.items():
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.full_like(self.uplink_gain, nothing))

    @property
    def size(self) -> int:
        """N, the number of clients."""
        return int(self.uplink_gain.shape[-1])

    @property
    def cycles(self) -> Floats:
        """C_n = τ·Z_n·e_n/q_n: clock cycles for one unpruned round, shape (..., N)."""
        return self.local_steps * (self.batch_size * self.flops_per_sample / self.flops_per_cycle)

    def cost_share(self, ratio: Floats) -> Floats:
        """Return s(λ), the share of the full model's bits and operations that remains; 1 − λ without a cost curve."""
        return 1.0 - ratio if self.cost_curve is None else self.cost_curve.share_at(ratio)

    @classmethod
    def stack(cls, fleets: list[Self]) -> Self:
        """Combine fleets of equal size and with the same cost curve into one with a new leading dimension."""
        names = [f.name for f in fields(cls) if f.name != "cost_curve"]
        stacked: dict[str, Any] = {name: np.stack([getattr(fleet, name) for fleet in fleets]) for name in names}
        return cls(**stacked, cost_curve=fleets[0].cost_curve)

    def without_minima(self) -> Self:
        """Return the fleet without minimum clocks and powers."""
        nothing = np.zeros_like(self.uplink_gain)
        return replace(self, min_frequency_hz=nothing, min_power_w=nothing)

    def with_local_steps(self, steps: int) -> Self:
        """Return the fleet with this number of local steps per round."""
        return replace(self, local_steps=np.full_like(self.local_steps, float(steps)))

    def with_upload_bits(self, bits: int) -> Self:
        """Return the fleet with this number of bits per uploaded value."""
        return replace(self, uplink_bits=self.gradient_bits * bits_per_value(bits) / 32.0)

    def take(self, clients: Ints | Bools) -> Self:
        """Return the fleet with only some of its clients, given by an index array or a boolean array."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self)(**{k: v if k in _SHARED else v[..., clients] for k, v in kept.items()})
