"""With the start method "forkserver", a single process forks all workers of a program."""

import multiprocessing
import os
import signal
import textwrap
from functools import partial

import pytest

from families import TORCH
from leftovers import fork_server
from process_checks import loader, nothing_is_left  # noqa: F401 - a fixture
from programs import output_of
from torchdata._engine.processes import forker
from torchdata._engine.processes.forker import RemoteChild, forker_of_program
from torchdata._engine.processes.start import start_all
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.alone

HEAD = """
import os, sys, threading

if __name__ == "__mp_main__":
    with open(__file__ + ".imports", "a") as file:
        file.write(f"{os.getpid()}\\n")

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

def where(number):
    return os.getcwd(), sys.path[0]

def parent_has_torch(_):
    with open(f"/proc/{os.getppid()}/maps") as maps:
        return "libtorch_cpu" in maps.read()

def read(function=None, items=range(4)):
    pipe = IterableWrapper(items).sharding_filter()
    service = MultiProcessingReadingService(2, multiprocessing_context="forkserver")
    with DataLoader2(pipe if function is None else pipe.map(function), reading_service=service) as loader:
        return list(loader)

if __name__ == "__main__":
"""


def imports_of(tmp_path, main):
    program = HEAD + textwrap.indent(textwrap.dedent(main), "    ")
    assert output_of(program, file=tmp_path / "program.py") == ""
    return len((tmp_path / "program.py.imports").read_text().split())


PROGRAMS = {
    "all loaders of the program share one process, also in threads that ask at once": (
        1,
        """
        got = []
        threads = [threading.Thread(target=lambda: got.append(read())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [[0, 1, 2, 3]] * 4, got
        assert read() == [0, 1, 2, 3]
        """,
    ),
    "workers begin in the folder and with the path of that moment": (
        1,
        """
        read()
        for folder in ("first", "second"):
            os.mkdir(folder := f"{__file__}.{folder}")
            os.chdir(folder)
            sys.path.insert(0, folder)
            assert set(read(where)) == {(folder, folder)}
        """,
    ),
    "a child that the main process forks has its own process": (
        2,
        """
        read()
        pid = os.fork()
        if pid == 0:
            os._exit(read() != [0, 1, 2, 3])
        assert os.waitpid(pid, 0)[1] == 0
        assert read() == [0, 1, 2, 3]
        """,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_imported_once_for_all_its_workers(name, tmp_path):
    imports, main = PROGRAMS[name]
    assert imports_of(tmp_path, main) == imports


@pytest.mark.skipif(not TORCH, reason="PyTorch is not installed, and the workers use it")
@pytest.mark.parametrize("source", ["range(4)", "list(torch.arange(4))"])
def test_torch_is_imported_once_for_workers_that_receive_tensors_and_not_for_other_workers(source, tmp_path):
    check = f"import torch; assert read(parent_has_torch, {source}) == [{'torch' in source}] * 4"
    assert imports_of(tmp_path, check) == 1


def test_a_stopped_process_is_replaced(monkeypatch):
    pipe = IterableWrapper(range(9)).sharding_filter()
    with loader(pipe, multiprocessing_context="forkserver") as dl:
        assert list(dl) == list(range(9))
    stopped = fork_server()
    monkeypatch.setitem(forker._TIMEOUTS, "fork", 0.3)
    os.kill(stopped, signal.SIGSTOP)
    asked = RemoteChild._ask

    def ask(child, by):
        if by.pid != stopped:
            monkeypatch.setitem(forker._TIMEOUTS, "fork", 30.0)
        return asked(child, by)

    monkeypatch.setattr(RemoteChild, "_ask", ask)
    with loader(pipe, multiprocessing_context="forkserver") as dl:
        assert list(dl) == list(range(9))
    assert fork_server() not in (None, stopped)


def writes(writers):
    for number, writer in enumerate(writers):
        writer.send(number)


def test_a_child_gets_more_descriptors_than_fit_into_a_message():
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(250)]
    writers = [writer for _, writer in pipes]
    process = RemoteChild(partial(forker_of_program, ["os"]), "the one that says", "says", writes, (writers,))
    start_all([process], "forkserver")
    for writer in writers:
        writer.close()
    assert [reader.recv() for reader, _ in pipes] == list(range(250))
    for reader, _ in pipes:
        reader.close()
    assert process.wait(120)
    assert process.exitcode == 0
    process.close()
