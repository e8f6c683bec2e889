"""Adapters change the settings for shuffling and sharding in the loader's copy of the graph."""

import pytest

from random_graphs.users import Passing
from refusals import refuses
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.dataloader2.adapter import Adapter, CacheTimeout, ShardingPolicy, Shuffle
from torchdata.dataloader2.graph import list_dps, traverse_dps
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes.iter import IterableWrapper, Shuffler


class Waiting(Passing):
    def set_timeout(self, timeout):
        self.timeout = timeout


def numbers(count=12):
    return IterableWrapper(range(count))


def test_the_base_adapter_must_be_given_a_call():
    with pytest.raises(NotImplementedError, match="must define __call__"):
        DataLoader2(numbers(), Adapter())


def test_shuffle_switches_the_shufflers_of_the_loader_only():
    pipe = numbers().shuffle()
    assert list(DataLoader2(pipe, Shuffle(False))) == list(range(12))
    off = pipe.set_shuffle(False)
    assert list(DataLoader2(off, Shuffle(None))) == list(range(12))
    on = DataLoader2(off, Shuffle(True))
    on.seed(1)
    assert sorted(on) == list(range(12))
    assert any(list(on) != list(range(12)) for _ in range(3))
    assert list(off) == list(range(12))


def test_shuffle_appends_a_shuffler_where_there_is_none():
    with pytest.warns(UserWarning, match="does not contain a `Shuffler`"):
        loader = DataLoader2(numbers(), [Shuffle()])
    assert type(loader.datapipe) is Shuffler
    assert sorted(loader) == list(range(12))


def test_cache_timeout_reaches_every_pipe_that_waits():
    loader = DataLoader2(Waiting(Waiting(numbers())).map(str), CacheTimeout(30))
    waiting = [pipe for pipe in list_dps(traverse_dps(loader.datapipe)) if isinstance(pipe, Waiting)]
    assert [pipe.timeout for pipe in waiting] == [30, 30]


def test_blocks_make_the_same_batches_for_any_number_of_workers():
    pipe = numbers().sharding_filter().batch(4)
    for workers in (1, 3):
        service = MultiProcessingReadingService(workers, multiprocessing_context="fork")
        with DataLoader2(pipe, ShardingPolicy(block=4), service) as loader:
            assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def shares(policy, workers=2):
    pipe = DataLoader2(numbers(6).sharding_filter(), policy).datapipe
    result = []
    for worker in range(workers):
        pipe.apply_sharding(workers, worker)
        result.append(list(pipe))
    return result


def test_sharding_is_per_item_per_block_or_off():
    assert shares(ShardingPolicy()) == [[0, 2, 4], [1, 3, 5]]
    assert shares(ShardingPolicy(block=2)) == [[0, 1, 4, 5], [2, 3]]
    assert shares(ShardingPolicy(enable=False)) == [list(range(6))] * 2
    assert shares([ShardingPolicy(enable=False), ShardingPolicy()]) == shares(ShardingPolicy())


def test_the_in_process_service_reads_ahead_at_the_end_of_the_graph():
    with DataLoader2(numbers(3), reading_service=InProcessReadingService(2)) as loader:
        for _ in range(2):
            assert list(loader) == [0, 1, 2]
        assert type(loader.datapipe) is iter_pipes.Prefetcher


test_wrong_arguments_are_refused = refuses(
    *((lambda value=value: CacheTimeout(value), ValueError, "timeout should be") for value in (None, 0, -1, "3", True)),
    (lambda: ShardingPolicy(0), ValueError, "block must be at least 1, but got 0"),
    (lambda: ShardingPolicy("2"), TypeError, "block must be an integer, but got '2'"),
)
