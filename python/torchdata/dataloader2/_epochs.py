"""Begins, resumes and ends the epochs of a loader.

A loader owns one `EpochRun`, with a `Delivery` that counts the items and a `Tracker` that tracks the position. An
`EpochRun` runs in the thread that uses its loader. A thread that begins or ends an epoch waits for other threads that
are computing an item of the loader.

The reading service is notified exactly once that an epoch has ended: after its last item, after an error, when the next
epoch begins, or at the shutdown.
"""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchdata._handlers import is_of_handler
from torchdata._native import Delivery
from torchdata._observe.stats.recorder import Recorder
from torchdata._reporting import warn_outside
from torchdata._threads import end_at_exit
from torchdata.dataloader2._pipeline import Pipeline
from torchdata.dataloader2._position import Tracker
from torchdata.dataloader2._rank_states import SavedPositions
from torchdata.dataloader2._seeds import Seeds
from torchdata.dataloader2.graph import set_graph_random_seed
from torchdata.dataloader2.state.position import Position
from torchdata.dataloader2.state.worker_positions import lasts, may_count
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.skipping import note_epoch, report
from torchdata.datapipes.iter.threads.prefetching import stop_reading

if TYPE_CHECKING:
    from torchdata._observe.stats.model import Reading

SHUT_DOWN = "Cannot read from the DataLoader as it has already been shut down"
#: The error message for a thread that still reads an epoch after another epoch has begun.
LEFT = "this epoch was ended: another thread or a signal handler has called iter(loader) or loader.load_state_dict()"
#: The minimum number of items per worker for a warning about idle workers. If an epoch has fewer than `_LEAST` items
#: per worker, idle workers are not reported, because the dataset is small, or the epoch is a trial run.
_LEAST = 10


class FinishedIterator(Iterator[Any]):
    """Replaces the pipeline's iterator once it has ended or raised an error.

    Args:
        iterator: the pipeline's iterator, for access to its attributes; None if it was dropped.
        error: the message of the `RuntimeError` that `next` raises; None for a normal end.
        thread: the id of a thread that has already received the error; in this thread, `next` raises StopIteration. 0
            for no thread.
    """

    def __init__(self, iterator: Any = None, error: str | None = None, thread: int = 0) -> None:
        self._iterator = iterator
        self._error = error
        self._thread = thread

    def __next__(self) -> Any:
        if self._error is not None and self._thread != threading.get_ident():
            raise RuntimeError(self._error)
        raise StopIteration

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__.get("_iterator") is None:
            raise AttributeError(
                f"the iteration is over, and the pipeline's iterator with the attribute {name!r} no longer exists"
            )
        return getattr(self._iterator, name)


