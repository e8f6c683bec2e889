"""The children of one loader, as main sees them: started together, commanded, watched, ended.

Role: main's side of the processes. Owns the links, the bells and the process objects; everything is released by
`shutdown`, which is bounded, idempotent and harmless in a forked child that inherited the object.
"""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing.popen_fork  # noqa: F401 - multiprocessing would import it at the first start, 3 ms later
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from torchdata._engine.child import MAIN, ChildSetup, Job, run_child
from torchdata._engine.crossing import Handle, SharedPickle, explain_unpicklable, note_pipes, pickle_graph
from torchdata._engine.failures import reraise
from torchdata._engine.garbage import ChildName
from torchdata._native import BellBoard, Collector, Link, Sender
from torchdata.datapipes._traversal import walk

__all__ = ["Children"]

#: How long a child may take to finish what it does after it was asked to stop.
ASKED = 3.0
#: How long it may take after SIGTERM.
TERMINATED = 1.0
#: Ring of a control link; larger commands are streamed.
CONTROL_RING = 64 << 10
#: How long a child may take to obey a command that main waits for.
OBEDIENCE = 600.0


def default_budget() -> int:
    """Shared memory that all links of one loader may use: a quarter of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class Children:
    """Workers, and where something is to be dispatched the dispatching process.

    Args:
        context: multiprocessing context that starts them.
        num_workers: number of workers.
        job: what each worker runs.
        dispatch: what the dispatching process runs; None where there is none.
        window: items that each worker may be ahead of main.
        dispatch_window: items that the dispatching process may be ahead of each worker.
        memory_budget: bytes of shared memory for all of them; None for a quarter of the machine's.
        in_order: whether main takes items from the workers in strict turn.
        timeout: seconds that main waits for an item; None for ever.
    """

    def __init__(
        self,
        context: BaseContext,
        num_workers: int,
        job: Job,
        dispatch: Job | None,
        *,
        window: int,
        dispatch_window: int,
        memory_budget: int | None,
        in_order: bool,
        timeout: float | None,
    ) -> None:
        self._owner_pid = os.getpid()
        self._num_workers = num_workers
        self._window = window
        self._epoch = 0
        self._sent = 0
        self._names = [f"worker process {i}" for i in range(num_workers)]
        budget = default_budget() if memory_budget is None else memory_budget
        per_link = budget // (num_workers if dispatch is None else 2 * num_workers)
        count = num_workers + (dispatch is not None)
        if dispatch is not None:
            self._names.append("the dispatching process")

        self._bells = BellBoard(1 + count)
        self._links = [Link(per_link) for _ in range(num_workers)]
        controls = [Link(0, CONTROL_RING) for _ in range(count)]
        dispatched = [Link(per_link) for _ in range(num_workers)] if dispatch is not None else []

        start_method = context.get_start_method()
        jobs = [self._shared(job, start_method)] * num_workers
        if dispatch is not None:
            jobs.append(self._shared(dispatch, start_method))
        self._processes: list[BaseProcess] = []
        setups: list[ChildSetup] = []
        for index in range(count):
            worker = index < num_workers
            setup = ChildSetup(
                name=self._names[index],
                index=1 + index,
                worker_id=index if worker else 0,
                num_workers=num_workers,
                dispatches=not worker,
                job=jobs[index],
                bells=Handle(self._bells),
                control=Handle(controls[index]),
                outputs=[Handle(self._links[index])] if worker else [Handle(link) for link in dispatched],
                output_peers=[MAIN] if worker else list(range(1, 1 + num_workers)),
                dispatched=Handle(dispatched[index]) if worker and dispatch is not None else None,
                dispatcher_index=count,
                window=dispatch_window,
                main_pid=self._owner_pid,
                is_child_of_main=start_method != "forkserver",
                gc_thresholds=gc.get_threshold(),
            )
            setups.append(setup)
            name = ChildName(f"torchdata {self._names[index]}")
            process = context.Process(target=run_child, args=(setup,), name=name, daemon=True)  # type: ignore[attr-defined]
            self._processes.append(process)
        # Ends the children even where nobody calls shutdown, at interpreter exit at the latest.
        self._finalizer = weakref.finalize(
            self, _end, self._owner_pid, self._processes, commanders := [], self._bells
        )
        try:
            self._start(start_method, setups)
            commanders += [
                Sender([control], self._bells, MAIN, [1 + index]) for index, control in enumerate(controls)
            ]
            self._commanders: list[Sender] = commanders
            self.collector = Collector(
                self._links,
                self._bells,
                MAIN,
                list(range(1, 1 + num_workers)),
                _raise_failure,
                in_order=in_order,
                timeout=timeout,
            )
            on_exit = weakref.WeakMethod(self._on_exit)
            self.collector.watch(list(enumerate(self.pids)), lambda index: on_exit()(index))  # type: ignore[misc]
        except BaseException:
            self.shutdown()
            raise

    @staticmethod
    def _shared(job: Job, start_method: str) -> Job | SharedPickle:
        """The job as the children get it: as it is where they inherit it, else pickled once for all of them."""
        if start_method == "fork":
            return job
        try:
            return SharedPickle(pickle_graph(job))
        except Exception as error:
            if "inheritance" in str(error):
                return job  # pickled with each process, as such objects must be
            raise TypeError(explain_unpicklable(walk(job.datapipe), start_method)) from error

    def _start(self, start_method: str, setups: list[ChildSetup]) -> None:
        if start_method == "fork":  # children inherit the mappings
            self._close_descriptors(setups)
        for process, setup in zip(self._processes, setups, strict=True):
            process.start()
            note_pipes(process)
            if (
                not setup.dispatches
            ):  # what the dispatching process needs, which is started last, it has in common
                setup.control.shared.close_descriptor()
                setup.outputs[0].shared.close_descriptor()
        self._close_descriptors(setups)

    def _close_descriptors(self, setups: list[ChildSetup]) -> None:
        """Closes what was passed to all who should have it, so that main keeps no descriptor for a link."""
        for handle in [handle for setup in setups for handle in setup.links()]:
            handle.shared.close_descriptor()
        self._bells.close_descriptor()

    # -- what main asks of the children ------------------------------------------------------------

    def start_epoch(self, commands: Callable[[int], tuple[Any, Any]]) -> None:
        """Starts an epoch everywhere; `commands(index)` gives the seeds and the reset function of each child."""
        self._check_alive()
        self._epoch += 1
        self.collector.start_epoch(self._epoch, self._window)
        # The dispatching process first: the others wait for it.
        for index in reversed(range(len(self._processes))):
            self._send(index, ("epoch", self._epoch, *commands(index)))
        self._sent += 1

    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies `function` to the graph of every child and waits until all have done it."""
        self._check_alive()
        for index in range(len(self._processes)):
            self._send(index, ("call", function))
        self._sent += 1
        for index, commander in enumerate(self._commanders):
            if not commander.wait_acknowledged(self._sent, OBEDIENCE, self._check_alive):
                raise TimeoutError(
                    f"{self._names[index]} did not answer within {OBEDIENCE:.0f} s: its pipe is stuck"
                )

    def _send(self, index: int, command: tuple[Any, ...]) -> None:
        self._commanders[index].send_message(command)

    # -- life and death ----------------------------------------------------------------------------

    def _check_alive(self) -> None:
        for index, process in enumerate(self._processes):
            if process.exitcode is not None:
                self._on_exit(index)

    def _on_exit(self, index: int) -> NoReturn:
        from torchdata.dataloader2.error import WorkerExitedError

        process = self._processes[index]
        process.join(1.0)
        code = process.exitcode
        self.collector.stop()
        raise WorkerExitedError(
            _obituary(self._names[index], process.pid, code),
            worker=index if index < self._num_workers else None,
            exitcode=code,
            stage="dispatching items" if index == self._num_workers else "reading items",
        )

    @property
    def pids(self) -> list[int]:
        """Process numbers, the dispatching process last."""
        return [process.pid for process in self._processes if process.pid is not None]

    def shutdown(self) -> None:
        """Ends all children: asks, waits, terminates, kills, reaps. Safe to call at any time, any number of times."""
        self._finalizer()


