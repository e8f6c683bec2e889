"""Code that the readers of archives and compressed files share: open archives, safe names, size limits and error
messages.

An `Archive` owns the stream that it reads. A member refers to its `Archive`, which can reopen the member (see
`utils/_streams.py`).
"""

from __future__ import annotations

import errno
import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from torchdata._handlers import is_of_handler
from torchdata._redacting import shown
from torchdata._reporting import name_item
from torchdata.datapipes._pipe.declared_length import DeclaredLength
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes.iter.streams.pairs import HoldsStream, position_of, source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper, detached
from torchdata.datapipes.utils.names import path_inside

try:
    from lzma import LZMAError
except ImportError:  # this Python was built without the module
    LZMAError = EOFError  # type: ignore[misc, assignment]

#: The largest allowed ratio of decompressed to compressed size, for files larger than `SMALLEST_BOMB`.
MAX_RATIO = 100.0

#: Files with less than `SMALLEST_BOMB` bytes never count as decompression bombs.
SMALLEST_BOMB = 1 << 30

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, OverflowError, zlib.error, struct.error, LZMAError)

_ADVICE = "the archive is truncated, damaged or of another kind"
_NO_WAY_BACK = "a streamed archive cannot go back: read each member before the next, or use a seekable file"


class Refused(OSError):
    """Raised for a member or stream that would be dangerous to read. The caller raises an error of the
    archive's format instead."""


