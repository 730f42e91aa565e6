"""Check whether this computer's processor can compute in a precision.

Some processors, and some virtual machines, announce instructions that they cannot run. A bfloat16 product then ends the
process with an illegal instruction, which Python cannot catch. So the kernels of a precision are first tried in a child
process. The answer is kept in an environment variable, for this process and for those that it starts.

float32, float64 and tf32 (which is float32 on a processor) are not probed: they use the instructions that torch itself
needs everywhere.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from fedgap.errors import InputError
from fedgap.learning.engine.precision import compute_dtype

ANSWER_VARIABLE = "FEDGAP_CPU_{}"
"""Name of the environment variable with the answer for a precision (in capitals): one of the next three values."""
WORKS, FAILS, WORKS_LIMITED = "works", "fails", "works limited"
LIMIT = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
"""Environment variable and value that keep torch's kernels from using AMX."""
CHILD = (sys.executable, "-c", "import sys; from fedgap.learning.engine.cpu_probe import run_kernels; "
                               "run_kernels(sys.argv[1])")
PATIENCE_S = 300.0
"""Seconds to wait for the child. The kernels take a few seconds, even on a busy machine; a child that takes this long
counts as failed."""
TOLERANCE = 0.05
"""Largest accepted relative error against float32. Rounding to bfloat16 errs by 2⁻⁹; wrong kernels by much more."""


def check_cpu_precision(precision: str) -> None:
    """Raise an InputError if the processor cannot compute in ``precision``."""
    answer = probe(precision)
    if answer == WORKS:
        return
    remedy = f"use float32, or set {'='.join(LIMIT)} in the environment" if answer == WORKS_LIMITED else "use float32"
    raise InputError(f"engine.precision: this computer's processor cannot compute in {precision}; {remedy}")


def probe(precision: str) -> str:
    """Whether the processor can compute in ``precision``: WORKS, FAILS, or WORKS_LIMITED if only the kernels without
    AMX work."""
    if compute_dtype(precision) in (torch.float32, torch.float64):
        return WORKS
    variable = ANSWER_VARIABLE.format(precision.upper())
    if variable not in os.environ:
        limited = os.environ | dict([LIMIT])
        os.environ[variable] = (WORKS if _child_survives(precision, dict(os.environ)) else
                                WORKS_LIMITED if _child_survives(precision, limited) else FAILS)
    return os.environ[variable]


def _child_survives(precision: str, environment: dict[str, str]) -> bool:
    try:
        ended = subprocess.run([*CHILD, precision], env=environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def run_kernels(precision: str) -> None:
    """Compute the engine's layers, forward and backward, in ``precision``; exit with code 1 if a result is wrong."""
    dtype, generator = compute_dtype(precision), torch.Generator().manual_seed(0)

    def compare(kernel: Callable[..., Tensor], *shapes: tuple[int, ...], **options: int) -> None:
        tensors = [torch.randn(shape, generator=generator) for shape in shapes]
        exact, rounded = (_with_gradients(partial(kernel, **options), tensors, kind) for kind in (torch.float32, dtype))
        for right, tried in zip(exact, rounded, strict=True):
            if not float((tried - right).norm()) <= TOLERANCE * float(right.norm()):  # "not" also catches NaN
                sys.exit(1)

    for samples in (1, 4, 32):
        compare(functional.linear, (samples, 400), (120, 400), (120,))
        compare(torch.baddbmm, (5, 1, 84), (5, samples, 120), (5, 120, 84))
        compare(functional.conv2d, (samples, 1, 28, 28), (6, 1, 5, 5))
        compare(functional.conv2d, (samples, 6, 12, 12), (16, 6, 5, 5), (16,))
        compare(functional.conv2d, (samples, 64, 8, 8), (64, 64, 3, 3), padding=1)
        compare(functional.conv2d, (samples, 3 * 16, 16, 16), (3 * 32, 16, 3, 3), padding=1, stride=2, groups=3)


def _with_gradients(kernel: Callable[..., Tensor], tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The kernel's result and the gradients of its sum of squares, computed in ``dtype`` and returned as float32."""
    inputs = [tensor.to(dtype).detach().requires_grad_() for tensor in tensors]
    output = kernel(*inputs)
    gradients = torch.autograd.grad(output.square().sum(), inputs)
    return [tensor.detach().float() for tensor in (output, *gradients)]
