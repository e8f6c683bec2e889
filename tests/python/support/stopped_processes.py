"""A program that suspends its processes by SIGSTOP, and then exits without shutting its loader down.

Usage: python -m stopped_processes START_METHOD WHEN ENDING FILE

WHEN is "running" or "starting". If WHEN is "starting", new processes stop themselves while they import this program.
The ids of the stopped processes are written to FILE."""

import os
import signal
import sys
import threading
from pathlib import Path

if __name__ == "__mp_main__" and "starting" in sys.argv:
    os.kill(os.getpid(), signal.SIGSTOP)

from leftovers import cmdline, descendants, state
from process_checks import wait_for
from restarted import pipeline, restarting
from torchdata._engine.processes import shutdown


def own_processes():
    return [pid for pid in descendants("self") if b"resource_tracker" not in cmdline(pid)]


def names_of_processes():
    return sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in own_processes())


def stopped_processes():
    return [pid for pid in own_processes() if state(pid) == "T"]


def stop_all():
    for pid in own_processes():
        os.kill(pid, signal.SIGSTOP)
    return len(stopped_processes())


def replace_a_worker(loader):
    iterator = iter(loader)
    next(iterator)
    killed = loader.worker_pids()[0]
    os.kill(killed, signal.SIGKILL)

    def read_on():
        while loader.worker_pids()[0] == killed:
            next(iterator)

    thread = threading.Thread(target=read_on)  # this thread makes the loader start a replacement
    thread.start()
    thread.join()


def main(method, when, ending, file):
    shutdown.ASKED = 0.2  # the children are stopped, so the shutdown kills them
    loader = restarting(pipeline(100_000, dispatched=True), multiprocessing_context=method)
    if when == "starting":
        threading.Thread(target=iter, args=(loader,), daemon=True).start()
        wait_for(stopped_processes)
    else:
        replace_a_worker(loader)
        names = ["td_dispatch", *([] if method == "spawn" else ["td_fork"]), "td_worker_0", "td_worker_1"]
        wait_for(lambda: names_of_processes() == names)  # a new process sets its name after it has started
        wait_for(lambda: stop_all() == len(names))
    Path(file).write_text(" ".join(map(str, stopped_processes())))
    if ending == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ending == "os._exit":
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
