"""Manages obstore for the S3 pipes: the store objects of each process, picklable settings, and error messages.

This module also makes obstore work in a forked child. The extension module of obstore starts threads, which do not
exist in a forked child. In a forked child, each call to the inherited extension module would wait forever, so the child
loads a second copy of the extension module. The second copy starts its own threads; loading it takes 16 ms and 15 MB of
memory. The child neither uses nor frees the copy that it has inherited from its parent.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torchdata._handlers import is_of_handler
from torchdata._native import HeldLock
from torchdata._optional import optional_import
from torchdata._redacting import redacted, shown

DEFAULT_TIMEOUT_MS = 3000
DEFAULT_RETRIES = 3
#: Maximum duration of one request in seconds, even if data keeps arriving.
LONGEST_REQUEST_S = 600
MOST_STORES = 64

#: For each URL scheme: obstore's store class, the class's option for the server, and the default server.
_STORES = {
    "s3": ("S3Store", "endpoint", "Amazon S3"),
    "gs": ("GCSStore", "base_url", "Google Cloud Storage"),
    "az": ("AzureStore", "endpoint", "Azure"),
}
_ENDPOINT_KEYS = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "base_url")
#: Environment variables with credentials. If one of these environment variables is set, the credentials of the AWS
#: profile are ignored.
_OTHER_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
#: Prefixes of all environment variables that affect stores.
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
_NO_NAMES = frozenset({"", ".", ".."})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class S3Error(OSError, ValueError):
    """An S3 request failed. This class derives from ValueError, because torchdata 0.9 raises ValueError."""


class S3NotFoundError(FileNotFoundError, S3Error):
    """The bucket or the object does not exist."""


class S3PermissionError(PermissionError, S3Error):
    """The credentials are missing, wrong, or insufficient."""


class S3TimeoutError(TimeoutError, S3Error):
    """The server did not answer in time."""


@dataclass(frozen=True)
class S3Settings:
    """The settings of a store. `S3Settings` can be pickled, whereas obstore's stores cannot.

    Args:
        request_timeout_ms: milliseconds without a response after which a request fails; -1 for `DEFAULT_TIMEOUT_MS`.
    """

    pipe: str
    request_timeout_ms: int = -1
    region: str = ""
    endpoint_url: str = ""
    config: dict[str, Any] = field(default_factory=dict, repr=False)  # the values may contain secrets
    max_retries: int = DEFAULT_RETRIES

    @property
    def timeout_ms(self) -> int:
        return DEFAULT_TIMEOUT_MS if self.request_timeout_ms == -1 else self.request_timeout_ms

    def endpoint(self, url: str) -> str:
        endpoints = [value for key, value in self.config.items() if key.lower() in _ENDPOINT_KEYS]
        variables = _ENDPOINT_VARIABLES if url.startswith("s3:") else ()
        return next(filter(None, [self.endpoint_url, *endpoints, *map(os.environ.get, variables)]), "")

    def connect(self, bucket: str, url: str) -> tuple[Any, Any]:
        return _process.connect(self, bucket, url)

    def make_store(self, obstore: Any, bucket: str) -> Any:
        scheme, _, name = bucket.partition("://")
        kind, server, _ = _STORES[scheme]
        endpoint, timeout = self.endpoint(bucket), timedelta(milliseconds=self.timeout_ms)
        config = {key: value for key, value in self.config.items() if key.lower() not in _ENDPOINT_KEYS}
        provider = None
        if scheme == "s3":
            profile, provider = _profile(config)
            config = profile | config
        if self.region:
            config["region"] = self.region
        if endpoint:
            config[server] = endpoint
        client = {
            "connect_timeout": timeout,
            "read_timeout": timeout,
            "timeout": timedelta(seconds=LONGEST_REQUEST_S),
            "allow_http": endpoint.startswith("http://"),
        }
        retries = {
            "max_retries": self.max_retries,
            "retry_timeout": (self.max_retries + 1) * timeout,
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
        }
        make = getattr(obstore._store, kind)
        return make(name, config=config, client_options=client, retry_config=retries, credential_provider=provider)


def _profile(options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns the region (as a dict) and the credential provider from the user's AWS profile. Leaves out values that
    the pipe's options (`options`) or the environment already contain.

    boto3 reads the profile's files, and is imported only if the files exist.
    """
    files = [
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
    ]
    keys = {key.lower().removeprefix("aws_") for key in options}
    needs_keys = not any(map(os.environ.get, _OTHER_CREDENTIALS)) and not {"access_key_id", "skip_signature"} & keys
    needs_region = "region" not in keys and not os.environ.get("AWS_REGION")
    if not (needs_keys or needs_region) or not any(os.path.isfile(os.path.expanduser(name)) for name in files):
        return {}, None
    try:
        from boto3 import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}, None
    session = Session()
    region = {"region": session.region_name} if needs_region and session.region_name else {}
    has_keys = needs_keys and session.get_credentials() is not None
    return region, Boto3CredentialProvider(session) if has_keys else None


