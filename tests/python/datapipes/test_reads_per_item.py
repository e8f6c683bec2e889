"""What pipes report of the items that they read, held against what they read, at random positions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pipes_table import ROWS, Row, seed
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.state.advancing import advance
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.hooks import reads_per_item
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Mapper
from torchdata.datapipes.state import keeps_nothing, standing_still

ITEMS = 18


def built(row: Row) -> Any:
    return seed(row.build(lambda *_: IterableWrapper(range(ITEMS)), **row.example), 7)


REPORTING = [row for row in ROWS if row.reads_items and reads_per_item(built(row)) is not None]


def test_the_pipes_that_report_are_many() -> None:
    assert len(REPORTING) > 20


@pytest.mark.parametrize("row", REPORTING, ids=lambda row: row.name)
def test_pipes_that_keep_nothing_have_read_as_many_items_as_they_report(row: Row) -> None:
    end = built(row)
    for _ in end:
        graph = Graph(end)
        with standing_still(graph.pipes):
            for pipe in graph:
                count, sources = reads_per_item(pipe), graph.sources(pipe)
                tokens = [token_of(each) for each in (pipe, *sources) if isinstance(each, IterDataPipe)]
                if count is None or len(sources) != 1 or len(tokens) != 2 or not keeps_nothing(pipe):
                    continue
                if not any(token.finished for token in tokens):
                    assert tokens[1].yielded - count * tokens[0].yielded in (0, count), pipe


@pytest.mark.parametrize("row", REPORTING, ids=lambda row: row.name)
def test_items_that_are_passed_over_are_the_next_ones(row: Row) -> None:
    dice = random.Random(row.name)
    expected = list(built(row))
    for _ in range(5):
        pipe = built(row)
        iterator = iter(pipe)
        read = dice.randrange(len(expected))
        assert [next(iterator) for _ in range(read)] == expected[:read]
        wanted = dice.randrange(len(expected) - read + 1)
        passed = advance(pipe, wanted)
        assert passed in (None, wanted)
        assert list(pipe if passed is not None else iterator) == expected[read + (passed or 0) :], (read, wanted)


async def same(item: int) -> int:
    return item


@pytest.mark.parametrize(("workers", "later"), [(2, 3), (3, 1), (2, 0), (0, 2)])
def test_a_batch_that_is_read_before_the_sharding_is_in_the_state(workers: int, later: int) -> None:
    def loader(count: int) -> DataLoader2[Any]:
        pipe = IterableWrapper(range(20)).async_map_batches(same, batch_size=3).sharding_filter()
        return DataLoader2(pipe, num_workers=count)

    for given in range(1, 8):
        with loader(workers) as run:
            run.seed(1)
            epoch = iter(run)
            head = [next(epoch) for _ in range(given)]
            state = run.state_dict()
        with loader(later) as run:
            run.load_state_dict(state)
            assert head + list(run) == list(range(20))


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_passes_over_what_is_left_of_a_batch(workers: int) -> None:
    service = MultiProcessingReadingService(workers) if workers else None
    pipe = IterableWrapper(range(20)).sharding_filter().async_map_batches(same, batch_size=3)
    with DataLoader2(pipe, reading_service=service) as run:
        next(iter(run))
        assert run.skip(3) == 3
        assert list(run) == list(range(4, 20))


class Odd(Mapper):
    """A subclass of a pipe that yields an item for each of its source, which does not do that."""

    def __iter__(self) -> Any:
        return (item for item in self.datapipe if item % 2)

    def is_replicable(self) -> bool:
        return False


def test_a_subclass_in_the_main_process_that_leaves_items_out_is_not_counted_for_its_base() -> None:
    def loader() -> DataLoader2[Any]:
        return DataLoader2(Odd(IterableWrapper(range(20)).sharding_filter(), int), num_workers=2)

    with loader() as run:
        epoch = iter(run)
        assert [next(epoch) for _ in range(3)] == [1, 3, 5]
        state = run.state_dict()
    with loader() as run:
        run.load_state_dict(state)
        assert list(run) == [7, 9, 11, 13, 15, 17, 19]
