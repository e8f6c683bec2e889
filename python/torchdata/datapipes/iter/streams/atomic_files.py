"""Writes a file atomically, so that no process sees a partial file.

Pipes that save files write a temporary file in the final folder, and `appearing` renames this file. The pipe
`end_caching` uses `write_file`, which also verifies a checksum and calls `fsync`. `write_file` derives the temporary
name from the final name, so the next writer replaces the temporary file of a killed writer.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Any

from torchdata._handlers import FailuresSuppressed
from torchdata._redacting import shown

_CHUNK = 1 << 20


@contextlib.contextmanager
def appearing(path: str, *, replace: bool, ending: str = ".part") -> Iterator[str]:
    """Yields a temporary path, where the caller writes a local file, and then renames the file to `path`. After an
    error, the temporary file is removed.

    A file that is not regular, such as a named pipe, is written directly.

    Args:
        path: the final path; links are followed.
        replace: whether an existing file is replaced; otherwise, it stays unchanged.
    """
    path = os.path.realpath(path)
    existing: os.stat_result | None = None
    with FailuresSuppressed(OSError):
        existing = os.stat(path)
    if existing is not None and not stat.S_ISREG(existing.st_mode):
        yield path
        return
    temporary = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}{ending}")
    try:
        yield temporary
        if replace:
            if existing is not None:
                os.chmod(temporary, stat.S_IMODE(existing.st_mode))
            os.replace(temporary, path)
        else:
            _move_unless_there(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _move_unless_there(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError:  # the file system does not support hard links
        if not os.path.exists(target):
            os.replace(source, target)


def temporary_name(path: str, ending: str = ".part") -> str:
    import hashlib

    folder, name = os.path.split(path)
    digest = hashlib.blake2b(os.fsencode(name), digest_size=10).hexdigest()
    return os.path.join(folder, f".torchdata-{digest}{ending}")


def digest_of_file(path: str, hash_type: str) -> str:
    import hashlib

    with open_regular(path, follow=True) as file:
        return hashlib.file_digest(file, hash_type).hexdigest()


def open_regular(path: str, *, follow: bool = False) -> io.BufferedReader:
    """Opens a file for reading, in a folder into which other users may write.

    Args:
        follow: whether the file may be a link.

    Raises:
        OSError: the file cannot be opened or is not regular. Opening a named pipe raises OSError instead of waiting for
            a writer.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    file = open(os.open(path, flags), "rb")  # noqa: SIM115  # the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file


def create_new(path: str, mode: str = "wb") -> Any:
    """Opens a new file for writing. If `path` exists, for example as a malicious link, it is replaced."""
    exclusive = mode.replace("w", "x")  # "x" means O_EXCL, which does not follow links
    try:
        return open(path, exclusive)
    except FileExistsError:
        os.unlink(path)
        return open(path, exclusive)


def write_file(
    path: str, data: Any, mode: str, *, alone: bool, expected: str | None = None, hash_type: str = "sha256"
) -> None:
    """Writes `data` to `path`, completely or not at all, and replaces an existing file.

    Args:
        data: the contents of the file: bytes or text, an open stream (read in pieces and closed), or an iterable of
            pieces.
        alone: whether the caller has locked the path. If the path is not locked, the temporary file has a unique name,
            because other processes may write the same file.
        expected: the checksum that the contents must have.
    """
    os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
    temporary = temporary_name(path)
    if not alone:
        temporary = f"{temporary}-{os.urandom(8).hex()}"
    try:
        with create_new(temporary, mode) as file:
            digest = _fill(file, path, data, mode, hash_type if expected is not None else None)
            file.flush()
            now = time.time_ns()  # file times of the kernel may be some milliseconds older than this clock
            os.utime(file.fileno(), ns=(now, now))
            os.fsync(file.fileno())
        if expected is not None and digest != expected.lower():
            raise RuntimeError(
                f"The computed hash {digest} of {path} does not match the expected hash {expected}. Nothing was saved; "
                "check whether the source is intact, or correct hash_dict"
            )
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        if hasattr(data, "close"):
            data.close()


def _fill(file: Any, path: str, data: Any, mode: str, hash_type: str | None) -> str | None:
    import hashlib

    checksum = hashlib.new(hash_type) if hash_type is not None else None
    wanted: Any = (bytes, bytearray, memoryview) if "b" in mode else (str,)
    for piece in _pieces(data):
        if not isinstance(piece, wanted):
            raise TypeError(
                f"mode {mode!r} writes {'bytes' if 'b' in mode else 'text'}, but the data for {shown(path)} is of type "
                f"{type(piece).__name__}; pass mode={'wt' if 'b' in mode else 'wb'!r} to end_caching, or convert "
                "the data before it"
            )
        file.write(piece)
        if checksum is not None:
            checksum.update(piece.encode(file.encoding) if isinstance(piece, str) else piece)
    return checksum.hexdigest() if checksum is not None else None


def _pieces(data: Any) -> Iterator[Any]:
    if hasattr(data, "read"):
        while piece := data.read(_CHUNK):
            yield piece
    elif isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray, memoryview, str)):
        yield from data
    else:
        yield data  # the caller rejects data that is neither bytes nor text
