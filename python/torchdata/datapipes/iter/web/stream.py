"""Streams that read files over HTTP, and reopen them at their last position.

A stream owns its response, and may outlive the iteration that created it. A reopened stream requests only the remaining
part of the file (`Range`). If the server does not support ranges, the stream reads the whole file and drops the first
part. The `ETag`, `Last-Modified` and size in the headers show whether the file has changed. See RFC 9110, sections 8.8,
13 and 14.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple

from torchdata._redacting import shown
from torchdata._reporting import name_item
from torchdata.datapipes._pipe.checks import on_failure
from torchdata.datapipes.iter.web.client import Client, Connections
from torchdata.datapipes.utils._streams import StreamWrapper

#: The size of a stream's buffer in bytes. Most lines are read from the buffer, without a network call.
_BUFFER = 1 << 16
#: The number of bytes per read from the connection when a stream is read to its end, or when bytes before the position
#: are dropped.
_PIECE = 1 << 20


def open_url(client: Client, url: Any, connections: Connections) -> tuple[Any, StreamWrapper]:
    """Requests the file at `url`. Returns the pair that a pipe yields: the result of `Client.title` and the stream."""
    client.check(url)
    response = client.answer(connections, url, {})
    with on_failure(response.close):
        recipe = HttpRecipe(client, url, _Version.of(response))
        title = client.title(url, response)
    return title, StreamWrapper(HttpStream(recipe, response), name=str(url), recipe=recipe)


class _Version(NamedTuple):
    """The response headers that show whether a file has changed."""

    etag: str | None
    modified: str | None
    #: The total size in bytes, if known.
    size: int | None
    #: Whether the server compressed the body, so that an offset in the decompressed stream is not an offset in the
    #: body.
    encoded: bool

    @classmethod
    def of(cls, response: Any) -> _Version:
        headers = response.headers
        encoded = headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity")
        length = headers.get("Content-Length")
        if response.status_code == 206:
            length = headers.get("Content-Range", "").rpartition("/")[2]
        size = int(length) if length and length.isdecimal() and len(length) < 20 and not encoded else None
        return cls(headers.get("ETag"), headers.get("Last-Modified"), size, encoded)

    @property
    def condition(self) -> str | None:
        """Returns the value of the request header `If-Range`; None for a weak tag, which this header does not allow."""
        return self.modified if self.etag is None else self.etag if self.etag.startswith('"') else None

    def differs(self, other: _Version) -> str | None:
        """Describes a header with different values in two versions of a file; None if the headers do not differ."""
        if self.etag and other.etag:
            same = self.etag.removeprefix("W/") == other.etag.removeprefix("W/")
            return None if same else f"its ETag was {self.etag} and is {other.etag}"
        if self.modified and other.modified and self.modified != other.modified:
            return f"it was last modified {self.modified}, now {other.modified}"
        if self.size is not None and other.size is not None and self.size != other.size:
            return f"it had {self.size} bytes and has {other.size}"
        return None


class HttpRecipe:
    """Describes how to open a file by HTTP requests. A recipe is pickled with all settings of its pipe, including
    credentials."""

    def __init__(self, client: Client, url: Any, version: _Version) -> None:
        self.client, self.url, self.version = client, url, version

    def open(self) -> HttpStream:
        return HttpStream(self)

    def ask(self, offset: int) -> tuple[Any, int]:
        """Requests the bytes of the file from `offset` to the end. Returns a response, and the number of bytes to drop
        at the beginning of the response.

        Returns None instead of a response if the file ends at `offset`, so that no bytes remain.

        Raises:
            requests.RequestException: the file is not available.
        """
        headers = {}
        own_range = any(name.lower() == "range" for name in self.client.options.get("headers") or {})
        if offset and not own_range and not self.version.encoded:
            headers["Range"] = f"bytes={offset}-"
            if self.version.condition is not None:
                headers["If-Range"] = self.version.condition
        with Connections(self.client.retrying) as connections:
            response = self._ask(connections, headers, offset)
        if response is None:
            self.version = self.version._replace(size=offset)
            return None, 0
        with on_failure(response.close):
            found = _Version.of(response)
            if not offset:
                self.version = found
                return response, 0
            difference = self.version.differs(found)
            if difference is not None:
                raise RuntimeError(
                    f"{self.client.pipe} cannot continue to read {shown(self.url)} at byte {offset}, because the file "
                    f"has changed: {difference}; start the epoch again"
                )
            if headers and response.status_code == 206:
                sent = response.headers.get("Content-Range", "")
                if not sent.startswith(f"bytes {offset}-") or found.encoded:
                    raise RuntimeError(
                        f"{self.client.pipe} requested {shown(self.url)} from byte {offset}, but the server sent "
                        f"{sent or 'another range'}"
                    )
                return response, 0
            return response, offset

    def _ask(self, connections: Connections, headers: dict[str, str], offset: int) -> Any:
        from requests import HTTPError

        try:
            return self.client.answer(connections, self.url, headers)
        except HTTPError as error:
            if not headers or error.response is None or error.response.status_code != 416:
                raise
            # The server answers with status 416 if the file ends at or before the offset, which means that the file was
            # read to its end, or has become shorter. If the request contained `If-Range`, status 416 proves that the
            # file has not changed. Without `If-Range`, the whole file is requested, because the headers of the response
            # show whether the file has changed.
            if "If-Range" in headers and error.response.headers.get("Content-Range") == f"bytes */{offset}":
                return None
        return self.client.answer(connections, self.url, {})

    def __repr__(self) -> str:
        return f"HttpRecipe({shown(self.url)})"


class _Body(io.RawIOBase):
    """The unbuffered contents of a file, which the first read requests, unless the constructor received a response."""

    def __init__(self, recipe: HttpRecipe, response: Any = None) -> None:
        self.recipe, self.response = recipe, response
        self.position = 0
        #: The number of bytes to drop from the response, because they precede `position`.
        self._early = 0
        self._failure: Exception | None = None
        #: The remaining retries of the current request; None if no retry has followed the last received bytes.
        self._retry: Any = None

    @property
    def name(self) -> str:
        return str(self.recipe.url)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        data = self.read_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        pieces = []
        while data := self.read_some(_PIECE, whole=True):
            pieces.append(data)
        return b"".join(pieces)

    def read_some(self, most: int, whole: bool = False) -> bytes:
        """Returns between one and `most` bytes of the file. If `whole` is True, the result has fewer than `most` bytes
        only at the end of the file. The result is empty only at the end of the file."""
        if self._failure is not None:  # after an error, the position is unknown
            raise _without_traceback(self._failure)
        from urllib3.exceptions import HTTPError

        while True:
            try:
                data = self._read_some(most, whole and self._retry is None)
                break
            except HTTPError as error:
                if not self._may_retry(error):
                    self.recipe.client.explain(error, f"was reading {shown(self.name)} from byte {self.position} on")
                    name_item(error, self.name)
                    self._failure = _without_traceback(error)
                    raise
            except Exception as error:
                self._failure = _without_traceback(error)
                raise
        if data:
            self.position, self._retry = self.position + len(data), None
        return data

    def _may_retry(self, error: Exception) -> bool:
        """Waits for the delay before the next retry and returns True; returns False if no retries are left."""
        from urllib3.exceptions import MaxRetryError

        retry = self.recipe.client.retrying.policy() if self._retry is None else self._retry
        try:
            self._retry = retry.increment("GET", error=error)
        except MaxRetryError:
            return False
        self._drop_response()
        self._retry.sleep()
        return True

    def _read_some(self, most: int, whole: bool) -> bytes:
        if self.response is None:
            if self.position and self.position == self.recipe.version.size:
                return b""
            self.response, self._early = self.recipe.ask(self.position)
            if self.response is None:
                return b""
        while self._early:
            dropped = self._arrived(min(self._early, _PIECE), whole=True)
            if not dropped:
                raise RuntimeError(
                    f"{self.recipe.client.pipe} cannot continue to read {shown(self.name)} at byte {self.position}, "
                    f"because the file has changed: it ends {self._early} bytes before that byte; start the epoch again"
                )
            self._early -= len(dropped)
        return self._arrived(most, whole)

    def _arrived(self, most: int, whole: bool) -> bytes:
        """Returns up to `most` bytes of the response, decompressed if necessary. If `whole` is True, waits until `most`
        bytes or the end of the response have arrived."""
        from urllib3.exceptions import ProtocolError

        raw, headers = self.response.raw, self.response.headers
        read = raw.read if whole else getattr(raw, "read1", raw.read)  # urllib3 1 only supports whole reads
        decode = "Content-Encoding" in headers
        while True:
            before = raw.tell()
            data: bytes = read(most, decode_content=decode) or b""
            if data:
                return data
            if raw.tell() == before:
                break
        length = headers.get("Content-Length", "")
        if length.isdecimal() and len(length) < 20 and "Transfer-Encoding" not in headers and before < int(length):
            raise ProtocolError(f"it ended after {before} of {length} bytes")  # urllib3 1 does not detect short bodies
        return b""

    def _drop_response(self) -> None:
        response, self.response = self.response, None
        if response is not None:
            response.close()

    def close(self) -> None:
        """Closes the response. The HTTP connection can be reused only if the body was read to its end."""
        self._drop_response()
        super().close()


def _without_traceback(error: Exception) -> Exception:
    """Returns the error without its traceback, which would keep the stream alive."""
    copied = type(error).__new__(type(error), *error.args)
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    return copied


class HttpStream(io.BufferedReader):
    """A binary stream of a file at a URL, as yielded by the pipes over HTTP.

    The stream reads forward only. `seekable()` returns False, so that archive readers do not seek back. `seek` can move
    forward. A `seek` before the first read sets the offset where the server begins to send. If the connection breaks,
    only the bytes that were not received yet are requested again. `max_retries` of the pipe limits how many requests in
    a row may fail without receiving data. When no retries are left, every further read raises the error of the last
    request.

    Args:
        recipe: the recipe for requests.
        response: a response with the contents of the file; None to send a request at the first read.
    """

    def __init__(self, recipe: HttpRecipe, response: Any = None) -> None:
        self._body = _Body(recipe, response)
        super().__init__(self._body, _BUFFER)

    def recipe(self) -> HttpRecipe:
        return self._body.recipe

    @property
    def headers(self) -> Any:
        """The headers of the current response; empty before the first request."""
        return self._body.response.headers if self._body.response is not None else {}

    @property
    def status(self) -> int | None:
        """The HTTP status code of the current response; None before the first request."""
        return self._body.response.status_code if self._body.response is not None else None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves forward to `offset`.

        Raises:
            io.UnsupportedOperation: the target precedes the current position, or is relative to the end.
        """
        position = self.tell()
        target = position + offset if whence == io.SEEK_CUR else offset
        if whence == io.SEEK_END or target < position:
            raise io.UnsupportedOperation(
                f"the stream of {shown(self._body.name)} can only seek forward, but seek({offset}, {whence}) was "
                f"called at byte {position}; read it into io.BytesIO first"
            )
        if self._body.response is None and self._body.position == position:
            self._body.position = position = target  # the server will begin at this position
        while position < target and (dropped := len(self.read(min(target - position, _PIECE)))):
            position += dropped
        return self.tell()
