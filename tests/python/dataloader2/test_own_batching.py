"""A user-defined batching pipe after the sharding resumes with any number of workers, like `batch`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from resuming import continued, resumed
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

SIZE = 3


class Tuples(IterDataPipe[tuple[int, ...]]):
    iteration_state = ()

    def __init__(self, source: Any, size: int, drop_last: bool = False) -> None:
        self.source, self.size, self.drop_last = source, size, drop_last

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        source = iter(self.source)
        while items := tuple(islice(source, self.size)):
            if len(items) == self.size or not self.drop_last:
                yield items

    def __len__(self) -> int:
        return len(self.source) // self.size if self.drop_last else -(-len(self.source) // self.size)


def loader_of(batching: Any, workers: int, size: int = 31, **options: Any) -> DataLoader2[Any]:
    pipe = batching(IterableWrapper(range(size)).sharding_filter(), SIZE, **options)
    service = MultiProcessingReadingService(workers) if workers else InProcessReadingService()
    return DataLoader2(pipe, [ShardingPolicy(block=SIZE)], service)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (2, 0), (0, 2)])
def test_the_rest_of_an_epoch_is_distributed_among_another_number_of_workers(before: int, after: int) -> None:
    first, state, rest = continued(loader_of(Tuples, before), 4)
    assert resumed(loader_of(Tuples, after), state) == [rest]
    assert [item for batch in first + rest for item in batch] == list(range(31))


def test_its_items_are_the_same_as_those_of_batch() -> None:
    def ours(source: Any, size: int) -> Any:
        return source.batch(size).map(tuple)

    with loader_of(Tuples, 2) as loader, loader_of(ours, 2) as other:
        assert list(loader) == list(other)
