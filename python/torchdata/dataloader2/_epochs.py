"""The epochs of a loader: beginning one, going on in one, and ending it.

Role: a base of `DataLoader2`, of which it is a part. Runs in the thread that uses the loader; others
may read it meanwhile, and one that is at an item is waited for.

Of every epoch that was begun, the service is told the end exactly once: at the last item, at an error, when
the next epoch begins without it, or at shutdown.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchdata._native import Delivery
from torchdata._stats.recorder import Recorder
from torchdata.dataloader2._identity import Identity
from torchdata.dataloader2._idle_workers import are_idle, warn_of_idle
from torchdata.dataloader2._iterator import LEFT, FinishedIterator
from torchdata.dataloader2._length import skeleton
from torchdata.dataloader2._rank_states import SavedPlaces
from torchdata.dataloader2._snapshots import Position
from torchdata.dataloader2.graph import set_graph_random_seed
from torchdata.dataloader2.graph.serialization import Snapshot
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.services.interface import contract_of
from torchdata.dataloader2.services.sequential import holds_nothing
from torchdata.datapipes._pipe.graph import Graph
from torchdata.datapipes.iter.threads.prefetching import stop_reading
from torchdata.datapipes.iter.threads.synchronizing import FullSync

__all__ = ["Epochs"]


class Epochs:
    """The part of a loader that begins and ends epochs."""

    reading_service: Any
    reading_service_state: bytes | None
    datapipe: Any
    _snapshot: Snapshot
    _identity: Identity
    _recorder: Recorder
    _position: Position
    _place: tuple[dict[str, Any], bool] | None
    _saved_places: SavedPlaces | None
    _seed: int | None
    _reset_seed: Any
    _seed_generator: SeedGenerator
    _initial_seed_generator: SeedGenerator
    _restored_randomness: bool
    _datapipe_iter: Any
    _delivery: Delivery
    _is_paused: bool
    _reset_iter: bool
    _adapted: bool
    _iterating: bool
    _epochs: int
    _skeleton: Any
    _length: int | str | None
    #: Seconds that ending an epoch waits for a thread which is at an item of it; None for as long as it takes.
    _reader_patience: float | None = None
    #: Whether the user was told of workers that have nothing to do.
    _knows_idle: bool = False

    if TYPE_CHECKING:  # what else it asks of the loader

        def _resume(self) -> None: ...

    def _begin_epoch(self) -> None:
        if self._is_paused:
            self._resume()
        self._close_iteration()
        with self._unless_begun():
            (place, strict), self._place = self._place or (None, True), None
            if place is not None and place["ended"]:
                self._pass_over(place, strict)
            elif place is not None:
                self._run_epoch(place, strict)
            else:
                self._run_epoch()

    @contextmanager
    def _unless_begun(self) -> Iterator[None]:
        """Leaves the loader between the same two epochs, or at the same place to go on, where one does not begin.

        Ctrl-C may have cut it off, or an error. The next `iter` begins it, and a state is of before it.
        """
        before = self._place, self._saved_places, self._reset_seed, self._restored_randomness
        generators = copy.copy(self._seed_generator), self._initial_seed_generator
        end, epochs = self._position.end, self._epochs
        was_read = self._datapipe_iter is not None and self._reset_iter
        try:
            yield
        except BaseException:
            self._place, self._saved_places, self._reset_seed, self._restored_randomness = before
            self._seed_generator, self._initial_seed_generator = generators
            self._position.go_back(end, epochs)
            self._reset_iter = True  # there is no epoch that the next `iter` could take over
            if not was_read:
                self._datapipe_iter = None  # another state may be loaded
            raise

    def _pass_over(self, place: dict[str, Any], strict: bool) -> None:
        """Brings the graph to the end of an epoch that has ended, and begins the next one."""
        if place["workers"] is not None or (not place["in_main"] and place["graph"] is None):
            self._run_epoch(place, strict)
            for _ in self._datapipe_iter:
                pass
            self._close_iteration()
            self._run_epoch()
            return
        self._position.go_on_between(place)
        self._run_epoch(between=place)

    def _run_epoch(
        self, place: dict[str, Any] | None = None, strict: bool = True, between: dict[str, Any] | None = None
    ) -> None:
        """Begins an epoch, or goes on in it at a place.

        Args:
            place: the place, or None.
            strict: whether what is made again is compared.
            between: the end of the last epoch where an earlier run has left the loader there.
        """
        stop_reading(self.datapipe)
        if place is None:
            self._prepare_seeds()
        else:
            self._seed_generator = copy.copy(self._initial_seed_generator)
            self._restored_randomness = False
        service, position = self.reading_service, self._position
        if not self._adapted:
            self._identity.note(self.datapipe)
            if service is not None:
                self._hand_over(service, place)
            position.find_output()
        if place is None:
            self._saved_places = None  # what was loaded was of an epoch before
        else:
            place = self._fitted(place, strict)
        if between is not None:
            position.load_between(between)
        self._epochs += 1
        position.begin(place, strict)
        self._iterating = True
        try:
            if service is not None:
                reset = service.initialize_iteration(self._seed_generator)
                if reset is not None:
                    self.datapipe = reset(self.datapipe)
            elif not position.own_seeds:
                set_graph_random_seed(self.datapipe, copy.copy(self._seed_generator))
            self._recorder.begin(contract_of(service), self.datapipe, self._delivery)
            self._datapipe_iter = position.iterate(place)
            position.drop(place)
        except BaseException as error:
            self._close_iteration(because=error)
            raise
        self._reset_iter = False

    def _fitted(self, place: dict[str, Any], strict: bool) -> dict[str, Any]:
        """The place that was loaded, for as many workers and ranks as there are now."""
        saved, output = self._saved_places, self._position.output
        if saved is None:
            return place
        workers, dispatches = (0, False) if output is None else (output.num_workers, output.dispatches)
        try:
            place = saved.fitted(self, workers, dispatches)
        except ValueError:
            self._place = place, strict  # no epoch begins in its stead
            raise
        saved.suit_seeds(self)
        self._saved_places = None
        return place

    def _prepare_seeds(self) -> None:
        generator = self._seed_generator
        if self._seed is not None and self._reset_seed:
            generator.seed(self._seed)
            self._reset_seed = False
        elif not self._restored_randomness:
            # Spawned generators follow from the seed alone, however much was drawn: each epoch needs its own.
            generator.seed(None if self._seed is None else generator.generate_shared_seed())
        self._restored_randomness = False
        self._initial_seed_generator = copy.copy(generator)

    def _hand_over(self, service: Any, place: dict[str, Any] | None) -> None:
        """Lets the service take over the graph; if it fails, the loader keeps the graph as it was."""
        try:
            self._skeleton, self._length = skeleton(self.datapipe), None
        except TypeError as error:
            self._length = str(error)
        contract = contract_of(service)
        workers, *_ = (place or {}).get("processes") or (None,)
        contract.before_initialize(self._recorder.full, workers)
        try:
            if self.reading_service_state is None:
                self.datapipe = service.initialize(self.datapipe)
            elif contract.is_checkpointable:
                self.datapipe = service.restore(self.datapipe, self.reading_service_state)
            elif holds_nothing(self.reading_service_state):
                self.datapipe = service.initialize(self.datapipe)
            else:
                raise TypeError(
                    "Cannot restore from non-checkpointable reading service: the loaded state holds one of a reading "
                    f"service, and {type(service).__name__} is no CheckpointableReadingServiceInterface"
                )
        except BaseException:
            self.datapipe = self._snapshot.copy()
            raise
        self._adapted = True

    def _leave_ranks(self, for_good: bool) -> None:
        """Lets other ranks know that this one ends its epoch, if one is under way.

        Args:
            for_good: whether it will not go on, so that they fail.
        """
        if self._iterating:
            for pipe in Graph(self.datapipe):
                if isinstance(pipe, FullSync):
                    pipe.leave(for_good)

    def _close_iteration(self, because: BaseException | None = None, *, at_end: bool = False) -> None:
        """Tells the service that the epoch is over, once. Who reads it still is told that it was left, but at its end.

        Args:
            at_end: whether all its items were given.
            because: the error that ended the epoch, if one did. It stays the error that the user sees.
        """
        if not self._iterating:
            return
        output = self._position.output
        shares = output.shares if at_end and output is not None and not self._knows_idle else None
        self._position.close()
        self._leave_ranks(for_good=because is not None)
        self._iterating = False
        self._recorder.end()
        if because is None:
            self._datapipe_iter = FinishedIterator(self._datapipe_iter, None if at_end else LEFT)
        else:
            self._datapipe_iter = FinishedIterator(None, _ended_by(because), threading.get_ident())
        try:
            if self.reading_service is not None:
                self.reading_service.finalize_iteration()
        except Exception as error:
            if because is None:
                raise
            because.add_note(f"After that, ending the epoch failed, too: {error!r}")
        finally:
            # A thread that reads is at an item of the graph that the next epoch resets. It is told when it has that.
            self._delivery.turn.await_left(self._reader_patience)
        if shares is not None and are_idle(shares):
            self._knows_idle = True
            warn_of_idle(shares)


def _ended_by(error: BaseException) -> str:
    """The error in words: itself it would keep alive what its frames refer to."""
    return f"the epoch was ended by an error, which another thread that reads it got: {type(error).__name__}: {error}"
