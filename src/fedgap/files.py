"""Write files atomically, read JSON Lines with an incomplete last line, and lock folders."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedgap.errors import InputError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""Lock file in a folder that a process uses, with its process id and its command."""
_HELD: set[Path] = set()
"""Folders that this process has locked."""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR,
         errno.EISDIR, errno.ENAMETOOLONG}
"""Error numbers of problems with a disk or a path, which users can solve."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old file or the new one, never a part of it.

    The data goes to a temporary file beside ``path``, reaches the disk (fsync), and then takes the file's name.
    """
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:  # on a full disk, remove the incomplete file
        with suppress(OSError):
            temporary.unlink()
        if error.errno is not None:
            error.filename = str(path)  # an error of ``write`` does not name the file
        raise
    _sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8. As with :func:`write_bytes`, a crash never leaves an incomplete file."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Write a value as JSON. As with :func:`write_bytes`, a crash never leaves an incomplete file."""
    write_text(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def remove_torn(folder: Path) -> None:
    """Remove all temporary files in ``folder`` and below that :func:`write_bytes` left when its process was killed."""
    for part in folder.rglob(".*.part"):
        part.unlink()


def whole_lines(data: bytes) -> bytes:
    """Return ``data`` up to its last newline. The rest is incomplete, even if it happens to be valid JSON."""
    return data[:data.rfind(b"\n") + 1]


def read_json_lines(path: str | Path) -> list[Any]:
    """Read one JSON value per line; an incomplete last line, as a killed writer may leave it, is ignored."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return list(parse_json_lines(whole_lines(data), path))


def parse_json_lines(whole: bytes, path: str | Path) -> Iterator[Any]:
    """Yield the JSON value of each line of ``whole``, which ends with a newline.

    The last line may be damaged, because a crash can leave zeros there, and is then ignored.

    :param path: the file, for the error message.
    """
    lines = whole.split(b"\n")[:-1]
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines):
                raise InputError(f"{path}: line {number} is damaged: it must be one JSON value") from None


def disk_error(error: OSError) -> str | None:
    """Return a message if the disk is full, read-only or unreachable; None for any other error, which is a bug."""
    if error.errno not in _DISK:
        return None
    return f"{error.filename or 'output'}: cannot be written or read ({error.strerror})"


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Lock a run's folder for this process, because two processes would corrupt its files.

    The folder is created if needed. The kernel releases the lock when the process ends, whatever the reason. A process
    that has locked the folder already may lock it again.
    """
    where, made = folder.resolve(), not folder.exists()
    if fcntl is None or where in _HELD:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be created ({error.strerror}); choose another folder") from None
    handle = _lock(folder)
    _HELD.add(where)
    try:
        yield
    finally:
        _HELD.discard(where)
        with suppress(OSError):  # before the lock is released, so that nobody locks a removed file
            (folder / LOCK).unlink()
        os.close(handle)
        if made:
            with suppress(OSError):
                folder.rmdir()  # succeeds only if nothing was written into it


def _lock(folder: Path) -> int:
    """Lock the folder and return the handle of its lock file."""
    while True:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder, _, command = os.read(handle, 1000).decode(errors="replace").partition(" ")
            os.close(handle)
            raise InputError(f"{folder}: process {holder or 'unknown'} is using this folder ({command.strip()}); wait "
                             "until it ends, stop it, or choose another folder") from None
        except OSError:  # a file system without locks
            return handle
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(folder / LOCK)):
                os.truncate(handle, 0)
                os.write(handle, f"{os.getpid()} {shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:900]}".encode())
                return handle
        os.close(handle)  # the previous owner has removed the file in the meantime


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
