"""The published rules on cases worked by hand."""

import itertools
from collections import Counter

import cvxpy as cp
import numpy as np
import pytest

from fedgap.registry import RULES
from fedgap.rules.fed_cbs import FedCBS, qcid
from fedgap.rules.fed_ent_opt import FedEntOpt, entropy
from fedgap.rules.fedzero import FedZero, most_utility
from fedgap.rules.luo import (
    LuoSampling,
    best_count_and_steps,
    constants_ratio,
    expected_longest,
    sampling_probabilities,
    spread,
)
from fedgap.rules.oort import Oort, slowness, utility
from fedgap.rules.power_of_choice import PowerOfChoice
from fedgap.rules.random_k import RandomK
from fedgap.rules.rule import RoundFacts, RuleFacts


def facts(count, labels, *, seconds=None, joules=None, seed=0):
    labels = np.array(labels, dtype=np.float64)
    size = len(labels)
    return RuleFacts(count, labels.sum(axis=1), np.ones(size) if seconds is None else np.array(seconds, dtype=float),
                     np.ones(size) if joules is None else np.array(joules, dtype=float), labels, seed)


def before(number, losses, last=None, available=None):
    losses = np.array(losses, dtype=np.float64)
    return RoundFacts(number, np.ones(len(losses), dtype=bool) if available is None else np.array(available),
                      losses, np.full(len(losses), -1.0) if last is None else np.array(last, dtype=float))


# --- random k -------------------------------------------------------------------------------------------------------

def test_random_k_draws_every_set_equally_often():
    """There are six pairs of four clients."""
    rule = RandomK(facts(2, np.full((4, 2), 5)))
    drawn = Counter(tuple(np.flatnonzero(rule.choose(before(number, [1.0] * 4)))) for number in range(3000))
    assert sorted(drawn) == list(itertools.combinations(range(4), 2))
    np.testing.assert_allclose(np.array(list(drawn.values())) / 3000, 1 / 6, atol=0.035)


# --- Power-of-Choice ------------------------------------------------------------------------------------------------

def test_power_of_choice_takes_the_highest_losses_of_those_it_asked():
    rule = PowerOfChoice(facts(2, np.full((4, 2), 5)))  # d = 4: everybody is asked
    now = before(0, [0.3, 2.0, 0.1, 1.5])
    assert rule.asks(now).all()
    assert rule.choose(now).tolist() == [False, True, False, True]


def test_power_of_choice_asks_large_clients_more_often():
    rule = PowerOfChoice(facts(1, [[90, 0], [5, 0], [5, 0]]))  # d = 2 of 3
    asked = np.array([rule.asks(before(number, [1.0, 1.0, 1.0])) for number in range(300)])
    assert (asked.sum(axis=1) == 2).all()
    # Client 0 is left out where 1 and 2 are drawn: 2 · 0.05 · 0.05/0.95.
    assert asked[:, 0].mean() == pytest.approx(1.0 - 2 * 0.05 * 0.05 / 0.95, abs=0.02)


def test_power_of_choice_draws_candidates_without_replacement_by_their_samples():
    """One of d = 2 candidates, p = 0.2, 0.3 and 0.5, losses 3 > 2 > 1.

    Client 0 is left out if 1 and 2 are drawn: 0.3 · 0.5/0.7 + 0.5 · 0.3/0.5 = 0.5143. Then 1 has the higher loss.
    Client 2 never has the highest loss. (With candidates drawn uniformly, 0 would be left out in every third round.)
    """
    rule = PowerOfChoice(facts(1, [[20, 0], [30, 0], [50, 0]]))
    chosen = np.mean([rule.choose(before(number, [3.0, 2.0, 1.0])) for number in range(2500)], axis=0)
    np.testing.assert_allclose(chosen, [0.4857, 0.5143, 0.0], atol=0.035)


def test_power_of_choice_prefers_unknown_losses_and_breaks_ties_at_random():
    rule = PowerOfChoice(facts(2, np.full((4, 2), 5)))  # d = 4: everybody is a candidate
    chosen = np.array([rule.choose(before(number, [0.5, np.nan, 0.5, 0.1])) for number in range(400)])
    assert chosen[:, 1].all()
    assert not chosen[:, 3].any()
    assert chosen[:, 0].mean() == pytest.approx(0.5, abs=0.1)


# --- Oort -----------------------------------------------------------------------------------------------------------

