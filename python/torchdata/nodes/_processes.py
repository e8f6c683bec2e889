"""The processes of a ParallelMapper: each takes items from a thread of the main process and gives back results.

Role: main's side (`Workers`, `_Worker`) and the child's (`_Caller`), over a group of the engine: the link for commands
carries items, the other one results. A thread sends an item and waits for the answer, so there is at most one item in a
process.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from torchdata._engine.items.failures import describe, reraise
from torchdata._engine.workers.child import Child
from torchdata._engine.workers.group import Group
from torchdata._engine.workers.links import default_budget
from torchdata._engine.workers.members import Members
from torchdata._engine.workers.program import Program
from torchdata._native import Collector
from torchdata.nodes._functions import not_the_end

__all__ = ["Workers"]

#: Seconds after which a wait for an answer looks whether the process lives.
_SLICE = 0.2


class Workers:
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
        half = default_budget() // 2  # items need as much as results
        starting = multiprocessing.get_context(context)
        self._group = group = Group(starting, count, _Function(function), memory_budget=half, commands=half // count)
        try:
            outputs = group.start()
            self.functions: Sequence[Callable[[Any], Any]] = [
                _Worker(group.members, number, group.collect([link], number)).call
                for number, link in enumerate(outputs)
            ]
        except BaseException:
            self.shutdown()
            raise

    @property
    def alive(self) -> bool:
        """Whether all processes run."""
        return not any(process.ended for process in self._group.members.processes)

    def shutdown(self) -> None:
        """Ends all processes."""
        self._group.shutdown()


class _Worker:
    """One process, as its thread in main sees it. It does not keep the group alive."""

    def __init__(self, members: Members, number: int, collector: Collector) -> None:
        self._process, self._commander = members.processes[number], members.commanders[number]
        self._check_alive = partial(members.check_alive, [number])
        self._collector = collector
        #: Held while the process has an item. A thread of the last run may still wait for an answer.
        self._calling = threading.Lock()
        self._number = 0

    def call(self, item: Any) -> Any:
        """Returns the function's result for an item, computed in the process.

        Raises:
            WorkerExitedError: the process has died.
            BaseException: the function raised it there.
        """
        with self._calling:
            self._number += 1
            self._commander.send_message((self._number, item), None, None, self._check_alive)
            del item
            while True:
                ended = self._process.ended  # before the look: what it had sent by then is there
                answer = self._collector.receive(0, 0.0 if ended else _SLICE)
                if answer is not None and answer[0] == self._number:
                    break
                if answer is None and ended:
                    self._check_alive()
        _, well, result = answer
        if not well:
            reraise(result)
        return result


class _Caller:
    """Calls the function with each item that comes, in a process."""

    is_interrupted: ClassVar[bool] = False

    def __init__(self, child: Child) -> None:
        self._sender, self._where, self._counting = child.sender, child.setup.where, child.counting
        self._function: Callable[[Any], Any]
        self.failure: tuple[Any, ...] | None = None

    def prepare(self, program: _Function) -> None:
        """See `Runner`."""
        self._function = program.function
        self._counting.begin(1)

    def obey(self, command: tuple[Any, ...]) -> bool:
        """See `Runner`."""
        if command[0] == "stop":
            return False
        number, item = command
        del command
        answer = (False, self.failure) if self.failure is not None else self._answer(item)
        del item
        try:
            self._sender.send_message((number, *answer))
        except Exception as error:  # the result does not pickle
            self._sender.send_message((number, False, describe(error, self._where)))
        return True

    def _answer(self, item: Any) -> tuple[bool, Any]:
        try:
            return True, self._function(item)
        except StopIteration as error:
            ended = not_the_end("map_fn of ParallelMapper")
            ended.__cause__ = error
            return False, describe(ended, self._where)
        except BaseException as error:
            return False, describe(error, self._where)


class _Function(Program):
    """The program of the processes: the function."""

    runner: ClassVar[type[_Caller]] = _Caller
    worker_name: ClassVar[str] = "worker process {} of ParallelMapper"
    stage: ClassVar[str] = "calling map_fn"

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        """Says what to do."""
        return (
            f"ParallelMapper: map_fn cannot be pickled, which start method {start_method!r} needs "
            f"({type(error).__name__}: {error}); open files, locks and connections in the function, or use "
            "multiprocessing_context='fork'"
        )
