"""Path loss, line of sight and fading of the urban micro-cell street canyon (UMi) in 3GPP TR 38.901 (Release 16).

Tables are those of TR 38.901. Distances are in metres and carrier frequencies in hertz. Names that end in ``_db`` are
in decibels; gains are power ratios.
"""

import numpy as np

from fedgap.arrays import Bools, Floats

SPEED_OF_LIGHT = 3.0e8
"""c in m/s, rounded as in TR 38.901."""
ENVIRONMENT_HEIGHT_M = 1.0
"""h_E: the effective environment height of UMi (Table 7.4.1-1, note 1)."""
SHADOWING_LOS_DB = 4.0
"""σ_SF of UMi street canyon in line of sight (Table 7.4.1-1)."""
SHADOWING_NLOS_DB = 7.82
"""σ_SF of UMi street canyon without line of sight (Table 7.4.1-1)."""


def line_of_sight_probability(distance_2d_m: Floats) -> Floats:
    """Probability that a client at distance d is in line of sight (Table 7.4.2-1, UMi street canyon).

    Pr_LOS = 1 for d ≤ 18 m, otherwise 18/d + exp(−d/36)·(1 − 18/d).

    :param distance_2d_m: d, the distance on the ground (d_2D-out), in metres.
    """
    near = 18.0 / np.maximum(distance_2d_m, 18.0)
    return np.asarray(near + np.exp(-np.asarray(distance_2d_m) / 36.0) * (1.0 - near))


def breakpoint_distance_m(carrier_hz: float, server_height_m: float, client_height_m: float) -> float:
    """Distance in metres beyond which path loss grows faster: d′_BP = 4·h′_BS·h′_UT·f_c/c (Table 7.4.1-1, note 1).

    h′_BS and h′_UT are the heights of server and client above :data:`ENVIRONMENT_HEIGHT_M`, f_c is the carrier
    frequency, and c the speed of light.
    """
    server, client = server_height_m - ENVIRONMENT_HEIGHT_M, client_height_m - ENVIRONMENT_HEIGHT_M
    return 4.0 * server * client * carrier_hz / SPEED_OF_LIGHT


def path_loss_los_db(
    distance_2d_m: Floats, carrier_hz: float, server_height_m: float = 10.0, client_height_m: float = 1.5
) -> Floats:
    """Path loss in line of sight, PL_UMi-LOS, in dB (Table 7.4.1-1), with f_c in GHz and d_3D in metres.

    PL₁ = 32.4 + 21·log₁₀(d_3D) + 20·log₁₀(f_c) up to d′_BP, and beyond it
    PL₂ = 32.4 + 40·log₁₀(d_3D) + 20·log₁₀(f_c) − 9.5·log₁₀(d′_BP² + (h_BS − h_UT)²).
    """
    height = server_height_m - client_height_m
    breakpoint_m = breakpoint_distance_m(carrier_hz, server_height_m, client_height_m)
    log_d, base = np.log10(np.hypot(distance_2d_m, height)), 32.4 + 20.0 * np.log10(carrier_hz / 1e9)
    near = base + 21.0 * log_d
    far = base + 40.0 * log_d - 9.5 * np.log10(breakpoint_m**2 + height**2)
    return np.asarray(np.where(np.asarray(distance_2d_m) <= breakpoint_m, near, far))


def path_loss_nlos_db(
    distance_2d_m: Floats, carrier_hz: float, server_height_m: float = 10.0, client_height_m: float = 1.5
) -> Floats:
    """Path loss without line of sight, PL_UMi-NLOS = max(PL_UMi-LOS, PL′), in dB (Table 7.4.1-1).

    PL′ = 22.4 + 35.3·log₁₀(d_3D) + 21.3·log₁₀(f_c) − 0.3·(h_UT − 1.5), with f_c in GHz and d_3D in metres.
    """
    distance_3d = np.hypot(distance_2d_m, server_height_m - client_height_m)
    blocked = 22.4 + 35.3 * np.log10(distance_3d) + 21.3 * np.log10(carrier_hz / 1e9) - 0.3 * (client_height_m - 1.5)
    clear = path_loss_los_db(distance_2d_m, carrier_hz, server_height_m, client_height_m)
    return np.asarray(np.maximum(clear, blocked))


def path_gain(
    distance_2d_m: Floats,
    in_sight: Bools,
    shadowing: Floats,
    carrier_hz: float,
    server_height_m: float = 10.0,
    client_height_m: float = 1.5,
) -> Floats:
    """Power gain of path loss and log-normal shadowing, 10^(−(PL + σ_SF·X)/10), as a ratio, shape (N,).

    :param in_sight: whether each client is in line of sight, shape (N,).
    :param shadowing: X, standard normal numbers, shape (N,).
    """
    geometry = (distance_2d_m, carrier_hz, server_height_m, client_height_m)
    loss = np.where(in_sight, path_loss_los_db(*geometry), path_loss_nlos_db(*geometry))
    sigma = np.where(in_sight, SHADOWING_LOS_DB, SHADOWING_NLOS_DB)
    return np.asarray(10.0 ** (-(loss + sigma * shadowing) / 10.0))


def rayleigh_power(rng: np.random.Generator, size: int) -> Floats:
    """Draw power gains of Rayleigh fading: |g|² with g complex normal, exponential with mean 1, shape (size,)."""
    return rician_power(rng, np.zeros(size))


def rician_power(rng: np.random.Generator, k_factor: Floats) -> Floats:
    """Draw power gains of Rician fading, |√(K/(K+1)) + g/√(K+1)|² with g complex normal of unit power, shape (N,).

    The mean is 1, and K = 0 is Rayleigh fading.

    :param k_factor: K, power of the direct path divided by the power of the scattered paths, shape (N,).
    """
    # One row per client, so that a larger fleet begins with the same draws.
    scattered = rng.standard_normal((len(k_factor), 2)) / np.sqrt(2.0 * (k_factor + 1.0))[:, None]
    direct = np.sqrt(k_factor / (k_factor + 1.0))
    return np.asarray((direct + scattered[:, 0]) ** 2 + scattered[:, 1] ** 2)
