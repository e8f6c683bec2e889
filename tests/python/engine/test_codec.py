"""Items of all kinds that one process sends to another process are received unchanged."""

import gc

import numpy as np
import pytest

from loopback import Loopback
from torchdata._native import LeasedBuffer
from waiting import check_in_forked_child


class Named(dict):
    """A subclass of dict."""


SPECIAL = {
    "dict subclass": Named(a=1),
    "set": {1, 2, 3},
    "range": range(7),
    "ellipsis": ...,
    "structured array": np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    "masked array": np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
    "record with large array": {"a": np.arange(10**5), "b": np.zeros((3, 0, 2))},
    "long string": "ä" * 100_000,
    "many large buffers": [np.full(2000, i) for i in range(700)],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_arrive_equal(loopback, name):
    item = SPECIAL[name]
    received = loopback.one(item)
    assert type(received) is type(item)
    if isinstance(item, np.ndarray):
        assert (received.dtype, received.shape) == (item.dtype, item.shape)
        assert received.tolist() == item.tolist()
    elif isinstance(item, list):
        assert all(map(np.array_equal, received, item))
    elif isinstance(item, dict):
        assert list(item) == list(received)
        assert all(map(np.array_equal, received.values(), item.values()))
    else:
        assert received == item


def test_a_cycle_arrives_as_a_cycle(loopback):
    cycle = [1]
    cycle.append(cycle)
    received = loopback.one(cycle)
    assert received[1] is received


def test_deeply_nested_items_are_sent_unchanged(loopback):
    nested = []
    for _ in range(200):
        nested = [nested]
    depth, received = 0, loopback.one(nested)
    while received:
        (received,), depth = received, depth + 1
    assert depth == 200


def test_large_arrays_arrive_without_a_copy_and_writable(loopback):
    received = loopback.one(np.arange(100_000))
    assert isinstance(received.base, LeasedBuffer)
    received += 1
    assert received[0] == 1


def test_small_arrays_are_copied_so_that_they_hold_no_block(loopback):
    assert loopback.one(np.arange(100)).base is None


def test_memory_of_a_dropped_array_is_reused():
    loopback = Loopback(budget=8 << 20)
    for _ in loopback.send(np.full(100_000, i) for i in range(500)):
        pass
    ((_, peak, _),) = loopback.sender.arena_usage()
    assert peak <= 8 << 20
    gc.collect()
    loopback.one(1)
    assert loopback.collector.leased() == [0]


def test_a_consumer_that_keeps_everything_does_not_stop_the_stream():
    loopback = Loopback(budget=4 << 20)
    kept = list(loopback.send(np.full(50_000, i) for i in range(60)))
    assert [int(array[0]) for array in kept] == list(range(60))
    assert all(bool((array == i).all()) for i, array in enumerate(kept))


@pytest.mark.parametrize("budget", [0, 4096, 1 << 20])
def test_an_item_larger_than_the_budget_arrives(budget):
    loopback = Loopback(budget=budget)
    large = np.random.default_rng(0).integers(0, 255, 5_000_000, dtype=np.uint8)
    assert np.array_equal(loopback.one(large), large)
    text = "x" * 3_000_000
    assert loopback.one([text, {"a": large}])[0] == text


def test_a_forked_child_cannot_take_its_parents_items(loopback):
    loopback.collector.start_epoch(99, 1)

    def take():
        with pytest.raises(RuntimeError, match="forked child"):
            next(iter(loopback.collector))

    check_in_forked_child(take)
