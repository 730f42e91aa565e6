"""Delay and energy of a round (the paper's Section II-C). No other module repeats these formulas.

The arguments are the decisions of a plan, with shape (..., N): λ is ``ratio`` (the fraction of weights removed), f is
``frequency_hz``, p is ``power_w`` and a is ``selected``. The other symbols are members of :class:`Fleet`: Z is
``batch_size``, e is ``flops_per_sample``, q is ``flops_per_cycle``, H is ``gradient_bits``, H⁺ is ``uplink_bits``, κ is
``pue``, ϖ is ``capacitance`` and s is ``cost_share``. τ without an index is ``local_steps``; τ_n is a time. In the
paper, τ = 1, H⁺ = H and s(λ) = 1 − λ.
"""

from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.system.channel import downlink_rate, uplink_rate
from fedgap.system.fleet import Fleet


def computation_delay(fleet: Fleet, ratio: Floats, frequency_hz: Floats) -> Floats:
    """Computation time τ_n = s(λ_n)·τ·Z_n·e_n/(f_n·q_n), in s; infinite at f_n = 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(fleet.cost_share(ratio) * fleet.cycles / frequency_hz)


def upload_delay(fleet: Fleet, ratio: Floats, power_w: Floats) -> Floats:
    """Time of the upload, s(λ_n)·H⁺_n/r_n(p_n), in s; infinite at p_n = 0."""
    rate = uplink_rate(power_w, fleet.uplink_gain, fleet.bandwidth_hz, fleet.uplink_noise_psd_w_hz[..., None])
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(fleet.cost_share(ratio) * fleet.uplink_bits / rate)


def download_delay(fleet: Fleet) -> Floats:
    """Time of the download, H_n/r̂_n, in s. The global gradient is not pruned, so that no decision changes this time."""
    rate = downlink_rate(
        fleet.server_power_w[..., None],
        fleet.downlink_gain,
        fleet.server_bandwidth_hz[..., None],
        fleet.downlink_noise_psd_w_hz,
    )
    return fleet.gradient_bits / rate


def fixed_delay(fleet: Fleet) -> Floats:
    """Time of the download and the client's latency, H_n/r̂_n + ℓ_n, in s. No decision changes it."""
    return download_delay(fleet) + fleet.latency_s


def computation_energy(fleet: Fleet, ratio: Floats, frequency_hz: Floats) -> Floats:
    """Computation energy Ẽ_n = s(λ_n)·κ_n·ϖ_n·f_n²·τ·Z_n·e_n/q_n, in J."""
    return np.asarray(fleet.cost_share(ratio) * fleet.pue * fleet.capacitance * frequency_hz**2 * fleet.cycles)


def upload_energy(fleet: Fleet, ratio: Floats, power_w: Floats) -> Floats:
    """Energy of the upload, Ê_n = s(λ_n)·p_n·H⁺_n/r_n(p_n), in J.

    At p_n = 0 it is the limit s(λ_n)·H⁺_n·ln2·U₀/h_n. This limit is positive, because even an infinitely slow upload
    needs Shannon's least energy per bit.
    """
    return _energy_of_upload(fleet, ratio, power_w, upload_delay(fleet, ratio, power_w))


def _energy_of_upload(fleet: Fleet, ratio: Floats, power_w: Floats, delay_s: Floats) -> Floats:
    """Energy of an upload that takes ``delay_s``: p_n·delay_s, or the limit for p_n → 0 where the delay is infinite."""
    endless = np.isinf(delay_s)
    if not endless.any():
        return power_w * delay_s
    least = np.log(2.0) * fleet.uplink_noise_psd_w_hz[..., None] / fleet.uplink_gain
    limit = fleet.cost_share(ratio) * fleet.uplink_bits * least
    return np.where(endless, limit, power_w * np.where(endless, 0.0, delay_s))


def broadcast_energy(fleet: Fleet) -> Floats:
    """Energy of the broadcast, p̂·max_n{H_n/r̂_n}, in J, shape (...).

    The maximum is over ALL clients, because unselected clients keep their copy of the model up to date as well.
    """
    return np.asarray(fleet.server_power_w * download_delay(fleet).max(axis=-1))


def idle_energy(fleet: Fleet, selected: Bools, round_s: Floats) -> Floats:
    """Idle energy of the selected clients, P_n·d, in J, shape (..., N), where d is the duration of the round.

    A selected device is awake until the round ends. Ẽ_n and Ê_n are what computing and sending need in addition.
    Unselected clients sleep and need nothing.

    :param round_s: d, in s, broadcastable to (..., N).
    """
    if not fleet.idle_power_w.any():
        return np.zeros(np.shape(selected))
    return np.where(selected, fleet.idle_power_w * round_s, 0.0)


