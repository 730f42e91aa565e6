"""Masks: counts, ties, nesting, torch's own pruning as the oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from fedgap.learning.masks import digest, keep_count, kept_fraction, mask, ranks
from fedgap.learning.models import Layout, build

floats = st.floats(-10, 10, width=32) | st.sampled_from([0.0, -0.0, 1e-40, float("inf")])


def test_ranks_by_hand():
    #  scores:   3  1  3  0  2      ties to the lower index
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 0.0, 2.0])).tolist() == [0, 3, 1, 4, 2]
    assert mask(ranks(torch.tensor([3.0, 1.0, 3.0, 0.0, 2.0])), 0.4).tolist() == [True, False, True, False, True]


@given(st.lists(floats, min_size=1, max_size=40))
def test_the_fast_ranking_is_the_stable_sort(values):
    scores = torch.tensor(values, dtype=torch.float32)
    order = sorted(range(len(values)), key=lambda i: (-scores[i].item(), i))
    expected = torch.empty(len(values), dtype=torch.int32)
    expected[torch.tensor(order)] = torch.arange(len(values), dtype=torch.int32)
    assert torch.equal(ranks(scores), expected)
    assert torch.equal(ranks(scores.double()), expected)


def test_ranks_of_many_runs():
    scores = torch.rand(3, 2, 500)
    together = ranks(scores)
    for i in range(3):
        for j in range(2):
            assert torch.equal(together[i, j], ranks(scores[i, j]))


@pytest.mark.parametrize(("ratio", "size", "kept"), [(0, 10, 10), (1, 10, 0), (0.3, 10, 7), (0.5, 44_426, 22_213),
                                                     (0.25, 10, 8), (0.35, 10, 6), (0.123, 44_426, 38_962)])
def test_keep_count(ratio, size, kept):
    assert keep_count(ratio, size) == kept


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_outside_is_refused(ratio):
    with pytest.raises(ValueError, match="pruning ratio"):
        keep_count(ratio, 10)


@given(st.lists(floats, min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_masks_are_nested(values, one, other):
    ranking = ranks(torch.tensor(values, dtype=torch.float32))
    more, less = mask(ranking, min(one, other)), mask(ranking, max(one, other))
    assert (more | ~less).all()  # who prunes more keeps a subset
    assert int(more.sum()) == keep_count(min(one, other), len(values))


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.37, 0.5, 0.9])
def test_torch_global_unstructured_pruning_keeps_the_same(ratio):
    module = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    layout = Layout.of(module)
    ours = mask(ranks(layout.weights(module).abs()), ratio)
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    targets = [(layer, name) for layer in layers for name in ("weight", "bias")]
    prune.global_unstructured(targets, pruning_method=prune.L1Unstructured, amount=layout.size - int(ours.sum()))
    theirs = torch.cat([getattr(layer, f"{name}_mask").flatten() for layer, name in targets]).bool()
    assert torch.equal(ours, theirs)


def test_kept_fraction_is_the_mean_of_the_masks():
    ranking = ranks(torch.rand(200))
    ratios = [0.0, 0.3, 0.3, 0.85]
    expected = torch.stack([mask(ranking, r) for r in ratios]).float().mean(0)
    assert torch.allclose(kept_fraction(ranking, ratios), expected)


def test_digest_tells_masks_apart():
    one = torch.tensor([True, False, True] * 5)
    other = one.clone()
    other[7] = ~other[7]
    assert digest(one) == digest(one.clone())
    assert digest(one) != digest(other)
    assert len(digest(one)) == 8
    assert digest(one) == digest(torch.from_numpy(np.array([True, False, True] * 5)))
