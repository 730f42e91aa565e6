"""The engine: all selected clients' gradients of a round, of one or many runs, in as few kernels as the device
allows."""

import copy

import torch
from torch import Tensor, nn

from fedgap.learning import reference
from fedgap.learning.contract import RoundInput, RoundOutput
from fedgap.learning.metrics import Evaluation
from fedgap.learning.models.layout import Layout

PRECISIONS = ("float64", "float32", "tf32", "bfloat16")
"""Arithmetic of the forward and backward pass; weights, losses and reductions over clients stay float32 (or
float64)."""


class Engine:
    """Computes rounds and evaluations of one model on one device.

    ``module`` is a template: its weights are never read or changed, they come with each call, flat
    (:class:`fedgap.learning.models.Layout` is their order; ``engine.layout``). ``precision`` is one of
    :data:`PRECISIONS`. Tensors of a call may live anywhere; results come back on ``device``.
    """

    def __init__(self, module: nn.Module, *, device: str | torch.device = "cpu", precision: str = "float32") -> None:
        self.device = torch.device(device)
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        self.module = copy.deepcopy(module).to(self.device, self.dtype)
        self.layout = Layout.of(self.module)
        self.precision = precision

    def gradients(self, round_input: RoundInput, *, per_client: bool = False) -> RoundOutput:
        """One round. ``per_client`` asks for ``client_gradients`` too (it costs memory K·M and the fused passes)."""
        return reference.gradients(self.module, round_input)

    def evaluate(self, weights: Tensor, buffers: Tensor, inputs: Tensor, labels: Tensor) -> list[Evaluation]:
        """Each run's model, weights (R, M) and buffers (R, B), on T samples in evaluation mode, batched."""
        return reference.evaluate(self.module, weights, buffers, inputs, labels)
