"""A program that stops all processes of its loader by SIGSTOP, and then exits without shutting the loader down.

Usage: python -m stopped_processes START_METHOD WHEN ENDING FILE

WHEN is "running" or, for processes that import this program, "starting". The ids of all processes that the program has
started are written to FILE.
"""

from __future__ import annotations

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


def own_processes():
    return [pid for pid in descendants("self") if b"resource_tracker" not in cmdline(pid)]


def replace_a_worker(loader):
    iterator = iter(loader)
    next(iterator)
    killed = loader.worker_pids()[0]
    os.kill(killed, signal.SIGKILL)

    def read_on():
        while loader.worker_pids()[0] == killed:
            next(iterator)

    thread = threading.Thread(target=read_on)  # this thread starts the replacement
    thread.start()
    thread.join()


def main(method, when, ending, file):
    loader = restarting(pipeline(100_000, dispatched=True), multiprocessing_context=method)
    if when == "starting":
        threading.Thread(target=iter, args=(loader,), daemon=True).start()
        wait_for(lambda: any(state(pid) == "T" for pid in own_processes()))
    else:
        replace_a_worker(loader)
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in own_processes()]
        forking = [] if method == "spawn" else ["td_fork"]
        assert sorted(names) == ["td_dispatch", *forking, "td_worker_0", "td_worker_1"]
    for pid in own_processes():
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda pid=pid: state(pid) == "T")
    Path(file).write_text(" ".join(map(str, own_processes())))
    if ending == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ending == "os._exit":
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
