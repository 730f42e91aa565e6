"""Cycles of groups that take turns: who is in a group, and how often everybody takes part."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.planning.cycles import GROUPS, Cycle, GroupCosts, at_random, by_costs, by_speed, groups_of
from fedgap.theory.drawn_labels import DrawnLabels
from fedgap.theory.forecast import FixedRounds

FREE = FixedRounds(scale=1.0, slowed_by_pruning=0.0, slowed_by_divergence=0.0, slowed_by_few_clients=0.0,
                   few_clients=0.0, divergence=0.0, floor=0.0)
"""A forecast on which no group has an influence."""


@pytest.mark.parametrize(("pool", "count", "most", "groups"), [
    (6, 2, 16, 15),  # all have taken part equally often after 3, 6, 9, 12 and 15 groups
    (6, 2, 5, 3),
    (40, 10, 16, 16),  # after every fourth
    (40, 15, 16, 16),  # after every eighth
    (7, 2, 6, 6),  # only after seven, which are too many
    (5, 5, 3, 3),
])
def test_the_groups_of_a_cycle_by_hand(pool, count, most, groups):
    assert groups_of(pool, count, most) == groups


@given(st.integers(0, 10**6))
def test_in_random_groups_everybody_in_the_pool_takes_part_equally_often(seed):
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 20))
    pool = random.choice(size, int(random.integers(1, size + 1)), replace=False)
    count, groups = int(random.integers(1, len(pool) + 1)), int(random.integers(1, GROUPS + 1))
    cycle = at_random(pool, count, groups, random, size)
    assert cycle.groups.shape == (groups, size)
    assert (cycle.groups.sum(axis=-1) == count).all()
    used = cycle.groups.sum(axis=0)
    assert not used[~np.isin(np.arange(size), pool)].any()
    assert np.ptp(used[pool]) <= 1


@given(st.integers(0, 10**6))
def test_groups_by_speed_are_neighbours_in_speed(seed):
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 60))
    pool = random.choice(size, int(random.integers(1, size + 1)), replace=False)
    count, seconds = int(random.integers(1, len(pool) + 1)), random.uniform(1, 9, size)
    groups = by_speed(pool, count, seconds).groups
    assert (groups.sum(axis=0) == np.isin(np.arange(size), pool)).all()  # everybody once
    assert len(groups) == min(GROUPS, -(-len(pool) // count))
    sizes = groups.sum(axis=-1)
    assert np.ptp(sizes) <= 1
    assert (sizes <= count).all() or len(groups) == GROUPS
    for faster, slower in pairwise(groups):
        assert seconds[faster].max() <= seconds[slower].min()


@given(st.integers(1, 20), st.integers(1, 100))
def test_the_rounds_go_to_the_groups_one_after_the_other(groups, rounds):
    times = Cycle(np.ones((groups, 3), dtype=bool)).times(rounds)
    assert times.tolist() == [len(range(group, rounds, groups)) for group in range(groups)]


# --- groups composed by what they cost ------------------------------------------------------------------------------


def costs_of(labels: DrawnLabels | None, clients: int, own: object = 0.0, slope: float = 1.0, scarcity: object = 1.0,
             **weights: float) -> GroupCosts:
    values = [np.broadcast_to(np.asarray(value, dtype=np.float64), clients) for value in (scarcity, own)]
    return GroupCosts(FixedRounds(**(vars(FREE) | weights)), labels, values[0], slope, values[1])


def written_out(costs: GroupCosts, groups: np.ndarray) -> float:
    """The formula of :class:`GroupCosts`, term by term."""
    each = []
    for group in groups:
        divergence = 0.0 if costs.labels is None else float(costs.labels.divergence(group))
        each.append(costs.client_costs[group].mean() + costs.slope * costs.fixed.slowed_by_divergence * divergence)
    shares = np.mean([group / group.sum() for group in groups], axis=0)
    together = 0.0
    if costs.labels is not None:
        labels = [costs.labels.mean(costs.labels.table[group].sum(axis=0), group.sum()) for group in groups]
        together = float(costs.labels.divergence_of(np.mean(labels, axis=0), 1.0))
    return (float(np.mean(each)) + costs.fixed.few_clients * float((costs.scarcity * shares**2).sum())
            + costs.fixed.divergence * together)


def drawn_costs(random: np.random.Generator) -> GroupCosts:
    clients, classes = int(random.integers(2, 9)), int(random.integers(2, 5))
    counts = random.integers(0, 30, (clients, classes)) + np.eye(clients, classes, dtype=int)[:, ::-1] * 6
    counts[:, 0] += counts.sum(axis=-1) == 0  # every client has a sample
    batches = str(random.choice(["as_is", "balanced", "target"]))
    labels = DrawnLabels.of(counts, random.integers(1, 9, classes), batches=batches, draws=np.full(clients, 900),
                            by_samples=batches != "target" and bool(random.random() < 0.3))
    weights = random.uniform(0.0, 2.0, 3) * (random.random(3) < 0.7)
    return costs_of(labels if random.random() < 0.8 else None, clients, own=random.uniform(0.0, 0.3, clients),
                    slope=float(random.uniform(0.1, 2.0)), scarcity=random.uniform(0.5, 3.0, clients),
                    slowed_by_divergence=weights[0], few_clients=weights[1], divergence=weights[2])


@given(st.integers(0, 10**6))
def test_of_all_clients_the_one_joins_with_which_the_formula_is_least(seed):
    random = np.random.default_rng(seed)
    costs = drawn_costs(random)
    clients = len(costs.client_costs)
    pool = random.choice(clients, int(random.integers(1, clients + 1)), replace=False)
    others = at_random(np.arange(clients), 1 + int(random.integers(clients)), int(random.integers(1, 4)), random,
                       clients).groups
    before = np.zeros(clients, dtype=bool)
    for count in range(1, len(pool) + 1):
        group = costs.fill(pool, count, others)
        assert group.sum() == count
        assert not group[~np.isin(np.arange(clients), pool)].any()
        assert group[before].all()
        tried = [before | (np.arange(clients) == client) for client in pool if not before[client]]
        least = min(written_out(costs, np.vstack([others, row])) for row in tried)
        assert written_out(costs, np.vstack([others, group])) == pytest.approx(least, rel=1e-9, abs=1e-12)
        before = group


@given(st.integers(0, 10**6))
def test_a_cycle_has_groups_of_the_asked_size_from_the_pool(seed):
    random = np.random.default_rng(seed)
    costs = drawn_costs(random)
    clients = len(costs.client_costs)
    pool = random.choice(clients, int(random.integers(1, clients + 1)), replace=False)
    count, groups = int(random.integers(1, len(pool) + 1)), int(random.integers(1, GROUPS + 1))
    cycle = by_costs(costs, pool, count, groups, passes=int(random.integers(0, 3)))
    assert cycle.groups.shape == (groups, clients)
    assert (cycle.groups.sum(axis=-1) == count).all()
    assert not cycle.groups[:, ~np.isin(np.arange(clients), pool)].any()


@pytest.mark.parametrize("weight", ["slowed_by_divergence", "divergence"])
def test_the_labels_of_a_group_complement_each_other(weight):
    """Six clients with one label each, two for each of three labels: every group of three has all three labels. With
    the weight of all rounds together that is so, too, because every group is filled as well as those before allow."""
    labels = DrawnLabels.of(np.repeat(100 * np.eye(3), 2, axis=0), np.full(3, 50))
    cycle = by_costs(costs_of(labels, 6, **{weight: 1.0}), np.arange(6), 3, 8)
    np.testing.assert_array_equal(cycle.groups @ np.repeat(np.eye(3), 2, axis=0), np.ones((8, 3)))


def test_the_only_client_with_a_label_trains_in_half_of_the_rounds():
    """One of four clients has the label 1, and the target has both labels equally often. Groups of one client: the
    labels of all rounds together are those of the target if it has every second round."""
    labels = DrawnLabels.of(np.array([[0, 90], [90, 0], [90, 0], [90, 0]]), np.array([50, 50]))
    cycle = by_costs(costs_of(labels, 4, divergence=1.0, few_clients=1e-3), np.arange(4), 1, 12)
    assert cycle.groups.sum(axis=0).tolist() == [6, 2, 2, 2]


def test_everybody_takes_turns_if_only_the_number_of_clients_counts():
    """Σ s·w² of five equal clients is least with equal shares."""
    cycle = by_costs(costs_of(None, 5, few_clients=1.0), np.arange(5), 2, 10)
    assert cycle.groups.sum(axis=0).tolist() == [4] * 5


def test_scarce_samples_train_less():
    """With s = (1, 3) the least Σ s·w² has w in proportion to 1/s: three quarters and one quarter."""
    cycle = by_costs(costs_of(None, 2, few_clients=1.0, scarcity=[1.0, 3.0]), np.arange(2), 1, 8, passes=4)
    assert cycle.groups.sum(axis=0).tolist() == [6, 2]


def test_a_dear_client_stays_away_unless_it_is_needed():
    """The second of three clients is dear. It is needed if only it has the label 1, which half of the target has."""
    costs = costs_of(None, 3, own=[0.0, 0.5, 0.0], few_clients=0.1)
    assert by_costs(costs, np.arange(3), 1, 6).groups.sum(axis=0).tolist() == [3, 0, 3]
    assert by_costs(costs, np.arange(2), 1, 6).groups.sum(axis=0).tolist() == [6, 0, 0]
    labels = DrawnLabels.of(np.array([[90, 0], [0, 90], [90, 0]]), np.array([50, 50]))
    needed = costs_of(labels, 3, own=[0.0, 0.5, 0.0], few_clients=0.1, divergence=2.0)
    assert by_costs(needed, np.arange(3), 1, 12, passes=4).groups.sum(axis=0)[1] >= 3


def test_filling_the_groups_again_lowers_the_cost():
    """On average over random costs. (A single pass may raise it, because a group is filled greedily.)"""
    random = np.random.default_rng(0)
    gains = []
    for _ in range(60):
        costs = drawn_costs(random)
        pool = np.arange(len(costs.client_costs))
        count = 1 + int(random.integers(len(pool)))
        once, again = (by_costs(costs, pool, count, 6, passes).groups for passes in (0, 2))
        gains.append(written_out(costs, once) - written_out(costs, again))
    assert np.mean(gains) > 0.0
    assert np.mean(np.array(gains) >= -1e-9) > 0.8
