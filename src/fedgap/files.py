"""Files that are whole or absent, JSON Lines that a killed writer may have left torn, and folders with one user."""

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
"""In a folder that a process holds: its id and its command."""
_HELD: set[Path] = set()
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR,
         errno.EISDIR, errno.ENAMETOOLONG}


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
    except OSError as error:  # a full disk: do not leave the part there, which would fill it further
        with suppress(OSError):
            temporary.unlink()
        if error.errno is not None:
            error.filename = str(path)  # an error of ``write`` names no file
        raise
    _sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, as :func:`write_bytes` does."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Write a JSON document, as :func:`write_bytes` does."""
    write_text(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def remove_torn(folder: Path) -> None:
    """Remove what writers that were killed left behind anywhere in ``folder``."""
    for part in folder.rglob(".*.part"):
        part.unlink()


def whole_lines(data: bytes) -> bytes:
    """``data`` up to its last newline. What follows is torn, even where it happens to be valid JSON."""
    return data[:data.rfind(b"\n") + 1]


def read_json_lines(path: str | Path) -> list[Any]:
    """Read one JSON value per line; a torn last line, which a killed writer leaves, is dropped."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return list(parse_json_lines(whole_lines(data), path))


def parse_json_lines(whole: bytes, path: str | Path) -> Iterator[Any]:
    """The values of whole lines; the last line may be damaged (a crash can leave zeros there) and is then dropped."""
    lines = whole.split(b"\n")[:-1]
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines):
                raise InputError(f"{path}: line {number} is not JSON") from None


def disk_error(error: OSError) -> str | None:
    """A sentence for a disk that is full, read-only or out of reach; None for any other error, which is a bug."""
    if error.errno not in _DISK:
        return None
    return f"{error.filename or 'output'}: cannot be written or read ({error.strerror})"


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold a run's folder for this process: two processes that used it would garble its files.

    The folder is made where there is none. The kernel releases the lock when the process ends, however that happens.
    A process that holds the folder already may hold it again.
    """
    where, made = folder.resolve(), not folder.exists()
    if fcntl is None or where in _HELD:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from None
    handle = _lock(folder)
    _HELD.add(where)
    try:
        yield
    finally:
        _HELD.discard(where)
        with suppress(OSError):  # first the name, then the lock: nobody else may lock a file that is about to go
            (folder / LOCK).unlink()
        os.close(handle)
        if made:
            with suppress(OSError):
                folder.rmdir()  # where nothing was written into it


def _lock(folder: Path) -> int:
    """The handle of the folder's locked file."""
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
        os.close(handle)  # whoever held it took the file away in the meantime


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
