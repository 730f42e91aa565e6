"""The global model: one round by hand, and a copy that follows stays equal."""

import torch

from fedgap.learning.global_model import GlobalModel
from fedgap.learning.learner import Learner, ServerUpdate
from fedgap.learning.stacked_importance import Importances

TAYLOR = {"rule": "taylor", "current_weights": True, "remember": True}
RANDOM = {"rule": "random", "current_weights": True, "remember": True}


def model(*settings, weights=((4.0, -3.0, 2.0, 1.0),), **learner):
    settings = settings or (TAYLOR,) * len(weights)
    weights = torch.tensor(weights)
    update = ServerUpdate([Learner(rate=0.5, rounds=9, **learner)] * len(weights), weights)
    importance = Importances(settings, range(len(weights)), weights.device)
    return GlobalModel(weights, torch.zeros(len(weights), 0), importance, update)


def test_a_round_by_hand():
    """First by magnitude; then ω = (4, −3, 2, 1) − 0.5·(6, 0, 2, −6) and scores |v·ω| = (6, 0, 2, 24)."""
    one = model()
    assert one.rank(True).tolist() == [[0, 1, 2, 3]]
    one.advance(torch.tensor([[6.0, 0.0, 2.0, -6.0]]), torch.ones(1, 4, dtype=torch.bool), one.buffers, (0,))
    assert one.round == 1
    assert one.weights.tolist() == [[1.0, -3.0, 1.0, 4.0]]
    assert one.rank(True).tolist() == [[1, 3, 2, 0]]
    assert one.rank(False).tolist() == [[0, 1, 2, 3]]  # nobody prunes: the ranking decides nothing


def test_a_round_without_updates_changes_nothing_but_its_number():
    one = model()
    one.skip()
    assert (one.round, one.weights.tolist()) == (1, [[4.0, -3.0, 2.0, 1.0]])


def advanced(one, rounds):
    for _ in range(rounds):
        generator = torch.Generator().manual_seed(one.round)
        one.rank(True)
        direction = torch.randn(one.weights.shape[1], generator=generator).expand_as(one.weights)
        one.advance(direction, direction > -1, one.buffers, range(len(one.weights)))
    return one


def test_a_state_continues_as_the_whole_does_also_without_ranks_and_company():
    weights = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)).tolist()
    settings = TAYLOR, RANDOM, {"rule": "tests.learning.test_importance_rules:RULE"}
    whole = advanced(model(*settings, weights=weights), 5)
    half = advanced(model(*settings, weights=weights), 2)
    again = model(*settings, weights=weights)
    again.load([half.state(row) for row in range(3)], half.round)
    assert torch.equal(again.ranks, half.ranks)
    assert torch.equal(advanced(again, 3).weights, whole.weights)
    assert torch.equal(again.rank(True), whole.rank(True))
    half.keep([2])
    alone = model(settings[2], weights=weights[2:])
    state = {name: tensor for name, tensor in half.state(0).items() if name != "ranks"}
    alone.load([state], 2)
    assert torch.equal(advanced(alone, 3).weights, whole.weights[2:])