def test_oorts_utility_is_the_authors_formula():
    """Rewards 1, 2 and 3 in round 4: least 0.999, range 2.001; ln 4 = 1.386294."""
    value = utility(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 4.0]), 4, 2.0)
    temporal = np.sqrt(0.1386294 / np.array([1.0, 2.0, 3.0]))
    expected = np.array([0.001, 1.001, 2.001]) / 2.001 + temporal
    expected[2] *= 0.25  # (2 s / 4 s)²
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert slowness(np.array([1.0, 2.0, 4.0]), 2.0).tolist() == [1.0, 1.0, 0.25]


def test_oort_explores_first_and_exploits_later():
    rule = Oort(facts(10, np.full((40, 2), 5), seconds=np.linspace(1.0, 4.0, 40)))
    first = rule.choose(before(0, np.full(40, np.nan)))
    assert first.sum() == 10
    # Round 81: ε = 0.9 · 0.98⁸¹ < 0.2 = ε; 8 of 10 places are for known clients, 2 for unknown ones.
    losses = np.where(np.arange(40) < 30, 1.0, np.nan)
    later = rule.choose(before(80, losses, np.where(np.arange(40) < 30, 5.0, -1.0)))
    assert (later[:30].sum(), later[30:].sum()) == (8, 2)


def test_oorts_pacer_allows_slower_clients_when_the_utility_is_flat():
    rule = Oort(facts(2, np.full((4, 2), 5), seconds=[1.0, 2.0, 3.0, 4.0]))
    losses = [1.0, 1.0, 1.0, 1.0]
    for number in range(40):
        rule.choose(before(number, losses, [max(number - 1, 0)] * 4))
    assert rule.state["percentile"] == 35.0


# --- Fed-CBS --------------------------------------------------------------------------------------------------------

def test_qcid_of_the_papers_example():
    """Figure 3 of the paper: {C1, C3, C4} is balanced, {C1, C2, C3} is not."""
    labels = np.array([[5] * 6, [6] * 5 + [0], [0, 0, 0, 10, 10, 10], [10, 10, 10, 0, 0, 0]], dtype=float)
    assert qcid(labels[[0, 2, 3]].sum(axis=0)) == pytest.approx(0.0, abs=1e-12)
    # Pooled counts of {C1, C2, C3}: 11, 11, 11, 21, 21, 15 of 90; the sum of squares is 363 + 882 + 225 = 1470.
    assert qcid(labels[[0, 1, 2]].sum(axis=0)) == pytest.approx(1470 / 8100 - 1 / 6)
    # As the paper writes it: a double sum over pairs of clients.
    share, size = labels / 30.0, 30.0
    double = sum(size * size * share[i] @ share[j] for i in (0, 1, 2) for j in (0, 1, 2)) / 90.0**2 - 1 / 6
    assert qcid(labels[[0, 1, 2]].sum(axis=0)) == pytest.approx(double)


def test_qcid_counts_clients_by_their_samples():
    """Ten samples with shares (1, 0), five with (0.2, 0.8): (100·1 + 2·50·0.2 + 25·0.68)/15² − 1/2 = 137/225 − 1/2."""
    assert qcid(np.array([10.0, 0.0]) + np.array([1.0, 4.0])) == pytest.approx(137 / 225 - 1 / 2)


def test_fed_cbs_draws_sets_with_the_papers_probabilities():
    """Two of three clients, with shares 1, 0.8 and 0.6 of one of two labels; the bonus is 0 in round 1, as ln 1 = 0.

    QCID = 2·(share − 1/2)²: 0.5, 0.18 and 0.02. The first client is drawn by 1/QCID = 2, 5.556 and 50: 0.0347, 0.0965
    and 0.8687. The pairs have shares 0.9, 0.8 and 0.7, and QCID 0.32 (01), 0.18 (02) and 0.08 (12). The second client
    is drawn by 1/QCID² = 9.766, 30.86 and 156.25:

        after 0:  1 with 9.766/40.63 = 0.2404,    2 with 0.7596
        after 1:  0 with 9.766/166.0 = 0.0588,    2 with 0.9412
        after 2:  0 with 30.86/187.1 = 0.1649,    1 with 0.8351

    01: 0.0347·0.2404 + 0.0965·0.0588 = 0.0140. 02: 0.0347·0.7596 + 0.8687·0.1649 = 0.1697. 12: 0.8163.
    """
    drawn = Counter(tuple(np.flatnonzero(FedCBS(facts(2, [[5, 0], [4, 1], [3, 2]], seed=seed))
                                         .choose(before(0, [1.0] * 3)))) for seed in range(2500))
    shares = [drawn[pair] / 2500 for pair in ((0, 1), (0, 2), (1, 2))]
    np.testing.assert_allclose(shares, [0.0140, 0.1697, 0.8163], atol=0.03)


