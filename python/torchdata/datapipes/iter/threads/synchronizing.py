"""The pipe that makes all ranks of a distributed job end their epochs together: FullSync.

`fullsync` is the last pipe of the graph in the main process of every rank. A thread reads one item ahead, and the ranks
then *vote* on whether every rank has an item.

Each vote is one all-reduce: every rank contributes a number, and all ranks receive the minimum of the numbers. With n
ranks, the vote of rank r is `-(r + 1)` if it ends its run, and `-(n + r + 1)` if it has raised an exception. The votes
end as soon as one rank lacks an item, so all ranks yield equally many items. When a loader resumes, the ranks do not
vote on reread items, because the number of these items may differ between ranks.
"""

from __future__ import annotations

import copy
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from torchdata._handlers import FailuresSuppressed, raise_if_of_handler
from torchdata._native import HeldLock
from torchdata._ranks import members_of
from torchdata._ranks.group import (
    DEFAULT_TIMEOUT,
    GivenUp,
    PrefetchTimeoutError,
    RankGroup,
    TorchRanks,
    UncopyableGroup,
    check_group,
    check_timeout,
)
from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.checks import check_source, no_length
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.state.hooks import hooks_of
from torchdata.datapipes._pipe.streams import close_dropped
from torchdata.datapipes.datapipe import T_co
from torchdata.datapipes.iter.threads.prefetching import _END, _PrefetchBase, _PrefetchData

__all__ = ["FullSync", "PrefetchTimeoutError"]


#: The votes of a rank: `_HAS` if it has an item, `_ENDED` if its items have ended, and `_LEFT` if it has left its loop
#: for the next epoch.
_HAS, _ENDED, _LEFT = 2, 1, 0

#: If another rank has ended, a rank counts its remaining items for at most `_COUNTING` seconds.
_COUNTING = 2.0

#: The maximum number of seconds that `shutdown` waits for all ranks to take part in the current vote.
_SHUTDOWN_WAIT = 5.0


class _StepData(_PrefetchData):
    """One iteration of a rank. In a *vote*, the ranks determine by an all-reduce whether every rank has an item to
    yield.

    Args:
        again: if positive, the number of items that this rank rereads without a vote, because the ranks have already
            voted on them. If `again` is negative, this rank has already yielded the items of the next `-again` votes,
            and takes part in these votes without reading items.
        restored: the items of a loaded state that `source` has not yielded yet, and the error that follows the items.
    """

    def __init__(self, source: Iterator[Any], again: int, restored: tuple[deque[Any], BaseException | None]) -> None:
        super().__init__("FullSync", source, buffer_size=1)
        self.restored = restored
        self.again, self.repeats = max(0, again), max(0, -again)
        #: A thread holds this lock while it moves an item from `voted_on` to the queue or saves a state, so that each
        #: state contains the item once.
        self.lock = threading.Lock()
        self.slot: int | None = None
        #: The item that this rank has read, and that the ranks vote on. When a vote shows that every rank has an item,
        #: the item in `voted_on` is moved to the queue. If another rank ends or fails, the item stays in `voted_on`,
        #: because saved states must contain it.
        self.voted_on: Any = _END
        self.failure: BaseException | None = None
        #: The error that has prevented a vote, such as the exit of a rank; None if the consumer has already received
        #: this error.
        self.undelivered: BaseException | None = None
        #: Whether this rank counts its remaining items once another rank has ended, so that a warning can show the
        #: number of remaining items.
        self.counts_rest = False
        self.rest = (0, True)  # the number of remaining items, and whether the number is exact

    def buffered(self) -> tuple[list[Any], BaseException | None]:
        # A state does not contain errors that other ranks have caused. If another rank has ended or failed, this rank
        # has read an item that it has not yielded, so the state contains this item.
        with HeldLock(self.lock):
            (restored, error), items = self.restored, super().buffered()[0]
            items += restored if self.voted_on is _END else [self.voted_on, *restored]
            return items, self.failure or error

    def read(self, source: Iterator[Any]) -> bool:
        """Reads the next item, unless the queue is closed. Returns True if the ranks had voted on the item before the
        loaded state was saved; such an item is yielded without a new vote."""
        item: Any = _END
        failure: BaseException | None = None
        self.slot = self.queue.reserve()
        if self.slot is not None:  # without a slot, this rank has left its loop and only votes
            if self.halt is not None:
                self.halt.pause()
            try:
                item = next(source, _END)
                if item is _END and self.again:
                    raise RuntimeError(
                        "this pipeline does not repeat itself, so it cannot resume from the state: it ended "
                        f"{self.again} items before the position of the state"
                    )
            except BaseException as error:
                failure = error
            self.taken, self.is_over = self.taken + 1, item is _END
        self.voted_on, self.failure = item, failure
        if self.halt is not None:
            self.halt.count()
        if item is _END or not self.again:
            return False
        self.again -= 1
        return True

    def count_rest(self, source: Iterator[Any]) -> None:
        left, until = 1, time.monotonic() + _COUNTING
        while not self.abandoned and time.monotonic() < until:
            if next(source, _END) is _END:
                self.rest = left, True
                return
            left += 1
        self.rest = left, False

    def hand_over(self) -> None:
        with HeldLock(self.lock):
            assert self.slot is not None
            self.queue.put(self.slot, self.voted_on)
            self.slot, self.voted_on = None, _END


