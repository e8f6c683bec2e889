"""`DataLoader2`: a pipe graph, the adapters that change it and the reading service that runs it.

Role: owns a copy of the graph and of the service, keeps the one valid iterator, and shuts the service down, whatever
happens. Runs in the main process, in any thread: one that begins an epoch, loads a state or shuts the loader down
excludes the others that do. Epochs, states, copies and what can be seen stand in bases of the class.
"""

from __future__ import annotations

import atexit
import copy
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Literal, Never, TypeAlias, TypeVar, overload

from torchdata._engine.interrupts import InterruptsDeferred
from torchdata._native import Delivery, Finalized
from torchdata._reporting import fold
from torchdata._stats.recorder import Recorder, StatsLevel
from torchdata._threads import Work, end_all, end_at_exit
from torchdata.dataloader2._arguments import adapter_list, refuse_arguments, require_service, service_of
from torchdata.dataloader2._checkpointing import Checkpointing, unpacked_pipe
from torchdata.dataloader2._copying import Copying
from torchdata.dataloader2._datasets import pipe_over, pipeline_over
from torchdata.dataloader2._epochs import Epochs
from torchdata.dataloader2._identity import Identity
from torchdata.dataloader2._iterator import SHUT_DOWN, DataLoader2Iterator, FinishedIterator
from torchdata.dataloader2._length import length_of_epoch, skeleton
from torchdata.dataloader2._loader_state import RANDOMNESS_STATE_KEY_NAME as RANDOMNESS_STATE_KEY_NAME
from torchdata.dataloader2._loader_state import SERIALIZED_DATAPIPE_KEY_NAME as SERIALIZED_DATAPIPE_KEY_NAME
from torchdata.dataloader2._loader_state import unpack_randomness
from torchdata.dataloader2._pausing import Pausing
from torchdata.dataloader2._rank_states import SavedPlaces, checked
from torchdata.dataloader2._seen import Seen
from torchdata.dataloader2._skipping import Skipping
from torchdata.dataloader2._snapshots import Position
from torchdata.dataloader2.adapter import Adapter
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.serialization import Snapshot
from torchdata.dataloader2.graph.serialization import serialize_datapipe as serialize_datapipe
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.random.seed_generator import check_seed
from torchdata.dataloader2.reading_service import (
    InProcessReadingService,
    MultiProcessingReadingService,
)
from torchdata.dataloader2.services.interface import (
    READING_SERVICE_STATE_KEY_NAME as READING_SERVICE_STATE_KEY_NAME,
)
from torchdata.dataloader2.services.interface import (
    ReadingServiceInterface,
)
from torchdata.datapipes._pipe.traversal import is_pipe, walk
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

