"""The processes of a ParallelMapper: each takes items from a thread of the main process and gives back results.

Role: main's side (`Workers`, `_Worker`) and the child's (`run_worker`). The engine's links join them: one for items and
one for results per process, over shared memory. A thread sends an item, and waits for the answer; so there is at most
one item in a process. `Workers` owns the processes, the links and the bells; `ending` ends the processes whatever
happens.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

import torchdata._engine.items.codec  # noqa: F401 - imported late, another thread's fork might copy the import half done
from torchdata._engine.items.failures import describe, reraise
from torchdata._engine.processes.child_setup import CommonSetup
from torchdata._engine.processes.crossing import Handle, SharedPickle, pickle_graph
from torchdata._engine.processes.exit_messages import exit_message
from torchdata._engine.processes.garbage import settle
from torchdata._engine.processes.shutdown import ChildProcess, OwnsChildren
from torchdata._engine.processes.start import new_child, start_sharing
from torchdata._engine.workers.group import default_budget
from torchdata._native import BellBoard, Collector, Link, Sender
from torchdata.nodes._functions import name_of_this_process, not_the_end

__all__ = ["Workers"]

#: Index of main's bell.
_MAIN = 0

#: Seconds after which a wait for an answer looks whether the process lives.
_SLICE = 0.2


@dataclass
class _Setup:
    """Everything that one child needs."""

    name: str
    #: Index of its bell.
    index: int
    function: Any
    common: CommonSetup
    items: Handle[Link]
    results: Handle[Link]


class Workers(OwnsChildren):
    """Processes that call a function.

    Args:
        function: what they call with each item.
        count: how many there are.
        context: how they start; None for Python's default.

    Raises:
        ValueError: there is no such way to start.
        TypeError: the function cannot be pickled, which the way of starting needs.
        OSError: the system has no room for a process.
    """

    def __init__(self, function: Callable[[Any], Any], count: int, context: str | None) -> None:
        starting = multiprocessing.get_context(context)
        method = starting.get_start_method()
        shipped = function if method == "fork" else _shipped(function, method)
        budget = default_budget() // (2 * count)
        bells = BellBoard(1 + count)
        items, results = ([Link(budget) for _ in range(count)] for _ in range(2))
        setups = [
            _Setup(
                name=f"worker process {number} of ParallelMapper",
                index=1 + number,
                function=shipped,
                common=CommonSetup.under(method, bells),
                items=Handle(items[number]),
                results=Handle(results[number]),
            )
            for number in range(count)
        ]
        self._processes = [new_child(starting, setup.name, run_worker, (setup,)) for setup in setups]
        self._own(list(self._processes), list(items), bells)
        try:
            start_sharing(self._processes, method, [bells, *items, *results])
            senders = [Sender([link], bells, _MAIN, [1 + number]) for number, link in enumerate(items)]
            self._shutdown.commanders += senders
            self.functions: Sequence[Callable[[Any], Any]] = [
                _Worker(process, sender, Collector([link], bells, _MAIN, [1 + number], _refuse)).call
                for number, (process, sender, link) in enumerate(zip(self._processes, senders, results, strict=True))
            ]
        except BaseException:
            self.shutdown()
            raise

    @property
    def alive(self) -> bool:
        """Whether all processes run."""
        return not any(process.ended for process in self._processes)


class _Worker:
    """One process, as its thread in main sees it."""

    def __init__(self, process: ChildProcess, sender: Sender, collector: Collector) -> None:
        self._process = process
        self._sender = sender
        self._collector = collector
        #: Held while the process has an item. A thread of the last run may still wait for an answer.
        self._calling = threading.Lock()
        self._number = 0

    def call(self, item: Any) -> Any:
        """What the function returns for an item, in the process.

        Raises:
            WorkerExitedError: the process has died.
            BaseException: what the function raised there.
        """
        with self._calling:
            self._number += 1
            self._sender.send_message((self._number, item), None, None, self._check_alive)
            del item
            while True:
                ended = self._process.ended  # before the look: what it had sent by then is there
                answer = self._collector.receive(0, 0.0 if ended else _SLICE)
                if answer is not None and answer[0] == self._number:
                    break
                if answer is None and ended:
                    self._report_exit()
        _, well, result = answer
        if not well:
            reraise(result)
        return result

    def _check_alive(self) -> None:
        if self._process.ended:
            self._report_exit()

    def _report_exit(self) -> NoReturn:
        from torchdata.dataloader2.error import WorkerExitedError

        process = self._process
        process.wait(1.0)
        text = exit_message(process)
        raise WorkerExitedError(text, exitcode=process.exitcode, stage="calling map_fn")


def _refuse(_peer: int, description: Any) -> NoReturn:
    raise RuntimeError(f"a process sent an error out of turn: {description!r}")


def _shipped(function: Any, method: str) -> SharedPickle:
    try:
        return SharedPickle(pickle_graph(function))
    except Exception as error:
        raise TypeError(
            f"ParallelMapper: map_fn cannot be pickled, which start method {method!r} needs ({type(error).__name__}: "
            f"{error}); open files, locks and connections in the function, or use multiprocessing_context='fork'"
        ) from error


def run_worker(setup: _Setup) -> None:
    """The target of a process: calls the function with each item that comes, until it is told to stop."""
    if not setup.common.enter(setup.name, [setup.items.shared, setup.results.shared]):
        return
    bells = setup.common.bells.shared
    items = Collector([setup.items.shared], bells, setup.index, [_MAIN], _refuse, name="main")
    sender = Sender([setup.results.shared], bells, setup.index, [_MAIN])
    torch.set_num_threads(1)  # the processes are the parallelism
    function, failure = setup.function, None
    if isinstance(function, SharedPickle):
        try:
            function = function.load()
        except BaseException as error:
            failure = describe(error, name_of_this_process())
    settle(setup.common.gc_thresholds)
    while True:
        message = items.receive(0, None)
        if message[0] == "stop":
            gc.unfreeze()  # cycles in what is the user's are to be finalised where the interpreter ends in order
            return
        number, item = message
        del message
        answer = (False, failure) if failure is not None else _answer(function, item)
        del item
        try:
            sender.send_message((number, *answer))
        except Exception as error:  # the result does not pickle
            sender.send_message((number, False, describe(error, name_of_this_process())))
        del answer


def _answer(function: Callable[[Any], Any], item: Any) -> tuple[bool, Any]:
    try:
        return True, function(item)
    except StopIteration as error:
        ended = not_the_end("map_fn of ParallelMapper")
        ended.__cause__ = error
        return False, describe(ended, name_of_this_process())
    except BaseException as error:
        return False, describe(error, name_of_this_process())
