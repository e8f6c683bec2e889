"""Test cases for pipes that bucket items, join inputs by key, distribute items, or split and choose items at random."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from hypothesis import strategies as st

from pipes_table.core import batched, plus_one, remainder3, shuffled
from pipes_table.row import BadArgument, Row, Source, UnsizedRow, ints
from torchdata.datapipes.iter import (
    InBatchShuffler,
    IterableWrapper,
    IterKeyZipper,
    MapKeyZipper,
    MaxTokenBucketizer,
    MultiplexerLongest,
    RandomSplitter,
    SampleMultiplexer,
    ZipperLongest,
)
from torchdata.datapipes.map import SequenceWrapper

_END = object()


def itself(item: Any) -> Any:
    return item


def first(item: Any) -> Any:
    return item[0]


def shuffled_within(batches: Iterable[list[Any]], seed: int = 1) -> list[list[Any]]:
    rng = random.Random(seed)
    return [rng.sample(batch, len(batch)) for batch in batches]


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [item for members in lists for item in members]


def bucketed(
    items: list[int], size: int, batch_num: int, bucket_num: int, in_batch: bool, sort: bool
) -> list[list[int]]:
    bucket = size * batch_num
    pool = bucket * bucket_num

    def mixed(members: list[Any], group: int, buffer: int) -> list[Any]:
        return flat(shuffled_within(batched(members, group))) if in_batch else shuffled(members, buffer)

    if bucket_num > 1 or not sort:
        items = mixed(items, pool, pool)
    if not sort:
        return batched(items, size)
    items = flat(sorted(members) for members in batched(items, bucket))
    return mixed(batched(items, size), bucket_num, bucket)


def tokens(
    items: list[int], limit: int, shortest: int, longest: int | None, buffer_size: int, padding: bool
) -> list[list[int]]:
    waiting: list[int] = []
    batches: list[list[int]] = [[]]

    def move() -> None:
        item = heapq.heappop(waiting)
        batch = [*batches[-1], item]
        if (max(batch) * len(batch) if padding else sum(batch)) > limit:
            batches.append([item])
        else:
            batches[-1] = batch

    for item in items:
        if shortest <= item <= (limit if longest is None else longest):
            heapq.heappush(waiting, item)
            if len(waiting) == buffer_size:
                move()
    while waiting:
        move()
    return [batch for batch in batches if batch]


def in_turns(*inputs: list[Any]) -> list[Any]:
    return [item for turn in itertools.zip_longest(*inputs, fillvalue=_END) for item in turn if item is not _END]


def sampled(inputs: list[list[Any]], weights: list[float], seed: int = 1) -> list[Any]:
    rng = random.Random(seed)
    left = [(list(members), weight) for members, weight in zip(inputs, weights, strict=True)]
    out = []
    while len(left) > 1:
        total = sum(weight for _, weight in left)
        bounds = list(itertools.accumulate(weight / total for _, weight in left))
        point = rng.random()
        chosen = next((i for i, bound in enumerate(bounds) if point < bound), None)
        if chosen is not None and left[chosen][0]:
            out.append(left[chosen][0].pop(0))
        elif chosen is not None:
            del left[chosen]
    return out + left[0][0]


def drawn(items: list[Any], weights: list[float], seed: Any, total: int) -> list[list[Any]]:
    rng = random.Random(seed)
    left = [weight * total / sum(weights) for weight in weights]
    groups: list[list[Any]] = [[] for _ in weights]
    for count, item in enumerate(items, 1):
        (chosen,) = rng.choices(range(len(left)), left)
        groups[chosen].append(item)
        left[chosen] -= 1
        if left[chosen] < 0:
            left[chosen] = 0.0
            left = [weight * (total - count) / (sum(left) or 1) for weight in left]
    return groups


def build_dispatched(source: Source, count: int) -> Any:
    children = source().round_robin_demux(count)
    return children[-1].mux_longest(*children[:-1])


def build_dispatched_one_by_one(source: Source) -> Any:
    first, second, third = source().round_robin_demux(3)
    return third.concat(first, second)


def build_split_at_random(source: Source, weights: list[float], split_seed: Any) -> Any:
    names = dict(zip("abc", weights, strict=False))
    children = RandomSplitter(source(), names, split_seed, total_length=20)
    return children[0].concat(*reversed(children[1:]))


def build_sampled(source: Source, weights: list[float]) -> Any:
    pipes = [source().map(partial(plus, amount=100 * number)) for number, _ in enumerate(weights)]
    return SampleMultiplexer(dict(zip(pipes, weights, strict=True)))


def build_sampled_children(source: Source, split: str) -> Any:
    left, right = source().fork(2) if split == "fork" else source().round_robin_demux(2)
    return SampleMultiplexer({left: 1, right: 2})


def plus(item: int, amount: int) -> int:
    return item + amount


def build_joined(source: Source, buffer_size: int | None) -> Any:
    numbered = source().enumerate()
    return IterKeyZipper(numbered, Swapped(source().enumerate()), first, keep_key=True, buffer_size=buffer_size)


def build_joined_children(source: Source) -> Any:
    left, right = source().repeat(2).enumerate().round_robin_demux(2)
    return left.zip_with_iter(right.shuffle(buffer_size=3), halved_number, merge_fn=added_up)


def halved_number(pair: tuple[int, int]) -> int:
    return pair[0] // 2


def added_up(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0] + right[0], left[1] + right[1]


class Swapped(MultiplexerLongest):
    def __init__(self, source_datapipe: Any) -> None:
        even, odd = source_datapipe.round_robin_demux(2)
        super().__init__(odd, even)


def joined(items: list[Any], merge: Callable[[Any, Any], Any]) -> list[Any]:
    return [(number, merge((number, item), (number, item))) for number, item in enumerate(items)]


small = st.integers(1, 5)
flag = st.booleans()
weight = st.floats(0.05, 20, allow_nan=False)

ROWS: list[Row] = [
    Row(
        "in_batch_shuffle",
        lambda s, size: InBatchShuffler(s().batch(size)),
        lambda xs, size: shuffled_within(batched(xs, size)),
        {"size": (small, 4)},
        random=True,
    ),
    Row("in_batch_shuffle_off", lambda s: InBatchShuffler(s().batch(4)).set_shuffle(False), lambda xs: batched(xs, 4)),
    # Arguments that make the length of `bucketbatch` known are tested in test_bucketing.py.
    UnsizedRow(
        "bucketbatch",
        lambda s, size, batch_num, bucket_num, in_batch, sort: s().bucketbatch(
            size, False, batch_num, bucket_num, sorted if sort else None, in_batch
        ),
        bucketed,
        {
            "size": (small, 2),
            "batch_num": (small, 2),
            "bucket_num": (small, 2),
            "in_batch": (flag, True),
            "sort": (flag, True),
        },
        random=True,
    ),
    UnsizedRow(
        "bucketbatch_by_buffer",
        lambda s, sort: s().bucketbatch(2, True, 2, 1, sort, use_in_batch_shuffle=False),
        lambda xs, sort: shuffled(batched(flat(sorted(b) for b in batched(xs, 4)), 2, drop_last=True), 4),
        {"sort": (st.just(sorted), sorted)},
        random=True,
    ),
    Row(
        "bucketbatch_unsorted_by_buffer",
        lambda s: s().bucketbatch(2, True, 2, use_in_batch_shuffle=False),
        lambda xs: batched(shuffled(xs, 4), 2, drop_last=True),
        random=True,
    ),
    UnsizedRow(
        "max_token_bucketize",
        lambda s, limit, shortest, longest, buffer_size, padding: MaxTokenBucketizer(
            s(), limit, itself, shortest, longest, buffer_size, padding
        ),
        tokens,
        {
            "limit": (st.integers(6, 20), 9),
            "shortest": (st.integers(0, 3), 1),
            "longest": (st.none() | st.integers(3, 6), None),
            "buffer_size": (small, 3),
            "padding": (flag, True),
        },
    ),
    Row(
        "zip_longest",
        lambda s, limit: ZipperLongest(s(), s().header(limit), fill_value="-"),
        lambda xs, limit: list(itertools.zip_longest(xs, xs[:limit], fillvalue="-")),
        {"limit": (st.integers(0, 9), 4)},
    ),
    Row(
        "mux_longest",
        lambda s, limit: MultiplexerLongest(s(), s().header(limit), s().map(plus_one)),
        lambda xs, limit: in_turns(xs, xs[:limit], [x + 1 for x in xs]),
        {"limit": (st.integers(0, 9), 4)},
    ),
    Row(
        "sample_mux",
        build_sampled,
        lambda xs, weights: sampled([[x + 100 * n for x in xs] for n, _ in enumerate(weights)], weights),
        {"weights": (st.lists(weight, min_size=1, max_size=4), [1, 3.5, 0.5])},
        random=True,
    ),
    Row(
        "sample_multiplex",
        lambda s: s().sample_multiplex({s().map(partial(plus, amount=100)): 3.5}, weight=0.5),
        lambda xs: sampled([xs, [x + 100 for x in xs]], [0.5, 3.5]),
        random=True,
    ),
    Row(
        "sample_mux_of_children",
        build_sampled_children,
        lambda xs, split: sampled([xs, xs] if split == "fork" else [xs[0::2], xs[1::2]], [1, 2]),
        {"split": (st.sampled_from(["fork", "deal"]), "deal")},
        random=True,
        grows="its buffer is limited, so one child cannot be read far ahead",
    ),
    Row(
        "round_robin_demux",
        build_dispatched,
        lambda xs, count: in_turns(*(xs[i::count] for i in [count - 1, *range(count - 1)])),
        {"count": (st.integers(2, 4), 3)},
    ),
    Row(
        "round_robin_demux_in_order",
        build_dispatched_one_by_one,
        lambda xs: [*xs[2::3], *xs[0::3], *xs[1::3]],
        grows="its buffer is limited, so one child cannot be read far ahead",
    ),
    UnsizedRow(
        "random_split",
        build_split_at_random,
        lambda xs, weights, split_seed: flat(
            [(groups := drawn(xs, weights, split_seed, 20))[0], *reversed(groups[1:])]
        ),
        {
            "weights": (st.lists(weight, min_size=1, max_size=3), [0.5, 0.3, 0.21]),
            "split_seed": (st.integers() | st.text(max_size=3), 3),
        },
        grows="it accepts at most total_length items",
    ),
    UnsizedRow(
        "random_split_target",
        lambda s: s().shuffle(buffer_size=3).random_split({"a": 1, "b": 2}, "seed", 20, target="b").enumerate(),
        lambda xs: list(enumerate(drawn(shuffled(xs, 3), [1, 2], "seed", 20)[1])),
        random=True,
        not_in_workers="the sizes of its groups depend on the workers' seeds",
        grows="it accepts at most total_length items",
    ),
    Row(
        "zip_with_iter",
        build_joined,
        lambda xs, buffer_size: joined(xs, lambda left, right: (left, right)),
        {"buffer_size": (st.none() | st.integers(2, 5), 3)},
    ),
    Row(
        "zip_with_iter_merged",
        lambda s: IterKeyZipper(
            s().enumerate(), s().enumerate(1), first, lambda pair: pair[0] - 1, merge_fn=lambda a, b: a + b
        ),
        lambda xs: [(n, x, n + 1, x) for n, x in enumerate(xs)],
    ),
    Row("zip_with_iter_of_children", build_joined_children, lambda xs: [(4 * n + 1, 2 * x) for n, x in enumerate(xs)]),
    Row(
        "zip_with_map",
        lambda s, keep_key: MapKeyZipper(s(), SequenceWrapper([10, 11, 12]), remainder3, lambda a, b: a + b, keep_key),
        lambda xs, keep_key: [(x % 3, x + x % 3 + 10) if keep_key else x + x % 3 + 10 for x in xs],
        {"keep_key": (flag, True)},
    ),
]

MAP = SequenceWrapper([1, 2])

BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: InBatchShuffler(3), TypeError, "datapipe must be iterable"),
    (lambda: ints().bucketbatch(2, batch_num=0), AssertionError, "batch_num must be at least"),
    (lambda: ints().bucketbatch(2, bucket_num=-1), AssertionError, "bucket_num must be at"),
    (lambda: ints().bucketbatch(2.5), TypeError, "batch_size must be an integer"),
    (lambda: ints().bucketbatch(2, sort_key=3), TypeError, "sort_key must be a function"),
    (lambda: ints().max_token_bucketize(5, len_fn=3), TypeError, "len_fn"),
    (lambda: ints().max_token_bucketize("5"), TypeError, "max_token_count must be a number"),
    (lambda: ints().max_token_bucketize(-1), ValueError, "got min_len=0 with max_len=-1"),
    (lambda: ints().max_token_bucketize(5, min_len=6), ValueError, "min_len=6"),
    (lambda: ints().max_token_bucketize(5, buffer_size=0), ValueError, "buffer_size"),
    (lambda: ZipperLongest(), ValueError, "at least one"),
    (lambda: ints().zip_longest([1]), TypeError, "IterDataPipe"),
    (lambda: ints().mux_longest(3), TypeError, "input 1 must be iterable"),
    (lambda: ints().sample_multiplex([ints()]), TypeError, "must be a dict"),
    (lambda: SampleMultiplexer([ints()]), TypeError, "must be a dict"),
    (lambda: SampleMultiplexer({ints(): "1"}), TypeError, "must hold numbers"),
    (lambda: SampleMultiplexer({ints(): 1e308, IterableWrapper([1]): 1e308}), ValueError, "finite"),
    (lambda: SampleMultiplexer({ints(): float("nan")}), ValueError, "finite"),
    (lambda: SampleMultiplexer({"a": 1}), TypeError, "IterDataPipe"),
    (lambda: ints().round_robin_demux(2, buffer_size="1"), TypeError, "buffer_size"),
    (lambda: ints().random_split([1, 2], 0), TypeError, "weights must be a dict"),
    (lambda: ints().random_split({}, 0), ValueError, "weights"),
    (lambda: ints().random_split({"a": 0, "b": 0}, 0), ValueError, "positive sum"),
    (lambda: ints().random_split({"a": 2, "b": -1}, 0), ValueError, "wrong weight for 'b'"),
    (lambda: ints().random_split({"a": 1}, object()), TypeError, "seed"),
    (lambda: ints().random_split({"a": 1}, 0, total_length=-1), ValueError, "total_length"),
    (lambda: ints().zip_with_iter(ints(), 3), TypeError, "key_fn"),
    (lambda: ints().zip_with_iter(ints(), itself, 3), TypeError, "ref_key_fn"),
    (lambda: ints().zip_with_iter(ints(), itself, merge_fn=3), TypeError, "merge_fn"),
    (lambda: ints().zip_with_map([1], itself), TypeError, "map_datapipe must be a MapDataPipe"),
    (lambda: ints().zip_with_map(MAP, 3), TypeError, "key_fn"),
    (lambda: ints().zip_with_map(MAP, itself, 3), TypeError, "merge_fn"),
]
