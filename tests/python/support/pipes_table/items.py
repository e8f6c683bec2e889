"""Test cases for pipes that process batches, columns, lines and names, or use threads."""

import asyncio
import random
from typing import Any

from hypothesis import strategies as st

from pipes_table.core import batched, countdown, countdown_lazily, plus_one
from pipes_table.row import BadArgument, Row, Source, UnsizedRow, ints
from torchdata.datapipes import iter as pipes


def squares(batch: list[int]) -> list[int]:
    return [item * item for item in batch]


def odd_ones(batch: list[int]) -> list[int]:
    return [item for item in batch if item % 2] * 2


def odd_ones_lazily(batch: list[int]) -> Any:
    yield from odd_ones(batch)


def multiplicities(batch: list[int]) -> dict[int, int]:
    return {item: batch.count(item) for item in batch}


def emptied(batch: list[int]) -> list[int]:
    return [batch.pop() for _ in range(len(batch))]


def sums(batch: list[list[int]]) -> tuple[int, ...]:
    return tuple(sum(columns) for columns in batch)


async def plus_one_later(item: int) -> int:
    await asyncio.sleep(0)
    return item + 1


def triple(item: int) -> tuple[int, int, int]:
    return item, item + 1, item + 2


def record(item: int) -> dict[str, int]:
    return {"a": item, "b": item + 1}


def nested_tuple(item: int) -> tuple[Any, ...]:
    return item, (item, [item + 1]), [item + 2, item + 3]


def nested_dict(item: int) -> dict[str, Any]:
    return {"a": item, "b": {"c": item, "d": {"e": item}}, "f": {"g": item}}


def mixed(parts: list[Any], buffer_size: int, seed: int = 1) -> list[Any]:
    """Returns the members of all iterables, mixed in the same order as by torchdata 0.9."""
    rng, buffer, out = random.Random(seed), [], []
    index = rng.randint(0, buffer_size - 1)
    for members in parts:
        while len(buffer) == buffer_size:
            try:
                out.append(next(buffer[index]))
                index = rng.randint(0, buffer_size - 1)
            except StopIteration:
                buffer.pop(index)
        buffer.append(iter(members))
    while buffer:
        index = rng.randint(0, len(buffer) - 1)
        try:
            out.append(next(buffer[index]))
        except StopIteration:
            buffer.pop(index)
    return out


