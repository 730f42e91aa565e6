"""Cycles of groups of clients that take turns, and how they are composed."""

from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.theory.drawn_labels import DrawnLabels
from fedgap.theory.forecast import FixedRounds

GROUPS = 16
"""The largest number of groups in a cycle."""


@dataclass(frozen=True, eq=False)
class Cycle:
    """Groups of clients that take turns."""

    groups: Bools
    """The clients of each group, (G, N). The rounds go to them one after the other."""

    def times(self, rounds: int) -> Ints:
        """Return how many of the rounds each group has, (G,)."""
        whole, rest = divmod(rounds, len(self.groups))
        return np.asarray(whole + (np.arange(len(self.groups)) < rest))


@dataclass(frozen=True, eq=False)
class GroupCosts:
    """What G groups with equally many clients add to the forecast error of a plan whose exponent is nearly z:

        mean over the groups A of [ (mean of v_n over A) + K·e^z·c·τ^q·KL(A) ] + B·Σ s_n·w_n² + C·KL(m)

    The other symbols are those of :mod:`fedgap.theory.forecast`. What 1/k adds is left out, because it is the same for
    all groups of this size.
    """

    fixed: FixedRounds
    labels: DrawnLabels | None
    scarcity: Floats
    """s_n, (N,)."""
    slope: float
    """K·e^z: by how much the error rises with z."""
    client_costs: Floats
    """v_n = K·e^z·d·(λ_n + price of a joule · joules of the client in a round), (N,)."""

    def fill(self, pool: Ints, count: int, others: Bools) -> Bools:
        """Return a group of ``count`` clients of the pool for a cycle with these other groups (G − 1, N), shape (N,).

        The clients join one by one; each is the one with which the cycle costs least.
        """
        shares = (others / others.sum(axis=-1, keepdims=True)).sum(axis=0)
        drawn = self._drawn(others).sum(axis=0)
        row = np.zeros(len(self.client_costs), dtype=np.bool_)
        for _ in range(count):
            left = pool[~row[pool]]
            row[left[self._joined(row, left, len(others) + 1, shares, drawn).argmin()]] = True
        return row

    def _joined(self, row: Bools, left: Ints, groups: int, shares: Floats, drawn: Floats) -> Floats:
        """Return what the group ``row`` (N,) costs after one of the clients ``left`` (L,) has joined it, up to a
        constant, (L,).

        :param shares: what the other groups add to w, times G, (N,); :param drawn: what they add to m, times G.
        """
        size = int(row.sum()) + 1

        def total(values: Floats) -> Floats:
            return np.asarray(values[row].sum(axis=0) + values[left])

        # Σ s·(u + r)² = Σ s·u² + 2·Σ s·u·r + Σ s·r², in which r is 1/size for the members and u is ``shares``.
        squares = 2.0 * total(self.scarcity * shares) / size + total(self.scarcity) / size**2
        cost = self.fixed.few_clients * squares / groups**2 + total(self.client_costs) / (size * groups)
        if self.labels is not None:
            mean = self.labels.mean(total(self.labels.table), np.full(len(left), size))
            one = np.ones(len(left))
            cost += self.fixed.divergence * self.labels.divergence_of((drawn + mean) / groups, one)
            slowed = self.slope * self.fixed.slowed_by_divergence
            cost += slowed * self.labels.divergence_of(mean, one) / groups
        return np.asarray(cost)

    def _drawn(self, groups: Bools) -> Floats:
        """Return the mean of the rows of the labels' table over each group, (G, columns)."""
        if self.labels is None:
            return np.zeros((len(groups), 0))
        return self.labels.mean(groups.astype(np.float64) @ self.labels.table, groups.sum(axis=-1))


def by_costs(costs: GroupCosts, pool: Ints, count: int, groups: int, passes: int = 0) -> Cycle:
    """Return a cycle of ``groups`` groups with ``count`` clients of the pool each, composed to cost little.

    One group after the other is filled with the clients that add least, given the groups before. After that, in each of
    the ``passes``, every group is emptied and filled again, while all others stay.
    """
    rows = np.zeros((0, len(costs.client_costs)), dtype=np.bool_)
    for _ in range(groups):
        rows = np.vstack([rows, costs.fill(pool, count, rows)])
    for _ in range(passes):
        before = rows.copy()
        for place in range(groups):
            rows[place] = costs.fill(pool, count, np.delete(rows, place, axis=0))
        if (rows == before).all():
            break
    return Cycle(rows)


def by_speed(pool: Ints, count: int, seconds: Floats) -> Cycle:
    """Return a cycle whose groups have clients that are about equally fast, so that nobody waits long."""
    order = pool[np.argsort(seconds[pool], kind="stable")]
    groups = np.array_split(order, min(GROUPS, -(-len(pool) // count)))
    return Cycle(np.stack([np.isin(np.arange(len(seconds)), group) for group in groups]))


def at_random(pool: Ints, count: int, groups: int, random: np.random.Generator, size: int) -> Cycle:
    """Return a cycle in which every next client is drawn from those that took part least often so far."""
    used = np.zeros(size)
    rows = np.zeros((groups, size), dtype=np.bool_)
    for row in rows:
        for _ in range(count):
            left = pool[~row[pool]]
            joins = int(random.choice(left[used[left] == used[left].min()]))
            row[joins] = True
            used[joins] += 1
    return Cycle(rows)


def groups_of(pool: int, count: int, most: int = GROUPS) -> int:
    """Return the largest number of groups, up to ``most``, with which all clients of a pool take part equally often, or
    ``most`` if there is none."""
    return max((groups for groups in range(1, most + 1) if groups * count % pool == 0), default=most)
