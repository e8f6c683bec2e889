"""The pipe that reads tar archives: TarArchiveLoader.

A member is read on demand, so the archive's stream stays open until the last member is closed or dropped. Members that
were pickled together open their archive only once (see `utils/_streams.py`).
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torchdata import _native
from torchdata._redacting import shown
from torchdata.datapipes._pipe.state.declared import checked_state
from torchdata.datapipes.iter.archives.archive import (
    MAX_RATIO,
    SMALLEST_BOMB,
    Archive,
    ArchiveLoader,
    CountedStream,
    EntryRecipe,
    LibraryMember,
    MemberFile,
    bare,
    explained,
    folder_of,
    path_in,
    refuse_bomb,
    refuse_text,
    seekable,
    seeks_cheaply,
)
from torchdata.datapipes.iter.archives.decompressing import bzip2_reader, lzma_reader, zstd_reader
from torchdata.datapipes.iter.archives.forwards import Forwards, Pieces
from torchdata.datapipes.utils._streams import StreamWrapper, detached

__all__ = ["TarArchiveLoader", "open_tar"]

#: When the next member of a compressed or streamed archive is requested, an unread member of at most this size in bytes
#: is copied to memory.
LARGEST_KEPT_MEMBER = 64 << 20

#: The number of bytes to request at a time from a forward-only stream or its decompressor.
AT_ONCE = 64 << 10

#: The number of bytes of a large member to read at a time. Memory is not allocated for the whole member at once,
#: because the size in its header may be wrong.
PIECE = 16 << 20

#: Maximum total size in bytes of one member's headers: 1 MiB for their contents (long names, attributes), and 8 KiB for
#: the 512-byte blocks that precede the contents.
LARGEST_HEADERS = (1 << 20) + (8 << 10)

MOST_HEADERS = 100

#: Maximum number of records in the global headers of an archive, because `tarfile` copies these records for each
#: member.
MOST_GLOBAL_RECORDS = 1000

_LAST_OFFSET = (1 << 63) - 1

#: A resumed stream starts `BEFORE` bytes before a header, because `tarfile` reads the byte before the header.
BEFORE = 1

#: Maximum number of characters to quote from an error of `tarfile`.
_LONGEST_EXCERPT = 200


def _pieces_of(reader: Callable[[Any], Any]) -> Callable[[Any], Pieces]:
    return lambda source: partial(reader(source).read, AT_ONCE)


_pieces_of_plain = _pieces_of(lambda source: source)


#: For each compression, by its name in the argument `mode`: the first bytes of files with this compression, and the
#: function that decompresses the files.
_COMPRESSIONS: dict[str, tuple[tuple[bytes, ...], Callable[[Any], Pieces]]] = {
    "gz": ((b"\x1f\x8b",), lambda source: _native.GzipReader(source.read).read),
    "bz2": ((b"BZh",), _pieces_of(bzip2_reader)),
    "xz": ((b"\xfd7zXZ\0", b"]\0\0"), _pieces_of(lzma_reader)),
    "zst": ((b"\x28\xb5\x2f\xfd",), _pieces_of(zstd_reader)),
}


class _HeaderBytes:
    """A stream for reading headers, which raises an error if the headers of a member become too long."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        #: Bytes that `look` has read and `read` has not returned yet.
        self._ahead = b""
        self._left = LARGEST_HEADERS
        self._headers = 0
        self.failed = False

    def count(self) -> None:
        """Counts a header, and raises an error for too many headers, because `tarfile` recurses once per header."""
        self._headers += 1
        if self._headers > MOST_HEADERS + 1:
            raise tarfile.ReadError(f"a member has more than {MOST_HEADERS} headers")

    def check(self, size: int) -> None:
        """Checks the size of a header before `tarfile` tries to read it."""
        if not len(self._ahead) <= size <= self._left:
            raise tarfile.ReadError(f"the headers of a member take more than {LARGEST_HEADERS} bytes")

    def look(self, size: int) -> bytes:
        self.check(size)
        try:
            self._ahead += self._stream.read(size - len(self._ahead))
        except Exception:
            self.failed = True
            raise
        return self._ahead

    def read(self, size: int) -> bytes:
        data, self._ahead = self.look(size), b""
        self._left -= size
        return data

    def tell(self) -> int:
        return int(self._stream.tell()) - len(self._ahead)


