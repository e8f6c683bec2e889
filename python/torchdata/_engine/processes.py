"""The children of one loader, as main sees them: started together, commanded, watched, ended.

Role: main's side of the processes. Owns the links, the bells and the process objects; everything is released by
`shutdown`, which is bounded, idempotent and harmless in a forked child that inherited the object. How children start
and end stands in `starting` and `ending`, the words about one that died in `obituary`.
"""

from __future__ import annotations

import gc
import multiprocessing.popen_fork  # noqa: F401 - multiprocessing would import it at the first start, 3 ms later
import os
import time
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

from torchdata._engine.child import MAIN, ChildSetup, Job, run_child
from torchdata._engine.crossing import Handle, SharedPickle, explain_unpicklable, pickle_graph
from torchdata._engine.ending import ChildProcess, Ending
from torchdata._engine.failures import reraise
from torchdata._engine.obituary import obituary
from torchdata._engine.starting import new_child, start_all
from torchdata._native import BellBoard, Collector, Link, Sender
from torchdata.datapipes._traversal import walk

__all__ = ["Children"]

#: Ring of a control link; larger commands are streamed.
CONTROL_RING = 64 << 10
#: How long a child may take to obey a command that main waits for.
OBEDIENCE = 600.0
#: How often main looks meanwhile whether anybody is held up.
GLANCE = 0.002


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
        self._timeout = timeout
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
        self._processes: list[ChildProcess] = []
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
            self._processes.append(new_child(context, self._names[index], run_child, (setup,)))
        # Ends the children even where nobody calls shutdown, at interpreter exit at the latest.
        self._ending = Ending(self._processes, list(controls), self._bells)
        self._finalizer = weakref.finalize(self, self._ending.run_later)
        try:
            self._start(start_method, setups)
            self._commanders = self._ending.commanders
            self._commanders += [
                Sender([control], self._bells, MAIN, [1 + index]) for index, control in enumerate(controls)
            ]
            self.collector = Collector(
                self._links,
                self._bells,
                MAIN,
                list(range(1, 1 + num_workers)),
                _raise_failure,
                in_order=in_order,
                timeout=timeout,
            )
            self._watch()
            surplus = weakref.WeakMethod(self._on_surplus)
            self.collector.tell_surplus(budget, lambda *what: surplus()(*what))  # type: ignore[misc]
            #: By child: the number of the last command.
            self._sent = [0] * count
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
        def close_own(index: int) -> None:
            setup = setups[index]
            # What the dispatching process needs, which is started last, it has in common with others.
            if not setup.dispatches:
                setup.control.shared.close_descriptor()
                setup.outputs[0].shared.close_descriptor()

        if start_method == "fork":  # children inherit the mappings
            self._close_descriptors(setups)
        start_all(self._processes, start_method, close_own)
        self._close_descriptors(setups)

    def _close_descriptors(self, setups: list[ChildSetup]) -> None:
        """Closes what was passed to all who should have it, so that main keeps no descriptor for a link."""
        for handle in [handle for setup in setups for handle in setup.links()]:
            handle.shared.close_descriptor()
        self._bells.close_descriptor()

    def _watch(self) -> None:
        on_exit = weakref.WeakMethod(self._on_exit)
        try:
            self.collector.watch(list(enumerate(self.pids)), lambda index: on_exit()(index))  # type: ignore[misc]
        except ProcessLookupError:  # one has ended already, and was not reaped by us
            for process in self._processes:
                process.wait(1.0)
            self._check_alive()
            raise

    # -- what main asks of the children ------------------------------------------------------------

    def start_epoch(self, commands: Callable[[int], tuple[Any, Any]]) -> None:
        """Starts an epoch everywhere; `commands(index)` gives the seeds and the reset function of each child."""
        self._check_alive()
        self._epoch += 1
        self.collector.start_epoch(self._epoch, self._window)
        # The dispatching process first: the others wait for it.
        for index in reversed(range(len(self._processes))):
            self._send(index, "epoch", self._epoch, *commands(index), order=self._epoch)

    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies `function` to the graph of every child, between two items, and waits until all have done it.

        An epoch that runs goes on.
        """
        self._check_alive()
        for index in range(len(self._processes)):
            self._send(index, "call", function)
        deadline = time.monotonic() + OBEDIENCE
        try:
            for index, commander in enumerate(self._commanders):
                while not commander.wait_acknowledged(self._sent[index], GLANCE, self._check_alive):
                    # A child that waits for the dispatching process comes to its next item only if nobody is held up.
                    self.collector.relieve(False)
                    if time.monotonic() >= deadline:
                        raise TimeoutError(
                            f"{self._names[index]} did not answer within {OBEDIENCE:.0f} s: its pipe is stuck"
                        )
        finally:
            self.collector.relieve(True)

    def _send(self, index: int, kind: str, *content: Any, order: int | None = None) -> None:
        """Sends a command; waits for room, where a child has not taken those before it, as long as it lives."""
        self._sent[index] += (
            1  # first: where Ctrl-C comes in between, a number is left out, and none is used twice
        )
        command = (kind, self._sent[index], *content)
        try:
            self._commanders[index].send_message(command, self._timeout, order, self._check_alive)
        except TimeoutError:
            raise TimeoutError(
                f"{self._names[index]} has taken no command for {self._timeout:g} s (the `timeout` of the reading "
                "service): its pipe is stuck in one item, or the process was stopped"
            ) from None

    # -- life and death ----------------------------------------------------------------------------

    def _check_alive(self) -> None:
        for index, process in enumerate(self._processes):
            if process.ended:
                self._on_exit(index)

    def _on_exit(self, index: int) -> NoReturn:
        from torchdata.dataloader2.error import WorkerExitedError

        process = self._processes[index]
        process.wait(1.0)
        code = process.exitcode
        raise WorkerExitedError(
            obituary(self._names[index], process.pid, code),
            worker=index if index < self._num_workers else None,
            exitcode=code,
            stage="dispatching items" if index == self._num_workers else "reading items",
        )

    def _on_surplus(self, waited_for: int, taken_in: int, size: int) -> None:
        warnings.warn(
            f"the main process holds {size / 2**20:.0f} MiB of items, more than the memory budget: it waits for "
            f"{self._names[waited_for]} in turn, which gets its next dispatched item only after "
            f"{self._names[taken_in]} has taken its own. The workers yield very different numbers of items for what is "
            "dispatched to them: use in_order=False, or even the numbers out (unbatch after the workers)",
            RuntimeWarning,
            stacklevel=2,
        )

    @property
    def pids(self) -> list[int]:
        """Process numbers, the dispatching process last."""
        return [process.pid for process in self._processes if process.pid is not None]

    def shutdown(self) -> None:
        """Ends all children: asks, waits, terminates, kills, reaps. Safe to call at any time, any number of times.

        Where it was cut off, the next call goes on.
        """
        self._ending.run()
        self._finalizer.detach()


def _raise_failure(_peer: int, description: Any) -> NoReturn:
    reraise(description)
