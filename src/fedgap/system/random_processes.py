"""How channels and availability change from round to round: the random processes from which a
:class:`~fedgap.system.trace.Trace` is drawn.

Each function returns an array of shape (rounds, clients) with the values at times 0, Δ, 2Δ, ... where Δ is ``step_s``.
Clients are independent of each other.
"""

import numpy as np

from fedgap.arrays import Bools, Floats

_WAVES = 64
"""Number of waves that arrive at a client; their sum is then Gaussian to within a few thousandths."""
DAY_S = 86_400.0


def rayleigh_fading(
    rounds: int, clients: int, doppler_hz: float, step_s: float, random: np.random.Generator
) -> Floats:
    """Return power gains |h(t)|² of Rayleigh fading with Clarke's spectrum; their mean is 1.

    h(t) is a sum of waves from random directions α with random phases φ, Σ exp(j(2π·f_D·t·cos α + φ))/√M, so that
    E[h(t)·h*(t + Δ)] = J₀(2π·f_D·Δ), and the correlation of |h|² is its square.

    :param doppler_hz: f_D = speed/wavelength, for example 10 Hz for a pedestrian and 200 Hz for a car at 2 GHz.
    """
    time = step_s * np.arange(rounds)[:, None]
    gain = np.empty((rounds, clients))
    for n in range(clients):
        angle, phase = random.uniform(0.0, 2.0 * np.pi, (2, _WAVES))
        waves = np.exp(1j * (2.0 * np.pi * doppler_hz * time * np.cos(angle) + phase))
        gain[:, n] = np.abs(waves.sum(axis=-1)) ** 2 / _WAVES
    return gain


def moving_shadows(
    rounds: int, clients: int, deviation_db: float, decorrelation_m: float, speed_m_s: float, step_s: float,
    random: np.random.Generator,
) -> Floats:
    """Return power gains of log-normal shadowing that changes as a client moves (Gudmundson 1991); their median is 1.

    In dB they are Gaussian with standard deviation ``deviation_db``. The correlation between two places of a client is
    exp(−distance/decorrelation_m).
    """
    kept = np.exp(-speed_m_s * step_s / decorrelation_m)
    noise = random.standard_normal((rounds, clients))
    shadow = np.empty_like(noise)
    shadow[0] = noise[0]
    for t in range(1, rounds):
        shadow[t] = kept * shadow[t - 1] + np.sqrt(1.0 - kept**2) * noise[t]
    return np.asarray(10.0 ** (deviation_db * shadow / 10.0))


def on_and_off(
    rounds: int, clients: int, mean_on_s: float, mean_off_s: float, step_s: float, random: np.random.Generator,
    daily: float = 0.0,
) -> Bools:
    """Return which clients are available: each is a stationary Markov chain with two states of these mean durations.

    :param daily: from 0 to below 1. With x = 1 + daily·sin(2π·t/day), clients stay on x times as long and off 1/x
        times as long, so that more clients are available in the first half of a day than in the second.
    """
    draws = random.random((rounds, clients))
    swing = 1.0 + daily * np.sin(2.0 * np.pi * step_s * np.arange(rounds) / DAY_S)
    leave, come = 1.0 / (mean_on_s * swing), swing / mean_off_s
    share = come / (leave + come)
    remembered = np.exp(-(leave + come) * step_s)
    on = np.empty((rounds, clients), dtype=np.bool_)
    on[0] = draws[0] < share[0]
    for t in range(1, rounds):
        on[t] = draws[t] < share[t] + (on[t - 1] - share[t]) * remembered[t]
    return on