#: Python's built-in exceptions that `tarfile` raises for invalid headers, in addition to the exceptions that `tarfile`
#: defines.
_HEADER_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class _Header(tarfile.TarInfo):
    """The headers of a member. A damaged header raises an error, whereas `tarfile` would treat it as the archive's end.

    A member may have several headers, such as a long name or extended attributes, so their number and their total size
    are limited.
    """

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> Any:
        stream = tarfile_.fileobj
        if isinstance(stream, _HeaderBytes):
            return super().fromtarfile(tarfile_)
        headers, offset = _HeaderBytes(stream), tarfile_.offset
        tarfile_.fileobj = headers
        try:
            info = super().fromtarfile(tarfile_)
            if info.size < 0 or not offset < tarfile_.offset <= _LAST_OFFSET:  # the next header must come later
                raise ValueError(f"its member has the invalid size {info.size}")
            return info
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            if not offset:
                raise
            raise tarfile.ReadError(f"{error} at byte {offset}") from error
        except _HEADER_ERRORS as error:
            tarfile_.offset = offset  # where the header begins, not what it claims
            if headers.failed:
                raise
            message = str(error)[:_LONGEST_EXCERPT] or type(error).__name__
            raise tarfile.ReadError(f"damaged header at byte {offset}: {message}") from error
        finally:
            tarfile_.fileobj = stream

    def _proc_member(self, tarfile_: Any) -> Any:
        """Counts a header. This method is overridden, because `tarfile` calls it for each header in all Python
        versions."""
        if isinstance(tarfile_.fileobj, _HeaderBytes):
            tarfile_.fileobj.count()
        return super()._proc_member(tarfile_)  # type: ignore[misc]

    def _proc_gnulong(self, tarfile_: Any) -> Any:
        tarfile_.fileobj.check(self._block(self.size))  # type: ignore[attr-defined]
        return super()._proc_gnulong(tarfile_)  # type: ignore[misc]

    def _proc_pax(self, tarfile_: Any) -> Any:
        """Checks an extended header before `tarfile` parses it in possibly quadratic time (CVE-2024-6232)."""
        body = tarfile_.fileobj.look(self._block(self.size))  # type: ignore[attr-defined]
        records = _native.tar_pax_records(body)
        if self.type == tarfile.XGLTYPE:
            tarfile_.count_global(records, len(body))
        return super()._proc_pax(tarfile_)  # type: ignore[misc]


class OpenTar(tarfile.TarFile):
    owned: Any = None
    #: Whether the archive is uncompressed, so that offsets in the archive are also offsets in its stream.
    plain = False
    _global_records = _global_bytes = 0

    def count_global(self, records: int, size: int) -> None:
        """Counts a global header. All global headers of an archive share one limit, because each global header applies
        to all later members."""
        self._global_records += records
        self._global_bytes += size
        if self._global_records > MOST_GLOBAL_RECORDS or self._global_bytes > LARGEST_HEADERS:
            raise tarfile.ReadError(
                f"its global headers hold more than {MOST_GLOBAL_RECORDS} records or {LARGEST_HEADERS} bytes"
            )

    def close(self) -> None:
        super().close()
        if self.owned is not None:
            self.owned.close()


