"""The processes of a ParallelMapper: each takes items from a thread of the main process and gives back results.

Role: main's side (`Workers`, `_Worker`) and the child's (`_Caller`), over a group of the engine: the link for commands
carries items, the other one results. A thread sends an item, or several small ones in one message, and waits for the
answers. Each answer is a message of its own, so a process that exits loses no other answer. The first message to a
process also has the seed of its random numbers. A process that replaces another one gets a seed of its own.
"""

from __future__ import annotations

import multiprocessing
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, ClassVar

from torchdata._engine.items.failures import describe
from torchdata._engine.items.torch_worker import seed_worker
from torchdata._engine.workers.child import Child
from torchdata._engine.workers.group import Group, default_budget
from torchdata._engine.workers.hangs import NONE, Survived
from torchdata._engine.workers.program import Program
from torchdata._engine.workers.restart import Gone, Restarts
from torchdata._native import Link, ReadAheadQueue
from torchdata._observe.outside import stalls
from torchdata._observe.outside.stalls import Patience, warn_in_thread
from torchdata.nodes._functions import Failed, not_the_end
from torchdata.nodes._read_ahead import Several
from torchdata.nodes._seeds import base_seed

__all__ = ["Workers"]

#: Seconds after which a wait for an answer looks whether the process lives.
_SLICE = 0.2
#: Seconds after which a process gives back the items that it has not begun: others may have time for them.
_LONG = 0.01


class Workers:
    """Processes that call a function.

    Args:
        function: what they call with each item.
        count: how many there are.
        context: how they start; None for Python's default.
        survived: the ends of processes in whose places others are put, instead of an error.
        timeout: seconds within which a process is to give a result; None for ever.

    Raises:
        ValueError: there is no such way to start.
        TypeError: the function cannot be pickled, which the way of starting needs.
        OSError: the system has no room for a process.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        count: int,
        context: str | None,
        survived: Survived = NONE,
        timeout: float | None = None,
    ) -> None:
        half = default_budget() // 2  # items need as much as results
        starting = multiprocessing.get_context(context)
        self._group = group = Group(starting, count, _Function(function), memory_budget=half, commands=half // count)
        self._restarts = None
        if survived:
            self._restarts = Restarts(group.members, starting, group.ending, group.hangs(survived), survived.deaths)
        self._patience = patience = Patience(group, stalls.STALL)
        try:
            outputs = group.start(replaces=bool(survived))
            if self._restarts is not None:
                self._restarts.keep_forker()
            seed = base_seed()
            self.functions: Sequence[Several] = [
                _Worker(group, number, link, patience, self._restarts, timeout, seed)
                for number, link in enumerate(outputs)
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
        self._group.end_epoch()  # the last run's
        self._group.begin_epoch()

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes; none once they are to end."""
        return [] if self._group.ending.has_begun else self._group.pids

    def shutdown(self) -> None:
        """Ends all processes."""
        self._group.shutdown()