class _Process:
    def __init__(self, *, inherited: bool) -> None:
        self._inherited = inherited  # whether obstore was loaded before this process was forked
        self._obstore: Any = None
        self._stores: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def connect(self, settings: S3Settings, bucket: str, url: str) -> tuple[Any, Any]:
        environment = tuple(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
        key = (
            bucket,
            settings.timeout_ms,
            settings.max_retries,
            settings.region,
            settings.endpoint_url,
            repr(settings.config),
            environment,
        )
        with HeldLock(self._lock):
            if self._obstore is None:
                optional_import("obstore", extra="s3", needed_by=settings.pipe)
                self._obstore = _own_copy() if self._inherited else sys.modules["obstore._obstore"]
            store = self._stores.get(key)
            if store is None:
                while len(self._stores) >= MOST_STORES:
                    del self._stores[next(iter(self._stores))]
                with explaining_s3(settings, "connect to", url):
                    store = settings.make_store(self._obstore, bucket)
                self._stores[key] = store
            return self._obstore, store


_process = _Process(inherited=False)
#: Objects inherited from a parent process, which are never freed, because freeing needs threads that a forked child
#: lacks.
_kept: list[Any] = []


def keep_inherited(value: Any) -> None:
    _kept.append(value)


def _begin_in_child() -> None:
    global _process
    keep_inherited(_process)
    _process = _Process(inherited="obstore._obstore" in sys.modules)


os.register_at_fork(after_in_child=_begin_in_child)


def _own_copy() -> Any:
    """Loads a second copy of obstore's extension module for this forked child. The dynamic linker does not load the
    same file a second time, so the module is copied to an anonymous file with the process id in its path."""
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
    if not isinstance(url, str):
        raise TypeError(f"{pipe} expects URLs such as 's3://bucket/key', but got {shown(url)}")
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in _STORES or not bucket or (needs_key and not key):
        expected = "s3://bucket/key" if needs_key else "s3://bucket or s3://bucket/prefix"
        raise ValueError(f"{pipe} expects URLs of the form {expected} (or gs://, az://), but got {shown(url)}")
    parts = (key if needs_key else key.removesuffix("/")).split("/")
    if key and (not _NO_NAMES.isdisjoint(parts) or _CONTROL.search(key)):
        raise S3Error(
            f"{pipe} cannot read {shown(url)}: obstore cannot name keys with an empty part, a part that is '.' or "
            "'..', or a control character; copy the object to another key"
        )
    return f"{scheme}://{bucket}", key


_CODE = re.compile(r"<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?", re.DOTALL)


@contextmanager
def explaining_s3(settings: S3Settings, action: str, url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, S3Error) or is_of_handler(error):
            raise
        raise _explained(error, settings, action, url) from None


def _explained(error: Exception, settings: S3Settings, action: str, url: str) -> Exception:
    whole, kind = str(error), type(error).__name__
    found = _CODE.search(whole)
    code = found[1] if found else ""
    reason = ": ".join(filter(None, found.groups())) if found else whole.partition("\n")[0]
    reason = redacted(reason)
    begin = f"{settings.pipe} cannot {action} {shown(url)}"
    server = redacted(settings.endpoint(url) or _STORES[url.partition("://")[0]][2])
    if code == "NoSuchBucket":
        return S3NotFoundError(f"{begin}: {server} has no such bucket; check the URL and the endpoint")
    if kind == "FileNotFoundError":
        return S3NotFoundError(f"{begin}: {server} has no such object")
    if kind == "PreconditionError":
        return S3Error(f"{begin}: the object was changed after it was opened")
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return S3PermissionError(
            f"{begin}: {reason}; check the credentials (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if "169.254.169.254" in whole or "Missing AccessKeyId" in whole or "Missing SecretAccessKey" in whole:
        return S3PermissionError(
            f"{begin}: credentials are missing; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or write "
            "them into ~/.aws/credentials (which needs boto3), or for a public bucket set AWS_SKIP_SIGNATURE=true"
        )
    if "timed out" in whole or "TimedOut" in whole:
        return S3TimeoutError(
            f"{begin}: {server} did not answer within {settings.timeout_ms} ms, in {settings.max_retries + 1} attempts "
            "at most; check the endpoint, or raise request_timeout_ms"
        )
    return S3Error(f"{begin}: {reason}")
