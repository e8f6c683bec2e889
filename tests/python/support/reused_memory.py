"""Sources that overwrite the memory of earlier items, and functions that read such items."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy


@dataclass(slots=True)
class Slotted:
    array: Any


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "array": lambda array: array,
    "view": lambda array: array[1:],
    "tuple": lambda array: (1, array),
    "dict": lambda array: {"a": [array[1:]]},
    "memoryview": memoryview,
    "attribute": lambda array: SimpleNamespace(array=array),
    "slot": Slotted,
    "deep": lambda array: (1, (2, (3, (4, (5, (6, [array])))))),
    "after 100 members": lambda array: (*range(100), *map(str, range(100)), array),
    "ctypes": lambda array: (ctypes.c_double * 3).from_buffer(array),
    "array over ctypes": lambda array: numpy.ctypeslib.as_array((ctypes.c_double * 3).from_buffer(array)),
    "array of arrays": lambda array: numpy.fromiter([array, None], object),
}


class Reused:
    def __init__(self, form: str, arrays: int) -> None:
        self.form, self.arrays = form, arrays

    def __iter__(self) -> Iterator[Any]:
        arrays = [numpy.zeros(3) for _ in range(self.arrays)]
        for number in range(80):
            arrays[number % self.arrays][:] = number
            yield WRAPPED[self.form](arrays[number % self.arrays])


def value(item: Any) -> float:
    while isinstance(item, (tuple, list)):
        item = item[-1]
    if isinstance(item, dict):
        item = item["a"][0]
    elif isinstance(item, (SimpleNamespace, Slotted)):
        item = item.array
    elif isinstance(item, numpy.ndarray) and item.dtype == object:
        item = item[0]
    return float(numpy.asarray(item)[-1])


def is_even_at_first(item: Any) -> bool:
    """Rejects items above 39 in some shards. While a shard searches for an item, other shards' items are queued."""
    return value(item) < 40 or value(item) % 6 > 1
