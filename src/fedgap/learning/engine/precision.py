"""Number formats of a forward and backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("float64", "float32", "tf32", "bfloat16")
"""``float64`` for checks; ``float32``; ``tf32``: float32 whose products a GPU's tensor cores round to 10 bits;
``bfloat16``: products and activations in bfloat16. Global weights, losses, normalisation statistics and all sums over
clients are float32 (float64 for ``float64``)."""


def storage_dtype(precision: str) -> torch.dtype:
    """The dtype in which weights, losses and sums over clients are held."""
    return torch.float64 if precision == "float64" else torch.float32


def compute_dtype(precision: str) -> torch.dtype:
    """The dtype in which layers multiply and activations are held."""
    return torch.bfloat16 if precision == "bfloat16" else storage_dtype(precision)


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Allow TF32 products if, and only if, ``precision`` needs them; afterwards the process's settings are restored."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = precision in ("tf32", "bfloat16")
    cudnn.benchmark = True  # shapes repeat in every round, so trying all cuDNN algorithms once is worth it
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
