"""Processes report their stacks on request, even during forks, in threads, and after file descriptors were reused."""

import contextlib
import faulthandler
import gc
import os
import random
import signal
import threading
import time

import pytest

from process_checks import loader
from programs import output_of
from torchdata._native import StatsBoard
from torchdata._observe.outside import stacks
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from waiting import check_in_forked_child

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="stacks are read through Linux's /proc"),
]


def answering(pages=4):
    board = StatsBoard(pages, 1, 1, False)
    board.adopt(0, 1, 0)
    stacks.answer_for_stacks(board, 0)
    return board, board.read()[0]


def memories():
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "torchdata-stacks" in os.readlink(f"/proc/self/fd/{name}"):
                found.append(int(name))
    return found


def forget_what_other_tests_left():
    gc.collect()
    now = stacks._answering
    if not now.pages and now.opened[0] >= 0:
        faulthandler.unregister(now.signal)
        stacks._close(now.opened)
        now.opened = (-1, 0)


@pytest.fixture(autouse=True)
def no_memory_is_left():
    forget_what_other_tests_left()
    assert memories() == []
    yield
    assert memories() == []


def asked(page, seconds=1.0):
    return stacks.ask_for_stack(os.getpid(), page["signal"], page["stack"], seconds)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_child_that_is_forked_while_a_thread_ends_the_last_loader_keeps_reused_descriptors_open(
    moment, tmp_path, monkeypatch
):
    """The child is forked shortly before or after the parent closes the descriptor of the memory for stack traces."""
    board, page = answering()
    real_close, closed = os.close, []

    def in_the_child():
        other, own = answering()
        assert "in_the_child" in asked(own)
        stacks.stop_answering(other, 0)
        assert memories() == []

    def close_and_fork(descriptor):
        if closed or descriptor != page["stack"]:
            return real_close(descriptor)
        closed.append(descriptor)
        if moment == "before":
            check_in_forked_child(in_the_child)
            return real_close(descriptor)
        with open(tmp_path / "file", "w") as file:
            os.dup2(file.fileno(), descriptor)  # `dup2` closes the descriptor of the memory
            check_in_forked_child(lambda: (in_the_child(), os.write(descriptor, b"whole")))
            real_close(descriptor)
        assert (tmp_path / "file").read_text() == "whole"

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close_and_fork)
        stacks.stop_answering(board, 0)
    assert closed == [page["stack"]]


def test_a_forked_child_has_memory_of_its_own_and_closes_its_parents():
    board, page = answering()

    def in_the_child():
        _, own = answering()
        assert own["pid"] == os.getpid()
        assert len(memories()) == 1
        assert "in_the_child" in asked(own)

    check_in_forked_child(in_the_child)
    check_in_forked_child(lambda: check_in_forked_child(in_the_child))
    assert asked(page).count("Stack (most recent call first)") == 1
    stacks.stop_answering(board, 0)


class Refusing(MultiProcessingReadingService):
    def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        raise ValueError("no epoch")


def test_workers_that_never_begin_an_epoch_leave_no_memory():
    """Counts memfds for stacks directly, because the fixture `nothing_is_left` tolerates a few open descriptors."""
    pipe = IterableWrapper(range(4)).sharding_filter()
    service = MultiProcessingReadingService(1, multiprocessing_context="fork")
    service.initialize(pipe)
    assert len(memories()) == 1, "the main process can report its stack while workers start"
    service.finalize()
    assert memories() == []
    service = MultiProcessingReadingService(1, multiprocessing_context="fork")
    service.initialize(pipe)
    del service
    gc.collect()
    assert memories() == []
    with DataLoader2(pipe, reading_service=Refusing(2, multiprocessing_context="fork")) as dl:
        with pytest.raises(ValueError, match="no epoch"):
            iter(dl)
        assert len(memories()) == 1
    assert memories() == []


