"""Parts for readers of archives and compressed files: the archive that is held, safe names, limits, clear errors.

Role: the base of TarArchiveLoader, ZipArchiveLoader and RarArchiveLoader, and the checks that they share with the pipes
that decompress. Runs in the process that iterates the pipes. An archive object owns the stream that it reads; members
refer to their archive and are opened again through it (see `utils/_streams.py`).
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

from torchdata._redacting import shown
from torchdata.datapipes._pipe.given_length import GivenLength
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes.iter.streams.pairs import HoldsStream, source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper, detached
from torchdata.datapipes.utils.names import path_inside

try:
    from lzma import LZMAError
except ImportError:  # Python was built without it, so there is none to meet
    LZMAError = EOFError  # type: ignore[misc, assignment]

#: How many times larger than its compressed form a file may become, if it becomes larger than `SMALLEST_BOMB`.
MAX_RATIO = 100.0

#: Bytes below which nothing is taken for a decompression bomb.
SMALLEST_BOMB = 1 << 30

#: The errors of the modules that decompress, for damaged data.
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, OverflowError, zlib.error, struct.error, LZMAError)

_ADVICE = "the archive is truncated, damaged or of another kind"
_NO_WAY_BACK = "a streamed archive cannot go back: read members before going on, or use a seekable file"


class Refused(OSError):
    """A member or stream that is not read, because it could do harm. Raised to the user as the format's own error."""


def check_max_ratio(pipe: str, value: Any) -> float | None:
    """The limit `value`, or None for no limit.

    Raises:
        ValueError: it is not a number from 1 on.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
        raise ValueError(f"{pipe}: max_ratio must be a number of at least 1, or None for no limit, but got {value!r}")
    return float(value)


def refuse_bomb(size: int, compressed: int, max_ratio: float | None) -> None:
    """Raises Refused if `size` bytes out of `compressed` ones are more than any ordinary file has."""
    if max_ratio is None or size <= SMALLEST_BOMB or size <= max_ratio * max(compressed, 1):
        return
    raise Refused(
        f"it looks like a decompression bomb, {size} bytes or more out of {compressed} (max_ratio={max_ratio:g}); if "
        "you trust it, pass a larger max_ratio, or None"
    )


def folder_of(path: str) -> str:
    """The prefix that the paths of the members of the archive `path` have in common."""
    folder = os.path.normpath(path)
    return "" if folder == os.curdir else os.path.join(folder, "")


def path_in(folder: str, name: str) -> str:
    """The path of the member `name` of an archive, which lies in the archive's `folder` in any case.

    Leading slashes are dropped, as `tar` and `unzip` do.

    Raises:
        Refused: the name leads out of the folder.
    """
    try:
        return folder + path_inside(name)
    except ValueError:
        raise Refused(f"the name of its member {name!r} leads out of the archive's folder") from None


def seekable(stream: Any) -> bool:
    """Whether the stream reports that it can seek."""
    return bool(hasattr(stream, "seekable") and stream.seekable())


def position(stream: Any) -> int | None:
    """The position of the stream, or None if it is not known."""
    try:
        offset: int = stream.tell()
    except (OSError, ValueError, AttributeError):
        return None
    return offset


def refuse_text(pipe: object, path: str, stream: Any) -> None:
    """Raises TypeError if the stream is one of text, which no archive is read from."""
    file_obj = stream.__dict__.get("file_obj") if isinstance(stream, StreamWrapper) else stream
    if isinstance(file_obj, io.TextIOBase):
        raise TypeError(
            f"{type(pipe).__name__} reads bytes, but {shown(path)} was opened as text, as open_files() does unless it "
            'is told otherwise; write open_files("b")'
        )


def seeks_cheaply(file_obj: Any) -> bool:
    """Whether going back costs next to nothing: not if it means to decompress from the start."""
    return bool(getattr(getattr(file_obj, "raw", None), "seeks_cheaply", True))


def bare(stream: Any) -> Any:
    """The file object in a wrapper: asking it directly spares a detour by `__getattr__` for every call."""
    if getattr(stream, "closed", False):
        raise ValueError(f"the stream {stream!r} of the archive is closed")
    return stream.file_obj if isinstance(stream, StreamWrapper) else stream


def is_damage(error: Exception) -> bool:
    """Whether the error comes from the data, and not from the operating system or the code."""
    if isinstance(error, OSError):  # damage to gzip and bzip2 files has no number; EINVAL comes of a wrong offset
        return error.errno in (None, errno.EINVAL) and type(error).__module__ in ("builtins", "gzip")
    return isinstance(error, DAMAGE) or type(error).__name__ == "ZstdError"  # of whichever module there is


def explained(kind: type[Exception], what: str, error: Exception) -> Exception:
    """The error to raise for `error`: one that names the archive. An error that does not come from damaged data keeps
    its type.

    It is returned, because a frame that holds the error which it raises is a cycle, and would keep open the files of
    all frames on the error's way until the garbage collector comes.
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


