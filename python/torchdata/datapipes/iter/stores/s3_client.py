"""obstore, as the S3 pipes use it: one set of stores per process, settings that pickle, errors that explain.

Role: makes stores in the process that iterates. obstore does its work in threads of its own, and threads do not
survive a fork: in a child that was forked after obstore was loaded, every call of it would wait for ever. Such a child
therefore loads a second copy of obstore's extension, whose threads are its own (16 ms, 15 MB). The inherited copy is
neither used nor dropped there. Owned here: the stores of this process.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from torchdata._optional import optional_import
from torchdata._redacting import redacted, shown
from torchdata.datapipes.iter.stores.s3_profile import profile_settings

__all__ = [
    "S3Error",
    "S3NotFoundError",
    "S3PermissionError",
    "S3Settings",
    "S3TimeoutError",
    "explaining_s3",
    "is_path",
    "split_url",
]

#: The time that a request may take by default, in milliseconds.
DEFAULT_TIMEOUT_MS = 3000
#: How often a request is sent again by default, after an error that may pass.
DEFAULT_RETRIES = 3
#: The most that one request may take however steadily it goes, in seconds.
LONGEST_REQUEST_S = 600
#: Stores kept per process.
MOST_STORES = 64

_ENDPOINT_KEYS = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url")
#: A query parameter that S3 ignores, as all those that begin with "x-", and the path of which obstore makes its value.
_IGNORED, _ANY_PATH = "x-path", "any"
_DOTS = frozenset({".", ".."})
_NO_NAMES = _DOTS | {""}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: How obstore writes "true".
_TRUE = ("1", "true", "on", "yes", "y")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class S3Error(OSError, ValueError):
    """An S3 request failed. (torchdata 0.9 raises ValueError.)"""


class S3NotFoundError(FileNotFoundError, S3Error):
    """The bucket or the object does not exist."""


class S3PermissionError(PermissionError, S3Error):
    """The credentials are missing, wrong, or do not suffice."""


class S3TimeoutError(TimeoutError, S3Error):
    """The server did not answer in time."""


def _is_about(setting: str, *subjects: str) -> bool:
    """Whether the name of one of obstore's settings speaks of a subject."""
    return any(subject in setting.lower() for subject in subjects)


