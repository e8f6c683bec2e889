"""Items that a worker recomputes are compared with the originals by value. Reference counts are ignored."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from resuming import resumed, stopped
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

MAKE: dict[str, Callable[[int], Any]] = {
    "text": lambda number: f"{number}" + "x" * 2000,
    "bytes": lambda number: f"{number}".encode() + b"x" * 2000,
    "large text": lambda number: f"{number}" + "x" * 20_000,
    "times": lambda number: datetime.datetime(2024, 1, 1 + number),
    "tuples": lambda number: (f"{number}" + "x" * 100, number, (f"{number}" + "y" * 100,)),
    "dicts": lambda number: {"text": f"{number}" + "x" * 100, "other": [f"{number}" + "y" * 100]},
}


def loading(pipe: Any) -> DataLoader2[Any]:
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(1))


@pytest.mark.parametrize("kind", MAKE)
def test_an_object_that_is_yielded_twice_is_repeated_from_a_state_between_the_two(kind: str, often: None) -> None:
    make = MAKE[kind]
    pipe = IterableWrapper(range(3)).sharding_filter().flatmap(lambda number: [make(number)] * 2)
    expected = list(pipe)
    for position in range(1, 6):
        items, state = stopped(loading(pipe), position)
        [rest] = resumed(loading(pipe), state)
        assert items + rest == expected


@pytest.mark.parametrize("kind", ["text", "bytes", "times"])
def test_an_object_that_an_item_contains_twice_arrives_as_one_object(kind: str) -> None:
    make = MAKE[kind]

    def item(number: int) -> list[Any]:
        shared = make(number)
        return [make(5), shared, make(number), {"again": shared}, make(6), shared]

    with loading(IterableWrapper(range(3)).sharding_filter().map(item)) as loader:
        for number, found in enumerate(loader):
            assert found == item(number)
            assert found[1] is found[3]["again"] is found[5]
            assert found[2] is not found[1]
