"""What a client uploads: the kept values of its masked gradient, and enough to check that both sides mean the same
mask.

An upload is a header, the indices where they are needed, and the kept float32 values in ascending index order. Masks
of a round are nested cuts of one ranking (:mod:`fedgap.learning.masks`), so the server rebuilds them and the header's
digest suffices. Where it does not match (floats that differ between machines), or where a mask is a client's own,
indices go along, as a bitmap or as gaps, whichever is shorter. Nothing is ever unpickled, and every field is checked.
"""

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

_MAGIC = b"FGU1"
_HEADER = struct.Struct("<4sBIII8s8sI")  # magic, how indices are coded, round, M, kept, plan, mask digest, checksum
HEADER_BYTES = _HEADER.size
NESTED, BITMAP, GAPS = 0, 1, 2


class UploadError(FedgapError):
    """An upload that is damaged, or of another round, plan or model; the message says which."""


class MaskMismatchError(UploadError):
    """The client's mask is not the one the server rebuilt: the upload must carry its indices."""


@dataclass(frozen=True)
class Upload:
    """A decoded upload: the masked gradient (M,) float32 with zeros where pruned, and the mask (M,) bool."""

    gradient: Tensor
    mask: Tensor


def upload_bytes(kept: int) -> int:
    """Bytes of an upload of ``kept`` values under a nested mask: header + 4·kept, i.e. (1 − λ)·H bits and the
    header."""
    return HEADER_BYTES + 4 * kept


def encode(gradient: Tensor, mask: Tensor, *, round: int, plan: str, nested: bool = True) -> bytes:
    """The upload of a masked ``gradient`` (M,) whose kept entries are ``mask`` (M,).

    ``plan`` is the plan's hash (any string). ``nested`` False sends the indices too.
    """
    kept = mask.detach().cpu().numpy().astype(bool)
    values = gradient.detach().cpu().to(torch.float32).numpy()[kept]
    if not np.isfinite(values).all():
        raise UploadError("the gradient is not finite")
    kind, indices = (NESTED, b"") if nested else _encode_indices(kept)
    body: bytes = indices + values.astype("<f4").tobytes()
    fields = (_MAGIC, kind, round, kept.size, values.size, _plan_key(plan), digest(mask))
    return _HEADER.pack(*fields, _checksum(fields, body)) + body


def decode(data: bytes, *, size: int, round: int, plan: str, mask: Tensor | None = None) -> Upload:
    """The upload in ``data``, which must be of this model ``size`` M, ``round`` and ``plan``.

    ``mask`` is the server's own rebuild; it is needed for an upload without indices, and ignored for one with.
    """
    if len(data) < HEADER_BYTES:
        raise UploadError(f"an upload has at least {HEADER_BYTES} bytes; this one has {len(data)}")
    *fields, checksum = _HEADER.unpack_from(data)
    magic, kind, its_round, its_size, kept, plan_key, mask_digest = fields
    body = bytes(data[HEADER_BYTES:])
    if magic != _MAGIC:
        raise UploadError("this is not an upload of this version")
    if checksum != _checksum(tuple(fields), body):
        raise UploadError("the upload is damaged: its checksum does not match")
    if its_size != size:
        raise UploadError(f"the upload is of a model of {its_size} parameters; this one has {size}")
    if plan_key != _plan_key(plan):
        raise UploadError("the upload belongs to another plan")
    if its_round != round:
        raise UploadError(f"the upload is of round {its_round}; this is round {round}")
    length = len(body) - 4 * kept
    if length < 0:
        raise UploadError(f"{kept} values were announced, {len(body) // 4} came")
    own = _decode_indices(kind, body[:length], size, kept, mask)
    if digest(own) != mask_digest:
        raise MaskMismatchError("the client's mask is not the one rebuilt here; ask for its indices")
    if int(own.sum()) != kept:
        raise UploadError(f"{kept} values were announced for a mask that keeps {int(own.sum())}")
    values = np.frombuffer(body, dtype="<f4", offset=length).astype(np.float32)
    if not np.isfinite(values).all():
        raise UploadError("the gradient is not finite")
    gradient = torch.zeros(size)
    gradient[own] = torch.from_numpy(values)
    return Upload(gradient, own)


def _plan_key(plan: str) -> bytes:
    return hashlib.blake2b(plan.encode(), digest_size=8).digest()


def _checksum(fields: tuple[object, ...], body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0)))


def _encode_indices(kept: NDArray[np.bool_]) -> tuple[int, bytes]:
    bitmap = np.packbits(kept).tobytes()
    gaps = _encode_gaps(np.flatnonzero(kept))
    return (GAPS, gaps) if len(gaps) < len(bitmap) else (BITMAP, bitmap)


def _decode_indices(kind: int, indices: bytes, size: int, kept: int, mask: Tensor | None) -> Tensor:
    if kind == NESTED:
        if indices:
            raise UploadError(f"the upload is {len(indices)} bytes too long")
        if mask is None or mask.shape != (size,):
            raise MaskMismatchError("the upload has no indices, and no mask was rebuilt for it")
        return mask.detach().cpu().bool()
    if kind == BITMAP:
        if len(indices) != (size + 7) // 8:
            raise UploadError(f"a bitmap of {size} parameters has {(size + 7) // 8} bytes, not {len(indices)}")
        bits = np.unpackbits(np.frombuffer(indices, dtype=np.uint8))
        if bits[size:].any():
            raise UploadError("the bitmap keeps parameters beyond the model's last")
        return torch.from_numpy(bits[:size].astype(bool))
    if kind != GAPS:
        raise UploadError(f"indices are coded in no known way ({kind})")
    positions = _decode_gaps(indices)
    if len(positions) != kept or (kept and positions[-1] >= size):
        raise UploadError(f"the indices are not {kept} positions below {size}")
    own = torch.zeros(size, dtype=torch.bool)
    own[torch.from_numpy(positions)] = True
    return own


def _encode_gaps(positions: NDArray[np.int64]) -> bytes:
    """Ascending positions as the gaps between them, seven bits a byte, low bits first, the last byte below 128."""
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
        raise UploadError("the indices break off")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 5:
        raise UploadError("an index gap is longer than five bytes")
    place = np.arange(raw.size) - np.repeat(starts, lengths)
    gaps = np.add.reduceat((raw & 0x7F) << (7 * place), starts)
    return np.asarray(np.cumsum(gaps + 1) - 1, dtype=np.int64)
