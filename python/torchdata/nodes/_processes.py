"""The processes of a ParallelMapper, which receive items from threads of the main process, and return results.

A thread of the main process sends one item, or several small items in one message, and waits for the results. Each
result is sent when it is ready, so if a process exits, only the results of unfinished items are lost.

The first message to a process also contains its worker number and the base seed, for seeding the generators of the
process. The base seed is the number that PyTorch's loader would draw from torch's global generator. The base seed is
drawn from a copy of the global generator, so the random numbers of the main process do not change.
"""

from __future__ import annotations

import multiprocessing
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from time import monotonic
from typing import Any, ClassVar

import torch

from torchdata._engine.items.failures import describe
from torchdata._engine.items.torch_worker import seed_worker
from torchdata._engine.workers.child import ChildLoop
from torchdata._engine.workers.group import Group, default_budget
from torchdata._engine.workers.hangs import NONE, Survived
from torchdata._engine.workers.program import Program
from torchdata._engine.workers.restart import Ended, Restarts
from torchdata._native import Link, ReadAheadQueue
from torchdata._observe.outside import stalls
from torchdata._observe.outside.stalls import StallWatch, warn_in_thread
from torchdata._observe.stats.counting import Pages
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.nodes._functions import error_of

#: While a thread waits for a process, the thread checks every `_SLICE` seconds whether the process is running.
_SLICE = 0.2
#: If the items of a message take more than `_LONG` seconds, the process leaves the remaining items to other processes.
_LONG = 0.01

_local = threading.local()


@contextmanager
def one_reset() -> Iterator[None]:
    """Within this context, all calls of `base_seed` in this thread draw from one copy of the global generator, so their
    results differ."""
    if getattr(_local, "copy", None) is not None:
        yield
        return
    _local.copy = torch.Generator()
    _local.copy.set_state(torch.default_generator.get_state())
    try:
        yield
    finally:
        _local.copy = None


def base_seed() -> int:
    """Returns a seed that `torch.manual_seed` makes reproducible."""
    with one_reset():
        return int(torch.empty((), dtype=torch.int64).random_(generator=_local.copy).item())


