"""Pipes that read text: LineReader, CSVParser, CSVDictParser.

Role: each turns pairs of path and stream into lines or rows. They run in the process that iterates them. The place in
a file is an offset where the stream can tell it, and else (text files, which cannot while they are iterated) a number
of lines, which a restored pipe skips.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat
from typing import Any

from torchdata.datapipes._checks import check_int
from torchdata.datapipes._registry import functional_datapipe
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter._held import HoldsStream, source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper, parked

__all__ = ["CSVDictParser", "CSVParser", "LineReader"]


def _position(stream: Any) -> int | None:
    try:
        offset: int = stream.tell()
    except (OSError, ValueError, AttributeError):
        return None
    return offset


class _Text(HoldsStream):
    """What the text pipes share: options, skipping lines, decoding, and the place in a file."""

    source_datapipe: Any

    #: Where the pipe found the stream that it reads, and how many of its lines have been read before.
    _start: int | None = None
    _lines_before: int = 0

    def _set_options(
        self,
        source_datapipe: Any,
        *,
        skip_lines: int,
        decode: bool,
        encoding: str,
        errors: str,
        return_path: bool,
    ) -> None:
        name = type(self).__name__
        self.source_datapipe = source_pipe(source_datapipe, self)
        self._skip_lines = check_int(name, "skip_lines", skip_lines, least=0)
        for argument, value, look_up in (
            ("encoding", encoding, codecs.lookup),
            ("errors", errors, codecs.lookup_error),
        ):
            try:
                look_up(value)
            except (LookupError, TypeError) as error:
                raise ValueError(
                    f"{name}: {argument} must be one that Python knows, but got {value!r}"
                ) from error
        self._decode = decode
        self._encoding = encoding
        self._errors = errors
        self._return_path = return_path

    def _source(self) -> Any:
        return self.source_datapipe

    def _lines(self, stream: Any, place: dict[str, Any] | None, strip: bool = False) -> Iterator[Any]:
        """The lines behind `skip_lines`, or behind the place, stripped and decoded by functions in C."""
        self._start = _position(stream)
        self._lines_before = self._skip_lines if place is None else place["skip"]
        # The bare file object: wrappers iterate at the price of one more frame a line.
        lines: Iterator[Any] = iter(stream.file_obj if isinstance(stream, StreamWrapper) else stream)
        first = next(islice(lines, self._lines_before, None), None)
        if first is None:
            return iter(())
        lines = chain((first,), lines)
        in_bytes = isinstance(first, bytes)  # and then all lines of the stream are
        # Methods taken from the types: mapped so, they cost half of what operator.methodcaller does.
        if strip and in_bytes:
            lines = map(bytes.strip, lines, repeat(b"\r\n"))
        elif strip:
            lines = map(str.strip, lines, repeat("\r\n"))
        if self._decode and in_bytes:
            lines = map(bytes.decode, lines, repeat(self._encoding), repeat(self._errors))
        return lines

    def _lines_read(self) -> int:
        """How many lines behind `_start` and `_lines_before` the items yielded so far took."""
        raise NotImplementedError

    def _explained(self, error: Exception, path: str) -> Exception:
        if isinstance(error, UnicodeDecodeError):
            place = f"after line {self._lines_before + self._lines_read()} of {path!r}"
            error.reason = f"{error.reason} ({place}; pass errors='replace' or the right encoding)"
        return error

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        if _position(stream) is not None:
            return parked(stream), {"skip": 0}
        return parked(stream, self._start), {"skip": self._lines_before + self._lines_read()}

    def _attributes_to_copy(self) -> dict[str, Any]:
        return {**super()._attributes_to_copy(), "_start": None, "_lines_before": 0}


@functional_datapipe("readlines")
class LineReader(_Text):
    r"""Yields the lines of streams, as pairs of path and line.

    Args:
        source_datapipe: yields pairs of path and stream. The streams are closed when they are read.
        skip_lines: lines to leave out at the start of each stream.
        strip_newline: whether `\r` and `\n` are taken off both ends of a line.
        decode: whether lines of bytes are decoded.
        encoding: the encoding of lines of bytes.
        errors: what becomes of bytes that do not decode: `"ignore"`, `"replace"`, `"strict"`, …
        return_path: whether pairs of path and line are yielded, or lines alone.

    Raises:
        ValueError: `skip_lines` is negative, or `encoding` or `errors` is unknown.
        UnicodeDecodeError: while iterating, with `errors="strict"`; its reason names the path.

    Example:
        >>> import io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("a.txt", io.StringIO("one\ntwo\n"))]).readlines())
        [('a.txt', 'one'), ('a.txt', 'two')]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
    ) -> None:
        self._set_options(
            source_datapipe,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
        )
        self._strip_newline = strip_newline
        self._yielded_before = 0

    def _read(self, path: str, stream: Any, place: Any) -> Iterator[Any]:
        self._yielded_before = token_of(self).yielded
        lines = self._lines(stream, place, strip=self._strip_newline)
        return zip(repeat(path), lines, strict=False) if self._return_path else lines

    def _lines_read(self) -> int:
        return token_of(self).yielded - self._yielded_before


