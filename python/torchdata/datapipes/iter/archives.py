"""Pipes that read archives: TarArchiveLoader, ZipArchiveLoader.

Role: each turns pairs of path and archive stream into pairs of path and member stream. They run in the process that
iterates them. A member reads from its archive when it is read itself, so the archive's stream stays open until the
last of its members is closed or dropped; the archive objects here own it. They are also the recipes by which
members are opened again (see `utils/_streams.py`): members that were saved together open their archive once.
"""

from __future__ import annotations

import io
import os
import re
import struct
import tarfile
import weakref
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from torchdata.datapipes._checks import check_int
from torchdata.datapipes._registry import functional_datapipe
from torchdata.datapipes.iter._held import HoldsStream, source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper, parked

try:
    from lzma import LZMAError
except ImportError:  # Python was built without it, so there is none to meet
    LZMAError = EOFError  # type: ignore[misc, assignment]

__all__ = ["TarArchiveLoader", "ZipArchiveLoader"]

#: Largest member of a compressed or streamed archive that is kept in memory when the archive goes on without it.
LARGEST_KEPT_MEMBER = 64 << 20


def _seekable(stream: Any) -> bool:
    return bool(hasattr(stream, "seekable") and stream.seekable())


def _bare(stream: Any) -> Any:
    """The file object in a wrapper: asking it directly spares a detour by `__getattr__` for every call."""
    if getattr(stream, "closed", False):
        raise ValueError(f"the stream {stream!r} of the archive is closed")
    return stream.file_obj if isinstance(stream, StreamWrapper) else stream


class _Archive:
    """An open archive: owns the stream that it reads, and opens it again where it was pickled."""

    def __init__(self, path: str, source: Any, start: int | None = None) -> None:
        self.path = path
        self.source = source
        #: Where the archive begins in its stream; None where the stream cannot tell.
        self.start = source.tell() if start is None and _seekable(source) else start

        #: Stands in for the source when the archive is pickled, which may be after the source was closed. A file
        #: in memory has none, because it would be copied.
        file_obj = source.__dict__.get("file_obj") if isinstance(source, StreamWrapper) else source
        stand_in = source if isinstance(file_obj, io.BytesIO) else parked(source, self.start)
        self._stand_in = stand_in if stand_in is not source else None

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._stand_in or parked(self.source, self.start)
        return type(self), (self.path, source, self.start, *self._settings())

    def _settings(self) -> tuple[Any, ...]:
        return ()

    @property
    def parent(self) -> StreamWrapper | None:
        """The wrapper that is told of every member that is opened and closed."""
        return self.source if isinstance(self.source, StreamWrapper) else None


class _Header(tarfile.TarInfo):
    """A header of which damage is an error everywhere; `tarfile` takes it for the end, except at the start."""

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> Any:
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            if not tarfile_.offset:
                raise
            raise tarfile.ReadError(f"{error} at byte {tarfile_.offset}") from error


class _TarArchive(_Archive):
    """A tar archive, plain or compressed, on a seekable stream or on one that only reads ahead."""

    def __init__(self, path: str, source: Any, start: int | None = None, mode: str = "r:*") -> None:
        super().__init__(path, source, start)
        self.mode = mode
        self._tar: tarfile.TarFile | None = None

    def _settings(self) -> tuple[Any, ...]:
        return (self.mode,)

    @property
    def tar(self) -> tarfile.TarFile:
        """The `TarFile`, opened on first use."""
        if self._tar is None:
            file_obj = _bare(self.source)
            if isinstance(file_obj, tarfile.TarFile):
                self._tar = file_obj
            else:
                mode = self.mode if _seekable(file_obj) else _streaming(self.mode)
                self._tar = tarfile.open(fileobj=file_obj, mode=mode, tarinfo=_Header)  # type: ignore[call-overload]  # noqa: SIM115
        return self._tar

    @property
    def seeks_cheaply(self) -> bool:
        """Whether going back costs next to nothing: it does in a plain archive, not in a compressed one."""
        return self.tar.fileobj is _bare(self.source)

    def next_file(self) -> tuple[str, Any] | None:
        """The name of the next regular file and its file object, or None at the end."""
        tar: Any = self.tar
        fileobj, plain = tar.fileobj, self.seeks_cheaply
        while True:
            if plain and tar.firstmember is None and not tar.pax_headers:
                fileobj.seek(tar.offset)
                found = _plain_header(fileobj.read(tarfile.BLOCKSIZE))
                if found is not None:
                    (name, size), data = found, tar.offset + tarfile.BLOCKSIZE
                    tar.offset = data + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                    return name, io.BufferedReader(_TarMember(self, fileobj, name, data, size))
            info = tar.next()
            tar.members = []  # tarfile remembers every header otherwise
            if info is None:
                return None
            if info.issparse():
                return info.name, tar.extractfile(info)
            if info.isreg():
                member = _TarMember(self, fileobj, info.name, info.offset_data, info.size)
                return info.name, io.BufferedReader(member)


