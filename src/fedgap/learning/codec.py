"""The encoding of uploads: the kept values of a client's masked gradient, and a check that client and server use the
same mask.

An upload is a header, the indices of the kept values if they are needed, and the kept values in ascending index order:
float32, or scales and whole numbers of 8 or 4 bits (:mod:`fedgap.learning.stochastic_rounding`). The masks of a round
are nested cuts of one ranking (:mod:`fedgap.learning.masks`), so the server can rebuild a client's mask, and the header
needs only its digest. If the digest does not match (because floats differ between machines), the client sends the
indices as well, as a bitmap or as gaps between indices, whichever is shorter. Nothing is ever unpickled, and every
field is checked."""

import hashlib
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgap.errors import FedgapError
from fedgap.learning.masks import digest
from fedgap.learning.stochastic_rounding import largest_number, rounded
from fedgap.upload_size import BLOCK, UPLOAD_BITS
from fedgap.upload_size import HEADER_BYTES as HEADER_BYTES
from fedgap.upload_size import upload_bytes as upload_bytes

_MAGIC = b"FGU1"
_HEADER = struct.Struct("<4sBIII8s8sI")  # magic, coding, round, M, kept, plan, mask digest, checksum
NESTED, BITMAP, GAPS = 0, 1, 2
"""How indices are coded (the lower half of the header's coding byte): not at all because the mask is nested, as a
bitmap, or as gaps. The upper half is the position in UPLOAD_BITS of the number of bits per value."""


class UploadError(FedgapError):
    """An upload that is damaged, or that belongs to another round, plan or model; the message says which."""


class MaskMismatchError(UploadError):
    """The client's mask differs from the one that the server rebuilt, so the upload must be sent again with indices."""


@dataclass(frozen=True)
class Upload:
    """A decoded upload: the masked gradient (M,) float32 with zeros where pruned, and the mask (M,) bool."""

    gradient: Tensor
    mask: Tensor


def encode(gradient: Tensor, mask: Tensor, *, round: int, plan: str, nested: bool = True, bits: int = 32,
           key: int = 0) -> bytes:
    """Encode the upload of a masked ``gradient`` (M,); ``mask`` (M,) is True for the kept entries.

    ``plan`` is the plan's hash (any string). ``nested`` False adds the indices of the kept entries. ``bits`` per value
    is one of :data:`~fedgap.upload_size.UPLOAD_BITS`; below 32, ``key`` is the client's key from
    :func:`~fedgap.learning.stochastic_rounding.upload_keys`, which seeds the rounding."""
    kept = mask.detach().cpu().numpy().astype(bool)
    values = gradient.detach().cpu().to(torch.float32).numpy()[kept]
    if not np.isfinite(values).all():
        raise UploadError("the gradient must be finite; it has infinity or NaN")
    kind, indices = (NESTED, b"") if nested else _encode_indices(kept)
    coded = values.astype("<f4").tobytes() if bits == 32 else _encode_numbers(gradient, kept, key, round, bits)
    body: bytes = indices + coded
    coding = kind | UPLOAD_BITS.index(bits) << 4
    fields = (_MAGIC, coding, round, kept.size, values.size, _plan_key(plan), digest(mask))
    return _HEADER.pack(*fields, _checksum(fields, body)) + body


def decode(data: bytes, *, size: int, round: int, plan: str, mask: Tensor | None = None, bits: int = 32) -> Upload:
    """Decode the upload in ``data``. It must belong to a model of ``size`` M parameters, to this ``round`` and
    ``plan``, and have ``bits`` per value.

    ``mask`` (M,) is the mask that the server rebuilt for this client. It is needed for an upload without indices, and
    ignored otherwise."""
    if len(data) < HEADER_BYTES:
        raise UploadError(f"an upload has at least {HEADER_BYTES} bytes; this one has {len(data)}")
    *fields, checksum = _HEADER.unpack_from(data)
    magic, coding, its_round, its_size, kept, plan_key, mask_digest = fields
    body = bytes(data[HEADER_BYTES:])
    if magic != _MAGIC:
        raise UploadError("this is not an upload, or one of another version of fedgap")
    if checksum != _checksum(tuple(fields), body):
        raise UploadError("the upload is damaged: its checksum does not match")
    if its_size != size:
        raise UploadError(f"the upload belongs to a model of {its_size} parameters; this model has {size}")
    if plan_key != _plan_key(plan):
        raise UploadError("the upload belongs to another plan")
    if its_round != round:
        raise UploadError(f"the upload belongs to round {its_round}; this is round {round}")
    if coding >> 4 != UPLOAD_BITS.index(bits):
        raise UploadError(f"the upload's values must have {bits} bits, as the plan says")
    length = len(body) - (upload_bytes(kept, bits) - HEADER_BYTES)
    if length < 0:
        raise UploadError(f"the upload announces {kept} values of {bits} bits; {-length} bytes are missing")
    own = _decode_indices(coding & 0xF, body[:length], size, kept, mask)
    if digest(own) != mask_digest:
        raise MaskMismatchError("the client's mask differs from the one rebuilt here; ask the client for the indices "
                                "of its kept weights")
    if int(own.sum()) != kept:
        raise UploadError(f"the upload announces {kept} values, but its mask keeps {int(own.sum())}")
    values = (np.frombuffer(body, dtype="<f4", offset=length).astype(np.float32) if bits == 32
              else _decode_numbers(body[length:], kept, bits))
    if not np.isfinite(values).all():
        raise UploadError("the gradient must be finite; it has infinity or NaN")
    gradient = torch.zeros(size)
    gradient[own] = torch.from_numpy(values)
    return Upload(gradient, own)


