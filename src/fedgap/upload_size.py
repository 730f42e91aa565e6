"""The size of an upload: what the codec writes, the ledger charges and the planner assumes.

An upload has a header and the values. Values of 8 or 4 bits also need one float32 scale per block of :data:`BLOCK`
values. Apart from the header and at most 5 bytes of an incomplete block, 8-bit values take 1.6 % more than 8 bits and
4-bit values 3.1 % more than 4 bits.
"""

HEADER_BYTES = 37
"""Bytes of the header of every upload."""
BLOCK = 256
"""Values of 8 or 4 bits that share a scale."""
UPLOAD_BITS = (32, 8, 4)
"""Bits that a value may have: float32, or a whole number times its block's scale."""


def upload_bytes(kept: int, bits: int = 32) -> int:
    """Bytes of an upload of ``kept`` values under a nested mask.

    With 32 bits: header + 4·kept, i.e. (1 − λ)·H bits and the header.
    """
    scales = 0 if bits == 32 else -(-kept // BLOCK)
    return HEADER_BYTES + 4 * scales + (bits * kept + 7) // 8


def bits_per_value(bits: int) -> float:
    """Bits of each uploaded value, including its share of the scale: 32, 8.125 or 4.125."""
    return 32.0 if bits == 32 else bits + 32.0 / BLOCK
