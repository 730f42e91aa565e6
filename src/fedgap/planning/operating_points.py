"""The pruning ratio, power and clock of every client in rounds whose clients a published rule selects.

Such a rule selects other clients in each round, and the rounds must cost on average what was planned. Two numbers
determine what clients do. A round lasts D seconds, or longer if its slowest client needs more time even at full power
and clock with the most pruning; all its clients may use that time. Each client then minimises λ + μ·joules within the
round's time, where μ is the price of a joule. For a given number of rounds R, D and μ are chosen such that R of the
rule's rounds use up the delay budget, and the energy budget as well if more energy lets clients prune less. This
includes what asking clients for their losses costs (*probes*) and an unpruned first round.
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
"""Range in which ln(μ·E₀) is searched, where μ is the price of a joule."""
_SPARE = 1e-4
"""Share of the energy budget that the search for μ may leave unused."""
_HALVINGS = 40
"""Number of bisections by which D is found."""


@dataclass(frozen=True, eq=False)
class RuledSets:
    """The selections of a rule in S rounds, in their order."""

    selected: Bools
    """The clients that take part in each round, (S, N)."""
    asked: Bools
    """The clients that are asked for their loss before each round, (S, N)."""

    def __len__(self) -> int:
        return len(self.selected)

    def first(self, rounds: int) -> "RuledSets":
        """Return the first ``rounds`` rounds, or all if there are fewer."""
        return RuledSets(self.selected[:rounds], self.asked[:rounds])


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """Pruning ratio, power and clock of each client, (N,)."""

    ratio: Floats
    power_w: Floats
    frequency_hz: Floats

    def segment(self, selected: Bools, local_steps: int, upload_bits: int) -> Segment:
        """Return one round of the selected clients at these points, as a segment."""
        return Segment(rounds=1, selected=selected, pruning_ratio=np.where(selected, self.ratio, 0.0),
                       power_w=np.where(selected, self.power_w, 0.0),
                       frequency_hz=np.where(selected, self.frequency_hz, 0.0),
                       local_steps=local_steps, upload_bits=upload_bits)


@dataclass(frozen=True)
class Prices:
    """The deadline and the prices that determine the clients' operating points."""

    deadline_s: float
    """D, in s."""
    joule: float
    """μ, in 1/J: a client prunes more by this much if that saves a joule."""

    def points(self, fleet: Fleet, scheme: Scheme, round_s: float = 0.0, *, dense: bool = False) -> OperatingPoints:
        """Return the operating points of all clients with their present channels and clocks.

        The round lasts D or ``round_s`` seconds, whichever is longer. A client that needs more takes as long as it
        needs.

        :param dense: whether the round is unpruned.
        """
        curves = _curves(fleet, scheme, dense)
        timed = _Timed.of(curves, np.array(max(self.deadline_s, round_s)))
        keep = timed.keep(np.array(self.joule))
        point = timed.at(keep)
        return OperatingPoints(1.0 - curves.unpruned(keep), curves.power(point.s), curves.frequency(point.x))

    def round_points(self, fleet: Fleet, scheme: Scheme, selected: Bools, *, dense: bool = False) -> OperatingPoints:
        """Return the operating points of all clients, (N,), in a round with the selected ones."""
        longest = float(np.where(selected, shortest_s(fleet, scheme, dense=dense), 0.0).max())
        return self.points(fleet, scheme, longest, dense=dense)


def _curves(fleet: Fleet, scheme: Scheme, dense: bool = False) -> ClientCurves:
    return ClientCurves.of(fleet, prune=scheme.prune and not dense, free_power=scheme.power,
                           free_frequency=scheme.frequency)


def shortest_s(fleet: Fleet, scheme: Scheme, *, dense: bool = False) -> Floats:
    """Return the least seconds that each client needs for a round, (N,)."""
    return _curves(fleet, scheme, dense).least_s


@dataclass(frozen=True, eq=False)
class _Timed:
    """The clients in rounds of given durations; arrays have shape (..., N)."""

    curves: ClientCurves
    time_s: Floats
    """Seconds that a client has for computing and uploading."""
    cheapest: Floats
    """A lower bound on the clients' prices of time."""

    @classmethod
    def of(cls, curves: ClientCurves, round_s: Floats) -> "_Timed":
        """Return the clients in rounds that last ``round_s`` seconds, (...)."""
        time = np.maximum(round_s[..., None] - curves.overhead, curves.keep_min * curves.u_min)
        return cls(curves, time, 0.5 * curves.price_of_time(time / curves.keep_min))

    def keep(self, joule: Floats) -> Floats:
        """Return the share m that each client keeps of the model at the price ``joule`` (...) of a joule, (..., N)."""
        worth = np.ones_like(self.time_s)
        return self.curves.kept(self.time_s, self.curves.balances(worth, joule[..., None], self.cheapest))

    def at(self, keep: Floats) -> OperatingPoint:
        """Return the operating points of clients that keep these shares and use all of their time."""
        curves = self.curves
        return curves.at(curves.price_of_time(np.maximum(self.time_s / keep, curves.u_min)))


