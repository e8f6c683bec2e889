"""The garbage collector frees reference cycles with objects of the extension, even while such objects are used."""

import gc
import gzip
import io
import os
import threading
import weakref

import pytest

from torchdata import _native
from torchdata.datapipes.iter import IterableWrapper
from waiting import check_in_forked_child


class Holder:
    held = None

    def called(self, *arguments):
        return self

    def read(self, size):
        return b""


def filter_of_types(holder):
    class Plain:
        holder_of_the_class = holder

    return _native.FilterIterator(iter([]), bool, [Plain], bool, bool)


def queue_of_items(holder):
    queue = _native.ReadAheadQueue("a test", 3)
    queue.put(queue.reserve(), holder)
    return queue


def queue_with_a_mark(holder):
    queue = _native.ReadAheadQueue("a test", 3, position=(None, 0, []))
    queue.put_and_reserve(queue.reserve(), 0, 0, holder)
    return queue


def queue_with_an_error(holder):
    queue = _native.ReadAheadQueue("a test", 3)
    error = ValueError()
    error.holder = holder
    queue.finish(queue.reserve(), error)
    return queue


def queue_that_was_restored(holder):
    queue = _native.ReadAheadQueue("a test", 1)
    for item in (1, holder, 2):
        queue.append(item)
    queue.pop()
    return queue


def queue_with_a_position(holder):
    queue = queue_with_a_mark(holder)
    queue.pop()
    return queue


def queue_with_a_submitted_item(holder):
    queue = _native.ReadAheadQueue("a test", 1)
    queue.submit(holder, False)
    return queue


def queue_with_a_claimed_item(holder):
    queue = queue_with_a_submitted_item(holder)
    queue.claim()
    return queue


def queue_with_one_of_several_claimed(holder):
    queue = _native.ReadAheadQueue("a test", 3, position=(None, 0, []))
    reader = _native.SourceReader(iter([1, 2]).__next__, lambda: holder, print, 1, 0, set())
    slot, error = reader.hand_over(queue)
    queue.finish(slot, error)
    assert queue.claim_some(1, 1, 1) == ([0], [1])
    return queue


def reader_with_an_error(holder):
    def state_of():
        error = ValueError()
        error.holder = holder
        raise error

    reader = _native.SourceReader(iter([1]).__next__, state_of, print, 1, 0, set())
    queue = _native.ReadAheadQueue("a test", 3)
    assert reader.take(queue, queue.reserve()) == (1, 0, None)
    return reader


def gzip_reader_amid_members(holder):
    stream = io.BytesIO(gzip.compress(b"one") + b"\0" * 9 + gzip.compress(b"two" * 50_000))
    holder.stream = stream
    reader = _native.GzipReader(lambda size: holder.stream.read(10))
    assert reader.read()
    return reader


def _collector(on_error):
    return _native.Collector([_native.Link(0)], _native.BellBoard(2), 0, [1], on_error)


def collector_that_watches(holder):
    collector = _collector(print)
    collector.watch([(0, os.getppid())], holder.called)
    return collector


def collector_with_an_interrupt(holder):
    class Interrupt(Exception):
        holder_of_the_class = holder

    collector = _collector(print)
    collector.set_interrupt(_native.Link(0), Interrupt, _native.Link(0), _native.BellBoard(1), 0)
    return collector


def collector_that_reports_surplus(holder):
    collector = _collector(print)
    collector.report_surplus(0, holder.called)
    return collector


def guard(holder):
    pipe = IterableWrapper([1, 2])
    pipe.holder = holder
    iterator = iter(pipe)
    next(iterator)
    return iterator


def sender_with_a_taker(holder):
    sender = _native.Sender([_native.Link(0)], _native.BellBoard(2), 0, [1])
    sender.take_snapshots(holder.called, 1.0, 1.0)
    return sender


def delivery(holder):
    found = _native.Delivery()
    found.source = map(holder.called, [])
    return found


def saved_globals(holder):
    found = _native.SavedGlobals()
    found.save(_native.Exchange([], [({"variable": holder}, "variable")], []))
    return found