@dataclass(frozen=True)
class S3Settings:
    """How stores are made: the pipe's arguments, which pickle as the store would not.

    Args:
        pipe: the pipe's name, for messages.
        request_timeout_ms: milliseconds without an answer after which a request has failed; -1: `DEFAULT_TIMEOUT_MS`.
        region: the region; empty: from the environment.
        endpoint_url: the server; empty: from the environment, else Amazon's.
        config: further settings of obstore's `S3Store`.
        max_retries: how often a request is sent again after an error that may pass.
    """

    pipe: str
    request_timeout_ms: int = -1
    region: str = ""
    endpoint_url: str = ""
    config: dict[str, Any] = field(default_factory=dict, repr=False)  # there may be secrets in it
    max_retries: int = DEFAULT_RETRIES

    @property
    def timeout_ms(self) -> int:
        """Milliseconds without an answer after which a request has failed."""
        return DEFAULT_TIMEOUT_MS if self.request_timeout_ms == -1 else self.request_timeout_ms

    @property
    def endpoint(self) -> str:
        """The server's URL, or an empty str for Amazon's."""
        given = [value for key, value in self.config.items() if key.lower() in _ENDPOINT_KEYS]
        return next(filter(None, [self.endpoint_url, *given, *map(os.environ.get, _ENDPOINT_VARIABLES)]), "")

    def connect(self, bucket: str, url: str, target: str = "") -> tuple[Any, Any]:
        """obstore's functions and a store, both of this process, for reading `url`: the bucket's, or a target's."""
        return _process.connect(self, bucket, url, target)

    def reach(self, bucket: str, key: str, url: str) -> tuple[Any, Any, str]:
        """obstore's functions, a store, and the path in that store at which the object lies.

        Raises:
            S3Error: the key has a part that is `.` or `..`.
        """
        if is_path(key):
            return *self.connect(bucket, url), key
        if not _DOTS.isdisjoint(key.split("/")):
            raise S3Error(
                f"{self.pipe} cannot read {shown(url)}: the key has a part that is '.' or '..', which is left out of "
                "every URL before it is sent; copy the object to another key, or leave it out by a mask"
            )
        return *self.connect(bucket, url, f"/{quote(key)}?{_IGNORED}="), _ANY_PATH

    def sign(self, bucket: str, query: str, url: str) -> str:
        """A URL that asks the bucket `query`, and that may be sent within the next minutes."""
        obstore, _ = self.connect(bucket, url)
        if self._skips_signature:
            return f"{self._address(obstore, bucket)}?{query}"
        store = self.make_store(obstore, bucket, f"?{query}&{_IGNORED}=")
        signed: str = obstore.sign(store, "GET", _ANY_PATH, timedelta(minutes=5))
        return signed

    @property
    def _skips_signature(self) -> bool:
        given = [value for key, value in self.config.items() if key.lower().removeprefix("aws_") == "skip_signature"]
        return str((given or [os.environ.get("AWS_SKIP_SIGNATURE")])[-1]).lower() in _TRUE

    def _address(self, obstore: Any, bucket: str) -> str:
        """The URL of the bucket, as obstore puts it together. Any credentials do for asking."""
        config = {key: value for key, value in self._config().items() if not _is_about(key, "signature", "access_key")}
        store = self._new_store(obstore, bucket, {**config, "access_key_id": "any", "secret_access_key": "any"})
        signed: str = obstore.sign(store, "GET", "", timedelta(minutes=1))
        return signed.partition("?")[0].rstrip("/")

    def make_store(self, obstore: Any, bucket: str, target: str = "") -> Any:
        """A new store.

        Args:
            obstore: obstore's functions.
            bucket: the bucket.
            target: what follows the bucket's URL. All paths of the store lead there: obstore appends a path to the URL
                that it was given, which ends in a query parameter that S3 ignores. So a request can be sent for a key
                that is no path of obstore's, and be signed with a query of ours.
        """
        config = self._config()
        if target:
            config = {key: value for key, value in config.items() if not _is_about(key, "virtual_hosted")}
            address = self._address(obstore, bucket)
            config |= {"endpoint": address + target, "virtual_hosted_style_request": True}
        return self._new_store(obstore, bucket, config)

    def _config(self) -> dict[str, Any]:
        given = {key: value for key, value in self.config.items() if key.lower() not in _ENDPOINT_KEYS}
        config = {**profile_settings(given), **given}
        if self.region:
            config["region"] = self.region
        if self.endpoint:
            config["endpoint"] = self.endpoint
        return config

    def _new_store(self, obstore: Any, bucket: str, config: dict[str, Any]) -> Any:
        timeout = timedelta(milliseconds=self.timeout_ms)
        client = {
            "connect_timeout": timeout,
            "read_timeout": timeout,
            "timeout": timedelta(seconds=LONGEST_REQUEST_S),
        }
        if self.endpoint.startswith("http://"):
            client["allow_http"] = True  # type: ignore[assignment]
        retries = {
            "max_retries": self.max_retries,
            "retry_timeout": (self.max_retries + 1) * timeout,
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=1),
                "base": 2,
            },
        }
        return obstore._store.S3Store(bucket, config=config, client_options=client, retry_config=retries)


class _Process:
    """obstore and the stores of one process."""

    def __init__(self, *, inherited: bool) -> None:
        self._inherited = inherited  # whether obstore was loaded before this process was forked
        self._obstore: Any = None
        self._stores: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def connect(self, settings: S3Settings, bucket: str, url: str, target: str) -> tuple[Any, Any]:
        """obstore's functions and the store of a bucket, or of what follows the bucket's URL."""
        environment = tuple(item for item in os.environ.items() if item[0].startswith("AWS_"))
        key = (
            bucket,
            target,
            settings.timeout_ms,
            settings.max_retries,
            settings.region,
            settings.endpoint,
            repr(settings.config),
            environment,
        )
        with self._lock:
            if self._obstore is None:
                optional_import("obstore", extra="s3", needed_by=settings.pipe)
                self._obstore = _own_copy() if self._inherited else sys.modules["obstore._obstore"]
            store = self._stores.get(key)
            if store is None:
                while len(self._stores) >= MOST_STORES:
                    del self._stores[next(iter(self._stores))]
                with explaining_s3(settings, "connect to", url):
                    store = settings.make_store(self._obstore, bucket, target)
                self._stores[key] = store
            return self._obstore, store


_process = _Process(inherited=False)
#: Objects inherited from parents that must not be dropped here, because other threads owned part of them.
_kept: list[Any] = []


def keep_inherited(thing: Any) -> None:
    """Keeps something of obstore's that a parent process made for as long as this process lives."""
    _kept.append(thing)