def _plain_header(block: bytes) -> tuple[str, int] | None:
    """Name and size from the header of an ordinary file, or None: `tarfile` looks into all that is not ordinary.

    `tarfile` spends most of its time on parsing headers, of which a loader needs two fields.
    """
    if len(block) != tarfile.BLOCKSIZE or block[156:157] not in (b"0", b"\0") or block[345]:
        return None
    name = block[:100].partition(b"\0")[0]
    try:
        size, checksum = (int(field.partition(b"\0")[0], 8) for field in (block[124:136], block[148:156]))
        text = name.decode("utf-8")
    except ValueError:
        return None
    intact = checksum == sum(block) - sum(block[148:156]) + 8 * 0x20
    return (text, size) if intact and size >= 0 and name and not name.endswith(b"/") else None


class _TarMemberRecipe:
    """Where a member lies in its archive."""

    __slots__ = ("archive", "name", "offset", "size")

    def __init__(self, archive: _TarArchive, name: str, offset: int, size: int) -> None:
        self.archive, self.name, self.offset, self.size = archive, name, offset, size

    def open(self) -> Any:
        """Opens the archive, where it is not yet, and the member."""
        fileobj = self.archive.tar.fileobj
        return io.BufferedReader(_TarMember(self.archive, fileobj, self.name, self.offset, self.size))

    def __repr__(self) -> str:
        return f"member {self.name!r} of {self.archive.path!r}"


class _TarMember(io.RawIOBase):
    """The bytes of one member: a section of the archive's (decompressed) bytes.

    Does what `tarfile.ExFileObject` does, in fewer steps. Every read seeks, because members share the stream.
    """

    def __init__(self, archive: _TarArchive, fileobj: Any, name: str, offset: int, size: int) -> None:
        self._archive, self._fileobj = archive, fileobj
        self._name, self._offset, self.size = name, offset, size
        self._position = 0

    def recipe(self) -> _TarMemberRecipe:
        """How the member is opened again."""
        return _TarMemberRecipe(self._archive, self._name, self._offset, self.size)

    @property
    def name(self) -> str:
        """The member's name in the archive."""
        return self._name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return _seekable(self._fileobj)

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = min(max(base + offset, 0), self.size)
        return self._position

    def content(self, position: int, size: int) -> bytes:
        """`size` bytes from `position` on."""
        try:
            self._fileobj.seek(self._offset + position)
            data: bytes = self._fileobj.read(size)
            if len(data) != size:
                raise tarfile.ReadError("unexpected end of data")
        except Exception as error:
            _raise_damage(tarfile.ReadError, f"{self._name!r} of {self._archive.path!r}", error)
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


def _raise_damage(kind: type[Exception], what: str, error: Exception) -> NoReturn:
    """Raises `error` as one that names the archive. What does not come from damaged data keeps its type."""
    if isinstance(error, tarfile.StreamError):
        raise kind(f"cannot read {what}: {error} ({_NO_WAY_BACK})") from error
    of_the_system = isinstance(error, OSError) and (
        error.errno is not None or isinstance(error, io.UnsupportedOperation)
    )
    if isinstance(error, (*_DAMAGE, OSError)) and not of_the_system:
        raise kind(f"cannot read {what}: {error or type(error).__name__} ({_ADVICE})") from error
    error.add_note(f"This happened while reading {what}.")
    raise error


