"""Pipes that read text: LineReader, CSVParser, CSVDictParser.

A saved position is the result of the stream's `tell`, which for a text file includes the state of the decoder. Text
files are read by `readline`, because `tell` fails after `next`. For a stream without `tell`, the saved position is the
number of lines read so far, and a resumed pipe skips these lines.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat
from typing import Any

from torchdata._redacting import shown
from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.checks import POSITIVE, check_int
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter.streams.pairs import HoldsStream, position_of, source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper, detached

__all__ = ["CSVDictParser", "CSVParser", "LineReader"]


_DROPPED = "torchdata.dropped"

_BOM = "\ufeff"

#: Number of bytes per read if lines can be separated only after decoding, as in UTF-16.
_PIECE = 1 << 16

_reported = False


def _drop(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs that drops bytes that cannot be decoded, with one warning per process."""
    global _reported
    if not isinstance(error, UnicodeDecodeError):
        raise error
    if not _reported:
        line = error.object[max(error.start - 60, 0) :][:120]
        warn_outside(
            f"bytes that are not {error.encoding} were left out of {line!r} ({error.reason}). Further bytes are "
            "omitted without a warning. Pass the right encoding, or errors='strict' for an error, or errors='ignore'"
        )
        _reported = True
    return "", error.end


codecs.register_error(_DROPPED, _drop)


def _cuts_lines(encoding: str) -> bool:
    """Returns whether encoded text can be split into lines before it is decoded: False for UTF-16, for example."""
    try:
        return "\n\n".encode(encoding)[-2:] == b"\n\n"
    except (LookupError, ValueError, TypeError):  # not a text encoding, so decoding will raise the error
        return True


def _reads_bytes(file_obj: Any) -> bool:
    return hasattr(file_obj, "read") and file_obj.read(0) == b""


def _decoded_lines(file_obj: Any, encoding: str, errors: str) -> Iterator[str]:
    decoder, rest, is_over = codecs.getincrementaldecoder(encoding)(errors), "", False
    while not is_over:
        piece = file_obj.read(_PIECE)
        is_over = not piece
        *lines, rest = (rest + decoder.decode(piece, is_over)).split("\n")
        for line in lines:
            yield f"{line}\n"
    if rest:
        yield rest


#: The forms of saved positions in a stream.
_SKIPPED = {"skip": int}
_DECODED, _NAMES = _SKIPPED | {"decoded": int}, {"fieldnames": list | tuple | None}


