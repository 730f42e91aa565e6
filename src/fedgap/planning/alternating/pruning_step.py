"""Line 9 of Algorithm 1: the pruning ratios, by problem P3, which is a linear program."""

from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from fedgap.planning.alternating.iterate import TOLERANCE, Iterate, Repeated


def pruning_step(repeated: Repeated, point: Iterate) -> Iterate:
    """Return the point with the best pruning ratios for its a, p and f, or unchanged if the program has no solution.

    The program is min Σ λ_n over the selected clients s.t. E ≤ E₀, T ≤ T₀, 0 ≤ λ ≤ λ^max. With a fixed, θ is γ₂·Σλ/k
    plus constants. T ≤ T₀ becomes a lower bound on each λ_n, 1 − (t − download_n)/delay_n, where t is the time of a
    pruned round: T₀/R, or (T₀ − time of the unpruned round)/(R − 1).
    """
    if not repeated.scheme.prune or repeated.pruned_rounds == 0:
        return point
    index = np.flatnonzero(point.selected)
    loads = repeated.loads(point.power_w, point.frequency_hz)
    energy, delay, download = (column[index] for column in (loads.energy_j, loads.delay_s, loads.download_s))
    spent = repeated.dense_rounds * float((delay + download).max())
    deadline = (repeated.problem.delay_s - spent) / repeated.pruned_rounds
    most = repeated.max_ratio[index]
    least = np.maximum(0.0, 1.0 - (deadline - download) / delay)
    if (least > most + TOLERANCE).any():
        return point
    rounds = repeated.pruned_rounds * energy / repeated.energy_j
    needed = (rounds + repeated.dense_rounds * energy / repeated.energy_j).sum() - 1.0
    bounds = np.column_stack([np.minimum(least, most), most])
    answer = linprog(np.ones(index.size), A_ub=-rounds[None, :], b_ub=[-needed], bounds=bounds, method="highs")
    if not answer.success:
        return point
    ratio = point.ratio.copy()
    ratio[index] = np.clip(answer.x, 0.0, most)
    return replace(point, ratio=ratio)
