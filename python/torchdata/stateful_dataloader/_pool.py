"""The worker processes of one iterator, as main sees them: ordered, and read in turn.

Role: main's side. Over the group's links for commands go orders; a `Collector` takes batches from the workers in turn,
watches the processes and the clock.

Nothing that main sends waits for a worker that may itself wait for main: an order for which there is no room yet stays
in a queue here, until the worker has taken one of those before.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, ClassVar

from torchdata._engine.workers.group import Group
from torchdata._engine.workers.restart import Gone, Restarts
from torchdata._native import ItemStream
from torchdata._observe.outside import stalls
from torchdata._observe.stats.counting import Counting
from torchdata.stateful_dataloader._worker import Job, Start
from torchdata.stateful_dataloader.errors import WorkerTimeoutError

__all__ = ["Pool"]

#: Shared memory for orders that do not fit into the ring; only what is used is allocated.
_ORDERS = 64 << 20


class Pool:
    """Workers, and the way to and from them.

    Args:
        context: multiprocessing's context that starts them.
        num_workers: how many.
        job: what they do. They run its shards; those of a job with more shards than workers only last for an epoch.
        in_order: whether batches are taken from them in strict turn.
        timeout: seconds that main waits for a batch; None for ever.
        full_stats: whether each batch is timed.
        restarts: makes, from the group, what puts others in the places of workers that die; None: that is an error.

    Raises:
        TypeError: the dataset or a function cannot be pickled, which the way of starting needs.
        OSError: the system has no room for a process.
    """

    def __init__(
        self,
        context: BaseContext,
        num_workers: int,
        job: Job,
        *,
        in_order: bool,
        timeout: float | None,
        full_stats: bool = False,
        restarts: Callable[[Group, BaseContext], Restarts] | None = None,
    ) -> None:
        # Workers that live on need orders for an iterable dataset, too: they work them off when an epoch is broken off.
        self._iterates, self._timeout = job.reading.is_iterable and (job.lasts_one_epoch or not job.persistent), timeout
        self._epoch, num_shards = 0, max(1, job.num_shards)
        #: By shard: orders that found no room, and how many were sent whose batch has not come.
        self._queued: list[deque[Any]] = [deque() for _ in range(num_shards)]
        self._under_way = [0] * num_shards
        self._group = group = Group(
            context, num_workers, job, num_shards=num_shards, commands=_ORDERS, full_stats=full_stats
        )
        self._restarts = replacing = None if restarts is None else restarts(group, context)
        try:
            outputs = group.start(replaces=replacing is not None)
            self._senders, self._processes = group.members.commanders, group.members.processes
            #: By worker: what is looked at while it is to take an order.
            self._looks: list[Callable[[], object]] = [group.members.check_alive] * num_workers
            if replacing is not None:
                self._looks = [replacing.look_at(worker) for worker in range(num_workers)]
                replacing.keep_forker()
            self.collector = group.collect(outputs, num_shards=num_shards, in_order=in_order, timeout=timeout)
            self._finish_when_shut_down()
            if replacing is None:
                group.watch(self.collector)
            else:
                own = weakref.ref(replacing)  # which refers to what ends the workers, and that to the collector
                self.collector.watch_and_replace(
                    list(enumerate(self.pids)),
                    lambda *what: own().on_death(*what),  # type: ignore[union-attr]
                    lambda *what: own().on_replace(*what),  # type: ignore[union-attr]
                )
                if replacing.hangs is not None:
                    self.collector.tell_hang(replacing.hangs.look)
            self.stats, self.is_forked = group.stats, group.is_forked
            stalls.warn_of_stalls(self, stalls.STALL)
        except BaseException:
            self.shutdown()
            raise
        self.stall_warning: float | None
        self._stream: ItemStream

    def _finish_when_shut_down(self) -> None:
        """Lets `shutdown` tell a worker that waits for room for a batch that nobody wants it."""
        self._group.ending.beforehand = partial(self.collector.finish_epoch, self._epoch)

    #: What is known at once of the shards' places, as of `LocalPool`: of processes nothing.
    told: ClassVar[None] = None

    # -- an epoch ------------------------------------------------------------------------------------

    def begin(self, ahead: int, shared_seed: int | None, places: list[Any], fresh: bool, fillers: int) -> None:
        """Begins an epoch.

        Args:
            ahead: batches that each worker may be ahead of main.
            shared_seed: what pipes of torch's kind are seeded with.
            places: by shard, the place to go on from; None for the beginning.
            fresh: the epoch of these places is over: only what outlives it is taken from them.
            fillers: how many shards, from the first on, let the others begin.

        Raises:
            WorkerExitedError: a worker has died.
        """
        if self._restarts is None:
            self._group.members.check_alive()
        self._epoch += 1
        self._finish_when_shut_down()
        self.collector.start_epoch(self._epoch, ahead if self._iterates else ahead + 1)  # one to let others begin
        if self._restarts is not None:
            self._restarts.begin(self._epoch)
        for shard, queued in enumerate(self._queued):
            while queued:  # it is worked off before the next epoch, as all that was ordered
                self._send(shard % len(self._processes), queued.popleft())
        self._under_way = [0] * len(self._queued)
        processes = list(self._processes)
        self._group.begin_epoch()
        if self._restarts is not None:  # who takes a place from now on is told by `instruct`
            self._restarts.replace_dead(self.collector)
        for number in range(len(processes)):
            if self._processes[number] is processes[number]:
                starts = [Start(places[shard], shard < fillers) for shard in self.shards_of(number)]
                self._send(number, self.beginning(shared_seed, fresh, starts))
        self._stream = iter(self.collector)

    def beginning(self, shared_seed: int | None, fresh: bool, starts: list[Start]) -> tuple[Any, ...]:
        """The order with which the shards of a worker begin this epoch."""
        return ("epoch", self._epoch, self._iterates, shared_seed, fresh, starts)

    def shards_of(self, worker: int) -> range:
        """The shards that a worker runs."""
        return self._group.members.shards_of(worker)

    def instruct(
        self, worker: int, beginning: Sequence[tuple[Any, ...]], under_way: int, orders: Iterable[tuple[int, Any]]
    ) -> None:
        """Tells another process, which has taken the place of a worker, what to do.

        Args:
            worker: its number. It is that of its shard if there are orders.
            beginning: orders with which it comes to where the other one was.
            under_way: how many orders were answered by units that were not noted yet.
            orders: those that the other one has not answered, by number and index.
        """
        for order in beginning:
            self._send(worker, order)
        if self.is_ordered:
            self._queued[worker] = deque(orders)
            self._under_way[worker] = under_way
            self._send_queued(worker)

    def _send(self, worker: int, order: Any) -> None:
        """Sends an order, and waits for room. One who has died, and is to be replaced, misses nothing."""
        with suppress(Gone):
            self._senders[worker].send_message(order, None, None, self._looks[worker])

    def order(self, worker: int, number: int, index: Any) -> None:
        """Has a worker read an index. Does not wait for it.

        Args:
            worker: its number.
            number: the number of the order, which the batch will have.
            index: the index, or the indices of a batch.
        """
        self._queued[worker].append((number, index))
        self._send_queued(worker)

    def _send_queued(self, worker: int) -> None:
        queued = self._queued[worker]
        while queued:
            # A worker that has nothing to do waits for orders, and takes one of any size.
            patience = None if self._under_way[worker] == 0 else 0.0
            try:
                self._senders[worker].send_message(queued[0], patience, None, self._looks[worker])
            except (TimeoutError, Gone):
                return
            queued.popleft()
            self._under_way[worker] += 1

    def wait(self, hand: list[Any]) -> None:
        """Waits for the next unit, as `_worker` describes it, which it appends. Does nothing if there is one.

        Args:
            hand: an empty list, or one with a unit that was not taken yet. If a signal handler raises, the unit lies
                there or will come with the next call.

        Raises:
            StopIteration: all iterable datasets have ended.
            WorkerExitedError: a worker has died.
            WorkerTimeoutError: none came in time.
        """
        if hand:
            return
        try:
            self._stream.next_into(hand)
        except TimeoutError as error:
            raise WorkerTimeoutError(f"DataLoader timed out after {self._timeout} seconds: {error}") from None

    def end_epoch(self) -> None:
        """Looks at what the workers have done in the epoch that is over."""
        self._group.end_epoch()

    def stop(self) -> None:
        """Ends the epoch for all threads that take units of it."""
        self.collector.stop()

    def note(self, unit: Any) -> None:
        """Notes that a unit was taken, and sends what had to wait for it. For the thread that orders."""
        if unit[1] >= 0:
            self._under_way[unit[0]] -= 1
        if self._queued[unit[0]]:
            self._send_queued(unit[0])

    # -- the end ------------------------------------------------------------------------------------

    @property
    def is_ordered(self) -> bool:
        """Whether workers read what main orders, and not as far as main has room."""
        return not self._iterates

    @property
    def sending(self) -> AbstractContextManager[Any]:
        """The lock that is held while somebody is put in the place of a worker."""
        return self._group.members.sending

    @property
    def is_ending(self) -> bool:
        """Whether somebody has begun to end the workers."""
        return self._group.ending.has_begun

    @property
    def counting(self) -> Counting:
        """The counters of main."""
        return self._group.counting

    @property
    def pids(self) -> list[int]:
        """Process numbers."""
        return self._group.pids

    def shutdown(self) -> None:
        """Ends all workers; see `Group.shutdown`."""
        self._group.shutdown()

    def release(self) -> None:
        """Ends all workers if that was not done yet; for a `__del__`, at interpreter exit, too."""
        self._group.release()
