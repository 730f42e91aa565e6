"""The costs of a model that the planner needs: gradient bits H and FLOPs per sample e."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedgap.learning.models.layout import Layout


def gradient_bits(module: nn.Module) -> int:
    """H = 32·M: bits of an unpruned float32 gradient (LeNet-5: 1,421,632; ResNet-44: 21,074,752)."""
    return 32 * Layout.of(module).size


def flops_per_sample(module: nn.Module, input_shape: Sequence[int]) -> int:
    """e: floating-point operations to compute the gradient of one sample, three times those of its forward pass.

    Convention: a multiply-add is two operations; convolutions and matrix products are counted (as
    ``torch.utils.flop_counter`` does), element-wise work is not; the backward pass, with one product for the layer's
    input and one for its weights, counts as two forward passes. LeNet-5: 1.69e6 (Table I: 1.8e6); ResNet-44: 0.585e9
    (Table I: 0.59e9).
    """
    return 3 * forward_flops(module, input_shape)


def forward_flops(module: nn.Module, input_shape: Sequence[int]) -> int:
    """Floating-point operations of the forward pass of one sample; see :func:`flops_per_sample`."""
    parameter = next(module.parameters())
    training, counter = module.training, _Counter()  # type: ignore[no-untyped-call]
    module.eval()
    try:
        with torch.no_grad(), counter:
            module(torch.zeros(1, *input_shape, dtype=parameter.dtype, device=parameter.device))
    finally:
        module.train(training)
    return counter.flops


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs by torch's formulas, as ``FlopCounterMode`` does, which spends two seconds on loading a compiler."""

    flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # with True, torch imports its compiler (dynamo) only to tell it to skip this class

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=result))
        return result