class EpochRun:
    """The epochs of a loader.

    Attributes:
        delivery: the object that delivers items to the user.
        position: the `Tracker` of the position in the epoch.
        resume_at: the position where the epoch resumes, and whether recomputed items must equal the items delivered
            earlier; None for an epoch's start.
        saved_positions: the positions in the loaded states. The numbers of workers and ranks in the saved run may
            differ from the numbers in this run.
        epochs: the number of epochs that have begun.
        is_paused: whether no items are delivered until `resume` is called.
        is_limited: whether the iterator pauses after a number of items; see `DataLoader2Iterator.limit`.
        is_iterating: whether an epoch has begun, and has not been ended by `finalize_iteration`.
        patience: how many seconds the end of an epoch waits for a thread that is computing an item; None for no limit.
    """

    def __init__(self, pipeline: Pipeline, seeds: Seeds, recorder: Recorder) -> None:
        self.pipeline, self.seeds, self.recorder = pipeline, seeds, recorder
        self.delivery = Delivery()
        end_at_exit(self.delivery.turn)
        self._held = os.getpid(), threading.RLock()
        self.resume_at: tuple[Position, bool] | None = None
        self.saved_positions: SavedPositions | None = None
        self.epochs = 0
        self.is_iterating = False
        self.patience: float | None = None
        self.position = Tracker(self)
        self._has_warned_of_idle = False
        #: None if no pipe skips items; otherwise, the counters at the epoch's beginning, and words for the message
        #: about skipped items, such as "items of this epoch".
        self._counted: tuple[Reading | None, str] | None = None
        self.is_paused = self.is_limited = False

    def forget(self) -> None:
        """Resets the run, as if no epoch of the current graph had begun."""
        self.position = Tracker(self)

    @property
    def held(self) -> threading.RLock:
        """The lock that guards the data of the loader's state. A forked child has a new lock, because a thread of the
        parent may hold the parent's lock."""
        if self._held[0] != os.getpid():
            self._held = os.getpid(), threading.RLock()
        return self._held[1]

    # -- pausing -----------------------------------------------------------------------------------

    def limit(self, is_limited: bool) -> None:
        self.is_limited, self.delivery.slow = is_limited, is_limited or self.is_paused

    def pause(self) -> None:
        """Makes the loader stop reading ahead and deliver no more items."""
        if self.pipeline.can("pause"):
            self.is_paused = self.delivery.slow = True
            self.pipeline.pause()

    def resume(self) -> None:
        if not self.pipeline.can("resume"):
            return
        if not self.is_paused:
            warnings.warn("Resume is called when `DataLoader2` is not paused. No operation is performed.", stacklevel=3)
            return
        self.pipeline.resume()
        self.is_paused, self.delivery.slow = False, self.is_limited

    # -- beginning ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """Ends the running epoch, if any, so that another epoch can begin."""
        if self.is_paused:
            self.resume()
        self.close()
        self.delivery.turn.await_left(self.patience)  # a thread that has read the end may be closing the epoch

    def begin(self) -> None:
        """Begins an epoch. If an exception interrupts the beginning, restores the previous position and seeds, so that
        the next `iter` begins this epoch."""
        before, seeds = (self.resume_at, self.saved_positions), self.seeds.moment()
        end, epochs = self.position.end, self.epochs
        was_read = self.delivery.source is not None and self.delivery.begun
        try:
            (position, strict), self.resume_at = self.resume_at or (None, True), None
            if position is not None and position.ended:
                self._pass_over(position, strict)
            else:
                self.run(position, strict)
        except BaseException:
            self.resume_at, self.saved_positions = before
            self.seeds.return_to(seeds)
            self.position.return_to(end, epochs)
            self.delivery.begun = True  # the next `iter` must begin an epoch, because there is no epoch to continue
            if not was_read:
                self.delivery.source = None  # `load_state_dict` requires that no epoch has begun
            raise

    def _pass_over(self, position: Position, strict: bool) -> None:
        """Restores the graph to a saved epoch's end, and begins the next epoch."""
        pipeline, saved, contract = self.pipeline, self.saved_positions, self.pipeline.contract
        moves = contract.has_workers() or (saved is not None and saved.has_shards(contract))
        moves = moves and position.in_main and position.graph is not None and lasts(pipeline.datapipe)
        if position.workers is not None or moves or (not position.in_main and position.graph is None):
            self.run(position, strict)
            for _ in self.delivery.source:
                pass
            self.close()
            self.run()
            return
        self.position.resume_between(position)
        self.run(between=saved)

    def run(self, position: Position | None = None, strict: bool = True, between: SavedPositions | None = None) -> None:
        """Begins an epoch, at its beginning or at a saved position.

        Args:
            position: the saved position; None for the beginning of the epoch.
            strict: whether recomputed items must equal the items delivered earlier.
            between: the positions at the end of the last epoch, if the loader resumes between two epochs.
        """
        pipeline = self.pipeline
        is_new = position is None
        if is_new:
            self._leave_shards()
        tracker = self.position
        stop_reading(pipeline.datapipe)
        if is_new:
            self.seeds.begin_epoch()
            self.saved_positions = None  # the loaded positions belong to an earlier epoch
        else:
            self.seeds.return_to_beginning(is_restored=False)
        resumed = saved = self.saved_positions
        in_workers = position is not None and (not position.in_main or pipeline.contract.has_workers())
        has_received = saved is not None and any(each.received for each in saved.positions.values())
        if saved is not None and in_workers and not has_received and not may_count(pipeline.datapipe):
            position = resumed = None  # before the first item, the epoch can begin with this loader's own shards
        if not pipeline.is_taken_over:
            pipeline.note_identity()
            contract = pipeline.contract
            in_shards = resumed is not None and not contract.has_workers() and resumed.has_shards(contract)
            pipeline.hand_over(
                lambda: None if resumed is None else resumed.shards(pipeline), in_shards, self.recorder.full
            )
        if tracker.output is not pipeline.datapipe:  # a graph that consists of the `WorkerOutput` does not change
            tracker.find_output()  # also if an interrupted attempt has already handed over the graph
        service = pipeline.service
        if saved is not None:
            if position is not None:
                position = saved.fitted(pipeline, tracker.output, tracker.hands_on)
            saved.suit_seeds(pipeline.contract, self.seeds)
            self.saved_positions = None
        if between is not None:
            tracker.load_between(between.between(pipeline.contract, keeps=lasts(pipeline.datapipe)))
        if pipeline.skips:
            is_resumed = position is not None and position.received
            of = f"of the items of {'the rest of ' if is_resumed else ''}this epoch"
            self._counted = self.recorder.reading() if self.recorder.board is not None else None, of
        self.epochs += 1
        tracker.begin(position, strict)
        try:
            self.is_iterating = True
            if service is not None:
                if is_new:
                    pipeline.contract.agree_on_seeds(self.seeds.generator)
                    self.seeds.initial = copy.copy(self.seeds.generator)
                reset = service.initialize_iteration(self.seeds.generator)
                if reset is not None:
                    pipeline.datapipe = reset(pipeline.datapipe)
            elif not tracker.own_seeds:
                set_graph_random_seed(pipeline.datapipe, copy.copy(self.seeds.generator))
            self.recorder.begin(pipeline.contract, pipeline.datapipe, self.delivery)
            if pipeline.skips or service is None:
                note_epoch(Graph(pipeline.datapipe), self.epochs - 1)
            self.delivery.source = tracker.iterate(position)
            tracker.drop(position)
        except BaseException as error:
            self.close(because=error)
            raise
        self.delivery.begun = False

    def _leave_shards(self) -> None:
        """Restores the user's reading service and graph after a resumed epoch that the main process has run in
        shards."""
        output, pipeline = self.position.output, self.pipeline
        if output is None or not output.is_local or output.lasts or lasts(pipeline.datapipe):
            return
        if output.divides_again:
            pipeline.take_back()
            pipeline.datapipe = pipeline.snapshot.copy()
            self.forget()

    def close(self, because: BaseException | None = None, *, at_end: bool = False) -> None:
        """Notifies the reading service, once, that the epoch has ended. If items remain, `next` raises an error in
        other threads that still read this epoch.

        Args:
            at_end: whether all items of the epoch have been delivered.
            because: the error that ended the epoch, if any. An error of the service's `finalize_iteration` is added to
                `because` as a note.
        """
        if not self.is_iterating:
            return
        output = self.position.output
        shares = output.shares if at_end and output is not None and not self._has_warned_of_idle else None
        counted, self._counted = self._counted, None
        self.position.close()
        self.pipeline.leave_ranks(for_good=because is not None)
        self.is_iterating = False
        self.recorder.end()
        if because is None:
            self.delivery.source = FinishedIterator(self.delivery.source, None if at_end else LEFT)
        else:
            # The error is described as text, because a stored exception would keep all objects in its traceback alive.
            text = f"an error, which another thread received, ended the epoch: {type(because).__name__}: {because}"
            self.delivery.source = FinishedIterator(None, text, threading.get_ident())
        try:
            if self.pipeline.service is not None:
                self.pipeline.service.finalize_iteration()
        except Exception as error:
            if because is None or is_of_handler(error):
                raise
            because.add_note(f"After that, ending the epoch failed, too: {error!r}")
        finally:
            # The next epoch must not reset the graph while a thread is computing an item.
            self.delivery.turn.await_left(self.patience)
        if at_end and counted is not None:
            report(self.recorder.skipped(counted[0]), counted[1])
        if shares is not None and 0 in shares and min(filter(None, shares), default=0) >= _LEAST:
            self._has_warned_of_idle = True
            _warn_of_idle(shares)


def _warn_of_idle(shares: Sequence[int]) -> None:
    idle = [str(worker) for worker, items in enumerate(shares) if not items]
    working = len(shares) - len(idle)
    named = f"{', '.join(idle[:-1])} and {idle[-1]} have" if len(idle) > 1 else f"{idle[0]} has"
    warn_outside(
        f"worker process{'es' if len(idle) > 1 else ''} {named} yielded no item in this epoch, and no worker more than "
        f"{max(shares)}: probably there are fewer files, shards or blocks of ShardingPolicy ({working}) than workers "
        f"({len(shares)}). Use num_workers={working}, or more and smaller shards and blocks",
        UserWarning,
    )
