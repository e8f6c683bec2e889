"""The in-memory caches store the expected items, respect their size limit, and free their items as documented."""

import copy
import pickle

import numpy as np
import pytest

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import InMemoryCacheHolder, IterableWrapper, IterDataPipe
from torchdata.datapipes.iter.ordering.caching import size_of

MEGABYTE = 2**20


class Calls:
    def __init__(self):
        self.items = []

    def __call__(self, item):
        self.items.append(item)
        return [item]


def test_later_epochs_yield_the_same_objects_and_run_nothing():
    calls = Calls()
    pipe = IterableWrapper(range(5)).map(calls).in_memory_cache()
    first, second, third = list(pipe), list(pipe), list(pipe)
    assert first == [[n] for n in range(5)]
    assert all(a is b is c for a, b, c in zip(first, second, third, strict=True))
    assert calls.items == list(range(5))


def test_items_that_do_not_fit_are_read_again_and_the_others_are_cached():
    item = np.zeros(MEGABYTE // 4, np.uint8)
    pipe = IterableWrapper([item] * 10, deepcopy=False).map(np.copy).in_memory_cache(size=1)
    first, second = list(pipe), list(pipe)
    assert [a is b for a, b in zip(first, second, strict=True)] == [False] * 7 + [True] * 3
    assert [a is b for a, b in zip(second, pipe, strict=True)] == [False] * 7 + [True] * 3


@pytest.mark.parametrize("size", [0, 0.001])
def test_an_item_that_is_larger_than_the_cache_is_yielded(size):
    pipe = IterableWrapper([b"x" * 10_000] * 3).in_memory_cache(size)
    assert [len(item) for item in [*pipe, *pipe]] == [10_000] * 6


def test_the_size_of_an_item_includes_its_contents():
    array = np.zeros((100, 100))
    assert size_of(array) >= array.nbytes
    assert size_of(array[:50]) >= array[:50].nbytes
    assert size_of({"a": [array, (array, "x")]}) >= 2 * array.nbytes
    assert size_of(b"x" * 1000) < 1100


def test_the_length_is_known_once_the_cache_is_loaded():
    assert len(IterableWrapper(range(3)).in_memory_cache()) == 3
    for size in (None, 100 / MEGABYTE):
        pipe = IterableWrapper(range(1000, 1010)).filter(lambda item: True).in_memory_cache(size)
        with pytest.raises(TypeError, match="doesn't have valid length until the cache is loaded"):
            len(pipe)
        list(pipe)
        assert len(pipe) == 10


def test_copies_take_the_cache_along():
    calls = Calls()
    pipe = IterableWrapper(range(3)).map(calls).in_memory_cache()
    list(pipe)
    for duplicate in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        duplicate.source_dp.fn = None  # if the cache called its function, the call would fail
        assert list(duplicate) == [[0], [1], [2]]


def test_a_cache_that_was_filled_with_another_share_is_refilled():
    pipe = IterableWrapper(range(6)).sharding_filter().in_memory_cache()
    assert list(pipe) == list(range(6))
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    with DataLoader2(pipe, reading_service=service) as loader:
        for _ in range(2):
            assert list(loader) == list(range(6))
    pipe.source_dp.apply_sharding(2, 1)
    assert list(pipe) == list(pipe) == [1, 3, 5]


class Broken(IterDataPipe):
    def __init__(self):
        self.breaks = True

    def __iter__(self):
        yield 1
        if self.breaks:
            raise KeyError("broken")
        yield 2


def test_an_epoch_that_failed_or_was_left_or_was_empty_is_not_remembered():
    source = Broken()
    pipe = InMemoryCacheHolder(source)
    next(iter(pipe))
    with pytest.raises(KeyError):
        list(pipe)
    source.breaks = False
    assert list(pipe) == list(pipe) == [1, 2]
    items = []
    pipe = IterableWrapper(items, deepcopy=False).in_memory_cache()
    assert list(pipe) == []
    items.append(1)
    assert list(pipe) == [1], "an empty source is read again"


def test_pipes_that_are_stored_as_items_are_not_part_of_the_graph():
    pipe = IterableWrapper([IterableWrapper([1])], deepcopy=False).in_memory_cache()
    (item,) = pipe
    assert list(item) == [1]
    assert [list(again) for again in pipe] == [[1]]