class _Text(HoldsStream[Any]):
    source_datapipe: Any
    _point: Any = checked_state((_SKIPPED, _DECODED, None))

    #: The position of the stream when the pipe received it.
    _start: int | None = state(saved=False)
    _lines_before: int = state(0, saved=False)  # the number of lines to skip from `_start`
    #: The decoder of a binary stream if lines can be separated only after decoding, as in UTF-16.
    _decoder: io.TextIOWrapper | None = state(saved=False)
    #: Whether bytes after the current line were already read, so that the stream's `tell` is too far ahead.
    _is_ahead: bool = state(False, saved=False)

    def _set_options(
        self, source_datapipe: Any, skip_lines: int, decode: bool, encoding: str, errors: str | None, return_path: bool
    ) -> None:
        name = type(self).__name__
        self.source_datapipe = source_pipe(source_datapipe, self)
        self._skip_lines = check_int(name, "skip_lines", skip_lines, least=0, words=POSITIVE.format("skip_lines"))
        for argument, value, look_up in (
            ("encoding", encoding, codecs.lookup),
            ("errors", "ignore" if errors is None else errors, codecs.lookup_error),
        ):
            try:
                look_up(value)
            except (LookupError, TypeError) as error:
                raise ValueError(f"{name}: {argument} must be a name that Python knows, but got {value!r}") from error
        self._decode = decode
        self._encoding = encoding
        self._errors = "ignore" if errors is None else errors
        self._warns = errors is None
        self._return_path = return_path

    def _lines(self, stream: Any, point: dict[str, Any] | None, strip: bool = False) -> Iterator[Any]:
        self._start, self._decoder = position_of(stream), None
        self._lines_before = self._skip_lines if point is None else point["skip"]
        # The lines are read from the file object itself, because a `StreamWrapper` costs a Python call per line.
        file_obj = stream.file_obj if isinstance(stream, StreamWrapper) else stream
        errors = _DROPPED if self._warns else self._errors
        self._is_ahead = self._decode and not _cuts_lines(self._encoding) and _reads_bytes(file_obj)
        decoded = 0 if point is None else point.get("decoded", 0)
        can_seek = self._start is not None and isinstance(file_obj, io.IOBase) and file_obj.seekable()
        if self._is_ahead and can_seek:
            file_obj = self._decoder = io.TextIOWrapper(file_obj, self._encoding, errors, newline="\n")
            if decoded:
                file_obj.seek(decoded)
        if type(file_obj) is io.TextIOWrapper and position_of(file_obj) is not None:
            lines: Iterator[Any] = iter(file_obj.readline, "")
        else:
            lines = _decoded_lines(file_obj, self._encoding, errors) if self._is_ahead else iter(file_obj)
        first = next(islice(lines, self._lines_before, None), None)
        if first is None:
            return iter(())
        in_bytes = isinstance(first, bytes)  # all lines of a stream have the same type
        if not self._lines_before and not self._start and not decoded:
            first = first.removeprefix(self._mark(in_bytes))
            if not first:  # the line consisted only of the byte order mark
                return iter(())
        lines = chain((first,), lines)
        if strip and in_bytes:
            lines = map(bytes.strip, lines, repeat(b"\r\n"))
        elif strip:
            lines = map(str.strip, lines, repeat("\r\n"))
        if self._decode and in_bytes:
            lines = map(bytes.decode, lines, repeat(self._encoding), repeat(errors))
        return lines

    def _mark(self, in_bytes: bool) -> Any:
        if not in_bytes:
            return _BOM
        return codecs.BOM_UTF8 if self._decode and codecs.lookup(self._encoding).name in ("utf-8", "utf-8-sig") else b""

    def _lines_read(self) -> int:
        """Returns the number of lines that were read so far, not counting the first `_lines_before` lines."""
        raise NotImplementedError

    def _explained(self, error: Exception, path: str) -> Exception:
        if isinstance(error, UnicodeDecodeError):
            location = f"after line {self._lines_before + self._lines_read()} of {shown(path)}"
            error.reason = f"{error.reason} ({location}; pass errors='replace' or the right encoding)"
        return error

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        if not self._is_ahead and (offset := position_of(stream)) is not None:
            return detached(stream, offset), {"skip": 0}
        decoded = None if self._decoder is None else position_of(self._decoder)
        if decoded is not None:
            return detached(stream, self._start), {"skip": 0, "decoded": decoded}
        return detached(stream, self._start), {"skip": self._lines_before + self._lines_read()}


class LineReader(_Text):
    r"""Yields the lines of streams, as pairs of path and line.

    Args:
        source_datapipe: yields pairs of path and stream. Each stream is closed after it was read.
        skip_lines: number of lines that are skipped at the start of each stream; 0 by default.
        strip_newline: whether `\r` and `\n` are removed from both ends of a line; True by default.
        decode: whether lines of bytes are decoded; False by default.
        encoding: the encoding of lines of bytes; UTF-8 by default.
        errors: what happens to invalid bytes: `"strict"`, `"replace"`, `"ignore"`, …; None drops invalid bytes, as in
            torchdata 0.9, with one warning.
        return_path: whether pairs of path and line are yielded (the default), or only lines.

    Raises:
        ValueError: `skip_lines` is negative, or `encoding` or `errors` is unknown.
        UnicodeDecodeError: while iterating with `errors="strict"`, bytes are invalid; the error's `reason` names the
            path.

    Example:
        >>> import io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("a.txt", io.StringIO("one\ntwo\n"))]).readlines())
        [('a.txt', 'one'), ('a.txt', 'two')]
    """

    _yielded_before: int = state(0, saved=False)  # items of earlier streams

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = True,
    ) -> None:
        self._set_options(source_datapipe, skip_lines, decode, encoding, errors, return_path)
        self._strip_newline = strip_newline

    def _read(self, path: str, stream: Any, point: Any) -> Iterator[Any]:
        self._yielded_before = token_of(self).yielded
        lines = self._lines(stream, point, strip=self._strip_newline)
        return zip(repeat(path), lines, strict=False) if self._return_path else lines

    def _lines_read(self) -> int:
        return token_of(self).yielded - self._yielded_before


