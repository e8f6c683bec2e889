"""Test cases for pipes that map, group, select, combine, split, repeat, shard and prefetch items."""

import itertools
import random
from typing import Any

from hypothesis import strategies as st

from pipes_table.row import BadArgument, Row, Source, UnsizedRow, ints
from torchdata.datapipes import iter as pipes


class Doubling(pipes.IterDataPipe):
    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Any:
        for item in self.source_datapipe:
            yield 2 * item


def plus_one(item: int) -> int:
    return item + 1


def is_even(item: int) -> bool:
    return item % 2 == 0


def remainder3(item: int) -> int:
    return item % 3


def remainder_or_none(item: int) -> int | None:
    return None if item % 3 == 2 else item % 3


def countdown(item: int) -> list[int]:
    return list(range(item % 4))


def countdown_once(item: int) -> Any:
    return iter(range(item % 4))


def countdown_lazily(item: int) -> Any:
    yield from range(item % 4)


def paired(item: int) -> tuple[int, int]:
    return item, item * item


def nested(item: int) -> list[list[int]]:
    return [[item, item], [item]]


def added(left: int, right: int) -> int:
    return left + right


def batched(items: list[Any], size: int, drop_last: bool = False) -> list[list[Any]]:
    batches = [items[i : i + size] for i in range(0, len(items), size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]


def shuffled(items: list[Any], buffer_size: int, seed: int = 1) -> list[Any]:
    rng, buffer, out = random.Random(seed), [], []
    for item in items:
        if len(buffer) == buffer_size:
            index = rng.randint(0, buffer_size - 1)
            out.append(buffer[index])
            buffer[index] = item
        else:
            buffer.append(item)
    while buffer:
        out.append(buffer.pop(rng.randint(0, len(buffer) - 1)))
    return out


def grouped(items: list[Any], group_size: int | None, buffer_size: int, drop: bool) -> list[Any]:
    groups: dict[int, list[int]] = {}
    out = []
    for item in items:
        groups.setdefault(item % 3, []).append(item)
        if len(groups[item % 3]) == group_size:
            out.append((item % 3, groups.pop(item % 3)))
        elif sum(map(len, groups.values())) == buffer_size:
            biggest = max(groups, key=lambda key: len(groups[key]))
            group = groups.pop(biggest)
            if group_size is None or not drop:
                out.append((biggest, group))
    return [*out, *groups.items()]


def share(items: list[Any], shards: int, shard: int, block: int) -> list[Any]:
    return [item for i, item in enumerate(items) if i // block % shards == shard]


def build_sharded(source: Source, shards: int, shard: int, block: int | None) -> Any:
    pipe = pipes.ShardingFilter(source()).set_sharding_block(block)
    pipe.apply_sharding(shards, shard % shards)
    return pipe


def build_two_level(source: Source, nodes: int, node: int, workers: int, worker: int) -> Any:
    pipe = pipes.ShardingFilter(source())
    pipe.apply_sharding(workers, worker % workers, pipes.SHARDING_PRIORITIES.MULTIPROCESSING)
    pipe.apply_sharding(nodes, node % nodes, pipes.SHARDING_PRIORITIES.DISTRIBUTED)
    return pipe


def build_forked(source: Source) -> Any:
    left, right = source().fork(2)
    return left.filter(is_even).zip(right)


def build_split(source: Source) -> Any:
    zero, one = source().demux(2, remainder_or_none, drop_none=True)
    return one.concat(zero)


def build_unzipped(source: Source) -> Any:
    first, third = source().map(lambda n: (n, -n, n + 7)).unzip(3, columns_to_skip=[1])
    return third.zip(first)


def build_replayed_fork(source: Source) -> Any:
    left, right = source().shuffle(buffer_size=3).fork(2, buffer_size=4)
    return Doubling(left).zip(right.map(plus_one))


small = st.integers(1, 5)
flag = st.booleans()


def flatmapped(name: str, function: Any) -> Row:
    return UnsizedRow(name, lambda s: pipes.FlatMapper(s(), function), lambda xs: [y for x in xs for y in range(x % 4)])


ROWS: list[Row] = [
    Row("wrapper", lambda s: s(), list),
    Row("map", lambda s: pipes.Mapper(s(), plus_one), lambda xs: [x + 1 for x in xs]),
    Row(
        "map_columns",
        lambda s: s().map(paired).map(added, input_col=[0, 1], output_col=-1),
        lambda xs: [(x, x * x, x + x * x) for x in xs],
    ),
    flatmapped("flatmap", countdown),
    UnsizedRow(
        "flatmap_of_columns",
        lambda s: s().map(paired).map(added, input_col=[0, 1], output_col=-1).flatmap(input_col=(0, 2)),
        lambda xs: [y for x in xs for y in (x, x + x * x)],
    ),
    UnsizedRow(
        "flatmap_of_a_column",
        lambda s: s().map(countdown).batch(1).flatmap(input_col=0),
        lambda xs: [y for x in xs for y in range(x % 4)],
    ),
    flatmapped("flatmap_of_generators", countdown_lazily),
    flatmapped("flatmap_of_iterators", countdown_once),
    Row(
        "collate",
        lambda s: pipes.Collator(s().batch(2), collate_fn=sum),
        lambda xs: [sum(batch) for batch in batched(xs, 2)],
    ),
    UnsizedRow("filter", lambda s: pipes.Filter(s(), is_even), lambda xs: [x for x in xs if x % 2 == 0]),
    Row(
        "header",
        lambda s, limit: pipes.Header(s(), limit),
        lambda xs, limit: xs[:limit],
        {"limit": (st.none() | st.integers(0, 9), 7)},
    ),
    UnsizedRow("on_error", lambda s: s().on_error("skip"), list),
    Row("set_length", lambda s: pipes.LengthSetter(s(), 3), list, length=3),
    Row(
        "batch",
        lambda s, size, drop_last: pipes.Batcher(s(), size, drop_last),
        batched,
        {"size": (small, 3), "drop_last": (flag, False)},
    ),
    Row(
        "batch_wrapped",
        lambda s, size: pipes.Batcher(s(), size, wrapper_class=tuple),
        lambda xs, size: [tuple(batch) for batch in batched(xs, size)],
        {"size": (small, 2)},
    ),
    UnsizedRow("unbatch", lambda s: pipes.UnBatcher(s().map(nested)), lambda xs: [y for x in xs for y in nested(x)]),
    UnsizedRow(
        "unbatch_two_levels",
        lambda s, level: pipes.UnBatcher(s().map(nested), level),
        lambda xs, level: [y for x in xs for y in (x, x, x)],
        {"level": (st.sampled_from([2, -1]), -1)},
    ),
    UnsizedRow(
        "groupby",
        lambda s, group_size, buffer_size, drop: pipes.Grouper(
            s(),
            remainder3,
            keep_key=True,
            group_size=group_size,
            buffer_size=buffer_size,
            drop_remaining=drop,
            guaranteed_group_size=None if drop or group_size is None else 1,
        ),
        grouped,
        {
            "group_size": (st.none() | st.integers(1, 4), 3),
            "buffer_size": (st.integers(4, 7), 4),
            "drop": (flag, False),
        },
    ),
    Row(
        "shuffle",
        lambda s, buffer_size: pipes.Shuffler(s(), buffer_size=buffer_size),
        shuffled,
        {"buffer_size": (st.integers(1, 20), 4)},
        random=True,
    ),
    Row("shuffle_off", lambda s: pipes.Shuffler(s(), buffer_size=3).set_shuffle(False), list),
    UnsizedRow(
        "shuffle_unbatched",
        lambda s: pipes.Shuffler(s().batch(2), buffer_size=3, unbatch_level=1),
        lambda xs: shuffled(xs, 3),
        random=True,
    ),
    Row("sampler", lambda s: pipes.Sampler(s()), lambda xs: list(range(len(xs))), reads_items=False),
    Row(
        "sharding_filter",
        build_sharded,
        lambda xs, shards, shard, block: share(xs, shards, shard % shards, block or 1),
        {"shards": (small, 2), "shard": (st.integers(0, 4), 1), "block": (st.none() | st.integers(1, 4), 2)},
        not_in_workers="it shards the items itself",
    ),
    Row(
        "sharding_filter_two_levels",
        build_two_level,
        lambda xs, nodes, node, workers, worker: share(
            xs, nodes * workers, worker % workers + workers * (node % nodes), 1
        ),
        {"nodes": (small, 2), "node": (st.integers(0, 4), 1), "workers": (small, 2), "worker": (st.integers(0, 4), 0)},
        not_in_workers="it shards the items itself",
    ),
    Row("dispatch", lambda s: s().sharding_round_robin_dispatch(pipes.SHARDING_PRIORITIES.MULTIPROCESSING), list),
    Row("concat", lambda s: pipes.Concater(s(), s().map(plus_one), s()), lambda xs: [*xs, *[x + 1 for x in xs], *xs]),
    Row("zip", lambda s: s().zip(s().header(5)), lambda xs: list(zip(xs, xs[:5], strict=False))),
    Row(
        "mux",
        lambda s: s().mux(s().map(plus_one).header(5), s()),
        lambda xs: [y for x in xs[:5] for y in (x, x + 1, x)],
    ),
    UnsizedRow(
        "fork",
        build_forked,
        lambda xs: list(zip([x for x in xs if x % 2 == 0], xs, strict=False)),
        grows="its buffer is limited, so one child cannot be read far ahead",
    ),
    UnsizedRow(
        "demux",
        build_split,
        lambda xs: [*[x for x in xs if x % 3 == 1], *[x for x in xs if x % 3 == 0]],
        grows="its buffer is limited, so one child cannot be read far ahead",
    ),
    Row("unzip", build_unzipped, lambda xs: [(x + 7, x) for x in xs]),
    Row(
        "enumerate",
        lambda s, start: pipes.Enumerator(s(), start),
        lambda xs, start: list(enumerate(xs, start)),
        {"start": (st.integers(-3, 3), 5)},
    ),
    Row(
        "cycle",
        lambda s, count: pipes.Cycler(s(), count),
        lambda xs, count: xs * count,
        {"count": (st.integers(0, 3), 3)},
    ),
    Row(
        "cycle_for_ever",
        lambda s: pipes.Cycler(s()).header(20),
        lambda xs: list(itertools.islice(itertools.cycle(xs), 20)),
        length=20,
    ),
    Row(
        "repeat",
        lambda s, times: pipes.Repeater(s(), times),
        lambda xs, times: [x for x in xs for _ in range(times)],
        {"times": (st.integers(2, 4), 2)},
    ),
    Row(
        "prefetch",
        lambda s, buffer_size: pipes.Prefetcher(s(), buffer_size),
        lambda xs, buffer_size: xs,
        {"buffer_size": (small, 3)},
    ),
    Row(
        "prefetch_shuffled",
        lambda s: pipes.Prefetcher(s().shuffle(buffer_size=3)),
        lambda xs: shuffled(xs, 3),
        random=True,
    ),
    UnsizedRow(
        "replayed",
        lambda s: pipes.Mapper(Doubling(s().shuffle(buffer_size=3)), plus_one),
        lambda xs: [2 * x + 1 for x in shuffled(xs, 3)],
        random=True,
    ),
    UnsizedRow("replayed_fork", build_replayed_fork, lambda xs: [(2 * x, x + 1) for x in shuffled(xs, 3)], random=True),
    UnsizedRow(
        "mixed",
        lambda s: s().map(plus_one).filter(is_even).batch(2).shuffle(buffer_size=3).unbatch().enumerate(),
        lambda xs: list(enumerate(y for batch in shuffled(batched([x + 1 for x in xs if x % 2], 2), 3) for y in batch)),
        random=True,
    ),
]


BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: pipes.IterableWrapper(3), TypeError, "iterable"),
    (lambda: ints().set_length(-1), AssertionError, "length"),
    (lambda: ints().set_length(1.5), TypeError, "length"),
    (lambda: ints().map(3), TypeError, "fn"),
    (lambda: pipes.Mapper(3, plus_one), TypeError, "datapipe"),
    (lambda: ints().map(plus_one, output_col=1), ValueError, "output_col"),
    (lambda: ints().map(plus_one, 0, [1, 2]), ValueError, "single-element"),
    (lambda: ints().map(plus_one, []), ValueError, "input_col"),
    (lambda: ints().map(plus_one, [0, 1]), ValueError, "plus_one"),
    (lambda: ints().map(added, [0]), ValueError, "added"),
    (lambda: ints().map(lambda x, *, y: x), ValueError, "keyword-only"),
    (lambda: ints().flatmap(3), TypeError, "fn"),
    (lambda: ints().collate(3), TypeError, "conversion"),
    (lambda: ints().collate({"a": 3}), TypeError, "'a'"),
    (lambda: ints().collate(collate_fn=3), TypeError, "collate_fn"),
    (lambda: ints().filter(None), TypeError, "filter_fn"),
    (lambda: ints().filter(is_even, [0, 1]), ValueError, "is_even"),
    (lambda: ints().header(-1), ValueError, "limit"),
    (lambda: ints().batch("2"), TypeError, "batch_size"),
    (lambda: ints().batch(2, wrapper_class=3), TypeError, "wrapper_class"),
    (lambda: ints().unbatch(-2), ValueError, "unbatch_level"),
    (lambda: ints().groupby(3), TypeError, "group_key_fn"),
    (lambda: ints().groupby(is_even, group_size=5, buffer_size=4), AssertionError, "group_size"),
    (lambda: ints().groupby(is_even, group_size=2, guaranteed_group_size=3), AssertionError, "guaranteed"),
    (lambda: pipes.Sampler(ints().filter(is_even)), AssertionError, "length"),
    (lambda: pipes.Sampler(ints(), 3), TypeError, "sampler"),
    (lambda: ints().sharding_filter("7"), TypeError, "sharding_group_filter"),
    (
        lambda: ints().sharding_round_robin_dispatch(pipes.SHARDING_PRIORITIES.DISTRIBUTED),
        NotImplementedError,
        "MULTIPROCESSING",
    ),
    (lambda: pipes.Concater(), ValueError, "at least one"),
    (lambda: ints().concat([1]), TypeError, "input 1"),
    (lambda: ints().zip([1]), TypeError, "IterDataPipe"),
    (lambda: ints().mux([1]), TypeError, "IterDataPipe"),
    (lambda: ints().fork(0), ValueError, "num_instances"),
    (lambda: ints().fork(2, copy="both"), ValueError, "Unknown copy method"),
    (lambda: ints().fork(2, buffer_size=None), TypeError, "buffer_size"),
    (lambda: ints().demux(0, is_even), ValueError, "num_instances"),
    (lambda: ints().demux(2, 3), TypeError, "classifier_fn"),
    (lambda: ints().unzip(2, columns_to_skip=[0, 1]), RuntimeError, "filtered out"),
    (lambda: ints().enumerate("1"), TypeError, "starting_index"),
    (lambda: ints().prefetch("2"), TypeError, "buffer_size"),
    (lambda: ints().repeat(1), ValueError, "repetition"),
    (lambda: pipes.MapToIterConverter(ints()), TypeError, "MapDataPipe"),
]