def _obituary(name: str, pid: int | None, code: int | None) -> str:
    """What happened to a child, and what to do."""
    if code is None:
        how, advice = "died", "look for the cause in the system's log"
    elif code < 0:
        try:
            signal_name = signal.Signals(-code).name
        except ValueError:
            signal_name = f"signal {-code}"
        how = f"was killed by {signal_name}"
        advice = {
            "SIGKILL": "the kernel does that when memory runs out (see dmesg): use fewer workers, smaller prefetch "
            "counts or a memory_budget",
            "SIGSEGV": "a native library in its pipes crashed: run with PYTHONFAULTHANDLER=1 to see where",
            "SIGBUS": "memory or disk space behind a mapping ran out",
        }.get(signal_name, "look for who sent the signal")
    else:
        how = f"exited with code {code}"
        advice = (
            "something in its pipes called sys.exit or os._exit, or it failed to start: see its output above"
        )
        if "mpi4py.MPI" in sys.modules:
            advice += (
                "; a program that imports mpi4py.MPI at its top has spawned workers fail in MPI_Init, as they are no "
                'ranks: import it in a function, or under `if __name__ == "__main__":`'
            )
    return f"{name} (pid {pid}) {how}; {advice}. What it had sent was delivered as far as its turn had come."


def _raise_failure(_peer: int, description: Any) -> NoReturn:
    reraise(description)


def _end(owner_pid: int, processes: list[BaseProcess], commanders: list[Sender], _bells: BellBoard) -> None:
    if os.getpid() != owner_pid:  # a forked child that merely inherited the object
        return
    started = [process for process in processes if process.pid is not None]
    for commander in commanders:
        with contextlib.suppress(Exception):
            commander.send_message(("stop",), 0.1)
    if len(commanders) == len(started):
        _join(started, ASKED)
    for process in started:
        if process.is_alive():
            process.terminate()
    _join(started, TERMINATED)
    for process in started:
        if process.is_alive():
            process.kill()
    _join(started, math.inf)
    for process in started:
        process.close()
    processes.clear()
    commanders.clear()


def _join(processes: list[BaseProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(None if seconds == math.inf else max(0.0, deadline - time.monotonic()))