class _CSV(_Text):
    """What the CSV pipes share: a reader of Python's `csv` per stream, and errors that name the line."""

    _reader: Any = None
    fmtparams: dict[str, Any]

    def _set_format(self, fmtparams: dict[str, Any]) -> None:
        self.fmtparams = fmtparams
        try:
            self._make_reader(iter(()), None)
        except (TypeError, csv.Error) as error:
            raise TypeError(
                f"{type(self).__name__}: {error}; the options beyond its own are those of Python's csv module"
            ) from error

    def _make_reader(self, lines: Iterator[Any], place: dict[str, Any] | None) -> Any:
        raise NotImplementedError

    def _rows(self, reader: Any) -> Iterator[Any]:
        return iter(reader)

    def _read(self, path: str, stream: Any, place: Any) -> Iterator[Any]:
        self._reader = None
        reader = self._reader = self._make_reader(self._lines(stream, place), place)
        rows = self._rows(reader)
        return zip(repeat(path), rows, strict=False) if self._return_path else rows

    def _explained(self, error: Exception, path: str) -> Exception:
        if isinstance(error, csv.Error):
            return csv.Error(f"{path!r}, line {self._lines_before + self._lines_read()}: {error}")
        return super()._explained(error, path)

    def _lines_read(self) -> int:
        return 0 if self._reader is None else int(self._reader.line_num)

    def _attributes_to_copy(self) -> dict[str, Any]:
        return {**super()._attributes_to_copy(), "_reader": None}


@functional_datapipe("parse_csv")
class CSVParser(_CSV):
    """Yields the rows of CSV files, as lists of str.

    Args:
        source_datapipe: yields pairs of path and stream. The streams are closed when they are read.
        skip_lines: lines to leave out at the start of each stream.
        decode: whether lines of bytes are decoded.
        encoding: the encoding of lines of bytes.
        errors: what becomes of bytes that do not decode: `"ignore"`, `"replace"`, `"strict"`, …
        return_path: whether pairs of path and row are yielded, or rows alone.
        as_tuple: whether rows are tuples.
        **fmtparams: options of `csv.reader`: `delimiter`, `quotechar`, `strict`, …

    Raises:
        ValueError: `skip_lines` is negative, or `encoding` or `errors` is unknown.
        TypeError: `csv` does not know an option.
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
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        **fmtparams: Any,
    ) -> None:
        self._set_options(
            source_datapipe,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
        )
        self._as_tuple = as_tuple
        self._set_format(fmtparams)

    def _make_reader(self, lines: Iterator[Any], place: dict[str, Any] | None) -> Any:
        return csv.reader(lines, **self.fmtparams)

    def _rows(self, reader: Any) -> Iterator[Any]:
        return map(tuple, reader) if self._as_tuple else iter(reader)


@functional_datapipe("parse_csv_as_dict")
class CSVDictParser(_CSV):
    """Yields the rows of CSV files, as dicts with the fields of each file's first row as keys.

    Args:
        source_datapipe: yields pairs of path and stream. The streams are closed when they are read.
        skip_lines: lines to leave out at the start of each stream, before the row of field names.
        decode: whether lines of bytes are decoded.
        encoding: the encoding of lines of bytes.
        errors: what becomes of bytes that do not decode: `"ignore"`, `"replace"`, `"strict"`, …
        return_path: whether pairs of path and row are yielded, or rows alone.
        **fmtparams: options of `csv.DictReader`: `fieldnames`, `restkey`, `delimiter`, …

    Raises:
        ValueError: `skip_lines` is negative, or `encoding` or `errors` is unknown.
        TypeError: `csv` does not know an option.
        csv.Error: while iterating, a row is malformed; the message names path and line.

    Example:
        >>> import io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("a.csv", io.StringIO("key,item\\na,1"))]).parse_csv_as_dict())
        [{'key': 'a', 'item': '1'}]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        **fmtparams: Any,
    ) -> None:
        self._set_options(
            source_datapipe,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
        )
        self._set_format(fmtparams)

    def _make_reader(self, lines: Iterator[Any], place: dict[str, Any] | None) -> Any:
        fieldnames = {} if place is None else {"fieldnames": place["fieldnames"]}
        return csv.DictReader(lines, **{**self.fmtparams, **fieldnames})

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        stand_in, place = super()._bookmark(path, stream)
        reader = self._reader
        # Asking for the names before the first row was read would read it. There is no reader where no line decoded.
        given = self.fmtparams if self._place is None else self._place
        known = reader.fieldnames if reader is not None and reader.line_num else given.get("fieldnames")
        return stand_in, {**place, "fieldnames": known}
