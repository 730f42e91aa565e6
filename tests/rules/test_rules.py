"""The published rules on cases worked by hand."""

import itertools

import numpy as np
import pytest

from fedgap.registry import RULES
from fedgap.rules.fed_cbs import FedCBS, qcid
from fedgap.rules.fed_ent_opt import FedEntOpt, entropy
from fedgap.rules.fedzero import FedZero, most_utility
from fedgap.rules.luo import best_count_and_steps, constants_ratio, expected_longest, sampling_probabilities, spread
from fedgap.rules.oort import Oort, slowness, utility
from fedgap.rules.power_of_choice import PowerOfChoice
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


def test_fed_cbs_mostly_finds_the_balanced_set():
    labels = [[9, 1], [1, 9], [8, 2], [2, 8], [9, 1]]
    sets = [FedCBS(facts(2, labels, seed=seed)).choose(before(0, [1.0] * 5)) for seed in range(200)]
    pooled = np.array([np.array(labels)[chosen].sum(axis=0) for chosen in sets])
    # A second client c is drawn with a probability proportional to QCID({first, c})⁻²: opposites are near 0.
    assert (np.abs(pooled[:, 0] - pooled[:, 1]) <= 2).mean() > 0.95


def test_fed_cbs_explores_who_was_rarely_there():
    rule = FedCBS(facts(1, [[5, 4], [5, 4]]))
    rule.state["times"] = [10_000, 1]
    # 1/QCID: the counts 5 and 4 have QCID 1/162, so 162; the bonus 10·√(1.5·ln 1001/T) is 32.2 and 0.3.
    picked = np.mean([FedCBS.choose(_with(rule, [10_000, 1], seed), before(1000, [1.0] * 2))[1] for seed in range(800)])
    assert picked == pytest.approx((162 + 32.2) / (2 * 162 + 32.2 + 0.3), abs=0.05)


def _with(rule, times, seed):
    fresh = FedCBS(facts(1, rule.facts.label_counts, seed=seed))
    fresh.state["times"] = list(times)
    return fresh


# --- FedEntOpt ------------------------------------------------------------------------------------------------------

def test_fed_ent_opt_adds_the_client_of_the_largest_entropy():
    assert entropy(np.array([1.0, 1.0, 2.0])) == pytest.approx(1.5 * np.log(2.0))
    rule = FedEntOpt(facts(2, [[10, 0], [0, 10], [9, 1]]))
    for number in range(4):
        chosen = rule.choose(before(number, [1.0] * 3))
        rule.state["buffer"] = []
        assert chosen[1]  # whoever came first, client 1 has the other label; if it came first, it is in


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
    np.testing.assert_allclose(sampling_probabilities(seconds, weight, 0.0), expected / expected.sum(), rtol=0.02)
    q = sampling_probabilities(seconds, weight, 1.0)

    def value(p):
        return (p @ seconds) * ((weight**2 / p).sum() + 1.0)

    grid = np.linspace(0.01, 0.98, 98)
    best = min(value(np.array([a, b, 1.0 - a - b])) for a, b in itertools.product(grid, grid) if a + b < 0.995)
    assert value(q) <= best * 1.001


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