def test_fed_cbs_draws_the_third_client_by_the_third_power():
    """Clients 0 and 1 are as good as certain to come first. Their shares of one of two labels are 0.51 and 0.49, QCID
    2·0.01² = 1/5000, so that their weights are 5000, and 2 for each of the others. Together they are balanced.

    Client 2 or 3 is third, with 40 samples of one label or 20. The shares are then 140/240 and 120/220, QCID
    2·(1/12)² = 1/72 and 2·(1/22)² = 1/242. Client 3 is drawn with 242³/(72³ + 242³) = 0.974. (With the first power it
    would be 0.771, with the second 0.919.)
    """
    labels = [[51, 49], [49, 51], [40, 0], [20, 0]]
    drawn = Counter(tuple(np.flatnonzero(FedCBS(facts(3, labels, seed=seed)).choose(before(0, [1.0] * 4))))
                    for seed in range(1500))
    assert drawn[0, 1, 3] / (drawn[0, 1, 2] + drawn[0, 1, 3]) == pytest.approx(0.974, abs=0.02)
    assert drawn[0, 1, 2] + drawn[0, 1, 3] > 1480


def test_fed_cbs_mostly_finds_the_balanced_set():
    labels = [[9, 1], [1, 9], [8, 2], [2, 8], [9, 1]]
    sets = [FedCBS(facts(2, labels, seed=seed)).choose(before(0, [1.0] * 5)) for seed in range(200)]
    pooled = np.array([np.array(labels)[chosen].sum(axis=0) for chosen in sets])
    # A second client c is drawn with a probability proportional to QCID({first, c})⁻²: opposites are near 0.
    assert (np.abs(pooled[:, 0] - pooled[:, 1]) <= 2).mean() > 0.95


def test_fed_cbs_explores_who_was_rarely_there():
    """Round 8. Shares 0.65 and 1 of one of two labels have QCID 0.045 and 0.5, weights 22.22 and 2. The bonus
    10·√(1.5·ln 8/T), ln 8 = 2.0794, is 0.18 for T = 10 000 and 17.66 for T = 1. Client 1 is drawn with
    19.66/(22.40 + 19.66) = 0.467.
    """
    drawn = 0
    for seed in range(2500):
        rule = FedCBS(facts(1, [[13, 7], [5, 0]], seed=seed))
        rule.state["times"] = [10_000, 1]
        drawn += int(rule.choose(before(7, [1.0] * 2))[1])
    assert drawn / 2500 == pytest.approx(0.467, abs=0.03)


# --- FedEntOpt ------------------------------------------------------------------------------------------------------

def test_fed_ent_opt_adds_the_client_of_the_largest_entropy():
    assert entropy(np.array([1.0, 1.0, 2.0])) == pytest.approx(1.5 * np.log(2.0))
    rule = FedEntOpt(facts(2, [[10, 0], [0, 10], [9, 1]]))
    for number in range(4):
        chosen = rule.choose(before(number, [1.0] * 3))
        rule.state["buffer"] = []
        assert chosen[1]  # whoever came first, client 1 has the other label; if it came first, it is in


def test_fed_ent_opt_sums_counts_and_not_shares():
    """Two of four clients, with 6 and 0, 0 and 2, 3 and 5, 0 and 30 samples of two labels; the first is random.

        first 0:  with 1: 6, 2 (H = 0.562)    with 2: 9, 5 (0.652)    with 3: 6, 30 (0.451)    → 0 and 2
        first 1:  with 0: 6, 2 (0.562)        with 2: 3, 7 (0.611)    with 3: 0, 32 (0)        → 1 and 2
        first 2:  with 0: 9, 5 (0.652)        with 1: 3, 7 (0.611)    with 3: 3, 35 (0.276)    → 0 and 2
        first 3:  with 0: 6, 30 (0.451)       with 1: 0, 32 (0)       with 2: 3, 35 (0.276)    → 0 and 3

    If the clients' shares were summed, 0 would be joined by 1 or 3.
    """
    labels = [[6, 0], [0, 2], [3, 5], [0, 30]]
    drawn = Counter(tuple(np.flatnonzero(FedEntOpt(facts(2, labels, seed=seed)).choose(before(0, [1.0] * 4))))
                    for seed in range(1000))
    assert sorted(drawn) == [(0, 2), (0, 3), (1, 2)]
    shares = [drawn[pair] / 1000 for pair in ((0, 2), (0, 3), (1, 2))]
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.05)


