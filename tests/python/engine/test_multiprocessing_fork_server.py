"""Loaders handle exits of the fork server, and exits of processes that the fork server has started."""

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from leftovers import fork_server
from process_checks import (  # noqa: F401
    Sleeps,
    children_are_killed_soon,
    has_exited,
    kill_fork_server,
    loader,
    nothing_is_left,
    patch_start,
    wait_for,
)
from programs import output_of
from torchdata._engine.processes.forker import ForkingProcess
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper


def test_an_exit_during_a_start_by_a_fork_server_is_reported_without_waiting_for_other_children(monkeypatch):
    begun, killed, seconds = [], [], []

    def start(child):
        real_start(child)
        begun.append(child)
        if len(begun) == 8:
            os.kill(child.pid, signal.SIGKILL)
            wait_for(lambda: child.ended and not Path(f"/proc/{child.pid}").exists())
            killed.append(time.monotonic())

    real_start = patch_start(monkeypatch, start)
    while not seconds or min(seconds) >= 5:  # repeated, because a busy machine may delay the main process
        assert len(seconds) < 5, "each shutdown waited a second for each other worker"
        begun.clear()
        with (
            loader(IterableWrapper(range(9)).sharding_filter(), 8, multiprocessing_context="forkserver") as dl,
            pytest.raises(WorkerExitedError, match="worker process 7 .* was killed by SIGKILL"),
        ):
            list(dl)
        seconds.append(time.monotonic() - killed[-1])


def read_by_a_fork_server():
    with loader(IterableWrapper(range(9)).sharding_filter(), multiprocessing_context="forkserver") as dl:
        assert sorted(dl) == list(range(9))
    return fork_server()


def test_a_fork_server_that_has_just_exited_is_replaced():
    for _ in range(3):
        os.kill(read_by_a_fork_server(), signal.SIGKILL)
    read_by_a_fork_server()


def test_a_fork_server_that_exits_before_it_has_read_a_request_is_replaced(monkeypatch):
    stopped, got, asked = read_by_a_fork_server(), [], threading.Event()
    ask = ForkingProcess.ask
    monkeypatch.setattr(ForkingProcess, "ask", lambda *args, **options: (asked.set(), ask(*args, **options))[1])
    os.kill(stopped, signal.SIGSTOP)
    reader = threading.Thread(target=lambda: got.append(read_by_a_fork_server()))
    reader.start()
    assert asked.wait(120)
    os.kill(stopped, signal.SIGKILL)
    reader.join()
    assert got == [fork_server()] != [stopped]


def wait_until_up(server):
    while server._up_since is None:
        server._receive()


def test_a_fork_server_that_exits_at_every_request_raises_an_error(monkeypatch):
    read_by_a_fork_server()
    asked = []

    def send(server, *message):
        wait_until_up(server)
        os.kill(server.pid, signal.SIGKILL)
        asked.append(server.pid)
        real_send(server, *message)

    real_send = ForkingProcess._send
    with (
        monkeypatch.context() as patch,
        pytest.raises(
            ConnectionResetError, match="worker process 0 could not be started: the forking process has ended"
        ),
    ):
        patch.setattr(ForkingProcess, "_send", send)
        read_by_a_fork_server()
    assert len(set(asked)) == 2
    read_by_a_fork_server()


def test_a_child_whose_fork_server_exits_during_the_start_is_not_reported_as_exited(monkeypatch):
    killed = []

    def start(child):
        if len(killed) < 2:
            killed.append(fork_server())
            if killed[-1] is not None:
                os.kill(killed[-1], signal.SIGKILL)
        real_start(child)

    real_start = patch_start(monkeypatch, start)
    with loader(IterableWrapper(range(99)).sharding_filter(), 3, multiprocessing_context="forkserver") as dl:
        assert list(dl) == list(range(99))
        assert killed[1] not in (None, fork_server())


@pytest.mark.usefixtures("children_are_killed_soon")
@pytest.mark.parametrize("stuck", [False, True])
def test_children_of_an_exited_fork_server_end_with_the_loader(stuck):
    datapipe = IterableWrapper(range(99)).sharding_filter().map(Sleeps(7, 1000.0 if stuck else 0.0))
    with loader(datapipe, multiprocessing_context="forkserver") as dl:
        next(iter(dl))
        kill_fork_server()
        pids = dl.reading_service._children.pids
        assert not any(map(has_exited, pids))
    assert all(map(has_exited, pids))


ORPHAN = """
    import ctypes, os, signal, sys
    from torchdata._engine.processes import forker
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.dataloader2.error import WorkerExitedError
    from torchdata.datapipes.iter import IterableWrapper

    if __name__ == "__main__":
        if sys.argv[1] == "first":
            PR_SET_CHILD_SUBREAPER = 36
            assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        service = MultiProcessingReadingService(2, "forkserver")
        with DataLoader2(IterableWrapper(range(10**6)).sharding_filter(), reading_service=service) as loader:
            iterator = iter(loader)
            next(iterator)
            os.kill(forker._of_program.pid, signal.SIGKILL)
            next(iterator)
            os.kill(loader.reading_service._children.pids[1], signal.SIGKILL)
            try:
                list(iterator)
            except WorkerExitedError as error:
                print(error.worker, error.exitcode, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers, which adopt orphaned processes")
@pytest.mark.parametrize(
    ("main", "shown"),
    [
        (
            "any",
            "1 None worker process 1 .* exited; the cause is not known, because the process that forked it.*ulimit -u",
        ),
        ("first", "1 -9 worker process 1 .* was killed by SIGKILL"),
    ],
)
def test_the_exit_of_a_child_of_an_exited_fork_server_is_reported_if_it_is_left_to_the_main_process(
    tmp_path, main, shown
):
    """In a container, children of an exited fork server become children of the container's first process."""
    printed = output_of(ORPHAN, main, file=tmp_path / "program.py")
    assert re.match(shown, printed), printed
