"""Shannon rates of the FDMA uplink and the multicast downlink (Section II-B)."""

import numpy as np

from fedgap.arrays import Floats

_LN2 = float(np.log(2.0))


def uplink_rate(power_w: Floats, gain: Floats, bandwidth_hz: Floats, noise_psd_w_hz: Floats) -> Floats:
    """Uplink rate r_n(p_n) = c_n·log₂(1 + p_n·h_n/(c_n·U₀)), in bit/s, shape (..., N).

    :param power_w: p_n, transmit power, W, shape (..., N).
    :param gain: h_n, channel power gain.
    :param bandwidth_hz: c_n, the client's bandwidth, Hz.
    :param noise_psd_w_hz: U₀ at the server, W/Hz, broadcastable to (..., N).
    """
    # log1p keeps the rate exact for a very weak signal (p·h ≪ c·U₀), where log2(1 + x) would round it to zero.
    return np.asarray(bandwidth_hz * np.log1p(power_w * gain / (bandwidth_hz * noise_psd_w_hz)) / _LN2)


def slower_link_gain(slower: Floats, power_w: Floats, gain: Floats, bandwidth_hz: Floats,
                     noise_psd_w_hz: Floats) -> Floats:
    """Return the factor x on a client's gain that makes its uplink d times slower: r_n(p_n; x·h_n) = r_n(p_n; h_n)/d.

    With the signal-to-noise ratio ζ = p·h/(c·U₀), x = ((1 + ζ)^(1/d) − 1)/ζ.

    :param slower: d ≥ 1, shape (..., N); the others as in :func:`uplink_rate`.
    """
    snr = power_w * gain / (bandwidth_hz * noise_psd_w_hz)
    return np.asarray(np.expm1(np.log1p(snr) / slower) / snr)


def downlink_rate(
    server_power_w: Floats, gain: Floats, server_bandwidth_hz: Floats, noise_psd_w_hz: Floats
) -> Floats:
    """Downlink rate r̂_n = ĉ·log₂(1 + p̂·ĥ_n/(ĉ·U₀,n)), in bit/s, shape (..., N).

    :param server_power_w: p̂, the server's transmit power, W, broadcastable to (..., N).
    :param gain: ĥ_n, channel power gain, shape (..., N).
    :param server_bandwidth_hz: ĉ, the bandwidth of the broadcast, Hz.
    :param noise_psd_w_hz: U₀,n at the client, W/Hz.
    """
    snr = server_power_w * gain / (server_bandwidth_hz * noise_psd_w_hz)
    return np.asarray(server_bandwidth_hz * np.log1p(snr) / _LN2)
