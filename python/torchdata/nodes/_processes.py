"""The processes of a ParallelMapper: each takes items from a thread of the main process and gives back results.

Role: main's side (`Workers`, `_Worker`) and the child's (`_Caller`), over a group of the engine: the link for commands
carries items, the other one results. A thread sends an item and waits for the answer, so there is at most one item in a
process.
"""

from __future__ import annotations

import multiprocessing
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from torchdata._engine.items.failures import describe, reraise
from torchdata._engine.workers.child import Child
from torchdata._engine.workers.group import Group
from torchdata._engine.workers.links import default_budget
from torchdata._engine.workers.program import Program
from torchdata._engine.workers.restart import Gone, Restarts
from torchdata._native import Link, ReadAheadQueue
from torchdata._observe.outside import stalls
from torchdata._observe.outside.stalls import Patience, warn_in_thread
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
        restarts: whether others take the places of those that die, instead of an error.

    Raises:
        ValueError: there is no such way to start.
        TypeError: the function cannot be pickled, which the way of starting needs.
        OSError: the system has no room for a process.
    """

    def __init__(self, function: Callable[[Any], Any], count: int, context: str | None, restarts: bool = False) -> None:
        half = default_budget() // 2  # items need as much as results
        starting = multiprocessing.get_context(context)
        self._group = group = Group(starting, count, _Function(function), memory_budget=half, commands=half // count)
        self._restarts = Restarts(group.members, starting, group.ending) if restarts else None
        self._patience = patience = Patience(group.stats, stalls.STALL)
        try:
            outputs = group.start(replaces=restarts)
            if self._restarts is not None:
                self._restarts.keep_forker()
            self.functions: Sequence[Callable[[Any], Any]] = [
                _Worker(group, number, link, patience, self._restarts).call for number, link in enumerate(outputs)
            ]
        except BaseException:
            self.shutdown()
            raise

    @property
    def serve_on(self) -> bool:
        """Whether another run may use them: all processes run, or others take the places of those that do not."""
        return self._restarts is not None or not any(process.ended for process in self._group.members.processes)

    def serve(self, queue: ReadAheadQueue) -> None:
        """Notes who waits for what they make: a run's queue."""
        self._patience.is_awaited = lambda: queue.is_awaited

    def shutdown(self) -> None:
        """Ends all processes."""
        self._group.shutdown()


class _Worker:
    """One process, as its thread in main sees it. It does not keep the group alive."""

    def __init__(self, group: Group, number: int, output: Link, patience: Patience, restarts: Restarts | None) -> None:
        self._group, self._members, self._index = weakref.ref(group), group.members, number
        self._patience, self._restarts = patience, restarts
        self._look: Callable[[], object] = (
            partial(group.members.check_alive, [number]) if restarts is None else restarts.look_at(number)
        )
        self._read(group, output)
        #: Held while the process has an item. A thread of the last run may still wait for an answer.
        self._calling = threading.Lock()
        self._number = 0

    def call(self, item: Any) -> Any:
        """Returns the function's result for an item, computed in the process.

        Raises:
            WorkerExitedError: the process has died, and another one does not take its place.
            BaseException: the function raised it there.
        """
        kept = None if self._restarts is None else item
        with self._calling:
            self._number += 1
            try:
                answer = self._ask(item)
                del item
                while answer is None:
                    self._replace()
                    answer = self._ask(kept)
            finally:
                self._patience.came_of(self._index)
        _, well, result = answer
        if not well:
            reraise(result)
        return result

    def _ask(self, item: Any) -> tuple[int, bool, Any] | None:
        """The answer for an item; None where the process has died, and another one may take its place."""
        try:
            self._commander.send_message((self._number, item), None, None, self._look)
        except Gone:
            return None
        del item
        return self._answer()

    def _answer(self) -> tuple[int, bool, Any] | None:
        """The answer to what was sent last; see `_ask`."""
        while True:
            ended = self._process.ended  # before the look: what it had sent by then is there
            answer = self._collector.receive(0, 0.0 if ended else _SLICE)
            if answer is not None and answer[0] == self._number:
                return answer  # type: ignore[no-any-return]
            if answer is None and ended:
                if self._restarts is None:
                    self._members.check_alive([self._index])
                return None
            self._patience.look(self._index)

    def _replace(self) -> None:
        """Puts another process in the place of the one that has died."""
        restarts, members, group = self._restarts, self._members, self._group()
        assert restarts is not None
        if group is None:
            members.report_exit(self._index)
        received, ended = [0] * members.num_workers, [False] * members.num_workers
        received[self._index] = self._number - 1  # its items before this one
        with members.sending:  # threads may replace side by side
            places = restarts.on_death([self._index], received, ended, False)
            try:
                made = restarts.on_replace(places, ([], None), ended)
            except RuntimeWarning as warning:  # where that is an error, the process is there all the same
                made = restarts.on_replace(places, ([], None), ended)
                warn_in_thread(warning)
            ((_, link, _),) = made
            assert link is not None
            self._read(group, link)

    def _read(self, group: Group, link: Link) -> None:
        """Speaks to the process that has the place now."""
        members = self._members
        self._process, self._commander = members.processes[self._index], members.commanders[self._index]
        self._collector = group.collect([link], self._index)


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
    counted: ClassVar[str] = ""
    mended: ClassVar[str] = "map_fn"

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        """Says what to do."""
        return (
            f"ParallelMapper: map_fn cannot be pickled, which start method {start_method!r} needs "
            f"({type(error).__name__}: {error}); open files, locks and connections in the function, or use "
            "multiprocessing_context='fork'"
        )
