"""Pipes that read from S3, Google Cloud Storage and Azure: S3FileLister, S3FileLoader.

A stream fetches data when it is read, and keeps no connection open between requests (see `s3_object.py`). Each process
creates its own store objects of obstore (see `s3_client.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from torchdata._optional import require
from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_int, check_name, check_optional_int
from torchdata.datapipes._pipe.declared_length import DeclaredLength
from torchdata.datapipes.iter.stores.listing import ListsRoots, check_options
from torchdata.datapipes.iter.stores.remote_file import LoadsObjects
from torchdata.datapipes.iter.stores.s3_client import DEFAULT_RETRIES, S3Error, S3Settings, explaining_s3, split_url
from torchdata.datapipes.iter.stores.s3_object import DEFAULT_BUFFER_SIZE, S3Recipe
from torchdata.datapipes.iter.streams.files import check_masks, matches
from torchdata.datapipes.iter.streams.pairs import source_pipe

__all__ = ["S3FileLister", "S3FileLoader"]

#: The number of keys that S3 lists per request, and that obstore returns at once.
_KEYS_PER_PAGE = 1000


def _settings(
    pipe: object,
    request_timeout_ms: Any,
    region: Any,
    endpoint_url: Any,
    config: Mapping[str, Any] | None,
    max_retries: Any,
) -> S3Settings:
    name = type(pipe).__name__
    require("obstore", extra="s3", needed_by=name)
    timeout = check_int(name, "request_timeout_ms", request_timeout_ms, least=-1)
    if timeout == 0:
        raise ValueError(f"{name}: request_timeout_ms must be positive, or -1 for the default, but got 0")
    region, endpoint = check_name(name, "region", region), check_name(name, "endpoint_url", endpoint_url)
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"{name}: endpoint_url must begin with http:// or https://, but got {shown(endpoint)}")
    retries = check_int(name, "max_retries", max_retries, least=0)
    return S3Settings(name, timeout, region, endpoint, check_options(name, "config", config), retries)


class S3FileLister(DeclaredLength, ListsRoots):
    """Yields URLs in S3, Google Cloud Storage (`gs://`) or Azure (`az://`) that begin with a prefix.

    The objects of a prefix are sorted by key, and listed in pages of 1,000. Keys that end in a slash represent folders
    and are left out. A prefix need not end at a slash: `s3://bucket/train` finds `train/0.tar` and `train-1.tar`. URLs
    are plain text without percent-encoding.

    Credentials, region and endpoint are read from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_SKIP_SIGNATURE=true` for public buckets;
    `GOOGLE_APPLICATION_CREDENTIALS`; `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`). Without credentials in
    the environment, S3 uses the profile `AWS_PROFILE` through boto3, or the machine's role. Keys with an empty part
    (`train//2.tar`), a part `.` or `..`, or a control character raise an error, because obstore does not support them.

    The pipe also works in forked workers, even if the parent process used it before.

    Args:
        source_datapipe: yields prefixes such as `s3://bucket` and `s3://bucket/folder/`.
        length: the number of objects that `len` returns; with -1 (the default), `len` raises TypeError.
        request_timeout_ms: milliseconds without a response after which a request fails; -1 (the default) for 3,000 ms.
        region: the region of S3 buckets; empty (the default) uses the environment.
        masks: a shell pattern (`*.tar`) or a list of patterns for the whole URL; empty (the default) for all.
        endpoint_url: the address of another server than the provider's (MinIO, Ceph, R2), such as
            `http://localhost:9000`; empty (the default) uses the environment.
        config: further settings of obstore's `S3Store`, `GCSStore` or `AzureStore`, such as `{"skip_signature": True}`.
        max_retries: maximum number of times that a request is repeated after a temporary error, at least 0; 3 by
            default.

    Raises:
        ModuleNotFoundError: obstore is not installed (extra `s3`).
        FileNotFoundError: while iterating, a bucket does not exist.
        PermissionError: while iterating, credentials are missing or refused.
        TimeoutError: while iterating, the server does not answer.
        OSError: while iterating, the server returned an unexpected error. All S3 errors are also ValueErrors.
        TypeError: `max_retries` or another argument has the wrong type.
        ValueError: `max_retries` is negative, or another argument is invalid; or, while iterating, an item is not a URL
            of a supported store.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> shards = IterableWrapper(["s3://bucket/train/"]).list_files_by_s3(masks="*.tar")
        >>> pairs = shards.shuffle().sharding_filter().load_files_by_s3().load_from_tar()
    """

    def __init__(
        self,
        source_datapipe: Iterable[str],
        length: int = -1,
        request_timeout_ms: int = -1,
        region: str = "",
        masks: str | list[str] = "",
        *,
        endpoint_url: str = "",
        config: Mapping[str, Any] | None = None,
        max_retries: int = DEFAULT_RETRIES,
    ) -> None:
        self.source_datapipe = source_pipe(source_datapipe, self)
        self._set_length(length)
        self.masks = check_masks(type(self).__name__, masks)
        self._settings = _settings(self, request_timeout_ms, region, endpoint_url, config, max_retries)

    def _entries(self, root: str, after: Any) -> Iterator[tuple[str, str]]:
        bucket, prefix = split_url(type(self).__name__, root, needs_key=False)
        pages = self._pages(*self._settings.connect(bucket, root), prefix, after)
        while True:
            with explaining_s3(self._settings, "list", root):
                page = next(pages, None)
            if page is None:
                return
            for key in page:
                url = f"{bucket}/{key}"
                if matches(url, self.masks):
                    yield key, url

    def _pages(self, obstore: Any, store: Any, prefix: str, after: str | None) -> Iterator[list[str]]:
        """Yields the keys that begin with `prefix`. This method lists the folder that contains the prefix, and begins
        shortly before the prefix, because obstore can list only whole folders."""
        folder, slash, rest = prefix.rpartition("/")
        start = after or (folder + slash + _just_before(rest) if rest else None)
        pages = obstore.list(store, folder or None, offset=start or None, chunk_size=_KEYS_PER_PAGE)
        last = ""
        for page in pages:
            keys = [entry["path"] for entry in page if entry["size"] or not _is_folder(obstore, store, entry["path"])]
            if any(key <= before for before, key in pairwise([last, *keys])):
                reason = "its keys are not in order, or one begins or ends with a slash, which obstore cuts off"
                raise S3Error(f"{type(self).__name__} cannot list {folder!r} of {store}: {reason}")
            last = keys[-1] if keys else last
            wanted = [key for key in keys if key.startswith(prefix) and key > (after or "")]  # Azure lists `after`, too
            if wanted:
                yield wanted
            if keys and keys[-1] > prefix and not keys[-1].startswith(prefix):
                return


def _just_before(text: str) -> str:
    """Returns a text that precedes `text` in sorted order. `text` must not be empty. A listing that begins after the
    returned text includes `text`."""
    first, last = text[:-1], text[-1]
    if "1" <= last <= "~":
        return f"{first}{chr(ord(last) - 1)}~"
    return first if first not in (".", "..") else ""  # obstore does not accept "." and ".."


def _is_folder(obstore: Any, store: Any, key: str) -> bool:
    """Returns whether an empty object marks a folder. The key of such a marker ends with a slash, which obstore omits
    in listings."""
    try:
        obstore.head(store, key)
    except FileNotFoundError:
        return True
    except Exception as error:
        # A refused request does not mean that the key is a folder, because a user may be allowed to list a bucket but
        # not to read its objects.
        if type(error).__name__ != "PermissionDeniedError":
            raise
    return False


class S3FileLoader(LoadsObjects):
    """Opens objects of S3, Google Cloud Storage and Azure: yields pairs of URL and stream.

    An object is fetched while it is read, in pieces of at most `buffer_size` bytes. Only one piece of an object is in
    memory at a time. The streams are seekable. Streams can be pickled, so they can be part of a saved state. An
    unpickled stream opens the same version of the object, and raises an error if the object has changed. The settings
    in `config` are pickled with streams, so keep secrets in the environment.

    See `S3FileLister` for the sources of credentials, region and endpoint. The pipe also works in forked workers, even
    if the parent process used it before.

    Args:
        source_datapipe: yields URLs such as `s3://bucket/key`, `gs://bucket/key` and `az://container/key`.
        request_timeout_ms: milliseconds without a response after which a request fails; -1 (the default) for 3,000 ms.
        region: the region of S3 buckets; empty (the default) uses the environment.
        buffer_size: maximum number of bytes per piece; None (the default) for 16 MiB. The first request for an object,
            and the first request after a seek, may fetch fewer bytes.
        multi_part_download: whether pieces of more than 4 MiB are fetched by several concurrent requests; None (the
            default) means True.
        endpoint_url: the address of another server than the provider's, such as `http://localhost:9000`; empty (the
            default) uses the environment.
        config: further settings of obstore's `S3Store`, `GCSStore` or `AzureStore`, such as `{"skip_signature": True}`.
        max_retries: maximum number of times that a request is repeated after a temporary error, at least 0; 3 by
            default.

    Raises:
        ModuleNotFoundError: obstore is not installed (extra `s3`).
        FileNotFoundError: while iterating, a bucket or an object does not exist.
        PermissionError: while iterating or reading, credentials are missing or refused.
        TimeoutError: while iterating or reading, the server does not answer.
        OSError: while iterating or reading, an unexpected error occurs. All S3 errors are also ValueErrors.
        TypeError: `max_retries` or another argument has the wrong type.
        ValueError: `max_retries` is negative, or another argument is invalid; or, while iterating, an item is not a URL
            of a supported store.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pairs = IterableWrapper(["s3://bucket/shard-0.tar"]).load_files_by_s3(region="eu-central-1")
    """

    def __init__(
        self,
        source_datapipe: Iterable[str],
        request_timeout_ms: int = -1,
        region: str = "",
        buffer_size: int | None = None,
        multi_part_download: bool | None = None,
        *,
        endpoint_url: str = "",
        config: Mapping[str, Any] | None = None,
        max_retries: int = DEFAULT_RETRIES,
    ) -> None:
        super().__init__(source_datapipe)
        size = check_optional_int(type(self).__name__, "buffer_size", buffer_size, least=1)
        self.buffer_size = DEFAULT_BUFFER_SIZE if size is None else size
        self.multi_part_download = multi_part_download is None or bool(multi_part_download)
        self._settings = _settings(self, request_timeout_ms, region, endpoint_url, config, max_retries)

    def _recipe(self, url: Any) -> S3Recipe:
        split_url(type(self).__name__, url, needs_key=True)
        return S3Recipe(url, self._settings, self.buffer_size, self.multi_part_download)
