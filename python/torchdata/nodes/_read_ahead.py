"""Reading a source ahead in threads, with an exact place: what ParallelMapper, Prefetcher and PinMemory share.

Role: `ReadAhead` is the consumer's side, in whichever thread reads the node; `_Work` is what the threads know. A thread
takes an item of the source, one thread at a time, calls the function with it, and puts down the result. Items are
numbered as they are taken; the consumer puts results in order by these numbers.

Ctrl-C may come between any two steps of the consumer. So it looks at a result, notes it as yielded, and takes it away
last: one that was noted already is known by its number.

A place is that of the source as of some item (a snapshot, which the thread that took the item made), and which items
after it were yielded. What is in flight is neither saved nor waited for: a loaded state reads it again.

The source is never wound back. Where the consumer leaves an epoch, the source is read on to where reading ahead would
have come to by itself, and then begins its next epoch from there, as it would without this node. So what it counts and
draws depends on how many items were yielded, and not on time.

Threads hold the work and the source, never the node, so that dropping the node ends them. They are daemons.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, NoReturn

from torchdata._threads import end_at_exit, start
from torchdata.nodes._fields import Fields
from torchdata.nodes._functions import not_the_end
from torchdata.nodes._places import Unsaved, place_of, state_at
from torchdata.nodes.base_node import BaseNode, advance_of, is_repeatable

__all__ = ["Function", "ReadAhead"]

#: What is called with each item; None hands items on as they are.
Function = Callable[[Any], Any] | None

#: Seconds after which a wait looks around.
_SLICE = 1.0

#: What became of an item: a result; an error of the function; taken before the state was saved.
_RESULT, _FAILED, _DROPPED = 0, 1, 2
#: What ends the reading, with the number of the first item that was not taken: the source's end, or an error of it.
_END, _BROKEN = 3, 4

#: A number, what became of the item, the result or error, and the source's state after the item or None.
_Entry = tuple[int, int, Any, Any]


class _Work:
    """What the threads know. All but the flags and queues belongs to the thread that holds `reading`.

    Args:
        name: the node, in messages and names of threads.
        source: the node to read, which was reset.
        limit: most items that are taken and not yet yielded.
        frequency: how many items there are from one snapshot to the next; 0 for none.
        first: the number of the next item.
        dropped: how many items from number 0 on are taken and dropped.
        ahead: numbers of further ones that are.
    """

    def __init__(
        self,
        name: str,
        source: BaseNode[Any],
        limit: int,
        frequency: int,
        first: int,
        dropped: int,
        ahead: frozenset[int],
    ) -> None:
        self.name = name
        self.source = source
        self.advance = advance_of(source)
        self.frequency = frequency
        self.index = first
        self.dropped = dropped
        self.ahead = ahead
        #: Whether nothing more is to be taken: the source has ended or failed.
        self.ended = False
        #: Whether nobody wants anything more. Anybody sets it, and then wakes who waits.
        self.closed = False
        #: Whether a thread is at the source. It is set before it looks at `closed`, so who closes may wait for False.
        self.busy = False
        #: Up to which number a thread reads on after all others have ended, and whether it does.
        self.read_on_to = 0
        self.reads_on = False
        self.reading = threading.Lock()
        self.results: deque[_Entry] = deque()
        #: Whether the consumer has found no result, and sleeps until there is a token. It looks once more in between.
        self.awaited = False
        self.news: SimpleQueue[None] = SimpleQueue()
        #: One token for each item that may be taken.
        self.room: SimpleQueue[None] = SimpleQueue()
        for _ in range(limit):
            self.room.put(None)
        self.threads: list[threading.Thread] = []
        end_at_exit(self)

    def start(self, functions: Sequence[Function], prepare: Callable[[], object] | None) -> None:
        """Starts a thread for each function."""
        for number, function in enumerate(functions):
            name = f"torchdata-{self.name}_{number}"
            thread = threading.Thread(target=_serve, args=(self, function, prepare), name=name, daemon=True)
            try:
                start(thread)
            except RuntimeError:  # the system has no more threads to give: fewer will do, but none will not
                if not self.threads:
                    raise
                return
            self.threads.append(thread)

    def put(self, entry: _Entry) -> None:
        """Puts down a result for the consumer."""
        if self.closed:  # an error that lay there would keep all this alive, through the frames of its traceback
            return
        self.results.append(entry)
        if self.awaited:
            self.news.put(None)

    def take(self) -> _Entry | None:
        """The next item with its number, as an entry; None where there is none to take. Hold `reading`."""
        while not self.ended:
            self.room.get()
            self.busy = True
            try:
                entry = None if self.closed else self._take()
            finally:
                self.busy = False
            if entry is not None or self.closed:
                return entry
        return None

    def _take(self) -> _Entry | None:
        """The same; also None where the item was to be dropped."""
        index = self.index
        try:
            item = self.advance()
        except StopIteration:
            self._end(index)
            return None
        except BaseException as error:
            self._break(index, error)
            return None
        self.index = index + 1
        snapshot: Any = None
        if self.frequency and self.index % self.frequency == 0:
            try:
                snapshot = self.source.state_dict()
            except NotImplementedError as error:
                snapshot = Unsaved(error)
            except BaseException as error:
                self._break(self.index, error)
        if index >= self.dropped and index not in self.ahead:
            return index, _RESULT, item, snapshot
        self.room.put(None)
        if snapshot is not None:
            self.put((index, _DROPPED, None, snapshot))
        return None

    def _end(self, index: int) -> None:
        wanted = max(self.ahead, default=self.dropped - 1) + 1
        if index < wanted:
            text = (
                f"{self.name}: the state was saved {wanted} items after the source's, but the source ended after "
                f"{index} ({ReadAhead.STEPS_KEY!r} in the state); load it with the data that it was saved with"
            )
            self._break(index, ValueError(text))
        else:
            self.ended = True
            self.put((index, _END, None, None))

    def _break(self, index: int, error: BaseException) -> None:
        self.ended = True
        # Without the frame of `_take`, which would keep the work alive that is to keep the error.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        self.put((index, _BROKEN, error, None))

    def close(self) -> None:
        """Lets each thread end after the call that it is in. Takes no lock, so the garbage collector may call it."""
        self.closed = True
        self.results.clear()
        self.room.put(None)
        self.news.put(None)

    def read_on(self, number: int) -> None:
        """Takes and drops items up to a number, in a thread of its own. All others have left the source."""
        if self.ended or self.index >= number:
            return
        self.read_on_to, self.reads_on = number, True
        self.frequency = 0  # nobody wants snapshots any more
        thread = threading.Thread(target=_read_on, args=(self,), name=f"torchdata-{self.name}_last", daemon=True)
        try:
            start(thread)
        except RuntimeError:  # the system has no more threads to give
            _read_on(self)
        else:
            self.threads.append(thread)

    def join(self, seconds: float) -> bool:
        """Waits for the threads' end, for `seconds` at most. Returns whether they have ended."""
        until = time.monotonic() + seconds
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)


