# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""Rounding of the operands of a matrix product to TF32."""

import triton
import triton.language as tl


@triton.jit
def operand(x, PRECISION: tl.constexpr):
    """``x``, rounded to TF32's 10 mantissa bits if float32 numbers are multiplied in TF32.

    The tensor cores would cut off the other bits, which makes every product a little too small."""
    if PRECISION == "tf32" and x.dtype == tl.float32:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # NaN stays NaN
    return x
