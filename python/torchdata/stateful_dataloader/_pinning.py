"""Pinned memory: a thread that copies batches into it, ahead of what is asked for.

Role: a thread of the main process between the workers and the iterator. It takes units, so nobody else may meanwhile;
orders are not its business. It ends with the epoch, or when the iterator is dropped: it holds the workers, not that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import _utils

from torchdata._read_ahead import ReadAhead, without_own_frame
from torchdata._threads import end_at_exit
from torchdata.stateful_dataloader._pool import Pool
from torchdata.stateful_dataloader.errors import WorkerTimeoutError

__all__ = ["PinnedUnits", "pinned"]

#: Batches that may wait in pinned memory.
_AHEAD = 2
#: Seconds within which the thread has to leave an epoch. It may be copying a batch, or replacing a worker.
_LEAVING = 60.0


def pinned(batch: Any, device: str | None) -> Any:
    """The batch, its tensors copied into pinned memory as torch's loader does it."""
    pin: Any = _utils.pin_memory.pin_memory
    return pin(batch, device)


class _Epoch(ReadAhead):
    """The data of the thread of one epoch."""

    def __init__(self, pool: Pool, device: str | None) -> None:
        super().__init__("StatefulDataLoader", _AHEAD, "torchdata-pin-memory", keeps=False)
        self.pool, self.device = pool, device
        self.index = torch.accelerator.current_device_index()
        #: The error that has ended the epoch before its end: each later request raises it again.
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Pins units, until there are no more or nobody wants any."""
        queue, prepared = self.queue, False
        hand: list[Any] = []
        while (slot := queue.reserve()) is not None:
            try:
                if not prepared:
                    torch.set_num_threads(1)  # this thread's; it would take all cores for a copy
                    torch.accelerator.set_device_index(self.index)
                    prepared = True
                self.pool.wait(hand)
                worker, number, batch, news = hand.pop()
                if batch is not None:
                    batch = pinned(batch, self.device)
            except WorkerTimeoutError as error:  # the batch may come yet
                queue.fail(slot, without_own_frame(error))
            except BaseException as error:
                if not isinstance(error, StopIteration):
                    self.failure = without_own_frame(error)
                queue.finish(slot)
                return
            else:
                queue.put(slot, (worker, number, batch, news))
                del batch  # it is the user's


class PinnedUnits:
    """The units of a pool, their batches in pinned memory.

    Args:
        pool: the workers. Ended with this object.
        device: the kind of device that the memory is pinned for.
    """

    def __init__(self, pool: Pool, device: str | None) -> None:
        self._pool, self._device = pool, device
        self._epoch: _Epoch | None = None
        end_at_exit(self)

    def begin(self, ahead: int, shared_seed: int | None, places: list[Any], fresh: bool, fillers: int) -> None:
        """See `Pool.begin`."""
        self.leave()
        self._pool.begin(ahead, shared_seed, places, fresh, fillers)
        self._epoch = _Epoch(self._pool, self._device)
        self._epoch.start(self._epoch.run)

    def wait(self, hand: list[Any]) -> None:
        """See `Pool.wait`."""
        assert self._epoch is not None
        if hand:
            return
        try:
            self._epoch.queue.pop_into(hand)
        except StopIteration:
            if self._epoch.failure is not None:
                raise self._epoch.failure from None
            raise

    def close(self) -> None:
        """Lets the thread end, without waiting."""
        if self._epoch is not None:
            self._epoch.close()
            self._pool.stop()

    def join(self, seconds: float) -> None:
        """Waits until the thread has ended, so many seconds at most."""
        if self._epoch is not None:
            self._epoch.join(seconds)

    def leave(self) -> None:
        """Ends the thread and waits for that: it would take units of the next epoch, or replace workers in it."""
        self.close()
        self.join(_LEAVING)

    def shutdown(self) -> None:
        """Ends the thread and the workers."""
        if self._epoch is not None:
            self._epoch.close()
        self._pool.shutdown()

    def __del__(self) -> None:
        if self._epoch is not None:
            self._epoch.close()
        self._pool.release()
