"""The worker processes of one iterator, as main sees them: started together, ordered, read in turn, ended.

Role: main's side. Owns the links, the bells and the process objects. To each worker leads a link for orders; from each
comes one with batches, and a `Collector` takes these in turn, watches the processes and the clock.

Nothing that main sends waits for a worker that may itself wait for main: an order for which there is no room yet stays
in a queue here, until the worker has taken one of those before.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from multiprocessing.context import BaseContext
from signal import strsignal
from typing import Any, NoReturn

from torchdata._engine.crossing import Handle
from torchdata._engine.ending import Ending, OwnsChildren, wait_for_any
from torchdata._engine.entering import CommonSetup
from torchdata._engine.failures import reraise
from torchdata._engine.obituary import obituary
from torchdata._engine.processes import default_budget
from torchdata._engine.starting import new_child, start_sharing
from torchdata._native import BellBoard, Collector, ItemStream, Link, Sender
from torchdata.stateful_dataloader._shipping import shipped
from torchdata.stateful_dataloader._worker import MAIN, Job, Setup, run_worker
from torchdata.stateful_dataloader.errors import WorkerExitedError, WorkerTimeoutError

__all__ = ["Pool"]

#: Shared memory for orders that do not fit into the ring; only what is used is allocated.
_ORDERS = 64 << 20
#: More batches than any worker is ever asked for.
_UNLIMITED = 1 << 28


class Pool(OwnsChildren):
    """Workers, and the way to and from them.

    Args:
        context: multiprocessing's context that starts them.
        num_workers: how many.
        job: what they do.
        in_order: whether batches are taken from them in strict turn.
        timeout: seconds that main waits for a batch; None for ever.

    Raises:
        TypeError: the dataset or a function cannot be pickled, which the way of starting needs.
        OSError: the system has no room for a process.
    """

    _ending: _PoolEnding

    def __init__(
        self, context: BaseContext, num_workers: int, job: Job, *, in_order: bool, timeout: float | None
    ) -> None:
        # Workers that live on need orders for an iterable dataset, too: they work them off when an epoch is broken off.
        self._iterates, self._timeout = job.reading.is_iterable and not job.persistent, timeout
        self._epoch = 0
        #: By worker: orders that found no room, and how many were sent whose batch has not come.
        self._queued: list[deque[Any]] = [deque() for _ in range(num_workers)]
        self._under_way = [0] * num_workers
        method = context.get_start_method()
        budget = default_budget() // num_workers
        bells = BellBoard(1 + num_workers)
        batches = [Link(budget) for _ in range(num_workers)]
        orders = [Link(_ORDERS) for _ in range(num_workers)]
        sent = shipped(job, method)
        setups = [
            Setup(
                worker_id=number,
                num_workers=num_workers,
                iterates=self._iterates,
                job=sent,
                common=CommonSetup.under(method, bells),
                orders=Handle(orders[number]),
                batches=Handle(batches[number]),
            )
            for number in range(num_workers)
        ]
        self._processes = [new_child(context, setup.name, run_worker, (setup,)) for setup in setups]
        self._ending = _PoolEnding(list(self._processes), list(orders), bells)
        try:
            start_sharing(self._processes, method, [bells, *orders, *batches])
            peers = [1 + number for number in range(num_workers)]
            self._senders = [Sender([link], bells, MAIN, [peer]) for link, peer in zip(orders, peers, strict=True)]
            self._ending.commanders += self._senders
            self._collector = Collector(batches, bells, MAIN, peers, _raise_failure, in_order=in_order, timeout=timeout)
            self._ending.collector = self._collector
            self._watch()
        except BaseException:
            self.shutdown()
            raise
        self._stream: ItemStream

    def _watch(self) -> None:
        on_exit = weakref.WeakMethod(self._on_exit)
        pids = [(number, process.pid or 0) for number, process in enumerate(self._processes)]
        try:
            self._collector.watch(pids, lambda number: on_exit()(number))  # type: ignore[misc]
        except ProcessLookupError:  # one has ended already, and was not reaped by us
            wait_for_any(self._processes, 1.0)
            self._check_alive()
            raise

    # -- an epoch ------------------------------------------------------------------------------------

    def begin(self, ahead: int, shared_seed: int | None, places: list[Any], fresh: bool, fillers: int) -> None:
        """Begins an epoch.

        Args:
            ahead: batches that each worker may be ahead of main.
            shared_seed: what pipes of torch's kind are seeded with.
            places: by worker, the place to go on from; None for the beginning.
            fresh: the epoch of these places is over: only what outlives it is taken from them.
            fillers: how many workers, from the first on, let the others begin.

        Raises:
            WorkerExitedError: a worker has died.
        """
        self._check_alive()
        self._epoch += 1
        self._ending.epoch = self._epoch
        # An order limits what a worker reads by index, and no grant has to.
        self._collector.start_epoch(self._epoch, ahead if self._iterates else _UNLIMITED)
        for worker, queued in enumerate(self._queued):
            while queued:  # it is worked off before the next epoch, as all that was ordered
                self._senders[worker].send_message(queued.popleft(), None, None, self._check_alive)
        self._under_way = [0] * len(self._queued)
        for number, place in enumerate(places):
            order = ("epoch", self._epoch, shared_seed, place, fresh, number < fillers)
            self._senders[number].send_message(order, None, None, self._check_alive)
        self._stream = iter(self._collector)

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
                self._senders[worker].send_message(queued[0], patience, None, self._check_alive)
            except TimeoutError:
                return
            queued.popleft()
            self._under_way[worker] += 1

    def wait(self, hand: list[Any]) -> None:
        """Waits for the next unit, as `_worker` describes it, which it appends. Does nothing where there is one.

        Args:
            hand: an empty list, or one with a unit that was not taken yet. Where a signal handler raises, the unit lies
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

    def stop(self) -> None:
        """Ends the epoch for whoever takes units of it, in any thread."""
        self._collector.stop()

    def note(self, unit: Any) -> None:
        """Notes that a unit was taken, and sends what had to wait for it. For the thread that orders."""
        if unit[1] >= 0:
            self._under_way[unit[0]] -= 1
        if self._queued[unit[0]]:
            self._send_queued(unit[0])

    # -- life and death ------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        for number, process in enumerate(self._processes):
            if process.ended:
                self._on_exit(number)

    def _on_exit(self, number: int) -> NoReturn:
        process = self._processes[number]
        process.wait(1.0)
        told = obituary(process)
        if process.exitcode is not None and process.exitcode < 0:  # in torch's words, too, which programs match
            told += f". DataLoader worker (pid {process.pid}) is killed by signal: {strsignal(-process.exitcode)}."
        raise WorkerExitedError(
            f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: {told}",
            worker=number,
            exitcode=process.exitcode,
            stage="reading batches",
        )

    @property
    def is_ordered(self) -> bool:
        """Whether workers read what main orders, and not as far as main has room."""
        return not self._iterates

    @property
    def is_ending(self) -> bool:
        """Whether somebody has begun to end the workers."""
        return self._ending.has_begun

    @property
    def pids(self) -> list[int]:
        """Process numbers."""
        return [process.pid for process in self._processes if process.pid is not None]

    def release(self) -> None:
        """Ends all workers, where that was not done yet; for a `__del__`, at interpreter exit, too."""
        self._finalize(False)


class _PoolEnding(Ending):
    """Ends the workers; one that waits for room for a batch is told first that nobody wants it."""

    #: What reads from them, once they run, and the epoch that runs.
    collector: Collector | None = None
    epoch = 0

    def run(self) -> None:
        if self.collector is not None and os.getpid() == self._owner_pid:
            self.has_begun = True  # for who reads, before it is told that nothing comes any more
            with contextlib.suppress(RuntimeError):  # somebody reads, in this very thread
                self.collector.finish_epoch(self.epoch)
        super().run()


def _raise_failure(_peer: int, description: Any) -> NoReturn:
    reraise(description)
