"""The pruning ratio, power and clock of every client in a round whose clients a rule chooses.

A rule that chooses the clients anew in each round needs rounds that cost, on average, what was planned. Two numbers
make them. A round lasts D seconds, or as long as the slowest of its clients needs at full power and clock with the
most pruning where that is longer; everybody may use all of it. And a client prunes as the price μ of a joule says: it
minimises λ + μ·joules within the round's seconds. For given rounds R, D and μ are those at which R of the rule's
rounds together use up both budgets, probes and a dense first round included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import ClientCurves, OperatingPoint
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.roots import sign_change
from fedgap.planning.schemes import Scheme
from fedgap.system import Fleet, probe_cost

_LOG_PRICES = (-5.0, 30.0)
"""Natural logarithms between which a joule's price is searched, in units of 1/E₀."""
_SPARE = 1e-4
"""Share of the joules that the search for their price may leave unused."""
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class RuledSets:
    """Rounds of a rule, in their order."""

    selected: Bools
    """Who takes part, (S, N)."""
    asked: Bools
    """Who is asked for its loss before, (S, N)."""

    def __len__(self) -> int:
        return len(self.selected)

    def first(self, rounds: int) -> "RuledSets":
        """The first rounds, or all of them."""
        return RuledSets(self.selected[:rounds], self.asked[:rounds])


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """Of each client, (N,)."""

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
    """What the points of a run are made with."""

    deadline_s: float
    """D."""
    joule: float
    """μ: pruning ratio that a client gives up for a joule."""

    def points(self, fleet: Fleet, scheme: Scheme, round_s: float = 0.0, *, dense: bool = False) -> OperatingPoints:
        """The clients' points with their present channels and clocks, in a round of D seconds or ``round_s`` where that
        is more; whoever needs longer takes as long as it needs. ``dense``: without pruning."""
        curves = _curves(fleet, scheme, dense)
        timed = _Timed.of(curves, np.array(max(self.deadline_s, round_s)))
        keep = timed.keep(np.array(self.joule))
        point = timed.at(keep)
        return OperatingPoints(1.0 - curves.unpruned(keep), curves.power(point.s), curves.frequency(point.x))

    def round_points(self, fleet: Fleet, scheme: Scheme, selected: Bools, *, dense: bool = False) -> OperatingPoints:
        """Everybody's points in a round of some clients, (N,)."""
        longest = float(np.where(selected, shortest_s(fleet, scheme, dense=dense), 0.0).max())
        return self.points(fleet, scheme, longest, dense=dense)


def _curves(fleet: Fleet, scheme: Scheme, dense: bool = False) -> ClientCurves:
    return ClientCurves.of(fleet, prune=scheme.prune and not dense, free_power=scheme.power,
                           free_frequency=scheme.frequency)


def shortest_s(fleet: Fleet, scheme: Scheme, *, dense: bool = False) -> Floats:
    """The least seconds that each client needs, (N,)."""
    return _curves(fleet, scheme, dense).least_s


@dataclass(frozen=True, eq=False)
class _Timed:
    """The clients with the seconds that rounds leave them beside their downloads, (..., N)."""

    curves: ClientCurves
    time_s: Floats
    cheapest: Floats
    """A price of time below which nobody works."""

    @classmethod
    def of(cls, curves: ClientCurves, round_s: Floats) -> "_Timed":
        """In rounds of so many seconds, (...)."""
        time = np.maximum(round_s[..., None] - curves.overhead, curves.keep_min * curves.u_min)
        return cls(curves, time, 0.5 * curves.price_of_time(time / curves.keep_min))

    def keep(self, joule: Floats) -> Floats:
        """What each client keeps at prices of a joule, (...) → (..., N)."""
        worth = np.ones_like(self.time_s)
        return self.curves.kept(self.time_s, self.curves.balances(worth, joule[..., None], self.cheapest))

    def at(self, keep: Floats) -> OperatingPoint:
        """Where the clients work that keep so much."""
        curves = self.curves
        return curves.at(curves.price_of_time(np.maximum(self.time_s / keep, curves.u_min)))


@dataclass(frozen=True, eq=False)
class _Part:
    """For several numbers of rounds, (J,), those that are dense, or the others, by how long their slowest client needs:
    L lengths."""

    curves: ClientCurves
    lengths_s: Floats
    """(L,)."""
    rounds: Floats
    """How many have each length, (J, L)."""
    often: Floats
    """In how many of these each client takes part, (J, L, N)."""
    shares: Floats
    """The same, a round of k clients counted as 1/k, (J, L, N)."""

    @classmethod
    def of(cls, curves: ClientCurves, selected: Bools, times: Ints) -> "_Part":
        """The rounds of some sets, (S, N), each so often, (J, S)."""
        lengths, places = np.unique(curves.shortest(selected), return_inverse=True)
        here = times[:, None, :] * (places == np.arange(len(lengths))[:, None])
        return cls(curves, lengths, here.sum(axis=-1).astype(np.float64), here @ selected.astype(np.float64),
                   here @ (selected / selected.sum(axis=-1, keepdims=True)))

    def times_s(self, deadline_s: Floats) -> Floats:
        """The seconds of a round of each length with deadlines D, (J,) → (J, L)."""
        return np.maximum(self.lengths_s, deadline_s[:, None])


