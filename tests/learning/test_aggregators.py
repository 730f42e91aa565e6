"""Aggregators: the mean as printed, one from outside by hand, and what is refused."""

import pytest
import torch

from fedgap.errors import InputError
from fedgap.learning.aggregators import aggregate, load_aggregator, mean

__fedgap__ = ["trimmed_mean", "constant", "UPDATES"]
UPDATES = torch.tensor([[1.0, 4.0, 0.0, 0.0], [2.0, 0.0, 0.0, 6.0], [9.0, 2.0, 0.0, 3.0]])
KEPT = torch.tensor([[True, True, False, False], [True, False, False, True], [True, True, False, True]])


def trimmed_mean(updates, kept):
    """The mean without the smallest and the largest value of each weight."""
    middle = updates.sort(dim=0).values[1:-1]
    return middle.mean(dim=0)


def constant(updates, kept):
    return torch.ones(updates.shape[1])


def test_the_mean_counts_a_pruned_weight_as_zero():
    assert mean(UPDATES, KEPT).tolist() == [4.0, 2.0, 0.0, 3.0]


def test_a_trimmed_mean_by_hand():
    """Middle values of (1, 2, 9), (0, 2, 4), (0, 0, 0) and (0, 3, 6)."""
    assert aggregate(trimmed_mean, UPDATES, KEPT).tolist() == [2.0, 2.0, 0.0, 3.0]


def test_a_weight_that_nobody_kept_does_not_move():
    assert aggregate(constant, UPDATES, KEPT).tolist() == [1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(("wrong", "says"), [
    (lambda updates, kept: updates, r"a tensor of shape \(4,\); <lambda> returned \(3, 4\)"),
    (lambda updates, kept: 3.0, r"a tensor of shape \(4,\); <lambda> returned float"),
    (lambda updates, kept: updates[0] / 0, "finite")])
def test_what_is_no_direction_is_refused_in_one_line(wrong, says):
    with pytest.raises(InputError, match=f"^learning.aggregator: .*{says}"):
        aggregate(wrong, UPDATES, KEPT)


def test_names():
    assert load_aggregator("mean") is mean
    assert load_aggregator("tests.learning.test_aggregators:trimmed_mean")(UPDATES, KEPT).tolist() == [2, 2, 0, 3]
    with pytest.raises(InputError, match=r"^learning.aggregator: .*must be a function .* it is a Tensor"):
        load_aggregator("tests.learning.test_aggregators:UPDATES")
    with pytest.raises(InputError, match=r"^learning.aggregator: must be one of mean.*did you mean"):
        load_aggregator("maen")
