"""The worker processes of one iterator. The main process sends orders (requests for batches) to the workers, and
receives batches.

A `Collector` receives the workers' batches in turn, and detects exited workers and timeouts. If a worker's command link
is full, the main process queues further orders (batch requests) instead of waiting, because the worker may be waiting
for the main process.

With `PinnedUnits`, a separate thread receives all messages from the workers, and copies the batches to pinned memory.
The pinning thread does not refer to the iterator, so it ends when the iterator is deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Any, ClassVar

import torch
from torch.utils.data import _utils

from torchdata._engine.workers.group import Group
from torchdata._engine.workers.hangs import Survived
from torchdata._engine.workers.restart import Ended, Received, Restarts
from torchdata._handlers import raise_if_of_handler
from torchdata._native import ItemStream
from torchdata._observe.outside import stalls
from torchdata._read_ahead import ReadAhead, without_own_frame
from torchdata.stateful_dataloader._worker import Job
from torchdata.stateful_dataloader.errors import WorkerTimeoutError

#: The size in bytes of the shared memory for batch requests that do not fit into the ring; memory is allocated only
#: when it is used.
_ORDERS = 64 << 20


class _Restarts(Restarts):
    owner: Callable[[], Any]

    def _command(self, indices: Sequence[int], received: Received, ended: Sequence[bool]) -> None:
        owner = self.owner()
        for worker in indices if owner is not None else ():
            owner.instruct(worker, [account for account, _ in received[0]])


class WorkerPool(Group):
    """The workers of an iterator. If the loaded state has more shards than there are workers, some workers run several
    shards, and all workers exit after one epoch.

    Args:
        owner: a weak reference to the iterator, which sends outstanding batch requests to the replacement of an exited
            worker.
    """

    def __init__(self, loader: Any, job: Job, owner: Callable[[], Any]) -> None:
        self._is_iterable, self._timeout = job.reading.is_iterable, loader.timeout if loader.timeout > 0 else None
        in_order: bool = loader.in_order
        #: Whether workers read only batches that the main process has ordered. If `is_ordered` is False, workers read
        #: ahead up to a limit that the main process sets. Persistent workers of an iterable dataset also wait for batch
        #: requests, so that they have read exactly the requested batches if the program abandons an epoch.
        self.is_ordered = not self._is_iterable or (job.persistent and not job.lasts_one_epoch)
        self._epoch, self._first, num_shards = 0, 0, max(1, job.num_shards)
        context, workers = loader.multiprocessing_context or get_context(), min(num_shards, loader.num_workers)
        full_stats = loader._recorder.full
        super().__init__(context, workers, job, num_shards=num_shards, commands=_ORDERS, full_stats=full_stats)
        #: For each shard, the unanswered batch requests (orders) as pairs of number and index. `_taken` is the number
        #: of batch requests that were sent. The main process sends the requests that were not sent yet once the
        #: worker's command link has space.
        self.orders: list[deque[tuple[int, Any]]] = [deque() for _ in range(num_shards)]
        self._taken = [0] * num_shards
        if (restarts := self.replace_exited(_Restarts, Survived.chosen(loader), in_order)) is not None:
            restarts.owner = owner
        try:
            outputs = self.start()
            self._senders, self._processes = self.members.commanders, self.members.processes
            self._looks = [self.look_at(worker) for worker in range(workers)]
            self.collector = self.collect(outputs, num_shards=num_shards, in_order=in_order, timeout=self._timeout)
            self._finish_when_shut_down()
            self.watch(self.collector)
            stalls.warn_of_stalls(self, stalls.STALL)
        except BaseException:
            self.shutdown()
            raise
        self._stream: ItemStream

    def _finish_when_shut_down(self) -> None:
        """Makes `shutdown` end the epoch before it stops the workers, because a worker does not exit while it waits for
        space in its link."""
        self._shutdown.beforehand = partial(self.collector.finish_epoch, self._epoch)

    #: Worker processes send their first snapshots in messages, so this attribute is None; a `LocalPool` stores the
    #: snapshots here.
    first_snapshots: ClassVar[None] = None

    # -- an epoch ------------------------------------------------------------------------------------

    def begin(self, ahead: int, shared_seed: int | None, positions: list[Any], fresh: bool, first: int) -> None:
        """Begins an epoch in all workers.

        Args:
            ahead: the maximum number of batches that each worker reads ahead.
            shared_seed: the epoch's seed for pipes of torch.
            positions: for each shard, the snapshot to load; None starts from the beginning.
            fresh: whether the workers begin a new epoch after loading the snapshots, instead of continuing an epoch.
            first: the number of the shard that returns the first batch.
        """
        if self.restarts is None:
            self.members.check_alive()
        self._epoch, self._first = self._epoch + 1, first
        self._finish_when_shut_down()
        self.collector.start_epoch(self._epoch, ahead, None, first)
        if self.restarts is not None:
            self.restarts.begin(self._epoch)
        for worker, (orders, taken) in enumerate(zip(self.orders, self._taken, strict=True)):
            for order in islice(orders, taken, None):
                self._send(worker, self._shown(order))
        self.orders = [deque() for _ in self.orders]
        self._taken = [0] * len(self.orders)
        processes = list(self._processes)
        self.begin_epoch()
        if self.restarts is not None:
            self.restarts.replace_processes(self.collector)
        for number in range(len(processes)):
            if self._processes[number] is processes[number]:
                starts = [(positions[shard],) for shard in self.members.shards_of(number)]
                self._send(number, self.beginning(shared_seed, fresh, starts))
        self._stream = iter(self.collector)

    def beginning(self, shared_seed: int | None, fresh: bool, starts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        return ("epoch", self._epoch, not self.is_ordered, shared_seed, fresh, self._first, starts)

    def instruct(self, worker: int, beginning: Sequence[tuple[Any, ...]], received: int) -> None:
        """Sends the unanswered batch requests of an exited worker to its replacement process.

        Args:
            worker: the index of the worker, and of its only shard if `is_ordered` is True.
            beginning: the commands that move the replacement process to the position of the exited worker.
            received: the number of entries of `self.orders[worker]` that were already answered.
        """
        for order in beginning:
            self._send(worker, order)
        if self.is_ordered:
            self._taken[worker] = received
            self._send_orders(worker)

    def _send(self, worker: int, order: Any) -> None:
        """Sends a batch request to a worker, and waits for space in the link. If the worker exits, `instruct` sends the
        order to its replacement process."""
        with suppress(Ended):
            self._senders[worker].send_message(order, None, None, self._looks[worker])

    def order(self, worker: int, number: int, index: Any) -> None:
        with self.members.sending:
            self.orders[worker].append((number, index))
            self._send_orders(worker)

    def take_order(self, worker: int) -> Any:
        orders = self.orders[worker]
        _, index = orders.popleft()
        self._taken[worker] -= 1
        if self._taken[worker] < len(orders):
            self._send_orders(worker)
        return index

    def _send_orders(self, worker: int) -> None:
        orders = self.orders[worker]
        while (taken := self._taken[worker]) < len(orders):
            # A worker without unanswered requests reads its link, so waiting for space in the link cannot cause a
            # deadlock.
            patience = None if taken == 0 else 0.0
            try:
                self._senders[worker].send_message(self._shown(orders[taken]), patience, None, self._looks[worker])
            except (TimeoutError, Ended) as error:
                raise_if_of_handler(error)
                return
            self._taken[worker] += 1

    def _shown(self, order: tuple[int, Any]) -> tuple[int, Any]:
        return (order[0], None) if self._is_iterable else order

    def wait(self, hand: list[Any]) -> None:
        """Waits for a worker's next message and appends it to `hand`, if `hand` is empty.

        Args:
            hand: the list that receives the message; if it already contains an unprocessed message, `wait` returns
                immediately. If a signal handler raises an exception, the message is not lost: it is in `hand`, or the
                next call returns it.

        Raises:
            WorkerExitedError: a worker process has exited.
        """
        if hand:
            return
        try:
            self._stream.next_into(hand)
        except TimeoutError as error:
            raise_if_of_handler(error)
            raise WorkerTimeoutError(f"DataLoader timed out after {self._timeout} seconds: {error}") from None

    def stop(self) -> None:
        self.collector.stop()

    @property
    def is_ending(self) -> bool:
        return self._shutdown.has_begun


# -- pinned memory -----------------------------------------------------------------------------------------

_AHEAD = 2
#: The maximum number of seconds to wait for the end of the pinning thread, which may be copying a batch.
_LEAVE_TIMEOUT = 60.0


def pinned(batch: Any, device: str | None) -> Any:
    pin: Any = _utils.pin_memory.pin_memory
    return pin(batch, device)


class _Epoch(ReadAhead):
    def __init__(self, pool: WorkerPool, device: str | None) -> None:
        self.pool, self.device = pool, device
        super().__init__("StatefulDataLoader", _AHEAD, "torchdata-pin-memory", keeps=False)
        self.index = torch.accelerator.current_device_index()
        #: The error that has ended the epoch, and that each later request for a batch raises.
        self.failure: BaseException | None = None

    def close(self) -> None:
        super().close()
        self.pool.stop()

    def run(self) -> None:
        queue, prepared = self.queue, False
        hand: list[Any] = []
        while (slot := queue.reserve()) is not None:
            try:
                if not prepared:
                    torch.set_num_threads(1)  # without this limit, copying would use all cores
                    torch.accelerator.set_device_index(self.index)
                    prepared = True
                self.pool.wait(hand)
                worker, number, batch, news = hand.pop()
                if batch is not None:
                    batch = pinned(batch, self.device)
            except WorkerTimeoutError as error:
                queue.fail(slot, without_own_frame(error))
            except BaseException as error:
                if not isinstance(error, StopIteration):
                    self.failure = without_own_frame(error)
                queue.finish(slot)
                return
            else:
                queue.put(slot, (worker, number, batch, news))
                del batch  # the variable would keep the user's batch alive


class PinnedUnits:
    def __init__(self, pool: WorkerPool, device: str | None) -> None:
        self._pool, self._device = pool, device
        self._epoch: _Epoch | None = None

    def begin(self, ahead: int, shared_seed: int | None, positions: list[Any], fresh: bool, first: int) -> None:
        self.leave()
        self._pool.begin(ahead, shared_seed, positions, fresh, first)
        self._epoch = _Epoch(self._pool, self._device)
        self._epoch.start(self._epoch.run)

    def wait(self, hand: list[Any]) -> None:
        assert self._epoch is not None
        if hand:
            return
        try:
            self._epoch.queue.pop_into(hand)
        except StopIteration:
            if self._epoch.failure is not None:
                raise self._epoch.failure from None
            raise

    def leave(self) -> None:
        """Waits until the pinning thread has ended, so that it receives no batches of the next epoch."""
        if self._epoch is not None:
            self._epoch.close()
            self._epoch.join(_LEAVE_TIMEOUT)

    def shutdown(self) -> None:
        if self._epoch is not None:
            self._epoch.queue.close()
        self._pool.shutdown()

    def __del__(self) -> None:
        if self._epoch is not None:
            self._epoch.queue.close()
        self._pool.release()
