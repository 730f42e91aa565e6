"""An importance rule from outside: hand-worked scores, its memory in checkpoints, and what is refused."""

import pytest
import torch

from fedgap.errors import InputError
from fedgap.learning.importance import Importance, make_importance


class RunningMean:
    """Ranks weights by |ω| times the mean of the known gradients' magnitudes so far."""

    def scores(self, weights, memory, *, round, seed):
        return weights.abs() * (memory["sum"] / memory["count"] if memory else 1.0)

    def observe(self, memory, weights, gradient, known):
        before = memory or {"sum": torch.zeros_like(weights), "count": torch.full_like(weights, 1e-9)}
        return {"sum": before["sum"] + torch.where(known, gradient.abs(), 0.0), "count": before["count"] + known}


RULE = RunningMean()
__fedgap__ = ["RULE", "NAME", "BLIND"]
NAME = "tests.learning.test_importance_rules:RULE"
WEIGHTS = torch.tensor([[2.0, -1.0, 3.0], [1.0, 1.0, 1.0]])
GRADIENT = torch.tensor([[1.0, -4.0, 2.0], [5.0, 5.0, 5.0]])
KNOWN = torch.tensor([[True, True, False], [True, True, True]])


class Blind:
    def scores(self, weights, memory, *, round, seed):
        return weights * float("nan")

    def observe(self, memory, weights, gradient, known):
        return {}


BLIND = Blind()


def test_scores_by_hand_of_the_runs_that_were_heard():
    rule = make_importance(NAME, seeds=[1, 2], current_weights=True, remember=True)
    assert torch.equal(rule.scores(WEIGHTS, 0), WEIGHTS.abs())
    rule.observe(WEIGHTS, GRADIENT, KNOWN, heard=[0])
    rule.observe(WEIGHTS, 3 * GRADIENT, KNOWN, heard=[0])
    torch.testing.assert_close(rule.scores(WEIGHTS, 2), torch.tensor([[4.0, 8.0, 0.0], [1.0, 1.0, 1.0]]))


def test_the_memory_is_a_checkpoints():
    rule, again = (make_importance(NAME, seeds=[1, 2]) for _ in range(2))
    rule.observe(WEIGHTS, GRADIENT, KNOWN)
    again.load(*(rule.state(row) for row in range(2)))
    assert torch.equal(again.scores(WEIGHTS, 1), rule.scores(WEIGHTS, 1))
    assert {tensor.shape for tensor in rule.state(1).values()} == {(1, 3)}
    again.keep([1])
    assert torch.equal(again.scores(WEIGHTS[1:], 1), rule.scores(WEIGHTS, 1)[1:])


def test_names():
    assert isinstance(make_importance("magnitude", seeds=[0]), Importance)
    with pytest.raises(InputError, match=r"^pruning.importance: must be one of taylor, magnitude, random"):
        make_importance("hessian", seeds=[0])
    with pytest.raises(InputError, match=r"^pruning.importance: .* must have the methods scores and observe"):
        make_importance("tests.learning.test_importance_rules:NAME", seeds=[0])
    with pytest.raises(InputError, match=r"^pruning.importance: scores must return one number, not NaN"):
        make_importance("tests.learning.test_importance_rules:BLIND", seeds=[0, 1]).scores(WEIGHTS, 0)
