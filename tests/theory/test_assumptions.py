"""Assumption 4: pruning a share λ of the weights removes at most a share λ of ‖ω‖². True by magnitude alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgap.learning.importance import Importance
from fedgap.learning.masks import mask, ranks
from tests.system.strategies import checked


def removed_share(weights: torch.Tensor, scores: torch.Tensor, ratio: float) -> tuple[float, float]:
    """(‖ω − ω̃‖²/‖ω‖², the share of the weights that are pruned)."""
    pruned = weights * ~mask(ranks(scores), ratio)
    dropped = 1.0 - mask(ranks(scores), ratio).double().mean().item()
    return (pruned.square().sum() / weights.square().sum()).item(), dropped


@checked
@given(st.lists(st.floats(-10.0, 10.0).filter(lambda x: abs(x) > 1e-6), min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_assumption_4_holds_when_pruning_by_magnitude(values: list[float], ratio: float) -> None:
    weights = torch.tensor(values, dtype=torch.float64)
    energy, share = removed_share(weights, Importance(rule="magnitude").scores(weights[None], 1)[0], ratio)
    assert energy <= share + 1e-12


def test_assumption_4_can_fail_when_pruning_by_importance() -> None:
    # The largest weight has the smallest gradient: Q = (10·0.01)², (1·1)², (1·1)², (1·1)². A quarter of the weights is
    # pruned, and 100/103 of ‖ω‖² goes with it.
    weights, gradient = torch.tensor([[10.0, 1.0, 1.0, 1.0]]), torch.tensor([[0.01, 1.0, 1.0, 1.0]])
    importance = Importance(rule="taylor")
    importance.observe(weights, gradient, torch.ones_like(gradient, dtype=torch.bool))
    energy, share = removed_share(weights[0], importance.scores(weights, 1)[0], 0.25)
    assert share == pytest.approx(0.25)
    assert energy == pytest.approx(100 / 103)
