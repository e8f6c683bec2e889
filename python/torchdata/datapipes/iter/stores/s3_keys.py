"""The keys of a bucket as they are: listings for keys that obstore cannot name, such as `train//2.tar`.

Role: the second way of `S3FileLister`, which costs a connection a page. obstore signs a request, and Python's `urllib`
sends it, in the process that iterates. Nothing is owned between two pages.
See https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote, unquote_plus, urlencode

from torchdata.datapipes.iter.stores.s3_client import S3Settings

__all__ = ["RefusedError", "list_keys"]

#: Answers behind which the same request may find another one.
_PASSING = (429, 500, 502, 503, 504)


class RefusedError(OSError):
    """The server refuses a request."""


class PermissionDeniedError(RefusedError):
    """It does so for want of rights."""


def list_keys(
    settings: S3Settings, bucket: str, prefix: str, after: str | None, root: str, most: int = 1000
) -> Iterator[list[str]]:
    """The keys that begin with a prefix and sort behind `after` (None: all), in order, page by page.

    Args:
        settings: how the server is reached.
        bucket: the bucket.
        prefix: the prefix.
        after: the key to begin behind.
        root: the URL that is listed, for messages.
        most: the most keys of a page.

    Raises:
        RefusedError: the server refuses the request.
        OSError: another failure.
    """
    from xml.etree import ElementTree

    while True:
        query = {"list-type": "2", "encoding-type": "url", "max-keys": str(most), "prefix": prefix}
        if after is not None:
            query["start-after"] = after
        answer = ElementTree.fromstring(_ask(settings, bucket, urlencode(query, quote_via=quote, safe=""), root))
        keys = [found.text or "" for found in answer.findall("{*}Contents/{*}Key")]
        if answer.findtext("{*}EncodingType") == "url":
            keys = [unquote_plus(key) for key in keys]
        yield keys
        if answer.findtext("{*}IsTruncated") != "true" or not keys:
            return
        after = keys[-1]


def _ask(settings: S3Settings, bucket: str, query: str, root: str) -> bytes:
    """The answer to a query, which is asked again after errors that may pass."""
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    error = OSError()
    for attempt in range(settings.max_retries + 1):
        if attempt:
            time.sleep(0.1 * 2 ** (attempt - 1))
        url = settings.sign(bucket, query, root)
        try:
            with urllib.request.urlopen(url, timeout=settings.timeout_ms / 1000) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as refused:
            with refused:
                said = f"{refused}: {refused.read().decode(errors='replace')}"
            if refused.code not in _PASSING:
                raise (PermissionDeniedError if refused.code in (401, 403) else RefusedError)(said) from None
            error = OSError(said)
        except (OSError, HTTPException) as failed:
            error = OSError(str(failed))
    raise error