_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, struct.error, LZMAError)
_ADVICE = "the archive is truncated, damaged or of another kind"
_NO_WAY_BACK = "a streamed archive cannot go back: read members before going on, or use a seekable file"


def _streaming(mode: str) -> str:
    return "r|*" if mode == "r" else mode.replace(":", "|")


class _ArchiveLoader(HoldsStream):
    """What the loaders share: an archive that is open while its pair is held."""

    datapipe: Any
    length: int
    _archive: Any = None

    def _source(self) -> Any:
        return self.datapipe

    def _open(self, path: str, stream: Any) -> Any:
        """The archive that `stream` holds."""
        raise NotImplementedError

    def _place_of(self, archive: Any) -> Any:
        """The place in the archive behind the last member that was yielded."""
        raise NotImplementedError

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        archive = self._archive
        if archive is None or archive.source is not stream:  # it failed to open
            return parked(stream), self._place
        return parked(stream, archive.start), self._place_of(archive)

    def _release(self, stream: Any) -> None:
        if self._archive is not None and self._archive.source is stream:
            self._archive = None
        if isinstance(
            stream, StreamWrapper
        ):  # whoever made a bare stream closes it: members may still read it
            stream.autoclose()

    def _attributes_to_copy(self) -> dict[str, Any]:
        return {**super()._attributes_to_copy(), "_archive": None}

    def __len__(self) -> int:
        if self.length == -1:
            raise TypeError(f"{type(self).__name__} instance doesn't have valid length")
        return self.length


@functional_datapipe("load_from_tar")
class TarArchiveLoader(_ArchiveLoader):
    """Reads tar archives, plain or compressed: yields pairs of path and stream, one per regular file.

    A member's path is that of the archive joined with its own. Streams that cannot seek are read ahead only; a
    member of such an archive, or of a compressed one, is kept in memory when the archive goes on before it is read.

    Args:
        datapipe: yields pairs of path and binary stream.
        mode: how `tarfile.open` reads: `"r:*"`, `"r:gz"`, …, or `"r|*"`, … for reading ahead only.
        length: the number of members, where `len` is to give it; -1: `len` raises TypeError.

    Raises:
        ValueError: the mode is another one.
        tarfile.ReadError: while iterating or reading a member, the archive is truncated or damaged.

    Example:
        >>> from torchdata.datapipes.iter import FileLister
        >>> pairs = FileLister("shards", "*.tar").open_files(mode="b").load_from_tar()
    """

    def __init__(self, datapipe: Iterable[tuple[str, Any]], mode: str = "r:*", length: int = -1) -> None:
        if not isinstance(mode, str) or not re.fullmatch(r"r([:|](\*|gz|bz2|xz|zst)?)?", mode):
            raise ValueError(
                f"TarArchiveLoader: mode must be one that reads, such as 'r:*' or 'r|gz', but got {mode!r}"
            )
        self.datapipe = source_pipe(datapipe, self)
        self.mode = mode
        self.length = check_int("TarArchiveLoader", "length", length, least=-1)

    def _place_of(self, archive: _TarArchive) -> tuple[int, dict[str, str]]:
        return archive.tar.offset, dict(archive.tar.pax_headers)

    def _read(self, path: str, stream: Any, place: Any) -> Iterator[tuple[str, StreamWrapper]]:
        try:
            archive = _TarArchive(path, stream, mode=self.mode)
            tar: Any = archive.tar
            if place is not None:
                tar.firstmember = None
                tar.offset, tar.pax_headers = place
            self._archive = archive  # now that it is open and in its place
            parent, keep = archive.parent, not archive.seeks_cheaply
            while (found := archive.next_file()) is not None:
                name = os.path.normpath(os.path.join(path, found[0]))
                member = StreamWrapper(found[1], parent, name)
                reference = weakref.ref(member) if keep else None
                del found
                yield name, member
                del member
                if reference is not None:
                    _keep_in_memory(reference())
        except Exception as error:
            _raise_damage(tarfile.ReadError, f"the tar archive {path!r} in TarArchiveLoader", error)


