"""Oracle: one round's best pruning with least clocks and powers, idle power, batteries and a cost curve, in CVXPY.

Beside the kept share m of the cost, compute time x and upload time y (in units of what the whole model takes at f^max
and p^max) the round's length d is a variable. f ≥ f^min and p ≥ p^min are the linear x ≤ m·f^max/f^min and
y ≤ m·s(p^max)/s(p^min); idle power adds P·d to a client's joules; the cost curve makes the unpruned share w a concave,
piecewise linear function of m, given by its lines.
"""

import cvxpy as cp
import numpy as np

from fedgap.planning.alternating.convex import solved
from fedgap.system import Fleet
from tests.oracle.coefficients import Coefficients
from tests.oracle.convex_model import client_variables


def most_unpruned(fleet: Fleet, energy_j: float, delay_s: float, rounds: int = 1) -> float | None:
    """The largest mean of 1 − λ in a round of all clients within ``energy_j`` (without broadcast) and ``delay_s``.

    A battery gives each round an equal part. None where nothing fits.
    """
    numbers = Coefficients.of(fleet)
    joules, seconds = energy_j, delay_s
    if energy_j <= 0.0 or (numbers.download_s >= delay_s).any():
        return None
    own = client_variables(fleet.size, numbers.log_snr, fleet.cost_share(fleet.max_ratio))
    length = cp.Variable()
    noise = numbers.silent_j / numbers.upload_s
    clock = np.divide(fleet.max_frequency_hz, fleet.min_frequency_hz, where=fleet.min_frequency_hz > 0.0,
                      out=np.full(fleet.size, 1e6))
    power = np.divide(numbers.log_snr, np.log1p(fleet.min_power_w / noise), where=fleet.min_power_w > 0.0,
                      out=np.full(fleet.size, 1e6))
    each = (cp.multiply(numbers.compute_j / joules, own.compute_work)
            + cp.multiply(numbers.upload_j / joules, own.upload_work)
            - cp.multiply(numbers.silent_j / joules, own.upload) + fleet.idle_power_w * seconds / joules * length)
    busy = cp.multiply(numbers.compute_s, own.compute) + cp.multiply(numbers.upload_s, own.upload)
    unpruned = cp.Variable(fleet.size)
    constraints = [*own.constraints, cp.sum(each) <= 1.0, length <= 1.0,
                   (busy + numbers.download_s) / seconds <= length,
                   own.compute <= cp.multiply(clock, own.keep), own.upload <= cp.multiply(power, own.keep)]
    finite = np.isfinite(fleet.battery_j)
    if finite.any():
        constraints.append(each[finite] <= fleet.battery_j[finite] / rounds / joules)
    if fleet.cost_curve is None:
        constraints.append(unpruned <= own.keep)
    else:
        share, worth = fleet.cost_curve.share, 1.0 - fleet.cost_curve.ratio
        slopes = np.diff(worth) / np.diff(share)
        constraints += [unpruned <= w + slope * (own.keep - m) for w, m, slope in zip(worth, share, slopes)]
    model = cp.Problem(cp.Maximize(cp.sum(unpruned) / fleet.size), constraints)
    return float(model.value) if solved(model) else None
