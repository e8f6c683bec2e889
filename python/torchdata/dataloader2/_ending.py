"""Shuts down a loader exactly once, although several threads may call `shutdown`."""

from __future__ import annotations

import atexit
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from torchdata._handlers import is_of_handler
from torchdata._threads import end_all
from torchdata.dataloader2._epochs import SHUT_DOWN, EpochRun, FinishedIterator

#: The loaders that are shut down at interpreter exit, by the id of their `Ending`. A WeakSet is unsuitable, because
#: freeing a loader would run Python code of the WeakSet, where a KeyboardInterrupt would be lost.
_open_loaders: dict[int, weakref.ref[Any]] = {}


class Ending:
    """Shuts a loader down, at interpreter exit at the latest.

    Args:
        loader: the `DataLoader2`; a subclass may extend its `shutdown`.
        note_left: a function that stores the position for states that are requested after the shutdown.

    Attributes:
        changing: the lock that a thread holds while it begins an epoch, loads a state, or shuts the loader down.
        is_noted: whether `shutdown` calls `note_left`.
    """

    def __init__(self, loader: Any, run: EpochRun, note_left: Callable[[bool], None]) -> None:
        self._pipeline, self._run, self._note_left = run.pipeline, run, note_left
        self.changing = threading.RLock()
        self.owner_pid = os.getpid()
        self.patience = 2.0
        self.is_noted = True
        self.has_begun = self.is_over = False
        _open_loaders[id(self)] = weakref.ref(loader)

    def take_over_in_child(self) -> None:
        """In a forked child, raises RuntimeError if worker processes of the parent run the loader."""
        if self.owner_pid == os.getpid():
            return
        if self._pipeline.is_taken_over and self._pipeline.contract.has_workers():
            raise RuntimeError(
                f"this DataLoader2 belongs to process {self.owner_pid}, whose worker processes run it, and this "
                "process is a forked child: create another loader in the child"
            )
        self.changing = threading.RLock()  # a thread of the parent may hold the inherited lock
        self.owner_pid = os.getpid()

    def run(self) -> None:
        """Returns when the shutdown is complete, even if another thread completes it."""
        if self.is_over:
            return
        self.has_begun = True
        over = FinishedIterator(None, SHUT_DOWN)
        if os.getpid() != self.owner_pid:
            self._run.delivery.source = over
            self._set_over()
            return
        is_alone = self.changing.acquire(timeout=self.patience)  # other threads may be changing the loader
        try:
            if not self.is_over:  # another thread may have completed the shutdown
                self._end(over)
        finally:
            if is_alone:
                self.changing.release()

    def _end(self, over: FinishedIterator) -> None:
        run, pipeline = self._run, self._pipeline
        run.patience = self.patience
        try:
            try:
                if self.is_noted:
                    self._note_left(bool(pipeline.works()))
                if run.is_iterating:
                    pipeline.leave_ranks(for_good=True)
                run.close()
            finally:
                run.delivery.source = over
                if pipeline.service is not None:
                    pipeline.service.finalize()
            end_all(pipeline.works(), self.patience)  # after the service, because threads may wait for its processes
        except Exception as error:
            # If Ctrl-C or a signal handler interrupts the shutdown, `is_over` stays False, and the next call continues
            # the shutdown.
            if not is_of_handler(error):
                self._set_over()
            raise
        self._set_over()

    def _set_over(self) -> None:
        self.is_over = True
        self._run.recorder.close()
        _open_loaders.pop(id(self), None)


def _shut_down_open_loaders() -> None:
    for reference in list(_open_loaders.values()):
        try:
            if (loader := reference()) is not None:
                loader._ending.patience = 0.0  # another exit handler waits for the threads of all loaders
                loader._ending.is_noted = False
                loader.shutdown()
        except Exception:
            traceback.print_exc()


atexit.register(_shut_down_open_loaders)
