"""The pipe that reads zip archives: ZipArchiveLoader."""

from __future__ import annotations

import io
import stat
import zipfile
from typing import Any

from torchdata._redacting import shown
from torchdata.datapipes.iter.archives.archive import (
    IndexedArchive,
    IndexedLoader,
    LibraryMember,
    bare,
    explained,
    seekable,
)

__all__ = ["ZipArchiveLoader", "open_zip"]

#: Size in bytes of a member's header, without the name of the member.
_ZIP_HEADER = 30


class _ZipArchive(IndexedArchive):
    _zip: zipfile.ZipFile | None = None

    @property
    def zip(self) -> zipfile.ZipFile:
        if self._zip is None:
            file_obj = bare(self.source)
            self._zip = file_obj if isinstance(file_obj, zipfile.ZipFile) else open_zip(file_obj, self.path)
        return self._zip

    @staticmethod
    def error_of(what: str, error: Exception) -> Exception:
        return explained(zipfile.BadZipFile, f"{what} in ZipArchiveLoader", error)

    def entries(self) -> list[Any]:
        return list(self.zip.infolist())

    def open_entry(self, index: int) -> Any:
        info = self.zip.infolist()[index]
        if info.flag_bits & 1 and not self.zip.pwd:
            raise RuntimeError(f"its member {shown(info.filename)} needs a password; extract the archive first")
        stored = info.compress_type == zipfile.ZIP_STORED
        try:
            file_obj = self.zip.open(info)
        except UnicodeDecodeError as error:
            raise zipfile.BadZipFile(f"the name before {shown(info.filename)} does not decode ({error})") from error
        return io.BufferedReader(LibraryMember(self, index, info.filename, file_obj, stored))


def open_zip(file_obj: Any, path: str, kind: type[zipfile.ZipFile] = zipfile.ZipFile) -> zipfile.ZipFile:
    if not seekable(file_obj):
        raise io.UnsupportedOperation(
            f"the zip archive {shown(path)} is in a stream that cannot seek, but the directory of a zip archive is "
            f"at its end; read it from a file, or into io.BytesIO first"
        )
    try:
        archive = kind(file_obj)
    except UnicodeDecodeError as error:
        raise zipfile.BadZipFile(f"a name in its directory does not decode ({error})") from error
    except zipfile.BadZipFile as error:
        cause = error.__context__
        if isinstance(cause, OSError) and cause.errno is not None:  # reading the archive's stream failed
            raise cause
        raise
    _check_offsets(archive)
    return archive


def _check_offsets(archive: zipfile.ZipFile) -> None:
    """Refuses archives with overlapping members, because a small archive could expand to many large files if its
    members share the same bytes."""
    end: int = archive.start_dir
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset, reverse=True):
        if info.header_offset < 0:
            raise zipfile.BadZipFile("its directory points to before its start")
        # The offset plus these sizes is a lower bound for the end of the member, because the header may contain further
        # fields.
        if info.header_offset + _ZIP_HEADER + len(info.orig_filename) + info.compress_size > end:
            raise zipfile.BadZipFile(f"its member {shown(info.filename)} overlaps with the data after it")
        end = info.header_offset


class ZipArchiveLoader(IndexedLoader):
    """Reads zip archives: yields pairs of path and stream, one per file.

    The path of a member is the archive's path joined with the member's name. Leading slashes in the name are dropped,
    and a name that leads out of the archive's folder is an error. Symbolic links are left out.

    Args:
        datapipe: yields pairs of path and seekable binary stream.
        length: the number of members that `len` returns; with -1 (the default), `len` raises TypeError.
        max_ratio: the largest allowed ratio of decompressed to compressed size; 100 by default, None for no limit. A
            decompressed size of at most 1 GiB is always allowed. The limit applies to each member, and to the total
            size of all members that were read.

    Raises:
        ValueError: `max_ratio` is less than 1.
        zipfile.BadZipFile: while iterating or reading a member, the archive is truncated or damaged, a checksum is
        wrong, a name leads out of the archive's folder, members overlap, or a member is too large (a decompression
        bomb).
        RuntimeError: while iterating, a member is encrypted.

    Example:
        >>> from torchdata.datapipes.iter import FileLister
        >>> pairs = FileLister("shards", "*.zip").open_files(mode="b").load_from_zip()
    """

    _format, _opens = "zip", _ZipArchive

    def _is_file(self, entry: Any) -> bool:
        return not entry.filename.endswith("/") and not stat.S_ISLNK(entry.external_attr >> 16)
