"""What the convex models of the oracles read of the clients."""

from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Floats
from fedgap.system import Fleet, download_delay


@dataclass(frozen=True, eq=False)
class Coefficients:
    """What convex models read of k clients, each of shape (k,): one round at f^max and p^max without pruning."""

    compute_s: Floats
    upload_s: Floats
    download_s: Floats
    compute_j: Floats
    upload_j: Floats
    """(p^max + ν)·t_u^min, J: the coefficient of w."""
    silent_j: Floats
    """ν·t_u^min, J: what is taken off for each unit of y."""
    log_snr: Floats
    """s = ln(1 + p^max/ν)."""
    keep_min: Floats
    """1 − λ^max, or 1 without pruning."""

    @classmethod
    def of(cls, fleet: Fleet, *, prune: bool = True) -> "Coefficients":
        """The coefficients of a fleet (already reduced to the selected clients)."""
        noise = fleet.bandwidth_hz * fleet.uplink_noise_psd_w_hz[..., None] / fleet.uplink_gain
        log_snr = np.log1p(fleet.max_power_w / noise)
        upload_s = fleet.uplink_bits * np.log(2.0) / (fleet.bandwidth_hz * log_snr)
        return cls(
            compute_s=fleet.cycles / fleet.max_frequency_hz,
            upload_s=upload_s,
            download_s=download_delay(fleet),
            compute_j=fleet.pue * fleet.capacitance * fleet.cycles * fleet.max_frequency_hz**2,
            upload_j=(fleet.max_power_w + noise) * upload_s,
            silent_j=noise * upload_s,
            log_snr=log_snr,
            keep_min=1.0 - fleet.max_ratio if prune else np.ones_like(noise),
        )