def _plan_key(plan: str) -> bytes:
    return hashlib.blake2b(plan.encode(), digest_size=8).digest()


def _checksum(fields: tuple[object, ...], body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0)))


def _encode_numbers(gradient: Tensor, kept: NDArray[np.bool_], key: int, round: int, bits: int) -> bytes:
    """The scales of the blocks, then the values as whole numbers; two numbers of 4 bits share a byte, the first in its
    lower half."""
    numbers, scales = rounded(gradient.detach().cpu(), torch.from_numpy(kept), torch.tensor(key), round, bits)
    coded = numbers.numpy()[kept].view(np.uint8)
    used = scales.numpy()[:-(-coded.size // BLOCK)]
    with np.errstate(over="ignore"):
        if not np.isfinite(used * np.float32(largest_number(bits))).all():
            raise UploadError(f"the gradient is too large for {bits} bits (near the limit of float32); training has "
                              "probably diverged, so use a smaller learning.rate")
    if bits == 4:
        pairs = np.append(coded, np.uint8(0))[:coded.size + coded.size % 2].reshape(-1, 2)
        coded = pairs[:, 0] & np.uint8(0xF) | pairs[:, 1] << np.uint8(4)
    return bytes(used.astype("<f4").tobytes() + coded.tobytes())


def _decode_numbers(data: bytes, kept: int, bits: int) -> NDArray[np.float32]:
    """Decode values of 8 or 4 bits. Bytes that the encoder never writes raise an UploadError."""
    blocks = -(-kept // BLOCK)
    scales = np.frombuffer(data, dtype="<f4", count=blocks).astype(np.float32)
    coded = np.frombuffer(data, dtype=np.uint8, offset=4 * blocks)
    if bits == 4:
        coded = np.stack([coded & np.uint8(0xF), coded >> np.uint8(4)], axis=1).reshape(-1)
        if coded[kept:].any():
            raise UploadError("the upload's last byte holds more values than the header announces")
        coded = (coded[:kept] ^ np.uint8(8)) - np.uint8(8)  # from four bits to eight, with the sign
    numbers = coded.view(np.int8)
    if (numbers < -largest_number(bits)).any() or not (scales >= 0).all():
        raise UploadError("the upload has a number or a scale out of range")
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        return np.asarray(numbers.astype(np.float32) * np.repeat(scales, BLOCK)[:kept])


def _encode_indices(kept: NDArray[np.bool_]) -> tuple[int, bytes]:
    bitmap = np.packbits(kept).tobytes()
    gaps = _encode_gaps(np.flatnonzero(kept))
    return (GAPS, gaps) if len(gaps) < len(bitmap) else (BITMAP, bitmap)


def _decode_indices(kind: int, indices: bytes, size: int, kept: int, mask: Tensor | None) -> Tensor:
    if kind == NESTED:
        if indices:
            raise UploadError(f"the upload is {len(indices)} bytes too long")
        if mask is None or mask.shape != (size,):
            raise MaskMismatchError("the upload has no indices, and the server has no mask for it")
        return mask.detach().cpu().bool()
    if kind == BITMAP:
        if len(indices) != (size + 7) // 8:
            raise UploadError(f"a bitmap of {size} parameters has {(size + 7) // 8} bytes, not {len(indices)}")
        bits = np.unpackbits(np.frombuffer(indices, dtype=np.uint8))
        if bits[size:].any():
            raise UploadError("the bitmap marks parameters beyond the model's last one")
        return torch.from_numpy(bits[:size].astype(bool))
    if kind != GAPS:
        raise UploadError(f"the coding of the indices is unknown ({kind}); 0, 1 and 2 are known")
    positions = _decode_gaps(indices)
    if len(positions) != kept or (kept and positions[-1] >= size):
        raise UploadError(f"the indices must be {kept} positions below {size}")
    own = torch.zeros(size, dtype=torch.bool)
    own[torch.from_numpy(positions)] = True
    return own


def _encode_gaps(positions: NDArray[np.int64]) -> bytes:
    """Encode ascending positions as the gaps between them, seven bits per byte with the low bits first; only the last
    byte of a gap is below 128."""
    gaps = np.diff(positions, prepend=-1) - 1
    digits = np.stack([(gaps >> shift) & 0x7F for shift in range(0, 35, 7)], axis=1)
    used = np.stack([np.ones_like(gaps, dtype=bool)] + [gaps >= 1 << shift for shift in range(7, 35, 7)], axis=1)
    more = np.zeros_like(used)
    more[:, :-1] = used[:, 1:]
    return bytes((digits | (more.astype(np.int64) << 7))[used].astype(np.uint8))


def _decode_gaps(data: bytes) -> NDArray[np.int64]:
    raw = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    if not raw.size:
        return np.zeros(0, dtype=np.int64)
    ends = np.flatnonzero(raw < 128)
    if not ends.size or ends[-1] != raw.size - 1:
        raise UploadError("the indices are incomplete")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 5:
        raise UploadError("an index gap is longer than five bytes")
    place = np.arange(raw.size) - np.repeat(starts, lengths)
    gaps = np.add.reduceat((raw & 0x7F) << (7 * place), starts)
    return np.asarray(np.cumsum(gaps + 1) - 1, dtype=np.int64)
