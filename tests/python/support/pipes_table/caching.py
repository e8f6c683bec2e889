"""Test cases for pipes that cache items in memory or on disk."""

import os
from functools import partial
from typing import Any

from hypothesis import strategies as st

from pipes_table.folders import folder
from pipes_table.row import BadArgument, Row, Source, UnsizedRow, ints
from torchdata.datapipes.iter import EndOnDiskCacheHolder, InMemoryCacheHolder, OnDiskCacheHolder

FOLDER = folder("caches")

THREE_ITEMS = 100 / 2**20


def path_of(item: int) -> str:
    return os.path.join(FOLDER, str(item))


def with_content(item: int) -> tuple[str, bytes]:
    return path_of(item), f"{item}".encode()


def item_of(path: str) -> int:
    with open(path) as file:
        return int(file.read())


def never(path: str) -> bool:
    return False


def where_even(path: str) -> bool:
    return int(os.path.basename(path)) % 2 == 0


def two_members(item: int) -> list[tuple[str, bytes]]:
    return [(path_of(item) + suffix, f"{item}".encode()) for suffix in ("-a", "-b")]


def key_of(item: int) -> str:
    return path_of(item) + "-members"


def on_disk(source: Source, check: Any = None, between: Any = lambda pipe: pipe) -> Any:
    section = OnDiskCacheHolder(source(), path_of, extra_check_fn=check).map(with_content)
    return EndOnDiskCacheHolder(between(section)).map(item_of)


def in_two_files(source: Source) -> Any:
    section = OnDiskCacheHolder(source(), key_of).flatmap(two_members)
    return EndOnDiskCacheHolder(section).map(item_of)


OnDiskRow = partial(UnsizedRow, grows="it writes a file for each of many items")

ROWS: list[Row] = [
    Row("in_memory_cache", lambda s: InMemoryCacheHolder(s()), list, grows="it keeps all items"),
    Row(
        "in_memory_cache_of_some",
        lambda s, size: InMemoryCacheHolder(s(), size=size),
        lambda xs, size: xs,
        {"size": (st.sampled_from([0, THREE_ITEMS, 1]), THREE_ITEMS)},
    ),
    UnsizedRow(
        "in_memory_cache_batched", lambda s: s().batch(2).in_memory_cache().unbatch(), list, grows="it keeps all items"
    ),
    OnDiskRow("on_disk_cache", on_disk, list),
    OnDiskRow("on_disk_cache_where_nothing_will_do", lambda s: on_disk(s, never), list),
    OnDiskRow("on_disk_cache_where_some_will_do", lambda s: on_disk(s, where_even), list),
    OnDiskRow(
        "on_disk_cache_of_batches",
        lambda s, size: on_disk(s, never, lambda pipe: pipe.batch(size).unbatch()),
        lambda xs, size: xs,
        {"size": (st.integers(1, 5), 3)},
    ),
    OnDiskRow("on_disk_cache_read_ahead", lambda s: on_disk(s, never, lambda pipe: pipe.prefetch(2)), list),
    OnDiskRow("on_disk_cache_of_archives", in_two_files, lambda xs: [x for x in xs for _ in range(2)]),
    OnDiskRow("on_disk_caches_in_turn", lambda s: on_disk(lambda: on_disk(s, never), never), list),
]


def ended(**options: Any) -> Any:
    return ints().on_disk_cache(path_of).map(with_content).end_caching(**options)


BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: ints().in_memory_cache(size="1"), TypeError, "number of megabytes"),
    (lambda: ints().in_memory_cache(size=-1), ValueError, "number of megabytes"),
    (lambda: ints().on_disk_cache("path"), TypeError, "filepath_fn"),
    (lambda: ints().on_disk_cache(extra_check_fn=3), TypeError, "extra_check_fn"),
    (lambda: ints().on_disk_cache(hash_dict=["a"]), TypeError, "hash_dict"),
    (lambda: ints().on_disk_cache(None, {}, "sha1"), ValueError, "Invalid hash_type"),
    (lambda: ints().end_caching(), RuntimeError, "Expected `OnDiskCacheHolder`"),
    (lambda: ended().end_caching(), RuntimeError, "only be invoked once"),
    (lambda: ended(filepath_fn=path_of, same_filepath_fn=True), ValueError, "mutually exclusive"),
    (lambda: ended(filepath_fn="path"), TypeError, "filepath_fn"),
    (lambda: ended(mode="rb"), ValueError, "mode must be one of"),
    (lambda: ended(timeout=-1), ValueError, "number of seconds"),
    (lambda: ints().on_disk_cache() + ints(), RuntimeError, "doesn't support add"),
]
