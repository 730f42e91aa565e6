"""Where a stack's parameters lie in arranged memory."""

import pytest
import torch

from fedgap.learning.engine.arrange import Arrangement
from fedgap.learning.models import Layout, build


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 28, 28)), ("resnet20", (3, 32, 32))])
@pytest.mark.parametrize("models", [1, 3])
def test_the_table_says_where_each_models_parameters_are(name, shape, models):
    layout = Layout.of(build(name, input_shape=shape, classes=10, seed=0))
    arrangement = Arrangement(layout, torch.float32)
    flat = torch.arange(models * layout.size, dtype=torch.float64).reshape(models, -1)
    matrices, vectors = arrangement.flat([leaf.detach() for leaf in arrangement.spread(flat).values()])
    arranged = torch.cat([matrices.double(), vectors])
    parameter, first, size = arrangement.table(torch.device("cpu")).long()
    for model in range(models):
        at = torch.arange(layout.size) + (models - 1) * first + model * size
        assert torch.equal(arranged[at], flat[model, parameter])


def test_collect_undoes_spread():
    layout = Layout.of(build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0))
    arrangement = Arrangement(layout, torch.float32)
    flat = torch.randn(3, layout.size)
    leaves = arrangement.spread(flat)
    assert leaves["conv2.weight"].shape == (3, 16, 6, 5, 5)
    assert torch.equal(leaves["conv2.weight"].flatten(1), layout.split(flat)["conv2.weight"].flatten(1))
    assert torch.equal(arrangement.collect([leaf.detach() for leaf in leaves.values()]), flat)