@dataclass(frozen=True, eq=False)
class _Part:
    """Either the unpruned or all other rounds, for J numbers of rounds at once.

    They are grouped by length: L different times that the slowest client of a round needs at least.
    """

    curves: ClientCurves
    lengths_s: Floats
    """The lengths, (L,)."""
    rounds: Floats
    """How many rounds have each length, (J, L)."""
    often: Floats
    """In how many of these rounds each client takes part, (J, L, N)."""
    shares: Floats
    """The same, with a round of k clients counted as 1/k, (J, L, N)."""

    @classmethod
    def of(cls, curves: ClientCurves, selected: Bools, times: Ints) -> "_Part":
        """Group rounds of selections (S, N), each of which occurs ``times`` times, (J, S)."""
        lengths, places = np.unique(curves.shortest(selected), return_inverse=True)
        here = times[:, None, :] * (places == np.arange(len(lengths))[:, None])
        return cls(curves, lengths, here.sum(axis=-1).astype(np.float64), here @ selected.astype(np.float64),
                   here @ (selected / selected.sum(axis=-1, keepdims=True)))

    def times_s(self, deadline_s: Floats) -> Floats:
        """Return how long a round of each length lasts, (J, L), for D = ``deadline_s``, (J,)."""
        return np.maximum(self.lengths_s, deadline_s[:, None])


@dataclass(frozen=True, eq=False)
class _Rounds:
    """The rounds that must fit both budgets, for J numbers of rounds at once."""

    parts: Sequence[_Part]
    """The unpruned first round, if there must be one, and the other rounds."""
    delay_s: Floats
    """The delay budget minus the time of the probes, (J,)."""
    energy_j: Floats
    """The energy budget minus the energy of broadcasts and probes, (J,)."""

    @classmethod
    def of(cls, problem: Problem, scheme: Scheme, sets: RuledSets, numbers: Ints) -> "_Rounds":
        """Return ``numbers`` (J,) rounds with the selections of ``sets``, which are repeated if there are fewer."""
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
        """Return the seconds of all rounds for D = ``deadline_s``, (J,)."""
        each = [(part.rounds * part.times_s(deadline_s)).sum(axis=-1) for part in self.parts]
        return np.asarray(np.sum(each, axis=0))

    def timed(self, deadline_s: Floats) -> list[_Timed]:
        """Return the clients of each part for D = ``deadline_s``, with arrays (J, L, N)."""
        return [_Timed.of(part.curves, part.times_s(deadline_s)) for part in self.parts]

    def joules(self, timed: list[_Timed], joule: Floats) -> Floats:
        """Return the joules of all clients without idle energy, (J,), at the price ``joule`` of a joule, (J,)."""
        total = np.zeros(len(joule))
        for part, clients in zip(self.parts, timed, strict=True):
            keep = clients.keep(joule[:, None])
            total += (keep * clients.at(keep).energy * part.often).sum(axis=(-2, -1))
        return total

    def idle_j(self, deadline_s: Floats) -> Floats:
        """Return the idle energy of all clients, J, (J,)."""
        each = [(part.times_s(deadline_s)[..., None] * part.often).sum(axis=-2) @ part.curves.idle
                for part in self.parts]
        return np.asarray(np.sum(each, axis=0))

    def pruning(self, timed: list[_Timed], joule: Floats) -> Floats:
        """Return the mean pruning ratio over the clients of a round and then over the rounds, (J,)."""
        total = np.zeros(len(joule))
        for part, clients in zip(self.parts, timed, strict=True):
            ratio = 1.0 - part.curves.unpruned(clients.keep(joule[:, None]))
            total += (ratio * part.shares).sum(axis=(-2, -1))
        return np.asarray(total / np.sum([part.rounds.sum(axis=-1) for part in self.parts], axis=0))


@dataclass(frozen=True)
class PricedRounds:
    """How rounds of a rule use the budgets."""

    prices: Prices
    pruning: float
    """The mean pruning ratio."""


def prices_for(problem: Problem, scheme: Scheme, sets: RuledSets, numbers: Ints) -> list[PricedRounds | None]:
    """Return, for each number of rounds (J,), the prices at which the rule's rounds use the budgets.

    The result has None for a number of rounds that does not fit. The first selections of ``sets`` are used, and they
    are repeated if there are fewer than rounds. Local steps and bits are the problem's.
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
        """Return ln(budget/joules), which rises with the price of a joule."""
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