def test_fed_ent_opt_lets_clients_wait():
    rule = FedEntOpt(facts(2, np.full((6, 2), 5)))  # room for 3 in the buffer
    first = rule.choose(before(0, [1.0] * 6))
    second = rule.choose(before(1, [1.0] * 6))
    assert not (first & second).any()
    assert len(rule.state["buffer"]) == 3


def test_fed_ent_opt_lets_the_oldest_out_of_its_buffer_during_a_round():
    """Two places, 0 and 1 in them: the first that joins, 2 or 3, drives out 0, which then balances it best."""
    rule = FedEntOpt(facts(2, [[0, 10], [5, 5], [10, 0], [9, 1]]))
    rule.state["buffer"] = [0, 1]
    chosen = rule.choose(before(0, [1.0] * 4))
    assert chosen[0]
    assert not chosen[1]
    assert rule.state["buffer"] == [int(np.flatnonzero(chosen[2:])[0]) + 2, 0]


# --- Luo et al. -----------------------------------------------------------------------------------------------------

def test_luos_constants_come_back_from_two_pilots():
    """A₀ = 50, B₀ = 2, N = 10: R(5, 2) = 25 + 2·(1 + 5/45)·2 and R(2, 8) = 6.25 + 2·(1 + 8/18)·8."""
    assert spread(10, 5) == pytest.approx(1.0 + 1.0 / 9.0)
    assert (spread(10, 10), spread(10, 1)) == (1.0, 2.0)
    ratio = constants_ratio(10, ((5, 2, 25 + 2 * (10 / 9) * 2), (2, 8, 6.25 + 2 * (13 / 9) * 8)))
    assert ratio == pytest.approx(25.0)
    # A round that costs 1 + E: (1 + E)·(25/E + E) is 52, 43.5, 45.3 and 60 for 1, 2, 3 and 5 steps.
    assert best_count_and_steps(10, 25.0, lambda count, step: 1.0 + step, [10], [1, 2, 3, 5]) == (10, 2)


def test_luo_weighs_rounds_against_their_cost():
    """N = 4, A₀/B₀ = 8. The bound 8/E + spread·E has the spreads 2, 4/3 and 1 for K = 1, 2 and 4:

        E = 1:  10, 9.333, 9        E = 4:  10, 7.333, 6

    With energy K·(0.2·E + 2.8) and time E + 20 a round costs 24, 27 and 33 for E = 1, and 27.6, 31.2 and 38.4 for
    E = 4. The products are 240, 252 and 297, and 276, 228.8 and 230.4. If time alone counts, 21 and 24, they are 210,
    196 and 189, and 240, 176 and 144; if energy alone counts, 30, 56 and 108, and 36, 52.8 and 86.4.
    """
    def energy(count, step):
        return count * (0.2 * step + 2.8)

    def seconds(count, step):
        return step + 20.0

    def both(count, step):
        return energy(count, step) + seconds(count, step)

    best = [best_count_and_steps(4, 8.0, cost, [1, 2, 4], [1, 4]) for cost in (both, seconds, energy)]
    assert best == [(2, 4), (4, 4), (1, 1)]


def test_luos_expected_round_time_is_the_mean_over_all_sets():
    """Of 1, 2, 3 and 6 seconds the six pairs last 2, 3, 6, 3, 6 and 6: 26/6. The four triples last 3, 6, 6 and 6."""
    seconds = np.array([3.0, 1.0, 6.0, 2.0])
    assert [expected_longest(seconds, count) for count in (1, 2, 3, 4)] == pytest.approx([3.0, 26 / 6, 5.25, 6.0])
    many = np.random.default_rng(1).random(9)
    assert expected_longest(many, 4) == pytest.approx(np.mean([max(four) for four in itertools.combinations(many, 4)]))
    assert expected_longest(np.arange(5000.0), 1250) == pytest.approx(1250 * 5001 / 1251 - 1.0)  # K·(N + 1)/(K + 1) − 1


def test_luos_probabilities_minimise_their_objective():
    seconds, weight = np.array([1.0, 4.0, 9.0]), np.array([0.5, 0.3, 0.2])
    # Without β, q ∝ p/√t by Cauchy and Schwarz.
    expected = weight / np.sqrt(seconds)
    np.testing.assert_allclose(sampling_probabilities(seconds, weight, 0.0), expected / expected.sum(), rtol=1e-9)
    q = sampling_probabilities(seconds, weight, 1.0)

    def value(p):
        return (p @ seconds) * ((weight**2 / p).sum() + 1.0)

    grid = np.linspace(0.01, 0.98, 98)
    best = min(value(np.array([a, b, 1.0 - a - b])) for a, b in itertools.product(grid, grid) if a + b < 0.995)
    assert value(q) <= best * 1.001


