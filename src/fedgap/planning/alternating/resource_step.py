"""Lines 3–8 of Algorithm 1: powers and frequencies by successive convex approximation of P2 (problem P2.1).

The objective of P2 does not depend on p and f, so that every feasible point is a solution. A rule must therefore decide
which one is taken.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.alternating.convex import cvxpy, solved
from fedgap.planning.alternating.iterate import Iterate, Repeated
from fedgap.system import Fleet, fixed_delay, uplink_rate, upload_energy

Rule = Literal["centre", "slack", "energy"]
"""Which solution of P2.1 is taken: that of the interior-point solver, that with the most slack, or that with the least
energy."""


def upload_energy_slope(fleet: Fleet, power_w: Floats) -> Floats:
    """Slope of the upload energy, b_n = ∂/∂p [p·H/r(p)] = H/r(p) − p·H·h·c/(r(p)²·(c·U₀ + p·h)·ln2), J/W, shape (N,).

    The paper writes out r = c·log₂(·): H/(c·log₂(·)) − p·H·h/(c·log₂(·)²·(c·U₀ + p·h)·ln2).
    """
    noise = fleet.uplink_noise_psd_w_hz[..., None]
    rate = uplink_rate(power_w, fleet.uplink_gain, fleet.bandwidth_hz, noise)
    bits, received = fleet.uplink_bits, power_w * fleet.uplink_gain
    fall = bits * received * fleet.bandwidth_hz
    return np.asarray(bits / rate - fall / (rate**2 * (fleet.bandwidth_hz * noise + received) * np.log(2.0)))


def tangent(fleet: Fleet, power_w: Floats, at_w: Floats) -> Floats:
    """Tangent of the upload energy at p_k = ``at_w``, ξ(p) = p_k·H/r(p_k) + b·(p − p_k), eq. (SCA), J, shape (N,).

    It is *above* the upload energy, as the paper claims: with v = p·h/(c·U₀), v/ln(1 + v) = ∫₀¹ (1 + v)^t dt is a
    mean of concave functions and therefore concave. So every point of P2.1 is a point of P2, but not vice versa.
    """
    whole = np.zeros(at_w.shape)
    return np.asarray(upload_energy(fleet, whole, at_w) + upload_energy_slope(fleet, at_w) * (power_w - at_w))


class ResourceStep:
    """P2.1 for k selected clients as a CVXPY model, which is compiled once and solved at any point.

    The variables are x = p/p^max and y = f/f^max in [0, 1]. 1/r(p) in the delay is convex in p: it is modelled by 1/v
    with an additional variable v ≤ ln(1 + p·h/(c·U₀)), whose limit is concave. The logarithm is written as
    ln(SNR) + ln(x + 1/SNR), so that the solver's numbers are near 1.
    """

    def __init__(self, repeated: Repeated, count: int, rule: Rule) -> None:
        cp = cvxpy()
        self._repeated, scheme = repeated, repeated.scheme
        names = (
            "compute_j", "upload_slope", "compute_s", "upload_s", "download_s",
            "dense_compute_s", "dense_upload_s", "log_snr", "inverse_snr",
        )  # fmt: skip
        self._values = value = {name: cp.Parameter(count, nonneg=True) for name in names}
        value["energy_left"] = cp.Parameter()
        slack = cp.Variable(nonneg=True)
        constraints: list[Any] = []
        self._x: Any = np.ones(count)
        self._y: Any = np.ones(count)
        per_nat, one_over_y, squared_y = np.ones(count), np.ones(count), np.ones(count)
        if scheme.power:
            self._x, nats = cp.Variable(count, nonneg=True), cp.Variable(count)
            constraints += [self._x <= 1.0, nats <= cp.log(self._x + value["inverse_snr"]) + value["log_snr"]]
            per_nat = cp.inv_pos(nats)
        if scheme.frequency:
            self._y = cp.Variable(count, nonneg=True)
            constraints += [self._y <= 1.0]
            one_over_y, squared_y = cp.inv_pos(self._y), cp.square(self._y)
        energy = value["compute_j"] @ squared_y + value["upload_slope"] @ self._x
        time = cp.multiply(value["compute_s"], one_over_y) + cp.multiply(value["upload_s"], per_nat)
        if repeated.dense_rounds:
            dense, rest = cp.Variable(), cp.Variable()
            unpruned = cp.multiply(value["dense_compute_s"], one_over_y)
            unpruned += cp.multiply(value["dense_upload_s"], per_nat)
            constraints += [time + value["download_s"] <= rest, unpruned + value["download_s"] <= dense]
            delays = (repeated.pruned_rounds * rest + repeated.dense_rounds * dense) / repeated.problem.rounds
            constraints += [delays + slack <= 1.0]
        else:
            constraints += [time + value["download_s"] + slack <= 1.0]
        if rule == "energy":
            constraints += [slack == 0.0]
            objective = cp.Minimize(energy)
        else:
            constraints += [energy + slack <= value["energy_left"]]
            objective = cp.Maximize(slack) if rule == "slack" else cp.Minimize(0.0)
        self._model = cp.Problem(objective, constraints)

    def __call__(self, point: Iterate) -> Iterate | None:
        """Return the point with the powers and frequencies of a solution of P2.1 at this point; None without one."""
        self._set(point)
        if not solved(self._model):
            return None
        fleet = self._repeated.problem.fleet
        power, frequency = point.power_w.copy(), point.frequency_hz.copy()
        # The solver may end slightly outside [0, 1]. With a power or frequency of 0 a client would never finish.
        if self._repeated.scheme.power:
            power[point.selected] = np.clip(self._x.value, 1e-15, 1.0) * fleet.max_power_w[point.selected]
        if self._repeated.scheme.frequency:
            frequency[point.selected] = np.clip(self._y.value, 1e-15, 1.0) * fleet.max_frequency_hz[point.selected]
        return replace(point, power_w=power, frequency_hz=frequency)

    def _set(self, point: Iterate) -> None:
        """Set the parameters of the model, with energies in units of the energy budget and times in units of T₀/R."""
        repeated, index = self._repeated, np.flatnonzero(point.selected)
        fleet = repeated.problem.fleet.take(index)
        noise = fleet.bandwidth_hz * fleet.uplink_noise_psd_w_hz[..., None] / fleet.uplink_gain
        log_snr = np.log1p(fleet.max_power_w / noise)
        rounds = repeated.pruned_rounds * (1.0 - point.ratio[index]) + repeated.dense_rounds
        power, share = point.power_w[index], repeated.problem.delay_s / repeated.problem.rounds
        budget = repeated.energy_j
        at_zero = tangent(fleet, np.zeros(index.size), power)
        slope = upload_energy_slope(fleet, power) * fleet.max_power_w
        keep = 1.0 - point.ratio[index]
        snr = np.expm1(log_snr)
        compute_s = fleet.cycles / fleet.max_frequency_hz
        compute_j = fleet.pue * fleet.capacitance * fleet.cycles * fleet.max_frequency_hz**2
        # Seconds at one nat per symbol if the power is decided, otherwise at p^max.
        upload_s = fleet.uplink_bits * np.log(2.0) / (fleet.bandwidth_hz * log_snr)
        upload_s = upload_s * (log_snr if repeated.scheme.power else 1.0)
        numbers = {
            "compute_j": rounds * compute_j / budget,
            "upload_slope": rounds * slope / budget,
            "energy_left": 1.0 - float(rounds @ at_zero) / budget,
            "compute_s": keep * compute_s / share,
            "upload_s": keep * upload_s / share,
            "download_s": fixed_delay(fleet) / share,
            "dense_compute_s": compute_s / share,
            "dense_upload_s": upload_s / share,
            "log_snr": np.log(snr),
            "inverse_snr": 1.0 / snr,
        }
        for name, number in numbers.items():
            self._values[name].value = number


def successive_approximation(
    step: ResourceStep, repeated: Repeated, point: Iterate, stop: Literal["printed", "moves"]
) -> Iterate | None:
    """Lines 4–7: solve P2.1, and again at its solution, until the stopping rule holds; None if P2.1 has no solution.

    ``printed`` stops when the objective falls by less than a threshold. That is after one step, because θ depends
    neither on p nor on f. ``moves`` continues until no power changes by more than 10⁻⁶ of its maximum.
    """
    current = step(point)
    if current is None or stop == "printed" or not repeated.scheme.power:
        return current
    limit = 1e-6 * repeated.problem.fleet.max_power_w
    before = point
    for _ in range(100):
        if (np.abs(current.power_w - before.power_w) <= limit).all():
            break
        before, following = current, step(current)
        if following is None:
            break
        current = following
    return current