def _fill_in_step(data: _StepData, group: RankGroup) -> None:
    """Repeatedly reads an item and votes on it with all ranks, until a rank lacks an item. Runs in the pipe's
    thread."""
    queue = data.queue
    source: Iterator[Any] | None = data.source
    data.source = None
    while True:
        assert source is not None
        repeats = data.repeats > 0
        if repeats:
            data.repeats -= 1
        elif data.read(source):
            data.hand_over()
            continue
        if not repeats and data.voted_on is _END:
            source = None  # the iterator may be computing an item
            data.released.set()
        failure = data.failure
        # After a shutdown, this rank votes that its run ends, not that its items have ended: the source may have ended
        # only because the workers were stopped.
        ends = data.voted_on is _END and data.abandoned
        vote = _HAS if repeats or data.voted_on is not _END else _LEFT if data.slot is None else _ENDED
        if ends:
            vote = -(group.rank + 1)
        elif failure is not None:
            vote = -(group.world_size + group.rank + 1)
        if data.slot is not None:  # the pipe can be paused while it waits for other ranks
            queue.leave_source(data.slot)
        try:
            least = group.all_reduce_min(vote)
        except BaseException as error:
            if not isinstance(error, GivenUp):
                data.undelivered = error
            queue.finish(data.slot, failure or error)
            return
        if failure is not None:
            queue.finish(data.slot, failure)
            return
        if least in (_ENDED, _LEFT) or ends:
            if least == _ENDED and data.voted_on is not _END and data.counts_rest:
                assert source is not None
                with FailuresSuppressed():  # errors are ignored, because the items are only counted
                    data.count_rest(source)
            queue.finish(data.slot)
            return
        if least != _HAS:
            queue.finish(data.slot, RuntimeError(_meaning_of_vote(-least - 1, group)))
            return
        if not repeats:
            data.hand_over()


class _Hold:
    """Ends the iteration of a rank when neither the pipe nor its iterator refers to this object any longer."""

    def __init__(self, data: _StepData) -> None:
        self._data = data

    def __del__(self) -> None:
        self._data.leave(for_good=True)


class _StepReader(Iterator[Any]):
    """The iterator that the consumer reads. Dropping the iterator does not notify other ranks, because the user may
    have interrupted the loop, or left the loop to begin the next epoch."""

    __slots__ = ("_data", "_hold", "_on_rest", "_pop")

    def __init__(self, data: _StepData, hold: _Hold, on_rest: Callable[[int, bool], None]) -> None:
        self._data = data
        self._on_rest = on_rest
        self._hold: _Hold | None = hold
        self._pop: Callable[[], Any] = data.queue.pop

    def __next__(self) -> Any:
        try:
            return self._pop()
        except StopIteration:
            (left, is_all), self._data.rest = self._data.rest, (0, True)
            if left:
                self._on_rest(left, is_all)
            raise
        except Exception:
            self._data.undelivered = None
            raise

    def close(self) -> None:
        self._pop = iter(()).__next__
        self._hold = None


def _meaning_of_vote(number: int, group: RankGroup) -> str:
    """Returns the error message for the vote `-(number + 1)`, which reports the failure of a rank."""
    if number >= group.world_size:
        what = f"rank {number - group.world_size} raised an exception while it read its items"
    else:
        what = (
            f"rank {number} shut its loader down or exited in the middle of the epoch, as happens after an exception "
            "in its loop"
        )
    return f"{what}, so FullSync ends rank {group.rank}, too; see the output of that rank for the cause"