WAYS = {
    "delivery": delivery,
    "hold on a queue": lambda holder: queue_of_items(holder).hold(),
    "delivery iterator": lambda holder: _native.DeliveryIterator(delivery(holder), 0),
    "sequence iterator": lambda holder: _native.SequenceIterator([holder], 0),
    "share": lambda holder: _native.ShareIterator(guard(holder), 0, 1, 1, 1),
    "timed call": lambda holder: _native.TimedCall(_native.IterationToken(), holder.called, True),
    "sender with a taker": sender_with_a_taker,
    "filter over": lambda holder: _native.FilterIterator(iter([holder]), bool, [], bool, bool),
    "filter by": lambda holder: _native.FilterIterator(iter([]), holder.called, [], bool, bool),
    "filter that drops": lambda holder: _native.FilterIterator(iter([]), bool, [], holder.called, bool),
    "filter that converts": lambda holder: _native.FilterIterator(iter([]), bool, [], bool, holder.called),
    "filter of types": filter_of_types,
    "batches": lambda holder: _native.BatchIterator(map(holder.called, []), 1, False, list),
    "items by index": lambda holder: _native.IndexedIterator(holder.called, iter([]), holder.called),
    "items of indices": lambda holder: _native.IndexedIterator(bool, iter([holder]), bool),
    "queue of items": queue_of_items,
    "queue with an error": queue_with_an_error,
    "queue that was restored": queue_that_was_restored,
    "queue with a mark": queue_with_a_mark,
    "queue with a place": queue_with_a_position,
    "queue with a submitted item": queue_with_a_submitted_item,
    "queue with a claimed item": queue_with_a_claimed_item,
    "queue with one of several claimed": queue_with_one_of_several_claimed,
    "reader of a source": lambda holder: _native.SourceReader(holder.called, print, print, 1, 0, set()),
    "reader of states": lambda holder: _native.SourceReader(print, holder.called, print, 1, 0, set()),
    "reader that marks": lambda holder: _native.SourceReader(print, print, holder.called, 1, 0, set()),
    "reader with an error": reader_with_an_error,
    "gzip reader": lambda holder: _native.GzipReader(holder.read),
    "gzip reader amid members": gzip_reader_amid_members,
    "record reader": lambda holder: _native.TFRecordReader(holder.read, "here"),
    "record converter": lambda holder: _native.TFRecordReader(io.BytesIO().read, "here", convert=holder.called),
    "record finisher": lambda holder: _native.TFRecordReader(io.BytesIO().read, "here", finish=holder.called),
    "collector with errors": lambda holder: _collector(holder.called),
    "collector that watches": collector_that_watches,
    "collector with an interrupt": collector_with_an_interrupt,
    "collector that tells of surplus": collector_that_reports_surplus,
    "item stream": lambda holder: iter(_collector(holder.called)),
    "guard": guard,
    "what shards exchange": lambda holder: _native.Exchange([(holder, "held", None)], [], []),
    "globals of a shard": saved_globals,
    "turns of shards": lambda holder: _native.ShardTurns([], holder.called, 0),
}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_a_cycle_is_collected_unless_it_is_in_use(make):
    holder = Holder()
    native = holder.held = make(holder)
    reference = weakref.ref(holder)
    del holder
    gc.collect()
    assert reference().held is native
    del native
    gc.collect()
    assert reference() is None


def test_every_class_is_tried_here_or_holds_no_objects():
    holds_none = {
        "ArenaBuffer",
        "BellBoard",
        "Carrier",
        "Finalized",
        "HandingIterator",
        "HeldLock",
        "IterationToken",
        "LeasedBuffer",
        "Link",
        "CommandState",
        "Replacing",
        "Meeting",
        "OwnedDescriptor",
        "SeedGenerator",
        "SharedIterator",
        "StatsBoard",
        "Turn",
    }
    tried = {type(make(Holder())).__name__ for make in WAYS.values()}
    assert tried | holds_none == {name for name, value in vars(_native).items() if isinstance(value, type)}


def test_garbage_collection_does_not_free_items_that_a_thread_waits_for():
    queue = _native.ReadAheadQueue("a test", 4)
    count = 3_000

    def produce():
        for number in range(count):
            slot = queue.reserve()
            item = [number]
            item.append(item)
            queue.put(slot, item)
            del item
        queue.finish(queue.reserve())

    stop = threading.Event()

    def collect():
        while not stop.is_set():
            gc.collect(0)

    threads = [threading.Thread(target=produce), threading.Thread(target=collect)]
    for thread in threads:
        thread.start()
    try:
        for number in range(count):
            item = queue.pop()
            assert item[0] == number
            assert item[1] is item
    finally:
        stop.set()
        queue.close()
        for thread in threads:
            thread.join()


def test_garbage_collection_in_a_forked_child_ignores_an_inherited_queue():
    holder = Holder()
    holder.held = queue_of_items(holder)
    there = [weakref.ref(holder)]

    def collect():
        gc.collect()
        assert there[0]() is not None  # a thread of the parent may use the object

    del holder
    check_in_forked_child(collect)


def test_a_collector_in_use_is_not_reused():
    exited = []
    collector = _collector(print)
    collector.watch([(0, os.getppid())], exited.append)
    collector.start_epoch(1, 1)
    reading = threading.Thread(target=lambda: list(collector))
    reading.start()
    for _ in range(50):
        gc.collect()
    collector.stop()
    reading.join(120)
    assert not reading.is_alive()
    assert exited == []
