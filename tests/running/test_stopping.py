"""When a training ends early, by hand."""

import math

import pytest

from fedgap.errors import InputError
from fedgap.running.stopping import DivergenceRule, StoppingRule


@pytest.mark.parametrize(("accuracies", "stops"), [
    ([], False), ([0.5, 0.94], False), ([0.5, 0.95], True), ([0.96], True), ([0.96, 0.94], False)])
def test_the_target_is_reached(accuracies, stops):
    assert bool(StoppingRule(accuracy=0.95).reason(accuracies)) == stops


def test_the_target_must_hold_in_several_evaluations():
    rule = StoppingRule(accuracy=0.9, target_evaluations=2)
    assert rule.reason([0.91]) == ""
    assert rule.reason([0.91, 0.89, 0.92]) == ""
    assert rule.reason([0.91, 0.89, 0.92, 0.905]) == "the validation accuracy 90.50% reached the target of 90.00%"


def test_patience_counts_evaluations_without_a_new_best():
    rule = StoppingRule(patience=2)
    assert rule.reason([0.1, 0.5, 0.4]) == ""
    assert rule.reason([0.1, 0.5, 0.4, 0.6, 0.5]) == ""
    assert rule.reason([0.1, 0.5, 0.5, 0.5]) == "the validation accuracy did not improve on 50.00% in 2 evaluations"


def test_without_settings_nothing_stops():
    assert StoppingRule().reason([1.0, 1.0, 1.0, 0.0]) == ""


@pytest.mark.parametrize("wrong", [{"accuracy": 0.0}, {"accuracy": 95.0}, {"patience": 0},
                                   {"target_evaluations": 0}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(InputError, match=f"stop.{next(iter(wrong))}: must be"):
        StoppingRule(**wrong)


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_a_loss_that_is_not_finite_has_diverged(loss):
    reason = DivergenceRule(classes=10).reason(2.4, [2.0, loss], rate=0.03)
    assert reason == ("training diverged: the loss is no longer finite; try a smaller rate, for example "
                      "scenario.learning.rate=0.01 instead of 0.03")


def test_a_loss_far_above_the_first_for_several_evaluations_has_diverged():
    rule = DivergenceRule(classes=10)
    assert rule.reason(2.5, [2.0, 7.6, 8.0], rate=0.3) == ""  # two only
    assert rule.reason(2.5, [7.6, 8.0, 7.4, 7.7, 9.0], rate=0.3) == ""  # 7.4 is not three times 2.5
    reason = rule.reason(2.5, [2.0, 7.6, 8.0, 9.0], rate=0.3)
    assert "the loss was 7.6, 8, 9 at the last 3 evaluations, and 2.5 in the first round" in reason
    assert "scenario.learning.rate=0.1 instead of 0.3" in reason


def test_a_model_that_began_well_may_return_to_guessing():
    """A pretrained model's first loss is small; guessing, ln 10 = 2.3, is far above it and yet no divergence."""
    rule = DivergenceRule(classes=10)
    assert rule.reason(0.2, [2.3] * 5, rate=0.1) == ""
    assert rule.reason(0.2, [7.0] * 5, rate=0.1) != ""


def test_no_evaluation_no_verdict():
    assert DivergenceRule(classes=10).reason(2.5, [], rate=0.1) == ""
