"""Pipes that read from AIStore clusters: AISFileLister, AISFileLoader.

Each process creates its own clients, because a connection must not be shared with a parent process. A stream fetches
data when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchdata._handlers import raise_if_of_handler
from torchdata._optional import optional_import, require
from torchdata._redacting import redacted, shown
from torchdata.datapipes._pipe.checks import check_int, check_name, explaining
from torchdata.datapipes._pipe.declared_length import DeclaredLength
from torchdata.datapipes.iter.stores.listing import ListsRoots
from torchdata.datapipes.iter.stores.remote_file import LoadsObjects, ObjectRecipe, RemoteFile
from torchdata.datapipes.iter.streams.pairs import source_pipe

__all__ = ["AISFileLister", "AISFileLoader"]

DEFAULT_TIMEOUT_S = 20.0

_LONGEST_NUMBER = 18
_VERSION = "Ais-Version"


@dataclass(frozen=True)
class _Cluster:
    """The settings of a cluster. `timeout` is the maximum number of seconds for each response of the server, and for
    each request together with its retries."""

    pipe: str
    endpoint: str
    timeout: float

    def client(self) -> Any:
        key = (os.getpid(), self.endpoint, self.timeout)
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = self._make_client()
        return client

    def _make_client(self) -> Any:
        sdk = optional_import("aistore.sdk", extra="aistore", needed_by=self.pipe)
        import tenacity
        from aistore.sdk.errors import ErrObjNotFound
        from aistore.sdk.retry_config import NETWORK_RETRY_EXCEPTIONS, RetryConfig

        def may_pass(error: BaseException) -> bool:
            return isinstance(error, NETWORK_RETRY_EXCEPTIONS) and not isinstance(error, ErrObjNotFound)

        retries = RetryConfig.default()
        retries.http_retry = retries.http_retry.new(total=2, backoff_factor=0.5)
        retries.network_retry = tenacity.Retrying(
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=5),
            stop=tenacity.stop_after_delay(self.timeout),
            retry=tenacity.retry_if_exception(may_pass),
            reraise=True,
        )
        return sdk.Client(self.endpoint, timeout=(self.timeout, self.timeout), retry_config=retries)

    def bucket(self, url: str) -> tuple[Any, str]:
        provider, name, inner = split_url(self.pipe, url)
        return self.client().bucket(name, provider), inner


#: Clients by process id, endpoint and timeout. The process id is a key, because a forked child must not use the clients
#: of its parent.
_clients: dict[tuple[int, str, float], Any] = {}


def split_url(pipe: str, url: Any, *, needs_name: bool = False) -> tuple[str, str, str]:
    provider, separator, rest = check_name(pipe, "every item of the source", url).partition("://")
    bucket, _, name = rest.partition("/")
    if not provider or not separator or not bucket or (needs_name and not name):
        expected = "ais://bucket/name" if needs_name else "ais://bucket or ais://bucket/prefix"
        raise ValueError(f"{pipe} expects URLs of the form {expected} (or of another provider), but got {shown(url)}")
    return provider, bucket, name


def _cluster(pipe: object, url: Any, timeout: Any) -> _Cluster:
    name = type(pipe).__name__
    require("aistore", extra="aistore", needed_by=name)
    endpoint = check_name(name, "url", url)
    if not endpoint:
        raise ValueError(f"{name}: url must be the address of the cluster, such as 'http://localhost:8080', but got ''")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"{name}: timeout must be a number of seconds, but got {timeout!r}")
    if timeout <= 0:
        raise ValueError(f"{name}: timeout must be positive, but got {timeout!r}")
    return _Cluster(name, endpoint if "://" in endpoint else f"http://{endpoint}", float(timeout))


class _OfCluster:
    def __init__(
        self, source_datapipe: Iterable[str], url: str, length: int = -1, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self.source_datapipe = source_pipe(source_datapipe, self)
        self.length = check_int(type(self).__name__, "length", length, least=-1)
        self._cluster = _cluster(self, url, timeout)


class AISFileLister(_OfCluster, DeclaredLength, ListsRoots):
    """Lists objects in an AIStore cluster: yields the URLs that begin with given prefixes.

    The objects of a prefix are sorted by name. If the cluster serves objects of another provider, their URLs name this
    provider (`aws://bucket/`, `gcp://bucket/`).

    Args:
        source_datapipe: yields prefixes such as `ais://bucket` and `ais://bucket/folder/`.
        url: the address of the cluster's proxy.
        length: the number of objects that `len` returns; with -1 (the default), `len` raises TypeError.
        timeout: if the cluster sends nothing for this many seconds, an error is raised; more than 0, 20 by default.

    Raises:
        ModuleNotFoundError: aistore is not installed (extra `aistore`).
        aistore.sdk.errors.AISError: while iterating, the cluster answers with an error.
        requests.exceptions.ConnectionError: while iterating, the cluster does not answer.
        TypeError: `timeout` is not a number.
        ValueError: `timeout` is not positive, or `url` is empty; or, while iterating, an item is not an AIStore URL.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> names = IterableWrapper(["ais://bucket/train/"]).list_files_by_ais(url="http://localhost:8080")
    """

    def _entries(self, root: str, after: Any) -> Iterator[tuple[str, str]]:
        provider, bucket_name, prefix = split_url(type(self).__name__, root)
        entries: Any = None
        while True:
            with explaining(self, f"cannot list, from the cluster at {redacted(self._cluster.endpoint)},", root):
                if entries is None:
                    entries = self._cluster.bucket(root)[0].list_objects_iter(prefix=prefix)
                entry = next(entries, None)
            if entry is None:
                return
            if after is None or entry.name > after:
                yield entry.name, f"{provider}://{bucket_name}/{entry.name}"


@dataclass(frozen=True, repr=False)
class _AISRecipe(ObjectRecipe):
    cluster: _Cluster

    def file(self) -> _AISObject:
        return _AISObject(self)

    def get(self, start: int) -> Any:
        bucket, name = self.cluster.bucket(self.url)
        options = {"byte_range": f"bytes={start}-"} if start else {}
        where = f" from the cluster at {redacted(self.cluster.endpoint)}"
        with explaining(self.cluster.pipe, "cannot read", self.url, where):
            return bucket.object(name).get_reader(**options).raw()


class _AISObject(RemoteFile[_AISRecipe]):
    """An object as a file. Sequential reads use one HTTP response. The first read after a seek sends a new request."""

    #: The offset, within the object, of the next byte that the current response will yield.
    _answer_at = 0

    def _opened(self, recipe: _AISRecipe) -> _AISRecipe:
        headers = self._ask(recipe, 0)
        length = headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > _LONGEST_NUMBER:
            self.drop_answer()
            raise OSError(f"{recipe.cluster.pipe} cannot read {self.name!r}: its Content-Length is {length[:50]!r}")
        return replace(recipe, version=(headers.get(_VERSION, ""), int(length)))

    def drop_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def _ask(self, recipe: _AISRecipe, start: int) -> Any:
        self.drop_answer()
        answer = recipe.get(start)
        known, found = recipe.version, answer.headers.get(_VERSION, "")
        if known is not None and known[0] != found:
            answer.close()
            raise OSError(
                f"{recipe.cluster.pipe} cannot read {shown(self.name)}: the object was changed after it was "
                f"opened (from version {known[0]!r} to {found!r})"
            )
        self._answer, self._answer_at, self._pid = answer, start, os.getpid()
        return answer.headers

    def readinto(self, buffer: Any) -> int:
        self._check_open()
        target = memoryview(buffer).cast("B")
        if self._position >= self.size or not len(target):
            return 0
        if self._answer is None or self._answer_at != self._position or self._pid != os.getpid():
            self._ask(self._recipe, self._position)
        try:
            found = self._answer.read(len(target))
        except Exception as error:
            raise_if_of_handler(error)
            self.drop_answer()
            raise self._broken(redacted(str(error))) from error
        if not found:
            self.drop_answer()
            raise self._broken("the cluster sent no more bytes")
        target[: len(found)] = found
        self._position += len(found)
        self._answer_at = self._position
        if self._position == self.size:
            self.drop_answer()
        return len(found)

    def _broken(self, reason: str) -> OSError:
        pipe, location = self._recipe.cluster.pipe, f"byte {self._position} of {self.size}"
        return OSError(f"{pipe} cannot read {shown(self.name)} beyond {location}: {reason}")


class AISFileLoader(_OfCluster, LoadsObjects):
    """Opens objects of an AIStore cluster: yields pairs of URL and stream.

    An object is fetched while it is read, so its size does not affect the memory use. The streams are seekable and can
    be pickled, so they can be part of a saved state. A resumed stream opens the same version of the object, and raises
    an error if the object has changed.

    Args:
        source_datapipe: yields URLs such as `ais://bucket/name`.
        url: the address of the cluster's proxy.
        length: ignored; `len` is the length of the source, as in torchdata 0.9; -1 by default.
        timeout: if the cluster sends nothing for this many seconds, an error is raised; more than 0, 20 by default.

    Raises:
        ModuleNotFoundError: aistore is not installed (extra `aistore`).
        aistore.sdk.errors.AISError: while iterating, the cluster answers with an error, such as `ErrObjNotFound`.
        requests.exceptions.ConnectionError: while iterating, the cluster does not answer.
        OSError: while reading, the response of the cluster ends early, or the object has changed.
        TypeError: `timeout` is not a number.
        ValueError: `timeout` is not positive, or `url` is empty; or, while iterating, an item is not an AIStore URL.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> names = IterableWrapper(["ais://bucket/shard-0.tar"])
        >>> pairs = names.load_files_by_ais(url="http://localhost:8080").load_from_tar()
    """

    def _recipe(self, url: Any) -> _AISRecipe:
        split_url(type(self).__name__, url, needs_name=True)
        return _AISRecipe(url, self._cluster)
