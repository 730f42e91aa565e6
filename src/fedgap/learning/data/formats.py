"""Readers of two classical file formats: IDX (MNIST's) and CIFAR-10's binary batches."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import tarfile
from pathlib import Path

import numpy as np

from fedgap.errors import InputError

CIFAR_RECORD = 1 + 3 * 32 * 32
"""Bytes of one CIFAR-10 record: a label, then red, green and blue planes of 32 x 32."""


def unzipped(path: Path) -> bytes:
    """The bytes of a file, unzipped if it is a gzip file."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        raise InputError(f"data: {path} cannot be read ({error}); put an undamaged copy there") from None


def check(data: bytes, sha256: str, path: Path) -> bytes:
    """Return ``data`` if its SHA-256 is the expected one; otherwise raise an error that names the file."""
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(f"data: {path} is not the original file (the SHA-256 of its unzipped bytes differs); "
                         "put an undamaged copy there")
    return data


def idx(data: bytes, path: Path) -> np.ndarray:
    """Read an array of unsigned bytes from IDX data: magic 0, 0, 8, rank; then each dimension big-endian; then the
    values."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise InputError(f"data: {path} must be an IDX file of unsigned bytes; its first bytes are different")
    rank = data[3]
    if len(data) < 4 + 4 * rank:
        raise InputError(f"data: {path} is incomplete: it ends inside its header; put an undamaged copy there")
    shape = struct.unpack(f">{rank}I", data[4:4 + 4 * rank])
    if len(data) != 4 + 4 * rank + math.prod(shape):
        raise InputError(f"data: {path} does not have the length of the shape {shape} in its header; put an undamaged "
                         "copy there")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def cifar(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images (n, 3, 32, 32) and labels (n,) in the data of one binary batch, both unsigned bytes."""
    if len(data) == 0 or len(data) % CIFAR_RECORD:
        raise InputError(f"data: {path} must be a CIFAR-10 binary batch, whose length is a multiple of {CIFAR_RECORD} "
                         "bytes")
    records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def members(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The bytes of the named files in a ``.tar.gz``, in whatever folder of it they are; nothing is written to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                if member.isfile() and name in names:
                    file = archive.extractfile(member)
                    assert file is not None  # isfile() holds
                    found[name] = file.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        raise InputError(f"data: {path} cannot be read ({error}); put an undamaged copy there") from None
    return found
