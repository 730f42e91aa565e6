"""Table I: the sizes derived from the models, next to the printed ones."""

from __future__ import annotations

from typing import Any

from fedgap.learning.models import build
from fedgap.learning.sizes import flops_per_sample, gradient_bits

PRINTED = {"MNIST": {"gradient_bits": 1.42e6, "flops_per_sample": 1.8e6},
           "CIFAR-10": {"gradient_bits": 21.07e6, "flops_per_sample": 0.59e9}}
"""The sizes printed in Table I: bits of a gradient, and FLOPs per sample."""
_MODELS = (("MNIST", "lenet5", (1, 28, 28)), ("CIFAR-10", "resnet44", (3, 32, 32)),
           ("CIFAR-10", "resnet110", (3, 32, 32)))


def results() -> dict[str, Any]:
    """H (32 bits per parameter) and e (three forward passes) of the models that a column of Table I may mean, next to
    the printed values."""
    rows = []
    for column, name, shape in _MODELS:
        module = build(name, input_shape=shape, classes=10, seed=0)
        for quantity, derived in (("gradient_bits", gradient_bits(module)),
                                  ("flops_per_sample", flops_per_sample(module, shape))):
            printed = PRINTED[column][quantity]
            rows.append({"column": column, "model": name, "quantity": quantity, "printed": printed, "derived": derived,
                         "ratio": float(f"{derived / printed:.4g}")})
    return {"figure": "table1", "title": "Model sizes of Table I, printed and derived", "kind": "table", "rows": rows}
