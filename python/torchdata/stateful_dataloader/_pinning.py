"""Pinned memory: a thread that copies batches into it, ahead of what is asked for.

Role: a thread of the main process between the workers and the iterator. It takes units, so nobody else may meanwhile;
orders are not its business. It ends with the epoch, or when the iterator is dropped: it holds the workers, not that.
"""

from __future__ import annotations

import itertools
import queue
import threading
from typing import Any

import torch
from torch.utils.data import _utils

from torchdata._threads import end_at_exit
from torchdata.stateful_dataloader._pool import Pool
from torchdata.stateful_dataloader.errors import WorkerTimeoutError

__all__ = ["PinnedUnits", "pinned"]

#: Batches that may wait in pinned memory.
_AHEAD = 2
#: What no queue holds.
_NOTHING = object()


def pinned(batch: Any, device: str | None) -> Any:
    """The batch, its tensors copied into pinned memory as torch's loader does it."""
    pin: Any = _utils.pin_memory.pin_memory
    return pin(batch, device)


class _Epoch:
    """What the thread of one epoch needs."""

    def __init__(self, pool: Pool, device: str | None) -> None:
        self.pool, self.device = pool, device
        self.index = torch.accelerator.current_device_index()
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: A token for each batch that may be read ahead.
        self.room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_AHEAD):
            self.room.put(None)
        self.unwanted = threading.Event()

    def run(self) -> None:
        torch.set_num_threads(1)  # this thread's; it would take all cores for a copy
        torch.accelerator.set_device_index(self.index)
        hand: list[Any] = []
        while not self.unwanted.is_set():
            try:
                self.pool.wait(hand)
                worker, number, batch, news = hand.pop()
                if batch is not None:
                    batch = pinned(batch, self.device)
                self._put((worker, number, batch, news))
                del batch  # it is the user's
            except BaseException as error:
                self._put(error)
                if not isinstance(error, WorkerTimeoutError):
                    return

    def _put(self, unit: Any) -> None:
        self.room.get()
        if not self.unwanted.is_set():
            self.ready.put(unit)

    def end(self) -> None:
        """Lets the thread end; it waits for room no longer, and who waits for a batch gets none."""
        self.unwanted.set()
        self.room.put(None)
        self.ready.put(StopIteration())


class PinnedUnits:
    """The units of a pool, their batches in pinned memory.

    Args:
        pool: the workers. Ended with this object.
        device: the kind of device that the memory is pinned for.
    """

    def __init__(self, pool: Pool, device: str | None) -> None:
        self._pool, self._device = pool, device
        self._epoch: _Epoch | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        end_at_exit(self)

    def begin(self, ahead: int, shared_seed: int | None, places: list[Any], fresh: bool, fillers: int) -> None:
        """See `Pool.begin`."""
        if self._epoch is not None:
            self._epoch.end()
        self._pool.begin(ahead, shared_seed, places, fresh, fillers)  # whoever still reads the last one leaves
        self._epoch, self._failure = _Epoch(self._pool, self._device), None
        self._thread = threading.Thread(target=self._epoch.run, name="torchdata-pin-memory", daemon=True)
        self._thread.start()

    def wait(self, hand: list[Any]) -> None:
        """See `Pool.wait`."""
        if self._failure is not None:
            raise self._failure
        assert self._epoch is not None
        if not hand:
            # One call into C code takes it and puts it down: a signal handler that raises comes before or after.
            hand.extend(itertools.islice(iter(self._epoch.ready.get, _NOTHING), 1))
        if isinstance(error := hand[0], BaseException):
            if not isinstance(error, (WorkerTimeoutError, StopIteration)):
                self._failure = error
            self.took()
            hand.clear()
            raise error

    def took(self) -> None:
        """See `Pool.took`: there is room for one more."""
        if self._epoch is not None:
            self._epoch.room.put(None)

    def close(self) -> None:
        """Lets the thread end, without waiting."""
        if self._epoch is not None:
            self._epoch.end()
            self._pool.stop()

    def join(self, seconds: float) -> None:
        """Waits until the thread has ended, so many seconds at most."""
        if self._thread is not None:
            self._thread.join(seconds)

    def shutdown(self) -> None:
        """Ends the thread and the workers."""
        if self._epoch is not None:
            self._epoch.end()
        self._pool.shutdown()

    def __del__(self) -> None:
        if self._epoch is not None:
            self._epoch.end()
        self._pool.release()
