"""Importance: hand-worked rounds in each reading."""


import pytest
import torch

from fedgap.learning.importance import RULES, Importance
from fedgap.learning.masks import ranks
from fedgap.registry import IMPORTANCE

W0 = torch.tensor([[3.0, -1.0, 0.5, 2.0]])
W1 = torch.tensor([[1.0, -4.0, 0.5, 2.0]])
V0 = torch.tensor([[0.1, 1.0, -2.0, 0.0]])
ALL = torch.ones(1, 4, dtype=torch.bool)


def test_before_any_gradient_the_ranking_is_by_magnitude():
    for current in (True, False):
        assert torch.equal(Importance(current_weights=current).scores(W0, 0), W0.abs())


def test_as_printed_both_factors_are_of_the_previous_round():
    importance = Importance(current_weights=False, remember=False)
    importance.observe(W0, V0, ALL)
    assert torch.allclose(importance.scores(W1, 1), torch.tensor([[0.3, 1.0, 1.0, 0.0]]))  # |v⁰·ρ⁰|


def test_repaired_takes_the_current_weight():
    importance = Importance(current_weights=True, remember=False)
    importance.observe(W0, V0, ALL)
    assert torch.allclose(importance.scores(W1, 1), torch.tensor([[0.1, 4.0, 1.0, 0.0]]))  # |v⁰·ρ¹|


def test_lock_in_as_printed_and_its_repair():
    known = torch.tensor([[True, True, False, False]])
    v1 = torch.tensor([[0.5, 0.0, 0.0, 0.0]])
    printed, repaired = Importance(remember=False), Importance(remember=True)
    for importance in (printed, repaired):
        importance.observe(W0, V0, ALL)
        importance.observe(W1, v1, known)
    assert torch.allclose(printed.scores(W1, 2), torch.tensor([[0.5, 0.0, 0.0, 0.0]]))
    # The silent weight that was kept stays ahead of those that were pruned, whatever their index.
    assert ranks(printed.scores(W1.flip(1), 2)).tolist() == [[0, 1, 2, 3]]
    assert ranks(printed_with(v1.flip(1), known.flip(1)).scores(W1.flip(1), 2)).tolist() == [[2, 3, 1, 0]]
    # The pruned weights keep the gradient of round 0; a known gradient of 0 counts as known.
    assert torch.allclose(repaired.scores(W1, 2), torch.tensor([[0.5, 0.0, 1.0, 0.0]]))


def printed_with(gradient: torch.Tensor, known: torch.Tensor) -> Importance:
    importance = Importance(remember=False)
    importance.observe(W0, gradient, known)
    return importance


def test_magnitude_ignores_gradients():
    importance = Importance(rule="magnitude")
    importance.observe(W0, V0, ALL)
    assert torch.equal(importance.scores(W1, 1), W1.abs())
    assert importance.state() == {}


def test_random_is_redrawn_each_round_from_its_seeds():
    importance = Importance(rule="random", seeds=[1, 2])
    weights = torch.zeros(2, 50)
    first, again, later = (importance.scores(weights, r) for r in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first[0], first[1])


def test_small_factors_do_not_underflow():
    importance = Importance(remember=False)
    importance.observe(W0, torch.full((1, 4), 1e-20), ALL)
    assert (importance.scores(torch.full((1, 4), 1e-6), 1) > 0).all()  # the square, 1e-52, would be 0 in float32


@pytest.mark.parametrize("current", [True, False])
def test_state_round_trip(current):
    importance, copy = Importance(current_weights=current), Importance(current_weights=current)
    importance.observe(W0, V0, ALL)
    copy.load({name: tensor.clone() for name, tensor in importance.state().items()})
    assert torch.equal(importance.scores(W1, 1), copy.scores(W1, 1))


def test_what_was_observed_is_a_copy():
    importance, gradient = Importance(), V0.clone()
    importance.observe(W0, gradient, ALL)
    gradient.zero_()
    assert importance.scores(W1, 1).any()


READINGS = [{"current_weights": a, "remember": b} for a in (True, False) for b in (True, False)]


@pytest.mark.parametrize("reading", READINGS)
def test_runs_together_are_as_each_alone_whoever_is_heard(reading):
    """Three runs in six rounds: one is heard always, one now and then, one never at first; the second leaves."""
    generator = torch.Generator().manual_seed(0)
    heard = [(0,), (0, 1), (), (0, 2), (0, 1, 2), (0, 2)]
    together, alone = Importance(**reading), [Importance(**reading) for _ in range(3)]
    rows = [0, 1, 2]
    for number, who in enumerate(heard):
        if number == 5:
            together.keep([0, 2])
            rows = [0, 2]
        weights, gradient = torch.randn(2, 3, 20, generator=generator)
        known = torch.rand(3, 20, generator=generator) < 0.6
        gradient = torch.where(known & (torch.rand(3, 20, generator=generator) < 0.8), gradient, 0.0)
        together.observe(weights[rows], gradient[rows], known[rows], [rows.index(row) for row in who])
        again = Importance(**reading)
        again.load(*(together.state(place) for place in range(len(rows))))
        for row in who:
            alone[row].observe(weights[row:row + 1], gradient[row:row + 1], known[row:row + 1])
        for place, row in enumerate(rows):
            expected = alone[row].scores(weights[row:row + 1], number)[0]
            assert torch.equal(together.scores(weights[rows], number)[place], expected)
            assert torch.equal(again.scores(weights[rows], number)[place], expected)
            assert together.state(place).keys() == alone[row].state().keys()


def test_runs_that_stay_without_a_gradient_are_ranked_by_magnitude():
    importance = Importance()
    importance.observe(W0.repeat(2, 1), V0.repeat(2, 1), ALL.repeat(2, 1), [0])
    importance.keep([1])
    assert importance.state() == {}
    assert torch.equal(importance.scores(W1, 1), W1.abs())


def test_random_goes_on_with_the_seeds_that_stay():
    importance, weights = Importance(rule="random", seeds=[1, 2, 3]), torch.zeros(3, 50)
    expected = importance.scores(weights, 4)[[0, 2]]
    importance.keep([0, 2])
    assert torch.equal(importance.scores(weights[:2], 4), expected)


def test_an_experiment_can_name_every_rule():
    assert tuple(IMPORTANCE.built_in) == RULES


def test_unknown_rule():
    with pytest.raises(ValueError, match="taylor, magnitude, random"):
        Importance(rule="hessian")