class Workers(Group):
    """Processes that call a function.

    Args:
        survived: after which kinds of exits (crashes, hangs) a process is replaced; exits of other kinds raise an
            error.
        timeout: the maximum number of seconds until a process returns a result; None for no limit.
        pages: memory for the counters of the processes; None without a loader.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        count: int,
        context: str | None,
        survived: Survived = NONE,
        timeout: float | None = None,
        pages: Pages | None = None,
    ) -> None:
        half = default_budget() // 2  # the other half is for items, which may be as large as results
        starting = multiprocessing.get_context(context)
        super().__init__(starting, count, _Function(function), memory_budget=half, commands=half // count, pages=pages)
        self.replace_exited(Restarts, survived)
        self.stall_watch, self.timeout, self.base_seed = StallWatch(self, stalls.STALL), timeout, base_seed()
        try:
            outputs = self.start()
            self.functions: Sequence[MapWorker] = [MapWorker(self, *numbered) for numbered in enumerate(outputs)]
        except BaseException:
            self.shutdown()
            raise

    @property
    def serve_on(self) -> bool:
        """Whether the running processes can be reused after a reset of the node."""
        return self.restarts is not None or not any(process.ended for process in self.members.processes)

    def serve(self, queue: ReadAheadQueue) -> None:
        self.stall_watch.is_awaited = lambda: queue.is_awaited
        self.end_epoch()
        self.begin_epoch()


class MapWorker:
    def __init__(self, group: Workers, number: int, output: Link) -> None:
        self._group, self._members, self._index = weakref.ref(group), group.members, number
        self._base_seed, self._timeout = group.base_seed, group.timeout
        self._numbers = count(number, group.members.num_workers)
        #: The base seed and the worker number for the process; None once both were sent.
        self._seed: tuple[int, int] | None = None
        self._stall_watch, self._restarts = group.stall_watch, group.restarts
        self._look = group.look_at(number)
        #: The number of processes that were killed because of the current item.
        self._tries = 0
        self._read(group, output)
        #: Only one thread at a time may wait for results of the process; after a reset, an earlier thread may still be
        #: waiting.
        self._calling = threading.Lock()
        self._number = 0
        #: Seconds that the process spent on its last items, without waits.
        self.spent = 0.0

    def results(self, items: list[Any]) -> Iterator[list[Any] | BaseException | None]:
        """Calls `map_fn` in the worker process with each element of `items`.

        Yields lists of results as they arrive, and an exception for each call that raises one. If the items take too
        long, the process does not compute the remaining items, and the last yielded value is None.

        Args:
            items: the items. A single item is removed from the list once it was sent, so that the memory of the item
                can be freed.
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
                            del answers, answer  # the variables would keep a result alive during the next wait
                    except Exception as error:
                        self._tries = 0
                        yield error
                        self._number, at = self._number + 1, at + 1
            finally:
                self._number += end - at  # later answers to unfinished items are ignored
                self._stall_watch.note_item(self._index)

    def _send(self, items: list[Any], at: int) -> None:
        message = (self._number + 1, items[at:] if at else items, self._seed)
        while True:
            try:
                self._commander.send_message(message, None, None, self._look)
                break
            except Ended:
                self._replace()
                message = (*message[:2], self._seed)
        self._seed = None
        del message
        if self._restarts is None and len(items) == 1:
            items[0] = None

    def _receive(self) -> list[list[Any] | BaseException | None] | None:
        """Returns the next values for `results` to yield, or None if the process has exited and may be replaced."""
        began = monotonic()
        slice_ = _SLICE if self._timeout is None else min(_SLICE, self._timeout / 4)
        while True:
            ended = self._process.ended  # read first, because the answers of an exited process are then complete
            results, spent, message = self._collector.receive_results(0, self._number, 0.0 if ended else slice_)
            answers: list[list[Any] | BaseException | None] = [results] if results else []
            if isinstance(message, BaseException):
                answers.append(message)
            elif message is not None and message[0] > self._number:
                _, description, spent = message
                answers.append(None if description is None else error_of(description))
            if answers:
                self.spent = spent
                self._tries = 0
                return answers
            if ended:
                if self._restarts is None:
                    self._members.check_alive([self._index])
                return None
            self._stall_watch.look(self._index)
            if not ended and self._timeout is not None:
                self._look_at_clock(monotonic() - began, self._timeout)

    def _look_at_clock(self, waited: float, timeout: float) -> None:
        hangs = None if self._restarts is None else self._restarts.hangs
        if hangs is not None:
            self._tries += hangs.look(self._index, waited, timeout * (1 << self._tries))
        elif waited >= timeout:
            raise TimeoutError(
                f"{self._members.names[self._index]} gave no result within {timeout:g} s (`timeout`): map_fn is slower "
                'than that, or stuck; on_timeout="restart" gives the item to another process'
            )

    def _replace(self) -> None:
        restarts, members, group = self._restarts, self._members, self._group()
        assert restarts is not None
        if group is None:
            members.report_exit(self._index)
        received, ended = [0] * members.num_workers, [False] * members.num_workers
        received[self._index] = self._number  # the number of items that the process has completed
        with members.sending:
            indices = restarts.on_loss([self._index], received, ended, False)
            try:
                made = restarts.on_replace(indices, ([], None), ended)
            except RuntimeWarning as warning:  # warnings are errors, but the exit was handled
                made = restarts.on_replace(indices, ([], None), ended)
                warn_in_thread(warning)
            ((_, link, _),) = made
            assert link is not None
            self._read(group, link)

    def _read(self, group: Group, link: Link) -> None:
        members = self._members
        self._process, self._commander = members.processes[self._index], members.commanders[self._index]
        self._collector = group.collect([link], self._index)
        self._seed = self._base_seed, next(self._numbers)


class _Caller:
    is_interrupted: ClassVar[bool] = False

    def __init__(self, child: ChildLoop) -> None:
        self._sender, self._where, self._counting = child.sender, child.setup.where, child.counting
        #: The user's function, or None if the function cannot be loaded in this process. `failure` is then the reason.
        self._function: Any = None
        self.failure: tuple[Any, ...] | None = None

    def prepare(self, program: _Function) -> None:
        self._function = program.function
        self._counting.begin(1)

    def execute(self, command: tuple[Any, ...]) -> bool:
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
                # The result is passed directly, not in a variable, because a second reference to the result would make
                # `send` copy it.
                send(number, function(items.pop()), spent := monotonic() - begun, more)
            except BaseException as error:
                spent = monotonic() - begun
                self._sender.send_message((number, self.failure or self._described(error), spent))
            number += 1
            if more and spent > _LONG:
                self._sender.send_message((number, None, spent))
                break
        return True

    def _described(self, error: BaseException) -> tuple[Any, ...]:
        if isinstance(error, StopIteration):
            error = not_the_end("map_fn of ParallelMapper", error)
        return describe(error, self._where)


class _Function(Program):
    runner: ClassVar[type[_Caller]] = _Caller
    worker_name: ClassVar[str] = "worker process {} of ParallelMapper"
    stage: ClassVar[str] = "calling map_fn"
    counted: ClassVar[str] = ""
    to_correct: ClassVar[str] = "map_fn"

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        return (
            f"ParallelMapper: map_fn cannot be pickled, which start method {start_method!r} needs "
            f"({type(error).__name__}: {error}); open files, locks and connections in the function"
        )