@dataclass(frozen=True, eq=False)
class RoundCost:
    """One round's delay and energy by client and cause: seconds and joules, shape (..., N), 0 for unselected clients.

    ``broadcast_j`` is the server's and has shape (...).
    """

    compute_s: Floats
    upload_s: Floats
    download_s: Floats
    """Download time including the client's latency."""
    compute_j: Floats
    upload_j: Floats
    broadcast_j: Floats
    idle_j: Floats
    """Idle power P_n times the round's delay; see :func:`idle_energy`."""

    @property
    def client_s(self) -> Floats:
        """Each selected client's seconds of computing, uploading and downloading, τ_n + τ̂_n, shape (..., N)."""
        return self.compute_s + self.upload_s + self.download_s

    @property
    def client_j(self) -> Floats:
        """Each selected client's joules of computing, uploading and idling, Ẽ_n + Ê_n + P_n·d, shape (..., N)."""
        return self.compute_j + self.upload_j + self.idle_j

    @property
    def delay_s(self) -> Floats:
        """The round's delay, which is that of the slowest selected client, in s, shape (...)."""
        return np.asarray(self.client_s.max(axis=-1))

    @property
    def energy_j(self) -> Floats:
        """The round's energy, of all selected clients and the broadcast together, in J, shape (...)."""
        return np.asarray(self.client_j.sum(axis=-1) + self.broadcast_j)

    @property
    def straggler(self) -> Ints:
        """Index of the slowest selected client, shape (...)."""
        return np.asarray(self.client_s.argmax(axis=-1))


def round_cost(
    fleet: Fleet, selected: Bools, ratio: Floats, power_w: Floats, frequency_hz: Floats
) -> RoundCost:
    """Return the cost of one round.

    A plan's energy E and delay T are the sums of ``energy_j`` and ``delay_s`` over its rounds s = 0..S.

    :param selected: a_n, boolean, shape (..., N).
    :param ratio: λ_n; :param power_w: p_n, W; :param frequency_hz: f_n, Hz. Values of unselected clients are ignored.
    """

    def where_selected(value: Floats) -> Floats:
        return np.where(selected, value, 0.0)

    # Values of unselected clients may be anything, even zero power, by which the formulas would divide.
    power_w = np.where(selected, power_w, fleet.max_power_w)
    frequency_hz = np.where(selected, frequency_hz, fleet.max_frequency_hz)
    upload_s, download_s = upload_delay(fleet, ratio, power_w), fixed_delay(fleet)
    compute_s = computation_delay(fleet, ratio, frequency_hz)
    round_s = where_selected(compute_s + upload_s + download_s).max(axis=-1, keepdims=True)
    return RoundCost(
        compute_s=where_selected(compute_s),
        upload_s=where_selected(upload_s),
        download_s=where_selected(download_s),
        compute_j=where_selected(computation_energy(fleet, ratio, frequency_hz)),
        upload_j=where_selected(_energy_of_upload(fleet, ratio, power_w, upload_s)),
        broadcast_j=broadcast_energy(fleet),
        idle_j=idle_energy(fleet, selected, round_s),
    )


ANSWER_BITS = 32.0
"""Size of the loss value that a client sends when it is asked for its loss."""
FORWARD_SHARE = 1.0 / 3.0
"""Operations of a forward pass as a share of those of a gradient."""


def probe_cost(fleet: Fleet, asked: Bools) -> RoundCost:
    """Return the cost of asking clients for their loss on one mini-batch of Z_n samples, as some selection rules do.

    All clients have the present model already. A client that is asked computes a forward pass, Z_n·e_n/3 operations, at
    its highest clock, and sends 32 bits at its highest power. The server waits for the slowest of them.

    :param asked: which clients are asked, boolean, shape (..., N).
    """
    cycles = FORWARD_SHARE * fleet.batch_size * fleet.flops_per_sample / fleet.flops_per_cycle
    frequency = fleet.max_frequency_hz
    rate = uplink_rate(fleet.max_power_w, fleet.uplink_gain, fleet.bandwidth_hz, fleet.uplink_noise_psd_w_hz[..., None])
    upload_s, compute_s = ANSWER_BITS / rate, cycles / frequency
    round_s = np.where(asked, compute_s + upload_s, 0.0).max(axis=-1, keepdims=True)

    def of_asked(values: Floats) -> Floats:
        return np.where(asked, values, 0.0)

    return RoundCost(
        compute_s=of_asked(compute_s), upload_s=of_asked(upload_s), download_s=np.zeros(np.shape(asked)),
        compute_j=of_asked(fleet.pue * fleet.capacitance * frequency**2 * cycles),
        upload_j=of_asked(fleet.max_power_w * upload_s), broadcast_j=np.zeros(np.shape(asked)[:-1]),
        idle_j=idle_energy(fleet, asked, round_s),
    )
