"""Measures the cost of pipes within one process, in nanoseconds per item, compared with plain Python generators.

Each pipeline and its rival (a chain of generators) take turns over the same ints. The output contains the medians and
their ratio. A ratio below 1 means that the pipes are faster. The generators create lists, and the pipes create
`DataChunk` objects. A pipeline begins with a pipe over the ints, and its rival begins with a generator over the ints.
With `--bare`, the rival reads the ints directly. Run: `python benches/python/inprocess.py [--items N] [--rounds N]
[--bare]`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torchdata.datapipes.iter import IterableWrapper

BATCH, BUFFER = 8, 100


def plus_one(n: int) -> int:
    return n + 1


def not_seven(n: int) -> bool:
    return n % 7 != 0


def first(batch: list[int]) -> int:
    return batch[0]


def gen_source(items: Iterable[Any]) -> Iterator[Any]:
    yield from items


def gen_map(function: Callable[[Any], Any], source: Iterable[Any]) -> Iterator[Any]:
    for item in source:
        yield function(item)


def gen_skip(functions: Sequence[Callable[[Any], Any]], source: Iterable[Any]) -> Iterator[Any]:
    for item in source:
        try:
            for function in functions:
                item = function(item)
        except Exception:
            continue
        yield item


def gen_filter(function: Callable[[Any], bool], source: Iterable[Any]) -> Iterator[Any]:
    for item in source:
        if function(item):
            yield item


def gen_batch(size: int, source: Iterable[Any]) -> Iterator[Any]:
    batch = []
    for item in source:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def gen_unbatch(source: Iterable[Any]) -> Iterator[Any]:
    for batch in source:
        yield from batch


def gen_shuffle(size: int, source: Iterable[Any]) -> Iterator[Any]:
    getrandbits, buffer = random.Random(1).getrandbits, list[Any]()
    for item in source:
        if len(buffer) < size:
            buffer.append(item)
            continue
        index = getrandbits(size.bit_length())
        while index >= size:
            index = getrandbits(size.bit_length())
        chosen, buffer[index] = buffer[index], item
        yield chosen
    while buffer:
        left = len(buffer)
        index = getrandbits(left.bit_length())
        while index >= left:
            index = getrandbits(left.bit_length())
        yield buffer.pop(index)


def gen_share(shards: int, shard: int, source: Iterable[Any]) -> Iterator[Any]:
    for number, item in enumerate(source):
        if number % shards == shard:
            yield item


def gen_flatmap(function: Callable[[Any], Any], source: Iterable[Any]) -> Iterator[Any]:
    for item in source:
        yield from function(item)


def gen_zip(left: Iterable[Any], right: Iterable[Any]) -> Iterator[Any]:
    yield from zip(left, right, strict=False)


def gen_enumerate(source: Iterable[Any]) -> Iterator[Any]:
    yield from enumerate(source)


def gen_repeat(times: int, source: Iterable[Any]) -> Iterator[Any]:
    for item in source:
        for _ in range(times):
            yield item


def twice(n: int) -> list[int]:
    return [n, n]


def forked_zip(pipe: Any) -> Any:
    left, right = pipe.fork(2)
    return left.zip(right)


def gen_forked_zip(source: Iterable[Any]) -> Iterator[Any]:
    source = iter(source)
    waiting: list[deque[Any]] = [deque(), deque()]

    def child(own: deque[Any], other: deque[Any]) -> Iterator[Any]:
        while True:
            if not own:
                try:
                    item = next(source)
                except StopIteration:
                    return
                own.append(item)
                other.append(item)
            yield own.popleft()

    return gen_zip(child(*waiting), child(*reversed(waiting)))


def cases(items: list[int], bare: bool = False) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Returns, for the name of each case, a function that creates the pipe and a function that creates the generator.
    If `bare` is True, the generator reads the list `items` directly."""
    pipe = IterableWrapper(items, deepcopy=False)

    def plain() -> Iterator[int]:
        return iter(items) if bare else gen_source(items)

    return {
        "chain of five": (
            lambda: pipe.map(plus_one).filter(not_seven).batch(BATCH).shuffle(buffer_size=BUFFER).map(first),
            lambda: gen_map(
                first, gen_shuffle(BUFFER, gen_batch(BATCH, gen_filter(not_seven, gen_map(plus_one, plain()))))
            ),
        ),
        "chain of five, per item": (
            lambda: (
                pipe.map(plus_one).filter(not_seven).batch(BATCH).unbatch().shuffle(buffer_size=BUFFER).map(plus_one)
            ),
            lambda: gen_map(
                plus_one,
                gen_shuffle(BUFFER, gen_unbatch(gen_batch(BATCH, gen_filter(not_seven, gen_map(plus_one, plain()))))),
            ),
        ),
        "on_error": (
            lambda: pipe.map(plus_one).map(plus_one).on_error("skip"),
            lambda: gen_skip((plus_one, plus_one), plain()),
        ),
        "source": (lambda: pipe, plain),
        "map": (lambda: pipe.map(plus_one), lambda: gen_map(plus_one, plain())),
        "flatmap": (lambda: pipe.flatmap(twice), lambda: gen_flatmap(twice, plain())),
        "filter": (lambda: pipe.filter(not_seven), lambda: gen_filter(not_seven, plain())),
        "batch": (lambda: pipe.batch(BATCH), lambda: gen_batch(BATCH, plain())),
        "shuffle": (lambda: pipe.shuffle(buffer_size=BUFFER), lambda: gen_shuffle(BUFFER, plain())),
        "sharding_filter": (lambda: sharded(pipe), lambda: gen_share(2, 0, plain())),
        "header": (lambda: pipe.header(len(items)), lambda: islice(plain(), len(items))),
        "enumerate": (lambda: pipe.enumerate(), lambda: gen_enumerate(plain())),
        "repeat": (lambda: pipe.repeat(2), lambda: gen_repeat(2, plain())),
        "zip": (lambda: pipe.zip(IterableWrapper(items, deepcopy=False)), lambda: gen_zip(plain(), plain())),
        "fork and zip": (lambda: forked_zip(pipe), lambda: gen_forked_zip(plain())),
    }


def sharded(pipe: Any) -> Any:
    share = pipe.sharding_filter()
    share.apply_sharding(2, 0)
    return share


def seconds(make: Callable[[], Iterable[Any]]) -> float:
    iterator = iter(make())
    begin = time.perf_counter()
    deque(iterator, maxlen=0)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000, help="ints in the source (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each side (default: %(default)s)")
    parser.add_argument("--bare", action="store_true", help="the plain side reads the ints without a generator")
    arguments = parser.parse_args()
    items = list(range(arguments.items))
    print(f"{'ns per source item':26}{'pipes':>9}{'plain':>9}{'ratio':>8}")
    for name, (pipes, plain) in cases(items, arguments.bare).items():
        runs = [(seconds(pipes), seconds(plain)) for _ in range(arguments.rounds)]
        ours, theirs = (statistics.median(side) / len(items) * 1e9 for side in zip(*runs, strict=True))
        ratio = statistics.median(a / b for a, b in runs)
        print(f"{name:26}{ours:9.1f}{theirs:9.1f}{ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
