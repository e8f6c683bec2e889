"""Provides the steps of random pipelines, and compares results."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import numpy as np

import torchdata
from kept_state import KeptState
from random_graphs.users import unpinned
from torchdata.datapipes.iter import IterDataPipe


class Bad(ValueError):
    """The exception that failing functions of a pipeline raise for some items."""


class Odd(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


EXIT_CODE = 3
#: If a function calls `sys.exit`, a loader without workers raises SystemExit, and a loader with workers an Exception.
ENDS = (Exception, SystemExit)


def is_planned(error: BaseException) -> bool:
    if isinstance(error, SystemExit):
        return error.code == EXIT_CODE
    return isinstance(error, (Bad, Odd)) or "a function that loads items called sys.exit()" in str(error)


def number_of(item: Any) -> int:
    return crc32(repr(key(item)).encode())


def drawing(item: Any) -> Any:
    return item, random.random(), int(np.random.randint(1000))


def plain(item: Any) -> Any:
    return item, 1


def some(item: Any) -> bool:
    return number_of(item) % 5 != 0 if not isinstance(item, (tuple, list)) else True


def few(item: Any) -> bool:
    return number_of(item) % 11 == 0


def twice(item: Any) -> Any:
    return [item, (item, "again")]


def skewed(item: Any) -> Any:
    count = min(30, int(random.Random(number_of(item)).lognormvariate(0.0, 1.2)))
    return [(item, number) for number in range(count)]


def slow(item: Any) -> Any:
    number = number_of(item)
    time.sleep(0.02 if number % 40 == 0 else number % 1000 * 1e-6)
    return item


def large(item: Any) -> Any:
    array = np.full(3000, len(repr(item)), dtype=np.int64)
    array[0] = sum(map(ord, repr(item)))
    return array


def mixed(item: Any) -> Any:
    number = number_of(item)
    size = 1 + int(2.0 ** (number % 1700 / 100))
    match number % 7:
        case 0:
            return np.full(size, number)
        case 1:
            array = torchdata.empty((size,), "int64")
            array.fill(number)
            return array
        case 2:
            return np.full(2 * size, number)[::-2]
        case 3:
            return {"number": number, "array": np.full(size, number % 251, np.uint8), "text": f"{number}" * 3}
        case 4:
            return {"parts": [np.full(1500, number + part) for part in range(size % 40)]}
        case 5:
            return f"{number}:" + "x" * size
    return f"{number}:".encode() + b"x" * size


class Failing:
    def __init__(self, flag: str, kind: str) -> None:
        self.flag, self.kind = flag, kind

    def __call__(self, item: Any) -> Any:
        if number_of(item) % 23 == 0 and os.path.exists(self.flag):
            if self.kind == "exit":
                sys.exit(EXIT_CODE)
            if self.kind == "_exit":
                os._exit(7)
            raise Bad(item) if self.kind == "error" else Odd(repr(item), "no more")
        return item


def broken(item: Any) -> Any:
    if number_of(item) % 4 == 0:
        raise KeyError(item)
    return item


def torn(item: Any) -> Iterator[Any]:
    for number in range(number_of(item) % 4):
        yield broken((item, number))


class Generated(IterDataPipe[Any]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(self.source):
            yield item, number


class Summed(KeptState, IterDataPipe[Any]):
    kept = ("seen",)

    def __init__(self, source: Any) -> None:
        self.source = source
        self.seen = 0

    def reset(self) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            self.seen += 1
            yield item, self.seen


STEPS: dict[str, Callable[[Any], Any]] = {
    "shuffle": lambda pipe: pipe.shuffle(buffer_size=5),
    "plain": lambda pipe: pipe.map(plain),
    "drawing": lambda pipe: pipe.map(drawing),
    "filter": lambda pipe: pipe.filter(some),
    "few": lambda pipe: pipe.filter(few),
    "flatmap": lambda pipe: pipe.flatmap(twice),
    "skewed": lambda pipe: pipe.flatmap(skewed),
    "slow": lambda pipe: pipe.map(slow),
    "generated": Generated,
    "summed": Summed,
    "header": lambda pipe: pipe.header(17),
    "cycle": lambda pipe: pipe.cycle(2),
    "prefetch": lambda pipe: pipe.prefetch(3),
    "batch": lambda pipe: pipe.batch(3),
    "broken": lambda pipe: pipe.map(broken),
    "torn": lambda pipe: pipe.flatmap(torn),
    "on_error": lambda pipe: pipe.on_error("skip"),
    "large": lambda pipe: pipe.map(large),
    "mixed": lambda pipe: pipe.map(mixed),
    "threads": lambda pipe: pipe.threadpool_map(mixed, max_workers=2, scheduled_tasks=4),
    "cache": lambda pipe: pipe.in_memory_cache(),
    "pin": lambda pipe: pipe.pin_memory(pin_memory_fn=unpinned),
}


def key(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        return "array", item.shape, crc32(item.tobytes())
    if isinstance(item, dict):
        return {name: key(one) for name, one in item.items()}
    return [key(one) for one in item] if isinstance(item, (list, tuple)) else item


def begin(seed: int = 11) -> None:
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


class Differs(AssertionError):
    """Raised if the items of a run differ from the expected items."""


def difference(got: list[Any], expected: list[Any]) -> str:
    what = f"{len(got)} items instead of {len(expected)}"
    pairs = zip(got, expected, strict=False)
    position = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if position is not None:
        what += f", item {position} is {got[position]!r:.150} instead of {expected[position]!r:.150}"
    return what
