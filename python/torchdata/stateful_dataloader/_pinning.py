"""A thread that copies batches to pinned memory before they are requested.

Role: a thread of the main process between the workers and the iterator. While it runs, only this thread takes units
from the workers; it does not order batches. The thread ends with the epoch, or when the iterator is dropped. It refers
to the workers but not to the iterator.
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

#: Maximum number of batches that wait in pinned memory.
_AHEAD = 2
#: Seconds that the thread may take to leave an epoch. It may be copying a batch or replacing a worker.
_LEAVING = 60.0


def pinned(batch: Any, device: str | None) -> Any:
    """Returns the batch with its tensors copied to pinned memory, as PyTorch's loader does."""
    pin: Any = _utils.pin_memory.pin_memory
    return pin(batch, device)


class _Epoch(ReadAhead):
    """The data of one epoch's thread."""

    def __init__(self, pool: Pool, device: str | None) -> None:
        super().__init__("StatefulDataLoader", _AHEAD, "torchdata-pin-memory", keeps=False)
        self.pool, self.device = pool, device
        self.index = torch.accelerator.current_device_index()
        #: The error that ended the epoch early. Each later request raises it again.
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Pins units until the epoch ends or is abandoned."""
        queue, prepared = self.queue, False
        hand: list[Any] = []
        while (slot := queue.reserve()) is not None:
            try:
                if not prepared:
                    torch.set_num_threads(1)  # applies to this thread, which would use all cores for a copy
                    torch.accelerator.set_device_index(self.index)
                    prepared = True
                self.pool.wait(hand)
                worker, number, batch, news = hand.pop()
                if batch is not None:
                    batch = pinned(batch, self.device)
            except WorkerTimeoutError as error:  # the batch may still arrive
                queue.fail(slot, without_own_frame(error))
            except BaseException as error:
                if not isinstance(error, StopIteration):
                    self.failure = without_own_frame(error)
                queue.finish(slot)
                return
            else:
                queue.put(slot, (worker, number, batch, news))
                del batch  # the user owns the batch


class PinnedUnits:
    """The units of a pool, with batches in pinned memory.

    Args:
        pool: the workers, which end together with this object.
        device: the kind of device for the pinned memory.
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
        """Asks the thread to end, without waiting."""
        if self._epoch is not None:
            self._epoch.close()
            self._pool.stop()

    def join(self, seconds: float) -> None:
        """Waits at most `seconds` until the thread has ended."""
        if self._epoch is not None:
            self._epoch.join(seconds)

    def leave(self) -> None:
        """Stops the thread and waits for it. Otherwise, it would take units of the next epoch or replace workers during
        it.
        """
        self.close()
        self.join(_LEAVING)

    def shutdown(self) -> None:
        """Stops the thread and the workers."""
        if self._epoch is not None:
            self._epoch.close()
        self._pool.shutdown()

    def __del__(self) -> None:
        if self._epoch is not None:
            self._epoch.close()
        self._pool.release()
