"""The size of an upload: what the codec writes, the ledger charges and the planner assumes.

An upload has a header and the values. Values of 8 or 4 bits also need one float32 scale per block of :data:`BLOCK`
values. Apart from the header and at most 5 bytes of an incomplete block, 8-bit values take 1.6 % more than 8 bits and
4-bit values 3.1 % more than 4 bits.
"""

HEADER_BYTES = 37
"""Bytes of the header of every upload."""
BLOCK = 256
"""Number of 8-bit or 4-bit values that share one scale."""
UPLOAD_BITS = (32, 8, 4)
"""Possible numbers of bits per uploaded value. 32 is float32; with 8 and 4, a value is a whole number times the scale
of its block."""


def upload_bytes(kept: int, bits: int = 32) -> int:
    """Return the size in bytes of an upload of ``kept`` values, those that pruning has left.

    Their positions are not sent, because the server can compute every client's mask. With 32 bits the size is
    header + 4·kept bytes, which is the paper's (1 − λ)·H bits and the header.
    """
    scales = 0 if bits == 32 else -(-kept // BLOCK)
    return HEADER_BYTES + 4 * scales + (bits * kept + 7) // 8


def bits_per_value(bits: int) -> float:
    """Bits of each uploaded value, including its share of the scale: 32, 8.125 or 4.125."""
    return 32.0 if bits == 32 else bits + 32.0 / BLOCK
