"""Fills the buckets of the tests' S3 server."""

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from s3_server import ENVIRONMENT, KEYS_PER_PAGE, fill, s3_server
from torchdata.datapipes.iter import S3FileLister
from torchdata.datapipes.iter.stores.s3_object import PART_SIZE

LARGE = random.Random(1).randbytes(3 * PART_SIZE + 12345)
FOLDER = {f"train/{number}.bin": bytes([number]) * number for number in range(7)}
STRANGE = ["a b.txt", "é/ü ñ.txt", "100%25.txt", "q?x=1&y=2#z.txt", "+plus+.txt", "日本/語.txt", "p%2Fq"]
NAMELESS = ["train//2.tar", "/lead", "trail/", "//", "é x//ü.txt", "a\x7fb/~*'()", "dots/./b", "dots/../b"]
BUCKETS = {
    "first": {**FOLDER, "train": b"a key like the folder", "train-1.tar": b"t", "other/x.txt": b"x", "empty/": b""},
    "second": {name: name.encode() for name in STRANGE},
    "many": {f"{number:05}": b"" if number == 7 else b"x" for number in range(3 * KEYS_PER_PAGE + KEYS_PER_PAGE // 2)},
    "nameless": {key: key.encode() for key in [*NAMELESS, "lead", "other/z"]},
    "large": {"object": LARGE, "lines": b"one\ntwo\nthree\n"},
    "vacant": {},
}


@contextlib.contextmanager
def serving() -> Iterator[Any]:
    with s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(name, value)
        client = fill(endpoint, BUCKETS)
        yield client
        client.close()


def urls(bucket: str, prefix: str = "") -> list[str]:
    return [f"s3://{bucket}/{key}" for key in sorted(BUCKETS[bucket]) if key.startswith(prefix) and key[-1] != "/"]


def listed(*roots: str, **options: Any) -> list[str]:
    return list(S3FileLister(roots, **options))
