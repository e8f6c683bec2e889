"""Asking for files over HTTP: time limits, retries, connections, and errors that say which pipe met them.

Role: what HttpReader, GDriveReader and OnlineReader share, and the streams that they yield. Runs in the process that
iterates the pipe or reads the stream. An iteration owns its `Connections`, which are kept alive from one URL to the
next and closed with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from torchdata._optional import optional_import
from torchdata._redacting import redact_error, redacted, shown
from torchdata._reporting import name_item
from torchdata._signatures import signature_of
from torchdata.datapipes._pipe.checks import check_int

__all__ = ["DEFAULT_RETRIES", "DEFAULT_TIMEOUT", "Client", "Connections", "Retrying"]

#: Seconds to connect, and seconds of silence from a server, if the user set no limit.
DEFAULT_TIMEOUT = (30.0, 120.0)
#: How often a request is sent again after a fault that may pass.
DEFAULT_RETRIES = 3
#: Seconds before the second retry; they double with each further one. The first comes at once.
BACKOFF = 1.0
#: The most seconds that a server may ask to wait by `Retry-After`.
LONGEST_WAIT = 60.0
#: Answers after which a request is sent again.
_TEMPORARY = (408, 429, 500, 502, 503, 504)


def _get_proxies() -> dict[str, str] | None:
    """The proxies of all requests whose pipe was given none, by scheme; None: those that the environment names.

    For old code that puts a function of its own in its place.
    """
    return None


def checked_timeout(pipe: str, timeout: Any) -> tuple[float | None, float | None]:
    """The limits to connect and of silence, in seconds, from what the user gave; None: no limit.

    Raises:
        TypeError: it is neither a number nor a pair of them.
        ValueError: a limit is not positive.
    """
    if timeout is None:
        return DEFAULT_TIMEOUT
    limits = timeout if isinstance(timeout, tuple) and len(timeout) == 2 else (timeout, timeout)
    for limit in limits:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float))):
            raise TypeError(
                f"{pipe}: timeout must be seconds, or a pair of seconds to connect and to read, but got {timeout!r}"
            )
        if limit is not None and not limit > 0:
            raise ValueError(f"{pipe}: timeout must be positive, but got {timeout!r}; float('inf') waits for ever")
    connect, read = (None if limit == float("inf") else limit for limit in limits)
    return connect, read


class Retrying:
    """How often a pipe sends a request again, and where that is counted. Pickles without the count.

    Args:
        pipe: the name of the pipe, for messages.
        max_retries: how often, as the user gave it.

    Raises:
        TypeError: that is no integer.
        ValueError: that is negative.
    """

    def __init__(self, pipe: str, max_retries: int) -> None:
        self.max_retries = check_int(pipe, "max_retries", max_retries, least=0)
        #: Called before each retry.
        self.count: Callable[[], object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"max_retries": self.max_retries, "count": None}

    def policy(self) -> Any:
        """A `urllib3.Retry` for one request, or for one break in the body of an answer."""
        from urllib3 import Retry

        retrying = self

        class Counted(Retry):  # `new` makes others of this class
            def increment(self, *args: Any, **kwargs: Any) -> Any:
                more = super().increment(*args, **kwargs)
                if retrying.count is not None:
                    retrying.count()
                return more

            def get_retry_after(self, response: Any) -> float | None:
                asked = super().get_retry_after(response)
                return None if asked is None else min(asked, LONGEST_WAIT)

        return Counted(
            self.max_retries,
            other=0,
            status_forcelist=_TEMPORARY,
            allowed_methods=("GET",),
            raise_on_status=False,  # the last answer becomes an HTTPError
            backoff_factor=BACKOFF / 2,  # of which the second retry waits twice as long
        )


class Connections:
    """Connections that are used again by the next request to the same server. A context manager that closes them.

    Not for pickles: every process, and every iteration, has its own.

    Args:
        retrying: how often a request is sent again.
    """

    def __init__(self, retrying: Retrying) -> None:
        self._retrying = retrying
        self._adapter: Any = None
        self._process = 0

    def session(self) -> Any:
        """A session of `requests` with cookies of its own over these connections."""
        import requests

        session = requests.Session()
        # Other encodings would make ranges and sizes those of the compressed bytes, to which no offset fits.
        session.headers["Accept-Encoding"] = "identity"
        self.mount(session)
        return session

    def mount(self, session: Any) -> None:
        """Makes a session use these connections."""
        from requests.adapters import HTTPAdapter

        if self._process != os.getpid():  # closed, or forked since: then the connections are the parent's
            self._adapter, self._process = HTTPAdapter(max_retries=self._retrying.policy()), os.getpid()
        session.mount("http://", self._adapter)
        session.mount("https://", self._adapter)

    def close(self) -> None:
        """Closes the idle connections; a stream that is being read closes its own when it ends."""
        if self._adapter is not None and self._process == os.getpid():
            for manager in (self._adapter.poolmanager, *self._adapter.proxy_manager.values()):
                for key in manager.pools.keys():  # noqa: SIM118  # it cannot be iterated over
                    manager.pools[key].close()  # or it would live, and keep connections, as long as a response
            self._adapter.close()
        self._adapter, self._process = None, 0

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Client:
    """How a pipe asks for URLs. Picklable, as part of the recipes of its streams.

    Args:
        pipe: the name of the pipe, for messages.
        timeout: as the user gave it.
        retrying: how often a request is sent again.
        options: what is passed on to `requests.Session.get`.

    Raises:
        ModuleNotFoundError: `requests` is not installed.
        TypeError: an option is none of `requests`.
    """

    def __init__(self, pipe: str, timeout: Any, retrying: Retrying, options: Mapping[str, Any]) -> None:
        requests = optional_import("requests", extra="http", needed_by=pipe)
        known = set(signature_of(requests.Session.request).parameters)
        known -= {"self", "method", "url", "timeout", "stream"}
        if unknown := sorted(set(options) - known):
            raise TypeError(
                f"{pipe}: {', '.join(unknown)} is no option of requests that can be passed on; "
                f"there are {', '.join(sorted(known))}"
            )
        self.pipe = pipe
        self.timeout = checked_timeout(pipe, timeout)
        self.retrying = retrying
        self.options = dict(options)

    def title(self, url: Any, response: Any) -> Any:
        """The title of a file: its URL."""
        return url

    def answer(self, connections: Connections, url: Any, headers: Mapping[str, str]) -> Any:
        """The response with the content of `url`, its body unread."""
        return self.get(connections.session(), url, url, headers)

    def get(self, session: Any, url: Any, named: Any, headers: Mapping[str, str]) -> Any:
        """One successful response, its body unread. Messages speak of `named`, if that is not `url` itself."""
        import requests
        from urllib3.exceptions import MaxRetryError, ReadTimeoutError

        options = {"proxies": _get_proxies(), **self.options}
        options["headers"] = {**headers, **(self.options.get("headers") or {})}
        try:
            try:
                response = session.get(url, timeout=self.timeout, stream=True, **options)
            except requests.ConnectionError as error:
                told = error.args[0] if error.args else None
                if isinstance(told, MaxRetryError) and isinstance(told.reason, ReadTimeoutError):
                    raise requests.ReadTimeout(told.reason, request=error.request) from None
                raise
            try:
                response.raise_for_status()
            except BaseException:
                response.close()
                raise
        except Exception as error:
            self.explain(error, f"cannot open {shown(named)}")
            name_item(error, named)
            raise
        return response

    def explain(self, error: Exception, what: str) -> None:
        """Makes an error of `requests` or `urllib3` say which pipe met it, where, and what to do."""
        from requests import RequestException, Timeout
        from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError

        redact_error(error)
        said = error.args[0] if isinstance(error, ProtocolError) and error.args else error
        message = f"{self.pipe} {what}: {redacted(str(said))}"
        if isinstance(error, (Timeout, ReadTimeoutError)):
            connect, read = self.timeout
            message += (
                f" (timeout is {connect} s to connect and {read} s of silence, in {1 + self.retrying.max_retries} "
                "attempts; raise it for a slow server)"
            )
        if isinstance(error, (RequestException, HTTPError)):
            error.args = (message,)  # not by a note: some loggers, and warnings, show the message alone
        else:
            error.add_note(message)

    def check(self, url: Any) -> None:
        """Raises ValueError, of one of the kinds that `requests` has, unless `url` is an HTTP URL."""
        from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema

        if not isinstance(url, (str, bytes)):
            raise MissingSchema(f"{self.pipe} expects URLs as str, but got {shown(url)} of type {type(url).__name__}")
        try:
            parts = urlsplit(url if isinstance(url, str) else url.decode())
        except ValueError as error:
            raise InvalidURL(f"{self.pipe} cannot read the URL {shown(url)}: {redacted(str(error))}") from None
        if not parts.scheme:
            raise MissingSchema(f"{self.pipe} reads URLs that begin with http:// or https://, but got {shown(url)}")
        if parts.scheme not in ("http", "https"):
            raise InvalidSchema(
                f"{self.pipe} reads URLs that begin with http:// or https://, but got {shown(url)}; "
                "open_files reads local files, and open_files_by_fsspec many other kinds"
            )
