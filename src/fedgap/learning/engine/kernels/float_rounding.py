# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""Operands of a matrix product as TF32 wants them."""

import triton
import triton.language as tl


@triton.jit
def operand(x, PRECISION: tl.constexpr):
    """``x``, rounded to TF32's 10 mantissa bits where float32 is multiplied in TF32.

    The tensor cores cut the other bits off, which would make every product a little too small.
    """
    if PRECISION == "tf32" and x.dtype == tl.float32:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # a NaN stays one
    return x
