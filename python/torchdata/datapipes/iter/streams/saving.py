"""Pipes that write or verify files: Saver, HashChecker."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchdata._redacting import shown, shown_with_type
from torchdata._reporting import name_item
from torchdata.datapipes._pipe.checks import check_callable, explaining
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes._pipe.streams import close_dropped
from torchdata.datapipes.iter.streams.atomic_files import appearing
from torchdata.datapipes.iter.streams.pairs import can_seek, pair_of, source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper
from torchdata.datapipes.utils.names import check_target

__all__ = ["HashChecker", "Saver"]

_CHUNK = 1 << 20

_DIGITS = {"sha256": 64, "md5": 32}


class Saver(ItemByItem[str]):
    """Writes files: yields the path of each file when it is complete.

    A file is written under a temporary name in the same folder and then renamed, so no process sees an incomplete file.
    If the process crashes, its temporary file `.….part` remains. Missing folders are created. An existing file is
    replaced, and its permissions are kept. If the path is a link, the target of the link is replaced. A file that is
    not regular (a device, a named pipe) is written directly.

    Args:
        source_datapipe: yields pairs of metadata (a path, if `filepath_fn` is None) and data: str or bytes.
        mode: `"w"` (the default), `"wt"` or `"t"` for text, `"wb"` or `"b"` for bytes.
        filepath_fn: a function from the metadata to the path; if None (the default), the metadata is the path.

    Raises:
        ValueError: the mode is unknown.
        TypeError: `filepath_fn` cannot be called; or, while iterating, the data does not fit the mode.
        ValueError: while iterating, the path is a URL (`s3://…`) with a part `..`.
        OSError: while iterating, a file cannot be written.

    Example:
        >>> import os, tempfile
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> folder = tempfile.TemporaryDirectory()
        >>> def in_folder(name):
        ...     return os.path.join(folder.name, "new", name)
        >>> paths = IterableWrapper([("a.txt", b"alpha")]).save_to_disk("wb", filepath_fn=in_folder)
        >>> [os.path.relpath(path, folder.name) for path in paths]
        ['new/a.txt']
        >>> folder.cleanup()
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.source_datapipe = source_pipe(source_datapipe, self)
        self.mode = mode if isinstance(mode, str) and "w" in mode else f"w{mode}"
        if not isinstance(mode, str) or sorted(self.mode) not in map(sorted, ("w", "wt", "wb")):
            raise ValueError(f"Saver: mode must be one of 'w', 'wt', 't', 'wb' and 'b', but got {mode!r}")
        check_callable("Saver", "filepath_fn", filepath_fn, optional=True)
        self.fn = filepath_fn

    def _result(self, pair: Any) -> str:
        path, data = pair_of(pair, self, "metadata and data")
        if self.fn is not None:
            path = self.fn(path)
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(
                f"Saver needs a path, but got {shown(path)}; pass filepath_fn, a function that returns the path"
            )
        with explaining(self, "was writing", path, f" in mode {self.mode!r}"):
            check_target(self, os.fspath(path))
            _write(os.fspath(path), self.mode, data)
        return path  # type: ignore[return-value]


def _write(path: str, mode: str, data: Any) -> None:
    target = os.path.realpath(path)
    try:
        os.stat(target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
    else:
        if not os.access(target, os.W_OK):  # replacing the file by renaming would ignore its permissions
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    with appearing(target, replace=True) as written, open(written, mode) as file:
        file.write(data)


class HashChecker(ItemByItem[tuple[str, Any]]):
    """Verifies the hashes of files: yields each file with the expected hash, and raises an error for any other file.

    Streams are read to their end in chunks, and then rewound.

    Args:
        source_datapipe: yields pairs of path and data: bytes, str (hashed as UTF-8) or a binary stream.
        hash_dict: the expected hash of each path, in hexadecimal digits.
        hash_type: `"sha256"` (the default) or `"md5"`.
        rewind: whether a stream is set back to its start, which requires a seekable stream; True by default. If
            `rewind` is False, the yielded stream is at its end.

    Raises:
        ValueError: `hash_type` is unknown.
        TypeError: `hash_dict` is not a mapping; or, while iterating, a stream contains text instead of bytes.
        RuntimeError: while iterating, the hash differs, or `hash_dict` does not contain the path.
        io.UnsupportedOperation: while iterating, a stream cannot be rewound.

    Example:
        >>> import hashlib
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> files = IterableWrapper([("a.bin", b"alpha")])
        >>> list(files.check_hash({"a.bin": hashlib.md5(b"alpha").hexdigest()}, hash_type="md5"))
        [('a.bin', b'alpha')]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        hash_dict: Mapping[str, str],
        hash_type: str = "sha256",
        rewind: bool = True,
    ) -> None:
        self.source_datapipe = source_pipe(source_datapipe, self)
        if not isinstance(hash_dict, Mapping):
            raise TypeError(
                f"HashChecker: hash_dict must be a dict from path to hash, but got {shown_with_type(hash_dict)}"
            )
        if hash_type not in _DIGITS:
            raise ValueError(
                f"HashChecker: got hash_type={hash_type!r}. Invalid hash_type requested, should be one of {[*_DIGITS]}"
            )
        self.hash_dict = hash_dict
        self.hash_type = hash_type
        self.rewind = rewind

    def _result(self, pair: Any) -> tuple[str, Any]:
        path, data = pair_of(pair, self, "path and data")
        try:
            self._check(path, data)
        except BaseException as error:
            close_dropped(data)
            name_item(error, path)
            if isinstance(error, Exception) and not isinstance(error, RuntimeError):
                error.add_note(f"HashChecker was reading {shown(path)}.")
            raise
        is_stream = not isinstance(data, (str, bytes, bytearray, memoryview, StreamWrapper))
        return path, StreamWrapper(data) if is_stream else data

    def _check(self, path: str, data: Any) -> None:
        if path not in self.hash_dict:
            raise RuntimeError(
                f"HashChecker: Unspecified hash for file {shown(path)}; add it to hash_dict, or leave the file out"
            )
        expected, found = self.hash_dict[path], self._hash(path, data)
        if found != str(expected).lower():
            digits = _DIGITS[self.hash_type]
            remedy = "delete the file and get it again"
            if len(str(expected)) != digits:
                remedy = f"hash_type={self.hash_type!r} has {digits} digits, so the expected hash is of another type"
            raise RuntimeError(
                f"HashChecker: the {self.hash_type} hash {found} of {shown(path)} does not match the expected "
                f"hash {expected}; {remedy}"
            )

    def _hash(self, path: str, data: Any) -> str:
        import hashlib

        # `usedforsecurity=False` permits md5 on systems that forbid md5 for security purposes.
        digest = hashlib.new(self.hash_type, usedforsecurity=False)
        if isinstance(data, (str, bytes, bytearray, memoryview)):
            digest.update(data.encode() if isinstance(data, str) else data)
            return digest.hexdigest()
        if self.rewind and not can_seek(data):
            raise io.UnsupportedOperation(
                f"HashChecker cannot rewind the stream {shown(path)}; pass rewind=False if it is not read any more, or "
                "read it into memory first"
            )
        for chunk in iter(lambda: data.read(_CHUNK), b"") if hasattr(data, "read") else data:
            if isinstance(chunk, str):
                raise TypeError(f"HashChecker hashes bytes, but {shown(path)} is open as text; open it with mode='b'")
            digest.update(chunk)
        if self.rewind:
            data.seek(0)
        return digest.hexdigest()