def _serve(work: _Work, function: Function, prepare: Callable[[], object] | None) -> None:
    """What each thread runs, until there is nothing to take."""
    if prepare is not None:
        try:
            prepare()
        except BaseException as error:
            with work.reading:
                if not work.ended:
                    work._break(work.index, error)
            return
    put = work.put
    while True:
        with work.reading:
            entry = work.take()
        if entry is None:
            work.room.put(None)  # for the thread that takes next: it is to see why
            return
        put(entry if function is None else _called(function, entry, work.name))
        del entry  # or the thread would keep an item alive that the consumer is done with


def _read_on(work: _Work) -> None:
    try:
        while work.index < work.read_on_to and not work.ended:
            work._take()
    finally:
        work.reads_on = False


def _called(function: Callable[[Any], Any], entry: _Entry, name: str) -> _Entry:
    index, _, item, snapshot = entry
    try:
        return index, _RESULT, function(item), snapshot
    except StopIteration as error:
        failure: BaseException = not_the_end(f"function of {name}")
        failure.__cause__ = error
    except BaseException as error:
        failure = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    try:
        return index, _FAILED, failure, snapshot
    finally:
        del failure  # which refers to this frame


class ReadAhead:
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
    """

    SNAPSHOT_KEY = "snapshot"
    STEPS_KEY = "steps_since_snapshot"
    AHEAD_KEY = "yielded_out_of_order"
    NUM_YIELDED_KEY = "num_yielded"

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
    ) -> None:
        self._name = name
        self._source = source
        self._functions = functions
        self._limit = limit
        # What comes in no fixed order is not known by its number again: the source's state must tell all there is.
        repeatable = is_repeatable(source)
        self._in_order = in_order or not repeatable
        self._frequency = frequency if repeatable else 1
        self._prepare = prepare
        self._process = os.getpid()
        #: How many items after the snapshot were yielded without a gap, and the number of the first one that was not.
        self._steps = self._next = 0
        #: Numbers beyond it that were yielded, and snapshots as of such. In strict order there are none.
        self._ahead: set[int] = set()
        self._snapshots: dict[int, Any] = {}
        #: How many items of the epoch were yielded before number 0.
        self._before = 0
        #: The source's place as of an item.
        self._snapshot: Any
        if state is None:
            source.reset(None)
            self._snapshot = place_of(source)
        else:
            self._load(Fields(name, state))
            source.reset(self._snapshot)
        if type(self._snapshot) is Unsaved:
            self._frequency = 0
        #: Results that came before their turn; of the reading's end, which comes last, one at most.
        self._waiting: dict[int, _Entry] = {}
        self._last: _Entry | None = None
        self._ended = False
        self._start(0)

    def _load(self, fields: Fields) -> None:
        """Takes over the place that a state holds."""
        self._snapshot = fields[self.SNAPSHOT_KEY]
        self._steps = self._next = fields.integer(self.STEPS_KEY, least=0)
        ahead = fields.list_of(self.AHEAD_KEY)
        known = fields.integer(self.NUM_YIELDED_KEY, self._steps + len(ahead), least=0)
        if known < self._steps + len(ahead):
            raise fields.wrong(self.STEPS_KEY, f"must be at most {known - len(ahead)}, by {self.NUM_YIELDED_KEY!r}")
        for number in ahead:
            if type(number) is not int or not self._steps < number <= sys.maxsize:
                raise fields.wrong(self.AHEAD_KEY, f"must hold integers above {self._steps}")
        self._ahead = set(ahead)
        self._before = known - self._steps - len(ahead)

    def _start(self, first: int) -> None:
        ahead = frozenset(self._ahead)
        self._work = _Work(self._name, self._source, self._limit, self._frequency, first, self._next, ahead)
        self._work.start(self._functions, self._prepare)

    def next(self) -> Any:
        """The next result.

        Raises:
            StopIteration: the source has ended, and all is yielded.
            BaseException: what the function or the source raised. Whoever asks again gets what comes after it.
            RuntimeError: the threads were shut down, or are another process's.
        """
        work, waiting = self._work, self._waiting
        results = work.results
        while True:
            if waiting and self._next in waiting:
                entry = waiting[self._next]
            elif results and not work.closed:
                entry = results[0]
            elif self._last is None or self._last[0] > self._next:
                self._wait()
                continue
            else:
                self._finish(self._last)
            index, kind, value, snapshot = entry
            if kind <= _FAILED and (index == self._next or not (self._in_order or self._is_yielded(index))):
                break
            if kind >= _END:
                self._last = entry
            elif kind == _DROPPED:
                self._note_late(index, snapshot)
            elif self._in_order and index > self._next:
                waiting[index] = entry
            results.popleft()
            del entry, value
        del entry
        work.room.put(None)  # a token too many, after Ctrl-C, does no harm
        self._note(index, snapshot)
        if waiting.pop(index, None) is None:
            results.popleft()
        if kind == _RESULT:
            return value
        del self, work, results, waiting
        try:
            raise value
        finally:
            del value  # whose traceback refers to this frame

    def _wait(self) -> None:
        """Waits until there is a result. Raises what `next` does where none will come."""
        work = self._work
        if self._ended:
            raise StopIteration
        work.awaited = True
        try:
            if not work.results and not work.closed:
                work.news.get(True, _SLICE)
        except Empty:
            if self._process != os.getpid():
                raise RuntimeError(
                    f"the threads of {self._name} run in process {self._process}, of which this one is a forked child: "
                    "begin a new epoch in the child, by iter() of the Loader or reset() of the node"
                ) from None
        finally:
            work.awaited = False
        if work.closed:
            raise RuntimeError(f"{self._name} was shut down: reset it, or make a new iterator of its Loader")

    def _is_yielded(self, index: int) -> bool:
        return index < self._next or index in self._ahead

    def _finish(self, last: _Entry) -> NoReturn:
        """Raises what comes after the last result; after an error of the source, lets it be read further."""
        error = last[2]
        self._last = None
        if last[1] == _END:
            self._ended = True
            self._work.close()
            raise StopIteration
        self._start(self._next)
        del self, last
        try:
            raise error
        finally:
            del error

    # -- the place ----------------------------------------------------------------------------------

    def _note(self, index: int, snapshot: Any) -> None:
        """Notes that an item was yielded."""
        if index == self._next:
            self._pass(snapshot)
            if self._ahead:
                self._pass_ahead()
        else:
            self._ahead.add(index)
            if snapshot is not None:
                self._snapshots[index] = snapshot

    def _pass(self, snapshot: Any) -> None:
        steps = self._steps + 1
        if snapshot is None:
            snapshot = self._snapshot
        else:
            steps = 0
        # In one statement without a call, so that Ctrl-C does not come in between.
        self._snapshot, self._steps, self._next = snapshot, steps, self._next + 1

    def _pass_ahead(self) -> None:
        while self._next in self._ahead:
            self._ahead.discard(self._next)
            self._pass(self._snapshots.pop(self._next, None))

    def _note_late(self, index: int, snapshot: Any) -> None:
        """Notes a snapshot as of an item that was yielded before the state was saved."""
        if index >= self._next:
            self._snapshots[index] = snapshot
            if index == self._next:
                self._pass_ahead()
        elif self._next - index - 1 < self._steps:
            self._snapshot, self._steps = snapshot, self._next - index - 1

    def state(self) -> dict[str, Any]:
        """The place after the last result: a snapshot of the source, and which items after it were yielded."""
        state = {
            self.SNAPSHOT_KEY: state_at(self._snapshot),
            self.STEPS_KEY: self._steps,
            self.NUM_YIELDED_KEY: self._before + self._next + len(self._ahead),
        }
        if self._ahead:
            base = self._next - self._steps
            state[self.AHEAD_KEY] = sorted(index - base for index in self._ahead)
        return state

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
        if self._process != os.getpid():
            return
        self._wait_for_source()
        if read_on and not self._ended:
            work.read_on(self._next + len(self._ahead) + self._limit)
            self._wait_for_source()

    def _wait_for_source(self) -> None:
        """Waits until no thread is at the source."""
        work = self._work
        index, nap = work.index, 0.0
        began = since = time.monotonic()
        while work.busy or work.reads_on:  # no lock, which Ctrl-C might leave held
            now = time.monotonic()
            if work.index != index:
                index, since = work.index, now
            if now - began >= self.patience:
                work.read_on_to = 0
            if now - since >= self.patience:
                raise TimeoutError(
                    f"{self._name} cannot be reset: its source {type(self._source).__name__} has been busy with one "
                    f"item for {self.patience:g} s; look for what blocks there"
                )
            time.sleep(nap)
            nap = min(0.005, nap + 0.0001)

    def close(self) -> None:
        """Lets the threads end, without waiting."""
        self._work.close()

    def join(self, seconds: float) -> bool:
        """Waits until the threads have ended. Returns whether they have."""
        return self._process != os.getpid() or self._work.join(seconds)

    def __del__(self) -> None:
        work = getattr(self, "_work", None)
        if work is not None:
            work.close()