__all__ = ["DataLoader2", "DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
AdapterFn: TypeAlias = Adapter | Callable[[DataPipe], DataPipe]

#: The loaders of this process that are not shut down, by identity; the interpreter shuts them down when it exits.
#: No WeakSet, which calls Python code when a loader dies: what Ctrl-C raises there is lost.
_open_loaders: dict[int, weakref.ref[DataLoader2[Any]]] = {}


class DataLoader2(Epochs, Checkpointing, Pausing, Skipping, Copying, Seen[T_co], Finalized, Generic[T_co]):
    """Loads data through a pipe graph: iterate it once per epoch.

    To type checkers, the loader of an `IterDataPipe[T]` or a `MapDataPipe[T]` is a `DataLoader2[T]`. It is a
    `DataLoader2[Any]` of any other object, and where adapters are functions, which may change the items.

    The loader works on copies of the pipe and of the service, so both can be used again elsewhere. An error
    in a pipe, a `break` or a second `iter()` end the epoch, not the loader: the next `iter()` begins a new
    epoch. Shut it down with `shutdown()` or by using it as a context manager. To pause after so many items, use
    `limit()` and `resume()` of the iterator, `iter(loader)`: the loader itself has neither.

    Threads may share an iterator, whose items then go to one of them each. A copy, by `copy` or pickle, is a loader of
    its own that has not begun.

    Args:
        datapipe: the last pipe of the graph, or a data set: what has a length and is read by index, such as PyTorch's
            `Dataset`, or an iterable that can be read again and again. A `MapDataPipe` is read from index 0 on, and so
            is such a data set; workers share its items only behind a `sharding_filter`, which `from_dataset` adds.
            None only where `load_state_dict` follows. Anything else is an error when the
            loader is used.
        datapipe_adapter_fn: an adapter or several; applied to the copy of the graph, in their order.
        reading_service: how the graph is run; None reads it in this process, with the pipes' own seeds.
        num_workers: number of worker processes, in the place of a `reading_service`: the short form of
            `reading_service=MultiProcessingReadingService(num_workers)`.
        stats: what is counted: "counts", which costs nothing, or "full", which takes the time of each pipe, too; None
            for what the environment variable `TORCHDATA_STATS` says, or else "counts". See `stats()`.
        stall_warning: after how many seconds in which `next` got no item a `RuntimeWarning` says who waits for whom,
            and where; None: never.
        of_torchs_loader: nothing. Arguments of torch's `DataLoader` are refused by a message that says what takes their
            place.

    Raises:
        TypeError: an argument is of another kind, or the pipe or the service cannot be copied; the message
            names the attribute at fault.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(4)).shuffle().sharding_filter().map(str)
        >>> with DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        ...     sorted(loader)
        ['0', '1', '2', '3']
    """

    @overload
    def __init__(
        self: DataLoader2[T],
        datapipe: IterDataPipe[T] | MapDataPipe[T],
        datapipe_adapter_fn: Iterable[Adapter] | Adapter | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        num_workers: int | Literal["auto"] = 0,
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        **of_torchs_loader: Never,
    ) -> None: ...

    @overload
    def __init__(
        self: DataLoader2[Any],
        datapipe: object,
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        num_workers: int | Literal["auto"] = 0,
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        **of_torchs_loader: Never,
    ) -> None: ...

    def __init__(
        self,
        datapipe: Any,
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        num_workers: int | Literal["auto"] = 0,
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        **of_torchs_loader: Never,
    ) -> None:
        self._terminated = self._ended = True  # a loader whose construction fails has nothing to shut down
        refuse_arguments(of_torchs_loader)
        reading_service = service_of(num_workers, reading_service, "DataLoader2")
        self._recorder = Recorder(stats, stall_warning)
        datapipe = pipe_over(datapipe)
        if isinstance(datapipe, MapDataPipe):
            datapipe = datapipe.to_iter_datapipe()
        self.datapipe_adapter_fns = adapter_list(datapipe_adapter_fn)
        self._service = Snapshot(reading_service)  # one that was in use serves no other graph
        self.reading_service = self._adapt_service(self._service.copy())
        self.reading_service_state: bytes | None = None
        self.datapipe: Any = None
        self._snapshot = Snapshot(datapipe)
        self._take_graph(self._snapshot)

        self._set_up()

    def _set_up(self) -> None:
        """Makes what belongs to a loader that has not begun. It is open from then on."""
        self._delivery = Delivery()
        end_at_exit(self._delivery.turn)
        self._held = threading.RLock()  # by who takes a state, while the graph must stand still
        self._changing = threading.RLock()  # by who begins an epoch, loads a state, or shuts down
        self._position = Position(self)
        self._place: tuple[dict[str, Any], bool] | None = None  # at which to go on, and whether to compare
        self._epochs = 0  # that were begun
        self._saved_places: SavedPlaces | None = None  # where it was saved, perhaps with other processes
        self._adapted = False  # whether the service has taken over the graph
        self._skeleton: Any = None  # of the graph as it was then, until somebody asks for the length
        self._length: int | str | None = None  # or why it is not known
        self._iterating = False  # whether the service was not yet told the end of the epoch
        self._paused = self._limited = False

        self._seed_generator = SeedGenerator()
        self._initial_seed_generator = copy.copy(self._seed_generator)  # as at the beginning of the epoch
        self._seed: int | None = None
        self._reset_seed = True  # whether `_seed` is still to be applied
        self._restored_randomness = False  # whether the next epoch begins with the generator as it is
        self._state_dict: dict[str, Any] | None = None

        self._owner_pid = os.getpid()
        self._patience = 2.0  # seconds that `shutdown` waits for threads
        self._is_noted = True  # whether somebody may ask for the state after that
        self._names = frozenset(vars(self))
        self._terminated = self._ended = False
        _open_loaders[id(self)] = weakref.ref(self)

    # What the iterator looks at for each item lies in the extension.

    @property
    def valid_iterator_id(self) -> int | None:
        """The number of the iterator that is valid; None before the first one."""
        valid: int | None = self._delivery.valid
        return valid

    @valid_iterator_id.setter
    def valid_iterator_id(self, number: int | None) -> None:
        self._delivery.valid = number

    @property
    def _datapipe_iter(self) -> Any:
        return self._delivery.source

    @_datapipe_iter.setter
    def _datapipe_iter(self, iterator: Any) -> None:
        self._delivery.source = iterator

    @property
    def _reset_iter(self) -> bool:
        """Whether the next `iter` begins an epoch; not before an item was asked for."""
        begun: bool = self._delivery.begun
        return begun

    @_reset_iter.setter
    def _reset_iter(self, reset: bool) -> None:
        self._delivery.begun = reset

    @property
    def _is_paused(self) -> bool:
        return self._paused

    @_is_paused.setter
    def _is_paused(self, paused: bool) -> None:
        self._paused = paused
        self._delivery.slow = paused or self._limited

    @property
    def _is_limited(self) -> bool:
        return self._limited

    @_is_limited.setter
    def _is_limited(self, limited: bool) -> None:
        self._limited = limited
        self._delivery.slow = limited or self._paused

    def _adapt_service(self, service: Any) -> Any:
        for adapter in self.datapipe_adapter_fns or ():
            if service is not None and hasattr(adapter, "adapt_reading_service"):
                service = adapter.adapt_reading_service(service)
                require_service(service)
        return service

    def _take_graph(self, snapshot: Snapshot) -> None:
        """Makes an adapted copy of the graph the loader's own, and remembers it as it is before the service."""
        datapipe = snapshot.copy()
        if datapipe is not None and self.datapipe_adapter_fns:
            for adapter in self.datapipe_adapter_fns:
                adapted = adapter(datapipe)
                if not is_pipe(adapted):
                    raise TypeError(f"an adapter must return the pipe to read, but {adapter!r} returned {adapted!r}")
                datapipe = adapted
            snapshot = Snapshot(datapipe)
        self.datapipe = datapipe
        self._graph_name = "no pipe yet" if datapipe is None else type(datapipe).__qualname__
        self._snapshot = snapshot
        self._identity = self._identified(snapshot)

    @staticmethod
    def _identified(snapshot: Snapshot) -> Identity:
        return Identity(snapshot, _serialized)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        num_workers: int | Literal["auto"] = 0,
        *,
        sampler: Iterable[Any] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        reading_service: ReadingServiceInterface | None = None,
        **of_torchs_loader: Never,
    ) -> DataLoader2[Any]:
        """A loader of a data set, with the usual pipeline: order, share, batch, collate.

        Workers divide a data set that is read by index by its indices, so each item is loaded once. An iterable is read
        whole in each worker, of which each takes its share, unless it divides itself (as Hugging Face's
        `IterableDataset`). But for the latter, items come in the same order, and in the same batches, whatever the
        number of workers.

        Args:
            dataset: what has a length and is read by index, such as PyTorch's `Dataset`; an iterable that can be read
                again and again; a generator function; or a pipe. One that has a sharding pipe gets no other.
            batch_size: items per batch; None yields single items, uncollated.
            shuffle: whether each epoch has a random order of its own: of all items by index, or of those of an iterable
                through the buffer of `shuffle()`.
            num_workers: number of worker processes; 0 reads in this process; "auto" chooses while it runs.
            sampler: gives the indices to read, for data sets that are read by index; see `sample_by` of map pipes.
            drop_last: whether a last batch with fewer items is left out.
            collate_fn: a function of a batch, or of an item where `batch_size` is None. None makes arrays (with PyTorch
                loaded, tensors) of batches.
            seed: from which all epochs follow, as by `seed()`.
            reading_service: how the pipeline is run, in the place of `num_workers`.

        Raises:
            TypeError: `dataset` is none, or another argument is of another kind.
            ValueError: a number is too small, or two arguments exclude each other.

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> with DataLoader2.from_dataset(range(5), batch_size=2, num_workers=2, collate_fn=list) as loader:
            ...     len(loader), list(loader)
            (3, [[0, 1], [2, 3], [4]])
        """
        refuse_arguments(of_torchs_loader, "DataLoader2.from_dataset")
        reading_service = service_of(num_workers, reading_service, "DataLoader2.from_dataset")
        pipe = pipeline_over(dataset, batch_size, shuffle, sampler, drop_last, collate_fn)
        if reading_service is None:
            reading_service = InProcessReadingService()
        loader = cls(pipe, reading_service=reading_service)
        if seed is not None:
            loader.seed(seed)
        return loader

    @property
    def _datapipe_before_reading_service_adapt(self) -> Any:
        """A copy of the graph as it was after the adapters and before the service."""
        return self._snapshot.copy()

    def __iter__(self) -> DataLoader2Iterator[T_co]:
        """Begins an epoch and returns its iterator, which invalidates the ones before.

        Where no item was asked of the last iterator, the new one takes over its epoch.

        A thread that reads the epoch before gets a RuntimeError once the item that it is at has come, which is waited
        for.

        Raises:
            RuntimeError: the loader was shut down, or has no pipe; or this process is a forked child of the one whose
                worker processes run it.
            TypeError: what the loader was given is no pipe; or a reading service's state was loaded, and the service
                cannot take it.
        """
        self._take_over_in_child()
        with self._changing:
            if self._terminated:
                raise RuntimeError("Cannot iterate over the DataLoader as it has already been shut down")
            if self.datapipe is None:
                raise RuntimeError("Please provide datapipe or use load_state_dict to load datapipe from state")
            self._require_pipe()
            if self._reset_iter:
                try:
                    self._begin_epoch()
                except Exception as error:
                    fold(error)
                    raise
            self._is_limited = False
            self.valid_iterator_id = 0 if self.valid_iterator_id is None else self.valid_iterator_id + 1
            return DataLoader2Iterator(self, self.valid_iterator_id)

    def _take_over_in_child(self) -> None:
        """Makes a loader that a forked child inherited the child's, unless worker processes of its parent run it.

        Raises:
            RuntimeError: they do.
        """
        if self._owner_pid == os.getpid():
            return
        if self._adapted and not self._runs_in_main():
            raise RuntimeError(
                f"this DataLoader2 belongs to process {self._owner_pid}, whose worker processes run it, and this is a "
                "forked child of that: make a loader of your own in the child"
            )
        self._held, self._changing = threading.RLock(), threading.RLock()  # a thread of the parent may hold them
        self._owner_pid = os.getpid()

    def _require_pipe(self) -> None:
        """Raises TypeError where the loader was given something else. What a service made of a pipe is its own."""
        if not self._adapted and not is_pipe(self.datapipe):
            raise TypeError(
                f"DataLoader2 loads from an IterDataPipe or a MapDataPipe, but got {self.datapipe!r} of type "
                f"{type(self.datapipe).__name__}; put data into an IterableWrapper first"
            )

    def __len__(self) -> int:
        """The number of items of an epoch. Asking starts nothing.

        Each worker's share is counted, and of all ranks the least, because they end together; that takes for granted
        that the ranks read the same data.

        Raises:
            TypeError: it is not known: a pipe does not know its length, a function of the service may change the graph,
                or the service is one of your own.
        """
        if self.datapipe is None:
            raise TypeError("this DataLoader2 has no length, because it has no pipe yet")
        self._require_pipe()
        service = self.reading_service
        here = service is None or (isinstance(service, InProcessReadingService) and service.keeps_graph)
        if here or (self._adapted and isinstance(service, InProcessReadingService)):
            length: int = len(self.datapipe)
            return length
        if not self._adapted:
            return length_of_epoch(skeleton(self.datapipe), service)
        if self._length is None:
            try:
                self._length = length_of_epoch(self._skeleton, service)
            except TypeError as error:
                self._length = str(error)
            self._skeleton = None
        if isinstance(self._length, str):
            raise TypeError(self._length)
        return self._length

    def __bool__(self) -> bool:
        return True  # whatever its length

    def seed(self, seed: int) -> None:
        """Sets the seed from which all seeds of the following epochs are drawn.

        Args:
            seed: an integer from 0 to 2**64 - 1.

        Raises:
            TypeError: the seed is no integer.
            ValueError: the seed is out of range.
        """
        self._seed = check_seed(seed)
        self._reset_seed = self._is_seeded_since = True
        self._restored_randomness = False

    def shutdown(self) -> None:
        """Ends the epoch and the reading service; the loader cannot be iterated afterwards.

        Threads in which pipes read ahead here end after the item that they are at. That is waited for, up to 2 s, so
        that they draw no random numbers from then on, which may be those of another loader.

        May be called any number of times, by several threads at once, all of which return when it is done. A thread
        that reads gets a RuntimeError. Where Ctrl-C cut it off, the next call goes on. In a forked child, which only
        inherited the loader, the processes of the service are left alone.
        """
        if self._ended:
            return
        self._terminated = True
        over = FinishedIterator(None, SHUT_DOWN)
        if os.getpid() != self._owner_pid:
            self._datapipe_iter = over
            self._set_ended()
            return
        with self._excluding_others(self._patience):
            if not self._ended:  # by another thread, meanwhile
                self._shut_down(over)

    @contextmanager
    def _excluding_others(self, seconds: float) -> Iterator[None]:
        """Excludes others who change what the loader does; one who hangs there is not waited for any longer."""
        is_alone = self._changing.acquire(timeout=seconds)
        try:
            yield
        finally:
            if is_alone:
                self._changing.release()

    def _shut_down(self, over: FinishedIterator) -> None:
        self._reader_patience = self._patience
        try:
            try:
                if self._is_noted and self._left is None:
                    self._note_left(bool(self._works()))
                self._leave_ranks(for_good=True)
                self._close_iteration()
            finally:
                self._datapipe_iter = over
                if self.reading_service is not None:
                    self.reading_service.finalize()
            end_all(self._works(), self._patience)  # which may wait for the processes of the service before
        except Exception:
            self._set_ended()
            raise
        self._set_ended()  # and not where Ctrl-C cut it off: the next call goes on

    def _works(self) -> list[Work]:
        """What threads of the pipes in main work on."""
        pipes = walk(self.datapipe) if is_pipe(self.datapipe) else []
        works = [pipe._threads_at_work() for pipe in pipes if hasattr(type(pipe), "_threads_at_work")]
        return [work for work in works if work is not None]

    def _set_ended(self) -> None:
        self._ended = True
        self._recorder.close()
        _open_loaders.pop(id(self), None)

    def _finalize(self, interrupted: bool) -> None:
        """What `__del__` does: shuts down, and has Ctrl-C delivered afterwards, also one that cut it off before."""
        if interrupted or not self.__dict__.get("_ended", True):
            with InterruptsDeferred(later=True, noted=interrupted):
                if not self.__dict__.get("_ended", True):
                    self._is_noted = False
                    self.shutdown()

    def __enter__(self) -> DataLoader2[T_co]:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.shutdown()
        except Exception as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"After that, shutting the loader down failed, too: {error!r}")

    @classmethod
    def from_state(
        cls, state: dict[str, Any], reading_service: ReadingServiceInterface | None, *, strict: bool = True
    ) -> DataLoader2[Any]:
        """A new loader with the pipe of a saved state, which goes on where that was saved.

        Args:
            state: what `state_dict` returned, or that of all ranks, by rank. It is unpickled: load only what you trust.
            reading_service: how the graph is run; takes the service's part of the state, if there is one.
            strict: whether an error says so where the pipeline does not repeat what it did.

        Raises:
            TypeError, ValueError: this is not the state of a loader, or one of another version, or a damaged one, or
                it needs modules that are not here; or it holds no pipe.
        """
        state, places = checked(state)
        datapipe, randomness = unpacked_pipe(state), unpack_randomness(state)
        loader = cls(datapipe, None, reading_service)
        loader._take_state(state, randomness, strict, places)
        return loader

    def _runs_in_main(self) -> bool:
        """Whether no worker processes are to run the graph."""
        services = getattr(self.reading_service, "reading_services", [self.reading_service])
        return not any(
            isinstance(service, MultiProcessingReadingService) and service.num_workers for service in services
        )


def _shut_down_open_loaders() -> None:
    for reference in list(_open_loaders.values()):
        try:
            if (loader := reference()) is not None:
                loader._patience = 0.0  # all threads are waited for together, later
                loader._is_noted = False
                loader.shutdown()
        except Exception:
            traceback.print_exc()


atexit.register(_shut_down_open_loaders)


def _serialized(snapshot: Snapshot) -> bytes:
    """By the function that stands in this module as `serialize_datapipe`, where old tests patch it."""
    return serialize_datapipe(snapshot)
