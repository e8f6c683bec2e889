"""HTTP requests: time limits, retries, connections, and errors that name the pipe.

Each iteration owns its `Connections`, which stay open between URLs until the iteration ends.
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
from torchdata.datapipes._pipe.checks import check_int, on_failure

#: The default time limits in seconds: for connecting, and for a server that sends nothing.
DEFAULT_TIMEOUT = (30.0, 120.0)
DEFAULT_RETRIES = 3
#: The delay in seconds before the second retry of a request. The first retry is not delayed, and from the third retry
#: on, each delay is twice the previous delay.
BACKOFF = 1.0
#: Maximum delay in seconds that a server may request by `Retry-After`.
LONGEST_WAIT = 60.0
_TEMPORARY = (408, 429, 500, 502, 503, 504)


def _get_proxies() -> dict[str, str] | None:
    """Returns the proxies. This function must keep its name, because existing user code replaces it."""
    return None


def checked_timeout(pipe: str, timeout: Any) -> tuple[float | None, float | None]:
    """Returns two limits in seconds, for connecting and for a server that sends nothing; None means no limit."""
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
    """The settings of retries. The callback `count`, which the pipe sets to count its retries, is not pickled. An
    unpickled copy does not count retries."""

    def __init__(self, pipe: str, max_retries: int) -> None:
        self.max_retries = check_int(pipe, "max_retries", max_retries, least=0)
        self.count: Callable[[], object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"max_retries": self.max_retries, "count": None}

    def policy(self) -> Any:
        from urllib3 import Retry

        retrying = self

        class CountedRetry(Retry):  # urllib3 creates further instances by `new`
            def increment(self, *args: Any, **kwargs: Any) -> Any:
                more = super().increment(*args, **kwargs)
                if retrying.count is not None:
                    retrying.count()
                return more

            def get_retry_after(self, response: Any) -> float | None:
                asked = super().get_retry_after(response)
                return None if asked is None else min(asked, LONGEST_WAIT)

        return CountedRetry(
            self.max_retries,
            other=0,
            status_forcelist=_TEMPORARY,
            allowed_methods=("GET",),
            raise_on_status=False,  # the last response becomes an HTTPError
            backoff_factor=BACKOFF / 2,  # urllib3 waits for twice this factor before the second retry
        )


class Connections:
    def __init__(self, retrying: Retrying) -> None:
        self._retrying = retrying
        self._adapter: Any = None
        self._process = 0

    def session(self) -> Any:
        import requests
        from requests.adapters import HTTPAdapter

        session = requests.Session()
        # The server must not compress files, because ranges and sizes in the headers of a compressed response refer to
        # compressed bytes.
        session.headers["Accept-Encoding"] = "identity"
        if self._process != os.getpid():  # no open connections, or the parent process has opened them
            self._adapter, self._process = HTTPAdapter(max_retries=self._retrying.policy()), os.getpid()
        session.mount("http://", self._adapter)
        session.mount("https://", self._adapter)
        return session

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes idle connections. If a connection is receiving a response, the connection is closed when the response
        ends."""
        if self._adapter is not None and self._process == os.getpid():
            for manager in (self._adapter.poolmanager, *self._adapter.proxy_manager.values()):
                for key in manager.pools.keys():  # noqa: SIM118  # the container is not iterable
                    # Each pool is closed explicitly, because an open response would keep the pool and its idle
                    # connections alive.
                    manager.pools[key].close()
            self._adapter.close()
        self._adapter, self._process = None, 0


class Client:
    """Sends requests. A pickled stream contains its client, which reopens the URL."""

    def __init__(self, pipe: str, timeout: Any, retrying: Retrying, options: Mapping[str, Any]) -> None:
        requests = optional_import("requests", extra="http", needed_by=pipe)
        known = set(signature_of(requests.Session.request).parameters)
        known -= {"self", "method", "url", "timeout", "stream"}
        if unknown := sorted(set(options) - known):
            raise TypeError(
                f"{pipe}: {', '.join(unknown)} cannot be passed to requests; possible options are "
                f"{', '.join(sorted(known))}"
            )
        self.pipe = pipe
        self.timeout = checked_timeout(pipe, timeout)
        self.retrying = retrying
        self.options = dict(options)

    def title(self, url: Any, response: Any) -> Any:
        """Returns the first member of the pair that a pipe yields for a file: by default, the URL."""
        return url

    def answer(self, connections: Connections, url: Any, headers: Mapping[str, str]) -> Any:
        """Sends a request, and returns the response before its body is read."""
        return self.get(connections.session(), url, url, headers)

    def get(self, session: Any, url: Any, named: Any, headers: Mapping[str, str]) -> Any:
        """Requests `url`, and returns a successful response before its body is read. Error messages contain `named`,
        the URL that the user gave, instead of `url`."""
        import requests
        from urllib3.exceptions import MaxRetryError, ReadTimeoutError

        options = {"proxies": _get_proxies(), **self.options}
        options["headers"] = {**headers, **(self.options.get("headers") or {})}
        try:
            try:
                response = session.get(url, timeout=self.timeout, stream=True, **options)
            except requests.ConnectionError as error:
                cause = error.args[0] if error.args else None
                if isinstance(cause, MaxRetryError) and isinstance(cause.reason, ReadTimeoutError):
                    raise requests.ReadTimeout(cause.reason, request=error.request) from None
                raise
            with on_failure(response.close):
                response.raise_for_status()
        except Exception as error:
            self.explain(error, f"cannot open {shown(named)}")
            name_item(error, named)
            raise
        return response

    def explain(self, error: Exception, what: str) -> None:
        from requests import RequestException, Timeout
        from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError

        redact_error(error)
        reason = error.args[0] if isinstance(error, ProtocolError) and error.args else error
        message = f"{self.pipe} {what}: {redacted(str(reason))}"
        if isinstance(error, (Timeout, ReadTimeoutError)):
            connect, read = self.timeout
            message += (
                f" (timeout is {connect} s to connect and {read} s of silence, in {1 + self.retrying.max_retries} "
                "attempts; raise it for a slow server)"
            )
        if isinstance(error, (RequestException, HTTPError)):
            error.args = (message,)  # not a note, because some loggers and warnings show only the message
        else:
            error.add_note(message)

    def check(self, url: Any) -> None:
        """Raises an exception of `requests`, which is also a ValueError, if `url` is not an HTTP URL."""
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