def check_max_ratio(pipe: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
        raise ValueError(f"{pipe}: max_ratio must be a number of at least 1, or None for no limit, but got {value!r}")
    return float(value)


def refuse_bomb(size: int, compressed: int, max_ratio: float | None) -> None:
    if max_ratio is None or size <= SMALLEST_BOMB or size <= max_ratio * max(compressed, 1):
        return
    raise Refused(
        f"it looks like a decompression bomb, {size} bytes or more out of {compressed} (max_ratio={max_ratio:g}); if "
        "you trust it, pass a larger max_ratio, or None"
    )


def folder_of(path: str) -> str:
    """Returns the archive's path as a folder, which is the beginning of the paths of all members."""
    folder = os.path.normpath(path)
    return "" if folder == os.curdir else os.path.join(folder, "")


def path_in(folder: str, name: str) -> str:
    """Returns the path of the member `name`. Leading slashes of the name are dropped, as by `tar` and `unzip`."""
    try:
        return folder + path_inside(name)
    except ValueError:
        raise Refused(f"the name of its member {name!r} leads out of the archive's folder") from None


def seekable(stream: Any) -> bool:
    return bool(hasattr(stream, "seekable") and stream.seekable())


def refuse_text(pipe: object, path: str, stream: Any) -> None:
    file_obj = stream.__dict__.get("file_obj") if isinstance(stream, StreamWrapper) else stream
    if isinstance(file_obj, io.TextIOBase):
        raise TypeError(
            f"{type(pipe).__name__} reads bytes, but {shown(path)} was opened as text, which is the default of "
            'open_files(); write open_files("b")'
        )


def seeks_cheaply(file_obj: Any) -> bool:
    """Returns whether seeking back is fast: whether it works without decompressing the file from the start."""
    return bool(getattr(getattr(file_obj, "raw", None), "seeks_cheaply", True))


def bare(stream: Any) -> Any:
    """Returns the file object inside a wrapper, because reading directly from the file object is faster."""
    if getattr(stream, "closed", False):
        raise ValueError(f"the stream {stream!r} of the archive is closed")
    return stream.file_obj if isinstance(stream, StreamWrapper) else stream


def is_damage(error: Exception) -> bool:
    """Returns whether damaged data caused the error, rather than the operating system or a bug."""
    if is_of_handler(error):
        return False
    # Damaged gzip and bzip2 files cause errors without `errno`. An invalid offset in a damaged archive causes EINVAL.
    if isinstance(error, OSError):
        return error.errno in (None, errno.EINVAL) and type(error).__module__ in ("builtins", "gzip")
    return isinstance(error, DAMAGE) or type(error).__name__ == "ZstdError"  # several modules define this class


def explained(kind: type[Exception], what: str, error: Exception) -> Exception:
    """Returns an error that names the archive. If `error` does not report damaged data, returns `error` itself with a
    note.

    The caller raises the result. Raising the error in this function would form a reference cycle, which keeps files
    open until garbage collection.
    """
    if isinstance(error, Refused):
        refusal = kind(f"will not read {what}: {error}")
        refusal.__suppress_context__ = True
        return refusal
    if not isinstance(error, tarfile.StreamError) and not is_damage(error):
        error.add_note(f"This happened while reading {what}.")
        return error
    advice = _NO_WAY_BACK if isinstance(error, tarfile.StreamError) else _ADVICE
    damage = kind(f"cannot read {what}: {error or type(error).__name__} ({advice})")
    damage.__cause__ = error
    return damage


class CountedStream:
    def __init__(self, file_obj: Any) -> None:
        self._file_obj = file_obj
        self._start = position_of(file_obj) or 0
        #: Bytes that `look` has read and `read` has not returned yet.
        self._ahead = b""
        self.count = 0

    def look(self, size: int) -> bytes:
        while len(self._ahead) < size and (more := self._file_obj.read(size - len(self._ahead))):
            self._ahead += more
        return self._ahead

    def read(self, size: int = -1) -> bytes:
        data: bytes
        if self._ahead and (size is None or size < 0):
            data, self._ahead = self._ahead + self._file_obj.read(), b""
        elif self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
        else:
            data = self._file_obj.read(size)
        self.count += len(data)
        return data

    def seekable(self) -> bool:
        return seekable(self._file_obj)

    def tell(self) -> int:
        return self.count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset, whence = self.count + offset, os.SEEK_SET
        if whence == os.SEEK_SET:
            offset += self._start
        self._ahead = b""
        self.count = self._file_obj.seek(offset, whence) - self._start
        return self.count


class Archive:
    """An open archive. An unpickled archive reopens its stream."""

    def __init__(self, path: str, source: Any, start: int | None = None) -> None:
        self.path = path
        self.source = source
        #: The offset of the archive's first byte in its stream; None if unknown.
        self.start = position_of(source) if start is None else start

        #: A placeholder that reopens the stream after unpickling, even if the stream was closed before pickling. The
        #: placeholder is None for an in-memory file, which cannot be reopened.
        file_obj = source.__dict__.get("file_obj") if isinstance(source, StreamWrapper) else source
        placeholder = source if isinstance(file_obj, io.BytesIO) else detached(source, self.start)
        self._placeholder = placeholder if placeholder is not source else None

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._placeholder or detached(self.source, self.start)
        return type(self), (self.path, source, self.start, *self._settings())

    def _settings(self) -> tuple[Any, ...]:
        return ()

    @staticmethod
    def error_of(what: str, error: Exception) -> Exception:
        raise NotImplementedError

    def explained(self, name: str, error: Exception) -> Exception:
        explained = self.error_of(f"{name!r} of {shown(self.path)}", error)
        return name_item(explained, path_in(folder_of(self.path), name))

    @property
    def parent(self) -> StreamWrapper | None:
        """The `StreamWrapper` around the archive's stream, which counts the open members."""
        return self.source if isinstance(self.source, StreamWrapper) else None


class MemberFile(io.RawIOBase):
    _file_obj: Any = io.BytesIO()  # Python also closes an object whose `__init__` has raised an exception

    def __init__(self, archive: Any, name: str, file_obj: Any) -> None:
        self._archive: Any = archive
        self._name: str = name
        self._file_obj = file_obj

    @property
    def name(self) -> str:
        return self._name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return seekable(self._file_obj)


class LibraryMember(MemberFile):
    """A member that a library such as `rarfile` opens. Errors name the member, the archive and the pipe."""

    def __init__(self, archive: Any, key: Any, name: str, file_obj: Any, cheap: bool) -> None:
        super().__init__(archive, name, file_obj)
        self._key, self.seeks_cheaply = key, cheap

    def recipe(self) -> EntryRecipe:
        return EntryRecipe(self._archive, self._key)

    def tell(self) -> int:
        return int(self._file_obj.tell())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            reached: int = self._file_obj.seek(offset, whence)
        except Exception as error:
            raise self._archive.explained(self._name, error)
        return reached

    def _content(self, size: int) -> bytes:
        try:
            data: bytes = self._file_obj.read(size)
        except Exception as error:
            raise self._archive.explained(self._name, error)
        return data

    def readall(self) -> bytes:
        return self._content(-1)

    def readinto(self, buffer: Any) -> int:
        data = self._content(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file_obj.close()


class EntryRecipe:
    __slots__ = ("archive", "key")

    def __init__(self, archive: Any, key: Any) -> None:
        self.archive, self.key = archive, key

    def open(self) -> Any:
        return self.archive.open_entry(self.key)

    def __repr__(self) -> str:
        return f"entry {self.key} of {shown(self.archive.path)}"


class LimitedFiles(DeclaredLength):
    """The base class of pipes with the arguments `length` and `max_ratio`. `LimitedFiles` must precede IterDataPipe in
    the list of base classes."""

    def __init__(
        self, datapipe: Iterable[tuple[str, Any]], length: int = -1, *, max_ratio: float | None = MAX_RATIO
    ) -> None:
        self.datapipe: Any = source_pipe(datapipe, self)
        self._set_length(length)
        self.max_ratio = check_max_ratio(type(self).__name__, max_ratio)


class ArchiveLoader(LimitedFiles, HoldsStream[tuple[str, StreamWrapper]]):
    """Yields the members of archives. An archive stays open while one of the yielded streams refers to it."""

    _archive: Any = state(saved=False)

    def _point_of(self, archive: Any) -> Any:
        raise NotImplementedError

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        archive = self._archive
        if archive is None or archive.source is not stream:  # the archive could not be opened
            return detached(stream), self._point
        return detached(stream, archive.start), self._point_of(archive)

    def _release(self, stream: Any) -> None:
        if self._archive is not None and self._archive.source is stream:
            self._archive = None
        # A `StreamWrapper` counts its open members, and closes the stream when the last member is closed. A stream
        # without a `StreamWrapper` stays open, because nothing counts its open members.
        if isinstance(stream, StreamWrapper):
            stream.autoclose()


class IndexedArchive(Archive):
    """An archive that contains a list of its members (a *directory*), which is read when the archive is opened."""

    next = 0

    def entries(self) -> list[Any]:
        raise NotImplementedError

    def open_entry(self, index: int) -> Any:
        raise NotImplementedError


class IndexedLoader(ArchiveLoader):
    """Reads archives that contain a list of their members. A saved position is an index in the archive's list of
    members."""

    _point: Any = checked_state((int, None))
    _format: str
    _opens: type[IndexedArchive]

    def _is_file(self, entry: Any) -> bool:
        raise NotImplementedError

    def _check(self, entry: Any) -> None:
        refuse_bomb(entry.file_size, entry.compress_size, self.max_ratio)

    def _point_of(self, archive: IndexedArchive) -> int:
        return archive.next

    def _read(self, path: str, stream: Any, point: Any) -> Iterator[tuple[str, StreamWrapper]]:
        refuse_text(self, path, stream)
        try:
            archive = self._opens(path, stream)
            entries, parent, folder = archive.entries(), archive.parent, folder_of(path)
            archive.next = point or 0
            self._archive = archive  # the attribute is set once the archive is open and positioned
            size = compressed = 0  # the sums over all members up to the current member
            for index, entry in enumerate(entries):
                size, compressed = size + entry.file_size, compressed + entry.compress_size
                if index < archive.next:
                    continue
                archive.next = index + 1
                if self._is_file(entry):
                    name = path_in(folder, entry.filename)
                    self._check(entry)
                    refuse_bomb(size, compressed, self.max_ratio)
                    yield name, StreamWrapper(archive.open_entry(index), parent, name)
        except Exception as error:
            raise self._opens.error_of(f"the {self._format} archive {shown(path)}", error)