class _CSV(_Text):
    _reader: Any = state(saved=False)
    fmtparams: dict[str, Any]

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = False,
        **fmtparams: Any,
    ) -> None:
        self._set_options(source_datapipe, skip_lines, decode, encoding, errors, return_path)
        self.fmtparams = fmtparams
        try:
            self._make_reader(iter(()), None)
        except (TypeError, csv.Error) as error:
            raise TypeError(
                f"{type(self).__name__}: {error} (in Python's csv module, which receives all other options)"
            ) from error

    def _make_reader(self, lines: Iterator[Any], point: dict[str, Any] | None) -> Any:
        raise NotImplementedError

    def _rows(self, reader: Any) -> Iterator[Any]:
        return iter(reader)

    def _read(self, path: str, stream: Any, point: Any) -> Iterator[Any]:
        self._reader = None
        reader = self._reader = self._make_reader(self._lines(stream, point), point)
        rows = self._rows(reader)
        return zip(repeat(path), rows, strict=False) if self._return_path else rows

    def _explained(self, error: Exception, path: str) -> Exception:
        if isinstance(error, csv.Error):
            return csv.Error(f"{shown(path)}, line {self._lines_before + self._lines_read()}: {error}")
        return super()._explained(error, path)

    def _lines_read(self) -> int:
        return 0 if self._reader is None else int(self._reader.line_num)


class CSVParser(_CSV):
    """Yields the rows of CSV files, as lists of str.

    Args:
        source_datapipe: yields pairs of path and stream. Each stream is closed after it was read.
        skip_lines: number of lines that are skipped at the start of each stream; 0 by default.
        decode: whether lines of bytes are decoded; True by default.
        encoding: the encoding of lines of bytes; UTF-8 by default.
        errors: what happens to invalid bytes: `"strict"`, `"replace"`, `"ignore"`, …; None drops invalid bytes, as in
            torchdata 0.9, with one warning.
        return_path: whether pairs of path and row are yielded; False, the default, yields only rows.
        as_tuple: whether rows are tuples; False by default.
        **fmtparams: options of `csv.reader`: `delimiter`, `quotechar`, `strict`, …

    Raises:
        ValueError: `skip_lines` is negative, or `encoding` or `errors` is unknown.
        TypeError: `csv` does not accept an option.
        csv.Error: while iterating, a row is malformed; the message names path and line.

    Example:
        >>> import io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("a.csv", io.StringIO("a,1\\nb,2"))]).parse_csv())
        [['a', '1'], ['b', '2']]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = False,
        as_tuple: bool = False,
        **fmtparams: Any,
    ) -> None:
        self._as_tuple = as_tuple
        options: dict[str, Any] = {"decode": decode, "encoding": encoding, "errors": errors, "return_path": return_path}
        super().__init__(source_datapipe, skip_lines=skip_lines, **options, **fmtparams)

    def _make_reader(self, lines: Iterator[Any], point: dict[str, Any] | None) -> Any:
        return csv.reader(lines, **self.fmtparams)

    def _rows(self, reader: Any) -> Iterator[Any]:
        return map(tuple, reader) if self._as_tuple else iter(reader)


class CSVDictParser(_CSV):
    """Yields the rows of CSV files as dicts, with the fields of each file's first row as keys.

    Args:
        source_datapipe: yields pairs of path and stream. Each stream is closed after it was read.
        skip_lines: number of lines that are skipped at the start of each stream, before the field names; 0 by default.
        decode: whether lines of bytes are decoded; True by default.
        encoding: the encoding of lines of bytes; UTF-8 by default.
        errors: what happens to invalid bytes: `"strict"`, `"replace"`, `"ignore"`, …; None drops invalid bytes, as in
            torchdata 0.9, with one warning.
        return_path: whether pairs of path and row are yielded; False, the default, yields only rows.
        **fmtparams: options of `csv.DictReader`: `fieldnames`, `restkey`, `delimiter`, …

    Raises:
        ValueError: `skip_lines` is negative, or `encoding` or `errors` is unknown.
        TypeError: `csv` does not accept an option.
        csv.Error: while iterating, a row is malformed; the message names path and line.

    Example:
        >>> import io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("a.csv", io.StringIO("key,item\\na,1"))]).parse_csv_as_dict())
        [{'key': 'a', 'item': '1'}]
    """

    _point: Any = checked_state(({**_SKIPPED, **_NAMES}, {**_DECODED, **_NAMES}, None))

    def _make_reader(self, lines: Iterator[Any], point: dict[str, Any] | None) -> Any:
        fieldnames = {} if point is None else {"fieldnames": point["fieldnames"]}
        return csv.DictReader(lines, **{**self.fmtparams, **fieldnames})

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        placeholder, point = super()._bookmark(path, stream)
        reader = self._reader
        # `reader.fieldnames` is used only if a row was read, because accessing this attribute may read the first row.
        parameters = self.fmtparams if self._point is None else self._point
        known = reader.fieldnames if reader is not None and reader.line_num else parameters.get("fieldnames")
        return placeholder, {**point, "fieldnames": known}