def open_tar(file_obj: Any, mode: str = "r:*", max_ratio: float | None = None, header: int | None = None) -> OpenTar:
    """Opens a tar archive, plain or compressed, on a seekable or forward-only stream.

    Reading a compressed archive raises Refused if its decompressed size exceeds `max_ratio` times the number of
    compressed bytes read.

    Args:
        header: the offset of a member's header, to resume reading an uncompressed archive there; None (the default) to
            read from the start. Before the call, the stream must be moved to `BEFORE` bytes before the header, or to
            the start if `header` is 0.
    """
    tar: Any
    source: Any
    ahead, compression = "|" in mode or not seekable(file_obj), mode[2:] if len(mode) > 1 else "*"
    if header is not None:
        # Opening the real archive would make `tarfile` read a header, so an empty archive is opened, and its stream is
        # replaced by the stream of the real archive.
        tar = OpenTar.open(fileobj=io.BytesIO(bytes(2 * tarfile.BLOCKSIZE)), mode="r:", tarinfo=_Header)
        if header and not ahead:
            # Reading one byte here makes a buffered stream request this byte and the header together.
            file_obj.read(BEFORE)
        source = Forwards(_pieces_of_plain(file_obj), start=max(header - BEFORE, 0)) if ahead else file_obj
        tar.fileobj, tar.plain = source, True
        return tar  # type: ignore[no-any-return]
    counted, source = None, file_obj
    if compression:
        counted = source = CountedStream(file_obj)
        if compression == "*":
            first = counted.look(6)
            kinds = (kind for kind, (magic, _) in _COMPRESSIONS.items() if first.startswith(magic))
            compression = next(kinds, "")
        if not compression and counted.seekable():
            counted.seek(0)
            counted, source = None, file_obj
    if compression or ahead:
        source = _forwards(source, compression, ahead, max_ratio)
    tar = OpenTar.open(fileobj=source, mode="r:", tarinfo=_Header)
    tar.plain = not compression
    return tar  # type: ignore[no-any-return]


def _forwards(source: Any, compression: str, ahead: bool, max_ratio: float | None) -> Forwards:
    pieces_of = partial(_in_proportion, compression, max_ratio) if compression else _pieces_of_plain

    def rewind() -> Pieces:
        source.seek(0)
        return pieces_of(source)

    return Forwards(pieces_of(source), None if ahead else rewind)


def _in_proportion(compression: str, max_ratio: float | None, source: CountedStream) -> Pieces:
    """Returns a function that returns the next decompressed bytes of `source`, and raises an error for a decompression
    bomb. The decompressed size includes the members that the user skips."""
    next_piece, size = _COMPRESSIONS[compression][1](source), 0

    def piece() -> bytes:
        nonlocal size
        data = next_piece()
        size += len(data)
        if size > SMALLEST_BOMB:
            refuse_bomb(size, source.count, max_ratio)
        return data

    return piece


