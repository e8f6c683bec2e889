"""Pipes that read files from the network by their URLs: HttpReader, GDriveReader, OnlineReader.

An iteration owns its connections, and closes them when it ends or is abandoned. A stream is closed when the last
reference to it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from torchdata._handlers import is_of_handler
from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.item_by_item import SameLength
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.streams.pairs import source_pipe
from torchdata.datapipes.iter.web.client import DEFAULT_RETRIES, Client, Connections, Retrying
from torchdata.datapipes.iter.web.gdrive import HOSTS, DriveClient
from torchdata.datapipes.iter.web.stream import open_url
from torchdata.datapipes.utils._streams import StreamWrapper

__all__ = ["GDriveReader", "HttpReader", "OnlineReader"]


class _UrlReader(SameLength, IterDataPipe[tuple[str, StreamWrapper]]):
    one_to_one = True

    def __init__(
        self,
        source_datapipe: Iterable[str],
        timeout: float | tuple[float | None, float | None] | None = None,
        skip_on_error: bool = False,
        *,
        max_retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        self.source_datapipe = source_pipe(source_datapipe, self, "source_datapipe")
        self.timeout = timeout
        self.skip_on_error = skip_on_error
        self.query_params = kwargs
        self._retrying = Retrying(name, max_retries)
        self._http, self._drive = (kind(name, timeout, self._retrying, kwargs) for kind in (Client, DriveClient))

    def _client(self, url: Any) -> Client:
        return self._http

    def __iter__(self) -> Iterator[tuple[str, StreamWrapper]]:
        # `iter` is called here rather than when the first item is requested, because a state that is saved before the
        # first item must belong to the new epoch.
        return self._opened(iter(self.source_datapipe))

    def _opened(self, urls: Iterator[Any]) -> Iterator[tuple[str, StreamWrapper]]:
        self._retrying.count = token_of(self).count_retry
        with Connections(self._retrying) as connections:
            for url in urls:
                try:
                    yield open_url(self._client(url), url, connections)  # no variable keeps the stream open
                except Exception as error:
                    if not self.skip_on_error or is_of_handler(error):
                        raise
                    warn_outside(f"{error}, skipping...")


class HttpReader(_UrlReader):
    """Opens files at HTTP URLs: yields pairs of URL and binary stream.

    A stream reads forward only, and requests data from the network while it is read. Redirects are followed. If the
    server compresses a transfer although the request forbids this, the data is decompressed. If a response has fewer
    bytes than its headers announce, an error is raised. A resumed run reopens a stream at its position, if possible by
    a range request. If the file has changed since it was first opened, an error is raised. A state contains the
    settings of the pipe, including passwords and tokens.

    Args:
        source_datapipe: yields URLs that begin with `http://` or `https://`.
        timeout: the time limit in seconds for connecting and for a server that sends nothing, or a pair of both limits.
            None (the default) means 30 s and 120 s; `float("inf")` means no limit.
        skip_on_error: whether URLs that cannot be opened are skipped with a warning; False by default. Errors while a
            stream is read are raised in any case.
        max_retries: number of times that a request is repeated after a temporary fault, at least 0; 3 by default.
            Temporary faults are: no connection, a broken connection, a server that sends nothing, and the status codes
            408, 429, 500, 502, 503 and 504. The delays between the requests grow up to a minute, unless the server sets
            the delay by `Retry-After`. After a broken connection, only the missing bytes are requested if the server
            supports range requests. When a retry has received data, the number of remaining retries is reset to
            `max_retries`. `DataLoader2.stats()` counts the retries.
        **kwargs: options of `requests.get`, such as `headers`, `auth`, `params`, `proxies`, `verify` or
            `allow_redirects`.

    Raises:
        ModuleNotFoundError: `requests` is not installed.
        TypeError: `requests` does not accept an option, or `timeout` is not a number.
        ValueError: `timeout` is not positive, or `max_retries` is negative; or, while iterating, an item is not an HTTP
            URL.
        requests.RequestException: while iterating, a server cannot be reached, is silent, or answers with an error.
        urllib3.exceptions.HTTPError: while reading a stream, the connection breaks or is silent.
        RuntimeError: while reading a stream after a resume or a broken connection, the file has changed.

    Example:
        >>> from torchdata.datapipes.iter import HttpReader, IterableWrapper
        >>> urls = IterableWrapper(["https://example.org/shard-0.tar", "https://example.org/shard-1.tar"])
        >>> pairs = HttpReader(urls, timeout=10, headers={"Authorization": "Bearer ..."}).load_from_tar()
        >>> len(urls.read_from_http())
        2
    """


class GDriveReader(_UrlReader):
    """Opens files of Google Drive by their links: yields pairs of file name and binary stream.

    The file name is the last part of the name that the server sends, and never a path, so a program can safely join it
    to a folder. Links of the forms `…/uc?id=ID`, `…/file/d/ID/view` and `…/open?id=ID` are supported, and the
    confirmation page of large files is accepted automatically. Streams behave as with `HttpReader`.

    Args:
        source_datapipe: yields links.
        timeout: the time limits in seconds, as for `HttpReader`.
        skip_on_error: whether links that cannot be opened are skipped with a warning; False by default.
        max_retries: number of times that a request is repeated, as for `HttpReader`; 3 by default.
        **kwargs: options of `requests.get`.

    Raises:
        RuntimeError: while iterating, the file's quota is exceeded, a link leads to a page instead of a file, or the
            server returns no valid file name.
        Exception: all other errors are the same as for `HttpReader`.

    Example:
        >>> from torchdata.datapipes.iter import GDriveReader, IterableWrapper
        >>> links = IterableWrapper(["https://drive.google.com/file/d/SomeId/view?usp=sharing"])
        >>> pairs = GDriveReader(links, timeout=10)
    """

    def _client(self, url: Any) -> Client:
        return self._drive


class OnlineReader(_UrlReader):
    """Opens files at URLs: URLs at drive.google.com and docs.google.com as `GDriveReader`, others as `HttpReader`.

    Args:
        source_datapipe: yields URLs.
        timeout: the time limits in seconds, as for `HttpReader`.
        skip_on_error: whether URLs that cannot be opened are skipped with a warning; False by default.
        max_retries: number of times that a request is repeated, as for `HttpReader`; 3 by default.
        **kwargs: options of `requests.get`.

    Raises:
        Exception: the same errors as `HttpReader` and `GDriveReader`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper, OnlineReader
        >>> urls = ["https://example.org/a.txt", "https://drive.google.com/uc?export=download&id=SomeId"]
        >>> lines = OnlineReader(IterableWrapper(urls)).readlines()
    """

    def _client(self, url: Any) -> Client:
        try:
            host = urlsplit(url).hostname
        except (ValueError, AttributeError):  # the client reports the error
            host = None
        return self._drive if host in HOSTS else self._http
