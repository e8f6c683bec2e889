"""Reads a source ahead in threads, with an exact position, for ParallelMapper, Prefetcher and PinMemory.

The thread that reads a node uses `ReadSource`, and the threads that read ahead use `_Work`. One thread at a time takes
an item from the source. While a thread processes its item, another thread can take the next item.

The queue stores the results and the position: a snapshot of the source, and the numbers of the items that were yielded
after the snapshot. A resumed node rereads the items that were being processed when the state was saved.

If the program abandons an epoch, a thread first reads all items that may be read ahead. Therefore, the source has
yielded the same number of items in each run, and its counters and random draws do not depend on the speed of the
threads.

Threads refer to `_Work` and the source, but not to the node, so that deleting the node ends the threads.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torchdata._native import SourceReader
from torchdata._read_ahead import ReadAhead, without_own_frame
from torchdata._stateful import copied
from torchdata.datapipes._pipe.checks import check_int
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.nodes._fields import StateFields, Unsaved, position_of, state_at
from torchdata.nodes.base_node import BaseNode, PassingNode, T, advance_of, check_node, is_repeatable, reader_of

if TYPE_CHECKING:
    from torchdata.nodes._processes import MapWorker

#: The function that is called with each item, or None to return items unchanged.
Function = Callable[[Any], Any] | None

#: The maximum number of items in a message to a process, and the maximum number of seconds that these items may take.
_MOST_TOGETHER, _TOGETHER = 128, 0.001
#: Items that together take less than `_WORTH_A_MESSAGE` seconds are not divided among processes, because a message
#: would take as long.
_WORTH_A_MESSAGE = 0.00005
#: The maximum number of seconds that `shutdown` waits for current function calls.
_SECONDS = 5.0


class _Work(ReadAhead):
    """The common data of the threads that read a source ahead. `reader` is used only by the thread that currently reads
    the source.

    Args:
        limit: the maximum number of items that are read ahead of the last yielded item.
        wanted: the number of items that the source must yield after the loaded snapshot; an error is raised if it
            yields fewer.
        **options: further arguments of the queue: `in_order`, `position` and `grows`. `position` is the loaded state: a
            snapshot of the source, how many items directly after the snapshot are dropped, and which later items (by
            number) are dropped. `grows` is None if `limit` is fixed. If `limit` may grow, `grows` is a tuple with the
            maximum of the limit, the number of consecutive small items that were yielded last, and the current limit.
    """

    def __init__(self, name: str, limit: int, reader: SourceReader, wanted: int, **options: Any) -> None:
        options["when_closed"] = f"{name} was shut down: reset it, or make a new iterator of its Loader"
        super().__init__(name, limit, f"torchdata-{name}", several=True, keeps=False, **options)
        self.name, self.reader, self.wanted = name, reader, wanted
        self.read_on_to = 0

    def serve(self, function: Function, prepare: Callable[[], object] | None) -> None:
        """Takes items from the source and calls the function, in each thread."""
        queue, reader, slot = self.queue, self.reader, None
        while slot is not None or (slot := queue.reserve()) is not None:
            try:
                if prepare is not None:
                    prepare()
                    prepare = None
                taken = reader.take(queue, slot)
            except BaseException as error:
                self._stop(slot, without_own_frame(error))
                slot = None
                continue
            if taken is None:
                slot = None
            elif function is None:
                slot = queue.put_and_reserve(slot, *taken)
            else:
                queue.leave_source(slot)
                slot = self._call(function, slot, *taken)
            del taken  # the variable would keep a deleted item alive

    def read(self) -> None:
        while (stopped := self.reader.hand_over(self.queue)) is not None:
            self._stop(*stopped)
            del stopped

    def call(self, worker: MapWorker, sharers: int) -> None:
        """Takes items that another thread has read from the source, and sends them to the process of `worker`, which
        computes the results. `sharers`: the number of threads that share the items.
        """
        queue, most, pace = self.queue, 1, math.inf
        while (claimed := queue.claim_some(int(_WORTH_A_MESSAGE / pace), most, sharers)) is not None:
            slots, items = claimed
            del claimed
            done = 0
            for results in worker.results(items):
                if isinstance(results, list):
                    queue.put_some(slots[done : done + len(results)], results)
                    done += len(results)
                elif results is None:
                    queue.hand_back(slots[done:], items[done:])
                else:
                    queue.fail_claimed(slots[done], results)
                    done += 1
                del results
            del items
            # `pace` is the estimated time per item. A slow message at most doubles `pace`, because another program may
            # have delayed a single call.
            pace = min(2 * pace, max(worker.spent, 1e-9) / max(done, 1))
            most = max(1, min(_MOST_TOGETHER, 2 * most, int(_TOGETHER / pace)))

    def _stop(self, slot: int, error: BaseException) -> None:
        reader = self.reader
        reader.ended = True
        if not isinstance(error, StopIteration):
            self.queue.break_off(slot, error)
        elif reader.index >= self.wanted:
            self.queue.finish(slot)
        else:
            text = (
                f"{self.name}: the state needs {self.wanted} more items of the source, but the source ended after "
                f"{reader.index} ({ReadSource.STEPS_KEY!r} in the state); load it with the data that it was saved with"
            )
            reader.index = self.wanted
            self.queue.break_off(slot, ValueError(text))

    def _call(self, function: Callable[[Any], Any], slot: int, item: Any, index: int, snapshot: Any) -> int | None:
        """Calls the function with an item. Returns the queue's slot for this thread's next item; None if no slot was
        reserved."""
        try:
            result = function(item)
        except StopIteration as error:
            failure = not_the_end(f"function of {self.name}", without_own_frame(error))
            self.queue.fail(slot, failure, index, snapshot)
        except BaseException as error:
            self.queue.fail(slot, without_own_frame(error), index, snapshot)
        else:
            return self.queue.put_and_reserve(slot, result, index, snapshot)
        return None

    def read_on(self) -> None:
        with contextlib.suppress(BaseException):
            while self.reader.index < self.read_on_to:
                self.reader.advance()
                self.reader.index += 1


class ReadSource:
    """Reads a source in threads, from one reset of a node to the next.

    Args:
        in_order: whether results keep the source's order.
        prepare: a function that each thread calls once, before it begins to read the source.
        workers: for each thread, an object that sends items to a process; given instead of `functions`.
        grows_to: the maximum of `limit` while items are small; 0 for a fixed `limit`.
    """

    SNAPSHOT_KEY = "snapshot"
    STEPS_KEY = "steps_since_snapshot"
    AHEAD_KEY = "yielded_out_of_order"
    NUM_YIELDED_KEY = "num_yielded"
    GROWTH_KEY = "read_ahead"

    #: The maximum number of seconds that a reset waits for earlier threads to stop reading the source.
    patience: ClassVar[float] = 60.0

    def __init__(
        self,
        node: ThreadedNode[Any],
        functions: Sequence[Function],
        state: dict[str, Any] | None,
        *,
        limit: int,
        in_order: bool = True,
        prepare: Callable[[], object] | None = None,
        workers: Sequence[MapWorker] = (),
        grows_to: int = 0,
    ) -> None:
        name, source = node._called, node.source
        self._source, self._limit = source, limit
        #: The number of items of the epoch that precede the restored snapshot.
        self._before = 0
        row, ahead = 0, 0
        if state is None:
            source.reset(None)
            position: tuple[Any, int, list[int]] = (position_of(source), 0, [])
        else:
            fields = StateFields(name, state)
            position = self._loaded(fields)
            if grows_to and self.GROWTH_KEY in fields:
                row, ahead = self._grown(fields)
            source.reset(copied(position[0]))  # `reset` may modify its argument
        # If the order of the source may vary, an item cannot be found again by its number, so a snapshot is taken at
        # each item.
        repeatable = is_repeatable(source)
        frequency = node.snapshot_frequency if repeatable else 1
        if type(position[0]) is Unsaved:
            frequency = 0
        grows = (grows_to, row, ahead) if grows_to > limit else None
        _, dropped, later = position
        reader = SourceReader(advance_of(source), source.state_dict, Unsaved, frequency, dropped, set(later))
        options = {"in_order": in_order or not repeatable, "position": position, "grows": grows}
        self.work = _Work(name, limit, reader, max(later, default=dropped - 1) + 1, **options)
        #: A function that returns the next result, or raises the error of the next item. `next` raises StopIteration at
        #: the end, and RuntimeError if the threads were shut down or belong to another process.
        self.next: Callable[[], Any] = reader_of(self.work.queue)
        work = self.work
        for function in functions:
            if not work.start(work.serve, function, prepare):
                break
        if workers:
            work.start(work.read)
        for number, worker in enumerate(workers):
            if not work.start(work.call, worker, len(workers)):
                if number == 0:
                    work.close()
                    raise RuntimeError(f"{name} cannot start: the system cannot create more threads")
                break

    def _grown(self, fields: StateFields) -> tuple[int, int]:
        """Returns two numbers from a saved state: how many consecutive items were small, and how many items could be
        read ahead."""
        growth = fields.list_of(self.GROWTH_KEY)
        if len(growth) != 2 or not all(type(one) is int and 0 <= one <= sys.maxsize for one in growth):
            raise fields.wrong(self.GROWTH_KEY, "must hold two non-negative integers")
        return growth[0], growth[1]

    def _loaded(self, fields: StateFields) -> tuple[Any, int, list[int]]:
        snapshot = fields[self.SNAPSHOT_KEY]
        steps = fields.integer(self.STEPS_KEY, least=0)
        ahead = fields.list_of(self.AHEAD_KEY)
        known = fields.integer(self.NUM_YIELDED_KEY, steps + len(ahead), least=0)
        if known < steps + len(ahead):
            raise fields.wrong(self.STEPS_KEY, f"must be at most {known - len(ahead)}, see {self.NUM_YIELDED_KEY!r}")
        for number in ahead:
            if type(number) is not int or not steps < number <= sys.maxsize:
                raise fields.wrong(self.AHEAD_KEY, f"must hold integers above {steps}")
        self._before = known - steps - len(set(ahead))
        return snapshot, steps, ahead

    def state(self) -> dict[str, Any]:
        position = self.work.queue.position()
        assert position is not None
        snapshot, steps, received, ahead = position
        state = {
            self.SNAPSHOT_KEY: state_at(snapshot),
            self.STEPS_KEY: steps,
            self.NUM_YIELDED_KEY: self._before + received,
        }
        growth = self.work.queue.growth()
        if growth is not None and growth > (0, self._limit):
            state[self.GROWTH_KEY] = [*growth]
        return {**state, self.AHEAD_KEY: ahead} if ahead else state

    # -- shutdown -----------------------------------------------------------------------------------

    def leave(self, read_on: bool) -> None:
        """Closes the queue of results, and waits until no thread reads the source.

        With `read_on=True`, also reads the items that the threads could have read ahead, so that the source's next
        epoch does not depend on timing. Reading ends after `patience` seconds.
        """
        work = self.work
        work.close()
        if work.is_inherited:
            return
        if not work.queue.wait_idle(self.patience):
            raise self._stuck()
        if read_on and not work.reader.ended:
            self._read_on(work)

    def _read_on(self, work: _Work) -> None:
        position = work.queue.position()
        assert position is not None
        growth = work.queue.growth()
        work.read_on_to = position[2] + (self._limit if growth is None else growth[1])
        if work.reader.index >= work.read_on_to:
            return
        last = ReadAhead(work.name, 1, f"torchdata-{work.name}_last")
        try:
            last.start(work.read_on)
        except RuntimeError:
            work.read_on()
        if not last.join(self.patience):
            work.read_on_to = 0
            if not last.join(self.patience):
                raise self._stuck()

    def _stuck(self) -> TimeoutError:
        return TimeoutError(
            f"{self.work.name} cannot be reset: its source {type(self._source).__name__} has been busy with one item "
            f"for {self.patience:g} s; find out what blocks it"
        )

    def __del__(self) -> None:
        work = getattr(self, "work", None)
        if work is not None:
            work.close()


class ThreadedNode(PassingNode[T]):
    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_run"})

    _run: ReadSource | None = None

    def __init__(self, source: BaseNode[Any], snapshot_frequency: int) -> None:
        super().__init__()
        self._called = type(self).__name__
        self.source = check_node(self._called, "source", source)
        self.snapshot_frequency = check_int(self._called, "snapshot_frequency", snapshot_frequency, least=0)

    def _begin(self, state: dict[str, Any] | None) -> ReadSource:
        raise NotImplementedError(f"{type(self).__name__} must define _begin")

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Ends the threads from before the reset, and starts threads that read ahead from the new position:
        `initial_state`, or the beginning of an epoch.

        If the last epoch is not over, the source is first read up to the limit for reading ahead, so that its state
        does not depend on timing.
        """
        if self._run is not None:
            self._run.leave(read_on=initial_state is None)
            self._run = None
        self._run = self._begin(initial_state)
        self._advance = self._run.next
        super().reset(initial_state)

    def get_state(self) -> dict[str, Any]:
        """Returns the position. A resumed node rereads items that were read ahead.

        Raises:
            RuntimeError: the last `reset` has failed.
        """
        if self._run is None:
            raise RuntimeError(f"{self._called} has no state: its last reset() has failed; reset it")
        return self._run.state()

    def __len__(self) -> int:
        return len(self.source)

    def shutdown(self) -> None:
        """Ends the threads. Waits a few seconds for user functions that are still running."""
        run = self._close_run()
        super().shutdown()
        if run is not None:
            run.work.join(_SECONDS)

    def _close_run(self) -> ReadSource | None:
        """Closes and returns the current run. Callers must use the returned run instead of `_run`, because another
        thread may replace `_run`."""
        run = self._run
        if run is not None:
            run.work.close()
        return run
