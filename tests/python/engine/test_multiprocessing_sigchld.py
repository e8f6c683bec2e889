"""Workers run and end as usual in programs that ignore SIGCHLD, do not handle it, or reap all children."""

import contextlib
import errno
import faulthandler
import os
import signal
import time

import pytest

from handlers import handling
from process_checks import ExitsAt, children_are_killed_soon, has_exited, loader, nothing_is_left, wait_for  # noqa: F401
from torchdata._engine.workers import child
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper


def reap_all(_number, _frame):
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


HANDLERS = {"as it is": signal.SIG_DFL, "ignored": signal.SIG_IGN, "reaped": reap_all}


@pytest.fixture(params=HANDLERS)
def sigchld(request):
    with handling(HANDLERS[request.param], signal.SIGCHLD):
        yield request.param


@pytest.mark.usefixtures("children_are_killed_soon")
def test_a_stuck_worker_is_ended_too(sigchld):
    dl = loader(IterableWrapper(range(10)).sharding_filter().map(lambda _: time.sleep(1000)))
    iter(dl)
    pids = dl.reading_service._children.pids
    dl.shutdown()
    assert all(map(has_exited, pids))


@pytest.mark.parametrize(
    ("sigchld", "method"),
    [*((name, "fork") for name in HANDLERS), ("ignored", "spawn"), ("reaped", "forkserver")],
    indirect=["sigchld"],
)
def test_an_error_reports_an_exit_and_why_its_code_is_unknown(sigchld, method):
    datapipe = IterableWrapper(range(40)).sharding_filter().map(ExitsAt(6, after=0.1))
    with loader(datapipe, multiprocessing_context=method) as dl:
        with pytest.raises(WorkerExitedError, match="worker process 0") as caught:
            list(dl)
        with pytest.raises(WorkerExitedError, match="worker process 0"):  # the loader still reports the exit
            iter(dl)
    if method == "forkserver" or sigchld == "as it is":  # the fork server reaps its workers
        assert caught.value.exitcode == 7
        assert "exited with code 7" in str(caught.value)
        return
    assert caught.value.exitcode is None
    why = "this program ignores SIGCHLD" if sigchld == "ignored" else "handler of SIGCHLD waits for all children"
    assert why in str(caught.value)


def test_a_worker_exit_between_epochs_is_noticed_and_its_process_id_is_not_signalled(sigchld, monkeypatch):
    signalled = []
    kill = os.kill
    with loader(IterableWrapper(range(10)).sharding_filter()) as dl:
        assert list(dl) == list(range(10))
        pid = dl.reading_service._children.pids[0]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: has_exited(pid))
        monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid) or kill(pid, number))
        with pytest.raises(WorkerExitedError, match="worker process 0"):
            list(dl)
    assert pid not in signalled


@pytest.mark.parametrize(
    ("error", "what"), [(errno.EAGAIN, "cannot start the thread"), (errno.EMFILE, "cannot watch a process")]
)
def test_a_child_that_cannot_watch_the_main_process_exits_with_a_reason(monkeypatch, capfd, error, what):
    def refused(_pid):
        raise OSError(error, f"{what}: {os.strerror(error)}")

    monkeypatch.setattr(child, "exit_with_parent", refused)
    with (
        loader(IterableWrapper(range(10)).sharding_filter()) as dl,
        pytest.raises(WorkerExitedError, match=r"exited with code 71; .* limit of processes and threads") as caught,
    ):
        list(dl)
    assert caught.value.exitcode == os.EX_OSERR
    assert f"cannot watch the main process: [Errno {error}] {what}" in capfd.readouterr().err


def aborts(x):
    faulthandler.disable()  # faulthandler would print into the tests' output
    os.abort()


def test_the_error_for_an_abort_names_memory_and_not_a_sender():
    with (
        loader(IterableWrapper(range(10)).sharding_filter().map(aborts)) as dl,
        pytest.raises(WorkerExitedError, match="was killed by SIGABRT; .*memory runs out") as caught,
    ):
        list(dl)
    assert "who sent" not in str(caught.value)