def _keep_in_memory(stream: StreamWrapper | None) -> None:
    """Lets a member that somebody still holds, unread, live on without its archive."""
    file_obj = None if stream is None or stream.closed else stream.file_obj
    if stream is not None and type(file_obj) is io.BufferedReader and not file_obj.closed:
        raw: Any = file_obj.raw
        if isinstance(raw, _TarMember) and file_obj.tell() == 0 and raw.size <= LARGEST_KEPT_MEMBER:
            stream.detach_from_parent(io.BytesIO(raw.content(0, raw.size)))


class _ZipArchive(_Archive):
    """A zip archive."""

    def __init__(self, path: str, source: Any, start: int | None = None) -> None:
        super().__init__(path, source, start)
        self._zip: zipfile.ZipFile | None = None
        #: Index of the entry behind the last one that was yielded.
        self.next = 0

    @property
    def zip(self) -> zipfile.ZipFile:
        """The `ZipFile`, opened on first use."""
        if self._zip is None:
            file_obj = _bare(self.source)
            if not _seekable(file_obj):
                raise io.UnsupportedOperation(
                    f"the zip archive {self.path!r} lies in a stream that cannot seek, but the directory of a zip "
                    "archive stands at its end; read it from a file, or into io.BytesIO first"
                )
            self._zip = zipfile.ZipFile(file_obj)
        return self._zip


class _ZipMemberRecipe:
    """Which entry of its archive a member is."""

    __slots__ = ("archive", "index")

    def __init__(self, archive: _ZipArchive, index: int) -> None:
        self.archive, self.index = archive, index

    def open(self) -> Any:
        """Opens the archive, where it is not yet, and the member."""
        archive = self.archive.zip
        return archive.open(archive.infolist()[self.index])

    def __repr__(self) -> str:
        return f"entry {self.index} of {self.archive.path!r}"


@functional_datapipe("load_from_zip")
class ZipArchiveLoader(_ArchiveLoader):
    """Reads zip archives: yields pairs of path and stream, one per file.

    A member's path is that of the archive joined with its own.

    Args:
        datapipe: yields pairs of path and seekable binary stream.
        length: the number of members, where `len` is to give it; -1: `len` raises TypeError.

    Raises:
        zipfile.BadZipFile: while iterating or reading a member, the archive is truncated or damaged.
        RuntimeError: while iterating, a member is encrypted.

    Example:
        >>> from torchdata.datapipes.iter import FileLister
        >>> pairs = FileLister("shards", "*.zip").open_files(mode="b").load_from_zip()
    """

    def __init__(self, datapipe: Iterable[tuple[str, Any]], length: int = -1) -> None:
        self.datapipe = source_pipe(datapipe, self)
        self.length = check_int("ZipArchiveLoader", "length", length, least=-1)

    def _place_of(self, archive: _ZipArchive) -> int:
        return archive.next

    def _read(self, path: str, stream: Any, place: Any) -> Iterator[tuple[str, StreamWrapper]]:
        try:
            archive = _ZipArchive(path, stream)
            entries, open_member, parent = archive.zip.infolist(), archive.zip.open, archive.parent
            archive.next = place or 0
            self._archive = archive  # now that it is open and in its place
            for index in range(archive.next, len(entries)):
                info = entries[index]
                archive.next = index + 1
                if not info.is_dir():
                    name = os.path.normpath(os.path.join(path, info.filename))
                    recipe = _ZipMemberRecipe(archive, index)
                    yield name, StreamWrapper(open_member(info), parent, name, recipe=recipe)
        except Exception as error:
            _raise_damage(zipfile.BadZipFile, f"the zip archive {path!r} in ZipArchiveLoader", error)
