"""A small multilayer perceptron, for quick trials."""

import itertools
from collections.abc import Sequence
from math import prod

from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """Flattened input, fully connected layers of ``hidden`` sizes with ReLU, then logits. 784 – 64 – 10 has M =
    50,890."""

    def __init__(self, input_shape: Sequence[int] = (1, 28, 28), classes: int = 10,
                 hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        sizes = [prod(input_shape), *hidden, classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (Z, classes) of inputs (Z, ...)."""
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]