class _TarArchive(Archive):
    def __init__(
        self,
        path: str,
        source: Any,
        start: int | None = None,
        mode: str = "r:*",
        max_ratio: float | None = None,
        header: int | None = None,
    ) -> None:
        super().__init__(path, source, start)
        self.mode = mode
        self.max_ratio = max_ratio
        self._header = header
        #: The offset of the archive in the stream; None if the archive is compressed.
        self._base: int | None = None
        self._tar: tarfile.TarFile | None = None

    def _settings(self) -> tuple[Any, ...]:
        plain = self._base is not None or self._header is not None
        return self.mode, self.max_ratio, 0 if plain else None

    @property
    def tar(self) -> tarfile.TarFile:
        if self._tar is None:
            file_obj = bare(self.source)
            if not isinstance(file_obj, tarfile.TarFile):
                tar = open_tar(file_obj, self.mode, self.max_ratio, self._header)
                if tar.plain:
                    self._base = 0 if tar.fileobj is file_obj else self.start
                file_obj = tar
            self._tar = file_obj
        return self._tar

    @property
    def is_plain(self) -> bool:
        return self.tar.fileobj is bare(self.source)

    @property
    def offset(self) -> int | None:
        """The offset of the next member's header in the stream; None if it is unknown."""
        offset = self.tar.offset
        return offset + self._base if offset and self._base is not None else None

    @property
    def seeks_cheaply(self) -> bool:
        return self.is_plain and seeks_cheaply(self.tar.fileobj)

    def read(self, size: int) -> bytes:
        """Reads `size` bytes. If a large size is requested, the bytes are read in pieces, because a damaged archive may
        claim more bytes than it contains."""
        fileobj: Any = self.tar.fileobj
        if size <= SMALLEST_BOMB:
            data: bytes = fileobj.read(size)
            return data
        pieces = []
        while size and (piece := fileobj.read(min(size, PIECE))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _read_to_the_end(self) -> None:
        """Reads the archive to its end, so that the checksum of a compressed archive is verified."""
        fileobj: Any = self.tar.fileobj
        while not self.is_plain and fileobj.read(PIECE):
            pass

    @staticmethod
    def error_of(what: str, error: Exception) -> Exception:
        return explained(tarfile.ReadError, f"{what} in TarArchiveLoader", error)

    def open_entry(self, key: Any) -> Any:
        tar: Any = self.tar
        if isinstance(key, tuple):
            return io.BufferedReader(_TarMember(self, tar.fileobj, *key))
        position = tar.offset, tar.firstmember
        try:
            tar.offset, tar.firstmember = key, None
            return io.BufferedReader(_SparseMember(self, tar.next()))
        finally:
            tar.offset, tar.firstmember = position
            tar.members = []

    def next_file(self) -> tuple[str, Any] | None:
        tar: Any = self.tar
        fileobj = tar.fileobj
        at_hand = self.is_plain or isinstance(fileobj, Forwards)
        while True:
            if at_hand and tar.firstmember is None and not tar.pax_headers:
                fileobj.seek(tar.offset)
                # `tarfile` spends most of its time on parsing headers, so a native function parses the name and the
                # size if the member is a regular file.
                found = _native.tar_file_header(fileobj.read(tarfile.BLOCKSIZE))
                if found is not None:
                    (name, size), data = found, tar.offset + tarfile.BLOCKSIZE
                    tar.offset = data + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                    return name, io.BufferedReader(_TarMember(self, fileobj, name, data, size))
                if tar.offset:  # checks whether the archive is long enough
                    fileobj.seek(tar.offset - 1)
            info = tar.next()
            tar.members = []  # `tarfile` would keep every header
            if info is None:
                self._read_to_the_end()
                return None
            if not info.isreg():  # a folder, link or device, even if its header lists holes
                continue
            if info.issparse():
                return info.name, io.BufferedReader(_SparseMember(self, info))
            member = _TarMember(self, fileobj, info.name, info.offset_data, info.size)
            return info.name, io.BufferedReader(member)


class _TarMember(MemberFile):
    """An open member: equivalent to `tarfile.ExFileObject`, but faster. Each read first seeks in the archive, because
    all members read from one stream."""

    _archive: _TarArchive

    def __init__(self, archive: _TarArchive, fileobj: Any, name: str, offset: int, size: int) -> None:
        super().__init__(archive, name, fileobj)
        self._offset, self.size = offset, size
        self._position = 0

    def recipe(self) -> EntryRecipe:
        return EntryRecipe(self._archive, (self._name, self._offset, self.size))

    @property
    def seeks_cheaply(self) -> bool:
        """Whether seeking back in this member is fast; used if the member is itself read as an archive."""
        return self._archive.seeks_cheaply

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = min(max(base + offset, 0), self.size)
        return self._position

    def content(self, position: int, size: int) -> bytes:
        try:
            self._file_obj.seek(self._offset + position)
            data = self._archive.read(size)
            if len(data) != size:
                raise tarfile.ReadError("unexpected end of data")
        except Exception as error:
            raise self._archive.explained(self._name, error)
        return data

    def readall(self) -> bytes:
        data = self.content(self._position, self.size - self._position)
        self._position = self.size
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.content(self._position, min(len(buffer), self.size - self._position))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _SparseMember(LibraryMember):
    """A sparse file. An archive does not store the holes of a sparse file, so a few bytes can describe a file of any
    size."""

    def __init__(self, archive: _TarArchive, info: tarfile.TarInfo) -> None:
        super().__init__(archive, info.offset, info.name, archive.tar.extractfile(info), archive.seeks_cheaply)
        stored: Any = info.sparse
        self._size, self._stored = info.size, sum(size for _, size in stored)

    def readall(self) -> bytes:
        try:
            # `readall` must refuse a sparse file that is too large for memory, because it reads the whole file at once.
            refuse_bomb(self._size, self._stored, self._archive.max_ratio)
        except Exception as error:
            raise self._archive.explained(self._name, error)
        return super().readall()


class TarArchiveLoader(ArchiveLoader):
    """Reads tar archives, plain or compressed: yields pairs of path and stream, one per regular file.

    The path of a member is the archive's path joined with the member's name. Leading slashes in the name are dropped,
    and a name that leads out of the archive's folder is an error. Links are left out.

    Streams that cannot seek are read only forward. In a compressed archive or a forward-only stream, an unread member
    is copied to memory (up to 64 MiB) when the next member is requested.

    A resumed run continues with the member after the last yielded member. If the archive is not compressed, and is a
    file, an object in a store, or a URL of a server that supports ranges, a resumed run does not reread earlier
    members.

    Args:
        datapipe: yields pairs of path and binary stream.
        mode: the mode of `tarfile.open`: `"r:*"` (the default), `"r:gz"`, …, or `"r|*"`, … to read only forward.
        length: the number of members that `len` returns; with -1 (the default), `len` raises TypeError.
        max_ratio: the largest allowed ratio of decompressed to compressed size; 100 by default, None for no limit.
            `max_ratio` applies as soon as the decompressed size of an archive or of a sparse member exceeds 1 GiB.

    Raises:
        ValueError: the mode is unknown, or `max_ratio` is less than 1.
        tarfile.ReadError: while iterating or reading a member, the archive is truncated or damaged, a name leads out of
        the archive's folder, the headers of a member take more than 1 MiB, or the archive becomes too large (a
        decompression bomb).

    Example:
        >>> from torchdata.datapipes.iter import FileLister
        >>> pairs = FileLister("shards", "*.tar").open_files(mode="b").load_from_tar()
    """

    _point: Any = checked_state(((int, dict), (int, dict, int), None))

    def __init__(
        self,
        datapipe: Iterable[tuple[str, Any]],
        mode: str = "r:*",
        length: int = -1,
        *,
        max_ratio: float | None = MAX_RATIO,
    ) -> None:
        if not isinstance(mode, str) or not re.fullmatch(r"r([:|](\*|gz|bz2|xz|zst)?)?", mode):
            raise ValueError(
                f"TarArchiveLoader: mode must be one that reads, such as 'r:*' or 'r|gz', but got {mode!r}"
            )
        super().__init__(datapipe, length, max_ratio=max_ratio)
        self.mode = mode

    def _point_of(self, archive: _TarArchive) -> tuple[Any, ...]:
        return archive.tar.offset, dict(archive.tar.pax_headers)

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        placeholder, point = super()._bookmark(path, stream)
        archive = self._archive
        if archive is not None and archive.source is stream is not placeholder and archive.offset is not None:
            # The reopened stream starts just before the next member, so that a store does not send earlier members.
            return detached(stream, archive.offset - BEFORE), (*point, archive.start)
        return placeholder, point

    def _read(self, path: str, stream: Any, point: Any) -> Iterator[tuple[str, StreamWrapper]]:
        refuse_text(self, path, stream)
        offset, headers, *start = point or (None, None)
        try:
            if start:
                archive = _TarArchive(path, stream, start[0], self.mode, self.max_ratio, offset)
            else:  # decompression must start from the beginning of the archive
                archive = _TarArchive(path, stream, None, self.mode, self.max_ratio)
            tar: Any = archive.tar
            if point is not None:
                tar.firstmember = None
                tar.offset, tar.pax_headers = offset, headers
            self._archive = archive  # the attribute is set once the archive is open and positioned
            folder, parent, keep = folder_of(path), archive.parent, not archive.seeks_cheaply
            while (found := archive.next_file()) is not None:
                name = path_in(folder, found[0])
                member = StreamWrapper(found[1], parent, name)
                reference = weakref.ref(member) if keep else None
                del found
                yield name, member
                del member
                if reference is not None:
                    _keep_in_memory(reference())
        except Exception as error:
            raise _TarArchive.error_of(f"the tar archive {shown(path)}", error)


def _keep_in_memory(stream: StreamWrapper | None) -> None:
    """Copies an open, unread member to memory, so that the archive can be read beyond this member."""
    file_obj = None if stream is None or stream.closed else stream.file_obj
    if stream is not None and type(file_obj) is io.BufferedReader and not file_obj.closed:
        raw: Any = file_obj.raw
        if isinstance(raw, _TarMember) and file_obj.tell() == 0 and raw.size <= LARGEST_KEPT_MEMBER:
            stream.detach_from_parent(io.BytesIO(raw.content(0, raw.size)))