@dataclass(frozen=True, eq=False)
class _Rounds:
    """For several numbers of rounds, (J,), those that are to use up both budgets together."""

    parts: Sequence[_Part]
    delay_s: Floats
    """The budget without the probes, (J,)."""
    energy_j: Floats
    """The budget without broadcasts and probes, (J,)."""

    @classmethod
    def of(cls, problem: Problem, scheme: Scheme, sets: RuledSets, numbers: Ints) -> "_Rounds":
        """So many rounds of some sets; these again and again where there are fewer."""
        dense = problem.dense_first and scheme.prune
        whole, rest = np.divmod(numbers[:, None], len(sets))
        times = whole + (np.arange(len(sets)) < rest)
        first = np.zeros_like(times)
        first[:, 0] = dense
        parts = [_Part.of(_curves(problem.fleet, scheme, kind), sets.selected, each)
                 for each, kind in ((first, True), (times - first, False)) if each.any()]
        probes = probe_cost(problem.fleet, sets.asked)
        return cls(parts, problem.delay_s - times @ probes.delay_s,
                   problem.energy_j - times @ probes.energy_j - numbers * problem.broadcast_j)

    def seconds(self, deadline_s: Floats) -> Floats:
        """What they take with deadlines D, (J,)."""
        each = [(part.rounds * part.times_s(deadline_s)).sum(axis=-1) for part in self.parts]
        return np.asarray(np.sum(each, axis=0))

    def timed(self, deadline_s: Floats) -> list[_Timed]:
        """The clients of each part with deadlines D, (J, L, N)."""
        return [_Timed.of(part.curves, part.times_s(deadline_s)) for part in self.parts]

    def joules(self, timed: list[_Timed], joule: Floats) -> Floats:
        """What the clients use at prices of a joule, (J,), without idle power."""
        total = np.zeros(len(joule))
        for part, clients in zip(self.parts, timed, strict=True):
            keep = clients.keep(joule[:, None])
            total += (keep * clients.at(keep).energy * part.often).sum(axis=(-2, -1))
        return total

    def idle_j(self, deadline_s: Floats) -> Floats:
        """What the clients use by being awake, (J,)."""
        each = [(part.times_s(deadline_s)[..., None] * part.often).sum(axis=-2) @ part.curves.idle
                for part in self.parts]
        return np.asarray(np.sum(each, axis=0))

    def pruning(self, timed: list[_Timed], joule: Floats) -> Floats:
        """The mean pruning ratio, over the clients of a round and then over the rounds, (J,)."""
        total = np.zeros(len(joule))
        for part, clients in zip(self.parts, timed, strict=True):
            ratio = 1.0 - part.curves.unpruned(clients.keep(joule[:, None]))
            total += (ratio * part.shares).sum(axis=(-2, -1))
        return np.asarray(total / np.sum([part.rounds.sum(axis=-1) for part in self.parts], axis=0))


@dataclass(frozen=True)
class PricedRounds:
    """Rounds of a rule that use up both budgets."""

    prices: Prices
    pruning: float
    """The mean pruning ratio."""


def prices_for(problem: Problem, scheme: Scheme, sets: RuledSets, numbers: Ints) -> list[PricedRounds | None]:
    """For each number of rounds, (J,), the prices at which so many of these rounds use up both budgets; None where they
    do not fit. They are the first ones; where there are fewer, all of them again and again.

    Local steps and bits are the problem's.
    """
    rounds = _Rounds.of(problem, scheme, sets, numbers)
    low, high = np.zeros(len(numbers)), np.maximum(rounds.delay_s, 0.0)
    possible = rounds.seconds(low) <= rounds.delay_s
    for _ in range(_HALVINGS):  # the seconds rise with D
        middle = 0.5 * (low + high)
        within = rounds.seconds(middle) <= rounds.delay_s
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    deadline, timed = low, rounds.timed(low)
    budget = rounds.energy_j - rounds.idle_j(deadline)
    possible &= budget > 0.0
    budget = np.where(possible, budget, 1.0) * (1.0 - _SPARE)

    def left(log_price: Floats) -> Floats:
        """How far the joules stay below the budget, on a logarithmic scale: this rises with their price."""
        return np.asarray(np.log(budget / rounds.joules(timed, np.exp(log_price) / problem.energy_j)))

    cheap, dear = (np.full(len(numbers), end) for end in _LOG_PRICES)
    at_cheap, at_dear = left(cheap), left(dear)
    possible &= at_dear >= 0.0
    dear = np.where(at_cheap >= 0.0, cheap, dear)
    _, log_price = sign_change(left, np.where(possible, cheap, dear), dear, at_cheap, at_dear, width=_SPARE, met=_SPARE)
    joule = np.exp(log_price) / problem.energy_j
    pruning = rounds.pruning(timed, joule)
    return [PricedRounds(Prices(float(deadline[i]), float(joule[i])), float(pruning[i])) if possible[i] else None
            for i in range(len(numbers))]