def dict_lines(item: int) -> tuple[str, str]:
    return "ab"[item // 4 % 2], "" if item % 5 == 0 else str(item)


def paragraphs(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    out: list[tuple[str, list[str]]] = []
    fresh = True
    for path, line in lines:
        if not line:
            fresh = True
        elif fresh or out[-1][0] != path:
            out.append((path, [line]))
            fresh = False
        else:
            out[-1][1].append(line)
    return [(path, "\n".join(paragraph)) for path, paragraph in out]


def shard_name(item: int) -> str:
    return f"s-{{0..{item + 1}}}-{{8..10}}.tar" if item % 2 else f"s-{item}.tar"


def shards(item: int) -> list[str]:
    if item % 2 == 0:
        return [f"s-{item}.tar"]
    return [f"s-{i}-{j}.tar" for i in range(item + 2) for j in range(8, 11)]


def build_records_in_threads(source: Source, ahead: int, workers: int) -> Any:
    return pipes.ThreadPoolMapper(source().map(record), plus_one, "a", None, ahead, max_workers=workers)


small = st.integers(1, 5)

ROWS: list[Row] = [
    UnsizedRow(
        "map_batches",
        lambda s, size: pipes.BatchMapper(s(), squares, size),
        lambda xs, size: squares(xs),
        {"size": (small, 3)},
    ),
    UnsizedRow(
        "map_batches_to_more_or_fewer",
        lambda s, size: pipes.BatchMapper(s(), odd_ones, size),
        lambda xs, size: [y for batch in batched(xs, size) for y in odd_ones(batch)],
        {"size": (small, 3)},
    ),
    UnsizedRow(
        "map_batches_lazily",
        lambda s, size: pipes.BatchMapper(s(), odd_ones_lazily, size),
        lambda xs, size: [y for batch in batched(xs, size) for y in odd_ones(batch)],
        {"size": (small, 4)},
    ),
    UnsizedRow(
        "map_batches_to_dicts",
        lambda s: pipes.BatchMapper(s(), multiplicities, 4),
        lambda xs: [y for batch in batched(xs, 4) for y in multiplicities(batch)],
    ),
    UnsizedRow(
        "map_batches_that_the_function_spoils",
        lambda s: pipes.BatchMapper(s(), emptied, 4),
        lambda xs: [y for batch in batched(xs, 4) for y in reversed(batch)],
    ),
    UnsizedRow(
        "map_batches_of_columns",
        lambda s: pipes.BatchMapper(s().map(triple), sums, 2, input_col=[0, 2]),
        lambda xs: [2 * x + 2 for x in xs],
    ),
    Row(
        "async_map_batches",
        lambda s, size, most: pipes.BatchAsyncMapper(s(), plus_one_later, size, max_concurrency=most),
        lambda xs, size, most: [x + 1 for x in xs],
        {"size": (small, 3), "most": (small, 2)},
    ),
    Row(
        "async_map_batches_unflattened",
        lambda s, size: pipes.BatchAsyncMapper(s(), plus_one_later, size, flatten=False),
        lambda xs, size: batched([x + 1 for x in xs], size),
        {"size": (small, 3)},
    ),
    Row(
        "async_map_batches_of_columns",
        lambda s: pipes.BatchAsyncMapper(s().map(record), plus_one_later, 3, input_col="a", output_col="c"),
        lambda xs: [{**record(x), "c": x + 1} for x in xs],
    ),
    Row(
        "threadpool_map",
        lambda s, ahead, workers: pipes.ThreadPoolMapper(s(), str, scheduled_tasks=ahead, max_workers=workers),
        lambda xs, ahead, workers: list(map(str, xs)),
        {"ahead": (small, 3), "workers": (st.none() | st.integers(1, 3), 2)},
    ),
    Row(
        "threadpool_map_of_columns_in_place",
        build_records_in_threads,
        lambda xs, ahead, workers: [{"a": x + 1, "b": x + 1} for x in xs],
        {"ahead": (small, 3), "workers": (st.integers(1, 3), 2)},
    ),
    Row(
        "threadpool_map_of_tuples",
        lambda s: pipes.ThreadPoolMapper(s().map(triple), max, [0, 2], -1, scheduled_tasks=4, max_workers=3),
        lambda xs: [(*triple(x), x + 2) for x in xs],
    ),
    UnsizedRow(
        "shuffled_flatmap",
        lambda s, buffer_size: pipes.ShuffledFlatMapper(s(), countdown, buffer_size=buffer_size),
        lambda xs, buffer_size: mixed(list(map(countdown, xs)), buffer_size),
        {"buffer_size": (small, 3)},
        random=True,
    ),
    UnsizedRow(
        "shuffled_flatmap_of_generators",
        lambda s, buffer_size: pipes.ShuffledFlatMapper(s(), countdown_lazily, buffer_size=buffer_size),
        lambda xs, buffer_size: mixed(list(map(countdown, xs)), buffer_size),
        {"buffer_size": (small, 3)},
        random=True,
    ),
    Row(
        "shuffled_flatmap_of_items",
        lambda s: pipes.ShuffledFlatMapper(s().map(countdown), buffer_size=3),
        lambda xs: mixed(list(map(countdown, xs)), 3),
        random=True,
    ),
    Row(
        "shuffled_flatmap_of_columns",
        lambda s: s().map(triple).shuffled_flatmap(input_col=[0, 2], buffer_size=3),
        lambda xs: mixed([[x, x + 2] for x in xs], 3),
        random=True,
    ),
    UnsizedRow(
        "shuffled_flatmap_off",
        lambda s: pipes.ShuffledFlatMapper(s(), countdown, buffer_size=3).set_shuffle(False),
        lambda xs: [y for x in xs for y in countdown(x)],
    ),
    Row(
        "flatten",
        lambda s: pipes.Flattener(s().map(nested_tuple)),
        lambda xs: [(x, x, [x + 1], x + 2, x + 3) for x in xs],
    ),
    Row(
        "flatten_one",
        lambda s: pipes.Flattener(s().map(nested_tuple), 1),
        lambda xs: [(x, x, [x + 1], [x + 2, x + 3]) for x in xs],
    ),
    Row(
        "flatten_dicts",
        lambda s: pipes.Flattener(s().map(nested_dict), ["b"]),
        lambda xs: [{"a": x, "c": x, "d": {"e": x}, "f": {"g": x}} for x in xs],
    ),
    Row(
        "slice",
        lambda s, start, stop, step: pipes.Slicer(s().map(triple), start, stop, step),
        lambda xs, start, stop, step: [triple(x)[start:stop:step] for x in xs],
        {
            "start": (st.none() | st.integers(-4, 4), 0),
            "stop": (st.none() | st.integers(-4, 4), 2),
            "step": (st.none() | st.sampled_from([-2, -1, 1, 2]), None),
        },
    ),
    Row(
        "slice_columns",
        lambda s, columns: pipes.Slicer(s().map(triple), columns),
        lambda xs, columns: [tuple(triple(x)[i] for i in sorted(set(columns))) for x in xs],
        {"columns": (st.lists(st.integers(0, 2)), [2, 0])},
    ),
    Row("slice_dicts", lambda s: pipes.Slicer(s().map(record), ["b"]), lambda xs: [{"b": x + 1} for x in xs]),
    Row(
        "drop",
        lambda s, columns: pipes.Dropper(s().map(triple), columns),
        lambda xs, columns: [tuple(y for i, y in enumerate(triple(x)) if i not in columns) for x in xs],
        {"columns": (st.lists(st.integers(0, 2)), [1])},
    ),
    Row("drop_of_dicts", lambda s: pipes.Dropper(s().map(record), "a"), lambda xs: [{"b": x + 1} for x in xs]),
    Row(
        "add_index",
        lambda s: pipes.IndexAdder(s().map(record)),
        lambda xs: [{**record(x), "index": i} for i, x in enumerate(xs)],
    ),
    Row(
        "rows2columnar",
        lambda s: pipes.Rows2Columnar(s().map(record).batch(3)),
        lambda xs: [{"a": batch, "b": [x + 1 for x in batch]} for batch in batched(xs, 3)],
    ),
    Row(
        "rows2columnar_named",
        lambda s: pipes.Rows2Columnar(s().map(triple).batch(2), ["x", "y", "z"]),
        lambda xs: [{"x": batch, "y": [x + 1 for x in batch], "z": [x + 2 for x in batch]} for batch in batched(xs, 2)],
    ),
    UnsizedRow(
        "lines_to_paragraphs",
        lambda s: pipes.ParagraphAggregator(s().map(dict_lines)),
        lambda xs: paragraphs(list(map(dict_lines, xs))),
    ),
    UnsizedRow(
        "shard_expand",
        lambda s: pipes.ShardExpander(s().map(shard_name)),
        lambda xs: [name for x in xs for name in shards(x)],
        grows="item n becomes n items",
    ),
]


BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: ints().map_batches(3, 2), TypeError, "BatchMapper: fn"),
    (lambda: ints().map_batches(squares, 2.5), TypeError, "batch_size"),
    (lambda: ints().async_map_batches(plus_one_later, 0), AssertionError, "batch_size"),
    (lambda: ints().async_map_batches(plus_one_later, 2, max_concurrency=0), ValueError, "max_concurrency"),
    (lambda: ints().async_map_batches(plus_one_later, 2, output_col=1), ValueError, "output_col"),
    (lambda: ints().async_map_batches(plus_one_later, 2, 0, [1, 2]), ValueError, "single-element"),
    (lambda: ints().threadpool_map(3), TypeError, "ThreadPoolMapper: fn"),
    (lambda: ints().threadpool_map(plus_one, max_workers=0), ValueError, "max_workers"),
    (lambda: ints().threadpool_map(plus_one, max_workers="4"), TypeError, "max_workers"),
    (lambda: ints().threadpool_map(plus_one, workers=4), TypeError, "unexpected keyword argument 'workers'"),
    (lambda: ints().threadpool_map(plus_one, initializer=4), TypeError, "initializer"),
    (lambda: ints().threadpool_map(plus_one, initargs=4), TypeError, "initargs"),
    (lambda: ints().threadpool_map(plus_one, thread_name_prefix=4), TypeError, "thread_name_prefix"),
    (lambda: ints().threadpool_map(plus_one, [0, 1]), ValueError, "plus_one"),
    (lambda: ints().threadpool_map(plus_one, output_col=1), ValueError, "output_col"),
    (lambda: ints().shuffled_flatmap(3), TypeError, "fn"),
    (lambda: ints().shuffled_flatmap(countdown, [0, 1]), ValueError, "countdown"),
    (lambda: ints().drop([[1]]), TypeError, "Dropper: indices"),
    (lambda: ints().slice({}), TypeError, "Slicer: index"),
    (lambda: ints().slice(0, 2, 0), ValueError, "step"),
    (lambda: ints().slice(0, "2"), TypeError, "stop"),
    (lambda: ints().flatten({}), TypeError, "Flattener: indices"),
    (lambda: ints().rows2columnar("name"), TypeError, "column_names"),
    (lambda: ints().rows2columnar([[]]), TypeError, "column_names"),
    (lambda: ints().add_index([]), TypeError, "index_name"),
    (lambda: ints().lines_to_paragraphs("\n"), TypeError, "joiner"),
    (lambda: pipes.ShardExpander(3), TypeError, "source_datapipe"),
]