class Counted:
    """A compressed stream from its present position, which counts the bytes that were read."""

    def __init__(self, file_obj: Any) -> None:
        self._file_obj = file_obj
        self._start = position(file_obj) or 0
        #: Bytes that were looked at and not read yet.
        self._ahead = b""
        #: Bytes from the start to the position of the stream.
        self.count = 0

    def look(self, size: int) -> bytes:
        """The next bytes, which are still to be read."""
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
    """An open archive: owns the stream that it reads, and opens it again if it was pickled."""

    def __init__(self, path: str, source: Any, start: int | None = None) -> None:
        self.path = path
        self.source = source
        #: The offset at which the archive begins in its stream; None if it is not known.
        self.start = position(source) if start is None else start

        #: Stands in for the source when the archive is pickled, which may be after the source was closed. A file
        #: in memory has none, because it would be copied.
        file_obj = source.__dict__.get("file_obj") if isinstance(source, StreamWrapper) else source
        stand_in = source if isinstance(file_obj, io.BytesIO) else detached(source, self.start)
        self._stand_in = stand_in if stand_in is not source else None

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._stand_in or detached(self.source, self.start)
        return type(self), (self.path, source, self.start, *self._settings())

    def _settings(self) -> tuple[Any, ...]:
        return ()

    @property
    def parent(self) -> StreamWrapper | None:
        """The wrapper that counts the open members."""
        return self.source if isinstance(self.source, StreamWrapper) else None


class MemberFile(io.RawIOBase):
    """The bytes of one member, read from another file object."""

    def __init__(self, archive: Any, name: str, file_obj: Any) -> None:
        self._archive: Any = archive
        self._name: str = name
        self._file_obj: Any = file_obj

    @property
    def name(self) -> str:
        """The member's name in the archive."""
        return self._name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return seekable(self._file_obj)


class Entry(MemberFile):
    """The bytes of one member, read by another library's file object; errors name member, archive and pipe."""

    def __init__(self, archive: Any, key: Any, name: str, file_obj: Any, cheap: bool) -> None:
        super().__init__(archive, name, file_obj)
        self._key, self.seeks_cheaply = key, cheap

    def recipe(self) -> EntryRecipe:
        """How the member is opened again."""
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
    """Which entry of its archive a member is."""

    __slots__ = ("archive", "key")

    def __init__(self, archive: Any, key: Any) -> None:
        self.archive, self.key = archive, key

    def open(self) -> Any:
        """Opens the archive, if it is not yet, and the member."""
        return self.archive.open_entry(self.key)

    def __repr__(self) -> str:
        return f"entry {self.key} of {shown(self.archive.path)}"


class ArchiveLoader(GivenLength, HoldsStream[tuple[str, StreamWrapper]]):
    """The base of the loaders: an archive that is open while its pair is held."""

    datapipe: Any
    max_ratio: float | None
    _archive: Any = state(saved=False)

    def __init__(
        self,
        datapipe: Iterable[tuple[str, Any]],
        length: int = -1,
        *,
        max_ratio: float | None = MAX_RATIO,
    ) -> None:
        self.datapipe = source_pipe(datapipe, self)
        self._set_length(length)
        self.max_ratio = check_max_ratio(type(self).__name__, max_ratio)

    def _source(self) -> Any:
        return self.datapipe

    def _place_of(self, archive: Any) -> Any:
        """The position in the archive after the last yielded member."""
        raise NotImplementedError

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        archive = self._archive
        if archive is None or archive.source is not stream:  # it failed to open
            return detached(stream), self._place
        return detached(stream, archive.start), self._place_of(archive)

    def _release(self, stream: Any) -> None:
        if self._archive is not None and self._archive.source is stream:
            self._archive = None
        if isinstance(stream, StreamWrapper):  # the maker of a bare stream closes it: members may still read it
            stream.autoclose()


class IndexedArchive(Archive):
    """An archive with a directory of its members, which is read as a whole."""

    def __init__(self, path: str, source: Any, start: int | None = None) -> None:
        super().__init__(path, source, start)
        #: Index of the entry after the last one that was yielded.
        self.next = 0

    def entries(self) -> list[Any]:
        """The directory. Entries have a `filename`."""
        raise NotImplementedError

    def open_entry(self, index: int) -> Any:
        """Opens the entry `index` of the directory."""
        raise NotImplementedError


class IndexedLoader(ArchiveLoader):
    """A loader of archives with a directory. Its position in an archive is an index of the directory."""

    def _open(self, path: str, stream: Any) -> IndexedArchive:
        """The archive in a stream."""
        raise NotImplementedError

    def _is_file(self, entry: Any) -> bool:
        """Whether an entry is a member to yield: no folder and no link."""
        raise NotImplementedError

    def _check(self, entry: Any) -> None:
        """Raises an error for a member that cannot or must not be read."""
        raise NotImplementedError

    def _error_of_archive(self, path: str, error: Exception) -> Exception:
        """The error to raise for one that reading the archive met."""
        raise NotImplementedError

    def _place_of(self, archive: IndexedArchive) -> int:
        return archive.next

    def _read(self, path: str, stream: Any, place: Any) -> Iterator[tuple[str, StreamWrapper]]:
        refuse_text(self, path, stream)
        try:
            archive = self._open(path, stream)
            entries, parent, folder = archive.entries(), archive.parent, folder_of(path)
            archive.next = place or 0
            self._archive = archive  # now that it is open and in its place
            size = compressed = 0  # of the archive as a whole, up to a member
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
            raise self._error_of_archive(path, error)