class _Worker:
    """One process, as its thread in main sees it. It does not keep the group alive."""

    def __init__(
        self,
        group: Group,
        number: int,
        output: Link,
        patience: Patience,
        restarts: Restarts | None,
        timeout: float | None,
        seed: int,
    ) -> None:
        self._group, self._members, self._index = weakref.ref(group), group.members, number
        self._base_seed = seed
        #: Worker numbers for seeding: the first is for this process, and each replacement takes the next.
        self._numbers = count(number, group.members.num_workers)
        #: The base seed and the number of the process, until they are sent.
        self._seed: tuple[int, int] | None = None
        self._patience, self._restarts = patience, restarts
        self._look: Callable[[], object] = (
            partial(group.members.check_alive, [number]) if restarts is None else restarts.look_at(number)
        )
        self._timeout = timeout
        #: Processes that were ended because they gave no result for this item.
        self._tries = 0
        self._read(group, output)
        #: Held while the process has an item. A thread of the last run may still wait for an answer.
        self._calling = threading.Lock()
        self._number = 0
        #: Seconds that the process was at the last items, without what it waited for them and main for their results.
        self.spent = 0.0

    def results(self, items: list[Any]) -> Iterator[list[Any] | Failed | None]:
        """Calls the function with each item, in the process.

        Yields lists of results as they come, an error in the place of the result that it is for, and None if the
        process gives the rest back: it was at it for long.

        Args:
            items: what to call it with. A single one is let go of once it is sent.
        """
        end, at = len(items), 0
        with self._calling:
            self._tries = 0
            try:
                while at < end:
                    try:
                        self._send(items, at)
                        while at < end:
                            answers = self._receive()
                            if answers is None:
                                self._replace()
                                break
                            for answer in answers:
                                yield answer
                                if answer is None:
                                    return
                                done = len(answer) if isinstance(answer, list) else 1
                                self._number, at = self._number + done, at + done
                            del answers, answer  # or a result would live on while the next ones are waited for
                    except Exception as error:  # of this item: it cannot be sent, or its process is gone for good
                        self._tries = 0
                        yield Failed(error)
                        self._number, at = self._number + 1, at + 1
            finally:
                self._number += end - at  # answers to these are none to what comes next
                self._patience.came_of(self._index)

    def _send(self, items: list[Any], at: int) -> None:
        """Sends the items from a place on, if need be to another process."""
        message = (self._number + 1, items[at:] if at else items, self._seed)
        while True:
            try:
                self._commander.send_message(message, None, None, self._look)
                break
            except Gone:
                self._replace()
                message = (*message[:2], self._seed)
        self._seed = None
        del message
        if self._restarts is None and len(items) == 1:
            items[0] = None

    def _receive(self) -> list[list[Any] | Failed | None] | None:
        """Waits for answers to what was sent last, as `results` yields them.

        None if the process has died, and another one may take its place.
        """
        began = monotonic()
        slice_ = _SLICE if self._timeout is None else min(_SLICE, self._timeout / 4)
        while True:
            ended = self._process.ended  # before the look: what it had sent by then is there
            results, spent, behind = self._collector.receive_results(0, self._number, 0.0 if ended else slice_)
            answers: list[list[Any] | Failed | None] = [results] if results else []
            if isinstance(behind, BaseException):  # the result cannot be made here
                answers.append(Failed(behind))
            elif behind is not None and behind[0] > self._number:
                _, description, spent = behind
                answers.append(None if description is None else Failed.told(description))
            if answers:
                self.spent = spent
                self._tries = 0
                return answers
            if ended:
                if self._restarts is None:
                    self._members.check_alive([self._index])
                return None
            self._patience.look(self._index)
            if not ended and self._timeout is not None:
                self._look_at_clock(monotonic() - began, self._timeout)

    def _look_at_clock(self, waited: float, timeout: float) -> None:
        """Ends the process if it takes too long, or raises."""
        hangs = None if self._restarts is None else self._restarts.hangs
        if hangs is not None:
            self._tries += hangs.look(self._index, waited, timeout * (1 << self._tries))
        elif waited >= timeout:
            raise TimeoutError(
                f"{self._members.names[self._index]} gave no result within {timeout:g} s (`timeout`): map_fn is slower "
                'than that, or stuck; on_timeout="restart" gives the item to another process'
            )

    def _replace(self) -> None:
        """Puts another process in the place of the one that has died."""
        restarts, members, group = self._restarts, self._members, self._group()
        assert restarts is not None
        if group is None:
            members.report_exit(self._index)
        received, ended = [0] * members.num_workers, [False] * members.num_workers
        received[self._index] = self._number  # its items before this one
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
        self._seed = self._base_seed, next(self._numbers)


class _Caller:
    """Calls the function with each item that comes, in a process."""

    is_interrupted: ClassVar[bool] = False

    def __init__(self, child: Child) -> None:
        self._sender, self._where, self._counting = child.sender, child.setup.where, child.counting
        self._function: Callable[[Any], Any] = _unprepared
        self.failure: tuple[Any, ...] | None = None

    def prepare(self, program: _Function) -> None:
        """See `Runner`."""
        self._function = program.function
        self._counting.begin(1)

    def obey(self, command: tuple[Any, ...]) -> bool:
        """See `Runner`."""
        if command[0] == "stop":
            return False
        number, items, seed = command
        if seed is not None:
            seed_worker(*seed)
        del command
        items.reverse()
        begun, send, function = monotonic(), self._sender.send_result, self._function
        while items:
            more = len(items) > 1
            try:
                # The result has no name here: memory that nothing else refers to goes out as it is.
                send(number, function(items.pop()), spent := monotonic() - begun, more)
            except BaseException as error:  # of the function, or the result does not pickle
                spent = monotonic() - begun
                self._sender.send_message((number, self.failure or self._described(error), spent))
            number += 1
            if more and spent > _LONG:
                self._sender.send_message((number, None, spent))
                break
        return True

    def _described(self, error: BaseException) -> tuple[Any, ...]:
        if isinstance(error, StopIteration):
            ended = not_the_end("map_fn of ParallelMapper")
            ended.__cause__ = error
            return describe(ended, self._where)
        return describe(error, self._where)


def _unprepared(_item: Any) -> Any:
    """Stands for a function that could not be loaded: the child's failure says why."""
    raise RuntimeError("map_fn was not loaded")


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
            f"({type(error).__name__}: {error}); open files, locks and connections in the function"
        )
