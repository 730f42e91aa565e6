"""Oracle: P1 for a fixed selection as one jointly convex problem in CVXPY, which the benchmarks compare with too.

With the kept fraction m = 1 − λ, the compute time t_c and the upload time t_u as variables (instead of λ, f, p), a
client costs

    κϖC³·m³/t_c²  +  ν·t_u·(e^{b·m/t_u} − 1)   joules,        C = Z·e/q,  b = H·ln2/c,  ν = c·U₀/h,

both perspectives of convex functions (a cube, an exponential), hence jointly convex; f ≤ f^max and p ≤ p^max are the
linear m·C/f^max ≤ t_c and m·H/r(p^max) ≤ t_u. No successive approximation is needed.

Times are in units of what the whole model takes at f^max and p^max, t_c = x·t_c^min and t_u = y·t_u^min, so that every
variable is of order one; with s = ln(1 + p^max/ν) the exponential's cone is y·e^{s(m − y)/y} ≤ w, free of SNR's 10⁹.
"""

import time
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.alternating.convex import solved
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import PAPER_SCHEMES, Scheme
from fedgap.system import Fleet
from tests.oracle.coefficients import Coefficients

_PROPOSED = PAPER_SCHEMES["proposed"]


@dataclass(frozen=True, eq=False)
class ClientVariables:
    """The CVXPY variables of k clients in one round, with the constraints that tie each client to itself."""

    keep: Any
    """m"""
    compute: Any
    """x = t_c/t_c^min"""
    upload: Any
    """y = t_u/t_u^min"""
    compute_work: Any
    """z ≥ m³/x²: computing energy in units of ``compute_j``."""
    upload_work: Any
    """w ≥ y·e^{s(m − y)/y}: uploading energy in units of ``upload_j``."""
    constraints: list[Any]


def client_variables(count: int, log_snr: Any, keep_min: Any, scheme: Scheme = _PROPOSED) -> ClientVariables:
    """Variables and own constraints of ``count`` clients; ``log_snr`` and ``keep_min`` are arrays or CVXPY parameters.

    A fixed frequency makes x = z = m, a fixed power y = w = m.
    """
    keep = cp.Variable(count)
    constraints = [keep >= keep_min, keep <= 1.0]
    compute, work = keep, keep
    if scheme.frequency:
        compute, work = cp.Variable(count), cp.Variable(count)
        constraints += [compute >= keep, cp.PowCone3D(work, compute, keep, 1.0 / 3.0)]
    upload, sent = keep, keep
    if scheme.power:
        upload, sent = cp.Variable(count), cp.Variable(count)
        constraints += [upload >= keep, cp.ExpCone(cp.multiply(log_snr, keep - upload), upload, sent)]
    return ClientVariables(keep, compute, upload, work, sent, constraints)


@dataclass(frozen=True, eq=False)
class FixedSelection:
    """The optimum of one fixed-selection problem; arrays of shape (k,), in the order of the selected clients."""

    feasible: bool
    kept: float
    """Mean m over the selected clients, which the problem maximises; NaN where infeasible."""
    keep: Floats
    frequency_hz: Floats
    power_w: Floats
    energy_price: float
    """∂kept/∂E ≥ 0, 1/J."""
    delay_price: float
    """∂kept/∂T ≥ 0, 1/s, all clients' deadlines moving together."""
    solver_s: float
    """Clarabel's own seconds, without CVXPY's; in a model solved again they include the earlier solves'."""
    total_s: float
    """Seconds from setting the parameters to reading the answer."""