def _begun(source: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(source)
    except Exception as error:
        return _failing(error)


def _failing(error: BaseException) -> Iterator[Any]:
    yield from ()
    raise error


class FullSync(_PrefetchBase[T_co]):
    """Ends the iteration on all ranks as soon as one rank runs out of items, so that all ranks yield equally many
    items.

    If one rank raises an exception, exits, or shuts its loader down within an epoch, all remaining ranks raise an error
    within the timeout. The error message names the rank that has caused the error. If a rank breaks out of its loop and
    begins its next epoch, the current epoch ends on all ranks. `DistributedReadingService` appends this pipe
    automatically. The pipe always runs in the main process, even if worker processes run the pipes before it, and reads
    one item ahead. Put pipes with a read-ahead thread (`prefetch`, `pin_memory`) before `fullsync`, because pausing a
    thread after `fullsync` would have to wait for other ranks.

    Args:
        datapipe: the pipe to read.
        timeout: the number of seconds that a rank waits at each item for all other ranks, 1,800 by default.
        process_group: the ranks that end together: a `ProcessGroup` of torch, a `DeviceMesh` of one dimension, or an
            object with `rank`, `world_size` and `all_reduce_min(value)`, which is called in a thread. If
            `process_group` is None (the default), all ranks of `torch.distributed` end together, and open separate
            connections for `fullsync` in the first iteration.

    Raises:
        ValueError: `timeout` is zero, negative or over three years, the `DeviceMesh` has several dimensions, or this
            rank does not belong to the process group.
        TypeError: `process_group` lacks `rank`, `world_size` or `all_reduce_min`.
        RuntimeError: while iterating, `torch.distributed` is not available or not initialized; or another rank raised
            an error, or shut its loader down in the middle of the epoch.
        RanksLostError: while iterating, another rank has exited. `RanksLostError` is a `ConnectionError` and a
            `RuntimeError`.
        PrefetchTimeoutError: while iterating, another rank did not request an item within `timeout` seconds.
            `PrefetchTimeoutError` is a `TimeoutError` and a `RuntimeError`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(23)).sharding_filter().fullsync(timeout=60)
    """

    _data: _StepData | None
    _group: RankGroup | None = state(saved=False, lasts=True)
    _hold: _Hold | None = state(saved=False, lasts=True)
    _undelivered: BaseException | None = state(saved=False, lasts=True)
    _has_warned: bool = state(False, saved=False, lasts=True)
    #: The argument `count` of the last call of `recompute`, which applies to the next iteration.
    _again: int = state(0, saved=False, lasts=True)

    def __init__(
        self,
        datapipe: Iterable[T_co],
        timeout: float = DEFAULT_TIMEOUT,
        process_group: RankGroup | TorchRanks | None = None,
    ) -> None:
        check_source("FullSync", datapipe)
        check_timeout(timeout, "FullSync")
        super().__init__(datapipe, buffer_size=1)
        self.timeout = timeout
        self.set_process_group(process_group)

    def set_process_group(self, process_group: RankGroup | TorchRanks | None) -> None:
        """Makes the ranks of `process_group` end together, from the next iteration on; None stands for all ranks.

        Raises:
            TypeError, ValueError: `process_group` is invalid; see `FullSync`.
        """
        self._members = members_of(process_group, "FullSync")
        passed_group: Any = None if self._members is not None else process_group
        if passed_group is not None:
            check_group(passed_group, "FullSync", broadcasts=False)
        self._passed_group: RankGroup | None = passed_group

    def _open_group(self) -> RankGroup:
        if self._passed_group is not None:
            return self._passed_group
        if self._group is None or self._group.broken:
            from torchdata._ranks.torch_group import TorchGroup

            self._group = TorchGroup(self.timeout, "FullSync", self._members)
        self._group.show_life()
        return self._group

    def __iter__(self) -> Iterator[T_co]:
        self._end_thread()
        self._raise_pending_error()
        group = self._open_group()
        items, error = self._restored
        self._restored = ([], None)
        # A rank must not yield the items of a loaded state before the ranks have voted on them.
        restored = deque(items)
        popped = (restored.popleft() for _ in items)
        source = chain(popped, _begun(self.source_datapipe) if error is None else _failing(error))
        again, self._again = self._again, 0
        if group.world_size == 1 and not items and error is None:
            return source
        self._data = data = _StepData(source, again, (restored, error))
        self._count_pass(data)
        self._hold = hold = _Hold(data)
        data.counts_rest = not self._has_warned
        data.begin(functools.partial(_fill_in_step, group=group))
        return _StepReader(data, hold, self._warn_of_rest)

    def _warn_of_rest(self, left: int, is_all: bool) -> None:
        """Warns once if the number of this rank's remaining items proves that the data was divided unevenly among the
        ranks."""
        graph = Graph(self.source_datapipe)
        shares = max(hooks_of(pipe)._number_of_shares() for pipe in graph)
        if left <= shares:
            return
        self._has_warned = True
        warn_outside(
            f"this rank has {left}{'' if is_all else ' or more'} items (batches, if the loader yields batches) left at "
            "the end of the epoch, because another rank has no more items. This rank skips them, probably in every "
            "epoch. The ranks' shares are uneven: make the number of shards a multiple of the number of ranks times "
            "workers, or put `.sharding_filter()` after the pipe that reads the shards"
        )

    def recompute(self, count: int) -> None:
        """Makes the next iteration reread items without voting on them, or vote without reading items.

        Each rank resumes from its own latest snapshot, so the number of reread items differs between ranks. If the
        ranks voted on reread items, the ranks would be at different positions in the same vote. `recompute` makes all
        ranks begin to vote at the same position.

        Args:
            count: if positive, the number of items that this rank rereads before its next vote. If `count` is negative,
                this rank first takes part in `-count` votes without reading an item.
        """
        self._again = count

    def is_replicable(self) -> bool:
        """Returns False, because the pipe must run in the main process, not in worker processes."""
        return False

    def __len__(self) -> int:
        raise no_length(self, "The number of items depends on the shortest rank")

    def _end_thread(self) -> None:
        """Ends the iteration of this rank. All ranks learn from the next vote that this iteration has ended."""
        self._part(self.timeout + self.patience)

    def _part(self, seconds: float) -> None:
        data, self._data = self._data, None
        if data is None or data.is_inherited:
            return
        data.leave(for_good=False)
        if not data.others():
            return
        if not data.join(seconds):
            self._data = data
            raise TimeoutError(self._busy_error("restarted"))
        self._hold = None
        if data.voted_on is not _END:
            close_dropped(data.voted_on)
        self._undelivered = data.undelivered

    def _raise_pending_error(self) -> None:
        """Raises the error that another rank has caused after this rank left its loop.

        If the error were not raised, the next iteration would wait for the failed rank until the timeout.
        """
        undelivered, self._undelivered = self._undelivered, None
        if undelivered is not None:
            raise undelivered

    def reset(self) -> None:
        """Ends the thread of the last iteration and drops its buffered items.

        Raises:
            RanksLostError: another rank has exited, which this rank detected when it left the epoch.
            PrefetchTimeoutError: another rank did not answer within the timeout when this rank left the epoch.
        """
        super().reset()
        self._raise_pending_error()

    def leave(self, for_good: bool) -> None:
        """Ends the iteration on all ranks. All other ranks detect the end of the iteration when they request an item.

        `leave` does not wait for any other rank, and does nothing if the iteration is already over.

        Args:
            for_good: whether this rank has ended its run, so that it begins no further epoch. If `for_good` is True,
                all other ranks raise an error. If `for_good` is False, only the current epoch ends, on all ranks.
        """
        if self._data is not None and not self._data.is_inherited:
            self._data.leave(for_good)

    def shutdown(self) -> None:
        """Ends the thread and closes the pipe's own group of ranks. Further calls do nothing."""
        self.leave(for_good=True)
        data, used = self._data, self._passed_group or self._group
        try:
            self._part(_SHUTDOWN_WAIT)
        except TimeoutError as error:  # the other ranks have not reached this step, and the shutdown does not wait
            raise_if_of_handler(error)
            if used is not None and hasattr(used, "give_up"):
                used.give_up()
            if data is not None:
                data.join(1.0)
            self._data = None
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> FullSync[T_co]:
        """Returns a copy that refers to the same group of ranks if the user has provided the group."""
        group = self._passed_group
        if group is not None and not isinstance(group, UncopyableGroup):
            memo[id(group)] = group
        duplicate = type(self).__new__(type(self))
        memo[id(self)] = duplicate
        vars(duplicate).update(copy.deepcopy(self.__getstate__(), memo))
        return duplicate