def test_luos_probabilities_for_two_clients():
    """Weights 1/2, 1 and 2.08 seconds, β/α = 1: q = 2/3 and 1/3.

    Let T = Σqt and A = Σw²/q. The derivative of T·(A + 1) is t·(A + 1) − T·w²/q², which must be the same for both. With
    T = 2/3 + 2.08/3 = 1.36 and A = (3/2 + 3)/4 = 1.125 it is 2.125 − 1.36·9/16 = 1.36 and 4.42 − 1.36·9/4 = 1.36.
    """
    q = sampling_probabilities(np.array([1.0, 2.08]), np.array([0.5, 0.5]), 1.0)
    np.testing.assert_allclose(q, [2 / 3, 1 / 3], atol=0.003)
    rule = LuoSampling(facts(1, [[5, 5], [5, 5]], seconds=[1.0, 2.08]))
    first = [rule.choose(before(number, [1.0] * 2))[0] for number in range(2500)]
    assert np.mean(first) == pytest.approx(2 / 3, abs=0.03)


def test_luos_probabilities_agree_with_a_convex_program_for_each_mean_time():
    """The way of the paper: for a given T = Σqt the problem is convex, and T is searched."""
    random = np.random.default_rng(3)
    for beta_by_alpha in (0.2, 1.0, 5.0):
        seconds, weight = 0.2 + random.exponential(1.0, 5), random.dirichlet(np.ones(5))
        chances, mean_s = cp.Variable(5), cp.Parameter(nonneg=True)
        program = cp.Problem(cp.Minimize(weight**2 @ cp.inv_pos(chances)),
                             [cp.sum(chances) == 1.0, seconds @ chances == mean_s])
        best = np.inf
        for mean_s.value in np.linspace(seconds.min(), seconds.max(), 44)[2:-2]:
            best = min(best, mean_s.value * (program.solve() + beta_by_alpha))
        q = sampling_probabilities(seconds, weight, beta_by_alpha)
        assert q.sum() == pytest.approx(1.0)
        value = (q @ seconds) * ((weight**2 / q).sum() + beta_by_alpha)
        assert best / 1.02 <= value <= best * 1.0005  # the program knows only forty values of T


# --- FedZero --------------------------------------------------------------------------------------------------------

def test_fedzeros_program_is_the_best_of_all_sets():
    random = np.random.default_rng(4)
    for _ in range(8):
        value, joules = random.random(7), random.random(7)
        limit = 3 * joules.mean()
        chosen = most_utility(value, joules, 3, limit)
        best = max((value[list(trio)].sum() for trio in itertools.combinations(range(7), 3)
                    if joules[list(trio)].sum() <= limit), default=-1.0)
        assert value[chosen].sum() == pytest.approx(best)
        assert joules[chosen].sum() <= limit * (1 + 1e-9)


def test_fedzero_prefers_utility_and_releases_who_was_there_rarely():
    rule = FedZero(facts(1, np.full((3, 2), 5), joules=[1.0, 1.0, 5.0]))
    assert rule.choose(before(0, [0.2, 1.0, 3.0])).tolist() == [False, True, False]  # client 2 is above the mean of 7/3
    assert rule.state["times"] == [0, 1, 0]
    rule.state = {"times": [0, 1000, 0], "excluded": [1]}
    assert rule.choose(before(1, [0.2, 1.0, 3.0])).tolist() == [True, False, False]  # released once in 667 rounds


# --- every rule -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", RULES.names())
def test_a_rule_chooses_as_many_as_it_may_and_nobody_who_is_away(name):
    random = np.random.default_rng(0)
    labels, available = random.integers(1, 20, (9, 3)), random.random(9) < 0.6
    rule = RULES.load(name)(facts(4, labels, seconds=random.random(9) + 0.1, joules=random.random(9)))
    losses, last = np.full(9, np.nan), np.full(9, -1.0)
    for number in range(12):
        chosen = rule.choose(before(number, losses, last, available))
        assert chosen.sum() == min(4, available.sum())
        assert not (chosen & ~available).any()
        losses[chosen], last[chosen] = random.random(int(chosen.sum())) + 0.1, number
    assert not rule.choose(before(12, losses, last, np.zeros(9, dtype=bool))).any()
