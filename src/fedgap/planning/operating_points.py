"""One pruning ratio, power and clock for each client, independent of who else takes part.

A rule that chooses new clients in each round needs rounds that cost what was planned, whichever set it chooses. All
clients therefore have a common deadline D; a client that cannot meet it gets the time that it needs at full power and
clock with the most pruning. Each client then minimises γ·λ/k + μ·joules, where μ is the price of a joule. For given
rounds R, D and μ are chosen so that the mean round of a sample of the rule's sets costs T₀/R seconds and E₀/R joules.
"""

from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import ClientCurves, OperatingPoint
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.system import Fleet

_LOG_PRICES = (-5.0, 30.0)
"""Range of the natural logarithm of a joule's price, in units of γ/(k·E₀)."""
_GRID = 13
"""Number of prices that are tried at once; the best interval is refined twice in the same way."""
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """Pruning ratio, power and clock of each client, (N,)."""

    ratio: Floats
    power_w: Floats
    frequency_hz: Floats

    def segment(self, selected: Bools, local_steps: int, upload_bits: int) -> Segment:
        """The round of some clients."""
        return Segment(rounds=1, selected=selected, pruning_ratio=np.where(selected, self.ratio, 0.0),
                       power_w=np.where(selected, self.power_w, 0.0),
                       frequency_hz=np.where(selected, self.frequency_hz, 0.0),
                       local_steps=local_steps, upload_bits=upload_bits)


@dataclass(frozen=True)
class Prices:
    """The deadline and the prices that determine the clients' operating points."""

    deadline_s: float
    joule: float
    """μ."""
    worth: float
    """γ/k: what a client's pruning ratio costs."""

    def points(self, fleet: Fleet, scheme: Scheme, *, dense: bool = False) -> OperatingPoints:
        """The clients' points with their present channels and clocks; ``dense``: without pruning."""
        curves = _curves(fleet, scheme, dense)
        keep, point = _kept(curves, np.array(self.deadline_s), np.array(self.joule), np.array(self.worth))
        return OperatingPoints(1.0 - curves.unpruned(keep), curves.power(point.s), curves.frequency(point.x))


def _curves(fleet: Fleet, scheme: Scheme, dense: bool = False) -> ClientCurves:
    return ClientCurves.of(fleet, prune=scheme.prune and not dense, free_power=scheme.power,
                           free_frequency=scheme.frequency)


def shortest_s(fleet: Fleet, scheme: Scheme, *, dense: bool = False) -> Floats:
    """The least seconds that each client needs, (N,)."""
    return _curves(fleet, scheme, dense).least_s


def _kept(curves: ClientCurves, deadline_s: Floats, joule: Floats, worth: Floats) -> tuple[Floats, OperatingPoint]:
    """The kept share and the operating point of each client, (..., N), for deadlines, prices and worths (...)."""
    shape = np.broadcast_shapes(deadline_s.shape, joule.shape, worth.shape)
    deadline, mu, gamma = (np.broadcast_to(values, shape)[..., None] for values in (deadline_s, joule, worth))
    time = np.maximum(deadline - curves.overhead, curves.keep_min * curves.u_min)
    floor = 0.5 * curves.price_of_time(time / curves.keep_min)
    keep = curves.kept(time, curves.balances(gamma + np.zeros_like(time), mu, floor))
    return keep, curves.at(curves.price_of_time(np.maximum(time / keep, curves.u_min)))


def prices_for(problem: Problem, scheme: Scheme, sets: Bools, rounds: Ints, worth: Floats) -> list[Prices | None]:
    """For each number of rounds, (J,), the prices at which the mean round of these sets, (S, N), uses its share of
    both budgets; None where so many rounds do not fit. ``worth``: γ/k for each, (J,).

    Local steps and bits are the problem's. Probing and a dense first round are not counted.
    """
    curves, often = _curves(problem.fleet, scheme), sets.mean(axis=0)
    longest = np.where(sets, shortest_s(problem.fleet, scheme), 0.0).max(axis=-1)
    share_s, share_j = problem.delay_s / rounds, problem.energy_j / rounds - problem.broadcast_j
    low, high = np.zeros_like(share_s), share_s.copy()
    for _ in range(_HALVINGS):  # the mean of max(D, longest) rises with D
        middle = 0.5 * (low + high)
        within = np.maximum(middle[:, None], longest).mean(axis=1) <= share_s
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    deadline = low
    fits_time = longest.mean() <= share_s
    unit = np.maximum(worth, 1e-12) / problem.energy_j
    lowest, highest = (np.full_like(share_s, end) for end in _LOG_PRICES)
    for _ in range(3):
        logs = np.linspace(lowest, highest, _GRID, axis=-1)
        keep, point = _kept(curves, deadline[:, None], unit[:, None] * np.exp(logs), worth[:, None])
        energy = (keep * point.energy + curves.idle * np.maximum(deadline, longest.mean())[:, None, None]) @ often
        fits = energy <= share_j[:, None]
        first = np.where(fits.any(axis=1), fits.argmax(axis=1), _GRID - 1)  # joules fall with their price
        places = np.arange(len(rounds))
        lowest, highest = logs[places, np.maximum(first - 1, 0)], logs[places, first]
    possible = fits_time & fits.any(axis=1)
    return [Prices(float(deadline[i]), float(unit[i] * np.exp(highest[i])), float(worth[i])) if possible[i] else None
            for i in range(len(rounds))]
