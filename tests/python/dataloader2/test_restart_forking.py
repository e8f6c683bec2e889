"""Loaders still replace workers if the process that forks the replacements is killed or suspended, or fails to fork."""

import errno
import functools
import os
import signal
import subprocess

import pytest

from leftovers import children
from process_checks import has_exited, kill_fork_server, nothing_is_left, wait_for  # noqa: F401 - a fixture
from restarted import pids_of, pipeline, restarting, undisturbed
from torchdata._engine.processes import forker, forking_process
from torchdata._engine.workers import restart as replacing
from torchdata.dataloader2.error import WorkerExitedError

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore:.*A new process replaced it")]


ITEMS = 600


@functools.cache
def expected():
    return undisturbed(pipeline(ITEMS), 2)


def forker_of(loader):
    return loader.reading_service._children._restarts._forker._process.pid


def begun(**options):
    loader = restarting(pipeline(ITEMS), **options)
    iterator = iter(loader)
    return loader, iterator, [next(iterator)]


def kill_first(loader):
    pid = pids_of(loader)[0]
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.parametrize("dispatched", [False, True])
def test_the_error_names_the_worker_and_the_cause_if_the_fork_server_has_exited(dispatched):
    with restarting(pipeline(ITEMS, dispatched)) as loader:
        iterator = iter(loader)
        next(iterator)
        os.kill(forker_of(loader), signal.SIGKILL)
        pid = kill_first(loader)
        for items in (iterator, loader):
            with pytest.raises(WorkerExitedError, match="the forking process has ended: it was killed") as caught:
                list(items)
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.worker == 0
        assert has_exited(pid)


def test_a_replacement_outlives_its_fork_server_and_can_be_shut_down():
    loader, iterator, got = begun()
    with loader:
        kill_first(loader)
        got += [next(iterator) for _ in range(100)]
        pids = pids_of(loader)
        os.kill(forker_of(loader), signal.SIGKILL)
        assert got + list(iterator) == expected()[0]
    assert all(map(has_exited, pids))


def test_children_of_a_fork_server_that_is_killed_are_replaced_once_they_exit(recwarn):
    loader, iterator, got = begun(multiprocessing_context="forkserver")
    with loader:
        pids = pids_of(loader)
        kill_fork_server()
        assert got + list(iterator) == expected()[0]
        assert (loader.stats().restarts, pids_of(loader)) == (0, pids)
        iterator = iter(loader)
        got = [next(iterator)]
        kill_first(loader)
        assert got + list(iterator) == expected()[1]
        assert loader.stats().restarts == 1
    assert all(map(has_exited, pids))
    [shown] = [str(warning.message) for warning in recwarn if "A new process replaced it" in str(warning.message)]
    assert "the process that forked it, and would report its exit code, has exited, too" in shown


def test_every_caller_learns_how_a_child_has_ended_even_if_a_reply_was_lost():
    loader, iterator, got = begun()
    with loader:
        before = kill_first(loader)
        while pids_of(loader)[0] == before:
            got.append(next(iterator))
        process = loader.reading_service._children._members.processes[0]
        assert isinstance(process, forker.RemoteChild)
        pid = kill_first(loader)
        wait_for(lambda: process._watch.has_ended)
        codes = [process._forker.ask("status", pid) for _ in range(3)]
        assert codes == [-signal.SIGKILL] * 3
        assert got + list(iterator) == expected()[0]
        assert not has_exited(forker_of(loader))


def test_a_process_that_forks_and_is_stopped_is_waited_for_but_not_for_ever(monkeypatch):
    monkeypatch.setitem(forker._TIMEOUTS, "fork", 0.3)
    loader, iterator, _ = begun()
    with loader:
        os.kill(forker_of(loader), signal.SIGSTOP)
        kill_first(loader)
        with pytest.raises(WorkerExitedError, match=r"worker process 0 .*did not reply within 0 s.*SIGSTOP"):
            list(iterator)


def test_a_fork_server_that_is_stopped_for_a_moment_still_starts_the_replacement():
    loader, iterator, got = begun()
    with loader:
        pid = forker_of(loader)
        os.kill(pid, signal.SIGSTOP)
        resumer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {pid}"])
        kill_first(loader)
        got += list(iterator)
        resumer.wait()
    assert got == expected()[0]


def test_a_forked_child_exits_even_if_the_main_process_never_received_its_process_id(monkeypatch, tmp_path):
    fork = forking_process._ForkingProcess._fork

    def last(self, *arguments):
        (tmp_path / "pid").write_text(str(fork(self, *arguments)))
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(forking_process._ForkingProcess, "_fork", last)
    loader, iterator, _ = begun()
    with loader:
        kill_first(loader)
        with pytest.raises(WorkerExitedError, match="it was killed"):
            list(iterator)
        wait_for(lambda: has_exited(int((tmp_path / "pid").read_text())))


def full(times):
    fork = forking_process._ForkingProcess._fork

    def tried(self, *arguments):
        nonlocal times
        times -= 1
        if times >= 0:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork(self, *arguments)

    return tried


@pytest.mark.parametrize("is_watched", [False, True])
def test_ctrl_c_while_the_fork_server_starts_leaves_no_process_running(monkeypatch, is_watched):
    fork_all = forker.fork_all

    def pressed(children, started, deliver):
        def press(*_):
            signal.raise_signal(signal.SIGINT)
            deliver()

        fork_all(children, started if is_watched else press, deliver)
        press()

    monkeypatch.setattr(forker, "fork_all", pressed)
    with restarting(pipeline(20)) as loader:
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        assert children() == []
        monkeypatch.undo()
        assert len(list(loader)) == 10


def test_a_restart_waits_for_room_for_another_process(monkeypatch):
    monkeypatch.setattr(forking_process._ForkingProcess, "_fork", full(5))
    monkeypatch.setattr(replacing, "ROOM", 60.0)
    loader, iterator, got = begun()
    with loader:
        kill_first(loader)
        got += list(iterator)
    assert got == expected()[0]


def test_the_error_reports_a_lack_of_room_and_the_next_epoch_tries_again(monkeypatch):
    monkeypatch.setattr(forking_process._ForkingProcess, "_fork", full(1))
    monkeypatch.setattr(replacing, "ROOM", 0.0)
    loader, iterator, _ = begun()
    with loader:
        kill_first(loader)
        with pytest.raises(WorkerExitedError, match=r"worker process 0 .*SIGKILL.*ulimit -u") as caught:
            list(iterator)
        assert (caught.value.worker, caught.value.exitcode) == (0, -signal.SIGKILL)
        assert list(loader) == expected()[1]
