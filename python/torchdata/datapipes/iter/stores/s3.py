"""Pipes that read from S3, Google Cloud Storage and Azure: S3FileLister, S3FileLoader.

Role: they run in the process that iterates them, on obstore. The streams that they yield fetch what is read, and own
no connection in between (see `s3_object.py`); the stores belong to the process (see `s3_client.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from torchdata._optional import require
from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_int, check_name
from torchdata.datapipes._pipe.given_length import GivenLength
from torchdata.datapipes._pipe.registry import functional_datapipe
from torchdata.datapipes.iter.stores.listing import ListsRoots, check_masks, check_options, matches
from torchdata.datapipes.iter.stores.remote_file import LoadsObjects
from torchdata.datapipes.iter.stores.s3_client import DEFAULT_RETRIES, S3Error, S3Settings, explaining_s3, split_url
from torchdata.datapipes.iter.stores.s3_object import DEFAULT_BUFFER_SIZE, S3Recipe
from torchdata.datapipes.iter.streams.pairs import source_pipe

__all__ = ["S3FileLister", "S3FileLoader"]

#: Keys that are handed over at once by obstore, and that S3 sends per request.
_KEYS_PER_PAGE = 1000


def _settings(
    pipe: object,
    request_timeout_ms: Any,
    region: Any,
    endpoint_url: Any,
    config: Mapping[str, Any] | None,
    max_retries: Any,
) -> S3Settings:
    """Checks the arguments that both pipes take."""
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


@functional_datapipe("list_files_by_s3")
class S3FileLister(GivenLength, ListsRoots):
    """Yields the URLs of objects in S3, Google Cloud Storage (`gs://`) or Azure (`az://`), by prefix.

    The objects of a prefix come in the order of their keys, a page of 1,000 at a time; keys that end in a slash, which
    stand for folders, are left out. A prefix need not end at a slash: `s3://bucket/train` finds `train/0.tar` and
    `train-1.tar`. URLs are plain text: nothing in them is percent-encoded.

    Credentials, region and endpoint come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_SKIP_SIGNATURE=true` for public buckets;
    `GOOGLE_APPLICATION_CREDENTIALS`; `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`), else, for S3, from the
    profile `AWS_PROFILE` by boto3, else from the machine's role. Keys with an empty part (`train//2.tar`), a part that
    is `.` or `..`, or a control character are an error, because obstore cannot name them.

    The pipe works in forked workers, too, also if the parent used it before.

    Args:
        source_datapipe: yields prefixes such as `s3://bucket` and `s3://bucket/folder/`.
        length: the number of objects, if `len` is to give it; -1: `len` raises TypeError.
        request_timeout_ms: milliseconds without an answer after which a request has failed. -1: 3,000 ms.
        region: the region of S3 buckets; empty: from the environment.
        masks: shell patterns (`*.tar`), one or a list, that the whole URL is to match; empty: all.
        endpoint_url: the server, such as `http://localhost:9000`, if it is not the provider's (MinIO, Ceph, R2); empty:
            from the environment.
        config: further settings of obstore's `S3Store`, `GCSStore` or `AzureStore`, such as `{"skip_signature": True}`.
        max_retries: how often a request is sent again after a fault that may pass.

    Raises:
        ModuleNotFoundError: obstore is not installed (extra `s3`).
        FileNotFoundError: while iterating, a bucket does not exist.
        PermissionError: while iterating, credentials are missing or refused.
        TimeoutError: while iterating, the server does not answer.
        OSError: while iterating, another failure of the server. All errors of S3 are ValueErrors as well.
        ValueError: while iterating, an item is no such URL.

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

    def _source(self) -> Any:
        return self.source_datapipe

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
        """The keys that begin with the prefix, page by page.

        obstore lists whole folders only, so the prefix's folder is listed from just before the prefix to just
        behind it, which the order of keys allows.
        """
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
            wanted = [key for key in keys if key.startswith(prefix) and key > (after or "")]  # Azure repeats `after`
            if wanted:
                yield wanted
            if keys and keys[-1] > prefix and not keys[-1].startswith(prefix):
                return


def _just_before(text: str) -> str:
    """A text that sorts before `text`, which is not empty, and has few others in between."""
    first, last = text[:-1], text[-1]
    if "1" <= last <= "~":
        return f"{first}{chr(ord(last) - 1)}~"
    return first if first not in (".", "..") else ""  # which obstore takes for no names


def _is_folder(obstore: Any, store: Any, key: str) -> bool:
    """Whether an empty object of which obstore gives this key has a slash at the end, which obstore cuts off."""
    try:
        obstore.head(store, key)
    except FileNotFoundError:
        return True
    except Exception as error:
        if type(error).__name__ != "PermissionDeniedError":  # who may list may not always read
            raise
    return False


@functional_datapipe("load_files_by_s3")
class S3FileLoader(LoadsObjects):
    """Opens objects of S3, Google Cloud Storage and Azure: yields pairs of URL and stream.

    An object is fetched while it is read, in pieces of at most `buffer_size` bytes of which one is in memory. The
    streams can seek. They can be pickled, and so be part of a saved state: the copy opens the same version of the
    object, and fails to read if the object was changed meanwhile. Settings given as `config` are pickled with them;
    keep secrets in the environment.

    Where credentials, region and endpoint come from is said at `S3FileLister`. The pipe works in forked workers,
    too, also if the parent used it before.

    Args:
        source_datapipe: yields URLs such as `s3://bucket/key`, `gs://bucket/key` and `az://container/key`.
        request_timeout_ms: milliseconds without an answer after which a request has failed. -1: 3,000 ms.
        region: the region of S3 buckets; empty: from the environment.
        buffer_size: bytes to ask for at once, at most; None: 16 MiB. The first request of an object and those behind
            a seek ask for less.
        multi_part_download: whether pieces of more than 4 MiB are fetched by several requests at once; None: they are.
        endpoint_url: the server, such as `http://localhost:9000`, if it is not the provider's; empty: from the
            environment.
        config: further settings of obstore's `S3Store`, `GCSStore` or `AzureStore`, such as `{"skip_signature": True}`.
        max_retries: how often a request is sent again after a fault that may pass.

    Raises:
        ModuleNotFoundError: obstore is not installed (extra `s3`).
        FileNotFoundError: while iterating, a bucket or an object does not exist.
        PermissionError: while iterating or reading, credentials are missing or refused.
        TimeoutError: while iterating or reading, the server does not answer.
        OSError: while iterating or reading, another failure. All errors of S3 are ValueErrors as well.
        ValueError: while iterating, an item is no such URL.

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
        if buffer_size is not None:
            buffer_size = check_int(type(self).__name__, "buffer_size", buffer_size, least=1)
        self.buffer_size = DEFAULT_BUFFER_SIZE if buffer_size is None else buffer_size
        self.multi_part_download = multi_part_download is None or bool(multi_part_download)
        self._settings = _settings(self, request_timeout_ms, region, endpoint_url, config, max_retries)

    def _recipe(self, url: Any) -> S3Recipe:
        split_url(type(self).__name__, url, needs_key=True)
        return S3Recipe(url, self._settings, self.buffer_size, self.multi_part_download)
