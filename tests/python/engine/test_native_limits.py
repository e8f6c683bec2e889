"""Arguments at the limits of the extension's integer types never cause an abort, a panic or an integer overflow."""

import math
import sys
import threading

import pytest

from process_checks import loader
from programs import output_of
from torchdata._native import BellBoard, Collector, Link, ReadAheadQueue, Sender
from torchdata.datapipes.iter import IterableWrapper

VERY_LONG = [1e9, 1e18, 1e19, 1e300, math.inf]


@pytest.mark.parametrize("size", [10**12, sys.maxsize, 10**30])
def test_a_prefetch_of_any_size_reads_its_source(size):
    assert list(IterableWrapper(range(5)).prefetch(size)) == [0, 1, 2, 3, 4]


def test_a_prefetch_uses_memory_for_buffered_items_only():
    script = """
        import re, torchdata.datapipes.iter as pipes
        def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
        list(pipes.IterableWrapper(range(3)).prefetch(1))
        before = peak()
        list(pipes.IterableWrapper(range(3)).prefetch(10**7))
        print(peak() - before)
    """
    assert int(output_of(script)) < 8 << 10  # KiB


@pytest.mark.parametrize("seconds", VERY_LONG)
def test_a_very_long_patience_waits(seconds):
    queue = ReadAheadQueue("a test", 1)
    slot = queue.reserve()
    queue.close()
    threading.Timer(0.1, queue.finish, [slot]).start()
    assert queue.wait_idle(seconds)


@pytest.mark.parametrize("seconds", [0, -1, -math.inf, math.nan])
def test_no_patience_does_not_wait(seconds):
    queue = ReadAheadQueue("a test", 1)
    assert queue.reserve() is not None
    assert not queue.wait_idle(seconds)


@pytest.mark.parametrize("seconds", VERY_LONG)
def test_messages_and_acknowledgements_may_be_waited_for_very_long(seconds):
    bells, link = BellBoard(2), Link(0)
    sender, collector = Sender([link], bells, 1, [0]), Collector([link], bells, 0, [1], print)
    threading.Timer(0.1, sender.send_message, [("hello",)]).start()
    assert collector.receive(0, seconds) == ("hello",)
    threading.Timer(0.1, collector.acknowledge, [1]).start()
    assert sender.wait_acknowledged(1, seconds, lambda: None)
    received = []
    reading = threading.Timer(0.1, lambda: received.append(collector.receive(0)))
    reading.start()
    sender.send_message(b"x" * 10_000_000, seconds)
    reading.join(120)
    assert [len(message) for message in received] == [10_000_000]


@pytest.mark.parametrize("timeout", [1e19, 1e300])
def test_a_very_long_timeout_of_a_loader_waits(timeout):
    served = loader(IterableWrapper(range(4)), 1, timeout=timeout)
    assert list(served) == [0, 1, 2, 3]
    served.shutdown()


@pytest.mark.parametrize("window", [sys.maxsize, 2**64 - 1, 10**30])
def test_workers_may_be_as_far_ahead_as_anybody_can_count(window):
    served = loader(IterableWrapper(range(1000)), 1, worker_prefetch_cnt=window, main_prefetch_cnt=window)
    assert list(served) == list(range(1000))
    served.shutdown()


def test_a_board_with_more_bells_than_fit_into_memory_raises_an_error():
    with pytest.raises((OSError, OverflowError)):
        BellBoard(2**58 + 1)
