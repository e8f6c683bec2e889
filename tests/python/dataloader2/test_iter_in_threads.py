"""A thread can begin the next epoch while other threads read or end the previous epoch."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from torchdata.dataloader2 import DataLoader2, InProcessReadingService
from torchdata.datapipes.iter import IterableWrapper
from waiting import wait_for


def test_a_thread_that_ends_an_epoch_does_not_end_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader2(IterableWrapper(range(10))) as loader:
        recorder, ends, begins = loader._recorder, threading.Event(), threading.Event()
        end, begin = recorder.end, recorder.begin

        def end_slowly() -> None:
            end()
            if not ends.is_set():
                ends.set()
                begins.wait(0.5)  # no other thread may begin an epoch during this wait

        def begin_and_tell(*arguments: Any) -> None:
            begin(*arguments)
            begins.set()

        first = iter(loader)
        monkeypatch.setattr(recorder, "end", end_slowly)
        monkeypatch.setattr(recorder, "begin", begin_and_tell)
        reader = threading.Thread(target=lambda: list(first))
        reader.start()
        wait_for(ends.is_set)
        second = iter(loader)
        reader.join()
        assert list(second) == list(range(10))


def test_an_older_iterator_reads_nothing_of_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader2(IterableWrapper(range(10))) as loader:
        first, told, position = iter(loader), [], loader._run.position
        next(first)
        drop = position.drop

        def read_and_drop(place: Any) -> None:
            def read() -> None:
                with pytest.raises(RuntimeError, match="another iterator has been created"):
                    told.append(next(first))

            reader = threading.Thread(target=read)
            reader.start()
            reader.join()
            drop(place)

        monkeypatch.setattr(position, "drop", read_and_drop)
        second = iter(loader)
        assert not told
        assert list(second) == list(range(10))


def test_an_epoch_that_does_not_begin_leaves_the_loader_as_it_was() -> None:
    class Moody(InProcessReadingService):
        fails = False

        def initialize_iteration(self, *arguments: Any) -> Any:
            if Moody.fails:
                raise ValueError("not today")
            return super().initialize_iteration(*arguments)

    with DataLoader2(IterableWrapper(range(3)), reading_service=Moody()) as loader:
        first = iter(loader)
        next(first)
        Moody.fails = True
        with pytest.raises(ValueError, match="not today"):
            iter(loader)
        assert list(first) == []  # the first iterator has ended, and does not repeat its error
        Moody.fails = False
        assert list(loader) == [0, 1, 2]


def test_a_forked_child_does_not_wait_for_a_state_that_a_thread_of_its_parent_takes() -> None:
    with DataLoader2(IterableWrapper(range(10))) as loader:
        iterator = iter(loader)
        assert next(iterator) == 0
        iterator.limit(100)
        holds, over = threading.Event(), threading.Event()

        def hold() -> None:
            with loader._run.held:
                holds.set()
                over.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        wait_for(holds.is_set)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            code = 1
            try:
                code = int(list(iterator) != list(range(1, 10)) or not loader.state_dict())
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        over.set()
        holder.join()
        assert status == 0