def test_a_late_stack_request_ends_no_process_and_writes_nothing(tmp_path):
    script = """
import os, sys
os.close(2)
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
taken = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
assert taken == 2
for _ in range(3):
    with DataLoader2(IterableWrapper(range(3))) as loader:
        list(loader)
        number = loader._recorder.board.read()[0]["signal"]
        os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
assert os.fstat(2).st_size == 0, "a stack went into a file of the program"
os.close(2)
with DataLoader2(IterableWrapper(range(3))) as loader:
    list(loader)
os.kill(os.getpid(), number)
print("unharmed")
"""
    assert output_of(script, tmp_path / "taken") == "unharmed\n"


def test_shared_memory_that_the_program_has_closed_is_created_again():
    """A program that becomes a daemon closes all open descriptors, including the descriptors of shared memory."""
    board, page = answering()
    os.close(page["stack"])
    stacks.tidy()
    second, page = answering()
    assert asked(page).startswith("Stack (most recent call first)")
    os.close(page["stack"])
    stacks.stop_answering(board, 0)
    stacks.stop_answering(second, 0)


def test_no_process_gets_a_signal_without_a_handler_and_faulthandler_has_the_handler():
    board, page = answering()
    other = signal.SIGRTMAX - 5
    assert signal.getsignal(other) == signal.SIG_DFL
    for number in (0, -1, 1000, signal.SIGKILL, signal.SIGTERM, other):
        assert stacks.ask_for_stack(os.getpid(), number, page["stack"], 0.01) is None
    assert signal.getsignal(page["signal"]) == signal.SIG_IGN, "Python ignores the signal without the handler"
    stacks.stop_answering(board, 0)
    assert not faulthandler.unregister(page["signal"])


def test_later_changes_of_a_signal_handler_are_kept():
    board, page = answering()
    number, calls = page["signal"], []
    before = signal.signal(number, lambda *_: calls.append(1))
    try:
        stacks.stop_answering(board, 0)
        os.kill(os.getpid(), number)
        assert calls == [1]
        second = StatsBoard(1, 1, 1, False)
        second.adopt(0, 1, 0)
        stacks.answer_for_stacks(second, 0)
        os.kill(os.getpid(), number)
        assert calls == [1, 1]
    finally:
        signal.signal(number, before)
        stacks.stop_answering(second, 0)


def test_two_simultaneous_requests_each_get_one_stack():
    board, page = answering()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(asked(page, 5.0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stacks.stop_answering(board, 0)
    assert len(answers) == 8
    assert {answer.count("Stack (most recent call first)") for answer in answers if answer} == {1}


def test_threads_begin_and_end_loaders_while_other_threads_request_stacks_and_fork():
    rng, over, failures = random.Random(0), threading.Event(), []

    def guarded(step):
        def run():
            while not over.is_set():
                try:
                    step()
                except BaseException as error:
                    failures.append(repr(error))
                    return

        return run

    def load():
        with DataLoader2(IterableWrapper(range(3))) as dl:
            assert list(dl) == [0, 1, 2]

    def ask():
        opened = stacks._answering.opened[0]
        stacks.ask_for_stack(os.getpid(), stacks._answering.signal, max(opened, 0), 0.01)

    def fork():
        with loader(IterableWrapper(range(4)).sharding_filter(), 1) as dl:
            assert list(dl) == [0, 1, 2, 3]

    threads = [threading.Thread(target=guarded(step)) for step in (load, load, ask, fork)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline and not failures:
        load()
        time.sleep(rng.random() * 0.005)
    over.set()
    for thread in threads:
        thread.join(120)
    load()  # The main thread releases the memory even if another thread has ended the last loader.
    assert failures == []


def test_a_first_loader_in_another_thread_answers_and_a_late_question_does_not_free_its_memory():
    script = """
import os, threading
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
numbers = []
def load():
    with DataLoader2(IterableWrapper(range(3))) as loader:
        list(loader)
        numbers.append(loader._recorder.board.read()[0]["signal"])
        os.kill(os.getpid(), numbers[0])
for _ in range(2):
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    os.kill(os.getpid(), numbers[0])
load()
os.kill(os.getpid(), numbers[0])
held = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name != "3"]
print("unharmed", sum("torchdata-stacks" in one for one in held))
"""
    shown = output_of(script)
    assert shown in ("unharmed 0\n", "unharmed 1\n"), "loaders leave at most one descriptor open"