def _begin_in_child() -> None:
    global _process
    keep_inherited(_process)
    _process = _Process(inherited="obstore._obstore" in sys.modules)


os.register_at_fork(after_in_child=_begin_in_child)


def _own_copy() -> Any:
    """A second copy of obstore's extension, with its own globals.

    The copy lies in an anonymous file: the dynamic loader takes files for the same by inode, and by name, so the
    process's number is part of the name by which it is loaded.

    Raises:
        RuntimeError: the copy cannot be loaded.
    """
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    name, before = "obstore._obstore", dict(sys.modules)
    try:
        memory = os.memfd_create("obstore")
        try:
            with open(sys.modules[name].__file__ or "", "rb") as source:
                left = os.fstat(source.fileno()).st_size
                while left > 0:
                    left -= os.sendfile(memory, source.fileno(), None, left)
            path = f"/proc/{os.getpid()}/fd/{memory}"
            loader = ExtensionFileLoader(name, path)
            spec = spec_from_file_location(name, path, loader=loader)
            copy = module_from_spec(spec)  # type: ignore[arg-type]
            loader.exec_module(copy)
        finally:
            os.close(memory)
            for changed in [key for key, module in sys.modules.items() if before.get(key) is not module]:
                if changed in before:
                    sys.modules[changed] = before[changed]
    except Exception as error:
        raise RuntimeError(
            f"obstore was loaded before this process was forked, so it cannot be used here, and no copy of it could be "
            f"loaded ({error}); start the workers by multiprocessing_context='spawn' or 'forkserver'"
        ) from error
    return copy


def split_url(pipe: str, url: Any, *, needs_key: bool) -> tuple[str, str]:
    """Bucket and key (or prefix, which may be empty) of `s3://bucket/key`.

    Raises:
        TypeError: `url` is no str.
        ValueError: it is another kind of URL, or lacks a part.
    """
    if not isinstance(url, str):
        raise TypeError(f"{pipe} expects URLs such as 's3://bucket/key', but got {shown(url)}")
    scheme, separator, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not separator or not bucket or (needs_key and not key):
        expected = "s3://bucket/key" if needs_key else "s3://bucket or s3://bucket/prefix"
        raise ValueError(f"{pipe} expects URLs of the form {expected}, but got {shown(url)}")
    return bucket, key


def is_path(key: str) -> bool:
    """Whether obstore can name the key: no part is empty, `.` or `..`, and no character is a control character."""
    return _NO_NAMES.isdisjoint(key.split("/")) and not _CONTROL.search(key)


_CODE = re.compile(r"<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?", re.DOTALL)


@contextmanager
def explaining_s3(settings: S3Settings, action: str, url: str) -> Iterator[None]:
    """Turns obstore's errors into an S3Error that names pipe and URL, in one line."""
    try:
        yield
    except S3Error:
        raise
    except Exception as error:
        raise _explained(error, settings, action, url) from None


def _explained(error: Exception, settings: S3Settings, action: str, url: str) -> Exception:
    whole, kind = str(error), type(error).__name__
    found = _CODE.search(whole)
    code = found[1] if found else ""
    reason = ": ".join(filter(None, found.groups())) if found else whole.partition("\n")[0]
    reason = redacted(reason)
    begin = f"{settings.pipe} cannot {action} {shown(url)}"
    server = redacted(settings.endpoint or "Amazon S3")
    if code == "NoSuchBucket":
        return S3NotFoundError(f"{begin}: {server} has no such bucket; check the URL and the endpoint")
    if kind == "FileNotFoundError":
        return S3NotFoundError(f"{begin}: {server} has no such object")
    if kind == "PreconditionError":
        return S3Error(f"{begin}: the object was changed after it was opened")
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return S3PermissionError(f"{begin}: {reason}; check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)")
    if "169.254.169.254" in whole or "Missing AccessKeyId" in whole or "Missing SecretAccessKey" in whole:
        return S3PermissionError(
            f"{begin}: credentials are missing; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or write "
            "them into ~/.aws/credentials, or for a public bucket set AWS_SKIP_SIGNATURE=true"
        )
    if "timed out" in whole or "TimedOut" in whole:
        return S3TimeoutError(
            f"{begin}: {server} did not answer within {settings.timeout_ms} ms, in {settings.max_retries + 1} attempts "
            "at most; check the endpoint, or raise request_timeout_ms"
        )
    return S3Error(f"{begin}: {reason}")
