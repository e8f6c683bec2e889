"""The end of a loader: who shuts it down, once, and what waits for that.

Role: one `Ending` per loader. It ends the epoch, the service and the threads that read ahead, excludes whoever changes
what the loader does meanwhile, and knows the process that the loader belongs to. Runs in the main process, in any
thread, in a finaliser, and when the interpreter exits.
"""

from __future__ import annotations

import atexit
import os
import threading
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from torchdata._threads import end_all
from torchdata.dataloader2._iterator import SHUT_DOWN, FinishedIterator

if TYPE_CHECKING:
    from torchdata._observe.stats.recorder import Recorder
    from torchdata.dataloader2._checkpointing import StateKeeper
    from torchdata.dataloader2._epochs import EpochRun
    from torchdata.dataloader2._pipeline import Pipeline

__all__ = ["Ending"]


class Loader(Protocol):
    """The loader, as far as its end goes; a subclass may do more in `shutdown`."""

    @property
    def _ending(self) -> Ending:
        """Its end."""

    def shutdown(self) -> None:
        """Ends the epoch and the reading service."""


#: The loaders of this process that are not shut down, by the identity of their ends; the interpreter shuts them down
#: when it exits. No WeakSet, which calls Python code when a loader exits: what Ctrl-C raises there is lost.
_open_loaders: dict[int, weakref.ref[Loader]] = {}


class Ending:
    """The end of a loader. The loader is open from the construction of this on.

    Args:
        loader: the loader, which is not kept alive.
        pipeline: of the loader.
        run: of its epochs.
        keeper: of its states.
        recorder: of its statistics.

    Attributes:
        changing: the lock of whoever begins an epoch, loads a state, or shuts the loader down.
        owner_pid: the process that it belongs to.
        patience: seconds that are waited for threads.
        is_noted: whether somebody may ask for the state afterwards.
        has_begun: whether the loader must not be read any more.
        is_over: whether all was ended.
    """

    def __init__(
        self, loader: Loader, pipeline: Pipeline, run: EpochRun, keeper: StateKeeper, recorder: Recorder
    ) -> None:
        self._pipeline, self._run, self._keeper, self._recorder = pipeline, run, keeper, recorder
        self.changing = threading.RLock()
        self.owner_pid = os.getpid()
        self.patience = 2.0
        self.is_noted = True
        self.has_begun = self.is_over = False
        _open_loaders[id(self)] = weakref.ref(loader)

    def take_over_in_child(self) -> None:
        """Makes a loader that a forked child inherited the child's, unless worker processes of its parent run it.

        Raises:
            RuntimeError: they do.
        """
        if self.owner_pid == os.getpid():
            return
        if self._pipeline.is_taken_over and self._pipeline.contract.has_workers():
            raise RuntimeError(
                f"this DataLoader2 belongs to process {self.owner_pid}, whose worker processes run it, and this is a "
                "forked child of that: make a loader of your own in the child"
            )
        self.changing = threading.RLock()  # a thread of the parent may hold it
        self.owner_pid = os.getpid()

    def run(self) -> None:
        """Ends all, or continues where that was cut off. Returns when it is over, also if another thread does it."""
        if self.is_over:
            return
        self.has_begun = True
        over = FinishedIterator(None, SHUT_DOWN)
        if os.getpid() != self.owner_pid:
            self._run.delivery.source = over
            self._set_over()
            return
        with self._excluding_others():
            if not self.is_over:  # by another thread, meanwhile
                self._end(over)

    @contextmanager
    def _excluding_others(self) -> Iterator[None]:
        """Excludes others who change what the loader does; one who hangs there is not waited for any longer."""
        is_alone = self.changing.acquire(timeout=self.patience)
        try:
            yield
        finally:
            if is_alone:
                self.changing.release()

    def _end(self, over: FinishedIterator) -> None:
        run, pipeline = self._run, self._pipeline
        run.patience = self.patience
        try:
            try:
                if self.is_noted:
                    self._keeper.note_left(bool(pipeline.works()))
                if run.is_iterating:
                    pipeline.leave_ranks(for_good=True)
                run.close()
            finally:
                run.delivery.source = over
                if pipeline.service is not None:
                    pipeline.service.finalize()
            end_all(pipeline.works(), self.patience)  # which may wait for the processes of the service before
        except Exception:
            self._set_over()
            raise
        self._set_over()  # and not where Ctrl-C cut it off: the next call continues

    def _set_over(self) -> None:
        self.is_over = True
        self._recorder.close()
        _open_loaders.pop(id(self), None)


def _shut_down_open_loaders() -> None:
    for reference in list(_open_loaders.values()):
        try:
            if (loader := reference()) is not None:
                loader._ending.patience = 0.0  # all threads are waited for together, later
                loader._ending.is_noted = False
                loader.shutdown()
        except Exception:
            traceback.print_exc()


atexit.register(_shut_down_open_loaders)
