"""If the main process exits, its children exit, too, even if they are still importing the program."""

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from process_checks import METHODS, loader, nothing_is_left, wait_for  # noqa: F401 - a fixture
from programs import output_of
from torchdata._engine.processes.crossing import ChildName
from torchdata.datapipes.iter import IterableWrapper
from watchdog import end_session, session

PROGRAM = """
    import os, sys, time

    if __name__ == "__mp_main__":
        open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
        while not os.path.exists(f"{sys.argv[1]}/done"):
            time.sleep(0.01)

    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import IterableWrapper

    if __name__ == "__main__":
        service = MultiProcessingReadingService(2, sys.argv[2])
        list(DataLoader2(IterableWrapper([1]).sharding_filter(), reading_service=service))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_that_are_importing_the_program_while_the_main_process_is_killed_end_afterwards(tmp_path, method):
    program, here = tmp_path / "program.py", tmp_path / "here"
    program.write_text(textwrap.dedent(PROGRAM))
    here.mkdir()
    command = [sys.executable, program, here, method]
    main = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        # With forkserver, only one process imports the program: the fork server, before it forks the workers.
        wait_for(lambda: len(os.listdir(here)) == (2 if method == "spawn" else 1))
    finally:
        main.send_signal(signal.SIGKILL)
        main.wait()
    try:
        assert len(session(main.pid)) >= 1
        (here / "done").touch()
        wait_for(lambda: not session(main.pid))
        assert main.stdout.read() == b""
    finally:
        end_session(main)
        main.stdout.close()


def seen_by_a_worker(_):
    parent = multiprocessing.parent_process()
    threads = [thread.name for thread in threading.enumerate()], len(os.listdir("/proc/self/task"))
    ctrl_c = signal.getsignal(signal.SIGINT) is signal.SIG_IGN, signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return multiprocessing.current_process().name, threads, (parent.pid, os.getppid(), parent.is_alive()), ctrl_c


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_has_one_more_thread_and_the_correct_parent_and_ignores_ctrl_c(method):
    thresholds = gc.get_threshold()
    with loader(IterableWrapper([0]).map(seen_by_a_worker), 1, multiprocessing_context=method) as dl:
        ((name, threads, (parent, real_parent, is_alive), ctrl_c),) = dl
        assert multiprocessing.active_children() == []
    assert (name, threads, ctrl_c) == ("torchdata worker process 0", (["MainThread"], 2), (True, set()))
    assert (parent, is_alive) == (real_parent, True)
    assert (parent == os.getpid()) == (method != "forkserver")
    assert pickle.loads(pickle.dumps(ChildName(name))) == name
    assert gc.get_threshold() == thresholds, "unpickling the name of a child sets them only in a child"


def test_a_child_sets_its_name_once_and_keeps_a_name_set_by_the_program(tmp_path):
    program = """
        import gc, multiprocessing
        from torchdata._engine.processes.crossing import ChildName

        def says_its_name():
            print(multiprocessing.current_process().name, gc.get_threshold()[0], flush=True)

        if __name__ == '__mp_main__':
            gc.set_threshold(1234)
        if __name__ == '__main__':
            start = multiprocessing.get_context('spawn').Process
            process = start(target=says_its_name, name=ChildName('child'))
            process.start()
            process.join()
    """
    shown = output_of(program, file=tmp_path / "program.py")
    assert shown == "child 1234\n"


#: A program that kills itself. A child of a worker waits until the program has exited.
ENDED = """
import multiprocessing, os, signal, sys
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

def waits(writer):
    if os.fork() == 0:  # this child runs longer than the worker
        multiprocessing.parent_process().join()
        os.write(writer, b"ended")
        os._exit(0)

if __name__ == "__main__":
    service = MultiProcessingReadingService(1, multiprocessing_context="fork")
    pipe = IterableWrapper([1]).map(waits)
    list(DataLoader2(pipe, reading_service=service))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_end_of_main_can_be_waited_for_by_multiprocessings_parent_process(tmp_path):
    reader, writer = os.pipe()
    program = tmp_path / "program.py"
    program.write_text(ENDED.replace("map(waits)", f"map(lambda _: waits({writer}))"))
    done = subprocess.run([sys.executable, program], pass_fds=[writer], timeout=250)
    os.close(writer)
    assert done.returncode == -signal.SIGKILL
    assert os.read(reader, 10) == b"ended"
    os.close(reader)
