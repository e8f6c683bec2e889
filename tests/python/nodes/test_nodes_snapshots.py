"""Users' nodes can still import snapshot stores, counters and other names of torchdata 0.11, which work as before."""

from __future__ import annotations

import sys
import threading

import pytest

pytest.importorskip("torch", reason="nodes need PyTorch")

from torchdata.nodes.exception_wrapper import StartupExceptionWrapper
from torchdata.nodes.snapshot_store import MonotonicIndex, QueueSnapshotStore


def ended() -> threading.Thread:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return thread


def test_a_snapshot_is_found_by_its_version_and_older_ones_are_dropped() -> None:
    store = QueueSnapshotStore()
    for version in (0, 2, 5):
        store.append(f"v{version}", version)
    assert store.pop_version(1) is None
    assert store.pop_version(2) == "v2"
    assert store.pop_version(2) is None
    assert store.pop_version(9) is None
    assert store.pop_version(5) is None


def test_versions_count_upwards() -> None:
    store = QueueSnapshotStore()
    store.append("a", 3)
    for version in (3, 2):
        with pytest.raises(ValueError, match=f"version {version} of a snapshot must be greater than version 3"):
            store.append("b", version)


def test_the_snapshot_of_the_beginning_is_waited_for() -> None:
    store = QueueSnapshotStore()
    thread = threading.Thread(target=store.append_initial_snapshot, args=({"place": 0},))
    thread.start()
    assert store.get_initial_snapshot(thread, timeout=20) == {"place": 0}
    thread.join()
    with pytest.raises(RuntimeError, match="did not come: its thread has ended"):
        store.get_initial_snapshot(ended(), timeout=20)
    with pytest.raises(RuntimeError, match=r"has not come within 0.1 s"):
        store.get_initial_snapshot(threading.main_thread(), timeout=0.1)


def test_an_error_that_arrives_in_place_of_the_snapshot_is_raised() -> None:
    store = QueueSnapshotStore()
    try:
        raise KeyError("at the start")
    except KeyError:
        store.append_initial_snapshot(StartupExceptionWrapper(sys.exc_info(), where="in a thread"))
    with pytest.raises(KeyError, match="at the start"):
        store.get_initial_snapshot(ended(), timeout=1)


def test_an_index_counts_from_its_start_value() -> None:
    index = MonotonicIndex(3)
    assert [index.get(), index.get()] == [3, 4]
    assert MonotonicIndex().get() == 0