class FixedSelectionModel:
    """max Σ m_n/k s.t. E(m, x, y) ≤ E and each client's time ≤ T, compiled once (DPP) and solved for any budgets.

    Without a ``fleet`` every number is a parameter and any k clients can be put in; DPP's parameter maps then grow with
    k² (30 GB at k = 10,000). With one, its numbers are constants and only the two budgets are parameters.
    """

    def __init__(self, count: int, scheme: Scheme = _PROPOSED, fleet: Fleet | None = None) -> None:
        self.count, self.scheme, self._fleet = count, scheme, fleet
        names = ("compute_j", "upload_j", "silent_j", "compute_s", "upload_s", "download_s", "log_snr", "keep_min")
        if fleet is None:
            self.parameters: dict[str, Any] = {name: cp.Parameter(count, nonneg=True, name=name) for name in names}
            value, self._units = self.parameters, (1.0, 1.0)
        else:
            # What no pruning takes at full power and frequency: it keeps the solver's numbers near 1.
            numbers = Coefficients.of(fleet, prune=scheme.prune)
            joules = float((numbers.compute_j + numbers.upload_j).sum())
            seconds = float((numbers.compute_s + numbers.upload_s + numbers.download_s).max())
            self.parameters, self._units = {}, (joules, seconds)
            value = _scaled(numbers, joules, seconds)
        self.parameters |= {name: cp.Parameter(nonneg=True, name=name) for name in ("energy", "delay")}
        self.variables = own = client_variables(count, value["log_snr"], value["keep_min"], scheme)
        energy = value["compute_j"] @ own.compute_work + value["upload_j"] @ own.upload_work
        self._energy = energy - value["silent_j"] @ own.upload <= self.parameters["energy"]
        busy = cp.multiply(value["compute_s"], own.compute) + cp.multiply(value["upload_s"], own.upload)
        self._time = busy + value["download_s"] <= self.parameters["delay"]
        self.problem = cp.Problem(cp.Maximize(cp.sum(own.keep) / count), [*own.constraints, self._energy, self._time])

    def solve(self, energy_j: float, delay_s: float, fleet: Fleet | None = None) -> FixedSelection:
        """Solve for the fleet given here or at the start, all of its clients selected.

        :param energy_j: J a round for computing and uploading (the broadcast taken off).
        :param delay_s: s a round, the download included.
        """
        began = time.perf_counter()
        fleet = self._fleet if fleet is None else fleet
        assert fleet is not None
        numbers = Coefficients.of(fleet, prune=self.scheme.prune)
        nothing = np.zeros(0)
        failed = FixedSelection(False, np.nan, nothing, nothing, nothing, np.nan, np.nan, 0.0, 0.0)
        if energy_j <= 0.0 or (numbers.download_s >= delay_s).any():
            return failed
        joules, seconds = self._units
        if self._fleet is None:
            joules, seconds = energy_j, delay_s
            for name, number in _scaled(numbers, joules, seconds).items():
                self.parameters[name].value = number
        self.parameters["energy"].value, self.parameters["delay"].value = energy_j / joules, delay_s / seconds
        if not solved(self.problem):
            return failed
        own = self.variables
        keep = np.clip(own.keep.value, numbers.keep_min, 1.0)
        upload = np.maximum(own.upload.value, keep)
        noise = numbers.silent_j / numbers.upload_s
        return FixedSelection(
            feasible=True,
            kept=float(keep.mean()),
            keep=keep,
            frequency_hz=fleet.max_frequency_hz * keep / np.maximum(own.compute.value, keep),
            power_w=np.minimum(noise * np.expm1(numbers.log_snr * keep / upload), fleet.max_power_w),
            energy_price=float(self._energy.dual_value) / joules,
            delay_price=float(np.sum(self._time.dual_value)) / seconds,
            solver_s=float(self.problem.solver_stats.solve_time),
            total_s=time.perf_counter() - began,
        )


def _scaled(numbers: Coefficients, joules: float, seconds: float) -> dict[str, Floats]:
    """The coefficients with energies and times in the given curves."""
    unit = {"j": joules, "s": seconds}
    return {name: value / unit.get(name.rsplit("_", 1)[-1], 1.0) for name, value in vars(numbers).items()}


def solve_fixed_selection(
    problem: Problem, selected: Bools, energy_j: float, delay_s: float, scheme: Scheme = _PROPOSED
) -> FixedSelection:
    """The best m, f and p for a round of ``selected``, (N,), in ``energy_j`` (without broadcast) and ``delay_s``."""
    fleet = problem.fleet.take(np.flatnonzero(selected))
    return FixedSelectionModel(fleet.size, scheme).solve(energy_j, delay_s, fleet)
