"""Reading a source ahead in threads, with an exact place: what ParallelMapper, Prefetcher and PinMemory share.

Role: `ReadSource` is the consumer's side, in whichever thread reads the node; `_Work` is what the threads know. A
thread takes an item of the source, one thread at a time, calls the function with it, and puts down the result. Items
are numbered as they are taken. The queue gives results in order if that is wanted, and keeps the place: that of the
source as of some item (a snapshot, which the thread that took the item made), and which items after it were yielded.
A state neither holds items in flight nor waits for them: they are read again after a load.

The source is never wound back. If the consumer leaves an epoch, the source is read on to where reading ahead would
have come to by itself, and then begins its next epoch from there, as it would without this node. So what it counts and
draws depends on how many items were yielded, and not on time.

Threads hold the work and the source, never the node, so that dropping the node ends them.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

from torchdata._native import SourceReader
from torchdata._read_ahead import ReadAhead, without_own_frame
from torchdata._stateful import copied
from torchdata.nodes._fields import Fields
from torchdata.nodes._functions import Failed, not_the_end
from torchdata.nodes._places import Unsaved, place_of, state_at
from torchdata.nodes.base_node import BaseNode, advance_of, is_repeatable

__all__ = ["Function", "ReadSource", "Several"]

#: The function that is called with each item; None hands items on as they are.
Function = Callable[[Any], Any] | None


class Several(Protocol):
    """Calls a function with each of some items elsewhere."""

    #: Seconds that the last items have taken there.
    spent: float

    def results(self, items: list[Any]) -> Iterator[list[Any] | Failed | None]:
        """See `_processes._Worker.results`."""


#: Most items that go elsewhere in one message, and seconds that they may take there.
_MOST_TOGETHER, _TOGETHER = 128, 0.001
#: Seconds of work that are not shared among several: the ways there and back take as long.
_WORTH_A_MESSAGE = 0.00005


class _Work(ReadAhead):
    """The data of the threads. All but the queue belongs to the thread that has reserved the source.

    Args:
        name: the node, in messages and names of threads.
        source: the node to read, which was reset.
        limit: most items that are taken and not yet yielded.
        in_order: whether results come in the source's order.
        frequency: how many items there are from one snapshot to the next; 0 for none.
        place: a snapshot of the source, how many items after it are taken and dropped, and numbers of further ones that
            are.
        grows: what `limit` grows to where items are small, and the growth of the place.
    """

    def __init__(
        self,
        name: str,
        source: BaseNode[Any],
        limit: int,
        in_order: bool,
        frequency: int,
        place: tuple[Any, int, list[int]],
        grows: tuple[int, int, int] | None,
    ) -> None:
        super().__init__(
            name,
            limit,
            f"torchdata-{name}",
            several=True,
            in_order=in_order,
            keeps=False,
            when_closed=f"{name} was shut down: reset it, or make a new iterator of its Loader",
            place=place,
            grows=grows,
        )
        self.name = name
        _, dropped, ahead = place
        self.reader = SourceReader(advance_of(source), source.state_dict, Unsaved, frequency, dropped, set(ahead))
        #: How many items the source must have.
        self.wanted = max(ahead, default=dropped - 1) + 1
        #: Up to which number the source is read on, when the queue is closed.
        self.read_on_to = 0

    def serve(self, function: Function, prepare: Callable[[], object] | None) -> None:
        """Takes items and calls the function until there is no item to take. Each thread runs it."""
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
            del taken  # or the thread would keep an item alive that the consumer is done with

    def read(self) -> None:
        """Takes items, and hands them to the threads that call. One thread runs it."""
        while (stopped := self.reader.hand_over(self.queue)) is not None:
            self._stop(*stopped)
            del stopped

    def call(self, several: Several, sharers: int) -> None:
        """Lets items be dealt with elsewhere: whatever is there, and never waits for more. Each other thread runs it.

        Args:
            several: what it calls.
            sharers: how many threads there are of its kind.
        """
        queue, most, pace = self.queue, 1, math.inf
        while (claimed := queue.claim_some(int(_WORTH_A_MESSAGE / pace), most, sharers)) is not None:
            slots, items = claimed
            del claimed
            done = 0
            for results in several.results(items):
                if isinstance(results, list):
                    queue.put_some(slots[done : done + len(results)], results)
                    done += len(results)
                elif results is None:
                    queue.hand_back(slots[done:], items[done:])
                else:
                    queue.fail_claimed(slots[done], results.error)
                    done += 1
                del results
            del items
            # What the machine's other work takes for once is no reason to send fewer.
            pace = min(2 * pace, max(several.spent, 1e-9) / max(done, 1))
            most = max(1, min(_MOST_TOGETHER, 2 * most, int(_TOGETHER / pace)))

    def _stop(self, slot: int, error: BaseException) -> None:
        """Puts down that the source has ended, or its error, in the place of an item."""
        reader = self.reader
        reader.ended = True
        if not isinstance(error, StopIteration):
            self.queue.break_off(slot, error)
        elif reader.index >= self.wanted:
            self.queue.finish(slot)
        else:
            text = (
                f"{self.name}: the state was saved {self.wanted} items after the source's, but the source ended after "
                f"{reader.index} ({ReadSource.STEPS_KEY!r} in the state); load it with the data that it was saved with"
            )
            reader.index = self.wanted  # who asks again is told of the end
            self.queue.break_off(slot, ValueError(text))

    def _call(self, function: Callable[[Any], Any], slot: int, item: Any, index: int, snapshot: Any) -> int | None:
        """Puts down what the function makes of an item. Returns the next slot if there is one at once."""
        try:
            result = function(item)
        except StopIteration as error:
            failure = not_the_end(f"function of {self.name}")
            failure.__cause__ = without_own_frame(error)
            self.queue.fail(slot, failure, index, snapshot)
        except BaseException as error:
            self.queue.fail(slot, without_own_frame(error), index, snapshot)
        else:
            return self.queue.put_and_reserve(slot, result, index, snapshot)
        return None

    def read_on(self) -> None:
        """Takes and drops items, in a thread of its own. All others have left the source."""
        with contextlib.suppress(BaseException):
            while self.reader.index < self.read_on_to:
                self.reader.advance()
                self.reader.index += 1


class ReadSource:
    """The results of one run, and its place. Dropping it ends the threads.

    Args:
        name: the node, in messages and names of threads.
        source: the node to read; it is reset here.
        functions: what each thread calls with the items that it takes.
        limit: most items that are taken and not yet yielded.
        in_order: whether results come in the source's order, or as they are ready.
        frequency: how many items there are from one snapshot to the next; 0 for none.
        state: where to begin: what `state` returned; None for the beginning.
        prepare: called in each thread first.
        several: what each of other threads lets deal with some of the items, instead of `functions`: one more reads.
        grows_to: how far more is read ahead, if small items are given; 0 for `limit`.
    """

    SNAPSHOT_KEY = "snapshot"
    STEPS_KEY = "steps_since_snapshot"
    AHEAD_KEY = "yielded_out_of_order"
    NUM_YIELDED_KEY = "num_yielded"
    GROWTH_KEY = "read_ahead"

    #: Seconds that a reset waits for a thread to come out of the source, and for the source to be read on.
    patience: ClassVar[float] = 60.0

    def __init__(
        self,
        name: str,
        source: BaseNode[Any],
        functions: Sequence[Function],
        *,
        limit: int,
        in_order: bool,
        frequency: int,
        state: dict[str, Any] | None,
        prepare: Callable[[], object] | None = None,
        several: Sequence[Several] = (),
        grows_to: int = 0,
    ) -> None:
        self._name = name
        self._source = source
        self._limit = limit
        #: How many items of the epoch were yielded before the snapshot.
        self._before = 0
        row, ahead = 0, 0
        if state is None:
            source.reset(None)
            place: tuple[Any, int, list[int]] = (place_of(source), 0, [])
        else:
            fields = Fields(name, state)
            place = self._loaded(fields)
            if grows_to and self.GROWTH_KEY in fields:
                row, ahead = self._grown(fields)
            source.reset(copied(place[0]))  # which is kept here
        # Items in no fixed order are not known by their numbers again: the source's state must tell all there is.
        repeatable = is_repeatable(source)
        frequency = frequency if repeatable else 1
        if type(place[0]) is Unsaved:
            frequency = 0
        grows = (grows_to, row, ahead) if grows_to > limit else None
        self._work = _Work(name, source, limit, in_order or not repeatable, frequency, place, grows)
        #: The next result. Raises the error of the function or of the source at its place; the next call gives the
        #: result after it. Raises StopIteration at the end, and RuntimeError if the threads were shut down or are
        #: another process's.
        self.next: Callable[[], Any] = self._work.queue.pop
        self.queue = self._work.queue
        for function in functions:
            if not self._work.start(self._work.serve, function, prepare):
                break
        if several:
            self._start_several(several)

    def _start_several(self, several: Sequence[Several]) -> None:
        work, sharers = self._work, len(several)
        work.start(work.read)
        for number, one in enumerate(several):
            if not work.start(work.call, one, sharers):
                if number == 0:
                    work.close()
                    raise RuntimeError(f"{self._name} cannot start: the system has no more threads to give")
                break

    def _grown(self, fields: Fields) -> tuple[int, int]:
        """The growth that a state holds."""
        growth = fields.list_of(self.GROWTH_KEY)
        if len(growth) != 2 or not all(type(one) is int and 0 <= one <= sys.maxsize for one in growth):
            raise fields.wrong(self.GROWTH_KEY, "must hold two integers from 0 on")
        return growth[0], growth[1]

    def _loaded(self, fields: Fields) -> tuple[Any, int, list[int]]:
        """The place that a state holds."""
        snapshot = fields[self.SNAPSHOT_KEY]
        steps = fields.integer(self.STEPS_KEY, least=0)
        ahead = fields.list_of(self.AHEAD_KEY)
        known = fields.integer(self.NUM_YIELDED_KEY, steps + len(ahead), least=0)
        if known < steps + len(ahead):
            raise fields.wrong(self.STEPS_KEY, f"must be at most {known - len(ahead)}, by {self.NUM_YIELDED_KEY!r}")
        for number in ahead:
            if type(number) is not int or not steps < number <= sys.maxsize:
                raise fields.wrong(self.AHEAD_KEY, f"must hold integers above {steps}")
        self._before = known - steps - len(set(ahead))
        return snapshot, steps, ahead

    def state(self) -> dict[str, Any]:
        """The place after the last result: a snapshot of the source, and which items after it were yielded."""
        place = self._work.queue.place()
        assert place is not None
        snapshot, steps, given, ahead = place
        state = {
            self.SNAPSHOT_KEY: state_at(snapshot),
            self.STEPS_KEY: steps,
            self.NUM_YIELDED_KEY: self._before + given,
        }
        growth = self._work.queue.growth()
        if growth is not None and growth > (0, self._limit):
            state[self.GROWTH_KEY] = [*growth]
        return {**state, self.AHEAD_KEY: ahead} if ahead else state

    # -- the end ------------------------------------------------------------------------------------

    def leave(self, read_on: bool) -> None:
        """Ends the reading, and waits until no thread touches the source any more.

        Args:
            read_on: whether the source is to begin its next epoch, and is first read on to where reading ahead would
                have come to. A source for which that takes longer than `patience` is left where it is by then.

        Raises:
            TimeoutError: the source took longer than `patience` seconds for an item.
        """
        work = self._work
        work.close()
        if work.is_inherited:
            return
        if not work.queue.wait_still(self.patience):
            raise self._stuck()
        if read_on and not work.reader.ended:
            self._read_on(work)

    def _read_on(self, work: _Work) -> None:
        place = work.queue.place()
        assert place is not None
        growth = work.queue.growth()
        work.read_on_to = place[2] + (self._limit if growth is None else growth[1])
        if work.reader.index >= work.read_on_to:
            return
        last = ReadAhead(self._name, 1, f"torchdata-{self._name}_last")
        try:
            last.start(work.read_on)
        except RuntimeError:  # the system has no more threads to give
            work.read_on()
        if not last.join(self.patience):
            work.read_on_to = 0
            if not last.join(self.patience):
                raise self._stuck()

    def _stuck(self) -> TimeoutError:
        return TimeoutError(
            f"{self._name} cannot be reset: its source {type(self._source).__name__} has been busy with one item for "
            f"{self.patience:g} s; look for what blocks there"
        )

    def close(self) -> None:
        """Lets the threads end, without waiting."""
        self._work.close()

    def join(self, seconds: float) -> bool:
        """Waits until the threads have ended. Returns whether they have."""
        return self._work.join(seconds)

    def __del__(self) -> None:
        work = getattr(self, "_work", None)
        if work is not None:
            work.close()
