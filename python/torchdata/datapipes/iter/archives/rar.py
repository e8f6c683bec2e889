"""The pipe that reads RAR archives: RarArchiveLoader.

Uncompressed members are read from the archive's stream. A compressed member is decompressed by a program (`unrar`,
`unar`, `7z` or `bsdtar`). The program starts when the member is first read, and is stopped when the member's stream is
closed. The program reads a temporary file with a copy of the member or, if the archive is solid, of the whole archive.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterable
from typing import Any

from torchdata._optional import optional_import
from torchdata._redacting import shown
from torchdata.datapipes.iter.archives.archive import (
    MAX_RATIO,
    IndexedArchive,
    IndexedLoader,
    LibraryMember,
    bare,
    explained,
    seekable,
)

__all__ = ["RarArchiveLoader"]

_NO_PROGRAM = "compressed members need one of the programs unrar, unar, 7z and bsdtar; install one of them"
_NO_PASSWORDS = "archives with a password are not supported; extract the archive first"
_NO_VOLUMES = "archives of several volumes are not supported; join the volumes first"


def _rarfile() -> Any:
    return optional_import("rarfile", extra="rar", needed_by="RarArchiveLoader")


class _RarArchive(IndexedArchive):
    _rar: Any = None

    @property
    def rar(self) -> Any:
        if self._rar is None:
            file_obj = bare(self.source)
            if not seekable(file_obj):
                raise io.UnsupportedOperation(
                    f"the RAR archive {shown(self.path)} is in a stream that cannot seek; read it from a file, or "
                    "into io.BytesIO first"
                )
            self._rar = _opened(file_obj)
        return self._rar

    @staticmethod
    def error_of(what: str, error: Exception) -> Exception:
        rarfile, what = _rarfile(), f"{what} in RarArchiveLoader"
        if not isinstance(error, rarfile.Error):
            return explained(rarfile.BadRarFile, what, error)
        cause = str(error) or type(error).__name__
        if isinstance(error, rarfile.RarCannotExec):
            cause = f"{cause}; {_NO_PROGRAM}"
        elif isinstance(error, (rarfile.PasswordRequired, rarfile.NoCrypto)):
            cause = f"{cause}; {_NO_PASSWORDS}"
        elif isinstance(error, rarfile.NeedFirstVolume) and _NO_VOLUMES not in cause:
            cause = f"{cause}; {_NO_VOLUMES}"
        elif isinstance(error, (rarfile.BadRarFile, rarfile.NotRarFile)):
            cause = f"{cause} (the archive is truncated, damaged or of another kind)"
        named: Exception = error
        named.args = (f"cannot read {what}: {cause}",)
        return named

    def entries(self) -> list[Any]:
        return list(self.rar.infolist())

    def open_entry(self, index: int) -> Any:
        rarfile, rar = _rarfile(), self.rar
        info = rar.infolist()[index]
        stored = info.compress_type == rarfile.RAR_M0

        def open_member() -> Any:
            if not stored:
                _patch_bsdtar(rarfile)
            return rar.open(info)

        return io.BufferedReader(LibraryMember(self, index, info.filename, _WhenRead(open_member), stored))


def _patch_bsdtar(rarfile: Any) -> None:
    """Makes `rarfile` call `bsdtar` without `--` after `-f`, because `bsdtar` would read `--` as the archive's path.

    `rarfile` passes `--` in version 4.5 and earlier. Leaving out `--` is safe, because the path of `rarfile`'s
    temporary file does not begin with `-`.
    """
    program = rarfile.tool_setup()
    if program.setup is rarfile.BSDTAR_CONFIG and "get_cmdline" not in vars(program):
        program.get_cmdline = functools.partial(program.get_cmdline, nodash=True)


def _opened(file_obj: Any) -> Any:
    """Opens the archive, and checks that it is complete, because `rarfile` does not check this."""
    rarfile = _rarfile()
    size = file_obj.seek(0, os.SEEK_END)
    last: Any = None

    def check(header: Any) -> None:
        nonlocal last
        last = header
        in_parts = rarfile.RAR_FILE_SPLIT_AFTER if header.type == rarfile.RAR_BLOCK_FILE else 0
        if header.type == rarfile.RAR_BLOCK_ENDARC:
            in_parts = rarfile.RAR_ENDARC_NEXT_VOLUME
        if header.flags & in_parts:
            raise rarfile.NeedFirstVolume(_NO_VOLUMES, None)
        if header.add_size and header.data_offset + header.add_size > size:
            raise rarfile.BadRarFile("unexpected end of data")

    try:
        rar = rarfile.RarFile(file_obj, info_callback=check, errors="strict")
    except (rarfile.Error, OSError, MemoryError):
        raise
    except Exception as error:  # `rarfile` does not check header fields, so damage may cause any error
        raise rarfile.BadRarFile(f"damaged header: {error or type(error).__name__}") from error
    if rar.needs_password() and not rar.infolist():
        raise rarfile.PasswordRequired("the names in the archive are encrypted")
    # Only archives of version 5 are checked, because archives of version 2 do not have an end marker.
    if isinstance(last, rarfile.Rar5Info) and last.type != rarfile.RAR_BLOCK_ENDARC:
        raise rarfile.BadRarFile("unexpected end of the archive")
    return rar


class _WhenRead:
    """Opens a compressed member at its first read, because opening starts a program."""

    def __init__(self, open_member: Callable[[], Any]) -> None:
        self._open = open_member
        self._file_obj: Any = None

    @property
    def _opened(self) -> Any:
        if self._file_obj is None:
            self._file_obj = self._open()
        return self._file_obj

    def read(self, size: int) -> bytes:
        data: bytes = self._opened.read(size)
        return data

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if self._file_obj is None and offset == 0 and whence == os.SEEK_SET:
            return 0
        reached: int = self._opened.seek(offset, whence)
        return reached

    def tell(self) -> int:
        return 0 if self._file_obj is None else int(self._file_obj.tell())

    def close(self) -> None:
        if self._file_obj is not None:
            self._file_obj.close()


class RarArchiveLoader(IndexedLoader):
    """Reads RAR archives: yields pairs of path and stream, one per file. This pipe needs the extra `rar`.

    The path of a member is the archive's path joined with the member's name. Leading slashes in the name are dropped,
    and a name that leads out of the archive's folder is an error. Symbolic links are left out.

    Members that are stored without compression are read directly. To read compressed members, install one of the
    programs `unrar`, `unar`, `7z` and `bsdtar`. To read a member of a *solid* archive, the program must also decompress
    all earlier members.

    Args:
        datapipe: yields pairs of path and seekable binary stream.
        length: the number of members that `len` returns; with -1 (the default), `len` raises TypeError.
        max_ratio: the largest allowed ratio of decompressed to compressed size; 100 by default, None for no limit. A
            decompressed size of at most 1 GiB is always allowed. The limit applies to each member, and to the total
            size of all members that were read.

    Raises:
        ModuleNotFoundError: `rarfile` is not installed.
        ValueError: `max_ratio` is less than 1.
        rarfile.Error: while iterating or reading a member: BadRarFile or NotRarFile if the archive is truncated or
        damaged, a checksum is wrong, a name leads out of the archive's folder, or a member is too large (a
        decompression bomb); PasswordRequired; NeedFirstVolume for archives of several volumes; RarCannotExec if no
        program is found.

    Example:
        >>> from torchdata.datapipes.iter import FileLister
        >>> pairs = FileLister("shards", "*.rar").open_files(mode="b").load_from_rar()
    """

    _format, _opens = "RAR", _RarArchive

    def __init__(
        self, datapipe: Iterable[tuple[str, Any]], *, length: int = -1, max_ratio: float | None = MAX_RATIO
    ) -> None:
        _rarfile()
        super().__init__(datapipe, length, max_ratio=max_ratio)

    def _is_file(self, entry: Any) -> bool:
        return not entry.is_dir() and not entry.is_symlink()

    def _check(self, entry: Any) -> None:
        if entry.needs_password():
            raise _rarfile().PasswordRequired(f"its member {shown(entry.filename)} is encrypted")
        super()._check(entry)
